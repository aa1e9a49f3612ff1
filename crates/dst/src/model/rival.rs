//! What clients of a pool know when another machine takes the pool.
//!
//! What always holds: once the next owner has read the pool, what clients of the owner before are
//! told is durable must be what it found. Errors that they see until then count only when the other
//! machine gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::names::Names;
use super::{Issued, Model, Presence, VolumeModel};
use crate::verdict::{Failure, Kind};

/// Numbers of changes that one volume of two machines may have each after a takeover, or of each
/// half of a pool.
pub(crate) const NUMBERS_OF_EACH: u32 = 1 << 13;

/// Another machine that wants the pool of these clients.
#[derive(Default)]
pub(super) enum Rival {
    /// There is none.
    #[default]
    None,
    /// It imports the pool. The first failure since.
    Importing(Option<Failure>),
    /// It has the pool, and this is what it found.
    HasIt(Found),
}

/// What the next owner found when it had read the pool.
pub(super) struct Found {
    volumes: BTreeMap<u32, FoundVolume>,
    snapshots: BTreeMap<(u32, u32), FoundSnapshot>,
}

/// A snapshot as the next owner found it.
struct FoundSnapshot {
    /// The volume that has it.
    owner: u32,
    names: Names,
    holds: BTreeSet<u32>,
}

/// A volume as the next owner found it.
struct FoundVolume {
    is_there: bool,
    names: Names,
    /// The number of a change, by sector.
    contents: Vec<u32>,
    /// Rollbacks that have taken effect, or may have.
    rollbacks: u64,
}

impl FoundVolume {
    /// True when a rollback that was not answered may have undone changes of `volume`.
    fn may_lack(&self, volume: &VolumeModel) -> bool {
        volume.rolling_back.is_some() && self.rollbacks > volume.rollbacks
    }
}

impl Model {
    /// Another machine begins to import the pool.
    pub fn rival_imports(&self) {
        self.rival.replace(Rival::Importing(None));
        self.list_is_behind.set(true);
    }

    /// Another machine was refused: whatever clients saw meanwhile counts.
    pub fn rival_is_refused(&self) {
        if let Rival::Importing(Some(Failure { kind, message })) = self.rival.take() {
            self.object(kind, message);
        }
    }

    /// The model of the clients of the next owner, which has imported the pool and not read it.
    #[must_use]
    pub fn of_next_owner(&self) -> Rc<Self> {
        let next = self.fork();
        next.forget_callers();
        next.skip_numbers(NUMBERS_OF_EACH);
        next
    }

    /// The next owner has read the pool, and `next` is what its clients know since.
    pub fn is_replaced_by(&self, next: &Self) {
        let volumes = next.volumes.borrow();
        let found = |v: &VolumeModel| FoundVolume {
            is_there: v.presence == Presence::Present,
            names: v.names,
            contents: v.history.contents().to_vec(),
            rollbacks: v.rollbacks,
        };
        let volumes: BTreeMap<u32, FoundVolume> =
            volumes.iter().map(|(id, v)| (*id, found(v))).collect();
        for (id, volume) in &*self.volumes.borrow() {
            let found = volumes.get(id).filter(|found| !found.may_lack(volume));
            let lost = found.and_then(|found| volume.history.lost_durable(&found.contents));
            if let Some(lost) = lost {
                let text = format!("v{id}: durable, and the next owner lacks it: {lost}");
                self.object_for_certain(Kind::Owners, text);
            }
        }
        let found = next.snapshots().into_iter().filter(|key| next.has_snapshot(*key));
        let of = |key| {
            next.update_snapshot(key, |s| FoundSnapshot {
                owner: s.owner,
                names: s.names,
                holds: s.holds.clone(),
            })
        };
        let snapshots = found.filter_map(|key| Some((key, of(key)?))).collect();
        self.rival.replace(Rival::HasIt(Found { volumes, snapshots }));
        self.ids().into_iter().for_each(|id| self.judge_late_job(id));
        self.snapshots().into_iter().for_each(|key| self.judge_late_snapshot(key));
    }

