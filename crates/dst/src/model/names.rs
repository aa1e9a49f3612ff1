//! What volumes and snapshots are called.
//!
//! What always holds: each has a few names of its own, and there are some that any volume may have,
//! one at a time. So a name says which one it means, once renames are answered.

use super::{Model, Presence, volume_name};

/// Names of a volume or snapshot, by number: the one of its creation is 0.
const MOST_NAMES: u32 = 4;
/// Names that any volume may have, by the numbers after these.
const SHARED_NAMES: u32 = 2;

/// What a volume or snapshot is called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names {
    /// The number of its name.
    now: u32,
    /// The number of a name that was asked for, whose answer has not come.
    asked: Option<u32>,
    /// It may be an older one.
    is_doubtful: bool,
}

impl Names {
    /// True unless answers tell of another name than `found`.
    pub(super) fn may_be(&self, found: &Self) -> bool {
        self.asked.is_some() || self.now == found.now
    }

    /// Notes the request for name `to`. Returns the number of the one of now; `None` when that is
    /// the one, or when another was asked for whose answer has not come.
    fn ask(&mut self, to: u32) -> Option<u32> {
        let may_be_asked = self.asked.is_none() && self.now != to;
        self.asked = self.asked.or(may_be_asked.then_some(to));
        may_be_asked.then_some(self.now)
    }

    /// Notes that the name is the one that was asked for.
    fn answer(&mut self) {
        self.now = self.asked.take().unwrap_or(self.now);
    }

    /// After an import: the name is the first that `is_found`, of those that it may be. It may be
    /// one of before with `may_be_older`. When none is found it stays.
    fn settle(&mut self, may_be_older: bool, is_found: impl Fn(u32) -> bool) {
        let Self { now, asked, is_doubtful } = *self;
        let others = (0..MOST_NAMES).filter(|_| may_be_older || is_doubtful);
        let mut all = [now].into_iter().chain(asked).chain(others);
        let found = all.find(|number| is_found(*number));
        *self = Self { now: found.unwrap_or(now), ..Self::default() };
    }
}

/// Name `number` of volume `id`.
fn numbered(id: u32, number: u32) -> String {
    match number {
        0 => volume_name(id),
        MOST_NAMES.. => format!("w{}", number - MOST_NAMES),
        number => format!("{}r{number}", volume_name(id)),
    }
}

/// Name `name` of snapshot `number`, without its volume's.
fn snapshot_numbered(number: u32, name: u32) -> String {
    match name {
        0 => format!("s{number}"),
        name => format!("s{number}r{name}"),
    }
}

impl Model {
    /// The name of a volume, as far as answers tell.
    #[must_use]
    pub fn name_of(&self, id: u32) -> String {
        self.names_of(id).swap_remove(0)
    }

    /// The name of a volume, and the one that was asked for and is not answered.
    #[must_use]
    pub fn names_of(&self, id: u32) -> Vec<String> {
        let volumes = self.volumes.borrow();
        let Names { now, asked, .. } = volumes.get(&id).map(|v| v.names).unwrap_or_default();
        [now].into_iter().chain(asked).map(|number| numbered(id, number)).collect()
    }

    /// Notes the request for a name. Returns the names of now and then; `None` when it has that
    /// name already, or one whose answer has not come, or when another volume may have it.
    pub fn renaming(&self, id: u32, to: u32) -> Option<(String, String)> {
        let to = to % (MOST_NAMES + SHARED_NAMES);
        if to >= MOST_NAMES && self.may_be_taken(to) {
            return None;
        }
        let now = self.update(id, |v| v.names.ask(to));
        now.flatten().map(|now| (numbered(id, now), numbered(id, to)))
    }

    /// True when a volume that may exist has a name, or may have it.
    fn may_be_taken(&self, number: u32) -> bool {
        let volumes = self.volumes.borrow();
        let mut present = volumes.values().filter(|v| v.presence != Presence::Gone);
        present.any(|v| v.names.now == number || v.names.asked == Some(number))
    }

