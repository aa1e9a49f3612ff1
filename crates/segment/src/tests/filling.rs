//! Segments that are filled: footers, padding, counts, and writes in flight.

use std::cell::Cell;

use forebay_device::{DeviceError, ErrorKind};

use super::*;
use crate::FooterFault;

const VOLUME: VolumeId = VolumeId(4);
const COMMIT: CommitId = CommitId(1);

fn writer(b: &Bench) -> DataWriter {
    DataWriter::new(b.array.clone(), b.table.clone(), b.in_flight.clone(), POOL, 0)
}

async fn append(writer: &mut DataWriter, lba: u64) -> BlockAddr {
    writer.append(VOLUME, Lba(lba), bytes(&block(lba)), COMMIT, 9, 0).await.unwrap().0
}

// A row that is filled early must not shift the sums behind it.
#[test]
fn a_footer_counts_the_padding_within_its_segment() {
    Runtime::simulated(61).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let mut writer = writer(&b);
        for lba in 0..5 {
            append(&mut writer, lba).await;
        }
        writer.finish_rows(COMMIT).await;
        for lba in 5..60 {
            append(&mut writer, lba).await;
        }
        b.in_flight.drain().await.unwrap();
        let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
        let footer = reader.footer(SegmentId(0)).await.unwrap();
        let runs = [(VOLUME, 0, 5), (Run::PADDING, 0, 3), (VOLUME, 5, 55)];
        assert_eq!(
            footer.runs,
            runs.map(|(volume, lba, blocks)| Run { volume, lba: Lba(lba), blocks })
        );
        assert_eq!((footer.sums.len(), &footer.sums[5..8]), (63, &[0, 0, 0][..]));
        for (at, lba) in [(4, 4), (8, 5), (62, 59)] {
            let (addr, lba) = (BlockAddr::new(SegmentId(0), at), Lba(lba));
            let wanted = Wanted { addr, volume: VOLUME, lba, blocks: 1, sums: vec![None] };
            assert!(reader.read(&wanted).await.unwrap()[..] == block(lba.0)[..]);
        }
    });
}

#[test]
fn blocks_between_data_and_footer_are_padding_and_the_table_knows_what_it_holds() {
    Runtime::simulated(62).block_on(async {
        let mut most = 0;
        for (column_blocks, apart) in (796..=832).step_by(4).flat_map(|all| [(all, 1), (all, 3)]) {
            let b = bench_of(Layout::Mirror, 2, column_blocks * BLOCK_LEN as u64, 1);
            let mut writer = writer(&b);
            while !b.table.get(SegmentId(0)).footer {
                let at = writer.counts().data;
                append(&mut writer, at * apart).await;
            }
            b.in_flight.drain().await.unwrap();
            let reader = Reader::new(b.array.clone(), b.table.clone(), POOL, 1 << 20);
            let found = reader.footer(SegmentId(0)).await.unwrap();
            let data = found.sums.len() as u64;
            let footer = (found.encode().len() / BLOCK_LEN) as u64;
            let padding = column_blocks - data - footer;
            let counts = WriteCounts { data, footer, padding, fillers: 0 };
            assert_eq!(writer.counts(), counts);
            assert_eq!(u64::from(b.table.capacity(SegmentId(0))), data);
            most = most.max(padding);
        }
        assert!(most > 0, "no footer was shorter than its bound");
    });
}

// 803 sums take 4015 of 4088 bytes, the header 48, and two runs at most 22. One more block would
// take a second page.
#[test]
fn a_segment_is_filled_while_the_next_block_leaves_room_for_the_footer() {
    Runtime::simulated(63).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 804 * BLOCK_LEN as u64, 1);
        let footer = footer::fill(&b, |at| at).await;
        assert_eq!(footer.sums.len(), 803);
    });
}

#[test]
fn every_segment_has_room_for_as_many_blocks_as_the_first() {
    Runtime::simulated(64).block_on(async {
        let b = bench_of(Layout::Mirror, 2, 256 << 10, 12);
        let mut writer = writer(&b);
        for at in 0..12 * 63 {
            let addr = append(&mut writer, at * 1_000_003).await;
            let (segment, block) = (SegmentId(at as u32 / 63), at as u32 % 63);
            assert_eq!(addr, BlockAddr::new(segment, block));
        }
        b.in_flight.drain().await.unwrap();
    });
}

