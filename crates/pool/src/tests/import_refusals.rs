//! What a refused import names: missing devices, devices out of use and those that cannot be
//! opened; and what an operator may accept beside what he must not lose.

use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, IoBuf, Operation};
use forebay_format::label::{
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS, label_offsets,
};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, forced, import, make, refused, until_crash, write};
use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::{Health, ScanPhase};
use crate::{OpenWith, Pool, Witness};

/// A crash of a pool of these devices.
fn crashed(layout: Layout, data: &'static [&str], log: &'static [&str]) -> Rc<Rack> {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, layout, data, log).await;
        pool.sync().await.unwrap();
    });
    rack
}

#[test]
fn an_import_without_roots_names_missing_and_rootless_devices() {
    let rack = crashed(Layout::Mirror, &["a", "b", "c"], &[]);
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["b"]);
        for name in ["a", "c"] {
            for area in label_offsets(SIZE) {
                let zeros = IoBuf::zeroed((SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES) as usize).freeze();
                let ring = area + SUPERBLOCK_OFFSET_BYTES;
                rack.device(name).write(ring, zeros, true).await.unwrap();
            }
        }
        let kind = refused(&rack, 1, &forced()).await;
        assert_kind!(kind, NoSuperblock(lacking)
            if lacking.missing == ["b"] && lacking.rootless == ["a", "c"]);
    });
}

// The log device is told of every member that leaves, and has no roots.
#[test]
fn a_log_that_knows_of_newer_roots_has_the_devices_named_that_may_have_them() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b", "c"], &["l"]).await;
        pool.sync().await.unwrap();
        mine.pull(&["b", "c"]);
        for salt in [2, 3, 4] {
            write(&pool, salt).await;
            pool.set("comment", &salt.to_string()).await.unwrap();
            pool.sync().await.unwrap();
        }
    });
    rack.put_back(&["b"]);
    rack.pull(&["a"]);
    Runtime::simulated(2).block_on(async move {
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, RootNotNewest { witness: Witness::Device(device), missing, .. }
            if device == "l" && *missing == ["a"]);
    });
}

#[test]
fn a_search_without_a_pool_names_the_devices_that_cannot_be_read() {
    let rack = crashed(Layout::Mirror, &["a", "b"], &[]);
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["l"]);
        let (paths, options) = (names(&ALL), ImportOptions::default());
        let found = Pool::import(rack.host(1), &paths, "other", &options).await;
        let kind = found.err().unwrap().kind;
        assert_kind!(kind, NotFound { unreadable, searched }
            if unreadable.len() == 1 && unreadable[0].device == "l" && searched.len() == ALL.len());
    });
}

#[test]
fn an_import_by_number_is_refused_with_the_name_of_the_pool() {
    let rack = crashed(Layout::Raid0, &["a", "b"], &[]);
    Runtime::simulated(2).block_on(async move {
        let found = Pool::discover(rack.host(1), &names(&ALL)).await;
        let guid = found[0].guid.to_string();
        rack.pull(&["b"]);
        let imported = Pool::import(rack.host(1), &names(&ALL), &guid, &forced()).await;
        assert_eq!(imported.err().unwrap().pool, "tank");
    });
}

#[test]
fn too_few_devices_are_counted_and_named_by_what_keeps_them_out() {
    let rack = Rack::new(&ALL, SIZE);
    Runtime::simulated(2).block_on(async move {
        let pool = make(&rack, Layout::Raidz1, &["a", "b", "c", "d"], &[]).await;
        pool.offline("b").await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        rack.pull(&["a"]);
        let kind = refused(&rack, 1, &forced()).await;
        assert_kind!(kind, TooFewDevices { devices, needed, usable, missing, out_of_use, .. }
            if (*devices, *needed, *usable) == (4, 3, 2)
                && *missing == ["a"]
                && *out_of_use == ["b"]);
    });
}

