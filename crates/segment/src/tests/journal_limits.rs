//! The map journal where room ends: last rows, last segments, small ones; and what it says of its
//! copies.

use forebay_format::journal::encode_frame;
use forebay_format::superblock::JournalPosition;

use super::*;
use crate::frame_bytes;

const COMMIT: CommitId = CommitId(1);
const UNIT: u64 = 16 << 10;

fn writer(b: &Bench) -> JournalWriter {
    JournalWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL)
}

async fn append(writer: &mut JournalWriter, bytes: usize) {
    writer.append(FrameKind::Delta, &vec![1; bytes], COMMIT).await.unwrap();
}

async fn finish(b: &Bench, writer: &mut JournalWriter) -> JournalPosition {
    writer.finish_rows(COMMIT).await.unwrap();
    b.in_flight.drain().await.unwrap();
    writer.position().unwrap()
}

#[test]
fn a_frame_takes_whole_blocks_for_its_payload_and_header() {
    let one = BLOCK_LEN - frame_room(0);
    let all = [0, 1, one, one + 1, one + BLOCK_LEN, one + BLOCK_LEN + 1];
    assert_eq!(all.map(frame_bytes), [4096, 4096, 4096, 8192, 8192, 12_288]);
    assert_eq!((frame_room(0), frame_room(100)), (56, 156));
}

#[test]
fn the_last_row_keeps_a_block_for_the_jump() {
    Runtime::simulated(71).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 256 << 10, 2);
        let mut writer = writer(&b);
        // Without a segment there is nothing to finish, and none is taken.
        writer.finish_rows(COMMIT).await.unwrap();
        assert_eq!((b.table.free_count(), writer.position()), (2, None));
        let first = writer.open(COMMIT).unwrap();
        let addr = BlockAddr::new(SegmentId(0), 0);
        assert_eq!(first, JournalPosition { addr, seq: 1, link: 0 });
        for _ in 0..60 {
            append(&mut writer, 100).await;
        }
        for left in [0, 2, 1, 0] {
            assert_eq!(writer.bytes_to_row_end(), left * BLOCK_LEN);
            if left > 0 || writer.position().unwrap().addr.block() == 60 {
                append(&mut writer, 100).await;
            }
        }
        assert_eq!((writer.segments(), b.table.free_count()), (1, 1));
        // The last free segment is for the journal, too. Nothing but an error is left then.
        append(&mut writer, 100).await;
        assert_eq!((writer.segments(), b.table.free_count()), (2, 0));
        let left = b.table.get(SegmentId(0));
        assert_eq!((left.state, left.footer, left.rows), (SegmentState::Full, false, 16));
        finish(&b, &mut writer).await;
        assert_eq!(writer.begin_segment(COMMIT).await, Err(SegmentError::NoSpace));
    });
}

#[test]
fn a_journal_takes_the_only_segment() {
    Runtime::simulated(72).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 256 << 10, 1);
        assert!(writer(&b).open(COMMIT).is_ok());
        assert!(matches!(writer(&b).open(COMMIT), Err(SegmentError::NoSpace)));
    });
}

#[test]
fn a_journal_that_goes_on_keeps_its_segments_and_its_beginning() {
    Runtime::simulated(73).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let mut before = writer(&b);
        let mut firsts = vec![before.open(COMMIT).unwrap()];
        append(&mut before, 100).await;
        let later = before.position().unwrap();
        finish(&b, &mut before).await;
        before.begin_segment(COMMIT).await.unwrap();
        firsts.push(before.position().unwrap());
        append(&mut before, 100).await;
        let end = finish(&b, &mut before).await;
        // The table of an import has only what the map says.
        let table = SegmentTable::new();
        table.add_group(3, 63);
        let (array, in_flight) = (b.array.clone(), b.in_flight.clone());
        let mut writer = JournalWriter::new(array, table.clone(), in_flight, POOL);
        writer.resume(end, firsts.clone(), Some(false));
        let last = table.get(SegmentId(1));
        assert_eq!((last.state, last.kind), (SegmentState::Open, SegmentKind::Map));
        assert_eq!((table.free_count(), writer.segments()), (2, 2));
        // The journal may begin after the first frame of its first segment.
        let extent = |segment| writer.extent(SegmentId(segment), later);
        assert_eq!(extent(0), Some((later, firsts[1])));
        assert_eq!(extent(1), Some((firsts[1], end)));
        assert_eq!(extent(2), None);
        table.reopen(SegmentId(0));
        writer.trim(firsts[1].seq, COMMIT);
        let states = [0, 1].map(|segment| table.get(SegmentId(segment)).state);
        assert_eq!(states, [SegmentState::Emptied(COMMIT), SegmentState::Open]);
    });
}