#[test]
fn a_writer_tells_its_segment_its_room_and_its_fillers() {
    Runtime::simulated(65).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let mut writer = writer(&b);
        assert_eq!((writer.segment(), writer.blocks_left()), (None, 0));
        append(&mut writer, 0).await;
        assert_eq!(writer.segment(), Some(SegmentId(0)));
        // Of 63 blocks one is the footer's. Another is in doubt, as runs might not fit beside it.
        let room = writer.blocks_left();
        assert_eq!(room, 61);
        for at in 1..=u64::from(room) {
            assert_eq!(append(&mut writer, at * 1_000_003).await.segment(), SegmentId(0));
            writer.count_filler();
        }
        assert_eq!(writer.counts().fillers, 61);
        while writer.segment().is_some() {
            append(&mut writer, 7).await;
        }
        assert_eq!(writer.blocks_left(), 0);
        b.in_flight.drain().await.unwrap();
    });
}

#[test]
fn a_run_of_32_blocks_is_long() {
    Runtime::simulated(66).block_on(async {
        let b = bench(Layout::Mirror, 2);
        // 31 blocks, then 32.
        let mut writer = writer(&b);
        for at in 0..63 {
            append(&mut writer, if at < 31 { at } else { 1000 + at }).await;
        }
        b.in_flight.drain().await.unwrap();
        let long = Run { volume: VOLUME, lba: Lba(1031), blocks: 32 };
        assert_eq!(writer.take_long_runs(), [long]);
    });
}

/// Writes that take a second.
struct Slow(Cell<u64>);

impl Script for Slow {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation == Operation::Write {
                self.0.set(self.0.get() + 1);
                rt::sleep(Nanos::from_secs(1)).await;
            }
            Decision::Run
        })
    }
}

#[test]
fn a_write_that_waits_begins_when_the_limit_rises() {
    Runtime::simulated(67).block_on(async {
        let slow = Rc::new(Slow(Cell::new(0)));
        let probed = |device| -> Device { Probe::new(device, slow.clone()) };
        let mut b = bench_on(Layout::Raid0, 1, (256 << 10, 2), probed);
        b.in_flight = InFlight::new(1);
        let mut writer = writer(&b);
        let waiting = rt::spawn(async move {
            for at in 0..3 {
                append(&mut writer, at).await;
                writer.finish_rows(COMMIT).await;
            }
        });
        rt::sleep(Nanos::from_millis(300)).await;
        assert_eq!(slow.0.get(), 1);
        b.in_flight.set_limit(2 * 4 * BLOCK_LEN as u64);
        rt::sleep(Nanos::from_millis(300)).await;
        assert_eq!(slow.0.get(), 2);
        // What is under way goes on under a lower limit, and the next write waits for its end.
        b.in_flight.set_limit(1);
        rt::sleep(Nanos::from_millis(500)).await;
        assert_eq!(slow.0.get(), 2);
        waiting.await;
        b.in_flight.drain().await.unwrap();
        assert_eq!(slow.0.get(), 3);
    });
}

#[test]
fn errors_of_a_volume_name_the_place_and_the_kind() {
    let seen = |error: &SegmentError| {
        let device = DeviceError::from(error.clone());
        assert_eq!(device.kind, ErrorKind::from(error));
        (device.operation, device.offset_bytes, device.len_bytes)
    };
    let full = SegmentError::NoSpace;
    assert_eq!(ErrorKind::from(&full), ErrorKind::NoSpace);
    assert_eq!(seen(&full), (Operation::Write, 0, 0));
    let addr = BlockAddr::new(SegmentId(1), 2);
    let (lba, fault) = (Lba(5), BlockFault::Checksum);
    let wrong = SegmentError::Block { volume: VOLUME, lba, addr, fault };
    assert!(matches!(ErrorKind::from(&wrong), ErrorKind::Corrupt { .. }));
    assert_eq!(seen(&wrong), (Operation::Read, 20_480, 4096));
    let footer = SegmentError::Footer { segment: SegmentId(1), fault: FooterFault::PageCount };
    assert_eq!(seen(&footer), (Operation::Read, 0, 0));
}
