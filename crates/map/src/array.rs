//! Leaves with an entry of ten bytes per block: five of address, five of sum.
//!
//! A *plain* array has all 512 entries; a *packed* one is a bitmap of the mapped blocks and their
//! entries alone. No block has the reserved address, so it can mark what is not an ordinary entry:
//! with the reserved value for a sum too it is a hole, and otherwise a sealed block, whose address
//! is where the sum would be.

use forebay_format::map_record::{LEAF_BLOCKS, RESERVED_ADDR};
use forebay_units::BlockAddr;

use crate::runs::{Freed, NewRun};

pub(crate) const ENTRY_LEN: usize = 10;
pub(crate) const BITMAP_LEN: usize = LEAF_BLOCKS as usize / 8;
/// Bytes of a plain array; all ones is all holes.
pub(crate) const PLAIN_LEN: usize = LEAF_BLOCKS as usize * ENTRY_LEN;

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

/// Set bits below `index`.
#[inline]
pub(crate) fn rank(bitmap: &[u8], index: u32) -> usize {
    let (words, _) = bitmap[..BITMAP_LEN].as_chunks::<8>();
    let word = index as usize / 64;
    let below: u32 = words[..word].iter().map(|w| u64::from_le_bytes(*w).count_ones()).sum();
    let part = words
        .get(word)
        .map_or(0, |w| (u64::from_le_bytes(*w) & ((1u64 << (index % 64)) - 1)).count_ones());
    (below + part) as usize
}

/// Sets blocks of a plain array; returns the number of holes filled.
pub(crate) fn assign_plain(entries: &mut [u8], new: NewRun<'_>, freed: &mut Freed<'_>) -> u16 {
    let mut filled = 0;
    for (i, sum) in new.sums.iter().enumerate() {
        let block = new.start as usize + i;
        let addr = new.addr.raw() + i as u64;
        match entry(entries, block) {
            None => filled += 1,
            Some((old, _)) if old != addr => freed.add(BlockAddr::from_raw(old), 1),
            Some(_) => {}
        }
        put_entry(entries, block, addr, Some(*sum));
    }
    filled
}

/// Sets a block of a packed array with room for one more; returns whether it was a hole.
pub(crate) fn assign_packed(
    buf: &mut [u8],
    mapped: usize,
    block: u32,
    (addr, sum): (BlockAddr, u64),
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
    put_entry(entries, at, addr.raw(), Some(sum));
    hole
}
