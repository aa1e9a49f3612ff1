//! Answers about a range in runs: which of its parts are holes, or have changed.

use forebay_units::BLOCK_BYTES;

/// Most runs in one answer; a client asks again for the rest.
const MAX_RUNS: usize = 4096;
/// Blocks looked at in one step: each may be a run of its own.
const STEP_BLOCKS: u64 = 1 << 14;

/// The runs of a range, in order: length in bytes, and what `step` says of them. `step` is called
/// with a first block, a number of blocks, and what takes the parts of these blocks in order. The
/// runs may end before the range does.
pub(crate) fn runs_of(
    offset_bytes: u64,
    len_bytes: u64,
    mut step: impl FnMut(u64, u64, &mut dyn FnMut(u64, bool)),
) -> Vec<(u64, bool)> {
    let first = offset_bytes / BLOCK_BYTES;
    let end = (offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
    let mut runs: Vec<(u64, bool)> = Vec::new();
    let mut from = first;
    while from < end && runs.len() <= MAX_RUNS {
        let blocks = STEP_BLOCKS.min(end - from);
        step(from, blocks, &mut |blocks, is_so| match runs.last_mut() {
            Some((length, last)) if *last == is_so => *length += blocks,
            _ => runs.push((blocks, is_so)),
        });
        from += blocks;
    }
    let mut at = first;
    let in_bytes = |(blocks, is_so)| {
        let from = (at * BLOCK_BYTES).max(offset_bytes);
        at += blocks;
        ((at * BLOCK_BYTES).min(offset_bytes + len_bytes) - from, is_so)
    };
    runs.into_iter().take(MAX_RUNS).map(in_bytes).collect()
}
