//! Set of byte ranges: they do not overlap, and touching ranges are merged.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not touch, by start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        let touching: Vec<u64> = self
            .0
            .range(..=end)
            .rev()
            .take_while(|&(_, &other_end)| other_end >= start)
            .map(|(&other_start, _)| other_start)
            .collect();
        for other in touching {
            start = start.min(other);
            end = end.max(self.0.remove(&other).unwrap_or(end));
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        while let Some(hit) = self.first_in(range.clone()) {
            // The member that `hit` is part of starts at or before it.
            let Some((&start, &end)) = self.0.range(..=hit.start).next_back() else { return };
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if range.end < end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// The first part of `range` that is in the set.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let before = self.0.range(..=range.start).next_back();
        let after = self.0.range(range.start..).next();
        before.into_iter().chain(after).find_map(|(&start, &end)| {
            let (from, to) = (start.max(range.start), end.min(range.end));
            (from < to).then_some(from..to)
        })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
