//! What a pool says that it has written, by kind, beside what its devices were given.

use forebay_rt::{self as rt, Runtime};
use forebay_units::{BLOCK_BYTES, Layout};

use super::rack::memory;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::{MediaBytes, PoolStats};

const DEVICES: [&str; 3] = ["a", "b", "c"];
const ROUNDS: u64 = 120;
/// Blocks that are written in each of them, none twice.
const A_ROUND: u64 = 400;

fn main_store(media: &MediaBytes) -> u64 {
    media.data + media.parity + media.metadata + media.cleaning + media.padding
}

fn of_devices(stats: &PoolStats) -> u64 {
    stats.devices.values().map(|io| io.write_bytes).sum()
}

#[test]
fn what_devices_were_given_is_told_by_kind() {
    for (layout, devices) in [(Layout::Raid0, 1), (Layout::Mirror, 2), (Layout::Raidz1, 3)] {
        Runtime::simulated(6101).block_on(async move {
            let shelf = memory(&DEVICES[..devices], 64 << 20);
            let options = spec(layout, &DEVICES[..devices], &[]);
            let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
            pool.set("txg_timeout", "600").await.unwrap();
            let blocks = pool.summary().size_bytes * 85 / 100 / BLOCK_BYTES;
            let wanted = VolumeSpec { sparse: true, ..volume(blocks * BLOCK_BYTES) };
            pool.create_volume(&wanted).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            pool.sync().await.unwrap();
            let before = pool.stats();
            for round in 0..ROUNDS {
                let apart = blocks / A_ROUND;
                for turn in 0..A_ROUND {
                    let at = turn * apart + rt::random_below(apart);
                    let data = stamp(BLOCK_BYTES as usize, (round << 16) + turn + 1);
                    v.write(at * BLOCK_BYTES, data, false).await.unwrap();
                }
                pool.sync().await.unwrap();
            }
            drop(pool.writers.lock().await);
            let after = pool.stats();
            let media = after.since_import.media;
            let then = before.since_import.media;
            assert_eq!(media.data - then.data, ROUNDS * A_ROUND * BLOCK_BYTES);
            let grown = main_store(&media) + media.log - main_store(&then) - then.log;
            assert_eq!(grown, of_devices(&after) - of_devices(&before), "{media:?}");
            assert!(after.segments.cleaned > 0 && media.cleaning > 0, "{media:?}");
            // The cleaner's clock is what hosts have written.
            assert_eq!(pool.stats.clock(), ROUNDS * A_ROUND);
            assert_eq!(pool.stats.last_group_blocks(), A_ROUND);
            let geometry = pool.store.array.groups().remove(0);
            let segment_bytes = u64::from(geometry.blocks_per_segment()) * BLOCK_BYTES;
            assert_eq!(after.segments.segment_bytes, segment_bytes);
            drop(v);
            pool.export().await.unwrap();
            let ever = pool.stats().since_creation;
            drop(pool);
            let paths = names(&DEVICES[..devices]);
            let pool = Pool::import(shelf, &paths, "tank", &ImportOptions::default()).await;
            let pool = pool.unwrap();
            let since = pool.stats().since_creation;
            assert_eq!(since.segments_cleaned, ever.segments_cleaned);
            assert_eq!(since.media.cleaning, ever.media.cleaning);
            assert_eq!(pool.stats.clock(), ROUNDS * A_ROUND);
            pool.export().await.unwrap();
        });
    }
}
