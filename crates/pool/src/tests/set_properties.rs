//! Properties that are set, and what commands do to snapshots: both are there after a crash. What
//! the properties of a volume mean to it.

use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{names, spec, volume};
use crate::properties::{POOL_PROPERTIES, VOLUME_PROPERTIES};
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::{Compression, DedupMode, Pool, VolumeError};

/// A value of each property that is not its default.
fn other_value(name: &str) -> &'static str {
    match name {
        "autoreplace" | "cache_writes" | "dedup" => "on",
        "autotrim" | "cache_dwpd" | "cache_size" | "outage_warning" => "off",
        "cache_policy" => "sieve",
        "comment" => "seen",
        "failmode" => "continue",
        "log_witness" => "second",
        "store_prices" => "put=1",
        "sync" => "always",
        "compression" => "lz4",
        "primarycache" | "reservation" => "none",
        "snapshot_every" => "daily=2",
        "scrub_every" => "30d",
        "iops_limit" | "weight" => "77",
        "device_timeout" | "log_timeout" | "txg_timeout" => "77",
        "bandwidth_limit" | "dedup_index_size" | "dirty_limit" | "footer_cache" | "scan_rate" => {
            "7M"
        }
        other => panic!("a value for {other} is missing here"),
    }
}

fn survives(kind: &'static str, property: &'static str, values: [&'static str; 2]) {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    for (round, value) in (0..).zip(values) {
        let mine = rack.clone();
        let first = Runtime::simulated(round);
        first.block_on(async move {
            let pool = match round {
                0 => {
                    let options = spec(Layout::Raid0, &["a"], &["l"]);
                    let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
                    let thin = VolumeSpec { sparse: property != "reservation", ..volume(8 << 20) };
                    pool.create_volume(&thin).await.unwrap();
                    pool
                }
                _ => {
                    let options = ImportOptions::default();
                    Pool::import(mine.host(1), &names(&["a", "l"]), "tank", &options).await.unwrap()
                }
            };
            match kind {
                "pool" => pool.set(property, value).await.unwrap(),
                _ => pool.set_volume("v", property, value).await.unwrap(),
            }
        });
        // A crash.
        drop(first);
        let mine = rack.clone();
        Runtime::simulated(round + 10).block_on(async move {
            let options = ImportOptions::default();
            let pool = Pool::import(mine.host(1), &names(&["a", "l"]), "tank", &options).await;
            let pool = pool.unwrap();
            let v = pool.get_volume("v").expect("it is there");
            let found = if kind == "pool" { pool.get() } else { v.properties.clone() };
            assert_eq!(found.get(property).map(String::as_str), Some(value), "{kind} {property}");
            if property == "reservation" {
                let reserved_bytes = if value == "none" { 0 } else { 8 << 20 };
                assert_eq!(v.reserved_bytes, reserved_bytes);
            }
        });
    }
}

#[test]
fn a_property_that_was_set_is_there_after_a_crash() {
    for property in POOL_PROPERTIES {
        survives("pool", property.name, [other_value(property.name), property.default]);
    }
    for property in VOLUME_PROPERTIES {
        survives("volume", property.name, [other_value(property.name), property.default]);
    }
}

/// Names of volumes, with their origins, and of snapshots, with their tags.
async fn listing(pool: &Pool) -> Vec<(String, Vec<String>)> {
    let volumes = pool.volumes().into_iter().map(|v| (v.name, v.origin.into_iter().collect()));
    let snapshots = pool.list_snapshots().await.into_iter().map(|s| (s.name, s.holds));
    volumes.chain(snapshots).collect()
}

async fn change_snapshots(pool: &Pool, step: u64) -> Result<(), VolumeError> {
    match step {
        0 => pool.create_volume(&volume(8 << 20)).await,
        1 => pool.take_snapshots(&names(&["v@a", "v@b"])).await,
        2 => pool.hold_snapshot("v@a", "tag", false).await,
        3 => pool.rename_snapshot("v@b", "c").await,
        4 => pool.hold_snapshot("v@a", "tag", true).await,
        5 => {
            let clone = CloneSpec { name: "w".into(), properties: Default::default() };
            pool.clone_snapshot("v@c", &clone).await
        }
        6 => pool.promote_volume("w").await,
        7 => pool.rename_volume("v", "x").await,
        8 => pool.destroy_snapshots(&names(&["w@a"])).await,
        _ => pool.destroy_volume("x", true).await,
    }
}