#[test]
fn a_log_device_that_is_there_and_cannot_be_opened_is_told_from_one_that_is_gone() {
    let rack = crashed(Layout::Mirror, &["a", "b"], &["l"]);
    for kind in [ErrorKind::Gone, ErrorKind::Os { errno: 2 }, ErrorKind::Os { errno: 13 }] {
        let is_there = kind == ErrorKind::Os { errno: 13 };
        let inner = rack.clone();
        let opener = OpenWith::new(1, move |name| match name {
            "l" => Err(DeviceError::new(name, Operation::Open, 0, 0, kind.clone())),
            _ => inner.open_here(name),
        });
        Runtime::simulated(2).block_on(async move {
            let options = ImportOptions::default();
            let imported = Pool::import(opener, &names(&ALL), "tank", &options).await;
            let kind = imported.err().unwrap().kind;
            assert_kind!(kind, LogMissing { missing, unopened, .. }
                if *missing == ["l"] && unopened.len() == usize::from(is_there));
        });
    }
}

#[test]
fn a_rewind_needs_no_majority_of_the_devices() {
    let rack = crashed(Layout::Mirror, &["a", "b"], &[]);
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["b"]);
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, HalfMissing { missing } if *missing == ["b"]);
        let back = ImportOptions { rewind_groups: 1, ..ImportOptions::default() };
        import(&rack, 1, &back).await.unwrap().export().await.unwrap();
    });
}

#[test]
fn a_log_side_that_is_here_stays_in_use_when_the_loss_of_another_is_accepted() {
    let rack = crashed(Layout::Mirror, &["a", "b"], &["l", "m"]);
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["l"]);
        let options = ImportOptions { accept_log_loss: true, ..ImportOptions::default() };
        let pool = import(&rack, 1, &options).await.unwrap();
        let sides = pool.status().logs.remove(0).children;
        assert_eq!(sides[1].state, Health::Online, "{sides:?}");
        assert_ne!(sides[0].state, Health::Online, "{sides:?}");
        let m = pool.log_rings().remove(0).sides.remove(0).device;
        assert_eq!(m.name(), "m");
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_without_the_source_of_a_replacement_is_refused() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let options = spec(Layout::Raid0, &["a", "b"], &["l"]);
        let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(32 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..24 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.replace("a", Some("d"), false).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        pool.sync().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["a"]);
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, SourcesMissing { missing, behind, .. }
            if *missing == ["a"] && *behind == ["d"]);
        // An operator gives up what the replacement lacks, and the blocks whose checksums it lacks.
        let pool = import(&rack, 1, &forced()).await.unwrap();
        assert!(pool.status().scan.unwrap().state == ScanPhase::InProgress);
        let lost = lost_blocks(&pool, 0).await;
        assert!((LOOKS / 3..LOOKS).contains(&lost), "{lost}");
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 99), true).await.unwrap();
        pool.export().await.unwrap();
        // Nothing more is asked of the operator, and nothing more is lost.
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        super::expect(&pool.open_volume("v").unwrap(), 0, &stamp(1 << 20, 99)).await;
        let still = lost_blocks(&pool, 256).await;
        assert!((lost - 256 / STEP..=lost).contains(&still), "{lost}, {still}");
        pool.set("scan_rate", "auto").await.unwrap();
        while pool.status().scan.unwrap().state != ScanPhase::Completed {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        let status = pool.status();
        assert!(status.lost_count > 0 && status.scan.unwrap().errors > 0);
        let names: Vec<_> =
            status.groups[0].children.iter().map(|child| child.name.clone()).collect();
        assert_eq!(names, ["d", "b"], "the replacement has taken its place");
        pool.export().await.unwrap();
    });
}

/// Blocks of what [`a_pool_without_the_source_of_a_replacement_is_refused`] writes.
const BLOCKS: u64 = 24 * 256;
/// Every how many of them is read, and how many these are.
const STEP: usize = 16;
const LOOKS: usize = BLOCKS as usize / STEP;

/// How many of these cannot be read, from block `first` on. All others are as they were written.
async fn lost_blocks(pool: &Rc<Pool>, first: u64) -> usize {
    let v = pool.open_volume("v").unwrap();
    let mut lost = 0;
    for block in (first..BLOCKS).step_by(STEP) {
        let within = (block % 256 * 4096) as usize;
        match v.read(block * 4096, IoBuf::zeroed(4096)).await {
            Ok(found) => {
                let written = stamp(1 << 20, block / 256);
                assert_eq!(found[..], written[within..within + 4096], "block {block}");
            }
            Err(_) => lost += 1,
        }
    }
    lost
}
