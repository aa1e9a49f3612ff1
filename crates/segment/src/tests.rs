mod copies;
mod filling;
mod footer;
mod journal;
mod journal_limits;
mod placement;
mod reading;
mod waits;

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use forebay_array::{Array, ArrayEvent, GroupGeometry, GroupSpec};
use forebay_device::{Device, IoBuf, IoBytes, MemoryDevice, Operation};
use forebay_format::checksum::block_sum;
use forebay_format::footer::{FooterPlace, Run, footer_blocks};
use forebay_format::journal::{FrameKind, SegmentRecord};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{
    BLOCK_LEN, BlockAddr, CommitId, DeviceId, Layout, Lba, Nanos, SegmentId, VolumeId,
};

use crate::pages::Pages;
use crate::{
    BlockFault, Choice, Classes, DataWriter, InFlight, JournalFault, JournalReader, JournalWriter,
    Reader, SegmentError, SegmentKind, SegmentState, SegmentTable, Victims, Wanted, WriteCounts,
    frame_room,
};

const POOL: u64 = 77;
const SEGMENTS: u32 = 100;

struct Bench {
    devices: Vec<Device>,
    array: Rc<Array>,
    table: Rc<SegmentTable>,
    in_flight: Rc<InFlight>,
}

fn bench(layout: Layout, members: usize) -> Bench {
    bench_of(layout, members, 256 << 10, SEGMENTS)
}

fn bench_of(layout: Layout, members: usize, column_bytes: u64, segments: u32) -> Bench {
    bench_on(layout, members, (column_bytes, segments), |device| device)
}

/// As [`bench_of`], with each device wrapped by `seen`.
fn bench_on(
    layout: Layout,
    members: usize,
    (column_bytes, segments): (u64, u32),
    seen: impl Fn(Device) -> Device,
) -> Bench {
    bench_with(layout, members, (16 << 10, column_bytes, segments), seen)
}

/// As [`bench_on`], with units of `unit_bytes`.
fn bench_with(
    layout: Layout,
    members: usize,
    (unit_bytes, column_bytes, segments): (u64, u64, u32),
    seen: impl Fn(Device) -> Device,
) -> Bench {
    let geometry = GroupGeometry {
        layout,
        members,
        unit_bytes,
        column_bytes,
        data_start_bytes: 0,
        first_segment: 0,
        segments,
    };
    let devices: Vec<Device> = (0..members)
        .map(|i| {
            let size_bytes = u64::from(segments) * column_bytes;
            seen(Rc::new(MemoryDevice::new(&format!("d{i}"), size_bytes)))
        })
        .collect();
    let members = devices.iter().enumerate().map(|(i, d)| (DeviceId(i as u32), d.clone()));
    let array = Array::new(vec![GroupSpec::healthy(geometry, members.collect())]).unwrap();
    let table = SegmentTable::new();
    let blocks = geometry.blocks_per_segment();
    table.add_group(segments, blocks - footer_blocks(blocks));
    Bench { devices, array, table, in_flight: InFlight::new(8 << 20) }
}

fn is_checksum_fault(error: &SegmentError) -> bool {
    matches!(error, SegmentError::Block { fault: BlockFault::Checksum, .. })
}

/// Repairs since the last call.
fn repairs(array: &Array) -> usize {
    let events = array.events().take();
    events.iter().filter(|event| matches!(event, ArrayEvent::Repaired { .. })).count()
}

fn bytes(block: &[u8]) -> IoBytes {
    IoBuf::copy_of(block).freeze()
}

fn block(stamp: u64) -> Vec<u8> {
    let word = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_LEN).collect()
}

