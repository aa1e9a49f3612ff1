//! The map journal: damage in many places, and the segments that it takes and gives back.

use forebay_format::superblock::JournalPosition;

use super::*;

const COMMIT: CommitId = CommitId(1);
/// A row of a column.
const UNIT: u64 = 16 << 10;
/// Where the second half of a column begins, which has the copies of the first.
const HALF: u64 = 128 << 10;

/// Writes a frame of 30 blocks. Returns where the journal begins and ends, and its payload.
pub(super) async fn write_frame(b: &Bench) -> (JournalPosition, JournalPosition, Vec<u8>) {
    let (array, table) = (b.array.clone(), b.table.clone());
    let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
    let start = writer.open(COMMIT).unwrap();
    let payload: Vec<u8> = (0..120_000u32).map(|at| (at / 7) as u8).collect();
    writer.append(FrameKind::Delta, &payload, COMMIT).await.unwrap();
    writer.finish_rows(COMMIT).await.unwrap();
    b.in_flight.drain().await.unwrap();
    (start, writer.position().unwrap(), payload)
}

/// Damages `ranges` (device, offset, length).
pub(super) async fn damage(b: &Bench, ranges: &[(usize, u64, u64)]) {
    for (device, offset, len) in ranges {
        let rotten = IoBuf::copy_of(&vec![0xee; *len as usize]).freeze();
        b.devices[*device].write(*offset, rotten, false).await.unwrap();
    }
}

/// Writes a frame of 30 blocks and, after damage to `ranges`, reads it.
pub(super) async fn read_damaged(b: &Bench, ranges: &[(usize, u64, u64)]) -> bool {
    let (start, end, payload) = write_frame(b).await;
    damage(b, ranges).await;
    let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
    match reader.next().await {
        Ok(Some(frame)) => frame.payload() == payload,
        _ => false,
    }
}

#[test]
fn a_frame_with_damage_on_several_devices_is_put_together() {
    let cases = [
        // Its first block on one side of a mirror, another block on the other.
        (Layout::Mirror, 2, vec![(0, 0, 4096), (1, 5 * 4096, 4096)]),
        // Two columns of one row.
        (Layout::Raidz2, 4, vec![(0, 4096, 4096), (1, 4096, 4096)]),
        // Blocks of one device, and copies of blocks of the other.
        (Layout::Raid0, 2, vec![(0, 4096, 3 * UNIT), (0, HALF + UNIT, 3 * UNIT)]),
        // A range of one device, and the copy of a block in its last unit.
        (Layout::Raid0, 2, vec![(0, 4096, 3 * UNIT + 4096), (1, HALF + 3 * UNIT + 3 * 4096, 4096)]),
        // Whole units on both devices, and a copy between them.
        (Layout::Raid0, 2, vec![(0, UNIT, UNIT), (1, 2 * UNIT, UNIT), (0, HALF + UNIT, UNIT)]),
    ];
    for (number, (layout, members, ranges)) in cases.into_iter().enumerate() {
        Runtime::simulated(12).block_on(async move {
            assert!(read_damaged(&bench(layout, members), &ranges).await, "case {number}");
        });
    }
}

#[test]
fn trim_retires_the_segments_before_the_start() {
    Runtime::simulated(13).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (array, table) = (b.array.clone(), b.table.clone());
        let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
        let mut firsts = vec![writer.open(COMMIT).unwrap()];
        for _ in 0..3 {
            writer.append(FrameKind::Delta, &[1; 9000], COMMIT).await.unwrap();
            writer.finish_rows(COMMIT).await.unwrap();
            writer.begin_segment(COMMIT).await.unwrap();
            firsts.push(writer.position().unwrap());
        }
        for (at, first) in firsts.iter().enumerate() {
            let (begin, end) = writer.extent(first.addr.segment(), firsts[0]).unwrap();
            assert_eq!((begin, end), (*first, *firsts.get(at + 1).unwrap_or(first)));
        }
        let emptied = || {
            let states = firsts.iter().map(|first| b.table.get(first.addr.segment()).state);
            states.filter(|state| matches!(state, SegmentState::Emptied(_))).count()
        };
        // A segment goes when the journal starts in the next one, and the last one stays.
        for (seq, gone) in [(firsts[1].seq - 1, 0), (firsts[1].seq, 1), (firsts[3].seq + 9, 3)] {
            writer.trim(seq, COMMIT);
            assert_eq!((writer.segments(), emptied()), (4 - gone, gone));
        }
    });
}

