//! Disks in object stores: the product's device over simulated stores.
//!
//! What always holds: a store is on no machine, so a power cut takes nothing of it; requests that
//! are on their way then come late, or never.
//! Who calls: `disks.rs`.

use std::rc::Rc;

use forebay_device::Device;
use forebay_objects::{ObjectDevice, Store};
use forebay_rt as rt;
use forebay_sim::{Bucket, BucketConfig, World};
use forebay_units::Nanos;

use crate::link::Link;
use crate::subject::PoolSpec;

/// The machine that the pool is on.
const HOST: u64 = 1;

/// The disks that are in object stores, and their stores.
pub(crate) fn of(spec: &PoolSpec, world: &Rc<World>) -> Vec<(usize, Rc<Bucket>)> {
    let store = |disk: usize| {
        let seed = world.seed().derive("store").derive(&disk.to_string());
        let rng = &mut seed.rng();
        let config = match rng.chance(400) {
            true => BucketConfig::calm(),
            false => BucketConfig {
                least_latency: Nanos::from_millis(rng.between(1, 20)),
                latency_span: Nanos::from_millis(rng.between(1, 60)),
                refused: rng.below(80),
                unanswered: rng.below(60),
                late: rng.below(40),
                repeated: rng.below(60),
                listing_lag: Nanos::from_millis(rng.below(3000)),
                down: false,
            },
        };
        (disk, Bucket::beside(world, disk, config, seed))
    };
    (0..spec.disks()).filter(|disk| spec.is_in_store(*disk)).map(store).collect()
}

/// Loses one of the objects with blocks. Returns whether there was one.
pub(crate) fn lose(bucket: &Bucket, pick: u64) -> bool {
    let names = bucket.names();
    let objects: Vec<&String> = names.iter().filter(|name| name.starts_with("data/")).collect();
    let Some(at) = pick.checked_rem(objects.len() as u64) else { return false };
    bucket.lose(objects[at as usize])
}

/// Opens a data disk for a boot, whose machine reaches the store over `link`.
pub(crate) async fn open(
    bucket: &Rc<Bucket>,
    name: &str,
    size_bytes: u64,
    link: Option<&Rc<Link>>,
) -> Device {
    // Processes draw ids that differ, and boots may have equal seeds.
    for _ in 0..bucket.restart() {
        let _ = rt::random_below(2);
    }
    let client: Rc<dyn Store> = bucket.client(name);
    let client = link.map_or(client.clone(), |link| link.to(client));
    open_on(client, HOST, size_bytes).await
}

/// Opens a data disk on a machine, beside those that have it open.
pub(crate) async fn open_on(store: Rc<dyn Store>, host: u64, size_bytes: u64) -> Device {
    let device = ObjectDevice::open(store, host, size_bytes).await;
    // The store answers sooner or later, and loses nothing but blocks.
    device.unwrap_or_else(|error| panic!("a disk in an object store does not open: {error}"))
}
