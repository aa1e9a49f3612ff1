//! How much of each packed block is in use: counts of references, against how many would fit.

use std::collections::BTreeMap;

use forebay_dedup::References;

/// Packed blocks whose numbers of fitting blocks lie together.
const PAGE_BLOCKS: u64 = 4096;
/// A whole packed block.
pub(crate) const WHOLE: u64 = 1 << 16;
/// The number of fitting blocks is not known.
const UNKNOWN: u8 = 0;

/// Counts of references to packed blocks, and what share of each is in use.
#[derive(Default)]
pub(crate) struct Density {
    references: References,
    /// How many blocks of volumes would lie in each packed block if it was full.
    fitting: BTreeMap<u64, Box<[u8; PAGE_BLOCKS as usize]>>,
    /// Packed blocks with references, and those of them whose share is not known.
    used: u64,
    unknown: u64,
    /// The shares of all packed blocks. What is not known counts as whole.
    shares: u64,
}

impl Density {
    /// Blocks of units that lie in a packed block, also in part.
    pub fn count(&self, number: u64) -> u64 {
        self.references.count(number)
    }

    /// The share of a packed block that is in use, of [`WHOLE`]; `None` when it is not known.
    pub fn share(&self, number: u64) -> Option<u64> {
        match self.fitting(number) {
            UNKNOWN => None,
            fitting => Some((WHOLE * self.count(number) / u64::from(fitting)).min(WHOLE)),
        }
    }

    /// Packed blocks with references whose share is not known.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Packed blocks with references, and the part of their room that is not in use, in parts of
    /// [`WHOLE`].
    pub fn used_and_gaps(&self) -> (u64, u64) {
        (self.used, self.used * WHOLE - self.shares)
    }