#[test]
fn what_a_command_on_snapshots_has_done_is_there_after_a_crash() {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let mut before = Vec::new();
    for step in 0..10 {
        let mine = rack.clone();
        let first = Runtime::simulated(step);
        let (found, after) = first.block_on(async move {
            let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
            let pool = match step {
                0 => Pool::create(mine.host(1), "tank", &spec(Layout::Raid0, &["a"], &["l"]))
                    .await
                    .unwrap(),
                _ => Pool::import(mine.host(1), &paths, "tank", &options).await.unwrap(),
            };
            let found = listing(&pool).await;
            change_snapshots(&pool, step).await.unwrap();
            (found, listing(&pool).await)
        });
        // A crash.
        drop(first);
        assert_eq!(found, before, "before step {step}");
        assert_ne!(after, before, "step {step} changed nothing");
        before = after;
    }
}

/// What a volume goes by.
#[derive(Clone, Debug, PartialEq)]
struct Ways {
    weight: u32,
    is_cached: bool,
    caches_writes: bool,
    dedup: DedupMode,
    compression: Compression,
    /// Its blocks may take less space than was promised to them.
    may_take_less: bool,
    /// Whether 64 reads of 1 MiB take more than 5 s in all.
    is_limited: bool,
}

const DEFAULTS: Ways = Ways {
    weight: 100,
    is_cached: true,
    caches_writes: false,
    dedup: DedupMode::Off,
    compression: Compression::Off,
    may_take_less: false,
    is_limited: false,
};

async fn ways(pool: &Rc<Pool>) -> Ways {
    let state = pool.volume_named("v").unwrap();
    let v = pool.open_volume("v").unwrap();
    let begun = rt::now();
    for _ in 0..64 {
        v.read(0, IoBuf::zeroed(1 << 20)).await.unwrap();
    }
    Ways {
        weight: state.demand(4096, false).weight,
        is_cached: state.is_cached.get(),
        caches_writes: state.caches_writes.get(),
        dedup: state.dedup.get(),
        compression: state.compression.get(),
        may_take_less: state.may_take_less.get(),
        is_limited: rt::now().since(begun) > Nanos::from_secs(5),
    }
}

#[test]
fn a_property_means_the_same_however_the_volume_got_it() {
    for (property, value, expected) in [
        ("weight", "77", Ways { weight: 77, ..DEFAULTS }),
        ("primarycache", "none", Ways { is_cached: false, ..DEFAULTS }),
        ("cache_writes", "on", Ways { caches_writes: true, ..DEFAULTS }),
        ("dedup", "on", Ways { dedup: DedupMode::On, may_take_less: true, ..DEFAULTS }),
        (
            "compression",
            "lz4",
            Ways { compression: Compression::Lz4, may_take_less: true, ..DEFAULTS },
        ),
        ("iops_limit", "5", Ways { is_limited: true, ..DEFAULTS }),
        ("bandwidth_limit", "7M", Ways { is_limited: true, ..DEFAULTS }),
    ] {
        Runtime::simulated(1).block_on(async move {
            let (rack, paths) = (Rack::new(&["a", "l"], 64 << 20), names(&["a", "l"]));
            let options = spec(Layout::Raid0, &["a"], &["l"]);
            let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
            let thin = VolumeSpec { sparse: true, ..volume(8 << 20) };
            pool.create_volume(&thin).await.unwrap();
            assert_eq!(ways(&pool).await, DEFAULTS);
            pool.set_volume("v", property, value).await.unwrap();
            assert_eq!(ways(&pool).await, expected, "{property} is set");
            pool.export().await.unwrap();
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
            assert_eq!(ways(&pool).await, expected, "{property} is imported");
            pool.destroy_volume("v", false).await.unwrap();
            let properties = [(property.to_owned(), value.to_owned())].into();
            pool.create_volume(&VolumeSpec { properties, ..thin }).await.unwrap();
            assert_eq!(ways(&pool).await, expected, "{property} is created");
            pool.export().await.unwrap();
        });
    }
}
