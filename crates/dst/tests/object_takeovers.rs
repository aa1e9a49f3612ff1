//! Pools whose data is in an object store, and the takeover by another machine at any instant.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes, MemoryDevice};
use forebay_objects::ObjectDevice;
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::status::Health;
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed, SharedDisk};
use forebay_units::{Layout, Nanos};

const SIZE: u64 = 64 << 20;
const STRIDE: u64 = 4096;
/// Where the next owner writes.
const NEW: u64 = 3 << 20;
const STEPS: u64 = 40;

/// A store and a log device that machines share.
struct Shared {
    bucket: Rc<Bucket>,
    log: Rc<SharedDisk>,
}

impl Shared {
    fn new(seed: u64) -> Self {
        let config = BucketConfig {
            refused: 40,
            unanswered: 40,
            late: 40,
            repeated: 40,
            listing_lag: Nanos::from_secs(1),
            ..BucketConfig::calm()
        };
        let log = SharedDisk::new(Rc::new(MemoryDevice::new("l", SIZE)));
        log.set_delay(Nanos(20_000));
        Self { bucket: Bucket::new(config, Seed(seed)), log }
    }

    /// The devices as machine `host` opens them.
    async fn open(&self, host: u64) -> Rc<dyn Opener> {
        let opened = ObjectDevice::open(self.bucket.client("o"), host, SIZE).await;
        let (data, log) = (opened.unwrap(), self.log.initiator(host));
        OpenWith::new(host, move |name| match name {
            "o" => Ok(data.clone() as Device),
            _ => Ok(log.clone()),
        })
    }
}

/// The content of a round.
fn stamp(round: u64) -> IoBytes {
    let words = (0..STRIDE / 8).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    IoBuf::copy_of(&bytes).freeze()
}

async fn take_over(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool =
        Pool::import(opener, &["o".to_owned(), "l".to_owned()], "tank", &options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

/// What the first owner was told.
#[derive(Default)]
struct Told {
    /// Rounds that are acknowledged.
    acknowledged: Cell<u64>,
    /// A write was refused.
    refused: Cell<bool>,
}

async fn own(opener: Rc<dyn Opener>, frozen_after: Nanos, told: Rc<Told>) {
    let options = PoolSpec {
        groups: vec![GroupSpec { layout: Layout::Raid0, devices: vec!["o".to_owned()] }],
        logs: vec![LogSpec { devices: vec!["l".to_owned()] }],
        ..PoolSpec::default()
    };
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    let volume = VolumeSpec {
        name: "v".to_owned(),
        size_bytes: 4 << 20,
        sparse: false,
        properties: BTreeMap::new(),
    };
    pool.create_volume(&volume).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    rt::spawn_detached(Box::pin(async move {
        rt::sleep(frozen_after).await;
        rt::halt();
    }));
    for round in 0..700 {
        if v.write(round * STRIDE, stamp(100 + round), true).await.is_err() {
            told.refused.set(true);
            break;
        }
        told.acknowledged.set(round + 1);
        rt::sleep(Nanos::from_millis(5)).await;
        if round % 10 == 9 {
            pool.sync().await.ok();
        }
    }
    // The pool lives until the machine ends.
    std::future::pending::<()>().await;
}

/// Rounds of writes that lie on the volume, in order.
async fn count_rounds(v: &Device) -> u64 {
    for round in 0.. {
        let block = v.read(round * STRIDE, IoBuf::zeroed(STRIDE as usize)).await.unwrap();
        if block[..] != stamp(100 + round)[..] {
            return round;
        }
    }
    unreachable!("the volume has an end")
}

/// The owner stands still at an instant, the next one takes the pool, and the old one goes on with
/// requests that were on their way. Returns the rounds that were found, and whether the old owner
/// was refused.
fn take_over_at(frozen_after: Nanos, seed: u64) -> (u64, bool) {
    let shared = Rc::new(Shared::new(seed));
    let told = Rc::new(Told::default());
    let first = Runtime::simulated(3 * seed);
    let (seen, tell) = (shared.clone(), told.clone());
    let owner = async move { own(seen.open(1).await, frozen_after, tell).await };
    assert!(first.run(owner).is_none(), "it is frozen");
    let second = Runtime::simulated(3 * seed + 1);
    let next = shared.clone();
    let (pool, v, found) = second.block_on(async move {
        let (pool, v) = take_over(next.open(2).await).await;
        let found = count_rounds(&v).await;
        (pool, v, found)
    });
    for step in 0..STEPS {
        first.block_on(async { rt::sleep(Nanos::from_millis(200)).await });
        let (pool, v) = (pool.clone(), v.clone());
        second.block_on(async move {
            let data = stamp(9000 + step);
            v.write(NEW + step * STRIDE, data, true).await.unwrap();
            if step % 8 == 7 {
                pool.sync().await.unwrap();
            }
            rt::sleep(Nanos::from_millis(200)).await;
        });
    }
    let acknowledged = told.acknowledged.get();
    assert!(acknowledged <= found, "{found} of {acknowledged} rounds, frozen at {frozen_after:?}");
    assert_eq!(pool.summary().health, Health::Online);
    drop((pool, v));
    drop((first, second));
    Runtime::simulated(3 * seed + 2).block_on(async move {
        let (_pool, v) = take_over(shared.open(3).await).await;
        assert_eq!(count_rounds(&v).await, found, "late writes count nowhere");
        for step in 0..STEPS {
            let found = v.read(NEW + step * STRIDE, IoBuf::zeroed(STRIDE as usize)).await;
            assert!(found.unwrap()[..] == stamp(9000 + step)[..], "the new owner's step {step}");
        }
    });
    (found, told.refused.get())
}

#[test]
fn takeover_of_a_pool_in_an_object_store_loses_nothing() {
    let (mut most, mut refused) = (0, 0);
    for seed in 0..24 {
        // From the creation into the tenth commit.
        let frozen_after = Nanos(seed * 73_000_000 + seed * seed * 1_337_000);
        let (found, is_refused) = take_over_at(frozen_after, seed);
        most = most.max(found);
        refused += u64::from(is_refused);
    }
    assert!(most > 100, "the first owner had written: {most}");
    assert!(refused > 12, "the first owner tried to go on: {refused}");
}