    /// The packed blocks with references from `first` on, in order.
    pub fn used_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        self.references.used_from(first).map(|(number, _)| number)
    }

    /// Counts a reference to each of `blocks` packed blocks from `first` on.
    pub fn add(&mut self, first: u64, blocks: u64) {
        for number in first..first + blocks {
            self.change(number, |this| this.references.add(number, 1));
        }
    }

    /// Takes a reference from each of `blocks` packed blocks from `first` on, and reports those
    /// that have none left.
    pub fn remove(&mut self, first: u64, blocks: u64, mut unused: impl FnMut(u64)) {
        for number in first..first + blocks {
            let mut is_unused = false;
            self.change(number, |this| this.references.remove(number, 1, |_| is_unused = true));
            if is_unused {
                self.set_fitting(number, 0);
                unused(number);
            }
        }
    }

    /// Sets how many blocks of volumes would lie in a packed block if it was full.
    pub fn set_fitting(&mut self, number: u64, blocks: u64) {
        let blocks = blocks.min(u8::MAX.into()) as u8;
        self.change(number, |this| {
            let page = number / PAGE_BLOCKS;
            if blocks == UNKNOWN && !this.fitting.contains_key(&page) {
                return;
            }
            let made = || Box::new([UNKNOWN; PAGE_BLOCKS as usize]);
            let all = this.fitting.entry(page).or_insert_with(made);
            all[(number % PAGE_BLOCKS) as usize] = blocks;
            if blocks == UNKNOWN && all.iter().all(|blocks| *blocks == UNKNOWN) {
                this.fitting.remove(&page);
            }
        });
    }

    fn fitting(&self, number: u64) -> u8 {
        let page = self.fitting.get(&(number / PAGE_BLOCKS));
        page.map_or(UNKNOWN, |page| page[(number % PAGE_BLOCKS) as usize])
    }

    /// What a packed block adds to the sums.
    fn sums(&self, number: u64) -> (u64, u64, u64) {
        match (self.count(number), self.share(number)) {
            (0, _) => (0, 0, 0),
            (_, None) => (1, 1, WHOLE),
            (_, Some(share)) => (1, 0, share),
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Self)) {
        let (used, unknown, share) = self.sums(number);
        change(self);
        let after = self.sums(number);
        self.used = self.used + after.0 - used;
        self.unknown = self.unknown + after.1 - unknown;
        self.shares = self.shares + after.2 - share;
    }

    /// Bytes of memory, about.
    pub fn memory_bytes(&self) -> u64 {
        const PAGE_BYTES: u64 = PAGE_BLOCKS + 48;
        self.references.memory_bytes() + self.fitting.len() as u64 * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Add(u64, u64),
        Remove(u64, u64),
        Fits(u64, u64),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let range = || (prop_oneof![0..6_u64, PAGE_BLOCKS - 2..PAGE_BLOCKS + 3], 1..4_u64);
        prop_oneof![
            3 => range().prop_map(|(first, blocks)| Op::Add(first, blocks)),
            2 => range().prop_map(|(first, blocks)| Op::Remove(first, blocks)),
            2 => (range(), 1..300_u64).prop_map(|((number, _), fits)| Op::Fits(number, fits)),
        ]
    }

    proptest! {
        #[test]
        fn sums_agree_with_a_plain_model(ops in proptest::collection::vec(any_op(), 1..200)) {
            let mut density = Density::default();
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            let mut fits: BTreeMap<u64, u64> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Add(first, blocks) => {
                        density.add(first, blocks);
                        (first..first + blocks).for_each(|n| *counts.entry(n).or_default() += 1);
                    }
                    Op::Remove(first, blocks) => {
                        if !(first..first + blocks).all(|number| counts.contains_key(&number)) {
                            continue;
                        }
                        let mut unused = Vec::new();
                        density.remove(first, blocks, |number| unused.push(number));
                        for number in first..first + blocks {
                            let left = counts[&number] - 1;
                            prop_assert_eq!(left == 0, unused.contains(&number));
                            counts.insert(number, left);
                            if left == 0 {
                                counts.remove(&number);
                                fits.remove(&number);
                            }
                        }
                    }
                    Op::Fits(number, blocks) => {
                        density.set_fitting(number, blocks);
                        fits.insert(number, blocks.min(255));
                    }
                }
                let share = |(number, count): (&u64, &u64)| {
                    fits.get(number).map_or(WHOLE, |fits| (WHOLE * count / fits).min(WHOLE))
                };
                let (used, all) = (counts.len() as u64, counts.iter().map(share).sum::<u64>());
                prop_assert_eq!(density.used_and_gaps(), (used, used * WHOLE - all));
                let known = counts.keys().filter(|number| fits.contains_key(number)).count();
                prop_assert_eq!(density.unknown(), used - known as u64);
                prop_assert!(density.used_from(0).eq(counts.keys().copied()));
            }
            // A number that is free again is as if it was never used.
            let left: Vec<(u64, u64)> = counts.into_iter().collect();
            for (number, count) in left {
                (0..count).for_each(|_| density.remove(number, 1, |_| {}));
                prop_assert_eq!(density.share(number), None);
            }
            prop_assert_eq!(density.used_and_gaps(), (0, 0));
        }
    }

    #[test]
    fn the_share_of_a_block_is_what_is_referred_to_of_what_would_fit() {
        let mut density = Density::default();
        density.add(7, 1);
        density.add(6, 3);
        assert_eq!((density.count(7), density.share(7)), (2, None));
        density.set_fitting(7, 8);
        assert_eq!(density.share(7), Some(WHOLE / 4));
        density.set_fitting(7, 2);
        assert_eq!(density.share(7), Some(WHOLE));
        density.add(7, 1);
        assert_eq!(density.share(7), Some(WHOLE), "no more than the whole block");
    }

    #[test]
    fn pages_without_a_known_block_take_no_memory() {
        let mut density = Density::default();
        let none = density.memory_bytes();
        density.set_fitting(5, 0);
        assert_eq!(density.memory_bytes(), none);
        density.set_fitting(5, 9);
        let page = density.memory_bytes() - none;
        assert!((PAGE_BLOCKS..PAGE_BLOCKS + 200).contains(&page), "{page}");
        density.set_fitting(6, 9);
        assert_eq!(density.memory_bytes(), none + page);
        density.set_fitting(PAGE_BLOCKS + 1, 9);
        assert_eq!(density.memory_bytes(), none + 2 * page);
        for (number, pages) in [(5, 2), (6, 1), (PAGE_BLOCKS + 1, 0)] {
            density.set_fitting(number, 0);
            assert_eq!(density.memory_bytes(), none + pages * page, "{number}");
        }
        density.add(5, 1);
        assert!(density.memory_bytes() > none);
    }
}
