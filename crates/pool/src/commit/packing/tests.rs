//! Which blocks of an extent are compressed together.

use super::*;

/// The lengths of the units of some blocks: volume, block there, and place in the extent.
fn units(blocks: &[(u32, u64, usize)]) -> Vec<usize> {
    let loose = |(volume, lba, index): &(u32, u64, usize)| Loose {
        at: (VolumeId(9), Lba(1000 + *index as u64)),
        bound: (VolumeId(*volume), Lba(*lba)),
        index: *index,
    };
    let blocks: Vec<Loose> = blocks.iter().map(loose).collect();
    blocks.chunk_by(Loose::is_followed_by).map(<[Loose]>::len).collect()
}

#[test]
fn units_begin_at_multiples_of_their_largest_size() {
    let run = |first: u64, count: u64| -> Vec<(u32, u64, usize)> {
        (0..count).map(|at| (1, first + at, at as usize)).collect()
    };
    assert_eq!(units(&run(0, 9)), vec![4, 4, 1]);
    assert_eq!(units(&run(2, 9)), vec![2, 4, 3]);
    assert_eq!(units(&run(7, 1)), vec![1]);
}

#[test]
fn blocks_that_do_not_follow_each_other_are_in_units_of_their_own() {
    assert_eq!(units(&[(1, 4, 0), (1, 5, 1), (1, 6, 3), (1, 7, 4)]), vec![2, 2]);
    assert_eq!(units(&[(1, 4, 0), (1, 6, 1), (1, 7, 2)]), vec![1, 2]);
    assert_eq!(units(&[(1, 4, 0), (2, 5, 1), (2, 6, 2)]), vec![1, 2]);
    assert_eq!(units(&[(1, 5, 0), (1, 5, 1), (1, 4, 2)]), vec![1, 1, 1]);
}
