//! A list of numbers that is mostly empty or has one element; then it allocates nothing.

use std::ops::Deref;

/// Numbers in order of insertion.
#[derive(Clone, Debug, Default)]
pub(crate) enum SmallList {
    /// No number.
    #[default]
    None,
    /// One number.
    One(u32),
    /// Any number of numbers.
    Many(Vec<u32>),
}

impl SmallList {
    /// Appends a number.
    pub(crate) fn push(&mut self, number: u32) {
        match self {
            SmallList::None => *self = SmallList::One(number),
            SmallList::One(first) => *self = SmallList::Many(vec![*first, number]),
            SmallList::Many(all) => all.push(number),
        }
    }

    /// Keeps the numbers for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        match self {
            SmallList::None => {}
            SmallList::One(only) if keep(*only) => {}
            SmallList::One(_) => *self = SmallList::None,
            SmallList::Many(all) => all.retain(|number| keep(*number)),
        }
    }

    /// Removes all numbers; keeps allocated memory.
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
