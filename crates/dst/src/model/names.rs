//! What volumes are called.
//!
//! What always holds: a volume has a few names of its own, so each says which volume it means.

use super::{Model, volume_name};

/// Names of a volume, by number: the one of its creation is 0.
const MOST_NAMES: u32 = 4;

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
    match number % MOST_NAMES {
        0 => volume_name(id),
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
    /// name already, or one whose answer has not come.
    pub fn renaming(&self, id: u32, to: u32) -> Option<(String, String)> {
        let to = to % MOST_NAMES;
        let now = self.update(id, |v| {
            let may_be_asked = v.names.asked.is_none() && v.names.now != to;
            v.names.asked = v.names.asked.or(may_be_asked.then_some(to));
            may_be_asked.then_some(v.names.now)
        });
        now.flatten().map(|now| (numbered(id, now), numbered(id, to)))
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
}