#[test]
fn journal_reads_back_across_jumps_padding_and_resume() {
    for (layout, members) in [(Layout::Raid0, 1), (Layout::Raidz1, 3), (Layout::Mirror, 2)] {
        Runtime::simulated(5).block_on(async move {
            let b = bench(layout, members);
            let new = || {
                let (array, table) = (b.array.clone(), b.table.clone());
                JournalWriter::new(array, table, b.in_flight.clone(), POOL)
            };
            let mut writer = new();
            let commit = CommitId(3);
            let start = writer.open(commit).unwrap();
            let payload = |i: usize| vec![i as u8; 1 + i * 7919 % 100_000];
            for i in 0..60 {
                writer.append(FrameKind::Delta, &payload(i), commit).await.unwrap();
                if i % 7 == 0 {
                    writer.finish_rows(commit).await.unwrap();
                }
            }
            writer.finish_rows(commit).await.unwrap();
            b.in_flight.drain().await.unwrap();
            let end = writer.position().unwrap();
            // After a crash, another writer continues at the root's end of the journal.
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            while reader.next().await.unwrap().is_some() {}
            let mut writer = new();
            writer.resume(end, reader.segments().to_vec(), reader.is_end_doubled());
            for i in 60..90 {
                writer.append(FrameKind::Leaves, &payload(i), commit).await.unwrap();
            }
            writer.finish_rows(commit).await.unwrap();
            // begin_segment continues in a new segment.
            let before = writer.position().unwrap();
            writer.begin_segment(commit).await.unwrap();
            let fresh = writer.position().unwrap();
            assert_ne!(fresh.addr.segment(), before.addr.segment());
            assert_eq!(fresh.addr.block(), 0);
            writer.begin_segment(commit).await.unwrap();
            assert_eq!(writer.position(), Some(fresh), "an empty segment is kept");
            for i in 90..95 {
                writer.append(FrameKind::Leaves, &payload(i), commit).await.unwrap();
            }
            writer.finish_rows(commit).await.unwrap();
            b.in_flight.drain().await.unwrap();
            let end = writer.position().unwrap();
            assert!(writer.segments() > 3, "no jump was tried");

            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            for i in 0..95 {
                let frame = reader.next().await.unwrap().expect("more frames");
                let expected = if i < 60 { FrameKind::Delta } else { FrameKind::Leaves };
                assert_eq!(frame.kind(), expected);
                assert!(frame.payload() == payload(i), "frame {i}");
            }
            assert!(reader.next().await.unwrap().is_none());
        });
    }
}

