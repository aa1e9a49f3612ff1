//! Frames that replay must not take, and frames beyond a hole that it must find.

use forebay_device::{BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, Layer, Operation};
use forebay_format::checksum::crc64;
use forebay_format::log_frame::{
    Fragment, FrameHeader, RecordEntry, RecordKind, frame_len_bytes, seal, table_end_bytes,
};
use forebay_rt::Runtime;

use super::*;
use crate::error::SplitError;
use crate::{ConfigError, LogError, Loss, ReplayVerdict};

const BLOCK: u64 = BLOCK_LEN as u64;
/// Where the first side of a ring begins.
const START: u64 = 8192;

/// A log with `count` frames of two blocks, and its state before the first.
async fn frames(rings: &[LogRing], count: u64) -> (IntentLog, LogState) {
    let (log, state) = start(LogConfig::new(POOL), rings);
    for id in 1..=count {
        log.append(vec![write(id, 1, 1)]).await.unwrap();
    }
    (log, state)
}

fn loss(end: &ReplayEnd) -> &Loss {
    let ReplayVerdict::Loss(loss) = &end.verdict else { panic!("{end:?}") };
    loss
}

/// A frame as the log writes it, at `position_bytes` of ring 0.
fn frame(seq: u64, position_bytes: u64, watermark: u64, entries: &[RecordEntry]) -> Vec<u8> {
    frame_of_ring(0, (seq, position_bytes), watermark, entries)
}

fn frame_of_ring(
    ring: u8,
    (seq, position_bytes): (u64, u64),
    watermark: u64,
    entries: &[RecordEntry],
) -> Vec<u8> {
    let data = vec![7; entries.iter().map(|entry| entry.data_bytes() as usize).sum()];
    let header = FrameHeader {
        pool: POOL,
        epoch: 1,
        seq: FrameSeq(seq),
        ring,
        position_bytes,
        len_bytes: frame_len_bytes(entries.len(), data.len() as u64) as u32,
        max_txg: entries.iter().map(|entry| entry.txg).max().expect("there is one"),
        committed: TxgId(0),
        watermark: FrameSeq(watermark),
        record_count: entries.len() as u16,
    };
    let mut head = IoBuf::recycled(table_end_bytes(entries.len()));
    seal(&header, entries, &mut head, data.chunks(BLOCK_LEN).map(crc64));
    [&head[..], &data].concat()
}

fn entry(fragment: Fragment, lba: u64) -> RecordEntry {
    let (volume, txg, kind) = (VolumeId(1), TxgId(1), RecordKind::Write);
    RecordEntry { kind, fragment, volume, lba: Lba(lba), blocks: 1, txg }
}

#[test]
fn a_frame_longer_than_the_log_allows_is_none() {
    Runtime::simulated(1).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        log.append(vec![write(1, 1, 2)]).await.unwrap();
        for (max_frame_bytes, count) in [(12_288, 1), (8192, 0)] {
            let (records, end) =
                replay(&rings, &LogState { max_frame_bytes, ..state.clone() }).await;
            assert_eq!((records.len(), end.verdict), (count, ReplayVerdict::CleanEnd));
        }
    });
}

// Replay of a ring goes once round, up to where it began.
#[test]
fn a_frame_over_the_place_where_replay_begins_is_none() {
    Runtime::simulated(2).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let (_, mut state) = frames(&rings, 4).await;
        // It begins in the middle of frame 2, which is before and behind that place.
        state.tail_seq = FrameSeq(2);
        state.next_seq = FrameSeq(2);
        state.watermark = FrameSeq(1);
        state.rings[0].tail_bytes = 8192 + BLOCK;
        let (records, end) = replay(&rings, &state).await;
        let loss = loss(&end);
        assert_eq!((records.len(), loss.frames_after), (0, 2));
        assert_eq!(loss.missing, [(FrameSeq(2), FrameSeq(2))]);
    });
}

// The side is read because the first one lacks the frame.
#[test]
fn a_frame_of_another_pool_on_another_side_is_not_replayed() {
    Runtime::simulated(3).block_on(async {
        let disks = [Disk::alone(1), Disk::alone(2)];
        let rings = [ring(0, MIB, &[&disks[0], &disks[1]])];
        let mut other = rings.clone();
        other[0].sides.remove(0);
        let (log, _) = start(LogConfig::new(POOL + 1), &other);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        let state = IntentLog::empty_state(&LogConfig::new(POOL), &rings, 1, TxgId(0), FrameSeq(1));
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.frames, end.verdict), (0, 0, ReplayVerdict::CleanEnd));
    });
}

