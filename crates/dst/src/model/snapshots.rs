//! What the administrator knows of snapshots.

use std::collections::BTreeSet;

use super::names::Names;
use super::{Model, Presence};
use crate::history::History;
use crate::verdict::Kind;

/// Tags that a snapshot may have.
const MOST_TAGS: u32 = 3;

/// What the administrator knows of one snapshot.
#[derive(Clone)]
pub struct SnapshotModel {
    /// Whether it must exist.
    pub presence: Presence,
    /// What it may hold. `None` until its instant has passed for certain.
    pub contents: Option<Box<History>>,
    /// It was taken or destroyed since the last import.
    pub is_recent: bool,
    /// Clones of it.
    pub clones: Vec<u32>,
    /// Its tags.
    pub holds: BTreeSet<u32>,
    /// A tag that is added or taken away, without an answer so far.
    pub hold_asked: Option<u32>,
    /// It had a tag.
    pub was_tagged: bool,
    /// Its tags may be older ones.
    is_doubtful: bool,
    /// What it is called.
    pub(super) names: Names,
    /// The volume that has it: another one than it was taken of after a promotion.
    pub owner: u32,
    /// When it was asked for, by the clock of the volume's history.
    asked: u64,
}

/// The name of a tag.
#[must_use]
pub fn tag_name(tag: u32) -> String {
    format!("t{tag}")
}

/// The promotions since the last import.
#[derive(Clone, Default)]
pub struct Promotions {
    /// The one that is not answered.
    pub asked: Option<Promoting>,
    /// The others, in order.
    pub answered: Vec<Promoting>,
}

/// A promotion of a clone.
#[derive(Clone)]
pub struct Promoting {
    /// The clone.
    pub clone: u32,
    /// The volume that it was cloned from.
    pub parent: u32,
    /// The snapshot.
    pub origin: (u32, u32),
}

impl Model {
    /// The origin of a volume that must be a clone, and the volume that has it.
    #[must_use]
    pub fn origin_of(&self, clone: u32) -> Option<Promoting> {
        let snapshots = self.snapshots.borrow();
        let mut present = snapshots.iter().filter(|(_, s)| s.presence == Presence::Present);
        let (origin, snapshot) = present.find(|(_, s)| s.clones.contains(&clone))?;
        Some(Promoting { clone, parent: snapshot.owner, origin: *origin })
    }

    /// Notes that a clone was promoted: it has its origin and the older snapshots, and the parent
    /// is a clone.
    pub fn promoted(&self, done: &Promoting) {
        let Promoting { clone, parent, origin } = *done;
        for (key, snapshot) in &mut *self.snapshots.borrow_mut() {
            // What the parent was cloned from, the clone is cloned from now.
            let was_parents_origin = snapshot.clones.contains(&parent);
            snapshot.clones.retain(|other| *other != parent && *other != clone);
            if *key == origin {
                snapshot.clones.push(parent);
            } else if was_parents_origin {
                snapshot.clones.push(clone);
            }
            if snapshot.owner == parent && key.1 <= origin.1 {
                snapshot.owner = clone;
            }
        }
    }

    /// After an import that shows the snapshots `names`: whether an unanswered promotion took
    /// effect, and with `may_be_older` whether answered ones are undone. An origin is listed by one
    /// of two names; all that moves goes with it.
    pub fn settle_promotions(&self, names: &[String], may_be_older: bool) {
        let has = |owner: u32, key| names.contains(&self.named_under(owner, key));
        let Promotions { asked, answered } = self.promotions.take();
        if let Some(asked) = asked.filter(|asked| has(asked.clone, asked.origin)) {
            self.promoted(&asked);
        }
        for done in answered.into_iter().rev().filter(|_| may_be_older) {
            let Promoting { clone, parent, origin } = done;
            if has(parent, origin) {
                // The way back is a promotion of the parent.
                self.promoted(&Promoting { clone: parent, parent: clone, origin });
            }
        }
    }

    /// Notes the request for a snapshot.
    pub fn snapshot_asked(&self, (volume, number): (u32, u32)) {
        // What is in flight from here on is kept in mind, as for a read.
        let asked = self.update(volume, |v| v.history.read_begins()).unwrap_or(0);
        let snapshot = SnapshotModel {
            presence: Presence::Creating,
            contents: None,
            is_recent: true,
            clones: Vec::new(),
            holds: BTreeSet::new(),
            hold_asked: None,
            was_tagged: false,
            is_doubtful: false,
            names: Names::default(),
            owner: volume,
            asked,
        };
        self.snapshots.borrow_mut().insert((volume, number), snapshot);
    }

