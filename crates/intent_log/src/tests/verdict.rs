//! The verdict on the log's end: clean, torn, or a loss with its location.

use super::disk::Power;
use super::*;
use crate::{FrameFault, LogError, ReplayVerdict};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

struct Written {
    disks: Vec<Rc<Disk>>,
    rings: Vec<LogRing>,
    state: LogState,
    /// The log's state after the last frame.
    late: LogState,
}

/// Writes ten frames of two blocks, one after the other, on `ring_count` mirrors of `side_count`.
async fn ten_frames(ring_count: usize, side_count: usize) -> Written {
    let power = Rc::new(Power::default());
    let new = |id| Disk::new(id as u32, 2 * MIB, 5, &power);
    let disks: Vec<Rc<Disk>> = (0..ring_count * side_count).map(new).collect();
    let sides = |i: usize| disks[i * side_count..][..side_count].iter().collect::<Vec<_>>();
    let rings: Vec<_> = (0..ring_count).map(|i| ring(i as u8, MIB, &sides(i))).collect();
    let (log, state) = start(LogConfig::new(POOL), &rings);
    for id in 1..=10 {
        log.append(vec![write(id, id, 1)]).await.unwrap();
    }
    let late = log.state(TxgId(0));
    assert_eq!(late.watermark, FrameSeq(10));
    Written { disks, rings, state, late }
}

fn ids(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.lba.0).collect()
}

#[test]
fn corruption_in_the_middle_is_a_loss_with_frames_and_location() {
    Runtime::simulated(1).block_on(async {
        let Written { disks, rings, state, .. } = ten_frames(1, 1).await;
        let bad = 8192 + 4 * 8192;
        disks[0].flip(bad + 5000);
        disks[0].flip(bad + 2 * 8192 + 5000);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((ids(&records), end.last_seq), (vec![1, 2, 3, 4], FrameSeq(4)));
        let ReplayVerdict::Loss(loss) = &end.verdict else { panic!("{end:?}") };
        let runs = [(FrameSeq(5), FrameSeq(5)), (FrameSeq(7), FrameSeq(7))];
        assert_eq!((&loss.missing[..], loss.watermark), (&runs[..], FrameSeq(9)));
        assert_eq!((loss.frames_after, loss.txg_before), (4, TxgId(4)));
        assert_eq!((loss.txg_after, &loss.volumes_hint[..]), (Some(TxgId(6)), &[VolumeId(5)][..]));
        assert_eq!(loss.damages[0].location.offset_bytes, bad);
        assert!(matches!(loss.damages[0].fault, FrameFault::Format(_)), "{loss}");
        let text = loss.to_string();
        let expected = "the log has lost acknowledged writes: frames 5 to 5, frames 7 to 7 ";
        assert!(text.starts_with(expected), "{text}");
    });
}

#[test]
fn one_frame_beyond_a_hole_is_found_at_every_distance() {
    Runtime::simulated(9).block_on(async {
        // The ring is longer than several reads of a scan. Frames have two blocks; one frame of
        // three blocks shifts the rest by a block.
        for shifted in [false, true] {
            let power = Rc::new(Power::default());
            let disk = Disk::new(0, 5 * MIB, 5, &power);
            let rings = [ring(0, 4 * MIB, &[&disk])];
            let (log, state) = start(LogConfig::new(POOL), &rings);
            for id in 1..=450 {
                log.append(vec![write(id, id, if id == 2 && shifted { 2 } else { 1 })])
                    .await
                    .unwrap();
            }
            let shift = if shifted { 4096 } else { 0 };
            let kept = disk.bytes(8192, 4 * MIB as usize);
            for left in [4, 64, 127, 128, 129, 130, 255, 256, 257, 300, 384, 385, 449, 450] {
                let at = 8192 + (left - 1) * 8192 + shift;
                disk.erase(8192 + 8192, 4 * MIB - 8192);
                disk.apply(at, &kept[(at - 8192) as usize..][..8192]);
                let (records, end) = replay(&rings, &state).await;
                assert_eq!(ids(&records), [1]);
                let ReplayVerdict::Loss(loss) = &end.verdict else { panic!("{left}: {end:?}") };
                assert_eq!((loss.frames_after, loss.watermark), (1, FrameSeq(left - 1)));
            }
        }
    });
}

#[test]
fn corruption_at_the_tail_is_torn_unless_the_superblock_has_a_later_watermark() {
    Runtime::simulated(2).block_on(async {
        let Written { disks, rings, state, late } = ten_frames(1, 1).await;
        disks[0].flip(8192 + 9 * 8192 + 4096);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!(
            (records.len(), end.verdict),
            (9, ReplayVerdict::TornTail { seq: FrameSeq(10) })
        );
        let (records, end) = replay(&rings, &late).await;
        let ReplayVerdict::Loss(loss) = &end.verdict else { panic!("{end:?}") };
        assert_eq!((records.len(), &loss.missing[..]), (9, &[(FrameSeq(10), FrameSeq(10))][..]));

        disks[0].erase(8192 + 9 * 8192, 8192);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (9, ReplayVerdict::CleanEnd));
        assert!(matches!(replay(&rings, &late).await.1.verdict, ReplayVerdict::Loss(_)));
    });
}

