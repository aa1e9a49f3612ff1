/// Asserts that an import was refused for this reason.
macro_rules! assert_kind {
    ($kind:expr, $variant:ident $($rest:tt)*) => {{
        let kind = &$kind;
        assert!(matches!(kind, crate::ImportErrorKind::$variant $($rest)*), "{kind:?}");
    }};
}

mod after_snapshots;
mod backrefs;
mod beside_commands;
mod beside_roots;
mod broken_streams;
mod cache;
mod cache_adds;
mod cache_devices;
mod cache_misses;
mod cache_models;
mod cache_parts;
mod cache_sizes;
mod cache_warmth;
mod cancels;
mod checkpoints;
mod cleaned_segments;
mod closing;
mod commit_order;
mod commit_steps;
mod compress_ratios;
pub(crate) mod compression;
mod copies;
mod crash_points;
mod creations;
mod cut_attaches;
mod cut_imports;
mod dedup;
mod device_refusals;
mod device_sizes;
mod devices;
mod discoveries;
mod divergence;
mod due_scrubs;
mod durable_holes;
mod durable_writes;
mod edges;
mod errors;
mod figures;
mod figures_after_crashes;
mod first_writes;
mod full_configurations;
mod full_transfers;
mod groups;
mod heartbeats;
mod holes;
mod import_refusals;
mod import_remarks;
pub(crate) mod imports;
mod journal_damage;
mod journal_scrubs;
mod late_commands;
mod left_sides;
mod leftovers;
mod log_marks;
mod log_restarts;
mod log_sides;
mod many_snapshots;
mod map_memory;
mod media;
mod mirrored_memory;
mod multihost;
mod named_devices;
mod needed_labels;
mod object_stores;
mod old_groups;
mod openings;
mod parts_of_blocks;
mod plain_reads;
mod polls;
mod promotions;
mod racing_merges;
pub(crate) mod rack;
mod received_parts;
mod repacking;
mod repairs;
mod reports;
mod reservations;
mod resilvers;
mod resumed_owners;
mod resumes;
mod returned_devices;
mod rewinds;
mod rollbacks;
mod scattered;
mod senders;
mod set_properties;
mod snapshot_commands;
mod snapshot_room;
mod snapshots;
mod space_accounts;
mod spares;
mod stored_streams;
mod suspended_commands;
mod takeovers;
mod transfers;
mod turns;
mod volume_commands;
mod volume_rollbacks;
mod waiting_requests;
mod wide_streams;
mod witnesses;

use std::collections::BTreeMap;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::{Layout, SegmentId};

use self::rack::memory;
use crate::Pool;
use crate::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use crate::status::ScanPhase;

pub(crate) fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|n| (*n).to_owned()).collect()
}

pub(crate) fn spec(layout: Layout, data: &[&str], log: &[&str]) -> PoolSpec {
    PoolSpec {
        groups: vec![GroupSpec { layout, devices: names(data) }],
        logs: if log.is_empty() { vec![] } else { vec![LogSpec { devices: names(log) }] },
        ..PoolSpec::default()
    }
}

pub(crate) fn volume(size_bytes: u64) -> VolumeSpec {
    VolumeSpec { name: "v".into(), size_bytes, sparse: false, properties: BTreeMap::new() }
}

