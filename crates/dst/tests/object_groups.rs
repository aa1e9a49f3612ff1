//! Groups of a pool in an object store: the next one goes there beside the root of the one before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes, MemoryDevice};
use forebay_objects::ObjectDevice;
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed};
use forebay_units::{Layout, Nanos};

const SIZE: u64 = 64 << 20;
const HOST: u64 = 1;
const WRITE: u64 = 64 << 10;
const VOLUME: u64 = 16 << 20;

/// Places that writes go to, in turn.
const PLACES: u64 = VOLUME / WRITE;

/// What write `at` writes. Its number is the first word.
fn stamp(at: u64) -> IoBytes {
    let words = (0..WRITE / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    IoBuf::copy_of(&bytes).freeze()
}

async fn open(bucket: &Rc<Bucket>, log: &Device) -> (Rc<ObjectDevice>, Rc<dyn Opener>) {
    let store = ObjectDevice::open(bucket.client("o"), HOST, SIZE).await.unwrap();
    let (data, log) = (store.clone(), log.clone());
    let opener = OpenWith::new(HOST, move |name| match name {
        "o" => Ok(data.clone() as Device),
        _ => Ok(log.clone()),
    });
    (store, opener)
}

async fn create(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = PoolSpec {
        groups: vec![GroupSpec { layout: Layout::Raid0, devices: vec!["o".to_owned()] }],
        logs: vec![LogSpec { devices: vec!["l".to_owned()] }],
        properties: BTreeMap::from([("device_timeout".to_owned(), "3600".to_owned())]),
        ..PoolSpec::default()
    };
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    let volume = VolumeSpec {
        name: "v".to_owned(),
        size_bytes: VOLUME,
        sparse: false,
        properties: BTreeMap::new(),
    };
    pool.create_volume(&volume).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

/// Waits until `holds`, for a minute at most.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        rt::sleep(Nanos::from_millis(10)).await;
    }
    panic!("not within a minute: {what}");
}

#[test]
fn the_next_group_is_on_its_way_while_a_root_is() {
    let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
    let log: Device = Rc::new(MemoryDevice::new("l", SIZE));
    let (seen, of_log) = (bucket.clone(), log.clone());
    let first = Runtime::simulated(1);
    let committed = first.block_on(async move {
        let (store, opener) = open(&seen, &of_log).await;
        let (pool, v) = create(opener).await;
        let before = pool.status().txg;
        // From here on no entry is taken: the next root stays on its way.
        seen.refuse(Some("chain/"));
        let objects = || seen.names().iter().filter(|name| name.starts_with("data/")).count();
        let had = objects();
        let writer = v.clone();
        let writing = rt::spawn(async move {
            for at in 0..PLACES {
                // A group is closed in between.
                rt::sleep(Nanos::from_millis(1)).await;
                writer.write(at * WRITE, stamp(at), false).await.unwrap();
            }
        });
        until("the first group is stored", || objects() > had).await;
        until("blocks of the next one wait beside it", || {
            store.stats().waiting_bytes >= 1 << 20 && pool.status().txg == before
        })
        .await;
        seen.refuse(None);
        writing.await;
        for at in 0..PLACES {
            let found = v.read(at * WRITE, IoBuf::zeroed(WRITE as usize)).await.unwrap();
            assert!(found[..] == stamp(at)[..], "write {at}");
        }
        pool.sync().await.unwrap();
        let committed = pool.status().txg;
        // The machine ends without an export.
        std::mem::forget((pool, v));
        committed
    });
    drop(first);
    Runtime::simulated(2).block_on(async move {
        let (_store, opener) = open(&bucket, &log).await;
        let names = ["o".to_owned(), "l".to_owned()];
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(opener, &names, "tank", &options).await.unwrap();
        assert!(pool.status().txg >= committed);
        let v = pool.open_volume("v").unwrap();
        for at in 0..PLACES {
            let found = v.read(at * WRITE, IoBuf::zeroed(WRITE as usize)).await.unwrap();
            assert!(found[..] == stamp(at)[..], "write {at} after a restart");
        }
    });
}

/// Writes in turn, each eighth durable, until the machine ends. Tells the last durable write that
/// was answered.
async fn write_until_the_end(
    bucket: Rc<Bucket>,
    log: Device,
    ends_after: Nanos,
    told: Rc<Cell<u64>>,
) {
    let (_store, opener) = open(&bucket, &log).await;
    let (_pool, v) = create(opener).await;
    rt::spawn_detached(Box::pin(async move {
        rt::sleep(ends_after).await;
        rt::halt();
    }));
    for at in 1.. {
        let is_durable = at % 8 == 0;
        v.write(at % PLACES * WRITE, stamp(at), is_durable).await.unwrap();
        if is_durable {
            told.set(at);
        }
        rt::sleep(Nanos::from_millis(1)).await;
    }
}

/// The number of writes that the volume holds. It must hold all before the last of them.
async fn count_writes(v: &Device) -> u64 {
    let mut found = Vec::new();
    for place in 0..PLACES {
        let block = v.read(place * WRITE, IoBuf::zeroed(WRITE as usize)).await.unwrap();
        let at = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert!(at == 0 || block[..] == stamp(at)[..], "place {place} holds a part of write {at}");
        found.push(at);
    }
    let last = found.iter().copied().max().unwrap();
    for (place, at) in (0..).zip(found) {
        let newest = (1..=last).rev().take(PLACES as usize).find(|at| at % PLACES == place);
        assert_eq!(at, newest.unwrap_or(0), "place {place} of {last} writes");
    }
    last
}

#[test]
fn a_crash_at_any_instant_keeps_a_prefix_with_all_that_was_durable() {
    let mut most = 0;
    for seed in 0..24 {
        // Roots take longer than a group of writes.
        let config = BucketConfig {
            least_latency: Nanos::from_millis(10),
            latency_span: Nanos::from_millis(50),
            ..BucketConfig::calm()
        };
        let bucket = Bucket::new(config, Seed(seed));
        let log: Device = Rc::new(MemoryDevice::new("l", SIZE));
        let told = Rc::new(Cell::new(0));
        let first = Runtime::simulated(seed);
        let ends_after = Nanos::from_millis(300 + seed * 29);
        let owner = write_until_the_end(bucket.clone(), log.clone(), ends_after, told.clone());
        assert!(first.run(owner).is_none(), "it ends");
        drop(first);
        bucket.restart();
        let last = Runtime::simulated(seed + 1000).block_on(async move {
            let (_store, opener) = open(&bucket, &log).await;
            let names = ["o".to_owned(), "l".to_owned()];
            let options = ImportOptions { force: true, ..ImportOptions::default() };
            let pool = Pool::import(opener, &names, "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            let last = count_writes(&v).await;
            assert!(last >= told.get(), "{last} of {} durable ones, seed {seed}", told.get());
            last
        });
        most = most.max(last);
    }
    assert!(most > 100, "several groups were written: {most}");
}