#[test]
fn journal_corruption_is_repaired_from_parity_or_copy_else_refused() {
    let cases = [
        (Layout::Raidz1, 3, true),
        (Layout::Raid0, 1, true),
        (Layout::Raid0, 2, true),
        (Layout::Raid0, 2, false),
    ];
    for (layout, members, good) in cases {
        Runtime::simulated(6).block_on(async move {
            let b = bench(layout, members);
            let (array, table) = (b.array.clone(), b.table.clone());
            let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
            let start = writer.open(CommitId(1)).unwrap();
            writer.append(FrameKind::Delta, &[7; 50_000], CommitId(1)).await.unwrap();
            writer.finish_rows(CommitId(1)).await.unwrap();
            b.in_flight.drain().await.unwrap();
            let end = writer.position().unwrap();
            let rotten = IoBuf::copy_of(&[0xee; 4096]).freeze();
            b.devices[0].write(4096, rotten.clone(), false).await.unwrap();
            if !good {
                // Also corrupt the copy: on the next device, half a column further.
                b.devices[1].write((128 << 10) + 4096, rotten, false).await.unwrap();
            }
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            match (reader.next().await, good) {
                (Ok(Some(frame)), true) => {
                    assert!(frame.payload() == [7; 50_000]);
                    assert!(!reader.take_repairs().is_empty());
                }
                (Err(SegmentError::Journal { seq: 1, fault, .. }), false) => {
                    assert!(matches!(fault, JournalFault::Unrepairable(_)), "{fault}");
                }
                (other, _) => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn reads_verify_sums_from_the_map_or_the_footer() {
    Runtime::simulated(7).block_on(async {
        let b = bench(Layout::Raidz1, 3);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        let volume = VolumeId(4);
        let mut places = Vec::new();
        for i in 0..300u64 {
            let data = block(i);
            let put = writer.append(volume, Lba(i), bytes(&data), CommitId(1), 9, 0).await.unwrap();
            assert_eq!(put.1, block_sum(POOL, volume, Lba(i), &data));
            places.push(put);
        }
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        let runs = writer.take_long_runs();
        let whole = b.table.data_blocks(SegmentId(0));
        assert_eq!(runs[0], Run { volume, lba: Lba(0), blocks: whole });
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        for (i, (addr, sum)) in places.iter().enumerate() {
            // The first segments are full and have footers; the last one has none.
            let footer = b.table.get(addr.segment()).footer;
            let sums = vec![if footer && i % 2 == 0 { None } else { Some(*sum) }];
            let wanted = Wanted { addr: *addr, volume, lba: Lba(i as u64), blocks: 1, sums };
            assert!(reader.read(&wanted).await.unwrap()[..] == block(i as u64)[..]);
        }
        // A wrong block is repaired from parity; a block of another LBA is refused.
        let (addr, sum) = places[0];
        let rotten = IoBuf::copy_of(&[1; 4096]).freeze();
        for device in &b.devices[..1] {
            device.write(0, rotten.clone(), false).await.unwrap();
        }
        let sums = vec![Some(sum)];
        let wanted = Wanted { addr, volume, lba: Lba(0), blocks: 1, sums };
        assert!(reader.read(&wanted).await.unwrap()[..] == block(0)[..]);
        let misplaced = Wanted { lba: Lba(1), ..wanted };
        let unread = reader.read_each(&misplaced).await.unwrap_err();
        assert!(is_checksum_fault(&unread.error), "{}", unread.error);
    });
}

/// Notes how many pins segment 0 has whenever a device is read.
struct Pinned {
    table: OnceCell<Rc<SegmentTable>>,
    seen: RefCell<Vec<u32>>,
}

impl Script for Pinned {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        if let (Operation::Read, Some(table)) = (command.operation, self.table.get()) {
            self.seen.borrow_mut().push(table.get(SegmentId(0)).pins);
        }
        Box::pin(async { Decision::Run })
    }
}

// A block that is put right is written back. Nothing else may lie there by then.
#[test]
fn a_segment_is_not_reused_while_a_block_of_it_is_recovered() {
    Runtime::simulated(8).block_on(async {
        let pinned = Rc::new(Pinned { table: OnceCell::new(), seen: RefCell::default() });
        let probed = |device| -> Device { Probe::new(device, pinned.clone()) };
        let b = bench_on(Layout::Mirror, 2, (256 << 10, SEGMENTS), probed);
        let volume = VolumeId(4);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        let (addr, sum) =
            writer.append(volume, Lba(0), bytes(&block(0)), CommitId(1), 9, 0).await.unwrap();
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        b.devices[0].write(0, IoBuf::copy_of(&[1; BLOCK_LEN]).freeze(), false).await.unwrap();
        assert!(pinned.table.set(b.table.clone()).is_ok());
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let wanted = Wanted { addr, volume, lba: Lba(0), blocks: 1, sums: vec![Some(sum)] };
        while repairs(&b.array) == 0 {
            assert!(reader.read(&wanted).await.unwrap()[..] == block(0)[..]);
        }
        let seen = pinned.seen.take();
        assert!(seen.len() >= 2 && seen.iter().all(|pins| *pins == 1), "{seen:?}");
        assert_eq!(b.table.get(SegmentId(0)).pins, 0);
    });
}

// One read covers several pieces and the gaps between them. A wrong block affects only its own
// piece, and a wrong block in a gap affects none.
#[test]
fn pieces_of_one_read_are_verified_separately() {
    Runtime::simulated(11).block_on(async {
        let b = bench(Layout::Raidz1, 3);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        let volume = VolumeId(4);
        let mut places = Vec::new();
        for i in 0..300u64 {
            places.push(
                writer.append(volume, Lba(i), bytes(&block(i)), CommitId(1), 9, 0).await.unwrap(),
            );
        }
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        assert!(b.table.get(SegmentId(0)).footer);
        let wanted = |first: usize, blocks: u32, known: bool| {
            let sums = |i: usize| known.then_some(places[i].1);
            let sums = (first..first + blocks as usize).map(sums).collect();
            Wanted { addr: places[first].0, volume, lba: Lba(first as u64), blocks, sums }
        };
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let pieces =
            [wanted(2, 1, true), wanted(4, 5, false), wanted(9, 1, true), wanted(13, 9, false)];
        let check = async |bad: Option<usize>| {
            let wanted: Vec<&Wanted> = pieces.iter().collect();
            let together = reader.read_together(&wanted).await;
            assert_eq!(together.pieces().count(), pieces.len());
            for (index, (got, piece)) in together.pieces().zip(&pieces).enumerate() {
                if bad == Some(index) {
                    assert!(is_checksum_fault(&got.unwrap_err().error));
                    continue;
                }
                let right: Vec<u8> =
                    (0..u64::from(piece.blocks)).flat_map(|i| block(piece.lba.0 + i)).collect();
                assert!(got.unwrap() == &right[..], "piece {index}");
            }
        };
        check(None).await;
        assert_eq!(repairs(&b.array), 0);
        // A wrong block in a piece is repaired; one in a gap is not.
        let block_bytes = BLOCK_LEN as u64;
        let rotten = IoBuf::copy_of(&[1; BLOCK_LEN]).freeze();
        b.devices[0].write(2 * block_bytes, rotten.clone(), false).await.unwrap();
        b.devices[0].write(3 * block_bytes, rotten.clone(), false).await.unwrap();
        check(None).await;
        assert_eq!(repairs(&b.array), 1);
        // With wrong parity too, the piece fails alone.
        for device in [&b.devices[0], &b.devices[2]] {
            device.write(2 * block_bytes, rotten.clone(), false).await.unwrap();
        }
        check(Some(0)).await;
    });
}

#[test]
fn footer_pages_are_cached_by_use_within_the_budget() {
    let pages = Pages::new(4 * 4096);
    let place = |segment, birth| FooterPlace { pool: POOL, segment: SegmentId(segment), birth };
    let bytes = |stamp: u8| IoBuf::copy_of(&[stamp; 4096]).freeze();
    for segment in 0..4 {
        pages.keep(&place(segment, 1), 0, bytes(segment as u8));
    }
    // A reused segment has another footer.
    assert!(pages.get(&place(2, 2), 0).is_none());
    pages.keep(&place(2, 2), 0, bytes(22));
    assert!(pages.get(&place(2, 2), 0).unwrap()[..] == [22; 4096]);
    assert!(pages.get(&place(0, 1), 0).unwrap()[..] == [0; 4096]);
    for segment in 10..50 {
        pages.keep(&place(segment, 1), 3, bytes(segment as u8));
        assert_eq!(pages.bytes(), 4 * 4096);
        assert!(pages.get(&place(0, 1), 0).is_some(), "used in every turn");
    }
    assert!(pages.get(&place(1, 1), 0).is_none());
    assert!(pages.get(&place(49, 1), 0).is_none() && pages.get(&place(49, 1), 3).is_some());
}

#[test]
fn footer_page_is_repaired_and_a_stale_footer_refused() {
    Runtime::simulated(8).block_on(async {
        let b = bench(Layout::Raidz1, 3);
        let mut writer =
            DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0);
        let volume = VolumeId(4);
        for i in 0..300u64 {
            writer.append(volume, Lba(i), bytes(&block(i)), CommitId(1), 9, 0).await.unwrap();
        }
        writer.finish_rows(CommitId(1)).await;
        b.in_flight.drain().await.unwrap();
        let reader = || Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let segment = SegmentId(0);
        let footer = reader().footer(segment).await.unwrap();
        assert_eq!(
            (footer.segment, footer.birth, footer.sums[5]),
            (segment, 1, { block_sum(POOL, volume, Lba(5), &block(5)) })
        );
        // The footer's column is corrupted on one device: block and footer are still readable.
        let rotten = IoBuf::copy_of(&[0xee; 128 << 10]).freeze();
        b.devices[1].write(128 << 10, rotten, false).await.unwrap();
        let addr = BlockAddr::new(segment, 5);
        let wanted = Wanted { addr, volume, lba: Lba(5), blocks: 1, sums: vec![None] };
        let first = reader();
        assert!(first.read(&wanted).await.unwrap()[..] == block(5)[..]);
        assert!(first.pages_bytes() == 4096);
        assert_eq!(reader().footer(segment).await.unwrap(), footer);
        // According to this table the segment was filled later, so the footer is stale.
        let table = SegmentTable::new();
        table.add_group(40, b.table.data_blocks(segment));
        table.allocate(SegmentKind::Data, 0, CommitId(7), 1, 0).unwrap();
        let later = Reader::new(b.array.clone(), table, POOL, 1 << 20);
        let error = later.footer(segment).await.unwrap_err();
        assert!(matches!(error, SegmentError::Footer { segment: SegmentId(0), .. }), "{error}");
        assert!(later.read(&wanted).await.is_err());
    });
}

// A torn write over a reused segment leaves the old footer: whole, and of the right pool and
// segment, but with the sums of other blocks. The other side of the mirror has the right data.
#[test]
fn torn_segment_is_not_verified_by_its_old_footer() {
    Runtime::simulated(9).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (segment, volume) = (SegmentId(0), VolumeId(4));
        let mut table = SegmentTable::new();
        const COLUMN: usize = 256 << 10;
        const TORN_AT: usize = 3 * BLOCK_LEN;
        let torn = b.devices[1].clone();
        // Both fillings hold the same blocks of the volume, with different content.
        let (mut earlier, mut blocks) = (None, 0);
        for (commit, stamp) in [(CommitId(1), 0), (CommitId(7), 5000)] {
            table = SegmentTable::new();
            table.add_group(40, b.table.data_blocks(segment));
            let in_flight = b.in_flight.clone();
            let mut writer = DataWriter::new(b.array.clone(), table.clone(), in_flight, POOL, 0);
            blocks = 0;
            while !table.get(segment).footer {
                let block = block(stamp + blocks);
                let lba = Lba(blocks);
                let (addr, _) =
                    writer.append(volume, lba, bytes(&block), commit, 9, 0).await.unwrap();
                assert_eq!(addr, BlockAddr::new(segment, blocks as u32));
                blocks += 1;
            }
            assert!(
                blocks >= u64::from(b.table.data_blocks(segment)),
                "a segment holds at least data_blocks"
            );
            assert_eq!(blocks, u64::from(table.capacity(segment)));
            b.in_flight.drain().await.unwrap();
            let held = torn.read(0, IoBuf::zeroed(COLUMN)).await.unwrap();
            if let Some(before) = earlier.replace(held) {
                let behind = IoBuf::copy_of(&before[TORN_AT..]).freeze();
                torn.write(TORN_AT as u64, behind, false).await.unwrap();
            }
        }
        // Reads alternate between the sides, for the sums and for the data.
        for i in 0..blocks {
            let reader = Reader::new(b.array.clone(), table.clone(), POOL, 1 << 20);
            let addr = BlockAddr::new(segment, i as u32);
            let wanted = Wanted { addr, volume, lba: Lba(i), blocks: 1, sums: vec![None] };
            assert!(reader.read(&wanted).await.unwrap()[..] == block(5000 + i)[..], "block {i}");
            assert_eq!(reader.footer(segment).await.unwrap().birth, 7);
        }
        let (one, other) = (
            b.devices[0].read(0, IoBuf::zeroed(COLUMN)).await.unwrap(),
            torn.read(0, IoBuf::zeroed(COLUMN)).await.unwrap(),
        );
        assert!(one[COLUMN - BLOCK_LEN..] == other[COLUMN - BLOCK_LEN..], "the footer is repaired");
    });
}

#[test]
fn segment_passes_through_every_state_in_order() {
    let table = SegmentTable::new();
    table.add_group(4, 100);
    let commit = CommitId(5);
    let first = table.allocate(SegmentKind::Data, 0, commit, 1, 0).unwrap();
    let second = table.allocate(SegmentKind::Data, 0, commit, 2, 0).unwrap();
    assert_ne!(first, second);
    assert!(table.allocate(SegmentKind::Data, 0, commit, 2, 2).is_none(), "the reserve was taken");
    for segment in [first, second] {
        table.wrote(segment, 3, commit);
        table.close(segment, true);
    }
    table.add_live(BlockAddr::new(first, 0), 60);
    table.add_live(BlockAddr::new(second, 0), 40);
    let best = |committed| {
        Victims::of(&table, committed, Choice::Emptiest).next().map(|victim| victim.segment)
    };
    assert_eq!(best(CommitId(4)), None, "live blocks are not final");
    assert_eq!(best(commit), Some(second));
    // Blocks that the syncing group overwrites are not moved.
    table.add_dying(BlockAddr::new(first, 0), 30);
    let victim = Victims::of(&table, commit, Choice::Emptiest).first();
    assert_eq!(victim.map(|v| (v.segment, v.live)), Some((first, 30)));
    assert_eq!(table.free_soon(), 2, "neither full segment is empty");
    table.add_dying(BlockAddr::new(first, 30), 30);
    assert_eq!((table.free_soon(), best(commit)), (3, Some(second)), "it empties by itself");
    table.clear_dying();
    let live: Vec<u32> =
        Victims::of(&table, commit, Choice::Emptiest).map(|victim| victim.live).collect();
    assert_eq!(live, [40, 60]);
    // A segment under cleaning is not selected again until stop_cleaning.
    table.set_cleaning(second, true);
    assert_eq!(best(commit), Some(first));
    table.stop_cleaning();
    assert_eq!(best(commit), Some(second));
    table.sub_live(BlockAddr::new(second, 0), 40);
    assert_eq!(table.collect_empty(CommitId(6)).len(), 1);
    assert!(table.reclaimable(CommitId(5)).is_empty(), "a root still needs it");
    let pin = table.pin(second);
    assert!(table.reclaimable(CommitId(6)).is_empty(), "the segment is pinned");
    drop(pin);
    assert_eq!(table.reclaimable(CommitId(6)), [second]);
    table.free(second);
    assert_eq!((table.free_count(), table.get(second).state), (3, SegmentState::Free));
    // A held segment stays free but cannot be allocated.
    assert!(table.is_free(second) && table.hold(second) && !table.hold(second));
    assert!(!table.hold(first), "it is in use");
    assert_eq!((table.free_count(), table.get(second).state), (2, SegmentState::Free));
    table.let_go(second);
    assert_eq!(table.free_count(), 3);
    let records = table.take_records(false);
    let copy = SegmentTable::new();
    copy.add_group(4, 100);
    assert!(records.iter().all(|record| copy.load_record(record)));
    assert_eq!(copy.get(first).state, SegmentState::Full);
    assert_eq!(copy.free_count(), 3);
    let beyond = SegmentRecord { segment: SegmentId(4), ..records[0] };
    assert!(!copy.load_record(&beyond), "there is no such segment");
}

// Under skew, an older segment that frees a little less comes before a younger one. A segment that
// frees almost nothing is never selected for its age.
#[test]
fn age_counts_under_skew_but_not_alone() {
    let table = SegmentTable::new();
    table.add_group(4, 100);
    let commit = CommitId(1);
    let fill = |clock: u64, live: u32| {
        let segment = table.allocate(SegmentKind::Data, 0, commit, clock, 0).unwrap();
        table.wrote(segment, 3, commit);
        table.close(segment, true);
        table.add_live(BlockAddr::new(segment, 0), live);
        segment
    };
    let (young, old, ancient) = (fill(990, 60), fill(200, 65), fill(0, 98));
    let order = |choice| -> Vec<_> {
        Victims::of(&table, commit, choice).map(|victim| victim.segment).collect()
    };
    assert_eq!(order(Choice::Emptiest), [young, old, ancient]);
    assert_eq!(order(Choice::Worthiest { now: 1000 }), [old, young]);
    let (age, young) = table.live_ages(1000, 900);
    assert_eq!(age, (60 * 10 + 65 * 800 + 98 * 1000) / 223);
    assert!((young - 125.0 / 223.0).abs() < 1e-9);
}

#[test]
fn streams_are_separated_only_under_skew() {
    let classes = Classes::new(true);
    let first = classes.moved_stream(1000, 1, 990);
    assert_eq!(classes.user_stream(1000, Some(999)), 0);
    assert!(!classes.judge_skew(100, 100, 2000, 0.5), "too few blocks for a verdict");
    assert_eq!(classes.young(), 1000);
    for _ in 0..40 {
        classes.judge_skew(1000, 550, 2000, 0.5);
    }
    assert!(!classes.is_skewed());
    for _ in 0..40 {
        classes.judge_skew(1000, 900, 2000, 0.5);
    }
    assert!(classes.is_skewed());
    assert_ne!(classes.moved_stream(1000, 1, 990), first);
    assert_eq!(classes.user_stream(1000, Some(999)), 1);
    for _ in 0..40 {
        classes.judge_skew(1000, 500, 2000, 0.5);
    }
    assert_eq!(classes.user_stream(1000, Some(999)), 0);
}

#[test]
fn blocks_that_overwrite_short_lived_blocks_count_as_short_lived() {
    let classes = Classes::new(true);
    assert!(classes.judge_skew(1000, 1000, 1000, 0.5));
    for at in 0..20 {
        classes.reclaimed(at * 100 + 50, 0, at * 100);
    }
    assert_eq!(classes.user_stream(1000, Some(980)), 1);
    assert_eq!(classes.user_stream(1000, Some(500)), 0);
    assert_eq!(classes.user_stream(1000, None), 0);
    let moved: Vec<u8> =
        [1000, 700, 0].iter().map(|clock| classes.moved_stream(1000, 0, *clock)).collect();
    assert_eq!(moved, [3, 4, 5]);
    assert_eq!(classes.moved_stream(1000, 1, 990), 2);
    assert_eq!(Classes::new(false).moved_stream(1000, 1, 0), 3);
}
