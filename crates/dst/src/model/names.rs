//! What volumes are called.
//!
//! What always holds: a volume has a few names of its own, and there are some that any may have,
//! one at a time. So a name says which volume it means, once renames are answered.

use super::{Model, Presence, volume_name};

/// Names of a volume, by number: the one of its creation is 0.
const MOST_NAMES: u32 = 4;
/// Names that any volume may have, by the numbers after these.
const SHARED_NAMES: u32 = 2;

/// What a volume is called.
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
}

/// Name `number` of volume `id`.
fn numbered(id: u32, number: u32) -> String {
    match number {
        0 => volume_name(id),
        MOST_NAMES.. => format!("w{}", number - MOST_NAMES),
        number => format!("{}r{number}", volume_name(id)),
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
        let now = self.update(id, |v| {
            let may_be_asked = v.names.asked.is_none() && v.names.now != to;
            v.names.asked = v.names.asked.or(may_be_asked.then_some(to));
            may_be_asked.then_some(v.names.now)
        });
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
        self.update(id, |v| v.names.now = v.names.asked.take().unwrap_or(v.names.now));
    }

    /// Opens a volume by the name that it has.
    pub fn open_by<T>(&self, id: u32, open: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.names_of(id).iter().find_map(|name| open(name))
    }

    /// True when a volume has one of two names, and it is not known which.
    #[must_use]
    pub fn has_unknown_names(&self) -> bool {
        self.volumes.borrow().values().any(|v| v.names.asked.is_some())
    }

    /// An import goes back to an earlier root: what was renamed may have an older name.
    pub fn doubt_names(&self) {
        self.volumes.borrow_mut().values_mut().for_each(|v| v.names.is_doubtful = true);
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
                let Names { now, asked, is_doubtful } = v.names;
                let others = (0..MOST_NAMES).filter(|_| may_be_older || is_doubtful);
                let mut all = [now].into_iter().chain(asked).chain(others);
                let found = all.find(|number| names.contains(&numbered(id, *number)));
                v.names = Names { now: found.unwrap_or(now), ..Names::default() };
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