    /// Notes that a volume has the name that was asked for.
    pub fn renamed(&self, id: u32) {
        self.update(id, |v| v.names.answer());
    }

    /// Opens a volume by the name that it has.
    pub fn open_by<T>(&self, id: u32, open: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.names_of(id).iter().find_map(|name| open(name))
    }

    /// True when a volume or snapshot has one of two names, and it is not known which.
    #[must_use]
    pub fn has_unknown_names(&self) -> bool {
        let is_unknown = |names: &Names| names.asked.is_some();
        self.volumes.borrow().values().any(|v| is_unknown(&v.names))
            || self.snapshots.borrow().values().any(|s| is_unknown(&s.names))
    }

    /// An import goes back to an earlier root: what was renamed may have an older name.
    pub fn doubt_names(&self) {
        self.volumes.borrow_mut().values_mut().for_each(|v| v.names.is_doubtful = true);
        self.snapshots.borrow_mut().values_mut().for_each(|s| s.names.is_doubtful = true);
    }

    /// After an import that shows the volumes `names`: which of their names they have. With
    /// `may_be_older`, it may be one of before. A volume that shows none keeps its own.
    pub fn settle_names(&self, names: &[String], may_be_older: bool) {
        for id in self.ids() {
            self.update(id, |v| {
                if v.presence == Presence::Gone && v.names.now >= MOST_NAMES {
                    // Another one may have its name by now.
                    v.names.now = 0;
                }
                v.names.settle(may_be_older, |number| names.contains(&numbered(id, number)));
            });
        }
    }

    /// The name of snapshot `key`, as far as answers tell.
    #[must_use]
    pub fn snapshot_name(&self, key: (u32, u32)) -> String {
        let owner = self.update_snapshot(key, |snapshot| snapshot.owner);
        self.named_under(owner.unwrap_or(key.0), key)
    }

    /// The name of snapshot `key` if volume `owner` has it.
    pub(super) fn named_under(&self, owner: u32, key: (u32, u32)) -> String {
        format!("{}@{}", self.name_of(owner), self.short_name(key))
    }

    /// The name of snapshot `key`, without its volume's.
    #[must_use]
    pub fn short_name(&self, key: (u32, u32)) -> String {
        let names = self.update_snapshot(key, |snapshot| snapshot.names).unwrap_or_default();
        snapshot_numbered(key.1, names.now)
    }

    /// True when two snapshots of one number are called alike, but for their volumes.
    #[must_use]
    pub fn are_called_alike(&self, a: (u32, u32), b: (u32, u32)) -> bool {
        self.short_name(a) == self.short_name(b)
    }

    /// Notes that what was received of a snapshot `source` is called as that is now.
    pub fn names_copy(&self, copy: (u32, u32), source: (u32, u32)) {
        let names = self.update_snapshot(source, |snapshot| snapshot.names).unwrap_or_default();
        self.update_snapshot(copy, |snapshot| snapshot.names = names);
    }

    /// Notes the request for a name of a snapshot. Returns its name of now and, without the
    /// volume's, the new one; `None` as in [`Self::renaming`].
    pub fn renaming_snapshot(&self, key: (u32, u32), to: u32) -> Option<(String, String)> {
        let (name, to) = (self.snapshot_name(key), to % MOST_NAMES);
        self.update_snapshot(key, |snapshot| snapshot.names.ask(to)).flatten()?;
        Some((name, snapshot_numbered(key.1, to)))
    }

    /// Notes that a snapshot has the name that was asked for.
    pub fn snapshot_renamed(&self, key: (u32, u32)) {
        self.update_snapshot(key, |snapshot| snapshot.names.answer());
    }

