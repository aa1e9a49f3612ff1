//! The second copy of the map journal in a group without redundancy: in the same segment, half of
//! its rows further, on another device if there is one.

use forebay_array::Array;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

/// Most differing blocks of a frame for which every mixture of blocks and copies is tried. With
/// more, one range of one device is taken from the copies, as after damage in one place, or whole
/// units.
const MAX_MIXED_BLOCKS: usize = 10;

/// Most units of a frame for which every mixture is tried.
const MAX_MIXED_UNITS: usize = 12;

/// Most repairs in flight.
const MAX_REPAIRS_IN_FLIGHT: usize = 32;

/// The address of a block's copy, if the block may have one.
pub(crate) fn copy_of(array: &Array, addr: BlockAddr) -> Option<BlockAddr> {
    let copy = array.geometry_of(addr.segment()).ok()?.copy_of(addr.block())?;
    Some(BlockAddr::new(addr.segment(), copy))
}

/// Reads blocks; `None` for each unreadable one.
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

/// Reads the copies of blocks; `None` for each that is unreadable or absent.
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

/// Finds a mixture of a frame's blocks and their copies, beginning with `first`, for which `right`
/// returns true.
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
    if doubts.len() <= MAX_MIXED_BLOCKS {
        return (0..1u32 << doubts.len()).find_map(|mixture| mixed(&|at| mixture >> at & 1 == 1));
    }
    let geometry = array.geometry_of(addr.segment()).ok()?;
    let block_of = |at: usize| addr.block() + doubts[at].0 as u32;
    // After damage in one range of one device, the copies are right there, the blocks elsewhere.
    let columns: Vec<usize> = (0..doubts.len()).map(|at| geometry.locate(block_of(at)).0).collect();
    for column in 0..geometry.data_columns() {
        let differing: Vec<usize> =
            columns.iter().enumerate().filter(|(_, c)| **c == column).map(|(at, _)| at).collect();
        for (first, from) in differing.iter().enumerate() {
            for to in &differing[first..] {
                let in_range = |at: usize| columns[at] == column && (*from..=*to).contains(&at);
                if let Some(frame) = mixed(&in_range) {
                    return Some(frame);
                }
            }
        }
    }
    // Blocks of one unit are taken from the same side; units beyond the limit, too.
    let per_unit = (geometry.unit_bytes / BLOCK_BYTES) as u32;
    let mut units: Vec<u32> = (0..doubts.len()).map(|at| block_of(at) / per_unit).collect();
    units.dedup();
    let choices = units.len().min(MAX_MIXED_UNITS);
    let choice_of = |at: usize| {
        let unit = units.binary_search(&(block_of(at) / per_unit)).expect("listed");
        unit.min(MAX_MIXED_UNITS - 1)
    };
    (0..1u32 << choices).find_map(|mixture| mixed(&|at| mixture >> choice_of(at) & 1 == 1))
}

/// Repairs blocks, each with its right content. Returns the number of rewritten blocks.
pub(crate) async fn repair_all(array: &Array, blocks: &[(BlockAddr, &[u8])]) -> u64 {
    let mut rewritten = 0;
    for some in blocks.chunks(MAX_REPAIRS_IN_FLIGHT) {
        let repairs = some.iter().map(|(addr, bytes)| array.repair(*addr, bytes));
        // A failed repair changes nothing.
        rewritten += rt::join_all(repairs).await.into_iter().flatten().sum::<usize>() as u64;
    }
    rewritten
}
