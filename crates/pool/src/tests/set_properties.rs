//! Properties that are set: they hold after a crash, whatever the command that set them waited for.

use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{names, spec, volume};
use crate::Pool;
use crate::properties::{POOL_PROPERTIES, VOLUME_PROPERTIES};
use crate::spec::{ImportOptions, VolumeSpec};

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
