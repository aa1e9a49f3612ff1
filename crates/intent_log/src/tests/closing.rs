//! What frames say of those before them, and of roots: closing frames, newer roots, witnesses.

use std::cell::Cell;

use forebay_format::label::LogMark;
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::disk::Power;
use super::*;
use crate::{LogError, ReplayVerdict, newest_epoch};

/// Longer than a log must be idle before a closing frame is written.
const MOMENT: Nanos = Nanos::from_millis(20);

fn disk() -> Rc<Disk> {
    Disk::alone(0)
}

/// The place of frame `number` when all before it have one record of a block.
fn frame_at(number: u64) -> u64 {
    8192 + (number - 1) * 8192
}

fn assert_loss(end: &ReplayEnd, first: u64, last: u64) {
    let ReplayVerdict::Loss(loss) = &end.verdict else { panic!("{end:?}") };
    assert_eq!(loss.missing, [(FrameSeq(first), FrameSeq(last))]);
}

#[test]
fn loss_of_the_last_frame_of_an_idle_log_is_no_torn_tail() {
    Runtime::simulated(1).block_on(async {
        for pause in [Nanos::ZERO, MOMENT] {
            let disk = disk();
            let rings = [ring(0, MIB, &[&disk])];
            let (log, state) = start(LogConfig::new(POOL), &rings);
            for id in 1..=3 {
                log.append(vec![write(id, id, 1)]).await.unwrap();
            }
            rt::sleep(pause).await;
            let is_closed = pause > Nanos::ZERO;
            assert_eq!(log.stats().closing_frames, u64::from(is_closed));
            let (records, end) = replay(&rings, &state).await;
            assert_eq!((records.len(), end.verdict), (3, ReplayVerdict::CleanEnd));
            disk.erase(frame_at(3), 8192);
            let (records, end) = replay(&rings, &state).await;
            assert_eq!(records.len(), 2);
            match is_closed {
                true => assert_loss(&end, 3, 3),
                false => assert_eq!(end.verdict, ReplayVerdict::CleanEnd),
            }
        }
    });
}

#[test]
fn a_log_in_use_gets_no_closing_frames() {
    Runtime::simulated(2).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        for id in 1..=40 {
            log.append(vec![write(id, id, 1)]).await.unwrap();
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(log.stats().closing_frames, 0);
        rt::sleep(MOMENT).await;
        rt::sleep(Nanos::from_secs(60)).await;
        assert_eq!((log.stats().closing_frames, log.stats().frames), (1, 40));
        log.append(vec![write(41, 41, 1)]).await.unwrap();
        rt::sleep(MOMENT).await;
        assert_eq!(log.stats().closing_frames, 2);
    });
}

#[test]
fn a_frame_written_after_a_root_proves_that_root() {
    Runtime::simulated(3).block_on(async {
        // Also of a log that was idle, and has a closing frame, when the root was written.
        for (was_idle, with_record) in [(false, false), (false, true), (true, false)] {
            let disk = disk();
            let rings = [ring(0, MIB, &[&disk])];
            let (log, older) = start(LogConfig::new(POOL), &rings);
            log.append(vec![write(1, 1, 1)]).await.unwrap();
            log.append(vec![write(2, 2, 1)]).await.unwrap();
            if was_idle {
                rt::sleep(MOMENT).await;
            }
            let newer = log.state(TxgId(1));
            log.release(TxgId(1));
            match with_record {
                true => log.append(vec![write(3, 2, 1)]).await.unwrap(),
                false => rt::sleep(MOMENT).await,
            }
            let (records, end) = replay(&rings, &newer).await;
            assert_eq!(records.len(), 1 + usize::from(with_record));
            assert_eq!(end.verdict, ReplayVerdict::CleanEnd);
            let (records, end) = replay(&rings, &older).await;
            assert_eq!(records.iter().map(|record| record.lba.0).collect::<Vec<_>>(), [1, 2]);
            let seq = FrameSeq(if was_idle { 4 } else { 3 });
            let proof = ReplayVerdict::NewerRoot { seq, committed: TxgId(1) };
            assert_eq!(end.verdict, proof);
            // The hole does not hide it: the log went on behind a root that is not here.
            disk.erase(frame_at(1), 8192);
            let (records, end) = replay(&rings, &older).await;
            assert_eq!((records.len(), end.verdict), (0, proof));
        }
    });
}