#[test]
fn a_free_segment_that_the_journal_reopens_is_the_journals() {
    let table = SegmentTable::new();
    table.add_group(3, 100);
    table.reopen(SegmentId(1));
    let other = table.allocate(SegmentKind::Data, 0, COMMIT, 1, 0).unwrap();
    assert_eq!((table.free_count(), table.free_soon()), (1, 1), "open segments are in use");
    for segment in [SegmentId(1), other] {
        table.wrote(segment, 3, COMMIT);
        table.close(segment, false);
    }
    assert_eq!(table.get(SegmentId(1)).kind, SegmentKind::Map);
    // Neither has live blocks; only that with data is empty.
    assert_eq!(table.collect_empty(COMMIT).len(), 1);
    assert_eq!(table.get(SegmentId(1)).state, SegmentState::Full);
}

// The side with the whole frame has served so many reads that a read prefers the others.
#[test]
fn a_frame_that_one_side_of_a_mirror_has_is_read_from_that_side() {
    for (sides, whole) in [(3, 0), (3, 1), (3, 2), (4, 0), (4, 3)] {
        Runtime::simulated(18).block_on(async move {
            let b = bench(Layout::Mirror, sides);
            let others: Vec<usize> = (0..sides).filter(|side| *side != whole).collect();
            let ids: Vec<_> = others.iter().map(|side| DeviceId(*side as u32)).collect();
            for _ in 0..100 {
                let at = BlockAddr::new(SegmentId(0), 0);
                b.array.read_reconstructed(at, 1, &ids).await.unwrap();
            }
            // Another block of each.
            let ranges = others.iter().zip(1..).map(|(side, block)| (*side, block * 4096, 4096));
            let is_read = read_damaged(&b, &ranges.collect::<Vec<_>>()).await;
            assert!(is_read, "side {whole} of {sides}");
        });
    }
}

#[test]
fn the_journal_reads_far_ahead_and_each_block_about_once() {
    Runtime::simulated(19).block_on(async {
        const COLUMN: u64 = 16 << 20;
        let b = bench_of(Layout::Mirror, 2, COLUMN, 3);
        let (array, table) = (b.array.clone(), b.table.clone());
        let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
        let start = writer.open(COMMIT).unwrap();
        for at in 0..200u8 {
            writer.append(FrameKind::Delta, &[at; 60_000], COMMIT).await.unwrap();
        }
        writer.finish_rows(COMMIT).await.unwrap();
        b.in_flight.drain().await.unwrap();
        let end = writer.position().unwrap();
        assert_eq!((writer.segments(), end.addr.segment()), (1, start.addr.segment()));
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        for at in 0..200u8 {
            let frame = reader.next().await.unwrap().expect("more frames");
            assert!(frame.payload() == [at; 60_000]);
        }
        assert!(reader.bytes() >= u64::from(end.addr.block()) * BLOCK_LEN as u64);
        assert!(reader.bytes() <= COLUMN + COLUMN / 4, "{} bytes were read", reader.bytes());
    });
}

#[test]
fn the_rest_of_a_row_is_filled_or_counts_as_padding() {
    Runtime::simulated(20).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (array, table) = (b.array.clone(), b.table.clone());
        let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
        writer.open(COMMIT).unwrap();
        assert_eq!(writer.bytes_to_row_end(), 0);
        for left in (1..4).rev() {
            writer.append(FrameKind::Delta, &[1; 100], COMMIT).await.unwrap();
            assert_eq!(writer.bytes_to_row_end(), left * BLOCK_LEN);
        }
        let payload = vec![2; writer.bytes_to_row_end() - frame_room(0)];
        writer.append(FrameKind::Delta, &payload, COMMIT).await.unwrap();
        assert_eq!(writer.bytes_to_row_end(), 0);
        writer.finish_rows(COMMIT).await.unwrap();
        assert_eq!((writer.counts().data, writer.counts().padding), (4, 0));
        writer.append(FrameKind::Delta, &[3; 100], COMMIT).await.unwrap();
        writer.finish_rows(COMMIT).await.unwrap();
        assert_eq!((writer.counts().data, writer.counts().padding), (5, 3));
        b.in_flight.drain().await.unwrap();
    });
}

