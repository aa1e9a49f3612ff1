//! No task keeps the others of its thread waiting for more than a millisecond.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::memory;
use super::{spec, stamp, volume};
use crate::spec::{CloneSpec, VolumeSpec};
use crate::{Counting, Memory, Opener, Opening, Pool};

/// The longest poll that is allowed.
const BUDGET: Nanos = Nanos::from_millis(1);
const MIB: u64 = 1 << 20;
/// Blocks of a volume: enough for several milliseconds at 100 ns each.
const BLOCKS: u64 = 16 << 10;

async fn pool_with(volumes: &[(&str, &str)]) -> Rc<Pool> {
    let shelf = memory(&["a", "l"], 512 << 20);
    let mut spec = spec(Layout::Raid0, &["a"], &["l"]);
    for (name, value) in [("txg_timeout", "60"), ("dirty_limit", "128M")] {
        spec.properties.insert(name.to_owned(), value.to_owned());
    }
    let pool = Pool::create(shelf, "tank", &spec).await.unwrap();
    for (name, dedup) in volumes {
        let properties = BTreeMap::from([("dedup".to_owned(), (*dedup).to_owned())]);
        let size = volume((4 * BLOCKS) << 12);
        let spec = VolumeSpec { name: (*name).into(), sparse: true, properties, ..size };
        pool.create_volume(&spec).await.unwrap();
    }
    pool
}

/// Two groups, whose blocks alternate: no two blocks that are neighbors lie beside each other.
async fn scatter(pool: &Pool, device: &Device) {
    for odd in [0, 1] {
        for at in 0..BLOCKS / 2 {
            let block = 2 * at + odd;
            device.write(block << 12, stamp(4096, block), false).await.unwrap();
        }
        pool.sync().await.unwrap();
    }
}

/// Fails if a poll since the last check took longer than the budget.
fn check(what: &str) {
    let long: Vec<_> = rt::long_polls().into_iter().filter(|p| p.longest > BUDGET).collect();
    assert!(long.is_empty(), "{what}: {long:#?}");
}

/// A machine whose kernel takes its time to count the memory.
struct SlowCount {
    inner: Rc<dyn Opener>,
}

/// What it counts while the pool works.
const MEMORY: Memory = Memory { free_bytes: Some(2 << 30), all_bytes: Some(8 << 30) };

impl Opener for SlowCount {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.inner.open(path)
    }

    fn host(&self) -> u64 {
        self.inner.host()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        rt::model_work(Nanos(2 * BUDGET.0));
        Some(3 << 30)
    }

    fn memory_bytes(&self) -> Option<u64> {
        MEMORY.all_bytes
    }

    fn count_memory(&self) -> Counting<'_> {
        Box::pin(async {
            rt::sleep(Nanos(2 * BUDGET.0)).await;
            MEMORY
        })
    }
}

#[test]
fn memory_is_counted_beside_other_work() {
    Runtime::simulated(5).block_on(async {
        let machine = Rc::new(SlowCount { inner: memory(&["a"], 64 << 20) });
        let pool = Pool::create(machine, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(MIB)).await.unwrap();
        let device = pool.open_volume("v").unwrap();
        let long = || rt::long_polls().iter().map(|polls| polls.count).sum::<u64>();
        // The creation of a pool waits for the count.
        assert_eq!(long(), 1);
        let shown = pool.stats().long_polls.remove(0);
        assert_eq!((shown.count, shown.longest_us, shown.mean_us), (1, 2000.0, 2000.0));
        for at in 0..10 {
            device.write(at << 12, stamp(4096, at), false).await.unwrap();
            pool.sync().await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
        }
        assert_eq!(long(), 1, "groups, and looks at the memory each second");
        // Half of what is free beyond the reserve of a GiB.
        assert_eq!(pool.stats().cache.limit_bytes, 1 << 29);
    });
}