// The commit of a group ends the writing of its records, so the log may hold only a part of a long
// record. It is left out with the frames that were written after the root of that commit.
#[test]
fn replay_for_an_older_root_drops_incomplete_split_writes() {
    Runtime::simulated(30).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let config = LogConfig { frames_in_flight: 1, ..LogConfig::new(POOL) };
        let (log, older) = start(config, &rings);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        let long = log.append(vec![write(2, 1, 100)]);
        rt::yield_now().await;
        rt::sleep(Nanos(0)).await;
        let newer = log.state(TxgId(1));
        log.release(TxgId(1));
        long.await.unwrap();
        log.append(vec![write(3, 2, 1), write(4, 2, 60)]).await.unwrap();
        let (records, _) = replay(&rings, &newer).await;
        assert_eq!(records.iter().map(|r| r.lba.0).collect::<Vec<_>>(), [3, 4]);
        let (records, end) = replay(&rings, &older).await;
        assert!(same(&records[0], &write(1, 1, 1)) && records.len() == 1);
        let expected = ReplayVerdict::NewerRoot { seq: FrameSeq(3), committed: TxgId(1) };
        assert_eq!(end.verdict, expected);
    });
}

#[test]
fn the_newest_epoch_is_at_the_start_of_the_rings() {
    Runtime::simulated(4).block_on(async {
        let (disk, other) = (disk(), Disk::alone(1));
        let rings = [ring(0, MIB, &[&disk]), ring(1, MIB, &[&other])];
        assert_eq!(newest_epoch(&rings, POOL).await, None);
        let (log, _) = start(LogConfig::new(POOL), &rings[..1]);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        assert_eq!(newest_epoch(&rings, POOL).await, Some((1, "disk0".into())));
        assert_eq!(newest_epoch(&rings, POOL + 1).await, None);
        log.pause().await;
        let next = log.next_state(&rings, 7, TxgId(1));
        log.release(TxgId(1));
        log.resume(&rings, &next).await.unwrap();
        log.append(vec![write(2, 2, 1)]).await.unwrap();
        assert_eq!(newest_epoch(&rings, POOL).await.map(|(epoch, _)| epoch), Some(7));
        disk.flip(8192 + 4096);
        other.flip(8192 + 4096);
        assert_eq!(newest_epoch(&rings, POOL).await.map(|(epoch, _)| epoch), None);
    });
}

#[test]
fn appends_wait_for_the_witness_if_asked() {
    Runtime::simulated(5).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let config = LogConfig { waits_for_witness: true, ..LogConfig::new(POOL) };
        let (log, _) = start(config, &rings);
        let log = Rc::new(log);
        let done = Rc::new(Cell::new(0));
        let append = |id| {
            let (log, done) = (log.clone(), done.clone());
            rt::spawn_detached(Box::pin(async move {
                log.append(vec![write(id, 1, 1)]).await.unwrap();
                done.set(done.get() + 1);
            }));
        };
        append(1);
        let first = log.mark_after(log.mark()).await;
        append(2);
        let second = log.mark_after(first).await;
        rt::sleep(MOMENT).await;
        assert_eq!(done.get(), 0);
        log.witnessed(LogMark { epoch: first.epoch + 1, ..second });
        rt::yield_now().await;
        assert_eq!(done.get(), 0, "a mark of another epoch");
        log.witnessed(first);
        rt::sleep(MOMENT).await;
        assert_eq!(done.get(), 1);
        append(3);
        rt::sleep(MOMENT).await;
        log.release(TxgId(1));
        rt::sleep(MOMENT).await;
        assert_eq!(done.get(), 3, "their group is committed");
        let late = rt::spawn(log.append(vec![write(5, 2, 1)]));
        rt::sleep(MOMENT).await;
        log.wait_for_witness(true);
        rt::sleep(MOMENT).await;
        assert!(!late.is_finished());
        log.wait_for_witness(false);
        late.await.unwrap();
        let (log, done) = (log.clone(), done.clone());
        rt::spawn_detached(Box::pin(async move {
            log.append(vec![write(4, 2, 1)]).await.unwrap();
            done.set(4);
            log.wait_for_witness(true);
        }));
    });
}

#[test]
fn a_log_that_runs_may_begin_to_wait_for_its_witness() {
    Runtime::simulated(10).block_on(async {
        let disk = disk();
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[&disk])]);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        log.wait_for_witness(true);
        let late = rt::spawn(log.append(vec![write(2, 1, 1)]));
        rt::sleep(MOMENT).await;
        assert!(!late.is_finished());
        log.witnessed(log.mark());
        late.await.unwrap();
    });
}

