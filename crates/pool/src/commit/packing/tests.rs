//! Which blocks of an extent are compressed together.

use forebay_format::packed::PackedRef;
use forebay_rt::Runtime;

use super::*;
use crate::tests::compression::{blocks, pool_of, sparse};
use crate::tests::expect;

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

#[test]
fn blocks_are_stored_as_they_are_where_no_packed_block_is_free() {
    Runtime::simulated(4811).block_on(async {
        let volumes = [sparse("v", 8 << 20, &[("compression", "lz4")])];
        let (pool, _) = pool_of(&volumes, 64 << 20).await;
        let v = pool.open_volume("v").unwrap();
        // No four numbers in a row are free.
        let taken = || {
            let at = |number| PackedRef { block: Lba(number), slot: 0, index: 0 }.addr();
            (0..70_000).step_by(4).map(at)
        };
        taken().for_each(|at| pool.packed.refer(at, 1));
        let data = blocks(1, 4, 500);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        let written = || {
            let stats = pool.stats().compression;
            (stats.packed_blocks, stats.plain_blocks)
        };
        assert_eq!(written(), (0, 4));
        expect(&v, 0, &data).await;
        taken().for_each(|at| pool.packed.release(at, 1));
        let data = blocks(2, 4, 500);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(written(), (4, 4));
        expect(&v, 0, &data).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
