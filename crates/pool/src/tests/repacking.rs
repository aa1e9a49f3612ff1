//! Repacking: overwrites at random leave gaps in packed blocks, and the room comes back.

use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_rt::Runtime;
use forebay_units::BLOCK_LEN;

use super::compression::{Model, blocks, check, imported_again, pool_of, scan_ended, sparse};
use super::volume;
use crate::Pool;
use crate::spec::VolumeSpec;

const MIB: u64 = 1 << 20;

/// Random numbers.
fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed + 1;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (state >> 33) % below
    }
}

/// Writes the first `count` blocks of a volume in order, 16 KiB at a time.
async fn fill(pool: &Rc<Pool>, volume: &Device, held: &mut [Option<(u64, usize)>], noise: usize) {
    for first in (0..held.len()).step_by(4) {
        let seed = first as u64;
        let data: Vec<u8> =
            (seed..seed + 4).flat_map(|seed| blocks(seed, 1, noise).to_vec()).collect();
        let at = first as u64 * BLOCK_LEN as u64;
        volume.write(at, IoBuf::copy_of(&data).freeze(), false).await.unwrap();
        (0..4).for_each(|index| held[first + index] = Some((seed + index as u64, noise)));
        if first % 512 == 0 {
            pool.sync().await.unwrap();
        }
    }
    pool.sync().await.unwrap();
}

/// Overwrites single blocks at random, as many as the volume has, in groups of 64.
async fn overwrite(
    pool: &Rc<Pool>,
    volume: &Device,
    held: &mut [Option<(u64, usize)>],
    noise: usize,
    next: &mut impl FnMut(u64) -> u64,
) {
    for step in 0..held.len() {
        let block = next(held.len() as u64) as usize;
        let seed = next(1 << 30);
        held[block] = Some((seed, noise));
        volume.write((block * BLOCK_LEN) as u64, blocks(seed, 1, noise), false).await.unwrap();
        if step % 64 == 63 {
            pool.sync().await.unwrap();
        }
    }
    pool.sync().await.unwrap();
}

/// Bytes of packed blocks.
fn stored(pool: &Pool) -> u64 {
    pool.stats().compression.stored_bytes
}