// Both frames were in flight when the power failed: neither says that the other was durable.
#[test]
fn a_torn_frame_before_a_whole_one_is_a_torn_tail() {
    Runtime::simulated(11).block_on(async {
        let disk = Disk::alone(0);
        let rings = [ring(0, MIB, &[&disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        let second = rt::spawn(log.append(vec![write(2, 1, 1)]));
        rt::sleep(Nanos(1)).await;
        let third = rt::spawn(log.append(vec![write(3, 1, 1)]));
        second.await.unwrap();
        third.await.unwrap();
        disk.flip(8192 + 8192 + 5000);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!(
            (ids(&records), end.verdict),
            (vec![1], ReplayVerdict::TornTail { seq: FrameSeq(2) })
        );
    });
}

#[test]
fn replay_reads_each_frame_from_the_side_that_has_it() {
    Runtime::simulated(3).block_on(async {
        let Written { disks, rings, state, .. } = ten_frames(1, 2).await;
        let starts = [8192, 12288];
        for frame in 0..10 {
            let disk = (frame / 2) as usize % 2;
            disks[disk].flip(starts[disk] + frame * 8192 + 100 * frame);
        }
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), &end.verdict), (10, &ReplayVerdict::CleanEnd));
        assert_eq!((end.frames, end.records, end.bytes), (10, 10, 10 * 8192));
        assert_eq!(
            end.damages.len(),
            5,
            "replay leaves a side only where it is bad: {:?}",
            end.damages
        );
        // A side that cannot be read at all is not a loss.
        let Written { disks, rings, state, .. } = ten_frames(1, 2).await;
        disks[0].unreadable.set((0, 2 * MIB));
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (10, ReplayVerdict::CleanEnd));
        // The same frame bad on both sides is a loss.
        disks[1].flip(12288 + 3 * 8192);
        let (records, end) = replay(&rings, &state).await;
        assert!(records.len() == 3 && matches!(end.verdict, ReplayVerdict::Loss(_)), "{end:?}");
    });
}

#[test]
fn one_bad_sector_hides_no_other_frame() {
    Runtime::simulated(4).block_on(async {
        let Written { disks, rings, state, .. } = ten_frames(1, 1).await;
        disks[0].unreadable.set((8192 + 10 * 8192, 8192 + 10 * 8192 + 512));
        let (records, end) = replay(&rings, &state).await;
        assert_eq!(records.len(), 10, "{end:?}");
        let ReplayVerdict::Loss(loss) = end.verdict else { panic!("nothing proves a clean end") };
        assert!(loss.missing.is_empty() && matches!(loss.damages[0].fault, FrameFault::Read(_)));
        disks[0].unreadable.set((8192 + 2 * 8192, 8192 + 2 * 8192 + 512));
        let (records, end) = replay(&rings, &state).await;
        let ReplayVerdict::Loss(loss) = end.verdict else { panic!("{end:?}") };
        assert_eq!((records.len(), loss.frames_after), (2, 7));
    });
}

#[test]
fn frames_beyond_a_hole_are_sought_on_every_side() {
    Runtime::simulated(10).block_on(async {
        for side in [0, 1] {
            let Written { disks, rings, state, .. } = ten_frames(1, 2).await;
            let starts = [8192, 12288];
            // Replay begins with the first side, and goes on with the second from frame 2 on.
            disks[0].flip(starts[0] + 8192);
            (0..2).for_each(|at| disks[at].flip(starts[at] + 4 * 8192));
            let other = 1 - side;
            disks[other].erase(starts[other] + 5 * 8192, 5 * 8192);
            let (records, end) = replay(&rings, &state).await;
            let ReplayVerdict::Loss(loss) = end.verdict else { panic!("{end:?}") };
            assert_eq!((records.len(), loss.frames_after), (4, 5), "on side {side}");
        }
    });
}

#[test]
fn rings_that_cannot_be_read_at_their_end_are_a_loss() {
    Runtime::simulated(11).block_on(async {
        for unreadable in [vec![0], vec![1], vec![0, 1]] {
            let Written { disks, rings, late, .. } = ten_frames(2, 1).await;
            for at in &unreadable {
                disks[*at].unreadable.set((0, 2 * MIB));
            }
            let (_, end) = replay(&rings, &late).await;
            assert!(matches!(end.verdict, ReplayVerdict::Loss(_)), "{unreadable:?}: {end:?}");
            // Nothing proves that there was a frame.
            let empty = LogState { tail_seq: late.next_seq, ..late };
            let (_, end) = replay(&rings, &empty).await;
            assert!(matches!(end.verdict, ReplayVerdict::Loss(_)), "{unreadable:?}: {end:?}");
        }
    });
}

