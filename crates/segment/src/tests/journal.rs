//! The map journal: damage in many places, and the segments that it takes and gives back.

use super::*;

const COMMIT: CommitId = CommitId(1);
/// A row of a column.
const UNIT: u64 = 16 << 10;
/// Where the second half of a column begins, which has the copies of the first.
const HALF: u64 = 128 << 10;

/// Writes a frame of 30 blocks and, after damage to `ranges` (device, offset, length), reads it.
async fn read_damaged(b: &Bench, ranges: &[(usize, u64, u64)]) -> bool {
    let (array, table) = (b.array.clone(), b.table.clone());
    let mut writer = JournalWriter::new(array, table, b.in_flight.clone(), POOL);
    let start = writer.open(COMMIT).unwrap();
    let payload: Vec<u8> = (0..120_000u32).map(|at| (at / 7) as u8).collect();
    writer.append(FrameKind::Delta, &payload, COMMIT).await.unwrap();
    writer.finish_rows(COMMIT).await.unwrap();
    b.in_flight.drain().await.unwrap();
    let end = writer.position().unwrap();
    for (device, offset, len) in ranges {
        let rotten = IoBuf::copy_of(&vec![0xee; *len as usize]).freeze();
        b.devices[*device].write(*offset, rotten, false).await.unwrap();
    }
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