#[test]
fn rings_and_states_that_cannot_be_are_refused() {
    Runtime::simulated(4).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let (_, state) = frames(&rings, 3).await;
        let twice = vec![rings[0].clone(), rings[0].clone()];
        let refused = Replay::open(twice, &state, POOL).err();
        assert_eq!(refused, Some(ConfigError::DuplicateRing { ring: 0 }.into()));
        let bad = LogState { max_frame_bytes: 5000, ..state.clone() };
        let refused = Replay::open(rings.to_vec(), &bad, POOL).err();
        assert!(matches!(refused, Some(LogError::Format(_))), "{refused:?}");
        // A ring without a side is missing, with what it held.
        let (records, end) = replay(&[ring(0, MIB, &[])], &state).await;
        assert_eq!((records.len(), &loss(&end).absent_rings[..]), (0, &[0][..]));
    });
}

#[test]
fn parts_of_a_write_that_contradict_each_other_are_refused() {
    use Fragment::{Continues, Last, Whole};
    let first = entry(Continues, 5);
    let cases = [
        (first, entry(Last, 6), None),
        (first, RecordEntry { volume: VolumeId(2), ..entry(Last, 6) }, Some(SplitError::Gap)),
        (first, RecordEntry { txg: TxgId(2), ..entry(Last, 6) }, Some(SplitError::Gap)),
        (first, RecordEntry { kind: RecordKind::Zero, ..entry(Last, 6) }, Some(SplitError::Gap)),
        (first, entry(Last, 7), Some(SplitError::Gap)),
        (
            first,
            RecordEntry { blocks: u32::MAX, kind: RecordKind::Zero, ..entry(Last, 6) },
            Some(SplitError::Gap),
        ),
        (first, entry(Whole, 6), Some(SplitError::NoEnd)),
        (entry(Whole, 5), entry(Last, 6), Some(SplitError::NoBeginning)),
    ];
    for (one, two, expected) in cases {
        Runtime::simulated(5).block_on(async move {
            let disk = Disk::alone(1);
            let rings = [ring(0, MIB, &[&disk])];
            let (_, state) = frames(&rings, 0).await;
            disk.apply(START, &frame(1, 0, 0, &[one]));
            disk.apply(START + 8192, &frame(2, 8192, 1, &[two]));
            let mut replay = Replay::open(rings.to_vec(), &state, POOL).unwrap();
            let mut error = None;
            let mut records = 0;
            loop {
                match replay.next().await {
                    Ok(Some(more)) => records += more.len(),
                    Ok(None) => break,
                    Err(found) => break error = Some(found),
                }
            }
            match (error, expected) {
                (None, None) => assert_eq!(records, 1),
                (Some(LogError::Inconsistent { seq, error, .. }), Some(expected)) => {
                    assert_eq!((seq, error), (FrameSeq(2), expected));
                }
                (error, _) => panic!("{error:?} for {one:?}, {two:?}"),
            }
        });
    }
}

/// Whether the block at an offset cannot be read.
type IsBad = fn(u64) -> bool;

/// A disk with unreadable blocks.
struct Spotted {
    disk: Rc<Disk>,
    is_bad: IsBad,
}

impl Layer for Spotted {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.disk
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let len_bytes = buf.len() as u64;
        if (offset_bytes..offset_bytes + len_bytes).step_by(BLOCK_LEN).any(|at| (self.is_bad)(at)) {
            let kind = ErrorKind::Os { errno: 5 };
            let (name, what) = (self.disk.name(), Operation::Read);
            let error = DeviceError::new(name, what, offset_bytes, len_bytes, kind);
            return Box::pin(std::future::ready(Err(error)));
        }
        self.disk.read(offset_bytes, buf)
    }
}

