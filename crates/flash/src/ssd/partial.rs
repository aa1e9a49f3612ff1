//! Partial units: writes that cover a mapping unit only in part, held back until the rest follows.
//!
//! A misaligned sequential stream fills every unit in the end and pays nothing. Random misaligned
//! writes leave the buffer half full, and each costs a read of the old unit.

use std::collections::VecDeque;

use forebay_units::FixedMap;

/// A unit with some of its sectors in the buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialUnit {
    /// One bit for each sector that is here.
    pub sectors: u128,
    /// Slots the unit will fill, as far as the content seen so far tells.
    pub slots: u32,
    /// When the first sector came.
    pub since: u64,
    /// Numbers of the pending writes that wait with it.
    pub writes: Numbers,
}

/// A list of numbers that are mostly one or two, for which nothing is allocated.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    few: [u64; 2],
    count: usize,
    /// All of them, when they are more than a few.
    all: Vec<u64>,
}

impl Numbers {
    fn push(&mut self, number: u64) {
        if self.count < self.few.len() {
            self.few[self.count] = number;
            self.count += 1;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.few);
        }
        self.all.push(number);
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u64] {
        if self.all.is_empty() { &self.few[..self.count] } else { &self.all }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Partials {
    units: FixedMap<u32, PartialUnit>,
    /// Units in order of arrival; one that has left since is skipped.
    order: VecDeque<(u32, u64)>,
    limit: usize,
}

impl Partials {
    pub(super) fn new(limit: usize) -> Self {
        Self { units: FixedMap::default(), order: VecDeque::new(), limit: limit.max(1) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Adds sectors of a unit that came at `now` as part of the pending write `number`. Returns
    /// all sectors of the unit that are here now.
    pub(super) fn add(
        &mut self,
        unit: u32,
        sectors: u128,
        slots: u32,
        now: u64,
        number: u64,
    ) -> u128 {
        let partial = self.units.entry(unit).or_default();
        if partial.writes.as_slice().is_empty() {
            partial.since = now;
            self.order.push_back((unit, now));
        }
        partial.sectors |= sectors;
        partial.slots = partial.slots.max(slots);
        partial.writes.push(number);
        partial.sectors
    }

    /// The unit that leaves after `ahead` others, or the last one where there are fewer.
    #[inline]
    pub(super) fn leaves_after(&self, ahead: usize) -> Option<u32> {
        let last = self.order.len().checked_sub(1)?;
        self.order.get(ahead.min(last)).map(|(unit, _)| *unit)
    }

    /// Takes a unit out.
    pub(super) fn take(&mut self, unit: u32) -> Option<PartialUnit> {
        self.units.remove(&unit)
    }

    /// Takes the oldest unit out when there are too many, or when it came at `before` or earlier.
    pub(super) fn take_due(&mut self, before: Option<u64>) -> Option<(u32, PartialUnit)> {
        while let Some(&(unit, since)) = self.order.front() {
            if self.units.get(&unit).is_none_or(|partial| partial.since != since) {
                self.order.pop_front();
                continue;
            }
            if self.units.len() <= self.limit && before.is_none_or(|before| since > before) {
                return None;
            }
            self.order.pop_front();
            return self.units.remove(&unit).map(|partial| (unit, partial));
        }
        None
    }

    pub(super) fn clear(&mut self) {
        self.units.clear();
        self.order.clear();
    }
}
