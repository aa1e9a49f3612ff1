//! Pools without redundancy, with bad blocks in their map journal.

use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_format::journal::{FrameHeader, FrameKind};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::ScanPhase;

pub(super) const SIZE: u64 = 64 << 20;
pub(super) const ALL: [&str; 3] = ["a", "b", "c"];
const UNIT: usize = 16 << 10;
pub(super) const BLOCK: usize = 4096;
/// So few blocks that no checkpoint begins: all of the journal is in use.
const GROUPS: u64 = 2;

/// Content of the volume: scattered blocks, one of each group overwritten by the next group.
fn content() -> Vec<u8> {
    let mut all = vec![0; 4 << 20];
    for group in 0..GROUPS {
        for (at, data) in writes(group) {
            all[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
    }
    all
}

fn writes(group: u64) -> Vec<(u64, Vec<u8>)> {
    let at = |write: u64| (group * 29 + write * 61) % 1000 * BLOCK as u64;
    (0..40).map(|write| (at(write), stamp(2 * BLOCK, group * 100 + write).to_vec())).collect()
}

async fn filled(rack: &Rc<Rack>, data: &[&str]) -> Rc<Pool> {
    let pool = Pool::create(rack.host(1), "tank", &spec(Layout::Raid0, data, &[])).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for group in 0..GROUPS {
        for (at, data) in writes(group) {
            v.write(at, IoBuf::copy_of(&data).freeze(), false).await.unwrap();
        }
        pool.sync().await.unwrap();
    }
    pool
}

pub(super) async fn image(device: &Device) -> IoBuf {
    device.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap()
}

/// Blocks of journal frames with content on a device, by runs within one unit. Padding behind a
/// jump is never read.
fn pieces(image: &[u8], jumps: &[u64]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, block) in image.chunks(BLOCK).enumerate() {
        let Ok(header) = FrameHeader::decode(block) else { continue };
        assert!(header.copied, "{header:?}");
        if header.kind == FrameKind::Pad && jumps.contains(&header.link) {
            continue;
        }
        let blocks = if header.kind == FrameKind::Pad { 1 } else { header.blocks() as usize };
        let end = (at * BLOCK + blocks * BLOCK).min((at * BLOCK / UNIT + 1) * UNIT);
        found.push((at * BLOCK, end));
    }
    found
}

/// The checksums of jumps on a device.
fn jumps(image: &[u8]) -> impl Iterator<Item = u64> {
    let headers = image.chunks(BLOCK).filter_map(|block| FrameHeader::decode(block).ok());
    headers.filter(|header| header.kind == FrameKind::Jump).map(|header| header.sum)
}

pub(super) async fn scrub(pool: &Rc<Pool>) -> (u64, u64) {
    pool.scrub().await.unwrap();
    loop {
        let scan = pool.status().scan.expect("one was begun");
        if scan.state == ScanPhase::Completed {
            return (scan.repaired_bytes, scan.errors);
        }
        rt::sleep(Nanos::from_secs(1)).await;
    }
}

#[test]
fn every_bad_place_in_the_map_journal_is_repaired_without_parity() {
    for data in [&ALL[..1], &ALL[..2], &ALL[..]] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(&ALL, SIZE);
            filled(&rack, data).await.export().await.unwrap();
            let mut images = Vec::new();
            for name in data {
                images.push(image(&rack.device(name)).await);
            }
            let ends: Vec<u64> = images.iter().flat_map(|image| jumps(image)).collect();
            let mut struck = 0u64;
            for (number, name) in data.iter().enumerate() {
                let device = rack.device(name);
                for (from, end) in pieces(&images[number], &ends) {
                    for (name, image) in data.iter().zip(&images) {
                        let whole = IoBuf::copy_of(image).freeze();
                        rack.device(name).write(0, whole, false).await.unwrap();
                    }
                    let unreadable = struck % 2 == 0;
                    for at in (from..end).step_by(BLOCK) {
                        let junk = IoBuf::copy_of(&[0xee; BLOCK]).freeze();
                        device.write(at as u64, junk, false).await.unwrap();
                        if unreadable {
                            let bad = ((*name).to_owned(), at as u64);
                            rack.switches.bad_blocks.borrow_mut().insert(bad);
                        }
                    }
                    struck += 1;
                    let options = ImportOptions::default();
                    let pool = Pool::import(rack.host(1), &names(data), "tank", &options).await;
                    let pool = pool.unwrap_or_else(|e| panic!("{name} {from}: {e}"));
                    expect(&pool.open_volume("v").unwrap(), 0, &content()).await;
                    // The scrub reads the copy that the import did not need.
                    assert_eq!(scrub(&pool).await.1, 0);
                    assert!(rack.switches.bad_blocks.borrow().is_empty(), "{name} {from}");
                    let now = device.read(from as u64, IoBuf::zeroed(end - from)).await.unwrap();
                    assert!(now[..] == images[number][from..end], "{name} {from}");
                    assert_eq!(scrub(&pool).await, (0, 0), "{name} {from}");
                    pool.export().await.unwrap();
                }
            }
            assert!(struck >= 2 * 3 * GROUPS, "{struck}: changes, records, padding, all twice");
        });
    }
}

#[test]
fn a_scrub_repairs_a_journal_in_use_and_writes_the_map_anew_when_both_places_are_bad() {
    Runtime::simulated(2).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let pool = filled(&rack, &ALL[..1]).await;
        pool.sync().await.unwrap();
        assert_eq!(scrub(&pool).await, (0, 0));
        let device = rack.device("a");
        let held = image(&device).await;
        let all = pieces(&held, &jumps(&held).collect::<Vec<u64>>());
        let junk = || IoBuf::copy_of(&[0xee; BLOCK]).freeze();
        device.write(all[3].0 as u64, junk(), false).await.unwrap();
        let (repaired, errors) = scrub(&pool).await;
        assert_eq!((repaired, errors), (BLOCK as u64, 0));
        assert_eq!(scrub(&pool).await, (0, 0));
        // A block and its copy are bad: memory has the map, and other segments take it.
        let first = image(&device).await[all[3].0..all[3].0 + BLOCK].to_vec();
        let both = all.iter().filter(|(at, _)| {
            // Read again: nothing has changed.
            *at == all[3].0 || all[3].0 + (128 << 10) == *at
        });
        let mut places = 0;
        for (at, _) in both {
            let held = device.read(*at as u64, IoBuf::zeroed(BLOCK)).await.unwrap();
            assert!(held[..] == first[..]);
            device.write(*at as u64, junk(), false).await.unwrap();
            places += 1;
        }
        assert_eq!(places, 2, "a copy half a column on");
        let (repaired, errors) = scrub(&pool).await;
        assert!(repaired > 0 && errors == 0);
        assert_eq!(scrub(&pool).await, (0, 0));
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
        expect(&pool.open_volume("v").unwrap(), 0, &content()).await;
        pool.export().await.unwrap();
    });
}