#[test]
fn a_segment_with_one_block_is_left_for_a_new_one() {
    Runtime::simulated(74).block_on(async {
        // Every block is a row.
        let b = bench_with(Layout::Mirror, 2, (BLOCK_LEN as u64, 64 << 10, 3), |device| device);
        let mut writer = writer(&b);
        writer.open(COMMIT).unwrap();
        append(&mut writer, 100).await;
        writer.begin_segment(COMMIT).await.unwrap();
        assert_eq!(writer.position().unwrap().addr, BlockAddr::new(SegmentId(1), 0));
    });
}

/// Whether one of four frames that `b` wrote lacks a copy when `array` reads them.
async fn lacks_copies(b: &Bench, array: &Rc<Array>) -> bool {
    let mut writer = writer(b);
    let start = writer.open(COMMIT).unwrap();
    for _ in 0..3 {
        append(&mut writer, 100).await;
    }
    let end = finish(b, &mut writer).await;
    let mut reader = JournalReader::new(array.clone(), POOL, start, end);
    assert_eq!((reader.is_end_doubled(), reader.lacks_copies(), reader.bytes()), (None, false, 0));
    while reader.next().await.unwrap().is_some() {}
    reader.lacks_copies()
}

// Frames of a mirror have no copies. When one device is left of it, they lack them.
#[test]
fn frames_without_a_copy_lack_one_where_there_is_no_redundancy_and_room() {
    Runtime::simulated(75).block_on(async {
        // A segment of one row has no second half.
        for (rows, has_room) in [(1, false), (2, true), (3, true), (16, true)] {
            let one = bench_of(Layout::Raid0, 1, rows * UNIT, 3);
            assert!(!lacks_copies(&one, &one.array).await, "{rows} rows");
            let two = bench_of(Layout::Mirror, 2, rows * UNIT, 3);
            assert!(!lacks_copies(&two, &two.array).await, "{rows} rows");
            let two = bench_of(Layout::Mirror, 2, rows * UNIT, 3);
            let geometry = one.array.geometry_of(SegmentId(0)).unwrap();
            let left = vec![(DeviceId(0), two.devices[0].clone())];
            let left = Array::new(vec![GroupSpec::healthy(geometry, left)]).unwrap();
            assert_eq!(lacks_copies(&two, &left).await, has_room, "{rows} rows");
        }
    });
}

#[test]
fn a_frame_that_ends_past_its_segment_is_refused() {
    Runtime::simulated(76).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 256 << 10, 2);
        // Three blocks, of which two are left.
        let (frame, link) = encode_frame(POOL, 1, 1, 0, FrameKind::Delta, false, &[7; 9000]);
        let addr = BlockAddr::new(SegmentId(1), 62);
        for device in &b.devices {
            let part = IoBuf::copy_of(&frame[..2 * BLOCK_LEN]).freeze();
            device.write((64 + 62) * BLOCK_LEN as u64, part, false).await.unwrap();
        }
        let start = JournalPosition { addr, seq: 1, link: 0 };
        let end = JournalPosition { addr, seq: 2, link };
        let error = JournalReader::new(b.array.clone(), POOL, start, end).next().await.unwrap_err();
        let SegmentError::Journal { seq: 1, fault, .. } = error else { panic!("{error}") };
        assert_eq!(fault, JournalFault::Unrepairable(Box::new(JournalFault::PastSegment)));
    });
}

#[test]
fn a_journal_that_is_left_ends_where_it_did_until_it_begins_elsewhere() {
    Runtime::simulated(75).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 256 << 10, 4);
        let mut old = writer(&b);
        old.open(COMMIT).unwrap();
        append(&mut old, 100).await;
        let end = finish(&b, &mut old).await;
        let segments =
            vec![JournalPosition { addr: BlockAddr::new(SegmentId(0), 0), seq: 1, link: 0 }];

        let mut writer = writer(&b);
        writer.leave(end, segments);
        assert_eq!((writer.is_left(), writer.position()), (true, Some(end)));
        writer.finish_rows(COMMIT).await.unwrap();
        assert_eq!(writer.position(), Some(end), "nothing is written there");
        let start = writer.open(COMMIT).unwrap();
        let addr = BlockAddr::new(SegmentId(1), 0);
        assert_eq!(start, JournalPosition { addr, ..end });
        assert_eq!((writer.is_left(), writer.position()), (false, Some(start)));
        append(&mut writer, 200).await;
        let end = finish(&b, &mut writer).await;
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        let frame = reader.next().await.unwrap().unwrap();
        assert_eq!(frame.payload(), [1; 200]);
        // Once the journal begins in the new segment, the old one is free again.
        assert_eq!(writer.segments(), 2);
        writer.trim(start.seq, COMMIT);
        assert_eq!(writer.segments(), 1);
        assert!(matches!(b.table.get(SegmentId(0)).state, SegmentState::Emptied(_)));
    });
}
