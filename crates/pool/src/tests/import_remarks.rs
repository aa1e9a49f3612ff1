//! What an import tells of the log that it took: damage that another side made good, a torn end,
//! frames that were left out, and a loss that was accepted.

use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, make, refused, until_crash};
use super::rack::Rack;
use super::{expect, names, stamp};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{ImportRemark, PoolEvent};

const BLOCK: usize = 4096;
const WRITES: u64 = 16;

/// A crash with writes of a block each in a mirrored log.
fn logged() -> Rc<Rack> {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        pool.sync().await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..WRITES {
            v.write(at << 12, stamp(BLOCK, 100 + at), true).await.unwrap();
        }
    });
    rack
}

/// Where a log device has the data of write `at`.
async fn place_of(rack: &Rc<Rack>, name: &str, at: u64) -> u64 {
    let held = rack.device(name).read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
    let wanted = stamp(BLOCK, 100 + at);
    let block = held.chunks(BLOCK).position(|block| *block == wanted[..]);
    (block.expect("the log has it") * BLOCK) as u64
}

async fn strike(rack: &Rc<Rack>, name: &str, at: u64) {
    let junk = IoBuf::copy_of(&[0xee; BLOCK]).freeze();
    let place = place_of(rack, name, at).await;
    rack.device(name).write(place, junk, true).await.unwrap();
}

/// Imports, checks the first `whole` writes, and returns what was told.
async fn told(rack: &Rc<Rack>, options: &ImportOptions, whole: u64) -> Vec<ImportRemark> {
    let pool = Pool::import(rack.host(1), &names(&ALL), "tank", options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..whole {
        expect(&v, at << 12, &stamp(BLOCK, 100 + at)).await;
    }
    let report = pool.stats().last_import;
    assert!(report.log_bytes >= whole * BLOCK as u64, "{report:?}");
    let events = pool.events();
    let is_told = |remark: &ImportRemark| events.contains(&PoolEvent::Import(remark.clone()));
    assert!(report.remarks.iter().all(is_told), "{events:?}");
    pool.export().await.unwrap();
    report.remarks
}

#[test]
fn damage_of_one_side_of_the_log_is_told_of_with_its_place() {
    Runtime::simulated(2).block_on(async {
        let rack = logged();
        let place = place_of(&rack, "l", 5).await;
        strike(&rack, "l", 5).await;
        let remarks = told(&rack, &ImportOptions::default(), WRITES).await;
        let [ImportRemark::SideDamaged { device, offset_bytes, .. }] = &remarks[..] else {
            panic!("{remarks:?}");
        };
        assert!(device == "l" && *offset_bytes <= place && place - offset_bytes < 65536);
    });
}

#[test]
fn a_frame_that_was_being_written_is_told_of() {
    Runtime::simulated(3).block_on(async {
        let rack = logged();
        for name in ["l", "m"] {
            strike(&rack, name, WRITES - 1).await;
        }
        let remarks = told(&rack, &ImportOptions::default(), WRITES - 1).await;
        assert!(matches!(remarks[..], [ImportRemark::TornTail { .. }]), "{remarks:?}");
    });
}

// Log marks on the data devices say which frames were durable.
#[test]
fn a_frame_that_a_log_mark_covers_is_a_loss_and_no_torn_end() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        pool.set("txg_timeout", "600").await.unwrap();
        pool.sync().await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..WRITES {
            v.write(at << 12, stamp(BLOCK, 100 + at), true).await.unwrap();
        }
        rt::sleep(Nanos::from_secs(60)).await;
    });
    Runtime::simulated(6).block_on(async move {
        for name in ["l", "m"] {
            strike(&rack, name, WRITES - 1).await;
        }
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, LogLoss(_));
    });
}

#[test]
fn a_loss_that_was_accepted_is_told_of() {
    Runtime::simulated(4).block_on(async {
        let rack = logged();
        for name in ["l", "m"] {
            strike(&rack, name, 5).await;
        }
        let options = ImportOptions { accept_log_loss: true, ..ImportOptions::default() };
        let remarks = told(&rack, &options, 5).await;
        let is_loss = |remark: &ImportRemark| matches!(remark, ImportRemark::LossAccepted { .. });
        assert_eq!(remarks.iter().filter(|remark| is_loss(remark)).count(), 1, "{remarks:?}");
    });
}

#[test]
fn frames_behind_newer_roots_that_are_left_out_are_told_of() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        let v = pool.open_volume("v").unwrap();
        for at in 0..WRITES {
            v.write(at << 12, stamp(BLOCK, 100 + at), true).await.unwrap();
            if at == 3 {
                pool.sync().await.unwrap();
            }
        }
    });
    Runtime::simulated(5).block_on(async move {
        let options = ImportOptions { rewind_groups: 1, ..ImportOptions::default() };
        let remarks = told(&rack, &options, 4).await;
        assert!(matches!(remarks[..], [ImportRemark::FramesLeftOut { .. }]), "{remarks:?}");
    });
}