// A frame that was never finished can be read: its sum is wrong.
#[test]
fn a_last_frame_whose_data_cannot_be_read_is_a_loss() {
    Runtime::simulated(13).block_on(async {
        for sides in [1, 2] {
            let Written { disks, rings, state, .. } = ten_frames(1, sides).await;
            for (disk, side) in disks.iter().zip(&rings[0].sides) {
                let data = side.start_bytes + 9 * 8192 + 4096;
                disk.unreadable.set((data, data + 512));
            }
            let (records, end) = replay(&rings, &state).await;
            assert_eq!(records.len(), 9);
            assert!(matches!(end.verdict, ReplayVerdict::Loss(_)), "{sides} sides: {end:?}");
        }
    });
}

#[test]
fn replay_reads_on_over_the_ends_of_its_reads() {
    Runtime::simulated(12).block_on(async {
        let disk = Disk::new(0, 17 * MIB, 5, &Rc::new(Power::default()));
        let rings = [ring(0, 16 * MIB, &[&disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        // Frames of three blocks lie across the ends of reads.
        for id in 1..=1200 {
            log.append(vec![write(id, 1, 2)]).await.unwrap();
        }
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (1200, ReplayVerdict::CleanEnd));
        assert!(records.iter().zip(1..).all(|(record, id)| same(record, &write(id, 1, 2))));
    });
}

#[test]
fn an_absent_ring_is_a_loss_by_name() {
    Runtime::simulated(5).block_on(async {
        let Written { rings, state, late, .. } = ten_frames(3, 1).await;
        let (records, end) = replay(&rings, &late).await;
        assert_eq!((records.len(), end.verdict), (10, ReplayVerdict::CleanEnd));
        let (records, end) = replay(&[rings[0].clone(), rings[2].clone()], &state).await;
        let ReplayVerdict::Loss(loss) = end.verdict else { panic!("{end:?}") };
        let prefix = records.len() as u64;
        assert!(prefix < 3 && ids(&records) == (1..=prefix).collect::<Vec<_>>());
        assert_eq!(loss.absent_rings, [1]);
        assert_eq!(loss.missing[0], (FrameSeq(prefix + 1), FrameSeq(prefix + 1)));
        // One bad frame in one ring of three ends the prefix of all rings.
        let Written { disks, rings, state, .. } = ten_frames(3, 1).await;
        disks[1].flip(8192);
        let (records, end) = replay(&rings, &state).await;
        let ReplayVerdict::Loss(loss) = end.verdict else { panic!("{end:?}") };
        assert!(records.len() < 3);
        assert_eq!((loss.missing.len(), loss.frames_after), (1, 9 - records.len() as u64));
    });
}

#[test]
fn a_loss_describes_only_the_rings_that_may_hold_the_missing_frame() {
    Runtime::simulated(12).block_on(async {
        let Written { disks, rings, state, .. } = ten_frames(3, 2).await;
        let starts = [8192, 12288];
        // Both sides of one ring, and in the others the side that need not be read.
        disks[2].flip(starts[0]);
        disks[3].flip(starts[1]);
        for frame in 0..5 {
            disks[1].flip(starts[1] + frame * 8192 + 5000);
            disks[5].flip(starts[1] + frame * 8192 + 5000);
        }
        let (_, end) = replay(&rings, &state).await;
        let ReplayVerdict::Loss(loss) = end.verdict else { panic!("{end:?}") };
        let described: Vec<_> = loss.damages.iter().map(|damage| damage.location.ring).collect();
        assert_eq!(described, [1, 1], "{loss}");
    });
}

#[test]
fn copies_of_frames_inside_data_are_not_replayed() {
    Runtime::simulated(6).block_on(async {
        let power = Rc::new(Power::default());
        let disk = Disk::new(1, 2 * MIB, 5, &power);
        let rings = [ring(0, MIB, &[&disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        for id in 1..=3 {
            log.append(vec![write(id, 1, 1)]).await.unwrap();
        }
        // A client stores an image of the log device in a volume.
        let image = forebay_device::BlockDevice::read(&*disk, 8192, IoBuf::zeroed(6 * 4096));
        let image = image.await.unwrap().freeze();
        let record = Record::write(VolumeId(1), TxgId(1), Lba(1), image);
        log.append(vec![record]).await.unwrap();
        disk.erase(8192 + 2 * 8192, 4096);
        disk.flip(8192 + 3 * 8192);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (2, ReplayVerdict::CleanEnd));
    });
}

#[test]
fn state_for_other_rings_is_refused_and_frames_of_another_pool_are_ignored() {
    Runtime::simulated(7).block_on(async {
        let Written { disks, rings, state, .. } = ten_frames(1, 1).await;
        let shorter = ring(0, MIB + 4096, &[&disks[0]]);
        let error = Replay::open(vec![shorter], &state, POOL).err().unwrap();
        assert!(matches!(error, LogError::RingLength { ring: 0, .. }), "{error}");
        let mut stranger = Replay::open(rings.clone(), &state, POOL + 1).unwrap();
        assert!(stranger.next().await.unwrap().is_none());
        assert_eq!(stranger.end().unwrap().verdict, ReplayVerdict::CleanEnd);
        let older = LogState { epoch: 2, ..state };
        assert_eq!(replay(&rings, &older).await.0.len(), 0);
    });
}