    /// Objects when a snapshot is not what the next owner has found, as far as jobs on it were
    /// answered.
    pub(crate) fn judge_late_snapshot(&self, key: (u32, u32)) {
        let Rival::HasIt(found) = &*self.rival.borrow() else { return };
        let found = found.snapshots.get(&key);
        let is_there = found.is_some();
        let is_promoting = self.promotions.borrow().asked.is_some();
        let known = self.update_snapshot(key, |snapshot| {
            let are_tags_known = snapshot.hold_asked.is_none();
            let has_other_owner = found.is_some_and(|found| found.owner != snapshot.owner);
            let has_other_tags = found.is_some_and(|found| found.holds != snapshot.holds);
            let has_other_name = found.is_some_and(|found| !snapshot.names.may_be(&found.names));
            let differs = if !is_promoting && has_other_owner {
                Some("moved with a promotion")
            } else if are_tags_known && has_other_tags {
                Some("has other tags")
            } else {
                has_other_name.then_some("was renamed")
            };
            (snapshot.presence, differs)
        });
        let what = match known {
            Some((Presence::Present, _)) if !is_there => "was taken",
            Some((Presence::Gone, _)) if is_there => "was destroyed",
            Some((Presence::Present, Some(differs))) => differs,
            _ => return,
        };
        let name = self.snapshot_name(key);
        let text = format!("{name} {what}, and the next owner has not found that");
        self.object_for_certain(Kind::Owners, text);
    }

    /// Objects when a volume is not what the next owner has found, as far as jobs on it were
    /// answered.
    pub(crate) fn judge_late_job(&self, id: u32) {
        let Rival::HasIt(found) = &*self.rival.borrow() else { return };
        let volumes = self.volumes.borrow();
        let Some(volume) = volumes.get(&id) else { return };
        let found = found.volumes.get(&id);
        let is_there = found.is_some_and(|found| found.is_there);
        let size = found.map_or(0, |found| found.contents.len() as u64);
        let may_change = !volume.resizing.is_empty() || volume.rolling_back.is_some();
        let has_size = may_change || size == volume.history.sectors();
        let has_name = found.is_some_and(|found| volume.names.may_be(&found.names));
        let goes_back = found.is_some_and(|found| found.rollbacks < volume.rollbacks);
        let what = match volume.presence {
            Presence::Present if !is_there => "was created",
            Presence::Gone if is_there => "was destroyed",
            Presence::Present if goes_back => "was rolled back",
            Presence::Present if !has_size => "was resized",
            Presence::Present if !has_name => "was renamed",
            _ => return,
        };
        let text = format!("v{id}: {what}, and the next owner has not found that");
        self.object_for_certain(Kind::Owners, text);
    }

    /// Keeps a failure for later, or forgets it, while another machine has its hands on the pool.
    /// Returns what counts.
    pub(super) fn contested(&self, failure: Failure) -> Option<Failure> {
        match &mut *self.rival.borrow_mut() {
            Rival::None => return Some(failure),
            Rival::Importing(first) => drop(first.get_or_insert(failure)),
            Rival::HasIt(_) => {}
        }
        None
    }

    /// Adds the counts of the clients of the owner before.
    pub fn absorb(&self, before: &Self) {
        self.acts.set(self.acts.get() + before.acts.get());
        for (event, times) in before.events() {
            self.count(&event, times);
        }
    }

    /// Objects when a change is answered as durable that the next owner has not found.
    pub(super) fn judge_late_answer(&self, id: u32, issued: &Issued) {
        let Rival::HasIt(found) = &*self.rival.borrow() else { return };
        let (volumes, found) = (self.volumes.borrow(), found.volumes.get(&id));
        let (Some(volume), Some(found)) = (volumes.get(&id), found) else { return };
        if found.may_lack(volume) {
            return;
        }
        if let Some(lost) = volume.history.lost_of(issued.ticket, &found.contents) {
            let text =
                format!("v{id}: acknowledged as durable, and the next owner lacks it: {lost}");
            self.object_for_certain(Kind::Owners, text);
        }
    }