    /// After an import that shows the snapshots `names`: which of their names they have. The
    /// volumes have theirs already. A promotion may have moved a snapshot.
    pub fn settle_snapshot_names(&self, names: &[String], may_be_older: bool) {
        let volumes: Vec<String> = self.ids().into_iter().map(|id| self.name_of(id)).collect();
        for key in self.snapshots() {
            let owner = self.update_snapshot(key, |snapshot| snapshot.owner).unwrap_or(key.0);
            let under = |volume: &String, number| {
                names.contains(&format!("{volume}@{}", snapshot_numbered(key.1, number)))
            };
            let owner = self.name_of(owner);
            self.update_snapshot(key, |snapshot| {
                let is_owners = (0..MOST_NAMES).any(|number| under(&owner, number));
                snapshot.names.settle(may_be_older, |number| match is_owners {
                    true => under(&owner, number),
                    false => volumes.iter().any(|volume| under(volume, number)),
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Demand;

    #[test]
    fn a_name_counts_once_it_is_answered_or_found() {
        let model = Model::new(Demand::AllData, 8);
        model.creating(3, 8);
        let both = ("v3".to_owned(), "v3r2".to_owned());
        assert_eq!(model.renaming(3, 2), Some(both));
        assert_eq!(model.renaming(3, 1), None, "while another is asked for");
        assert_eq!(model.names_of(3), ["v3", "v3r2"]);
        model.renamed(3);
        assert_eq!(model.names_of(3), ["v3r2"]);
        assert_eq!(model.renaming(3, 2), None, "it has it");
        model.renaming(3, 0);
        model.settle_names(&["v3r2".to_owned()], false);
        assert_eq!(model.names_of(3), ["v3r2"]);
        model.settle_names(&["v3".to_owned()], false);
        assert_eq!(model.name_of(3), "v3r2", "its old name would be a stranger");
        model.settle_names(&["v3".to_owned()], true);
        assert_eq!(model.name_of(3), "v3");
    }

    #[test]
    fn a_snapshots_name_counts_once_it_is_answered_or_found() {
        let model = Model::new(Demand::AllData, 8);
        (0..2).for_each(|id| model.creating(id, 8));
        let key = (0, 7);
        model.snapshot_asked(key);
        let both = ("v0@s7".to_owned(), "s7r1".to_owned());
        assert_eq!(model.renaming_snapshot(key, 1), Some(both));
        assert_eq!(model.renaming_snapshot(key, 2), None, "while another is asked for");
        assert!(model.has_unknown_names());
        model.snapshot_renamed(key);
        assert_eq!(
            (model.snapshot_name(key), model.has_unknown_names()),
            ("v0@s7r1".into(), false)
        );
        model.renaming_snapshot(key, 3);
        model.settle_snapshot_names(&["v0@s7r1".to_owned()], false);
        assert_eq!(model.snapshot_name(key), "v0@s7r1");
        model.renaming_snapshot(key, 3);
        // After a promotion it is another volume's.
        model.settle_snapshot_names(&["v1@s7r3".to_owned()], false);
        assert_eq!(model.named_under(1, key), "v1@s7r3");
        model.settle_snapshot_names(&["v0@s7".to_owned()], false);
        assert_eq!(model.snapshot_name(key), "v0@s7r3", "its old name would be a stranger");
        model.doubt_names();
        model.settle_snapshot_names(&["v0@s7".to_owned()], false);
        assert_eq!(model.snapshot_name(key), "v0@s7");
    }

    #[test]
    fn name_that_any_volume_may_have_is_free_once_its_volume_has_another_or_is_gone() {
        let model = Model::new(Demand::AllData, 8);
        (0..2).for_each(|id| model.creating(id, 8));
        model.renaming(0, 4);
        assert_eq!(model.renaming(1, 4), None, "another one has asked for it");
        model.renamed(0);
        assert_eq!(model.renaming(1, 4), None, "another one has it");
        model.renaming(0, 1);
        model.renamed(0);
        assert_eq!(model.renaming(1, 4), Some(("v1".to_owned(), "w0".to_owned())));
        model.renamed(1);
        model.update(1, |v| v.presence = Presence::Gone);
        model.renaming(0, 4);
        model.renamed(0);
        model.settle_names(&["w0".to_owned()], false);
        assert_eq!((model.name_of(0), model.name_of(1)), ("w0".to_owned(), "v1".to_owned()));
    }
}
