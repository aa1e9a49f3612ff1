//! Scrubs of a map journal that is mirrored: all of its rows, and none behind them.

use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_format::journal::{FrameHeader, FrameKind};
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, Nanos, SegmentId};

use super::copies::scrub;
use super::rack::{Rack, paced};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{PoolEvent, ScanPhase};

const BOTH: [&str; 2] = ["a", "b"];
const BLOCK: usize = 4096;

async fn made(rack: &Rc<Rack>) -> Rc<Pool> {
    let options = spec(Layout::Mirror, &BOTH, &[]);
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    pool
}

async fn write(pool: &Rc<Pool>, salt: u64) {
    let v = pool.open_volume("v").unwrap();
    v.write(salt % 100 * 8192, stamp(8192, salt), false).await.unwrap();
    pool.sync().await.unwrap();
}

fn has(pool: &Pool, is_one: impl Fn(&PoolEvent) -> bool) -> bool {
    pool.events().iter().any(is_one)
}

/// The open segment of the journal, where its column begins, and how many rows it has.
fn journal(pool: &Pool) -> (SegmentId, u64, u32) {
    let mut found = None;
    pool.store.table.for_each(|segment, info| {
        if info.kind == SegmentKind::Map && info.state == SegmentState::Open {
            found = Some((segment, info.rows));
        }
    });
    let (segment, rows) = found.expect("there is one");
    let geometry = pool.store.array.geometry_of(segment).unwrap();
    (segment, geometry.column_start_bytes(geometry.index_of(segment)), rows)
}

const ROW_BYTES: u64 = 16 << 10;

/// First bytes of the frames with content in these rows of a device, oldest first.
async fn frames(rack: &Rc<Rack>, name: &str, start_bytes: u64, rows: u32) -> Vec<u64> {
    let len_bytes = u64::from(rows) * ROW_BYTES;
    let buf = IoBuf::zeroed(len_bytes as usize);
    let held = rack.device(name).read(start_bytes, buf).await.unwrap();
    let blocks = (start_bytes..).step_by(BLOCK).zip(held.chunks(BLOCK));
    let found = blocks.filter_map(|(at, block)| Some((FrameHeader::decode(block).ok()?, at)));
    found.filter(|(header, _)| header.kind != FrameKind::Pad).map(|(_, at)| at).collect()
}

/// Overwrites a block with `byte`s. Returns what it held.
async fn strike(rack: &Rc<Rack>, name: &str, at: u64, byte: u8) -> IoBuf {
    let held = rack.device(name).read(at, IoBuf::zeroed(BLOCK)).await.unwrap();
    let junk = IoBuf::copy_of(&[byte; BLOCK]).freeze();
    rack.device(name).write(at, junk, false).await.unwrap();
    held
}

// What a device had before the pool is in the rows that were not written yet.
#[test]
fn a_scrub_of_the_journal_reads_all_of_its_rows_and_no_other() {
    // In small segments one step reads all rows, in large ones the second step the last ones.
    for (size, least_rows) in [(64 << 20, 4), (1 << 30, 20)] {
        Runtime::simulated(7230).block_on(async move {
            let rack = Rack::new(&BOTH, size);
            let pool = made(&rack).await;
            let mut salt = 0;
            let (mut start, mut rows) = (0, 0);
            while rows < least_rows || rows % 16 == 0 {
                salt += 1;
                write(&pool, salt).await;
                (_, start, rows) = journal(&pool);
                assert!(salt < 400, "{rows} rows");
            }
            let (segment, ..) = journal(&pool);
            let end = pool.store.array.geometry_of(segment).unwrap().rows();
            for row in rows..end.min(rows + 16) {
                strike(&rack, "b", start + u64::from(row) * ROW_BYTES, 0xdd).await;
            }
            assert_eq!(scrub(&pool).await, (0, 0));
            let is_damage = |event: &PoolEvent| matches!(event, PoolEvent::JournalDamaged { .. });
            assert!(!has(&pool, is_damage), "{:?}", pool.events());
            let all = frames(&rack, "a", start, rows).await;
            assert!(all[0] < start + ROW_BYTES, "a frame in the first row");
            for at in [all[0], *all.last().unwrap()] {
                let held = strike(&rack, "a", at, 0xee).await;
                assert_eq!(scrub(&pool).await, (BLOCK as u64, 0), "{at} of {start}");
                let now = rack.device("a").read(at, IoBuf::zeroed(BLOCK)).await.unwrap();
                assert!(now[..] == held[..]);
            }
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_frame_that_no_side_has_is_written_anew_from_memory() {
    Runtime::simulated(7231).block_on(async move {
        let rack = Rack::new(&BOTH, 64 << 20);
        let pool = made(&rack).await;
        for salt in [1, 2, 3] {
            write(&pool, salt).await;
        }
        let (_, start, rows) = journal(&pool);
        let at = *frames(&rack, "a", start, rows).await.last().unwrap();
        for (name, byte) in [("a", 0xee), ("b", 0xdd)] {
            strike(&rack, name, at, byte).await;
        }
        let (repaired_bytes, errors) = scrub(&pool).await;
        assert!(repaired_bytes > 0 && repaired_bytes % BLOCK as u64 == 0 && errors == 0);
        assert!(has(&pool, |event| matches!(event, PoolEvent::JournalDamaged { .. })));
        assert_eq!(scrub(&pool).await, (0, 0));
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&BOTH), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for salt in [1, 2, 3] {
            expect(&v, salt * 8192, &stamp(8192, salt)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

// The export writes the map anew as well, and ends what the scrub does about it.
#[test]
fn a_scrub_that_an_export_ends_while_it_repairs_the_journal_counts_no_error() {
    let mut met = 0;
    for millis in (0..40).step_by(4) {
        met += Runtime::simulated(7233).block_on(async move {
            let rack = Rack::new(&BOTH, 64 << 20);
            let pace = |_: &str, operation: Operation, _: u64| {
                (operation == Operation::Write).then_some(Nanos::from_millis(5))
            };
            let options = spec(Layout::Mirror, &BOTH, &[]);
            let opener = paced(rack.host(1), pace);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(4 << 20)).await.unwrap();
            for salt in [1, 2, 3] {
                write(&pool, salt).await;
            }
            let (_, start, rows) = journal(&pool);
            let at = *frames(&rack, "a", start, rows).await.last().unwrap();
            for (name, byte) in [("a", 0xee), ("b", 0xdd)] {
                strike(&rack, name, at, byte).await;
            }
            pool.scrub().await.unwrap();
            while !pool.scan.journal_damaged.get() {
                rt::sleep(Nanos::from_millis(1)).await;
            }
            rt::sleep(Nanos::from_millis(millis)).await;
            let was_running = pool.scan_status().unwrap().state == ScanPhase::InProgress;
            pool.export().await.unwrap();
            drop(pool);
            let import = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&BOTH), "tank", &import).await.unwrap();
            let ended = loop {
                let scan = pool.scan_status().unwrap();
                if scan.state != ScanPhase::InProgress {
                    break scan;
                }
                rt::sleep(Nanos::from_millis(100)).await;
            };
            assert_eq!((ended.state, ended.errors), (ScanPhase::Completed, 0), "{millis} ms");
            pool.export().await.unwrap();
            u32::from(was_running)
        });
    }
    assert!(met > 1, "{met} were still running");
}
