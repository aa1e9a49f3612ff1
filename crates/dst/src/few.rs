//! A list of numbers that is mostly empty or of one: then it owns no memory elsewhere.

use std::ops::Deref;

/// The numbers, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) enum Few {
    /// None.
    #[default]
    None,
    /// Just this.
    One(u32),
    /// Any.
    Many(Vec<u32>),
}

impl Few {
    /// Adds one at the end.
    pub(crate) fn push(&mut self, number: u32) {
        match self {
            Few::None => *self = Few::One(number),
            Few::One(first) => *self = Few::Many(vec![*first, number]),
            Few::Many(all) => all.push(number),
        }
    }

    /// Leaves only those that `keep` wants.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        match self {
            Few::None => {}
            Few::One(only) if keep(*only) => {}
            Few::One(_) => *self = Few::None,
            Few::Many(all) => all.retain(|number| keep(*number)),
        }
    }

    /// Forgets all; memory that it has it keeps.
    pub(crate) fn clear(&mut self) {
        match self {
            Few::Many(all) => all.clear(),
            other => *other = Few::None,
        }
    }
}

impl Deref for Few {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            Few::None => &[],
            Few::One(only) => std::slice::from_ref(only),
            Few::Many(all) => all,
        }
    }
}