#[test]
fn a_wait_for_the_next_mark_ends_with_the_log() {
    Runtime::simulated(11).block_on(async {
        let disk = disk();
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[&disk])]);
        let log = Rc::new(log);
        let seen = log.mark();
        let waits = rt::spawn(Box::pin({
            let log = log.clone();
            async move { log.mark_after(seen).await }
        }));
        rt::sleep(MOMENT).await;
        assert!(!waits.is_finished());
        log.close();
        assert_eq!(waits.await, seen);
    });
}

#[test]
fn a_side_that_lacks_the_newest_frame_is_named() {
    Runtime::simulated(6).block_on(async {
        let power = Rc::new(Power::default());
        let sides = [0, 1].map(|id| Disk::new(id, 2 * MIB, 5, &power));
        let rings = [ring(0, MIB, &[&sides[0], &sides[1]])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        assert_eq!(log.check_newest_frames().await, []);
        for id in 1..=3 {
            log.append(vec![write(id, 1, 1)]).await.unwrap();
        }
        assert_eq!(log.check_newest_frames().await, []);
        // An older frame is not looked at; the newest is.
        sides[1].erase(4096 + frame_at(1), 8192);
        assert_eq!(log.check_newest_frames().await, []);
        sides[1].erase(4096 + frame_at(3), 8192);
        let lacking = log.check_newest_frames().await;
        let [(device, error)] = &lacking[..] else { panic!("{lacking:?}") };
        assert_eq!((device.0, error.offset_bytes), (1, 4096 + frame_at(3)));
        log.append(vec![write(4, 1, 1)]).await.unwrap();
        // The log is full of newer frames before the check has read: nothing can be said.
        let log = Rc::new(log);
        let busy = log.clone();
        let writer = rt::spawn(async move {
            for round in 5..300 {
                busy.append(vec![write(round, round, 4)]).await.unwrap();
                let _ = busy.state(TxgId(round));
                busy.release(TxgId(round));
            }
        });
        for _ in 0..200 {
            assert_eq!(log.check_newest_frames().await, []);
        }
        writer.await;
    });
}

#[test]
fn a_frame_that_is_overwritten_while_it_is_read_back_is_not_called_lost() {
    Runtime::simulated(7).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let log = Rc::new(start(LogConfig::new(POOL), &rings).0);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        disk.read_delay.set(Nanos::from_secs(1));
        let check = rt::spawn({
            let log = log.clone();
            async move { log.check_newest_frames().await }
        });
        rt::yield_now().await;
        for round in 2..100 {
            log.append(vec![write(round, round, 4)]).await.unwrap();
            let _ = log.state(TxgId(round));
            log.release(TxgId(round));
        }
        assert!(log.stats().wraps > 0 && !check.is_finished());
        assert_eq!(check.await, []);
    });
}

#[test]
fn a_closing_frame_takes_the_last_block_of_a_ring() {
    Runtime::simulated(8).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        // Three blocks, then two for each. The longest frame has 32 blocks: it would not fit any
        // more behind block 224 of 256.
        log.append(vec![write(1, 1, 2)]).await.unwrap();
        for id in 2..=112 {
            log.append(vec![write(id, 2, 1)]).await.unwrap();
        }
        rt::sleep(MOMENT).await;
        assert_eq!(log.stats().closing_frames, 0, "there is no room");
        let state = log.state(TxgId(1));
        log.release(TxgId(1));
        log.append(vec![write(113, 2, 1)]).await.unwrap();
        rt::sleep(MOMENT).await;
        assert_eq!((log.stats().closing_frames, log.used_bytes()), (1, MIB));
        // Replay finds it there, and so what is missing before it.
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (112, ReplayVerdict::CleanEnd));
        disk.erase(8192, 8192);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!(records.len(), 111);
        assert_loss(&end, 113, 113);
    });
}

#[test]
fn a_closed_log_keeps_no_device_open() {
    Runtime::simulated(9).block_on(async {
        let disk = disk();
        let rings = [ring(0, MIB, &[&disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        // Nor does one that had other rings before.
        log.pause().await;
        let next = log.next_state(&rings, 2, TxgId(1));
        log.release(TxgId(1));
        log.resume(&rings, &next).await.unwrap();
        log.append(vec![write(1, 2, 1)]).await.unwrap();
        drop(rings);
        assert!(Rc::strong_count(&disk) > 1);
        log.close();
        assert_eq!(log.append(vec![write(2, 1, 1)]).await, Err(LogError::Closed));
        assert_eq!(log.append(Vec::new()).await, Err(LogError::Closed));
        drop(log);
        rt::sleep(Nanos(1)).await;
        assert_eq!(Rc::strong_count(&disk), 1);
    });
}
