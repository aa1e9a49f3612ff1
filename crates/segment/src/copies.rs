//! The second copy of the map journal, where the group has no redundancy of its own: in the same
//! segment, half of its rows further on, on another device when there is one.

use forebay_array::Array;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

/// Blocks of a frame that differ from their copies, up to which every mixture is tried. From there
/// on whole units are taken from one or the other: that is what one damaged place looks like.
const SINGLE_DOUBTS: usize = 10;

/// Units of a frame for which every mixture is tried.
const UNIT_DOUBTS: usize = 12;

/// Blocks that are compared with their copies at once.
const COMPARED: usize = 32;

/// Where the copy of a block lies, if it is one that may have a copy.
pub(crate) fn copy_of(array: &Array, addr: BlockAddr) -> Option<BlockAddr> {
    let copy = array.geometry_of(addr.segment()).ok()?.copy_of(addr.block())?;
    Some(BlockAddr::new(addr.segment(), copy))
}

/// One block after the other, as far as each can be read.
async fn read_each(array: &Array, addr: BlockAddr, blocks: u32) -> Vec<Option<Vec<u8>>> {
    if let Ok(read) = array.read(addr, blocks).await {
        return read.chunks(BLOCK_LEN).map(|block| Some(block.to_vec())).collect();
    }
    let mut each = Vec::new();
    for index in 0..blocks {
        each.push(array.read(addr.plus(index), 1).await.ok().map(|read| read.to_vec()));
    }
    each
}

/// The copies of some blocks, as far as each can be read.
async fn read_copies(array: &Array, addr: BlockAddr, blocks: u32) -> Vec<Option<Vec<u8>>> {
    let mut each = Vec::new();
    let Ok(geometry) = array.geometry_of(addr.segment()) else { return each };
    for run in geometry.runs(addr.block(), blocks) {
        let (first, count) = (run.logical_bytes / BLOCK_BYTES, run.len_bytes / BLOCK_BYTES);
        match copy_of(array, addr.plus(first as u32)) {
            Some(copy) => each.extend(read_each(array, copy, count as u32).await),
            None => each.extend((0..count).map(|_| None)),
        }
    }
    each
}

/// A frame that begins with `first`, of its blocks and their copies: the first mixture that is
/// `right`.
pub(crate) async fn mixed_frame(
    array: &Array,
    addr: BlockAddr,
    blocks: u32,
    first: &[u8],
    right: impl Fn(&[u8]) -> bool,
) -> Option<Vec<u8>> {
    let ours = read_each(array, addr, blocks).await;
    let copies = read_copies(array, addr, blocks).await;
    let mut bytes = first.to_vec();
    let mut doubts = Vec::new();
    for (index, pair) in ours.into_iter().zip(copies).enumerate().skip(1) {
        match pair {
            (Some(one), Some(other)) => {
                if one != other {
                    doubts.push((index, one.clone(), other));
                }
                bytes.extend(one);
            }
            (Some(one), None) | (None, Some(one)) => bytes.extend(one),
            (None, None) => return None,
        }
    }
    // What is chosen together: the number of the choice of each doubt.
    let per_unit = (array.geometry_of(addr.segment()).ok()?.unit_bytes / BLOCK_BYTES) as usize;
    let unit_of = |index: usize| (addr.block() as usize + index) / per_unit;
    let mut units: Vec<usize> = doubts.iter().map(|(index, ..)| unit_of(*index)).collect();
    units.dedup();
    let choice_of = |at: usize| match doubts.len() <= SINGLE_DOUBTS {
        true => at,
        false => {
            let unit = unit_of(doubts[at].0);
            units.iter().position(|known| *known == unit).expect("listed").min(UNIT_DOUBTS - 1)
        }
    };
    let choices = (0..doubts.len()).map(choice_of).max().map_or(0, |last| last + 1);
    for mixture in 0..1u32 << choices {
        for (at, (index, one, other)) in doubts.iter().enumerate() {
            let block = if mixture >> choice_of(at) & 1 == 0 { one } else { other };
            bytes[index * BLOCK_LEN..][..BLOCK_LEN].copy_from_slice(block);
        }
        if right(&bytes) {
            return Some(bytes);
        }
    }
    None
}

/// Makes every one of these blocks what it should be, where it is not. Says how many were rewritten.
pub(crate) async fn repair_all(array: &Array, blocks: &[(BlockAddr, &[u8])]) -> u64 {
    let mut rewritten = 0;
    for some in blocks.chunks(COMPARED) {
        let repairs = some.iter().map(|(addr, bytes)| array.repair(*addr, bytes));
        // A failed repair leaves what there was.
        rewritten += rt::join_all(repairs).await.into_iter().flatten().sum::<usize>() as u64;
    }
    rewritten
}