    /// Objects when a flush that was issued at `issued` is answered, and the next owner has not
    /// found what was answered before it.
    pub fn judge_late_flush(&self, id: u32, issued: u64) {
        let Rival::HasIt(found) = &*self.rival.borrow() else { return };
        let (volumes, found) = (self.volumes.borrow(), found.volumes.get(&id));
        let (Some(volume), Some(found)) = (volumes.get(&id), found) else { return };
        if found.may_lack(volume) {
            return;
        }
        if let Some(lost) = volume.history.lost_before(issued, &found.contents) {
            let text = format!("v{id}: flushed, and the next owner lacks it: {lost}");
            self.object_for_certain(Kind::Owners, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Change, History};
    use crate::model::RollingBack;
    use crate::model::snapshots::Promoting;
    use crate::scenario::Demand;

    /// A volume of eight sectors that was created, and the model of the next owner.
    fn models() -> (Rc<Model>, Rc<Model>) {
        let model = Model::new(Demand::AllData, 8);
        model.creating(0, 8);
        model.update(0, |v| v.presence = Presence::Present);
        (model.clone(), model.of_next_owner())
    }

    fn complaint(model: &Model) -> String {
        model.take_failure().map_or_else(String::new, |failure| failure.message)
    }

    #[test]
    fn volume_that_the_next_owner_found_as_it_was_is_no_reason_to_object() {
        let (model, next) = models();
        model.is_replaced_by(&next);
        model.judge_late_job(0);
        assert_eq!(complaint(&model), "");
    }

    #[test]
    fn job_that_was_answered_before_the_next_owner_read_the_pool_binds_it() {
        let (model, next) = models();
        next.update(0, |v| v.presence = Presence::Gone);
        model.is_replaced_by(&next);
        assert!(complaint(&model).starts_with("v0: was created"));
    }

    #[test]
    fn job_that_is_answered_once_the_next_owner_has_read_the_pool_binds_it() {
        let (model, next) = models();
        model.is_replaced_by(&next);
        model.update(0, |v| v.resizing.push(16));
        model.judge_late_job(0);
        assert_eq!(complaint(&model), "");
        model.update(0, |v| {
            v.resizing.clear();
            v.history.resize(16);
        });
        model.judge_late_job(0);
        assert!(complaint(&model).starts_with("v0: was resized"));
        model.update(0, |v| v.history.resize(8));
        model.renaming(0, 1);
        model.judge_late_job(0);
        assert_eq!(complaint(&model), "");
        model.renamed(0);
        model.judge_late_job(0);
        assert!(complaint(&model).starts_with("v0: was renamed"));
        model.update(0, |v| v.presence = Presence::Gone);
        model.judge_late_job(0);
        assert!(complaint(&model).starts_with("v0: was destroyed"));
    }

    #[test]
    fn snapshot_that_was_taken_or_destroyed_binds_the_next_owner() {
        let (model, next) = models();
        model.is_replaced_by(&next);
        model.snapshot_asked((0, 1));
        model.judge_late_snapshot((0, 1));
        assert_eq!(complaint(&model), "");
        model.update_snapshot((0, 1), |snapshot| snapshot.presence = Presence::Present);
        model.judge_late_snapshot((0, 1));
        assert!(complaint(&model).starts_with("v0@s1 was taken"));
    }

    #[test]
    fn rollback_that_was_answered_binds_the_next_owner() {
        let (model, next) = models();
        model.is_replaced_by(&next);
        model.update(0, |v| v.rollbacks += 1);
        model.judge_late_job(0);
        assert!(complaint(&model).starts_with("v0: was rolled back"));
    }

    #[test]
    fn what_a_rollback_without_an_answer_undid_is_lost_only_if_it_was_not_found() {
        for found in [0, 1] {
            let (model, next) = models();
            model.update(0, |v| {
                let write = v.history.issue(Change::Write, 0, 8, u64::MAX);
                v.history.complete(write, true);
                let contents = Box::new(History::new("v0@s1", 8, 8));
                let answered = Some(v.history.answered());
                v.rolling_back = Some(RollingBack { contents, answered });
            });
            next.update(0, |v| v.rollbacks = found);
            model.is_replaced_by(&next);
            assert_eq!(complaint(&model).starts_with("v0: durable"), found == 0);
        }
    }

    #[test]
    fn promotion_that_was_answered_binds_the_next_owner() {
        let (model, _) = models();
        model.snapshot_asked((0, 1));
        model.update_snapshot((0, 1), |snapshot| snapshot.presence = Presence::Present);
        let asked = Promoting { clone: 7, parent: 0, origin: (0, 1) };
        model.promotions.borrow_mut().asked = Some(asked.clone());
        model.is_replaced_by(&model.of_next_owner());
        model.promoted(&asked);
        model.judge_late_snapshot((0, 1));
        assert_eq!(complaint(&model), "");
        model.promotions.borrow_mut().asked = None;
        model.judge_late_snapshot((0, 1));
        assert!(complaint(&model).starts_with("v7@s1 moved with a promotion"));
    }
}
