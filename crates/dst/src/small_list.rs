//! A list of numbers that is mostly empty or of one: then it owns no memory elsewhere.

use std::ops::Deref;

/// The numbers, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) enum SmallList {
    /// None.
    #[default]
    None,
    /// Just this.
    One(u32),
    /// Any.
    Many(Vec<u32>),
}

impl SmallList {
    /// Adds one at the end.
    pub(crate) fn push(&mut self, number: u32) {
        match self {
            SmallList::None => *self = SmallList::One(number),
            SmallList::One(first) => *self = SmallList::Many(vec![*first, number]),
            SmallList::Many(all) => all.push(number),
        }
    }

    /// Leaves only those that `keep` wants.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        match self {
            SmallList::None => {}
            SmallList::One(only) if keep(*only) => {}
            SmallList::One(_) => *self = SmallList::None,
            SmallList::Many(all) => all.retain(|number| keep(*number)),
        }
    }

    /// Forgets all; memory that it has it keeps.
    pub(crate) fn clear(&mut self) {
        match self {
            SmallList::Many(all) => all.clear(),
            other => *other = SmallList::None,
        }
    }
}

impl Deref for SmallList {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            SmallList::None => &[],
            SmallList::One(only) => std::slice::from_ref(only),
            SmallList::Many(all) => all,
        }
    }
}
