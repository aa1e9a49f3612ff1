//! A set of segment indexes of one group, one bit each.

use std::ops::Range;

/// A set of indexes below a fixed limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSet {
    words: Vec<u64>,
    limit: u32,
    len: u32,
}

impl SegmentSet {
    /// The empty set over `0..limit`.
    pub(crate) fn new(limit: u32) -> Self {
        Self { words: vec![0; limit.div_ceil(64) as usize], limit, len: 0 }
    }

    /// All of `0..limit`.
    pub(crate) fn full(limit: u32) -> Self {
        let mut set = Self::new(limit);
        for index in 0..limit {
            set.insert(index);
        }
        set
    }

    /// Number of indexes in the set.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Inserts an index; returns whether it was new.
    pub(crate) fn insert(&mut self, index: u32) -> bool {
        assert!(index < self.limit, "segment index {index} is past {}", self.limit);
        let (word, bit) = (&mut self.words[index as usize / 64], 1 << (index % 64));
        let new = *word & bit == 0;
        *word |= bit;
        self.len += u32::from(new);
        new
    }

    /// Removes an index; returns whether it was in the set.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let Some(word) = self.words.get_mut(index as usize / 64) else { return false };
        let bit = 1 << (index % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        self.len -= u32::from(was);
        was
    }

    /// Whether an index is in the set.
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.words.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Word `at` of the bits: 64 segments at a time.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words[at]
    }

    /// The members in rising order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(at as u32 * 64 + bit)
            })
        })
    }

    /// The members as runs in rising order.
    pub(crate) fn ranges(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for index in self.iter() {
            match ranges.last_mut() {
                Some(range) if range.end == index => range.end += 1,
                _ => ranges.push(index..index + 1),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests;
