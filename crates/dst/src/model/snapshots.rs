//! What the administrator knows of snapshots.

use super::{Model, Presence};
use crate::history::History;

/// What the administrator knows of one snapshot.
#[derive(Clone)]
pub struct SnapshotModel {
    /// Whether it must exist.
    pub presence: Presence,
    /// What it may hold. `None` until its instant has passed for certain.
    pub contents: Option<Box<History>>,
    /// It was taken or destroyed since the last import.
    pub is_recent: bool,
    /// Volumes that were cloned from it.
    pub clones: Vec<u32>,
    /// When it was asked for, by the clock of the volume's history.
    asked: u64,
}

/// The name of snapshot `number` of volume `volume`.
#[must_use]
pub fn snapshot_name((volume, number): (u32, u32)) -> String {
    format!("v{volume}@s{number}")
}

impl Model {
    /// Notes the request for a snapshot.
    pub fn snapshot_asked(&self, (volume, number): (u32, u32)) {
        // What is in flight from here on is kept in mind, as for a read.
        let asked = self.update(volume, |v| v.history.read_begins()).unwrap_or(0);
        let snapshot = SnapshotModel {
            presence: Presence::Creating,
            contents: None,
            is_recent: true,
            clones: Vec::new(),
            asked,
        };
        self.snapshots.borrow_mut().insert((volume, number), snapshot);
    }

    /// Notes that the instant of a snapshot has passed.
    pub fn freeze_snapshot(&self, key: (u32, u32)) {
        let Some(asked) = self.update_snapshot(key, |snapshot| snapshot.asked) else { return };
        let contents = self.update(key.0, |v| {
            v.history.read_ends(asked);
            Box::new(v.history.frozen(&snapshot_name(key), asked))
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
    /// snapshot.
    #[must_use]
    pub fn clones_of(&self, key: (u32, u32)) -> Presence {
        let clones = self.update_snapshot(key, |s| s.clones.clone()).unwrap_or_default();
        let volumes = self.volumes.borrow();
        let presences = clones.iter().filter_map(|clone| volumes.get(clone)).map(|v| v.presence);
        presences.fold(Presence::Gone, |all, one| match (all, one) {
            (Presence::Present, _) | (_, Presence::Present) => Presence::Present,
            (Presence::Gone, Presence::Gone) => Presence::Gone,
            _ => Presence::Creating,
        })
    }

    /// An import goes back to an earlier root: what was done since the last import may be undone.
    pub fn doubt_recent_snapshots(&self) {
        for snapshot in self.snapshots.borrow_mut().values_mut().filter(|s| s.is_recent) {
            snapshot.presence = Presence::Destroying;
        }
    }
}