    /// Notes that the instant of a snapshot has passed.
    pub fn freeze_snapshot(&self, key: (u32, u32)) {
        let Some(asked) = self.update_snapshot(key, |snapshot| snapshot.asked) else { return };
        let name = self.snapshot_name(key);
        let contents = self.update(key.0, |v| {
            v.history.read_ends(asked);
            Box::new(v.history.frozen(&name, asked))
        });
        self.update_snapshot(key, |snapshot| snapshot.contents = contents);
    }

    /// Before volumes are judged: the instants of all snapshots that may exist have passed.
    pub fn freeze_snapshots(&self) {
        for key in self.snapshots() {
            let is_open =
                |s: &mut SnapshotModel| s.contents.is_none() && s.presence != Presence::Gone;
            if self.update_snapshot(key, is_open) == Some(true) {
                self.freeze_snapshot(key);
            }
        }
    }

    /// Changes what is known about a snapshot.
    pub fn update_snapshot<R>(
        &self,
        key: (u32, u32),
        change: impl FnOnce(&mut SnapshotModel) -> R,
    ) -> Option<R> {
        self.snapshots.borrow_mut().get_mut(&key).map(change)
    }

    /// All snapshots that were ever asked for.
    #[must_use]
    pub fn snapshots(&self) -> Vec<(u32, u32)> {
        self.snapshots.borrow().keys().copied().collect()
    }

    /// True when the snapshot must exist.
    #[must_use]
    pub fn has_snapshot(&self, key: (u32, u32)) -> bool {
        self.update_snapshot(key, |s| s.presence) == Some(Presence::Present)
    }

    /// Whether there must be (`Present`), may be (`Creating`) or cannot be (`Gone`) a clone of a
    /// snapshot or a tag that keeps it.
    #[must_use]
    pub fn keepers_of(&self, key: (u32, u32)) -> Presence {
        let tagged = self.update_snapshot(key, |s| match (s.hold_asked, s.holds.is_empty()) {
            (Some(asked), _) if s.holds.iter().all(|held| *held == asked) => Presence::Creating,
            (_, false) => Presence::Present,
            (_, true) => Presence::Gone,
        });
        let clones = self.update_snapshot(key, |s| s.clones.clone()).unwrap_or_default();
        let volumes = self.volumes.borrow();
        let presences = clones.iter().filter_map(|clone| volumes.get(clone)).map(|v| v.presence);
        presences.fold(tagged.unwrap_or(Presence::Gone), |all, one| match (all, one) {
            (Presence::Present, _) | (_, Presence::Present) => Presence::Present,
            (Presence::Gone, Presence::Gone) => Presence::Gone,
            _ => Presence::Creating,
        })
    }

    /// True when a snapshot had a tag.
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.snapshots.borrow().values().any(|snapshot| snapshot.was_tagged)
    }

    /// After an import that shows these tags of a snapshot: objects unless they are those that were
    /// set, but for the one that was asked for. With `may_be_older` they count as they are.
    pub fn settle_holds(&self, key: (u32, u32), found: &[String], may_be_older: bool) {
        let name = self.snapshot_name(key);
        self.update_snapshot(key, |snapshot| {
            let asked = snapshot.hold_asked.take();
            let all: Vec<u32> = (0..MOST_TAGS).collect();
            let is_found = |tag: &u32| found.contains(&tag_name(*tag));
            let differ = |tag: &u32| is_found(tag) != snapshot.holds.contains(tag);
            let wrong = all.iter().find(|tag| differ(tag) && Some(**tag) != asked);
            if let Some(wrong) = wrong.filter(|_| !may_be_older && !snapshot.is_doubtful) {
                let (tag, found) = (tag_name(*wrong), is_found(wrong));
                let text = format!("{name} has tag {tag}: {found}, and it was set otherwise");
                self.object(Kind::Volumes, text);
            }
            snapshot.holds = all.into_iter().filter(is_found).collect();
            snapshot.is_doubtful = false;
        });
    }

    /// An import goes back to an earlier root: what was done since the last import may be undone.
    pub fn doubt_recent_snapshots(&self) {
        for snapshot in self.snapshots.borrow_mut().values_mut() {
            snapshot.is_doubtful = true;
            if snapshot.is_recent {
                snapshot.presence = Presence::Destroying;
            }
        }
    }
}
