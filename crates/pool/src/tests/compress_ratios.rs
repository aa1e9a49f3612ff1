//! The ratio of a compressed volume: what its blocks would take of what they take.

use forebay_rt::Runtime;
use forebay_units::BLOCK_LEN;

use super::compression::{blocks, pool_of, sparse};
use super::names;

const MIB: u64 = 1 << 20;

#[test]
fn a_ratio_is_of_all_blocks_of_a_volume_and_of_no_other() {
    Runtime::simulated(4701).block_on(async {
        let volumes = [
            sparse("u", 8 * MIB, &[]),
            sparse("v", 64 * MIB, &[("compression", "lz4")]),
            sparse("w", 8 * MIB, &[]),
        ];
        let (pool, _) = pool_of(&volumes, 256 * MIB).await;
        let percent = |name: &str| pool.get_volume(name).unwrap().compress_percent;
        assert_eq!(["u", "v", "w"].map(percent), [100; 3]);
        for (name, first, count, noise) in [
            ("u", 0, 4, 1024),
            ("v", 0, 4, 1024),
            ("v", 20, 2, BLOCK_LEN),
            ("v", 30, 1, 300),
            ("w", 0, 1, 1024),
        ] {
            let volume = pool.open_volume(name).unwrap();
            for at in first..first + count {
                volume.write(at * MIB, blocks(at, 256, noise), false).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        let stats = pool.stats().compression;
        let of = |bytes: u64| bytes / BLOCK_LEN as u64;
        assert_eq!((of(stats.referenced_bytes), stats.packed_blocks), (1280, 1280));
        let (all, taken) = (1280 + 512, of(stats.stored_bytes) + 512);
        let expected = (all as f64 * 100.0 / taken as f64).round() as u64;
        assert!(expected > 150, "{stats:?}");
        assert_eq!(["u", "v", "w"].map(percent), [100, expected, 100]);
        // A snapshot has what the volume has no more.
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.open_volume("v").unwrap().discard(0, 64 * MIB, false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(percent("v"), 100);
        pool.export().await.unwrap();
    });
}