#[test]
fn random_overwrites_leave_few_gaps() {
    Runtime::simulated(1).block_on(async {
        const BLOCKS: usize = 4096;
        let volumes = [sparse("v", 16 * MIB, &[("compression", "lz4")])];
        let (mut pool, shelf) = pool_of(&volumes, 256 * MIB).await;
        let mut model = Model::from([("v".to_owned(), vec![None; BLOCKS])]);
        let mut next = chance(1);
        let v = pool.open_volume("v").unwrap();
        fill(&pool, &v, model.get_mut("v").unwrap(), 1200).await;
        let dense = stored(&pool);
        for _ in 0..3 {
            overwrite(&pool, &v, model.get_mut("v").unwrap(), 1200, &mut next).await;
        }
        let stats = pool.stats().compression;
        assert!(stats.stored_bytes < dense * 3 / 2, "{dense} bytes at first: {stats:?}");
        assert!(stats.gap_bytes <= stats.stored_bytes * 3 / 10, "{stats:?}");
        assert!(stats.repacked_blocks > 0, "{stats:?}");
        check(&pool, &model).await;
        drop(v);
        // What gaps there are is not known after an import, and is found out by and by.
        pool = imported_again(pool, &shelf).await;
        assert_eq!(pool.stats().compression.gap_bytes, 0);
        let v = pool.open_volume("v").unwrap();
        for _ in 0..2 {
            overwrite(&pool, &v, model.get_mut("v").unwrap(), 1200, &mut next).await;
        }
        let stats = pool.stats().compression;
        assert!(stats.stored_bytes < dense * 3 / 2, "{dense} bytes at first: {stats:?}");
        check(&pool, &model).await;
        pool.scrub().await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(pool.status().scan.unwrap().errors, 0);
        v.discard(0, 16 * MIB, false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!((pool.summary().alloc_bytes, stored(&pool)), (0, 0));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn packed_blocks_that_small_groups_leave_half_empty_are_joined() {
    Runtime::simulated(2).block_on(async {
        let volumes = [sparse("v", 16 * MIB, &[("compression", "lz4")])];
        let (pool, _) = pool_of(&volumes, 256 * MIB).await;
        let mut model = Model::from([("v".to_owned(), vec![None; 600])]);
        let v = pool.open_volume("v").unwrap();
        for block in 0..600 {
            let seed = block as u64;
            v.write(seed * BLOCK_LEN as u64, blocks(seed, 1, 900), false).await.unwrap();
            model.get_mut("v").unwrap()[block] = Some((seed, 900));
            pool.sync().await.unwrap();
        }
        // Each group has a block of a quarter of one.
        let stats = pool.stats().compression;
        assert!(stats.stored_bytes < 600 * BLOCK_LEN as u64 * 4 / 10, "{stats:?}");
        // Where nothing is gained, nothing is repacked.
        let before = stats.repacked_blocks;
        for seed in 0..20 {
            v.write(0, blocks(seed, 1, BLOCK_LEN), false).await.unwrap();
            model.get_mut("v").unwrap()[0] = Some((seed, BLOCK_LEN));
            pool.sync().await.unwrap();
        }
        let stats = pool.stats().compression;
        assert!(stats.repacked_blocks <= before + 32, "{before} before: {stats:?}");
        check(&pool, &model).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_was_repacked_takes_what_an_import_counts() {
    Runtime::simulated(4721).block_on(async {
        let volumes = [sparse("v", 4 * MIB, &[("compression", "lz4")])];
        let (mut pool, shelf) = pool_of(&volumes, 64 * MIB).await;
        let mut held = vec![None; 1024];
        let mut next = chance(5);
        let v = pool.open_volume("v").unwrap();
        fill(&pool, &v, &mut held, 1200).await;
        for _ in 0..2 {
            overwrite(&pool, &v, &mut held, 1200, &mut next).await;
        }
        drop(v);
        assert!(pool.stats().compression.repacked_blocks > 0);
        let model = Model::from([("v".to_owned(), held)]);
        for _ in 0..2 {
            assert_eq!(pool.summary().alloc_bytes, stored(&pool));
            assert_eq!(pool.stats().compression.referenced_bytes, 4 * MIB);
            check(&pool, &model).await;
            pool = imported_again(pool, &shelf).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn smaller_gaps_are_filled_when_space_is_short() {
    Runtime::simulated(4722).block_on(async {
        let volumes = [sparse("v", 8 * MIB, &[("compression", "lz4")])];
        let (pool, _) = pool_of(&volumes, 64 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        // Units of one block, of which a packed block has four or five. A fifth of them goes.
        let mut held = vec![None; 2048];
        for unit in 0..512 {
            held[4 * unit] = Some((unit as u64, 900));
            let at = (4 * unit * BLOCK_LEN) as u64;
            v.write(at, blocks(unit as u64, 1, 900), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        for unit in (0..512).filter(|unit| unit % 10 < 2) {
            held[4 * unit] = None;
            let at = (4 * unit * BLOCK_LEN) as u64;
            v.discard(at, BLOCK_LEN as u64, false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let repacked = || pool.stats().compression.repacked_blocks;
        let write = async |held: &mut Vec<Option<(u64, usize)>>, seed: u64| {
            held[2047] = Some((seed, 900));
            v.write((2047 * BLOCK_LEN) as u64, blocks(seed, 1, 900), false).await.unwrap();
            pool.sync().await.unwrap();
        };
        write(&mut held, 1000).await;
        assert_eq!(repacked(), 0, "there is room");
        let rest = (pool.free_blocks() - 64) * BLOCK_LEN as u64;
        pool.create_volume(&VolumeSpec { name: "rest".into(), ..volume(rest) }).await.unwrap();
        write(&mut held, 1001).await;
        assert!(repacked() > 0, "{:?}", pool.stats().compression);
        check(&pool, &Model::from([("v".to_owned(), held)])).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn gaps_give_room_in_a_full_pool() {
    Runtime::simulated(3).block_on(async {
        let volumes = [sparse("v", 512 * MIB, &[("compression", "lz4")])];
        let (mut pool, shelf) = pool_of(&volumes, 64 * MIB).await;
        let size = pool.summary().size_bytes;
        let mut model = Model::from([("v".to_owned(), Vec::new())]);
        let held = model.get_mut("v").unwrap();
        // With gaps as they come the volume would take more than all of the pool.
        held.resize((size * 7 / 10 / 2060 / 4 * 4) as usize, None);
        let v = pool.open_volume("v").unwrap();
        fill(&pool, &v, held, 2000).await;
        let filled = pool.summary().alloc_bytes * 100 / size;
        assert!((60..75).contains(&filled), "{filled} % are filled");
        let mut next = chance(3);
        for _ in 0..2 {
            overwrite(&pool, &v, held, 2000, &mut next).await;
        }
        let stats = pool.stats().compression;
        assert!(stats.repacked_blocks > 0, "{stats:?}");
        check(&pool, &model).await;
        drop(v);
        pool = imported_again(pool, &shelf).await;
        check(&pool, &model).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn small_gaps_stay_while_there_is_room() {
    Runtime::simulated(4).block_on(async {
        const BLOCKS: usize = 4096;
        let volumes = [sparse("v", 16 * MIB, &[("compression", "lz4")])];
        let (pool, _) = pool_of(&volumes, 256 * MIB).await;
        let mut model = Model::from([("v".to_owned(), vec![None; BLOCKS])]);
        let v = pool.open_volume("v").unwrap();
        let held = model.get_mut("v").unwrap();
        fill(&pool, &v, held, 1200).await;
        // Half of each of some packed blocks.
        for block in (0..BLOCKS / 8).step_by(2) {
            let seed = (1 << 30) + block as u64;
            held[block] = Some((seed, 1200));
            v.write((block * BLOCK_LEN) as u64, blocks(seed, 1, 1200), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        // The next group would repack them.
        held[BLOCKS - 1] = Some((1, 1200));
        let last = (BLOCKS - 1) * BLOCK_LEN;
        v.write(last as u64, blocks(1, 1, 1200), false).await.unwrap();
        pool.sync().await.unwrap();
        let stats = pool.stats().compression;
        assert!(stats.gap_bytes > 0 && stats.repacked_blocks == 0, "{stats:?}");
        check(&pool, &model).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