pub(crate) fn stamp(len: usize, salt: u64) -> IoBytes {
    let mut buf = IoBuf::zeroed(len);
    for (i, chunk) in buf.chunks_mut(8).enumerate() {
        let word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    buf.freeze()
}

pub(crate) async fn expect(device: &Device, offset: u64, data: &[u8]) {
    let got = device.read(offset, IoBuf::zeroed(data.len())).await.unwrap();
    assert!(got[..] == *data, "offset {offset}");
}

/// Takes free segments until so many are left.
pub(crate) fn leave_free(pool: &Pool, count: u32) {
    let table = &pool.store.table;
    let all = (0..table.count()).map(SegmentId);
    let free: Vec<SegmentId> = all.filter(|segment| table.is_free(*segment)).collect();
    let taken = free.len() - count as usize;
    assert!(free.into_iter().take(taken).all(|segment| table.hold(segment)));
}

#[test]
fn a_pool_keeps_what_was_written_over_an_export() {
    for (layout, data, log) in [
        (Layout::Raid0, &["a"][..], &[][..]),
        (Layout::Raidz1, &["a", "b", "c", "d"][..], &["l", "m"][..]),
        (Layout::Mirror, &["a", "b"][..], &["l"][..]),
    ] {
        Runtime::simulated(1).block_on(async move {
            let shelf = memory(&["a", "b", "c", "d", "l", "m"], 64 << 20);
            let pool = Pool::create(shelf.clone(), "tank", &spec(layout, data, log)).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(8192, 1), false).await.unwrap();
            v.write(1 << 20, stamp(65536, 2), true).await.unwrap();
            v.write(1024, stamp(512, 3), false).await.unwrap();
            v.discard((1 << 20) + 4096, 8192, false).await.unwrap();
            v.flush().await.unwrap();
            let check = async |v: &Device| {
                let mut first = stamp(8192, 1).to_vec();
                first[1024..1536].copy_from_slice(&stamp(512, 3));
                expect(v, 0, &first).await;
                let mut second = stamp(65536, 2).to_vec();
                second[4096..12288].fill(0);
                expect(v, 1 << 20, &second).await;
                expect(v, 8192, &[0; 4096]).await;
            };
            check(&v).await;
            pool.sync().await.unwrap();
            check(&v).await;
            v.write(4 << 20, stamp(4096, 9), false).await.unwrap();
            pool.export().await.unwrap();
            drop((v, pool));
            let paths = names(&["a", "b", "c", "d", "l", "m"]);
            let found = Pool::discover(shelf.clone(), &paths).await;
            assert_eq!((found.len(), found[0].name.as_str()), (1, "tank"));
            let options = ImportOptions::default();
            let pool = Pool::import(shelf.clone(), &paths, "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            check(&v).await;
            expect(&v, 4 << 20, &stamp(4096, 9)).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_dropped_pool_comes_back_from_its_log() {
    let shelf = memory(&["a", "b", "c", "l", "m"], 64 << 20);
    let options = spec(Layout::Raidz1, &["a", "b", "c"], &["l", "m"]);
    let first = Runtime::simulated(2);
    let kept = shelf.clone();
    first.block_on(async move {
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for i in 0..200u64 {
            v.write(i * 4096, stamp(4096, i), i % 3 == 0).await.unwrap();
        }
        v.flush().await.unwrap();
    });
    drop(first);
    Runtime::simulated(3).block_on(async move {
        let paths = names(&["a", "b", "c", "l", "m"]);
        let pool = Pool::import(kept, &paths, "tank", &ImportOptions::default()).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for i in 0..200u64 {
            expect(&v, i * 4096, &stamp(4096, i)).await;
        }
        assert!(pool.stats().last_import.log_records > 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn endless_overwrites_work_on_the_smallest_pool() {
    overwrite_since_creation(64 << 20, None, 4);
}

#[test]
fn endless_overwrites_work_with_six_streams_and_groups_as_large_as_the_spare_room() {
    overwrite_since_creation(160 << 20, Some("6M"), 8);
}

/// Fills a pool of one device to its last block, then overwrites it evenly with `times` its size.
/// Every write must be taken, and the newest content must be there.
fn overwrite_since_creation(device_bytes: u64, dirty_limit: Option<&str>, times: u64) {
    let dirty_limit = dirty_limit.map(str::to_owned);
    Runtime::simulated(4).block_on(async move {
        let shelf = memory(&["a"], device_bytes);
        let mut spec = spec(Layout::Raid0, &["a"], &[]);
        spec.properties.extend(dirty_limit.map(|limit| ("dirty_limit".to_owned(), limit)));
        let pool = Pool::create(shelf, "tank", &spec).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let blocks = size / 4096;
        let mut newest = vec![0u64; blocks as usize];
        for i in 0..blocks * times {
            let block = if i < blocks { i } else { rt::random_below(blocks) };
            newest[block as usize] = i;
            v.write(block * 4096, stamp(4096, i), i % 100 == 0).await.unwrap();
        }
        v.flush().await.unwrap();
        for (block, i) in newest.into_iter().enumerate() {
            expect(&v, block as u64 * 4096, &stamp(4096, i)).await;
        }
        let stats = pool.stats();
        assert!(stats.segments.cleaned > 0, "{stats:?}");
        pool.export().await.unwrap();
    });
}

// The checksums that a footer covers are lost with it. That is no reason to copy one side over the
// other.
#[test]
fn a_lost_footer_costs_nothing_that_others_still_have() {
    Runtime::simulated(5).block_on(async {
        let shelf = memory(&["a", "b"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for i in 0..32u64 {
            v.write(i << 16, stamp(65536, i), false).await.unwrap();
        }
        v.flush().await.unwrap();
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        // Copies are alike, so blocks are found by content.
        let (a, b) = (shelf.open("a").await.unwrap(), shelf.open("b").await.unwrap());
        let mut at = 0;
        let wanted = stamp(65536, 20);
        for offset in (5 << 20..10 << 20).step_by(4096) {
            let held = a.read(offset, IoBuf::zeroed(4096)).await.unwrap();
            if held[..] == wanted[..4096] {
                at = offset;
            }
        }
        assert!(at > 0);
        const COLUMN: u64 = 256 << 10;
        let end = at.next_multiple_of(COLUMN);
        assert!(end - at > 4096, "the block is not the footer");
        let good = b.read(at, IoBuf::zeroed(4096)).await.unwrap();
        let rot = IoBuf::copy_of(&[0xee; 4096]).freeze();
        a.write(at, rot.clone(), false).await.unwrap();
        let footer = b.read(end - 4096, IoBuf::zeroed(4096)).await.unwrap();
        a.write(end - 4096, rot.clone(), false).await.unwrap();
        b.write(end - 4096, rot, false).await.unwrap();
        let scrub = async || {
            pool.scrub().await.unwrap();
            loop {
                rt::sleep(forebay_units::Nanos::from_millis(100)).await;
                let scan = pool.status().scan.unwrap();
                if scan.state != ScanPhase::InProgress {
                    return scan;
                }
            }
        };
        let found = scrub().await;
        assert!(found.errors > 0, "{found:?}");
        assert!(pool.status().lost_count > 0);
        let held = b.read(at, IoBuf::zeroed(4096)).await.unwrap();
        assert!(held[..] == good[..], "the good copy was written over");
        assert!(v.read(20 << 16, IoBuf::zeroed(4096)).await.is_err());
        // When the footer comes back, everything else does too.
        b.write(end - 4096, IoBuf::copy_of(&footer).freeze(), false).await.unwrap();
        let found = scrub().await;
        assert_eq!(found.errors, 0, "{found:?}");
        assert!(found.repaired_bytes >= 8192, "{found:?}");
        for i in 0..32u64 {
            expect(&v, i << 16, &stamp(65536, i)).await;
        }
        assert_eq!(scrub().await.repaired_bytes, 0);
        pool.export().await.unwrap();
    });
}
