//! Pools whose object store loses an object: what was in it is an error, and nothing else is.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, ErrorKind, IoBuf, IoBytes, MemoryDevice};
use forebay_objects::ObjectDevice;
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::status::{Health, PoolEvent, ScanPhase};
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed};
use forebay_units::{Layout, Nanos};

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 96;
const HOST: u64 = 1;

fn stamp(block: u64, round: u64) -> IoBytes {
    let words = (0..BLOCK as u64 / 8)
        .map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (round << 32) ^ block);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    IoBuf::copy_of(&bytes).freeze()
}

/// Opens a store as `o`, and what else there is. The store's device is put into `stores`.
async fn opener(buckets: &[(&str, Rc<Bucket>)], others: &[(&str, Device)]) -> Rc<dyn Opener> {
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    for (name, bucket) in buckets {
        let device = ObjectDevice::open(bucket.client(name), HOST, SIZE).await.unwrap();
        devices.insert((*name).to_owned(), device);
    }
    devices.extend(others.iter().map(|(name, device)| ((*name).to_owned(), device.clone())));
    OpenWith::new(HOST, move |name| Ok(devices[name].clone()))
}

async fn create(opener: Rc<dyn Opener>, layout: Layout, devices: &[&str]) -> (Rc<Pool>, Device) {
    let devices = devices.iter().map(|name| (*name).to_owned()).collect();
    let options = PoolSpec {
        groups: vec![GroupSpec { layout, devices }],
        logs: vec![LogSpec { devices: vec!["l".to_owned()] }],
        // Each read asks the stores.
        properties: BTreeMap::from([("cache_size".to_owned(), "off".to_owned())]),
        ..PoolSpec::default()
    };
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    let volume = VolumeSpec {
        name: "v".to_owned(),
        size_bytes: BLOCKS * BLOCK as u64,
        sparse: false,
        properties: BTreeMap::new(),
    };
    pool.create_volume(&volume).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

/// Writes the volume in several groups, so that its blocks lie in several objects.
async fn write_all(pool: &Rc<Pool>, v: &Device, round: u64) {
    for part in 0..8 {
        for block in (0..BLOCKS).filter(|block| block % 8 == part) {
            v.write(block * BLOCK as u64, stamp(block, round), false).await.unwrap();
        }
        pool.sync().await.unwrap();
    }
}

/// The blocks that cannot be read. All others must be right.
async fn unreadable(v: &Device, round: u64) -> Vec<u64> {
    let mut failed = Vec::new();
    for block in 0..BLOCKS {
        match v.read(block * BLOCK as u64, IoBuf::zeroed(BLOCK)).await {
            Ok(bytes) => assert!(bytes[..] == stamp(block, round)[..], "block {block} is wrong"),
            Err(_) => failed.push(block),
        }
    }
    failed
}

async fn scrub(pool: &Rc<Pool>) -> u64 {
    pool.scrub().await.unwrap();
    loop {
        rt::sleep(Nanos::from_millis(100)).await;
        let status = pool.status().scan.unwrap();
        if status.state == ScanPhase::Completed {
            return status.errors;
        }
    }
}

/// Objects of blocks, which the store holds.
fn data_objects(bucket: &Rc<Bucket>) -> Vec<String> {
    bucket.names().into_iter().filter(|name| name.starts_with("data/")).collect()
}

async fn import(opener: Rc<dyn Opener>, names: &[&str]) -> (Rc<Pool>, Device) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let pool = Pool::import(opener, &names, "tank", &ImportOptions::default()).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

/// A pool with eight groups in a store, exported; and its log device.
fn stored_pool(seed: u64) -> (Rc<Bucket>, Device) {
    let bucket = Bucket::new(BucketConfig::calm(), Seed(seed));
    let log: Device = Rc::new(MemoryDevice::new("l", SIZE));
    let (of_pool, of_log) = (bucket.clone(), log.clone());
    Runtime::simulated(seed).block_on(async move {
        let opener = opener(&[("o", of_pool)], &[("l", of_log)]).await;
        let (pool, v) = create(opener, Layout::Raid0, &["o"]).await;
        write_all(&pool, &v, 1).await;
        drop(v);
        pool.export().await.unwrap();
    });
    (bucket, log)
}

/// Imports the pool without one of its objects. Returns the blocks that cannot be read.
fn without(object: &str, (bucket, log): &(Rc<Bucket>, Device), seed: u64) -> Vec<u64> {
    let hurt = Bucket::new(BucketConfig::calm(), Seed(seed));
    hurt.restore(bucket);
    assert!(hurt.lose(object));
    let log_copy: Rc<MemoryDevice> = Rc::new(MemoryDevice::new("l", SIZE));
    let (log, object) = (log.clone(), object.to_owned());
    Runtime::simulated(seed).block_on(async move {
        let bytes = log.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
        log_copy.write(0, bytes.freeze(), true).await.unwrap();
        let opener = opener(&[("o", hurt)], &[("l", log_copy)]).await;
        let (pool, v) = import(opener, &["o", "l"]).await;
        let failed = unreadable(&v, 1).await;
        let count = failed.len() as u64;
        let events = pool.events();
        let named = events.iter().any(|event| match event {
            PoolEvent::ReadFailed(error) => {
                matches!(&error.kind, ErrorKind::LostObject { object: lost, .. } if *lost == object)
            }
            _ => false,
        });
        // Without blocks of the volume it may have had a copy of the map journal, or nothing.
        assert!(named || count == 0, "the events name the object: {events:?}");
        // A footer may be lost as well.
        assert!(scrub(&pool).await >= count, "a scrub counts what is lost");
        assert_eq!(pool.status().lost_count, count);
        assert_eq!(pool.summary().health, Health::Online);
        // What is written anew is there, and the pool is whole.
        for block in failed.iter().copied() {
            v.write(block * BLOCK as u64, stamp(block, 1), true).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert!(unreadable(&v, 1).await.is_empty());
        scrub(&pool).await;
        assert_eq!(pool.status().lost_count, 0, "without {object}");
        failed
    })
}

#[test]
fn each_lost_object_takes_its_own_blocks_and_no_others() {
    let stored = stored_pool(1);
    let mut lost_with: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, object) in data_objects(&stored.0).iter().enumerate() {
        for block in without(object, &stored, 10 + at as u64) {
            *lost_with.entry(block).or_default() += 1;
        }
    }
    let blocks: Vec<u64> = lost_with.keys().copied().collect();
    assert_eq!(blocks, (0..BLOCKS).collect::<Vec<_>>(), "each block is in an object");
    assert!(lost_with.values().all(|objects| *objects == 1), "{lost_with:?}");
}

#[test]
fn a_mirror_repairs_a_lost_object() {
    let bucket = Bucket::new(BucketConfig::calm(), Seed(2));
    Runtime::simulated(2).block_on(async move {
        let log: Device = Rc::new(MemoryDevice::new("l", SIZE));
        let side: Device = Rc::new(MemoryDevice::new("d", SIZE));
        let opener = opener(&[("o", bucket.clone())], &[("l", log), ("d", side)]).await;
        let (pool, v) = create(opener, Layout::Mirror, &["o", "d"]).await;
        write_all(&pool, &v, 1).await;
        for object in data_objects(&bucket) {
            assert!(bucket.lose(&object));
        }
        assert!(unreadable(&v, 1).await.is_empty());
        assert_eq!(scrub(&pool).await, 0);
        let repaired = pool.status().scan.unwrap().repaired_bytes;
        assert!(repaired >= BLOCKS * BLOCK as u64, "{repaired}");
        let store = &pool.status().groups[0].children[0];
        assert_ne!(store.state, Health::Faulted, "a store that lost objects stays in use");
        pool.sync().await.unwrap();
        // The store alone has everything again.
        pool.offline("d").await.unwrap();
        assert!(unreadable(&v, 1).await.is_empty());
    });
}

#[test]
fn a_raidz_of_stores_repairs_the_objects_that_one_of_them_lost() {
    Runtime::simulated(3).block_on(async move {
        let stores = ["o", "p", "q"];
        let buckets: Vec<(&str, Rc<Bucket>)> = (3..)
            .zip(stores)
            .map(|(seed, name)| (name, Bucket::new(BucketConfig::calm(), Seed(seed))))
            .collect();
        let log: Device = Rc::new(MemoryDevice::new("l", SIZE));
        let opener = opener(&buckets, &[("l", log)]).await;
        let (pool, v) = create(opener, Layout::Raidz1, &stores).await;
        write_all(&pool, &v, 1).await;
        let (_, struck) = &buckets[1];
        let objects = data_objects(struck);
        assert!(!objects.is_empty());
        for object in objects {
            assert!(struck.lose(&object));
        }
        assert!(unreadable(&v, 1).await.is_empty());
        assert_eq!(scrub(&pool).await, 0);
        // Of three columns of a row one is parity, so each store holds half as much as the volume.
        let repaired = pool.status().scan.unwrap().repaired_bytes;
        assert!(repaired >= BLOCKS * BLOCK as u64 / 2, "{repaired}");
        pool.sync().await.unwrap();
        // Any two of the stores have everything again.
        for name in stores {
            pool.offline(name).await.unwrap();
            assert!(unreadable(&v, 1).await.is_empty(), "without {name}");
            pool.online(name).await.unwrap();
            while pool.status().scan.is_some_and(|scan| scan.state != ScanPhase::Completed) {
                rt::sleep(Nanos::from_millis(100)).await;
            }
        }
    });
}
