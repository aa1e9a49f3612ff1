//! A leaf of one or two blocks, without heap memory: the usual leaf of a sparse volume.

use forebay_format::map_record::LeafRun;
use forebay_units::BlockAddr;

use crate::array::{ENTRY_LEN, entry, put_entry};
use crate::runs::RunList;
use crate::sums::SumBytes;

/// Most blocks of a [`Pair`].
pub(crate) const MAX_PAIR_BLOCKS: usize = 2;

const ENTRIES_LEN: usize = MAX_PAIR_BLOCKS * ENTRY_LEN;
/// The two blocks' numbers in the leaf take nine bits each, and whether there are two is one more.
const BLOCK_BITS: u32 = 9;

/// Two entries of [`crate::array`], then the numbers of their blocks in three bytes.
pub(crate) struct Pair([u8; ENTRIES_LEN + 3]);

impl Pair {
    /// The blocks of a list, which has one or two.
    pub(crate) fn of(from: &RunList) -> Self {
        let mut bytes = [0; ENTRIES_LEN + 3];
        let (mut numbers, mut count) = (0, 0);
        from.each_block(|block, addr, sum| {
            put_entry(&mut bytes, count, addr, sum);
            numbers |= block << (BLOCK_BITS * count as u32);
            count += 1;
        });
        assert!((1..=MAX_PAIR_BLOCKS).contains(&count), "a pair has one or two blocks");
        numbers |= (count as u32 - 1) << (2 * BLOCK_BITS);
        bytes[ENTRIES_LEN..].copy_from_slice(&numbers.to_le_bytes()[..3]);
        Self(bytes)
    }

    #[inline]
    fn numbers(&self) -> u32 {
        let [.., a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0])
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        (self.numbers() >> (2 * BLOCK_BITS)) as usize + 1
    }

    #[inline]
    fn block(&self, index: usize) -> u32 {
        self.numbers() >> (BLOCK_BITS * index as u32) & ((1 << BLOCK_BITS) - 1)
    }

    /// The address and, unless it is sealed, the sum of a block.
    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<(u64, Option<u64>)> {
        let index = (0..self.len()).find(|index| self.block(*index) == block)?;
        entry(&self.0, index)
    }

    /// Calls `run` for each run.
    #[inline]
    pub(crate) fn visit<'a>(&'a self, mut run: impl FnMut(LeafRun, SumBytes<'a>)) {
        let one = |index: usize| {
            let (addr, sum) = entry(&self.0, index)?;
            let (start, addr) = (self.block(index), BlockAddr::from_raw(addr));
            let bytes = &self.0[(index + 1) * ENTRY_LEN - 5..ENTRIES_LEN];
            let sums = SumBytes { bytes, stride: ENTRY_LEN };
            Some((LeafRun { start, blocks: 1, addr, sealed: sum.is_none() }, sums))
        };
        match (one(0), (self.len() > 1).then(|| one(1)).flatten()) {
            (Some((first, sums)), Some((second, _))) if first.joins(second) => {
                run(LeafRun { blocks: 2, ..first }, sums);
            }
            (first, second) => {
                for (found, sums) in [first, second].into_iter().flatten() {
                    run(found, sums);
                }
            }
        }
    }
}
