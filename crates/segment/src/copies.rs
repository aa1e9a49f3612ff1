//! The second copy of the map journal, where the group has no redundancy of its own: in the same
//! segment, half of its rows further on, on another device when there is one.

use forebay_array::Array;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

/// Blocks of a frame that differ from their copies, up to which every mixture is tried. Of more, those
/// in one range of one device are taken from the copies, which is what one damaged place looks like,
/// or whole units.
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
    let mut mixed = |copied: &dyn Fn(usize) -> bool| {
        for (at, (index, one, other)) in doubts.iter().enumerate() {
            let block = if copied(at) { other } else { one };
            bytes[index * BLOCK_LEN..][..BLOCK_LEN].copy_from_slice(block);
        }
        right(&bytes).then(|| bytes.clone())
    };
    if doubts.len() <= SINGLE_DOUBTS {
        return (0..1u32 << doubts.len()).find_map(|mixture| mixed(&|at| mixture >> at & 1 == 1));
    }
    let geometry = array.geometry_of(addr.segment()).ok()?;
    let block_of = |at: usize| addr.block() + doubts[at].0 as u32;
    // One device was damaged in one place: there the copies are right, and elsewhere what they are of.
    let columns: Vec<usize> = (0..doubts.len()).map(|at| geometry.locate(block_of(at)).0).collect();
    for column in 0..geometry.data_columns() {
        let struck: Vec<usize> =
            columns.iter().enumerate().filter(|(_, c)| **c == column).map(|(at, _)| at).collect();
        for (first, from) in struck.iter().enumerate() {
            for to in &struck[first..] {
                let in_range = |at: usize| columns[at] == column && (*from..=*to).contains(&at);
                if let Some(frame) = mixed(&in_range) {
                    return Some(frame);
                }
            }
        }
    }
    // What is chosen together: the number of the choice of each doubt.
    let per_unit = (geometry.unit_bytes / BLOCK_BYTES) as u32;
    let mut units: Vec<u32> = (0..doubts.len()).map(|at| block_of(at) / per_unit).collect();
    units.dedup();
    let choices = units.len().min(UNIT_DOUBTS);
    let choice_of = |at: usize| {
        let unit = units.binary_search(&(block_of(at) / per_unit)).expect("listed");
        unit.min(UNIT_DOUBTS - 1)
    };
    (0..1u32 << choices).find_map(|mixture| mixed(&|at| mixture >> choice_of(at) & 1 == 1))
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