#[test]
fn group_of_many_small_extents_is_written_in_short_polls() {
    for dedup in ["off", "on"] {
        Runtime::simulated(1).block_on(async {
            let pool = pool_with(&[("v", dedup)]).await;
            scatter(&pool, &pool.open_volume("v").unwrap()).await;
            check("a group");
            pool.export().await.unwrap();
            check("an export");
        });
    }
}

#[test]
fn long_trim_of_scattered_blocks_is_applied_in_short_polls() {
    for dedup in ["off", "on"] {
        Runtime::simulated(2).block_on(async {
            let pool = pool_with(&[("v", dedup)]).await;
            let v = pool.open_volume("v").unwrap();
            scatter(&pool, &v).await;
            v.discard(0, (4 * BLOCKS) << 12, false).await.unwrap();
            pool.sync().await.unwrap();
            check("a trim");
            assert_eq!(pool.get_volume("v").unwrap().used_bytes, 0);
            assert_eq!(pool.summary().alloc_bytes, 0);
        });
    }
}

#[test]
fn volume_of_scattered_blocks_is_destroyed_in_short_polls() {
    Runtime::simulated(3).block_on(async {
        let pool = pool_with(&[("v", "off"), ("w", "off")]).await;
        scatter(&pool, &pool.open_volume("v").unwrap()).await;
        pool.destroy_volume("v", false).await.unwrap();
        pool.sync().await.unwrap();
        check("a volume destroyed");
        assert_eq!(pool.summary().alloc_bytes, 0);
        // A smaller size cuts off as much.
        scatter(&pool, &pool.open_volume("w").unwrap()).await;
        pool.resize_volume("w", MIB, true).await.unwrap();
        pool.sync().await.unwrap();
        check("a volume shrunk");
        assert_eq!(pool.summary().alloc_bytes, MIB);
    });
}

#[test]
fn snapshot_of_a_clone_is_taken_in_short_polls() {
    Runtime::simulated(5).block_on(async {
        let pool = pool_with(&[]).await;
        let spec = VolumeSpec { sparse: true, ..volume(4096 << 21) };
        pool.create_volume(&spec).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        // A leaf of the map for each block.
        for leaf in 0..4096 {
            v.write(leaf << 21, stamp(4096, leaf), false).await.unwrap();
        }
        pool.take_snapshots(&["v@a".to_owned()]).await.unwrap();
        let clone = CloneSpec { name: "c".into(), properties: BTreeMap::new() };
        pool.clone_snapshot("v@a", &clone).await.unwrap();
        check("a clone");
        pool.take_snapshots(&["c@b".to_owned()]).await.unwrap();
        check("a snapshot of a clone");
        let taken = pool.list_snapshots().await.remove(0);
        assert_eq!((&taken.name[..], taken.referenced_bytes), ("tank/c@b", 4096 << 12));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn poll_over_the_budget_is_seen() {
    Runtime::simulated(4).block_on(async {
        rt::spawn(async { (0..4).for_each(|_| rt::model_work(Nanos(BUDGET.0 / 3))) }).await;
        let long = rt::long_polls();
        assert_eq!(long.len(), 1, "{long:?}");
        assert!(long[0].longest > BUDGET && long[0].place.contains("polls.rs"));
    });
}

#[test]
fn volume_of_scattered_blocks_goes_back_in_short_polls() {
    Runtime::simulated(6).block_on(async {
        let pool = pool_with(&[]).await;
        pool.create_volume(&VolumeSpec { sparse: true, ..volume(4096 << 21) }).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        // A leaf of the map for each block.
        for salt in [0, 1 << 20] {
            for leaf in 0..4096 {
                v.write(leaf << 21, stamp(4096, leaf + salt), false).await.unwrap();
            }
            if salt == 0 {
                pool.take_snapshots(&["v@a".to_owned()]).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        check("two versions");
        pool.roll_back_volume("v@a", false).await.unwrap();
        check("a rollback");
        super::expect(&v, 7 << 21, &stamp(4096, 7)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