// A scan skips more at a time only where it cannot read a whole stretch.
#[test]
fn bad_blocks_here_and_there_hide_no_frame_behind_a_hole() {
    let cases: [(IsBad, u64, u64); 2] = [
        // The data of every other frame.
        (|at| (at - START) % 16_384 == 3 * BLOCK, 49, 98),
        // Fourteen blocks in a row. With the frame before them, that is fifteen reads.
        (|at| (10 * 8192 - BLOCK..10 * 8192 + 13 * BLOCK).contains(&(at - START)), 91, 99),
    ];
    for (is_bad, readable, watermark) in cases {
        Runtime::simulated(6).block_on(async move {
            let disk = Disk::alone(1);
            let (_, state) = frames(&[ring(0, MIB, &[&disk])], 100).await;
            disk.erase(START, 8192);
            let mut rings = [ring(0, MIB, &[&disk])];
            rings[0].sides[0].device = Rc::new(Spotted { disk, is_bad }) as Device;
            let (records, end) = replay(&rings, &state).await;
            let loss = loss(&end);
            assert_eq!((records.len(), loss.frames_after), (0, readable));
            assert_eq!(loss.watermark, FrameSeq(watermark));
        });
    }
}

// A stretch of fifteen bad blocks is one short of what a scan skips more for. A failure before it,
// and what can be read in between, change nothing.
#[test]
fn a_bad_block_before_what_can_be_read_hides_no_frame() {
    let cases: [(IsBad, u64); 2] = [
        // A block between them.
        (|at| at == START + 8 * BLOCK || (10..25).contains(&((at - START) / BLOCK)), 25 * BLOCK),
        // The last block of the first MiB that is read at a time, and the first ones of the third.
        (
            |at| at == START + MIB - BLOCK || (512..527).contains(&((at - START) / BLOCK)),
            2 * MIB + 15 * BLOCK,
        ),
    ];
    for (is_bad, position) in cases {
        Runtime::simulated(10).block_on(async move {
            let disk = Disk::new(1, 5 * MIB, 0, &Rc::default());
            let mut rings = [ring(0, 4 * MIB, &[&disk])];
            let (_, state) = frames(&rings, 0).await;
            disk.apply(START + position, &frame(3, position, 2, &[entry(Fragment::Whole, 5)]));
            rings[0].sides[0].device = Rc::new(Spotted { disk, is_bad }) as Device;
            let (_, end) = replay(&rings, &state).await;
            assert_eq!((loss(&end).frames_after, loss(&end).watermark), (1, FrameSeq(2)));
        });
    }
}

#[test]
fn a_loss_without_missing_frames_says_how_far_the_log_was_durable() {
    Runtime::simulated(7).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let (_, state) = frames(&rings, 10).await;
        disk.unreadable.set((START + 10 * 8192, START + 10 * 8192 + 512));
        let (records, end) = replay(&rings, &state).await;
        let loss = loss(&end);
        assert_eq!((records.len(), loss.missing.len(), loss.watermark), (10, 0, FrameSeq(9)));
    });
}

// Both were in flight when the log stopped, and only the later one was finished.
#[test]
fn a_frame_that_is_not_there_before_a_whole_one_is_a_torn_tail() {
    for rings in [1, 2] {
        Runtime::simulated(8).block_on(async move {
            let disks = [Disk::alone(1), Disk::alone(2)];
            let rings: Vec<_> = (0..rings).map(|at| ring(at as u8, MIB, &[&disks[at]])).collect();
            let (_, state) = frames(&rings, 0).await;
            disks[0].apply(START, &frame(1, 0, 0, &[entry(Fragment::Whole, 5)]));
            disks[0].apply(START + 16_384, &frame(3, 16_384, 1, &[entry(Fragment::Whole, 7)]));
            let (records, end) = replay(&rings, &state).await;
            let torn = ReplayVerdict::TornTail { seq: FrameSeq(2) };
            assert_eq!((records.len(), end.verdict), (1, torn));
        });
    }
}

#[test]
fn torn_frames_in_every_ring_are_a_torn_tail() {
    for count in [1, 2, 3] {
        Runtime::simulated(9).block_on(async move {
            let disks = [Disk::alone(1), Disk::alone(2), Disk::alone(3)];
            let rings: Vec<_> = (0..count).map(|at| ring(at as u8, MIB, &[&disks[at]])).collect();
            let (_, state) = frames(&rings, 0).await;
            for (at, disk) in disks[..count].iter().enumerate() {
                let bytes =
                    frame_of_ring(at as u8, (1 + at as u64, 0), 0, &[entry(Fragment::Whole, 5)]);
                disk.apply(START, &bytes);
                disk.flip(START + bytes.len() as u64 - 100);
            }
            let (records, end) = replay(&rings, &state).await;
            let torn = ReplayVerdict::TornTail { seq: FrameSeq(1) };
            assert_eq!((records.len(), end.verdict), (0, torn), "{count} rings");
        });
    }
}
