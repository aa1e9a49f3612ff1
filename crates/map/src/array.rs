//! Leaves with an entry per block: an address of four or five bytes, and a sum of five.
//!
//! A *plain* array has all 512 entries, a *packed* one a bitmap and the entries of mapped blocks.
//! The reserved address marks a special entry: a hole if the sum is the reserved value too,
//! otherwise a sealed block with its address in the place of the sum.

use forebay_format::map_record::{LEAF_BLOCKS, RESERVED_ADDR};
use forebay_units::BlockAddr;

use crate::change::{Freed, NewRun};
use crate::leaf::arrays;

pub(crate) const ENTRY_LEN: usize = 10;
pub(crate) const BITMAP_LEN: usize = LEAF_BLOCKS as usize / 8;
/// Bytes of a plain array; all ones is all holes.
pub(crate) const PLAIN_LEN: usize = LEAF_BLOCKS as usize * ENTRY_LEN;

/// The encoding of addresses in a plain array: five bytes, or four bytes with the segment above
/// this number of block bits. Four bytes suffice for 16 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u8);

const NARROW_ADDR_LEN: usize = 4;
const NARROW_BITS: u32 = 32;
const BLOCK_BITS: u32 = BlockAddr::MAX_BLOCKS.ilog2();

impl Shape {
    pub(crate) const WIDE: Self = Self(u8::MAX);

    /// The smallest shape for these addresses. Spare bits are divided between segments and blocks.
    pub(crate) fn of(addrs: impl Iterator<Item = u64>) -> Self {
        let (mut blocks, mut segments) = (0, 0);
        for addr in addrs {
            blocks |= addr & (u64::from(BlockAddr::MAX_BLOCKS) - 1);
            segments |= addr >> BLOCK_BITS;
        }
        // One more than the highest, so that no address is all ones.
        let (block, segment) = (bits(blocks), bits(segments + 1));
        match NARROW_BITS.checked_sub(block + segment) {
            Some(spare) => Self((block + spare / 2).min(BLOCK_BITS) as u8),
            None => Self::WIDE,
        }
    }

    pub(crate) fn entry_len(self) -> usize {
        if self == Self::WIDE { ENTRY_LEN } else { NARROW_ADDR_LEN + 5 }
    }

    pub(crate) fn array_len(self) -> usize {
        LEAF_BLOCKS as usize * self.entry_len()
    }

    /// Whether the shape can hold `blocks` addresses from `addr` on.
    pub(crate) fn takes(self, addr: BlockAddr, blocks: u32) -> bool {
        let bits = u32::from(self.0);
        self == Self::WIDE
            || ((addr.block() + blocks - 1) >> bits == 0
                && u64::from(addr.segment().0) + 1 < 1 << (NARROW_BITS - bits))
    }

    /// As [`entry`].
    #[inline]
    pub(crate) fn entry(self, entries: &[u8], index: usize) -> Option<(u64, Option<u64>)> {
        if self == Self::WIDE {
            return entry(entries, index);
        }
        let at = &entries[index * self.entry_len()..][..NARROW_ADDR_LEN + 5];
        let low = u32::from_le_bytes(at[..4].try_into().expect("four bytes"));
        let high = u64::from_le_bytes(at[1..].try_into().expect("eight bytes")) >> 24;
        if low != u32::MAX {
            let (segment, block) = (low >> self.0, low & ((1 << self.0) - 1));
            Some((u64::from(segment) << BLOCK_BITS | u64::from(block), Some(high)))
        } else if high != RESERVED_ADDR {
            Some((high, None))
        } else {
            None
        }
    }

    /// As [`put_entry`]; the caller ensures that [`Shape::takes`] the address.
    #[inline]
    pub(crate) fn put(self, entries: &mut [u8], index: usize, addr: u64, sum: Option<u64>) {
        if self == Self::WIDE {
            return put_entry(entries, index, addr, sum);
        }
        let (low, high) = match sum {
            Some(sum) => {
                let (segment, block) = (addr >> BLOCK_BITS, addr & ((1 << BLOCK_BITS) - 1));
                ((segment << self.0 | block) as u32, sum)
            }
            None => (u32::MAX, addr),
        };
        assert!(high >> 40 == 0, "a block sum has 40 bits");
        let at = &mut entries[index * self.entry_len()..][..NARROW_ADDR_LEN + 5];
        at[..4].copy_from_slice(&low.to_le_bytes());
        at[4..].copy_from_slice(&high.to_le_bytes()[..5]);
    }

    /// Offset of an entry's sum in the array.
    pub(crate) fn sum_at(self, index: usize) -> usize {
        (index + 1) * self.entry_len() - 5
    }
}

fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// The address and, unless it is sealed, the sum of an entry; `None` for a hole.
#[inline]
pub(crate) fn entry(entries: &[u8], index: usize) -> Option<(u64, Option<u64>)> {
    let at = &entries[index * ENTRY_LEN..][..ENTRY_LEN];
    let low = u64::from_le_bytes(at[..8].try_into().expect("eight bytes")) & RESERVED_ADDR;
    let high = u64::from_le_bytes(at[2..].try_into().expect("eight bytes")) >> 24;
    if low != RESERVED_ADDR {
        Some((low, Some(high)))
    } else if high != RESERVED_ADDR {
        Some((high, None))
    } else {
        None
    }
}

#[inline]
pub(crate) fn put_entry(entries: &mut [u8], index: usize, addr: u64, sum: Option<u64>) {
    let (low, high) = match sum {
        Some(sum) => (addr, sum),
        None => (RESERVED_ADDR, addr),
    };
    assert!(high >> 40 == 0, "a block sum has 40 bits");
    let bytes = (u128::from(low) | u128::from(high) << 40).to_le_bytes();
    entries[index * ENTRY_LEN..][..ENTRY_LEN].copy_from_slice(&bytes[..ENTRY_LEN]);
}

#[inline]
pub(crate) fn bit(bitmap: &[u8], index: u32) -> bool {
    bitmap[index as usize / 8] >> (index % 8) & 1 == 1
}

#[inline]
pub(crate) fn set_bit(bitmap: &mut [u8], index: u32) {
    bitmap[index as usize / 8] |= 1 << (index % 8);
}

fn clear_bit(bitmap: &mut [u8], index: u32) {
    bitmap[index as usize / 8] &= !(1 << (index % 8));
}

/// Set bits below `index`.
#[inline]
pub(crate) fn rank(bitmap: &[u8], index: u32) -> usize {
    let words = arrays::<8>(&bitmap[..BITMAP_LEN]);
    let word = index as usize / 64;
    let below: u32 = words[..word].iter().map(|w| u64::from_le_bytes(*w).count_ones()).sum();
    let part = words
        .get(word)
        .map_or(0, |w| (u64::from_le_bytes(*w) & ((1u64 << (index % 64)) - 1)).count_ones());
    (below + part) as usize
}

/// Sets blocks of a plain array; returns the number of holes filled.
pub(crate) fn assign_plain(
    (entries, shape): (&mut [u8], Shape),
    new: NewRun<'_>,
    freed: &mut Freed<'_>,
) -> u16 {
    let mut filled = 0;
    for i in 0..new.blocks as usize {
        let block = new.start as usize + i;
        let addr = new.addr.raw() + i as u64;
        match shape.entry(entries, block) {
            None => filled += 1,
            Some((old, _)) if old != addr => freed.add(BlockAddr::from_raw(old), 1),
            Some(_) => {}
        }
        shape.put(entries, block, addr, new.sums.get(i).copied());
    }
    filled
}

/// Sets a block of a packed array with room for one more; returns whether it was a hole.
pub(crate) fn assign_packed(
    buf: &mut [u8],
    mapped: usize,
    block: u32,
    (addr, sum): (BlockAddr, Option<u64>),
    freed: &mut Freed<'_>,
) -> bool {
    let (bitmap, entries) = buf.split_at_mut(BITMAP_LEN);
    let at = rank(bitmap, block);
    let hole = !bit(bitmap, block);
    if hole {
        entries.copy_within(at * ENTRY_LEN..mapped * ENTRY_LEN, (at + 1) * ENTRY_LEN);
        set_bit(bitmap, block);
    } else {
        let old = entry(entries, at).map(|(old, _)| old).filter(|old| *old != addr.raw());
        old.into_iter().for_each(|old| freed.add(BlockAddr::from_raw(old), 1));
    }
    put_entry(entries, at, addr.raw(), sum);
    hole
}

/// Makes holes of blocks of a plain array; returns how many were none.
pub(crate) fn clear_plain(
    (entries, shape): (&mut [u8], Shape),
    (start, end): (u32, u32),
    freed: &mut Freed<'_>,
) -> u16 {
    let mut cleared = 0;
    for block in start as usize..end as usize {
        if let Some((old, _)) = shape.entry(entries, block) {
            freed.add(BlockAddr::from_raw(old), 1);
            cleared += 1;
        }
    }
    entries[start as usize * shape.entry_len()..end as usize * shape.entry_len()].fill(0xff);
    cleared
}

/// Makes holes of blocks of a packed array; returns how many were none.
pub(crate) fn clear_packed(
    buf: &mut [u8],
    mapped: usize,
    (start, end): (u32, u32),
    freed: &mut Freed<'_>,
) -> u16 {
    let (bitmap, entries) = buf.split_at_mut(BITMAP_LEN);
    let (first, last) = (rank(bitmap, start), rank(bitmap, end));
    for index in first..last {
        let old = entry(entries, index).map(|(old, _)| old);
        old.into_iter().for_each(|old| freed.add(BlockAddr::from_raw(old), 1));
    }
    entries.copy_within(last * ENTRY_LEN..mapped * ENTRY_LEN, first * ENTRY_LEN);
    (start..end).for_each(|block| clear_bit(bitmap, block));
    (last - first) as u16
}

#[cfg(test)]
mod tests;