// The group was one device, and has got a mirror since.
#[test]
fn a_segment_that_was_begun_with_copies_keeps_them_when_the_journal_goes_on() {
    Runtime::simulated(19).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let new = || {
            let (array, table) = (b.array.clone(), b.table.clone());
            JournalWriter::new(array, table, b.in_flight.clone(), POOL)
        };
        let mut writer = new();
        let start = writer.open(COMMIT).unwrap();
        writer.append(FrameKind::Delta, &[1; 9000], COMMIT).await.unwrap();
        writer.finish_rows(COMMIT).await.unwrap();
        b.in_flight.drain().await.unwrap();
        let end = writer.position().unwrap();
        let other: Device = Rc::new(MemoryDevice::new("other", u64::from(SEGMENTS) * 2 * HALF));
        b.array.attach(DeviceId(0), DeviceId(9), other).unwrap();
        let mut writer = new();
        writer.resume(end, vec![start], Some(true));
        while writer.segments() == 1 {
            writer.append(FrameKind::Delta, &[2; 9000], COMMIT).await.unwrap();
            writer.finish_rows(COMMIT).await.unwrap();
        }
        b.in_flight.drain().await.unwrap();
        let geometry = b.array.geometry_of(start.addr.segment()).unwrap();
        let read = async |block| {
            let addr = BlockAddr::new(start.addr.segment(), block);
            b.array.read(addr, 1).await.unwrap().to_vec()
        };
        for block in 0..3 {
            let copy = geometry.copy_of(block).unwrap();
            assert!(read(block).await == read(copy).await, "block {block}");
        }
    });
}

// The next owner continues the journal with them, and frees segments by them.
#[test]
fn the_reader_finds_the_first_frame_of_each_segment() {
    for (layout, members) in [(Layout::Raid0, 1), (Layout::Raidz1, 3)] {
        Runtime::simulated(22).block_on(async move {
            let b = bench(layout, members);
            let (array, table) = (b.array.clone(), b.table.clone());
            let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
            let start = writer.open(COMMIT).unwrap();
            let (mut firsts, mut places) = (vec![start], Vec::new());
            for at in 1..=200usize {
                // Frames of a block fill some segments up to a jump in the last block.
                let len = if at < 120 { 100 } else { at * 200 };
                places.extend(writer.position());
                if at % 20 == 0 {
                    writer.finish_rows(COMMIT).await.unwrap();
                } else {
                    writer.append(FrameKind::Delta, &vec![1; len], COMMIT).await.unwrap();
                }
                let segment = writer.position().unwrap().addr.segment();
                if segment != firsts[firsts.len() - 1].addr.segment() {
                    firsts.push(writer.extent(segment, start).unwrap().0);
                }
            }
            b.in_flight.drain().await.unwrap();
            assert!(firsts.len() > 2 && firsts.len() == writer.segments());
            let end = writer.position().unwrap();
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            while reader.next().await.unwrap().is_some() {}
            assert_eq!(reader.segments(), firsts);
            // The journal may begin at any frame, as after a checkpoint.
            for start in places {
                let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
                while reader.next().await.unwrap().is_some() {}
                assert!(reader.take_repairs().is_empty(), "nothing was wrong behind {start:?}");
            }
        });
    }
}

#[test]
fn of_padding_only_the_first_block_belongs_to_the_journal() {
    Runtime::simulated(23).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (array, table) = (b.array.clone(), b.table.clone());
        let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
        let start = writer.open(COMMIT).unwrap();
        for _ in 0..2 {
            writer.append(FrameKind::Delta, &[1; 100], COMMIT).await.unwrap();
            writer.finish_rows(COMMIT).await.unwrap();
        }
        b.in_flight.drain().await.unwrap();
        let end = writer.position().unwrap();
        let reader = JournalReader::new(b.array.clone(), POOL, start, end);
        let found = reader.all_blocks().await.unwrap();
        let blocks: Vec<u32> = found.blocks.keys().map(|addr| addr.block()).collect();
        assert_eq!(blocks, [0, 1, 4, 5]);
    });
}
