//! The last value that is allowed, and the first that is not: configuration, and what is read back.

use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::*;
use crate::config::check_rings;
use crate::{ConfigError, LogError, RecordError};

#[test]
fn the_limits_of_a_configuration_are_allowed() {
    let config = LogConfig::new(POOL);
    for percent in [0, 1, 100, 101] {
        let found = LogConfig { pressure_percent: percent, ..config }.check();
        let expected = match percent {
            1..=100 => Ok(()),
            _ => Err(ConfigError::Pressure { percent }),
        };
        assert_eq!(found, expected);
    }
    for frames in [0, 1, 1024, 1025] {
        let found = LogConfig { frames_in_flight: frames, ..config }.check();
        let expected = match frames {
            1..=1024 => Ok(()),
            _ => Err(ConfigError::FramesInFlight { frames }),
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_ring_may_end_where_its_device_ends_and_is_below_16_tib() {
    let disk = Disk::alone(1);
    // The side begins at 8192.
    let fitting = 2 * MIB - 8192;
    assert_eq!(check_rings(&[ring(0, fitting, &[&disk])], true), Ok(()));
    let refused = check_rings(&[ring(0, fitting + 4096, &[&disk])], true);
    assert!(matches!(refused, Err(ConfigError::SideRange { .. })), "{refused:?}");
    let longest = (1 << 44) - 4096;
    assert_eq!(check_rings(&[ring(0, longest, &[])], false), Ok(()));
    for len_bytes in [1 << 44, MIB - 4096, MIB + 512] {
        let refused = check_rings(&[ring(0, len_bytes, &[])], false);
        assert_eq!(refused, Err(ConfigError::RingLength { ring: 0, len_bytes }));
    }
    assert_eq!(check_rings(&[ring(0, MIB, &[]), ring(63, MIB, &[])], false), Ok(()));
}

/// Writes a record of a block, and frees the space of all before it.
async fn write_one(log: &IntentLog, id: u64) {
    log.append(vec![write(id, id, 1)]).await.unwrap();
    let _ = log.state(TxgId(id));
    log.release(TxgId(id));
}

#[test]
fn a_newest_frame_that_is_lost_is_named_however_often_the_ring_was_filled() {
    Runtime::simulated(1).block_on(async {
        let disk = Disk::alone(1);
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[&disk])]);
        for id in 1..=400 {
            write_one(&log, id).await;
            if id % 40 == 0 {
                assert_eq!(log.check_newest_frames().await, []);
                let (offset, len) = *disk.writes().last().expect("a frame was written");
                disk.erase(offset, len);
                let lacking = log.check_newest_frames().await;
                let [(device, error)] = &lacking[..] else { panic!("{lacking:?} after {id}") };
                assert_eq!((device.0, error.offset_bytes), (1, offset));
            }
        }
        assert!(log.stats().wraps > 2);
    });
}

// The device has dropped a write, and what was there is a frame of the same log.
#[test]
fn a_newest_frame_in_whose_place_an_older_one_lies_is_named() {
    Runtime::simulated(1).block_on(async {
        let disk = Disk::alone(1);
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[&disk])]);
        let mut looked = 0;
        for id in 1..=400 {
            let before = disk.bytes(0, 2 * MIB as usize);
            write_one(&log, id).await;
            if log.stats().wraps < 2 || id % 20 != 0 {
                continue;
            }
            assert_eq!(log.check_newest_frames().await, []);
            let (offset, len) = *disk.writes().last().expect("a frame was written");
            let older = &before[offset as usize..][..len as usize];
            assert_eq!(older[..8], disk.bytes(offset, 8), "an older frame was there");
            disk.apply(offset, older);
            let lacking = log.check_newest_frames().await;
            let [(device, error)] = &lacking[..] else { panic!("{lacking:?} after {id}") };
            assert_eq!((device.0, error.offset_bytes), (1, offset));
            looked += 1;
        }
        assert!(looked > 3, "{looked}");
    });
}

// What comes after it may lie over it once half of the ring was written.
#[test]
fn a_frame_behind_which_half_of_the_ring_was_written_is_not_called_lost() {
    for (frames, is_named) in [(1, true), (63, true), (64, false), (70, false), (110, false)] {
        Runtime::simulated(2).block_on(async move {
            let disk = Disk::alone(1);
            let log = Rc::new(start(LogConfig::new(POOL), &[ring(0, MIB, &[&disk])]).0);
            write_one(&log, 1).await;
            disk.erase(8192, 8192);
            // Shorter than a log must be idle before a closing frame is written.
            disk.read_delay.set(Nanos::from_millis(4));
            let check = rt::spawn({
                let log = log.clone();
                async move { log.check_newest_frames().await }
            });
            rt::sleep(Nanos(1)).await;
            for id in 2..2 + frames {
                write_one(&log, id).await;
            }
            assert!(!check.is_finished());
            let lacking = check.await.len();
            assert_eq!((lacking, log.stats().closing_frames), (usize::from(is_named), 0));
        });
    }
}

#[test]
fn a_paused_log_gets_no_closing_frame() {
    Runtime::simulated(3).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        rt::sleep(Nanos::from_millis(1)).await;
        log.pause().await;
        rt::sleep(Nanos::from_millis(20)).await;
        assert_eq!((log.stats().closing_frames, disk.writes().len()), (0, 1));
        let next = log.next_state(&rings, 2, TxgId(1));
        log.release(TxgId(1));
        log.resume(&rings, &next).await.unwrap();
        log.append(vec![write(2, 2, 1)]).await.unwrap();
        rt::sleep(Nanos::from_millis(20)).await;
        assert_eq!((log.stats().closing_frames, disk.writes().len()), (1, 3));
    });
}

#[test]
fn a_record_has_blocks_and_ends_with_the_last_block_of_any_volume() {
    let last = u64::MAX / 4096;
    let check = |lba, blocks| {
        let record = Record::zero(VolumeId(1), TxgId(1), Lba(lba), blocks);
        record.check(TxgId(0))
    };
    assert_eq!((check(0, 1), check(last - 5, 5)), (Ok(()), Ok(())));
    for (lba, blocks) in [(0, 0), (7, 0), (last - 5, 6), (last, 1), (u64::MAX, 1)] {
        let (volume, lba, error) = (VolumeId(1), Lba(lba), RecordError::Range);
        let refused = LogError::BadRecord { volume, lba, blocks, error };
        assert_eq!(check(lba.0, blocks), Err(refused));
    }
}

#[test]
fn a_log_says_whether_it_runs_and_starts_only_from_its_own_empty_state() {
    Runtime::simulated(4).block_on(async {
        let disk = Disk::alone(1);
        let rings = [ring(0, MIB, &[&disk])];
        let config = LogConfig::new(POOL);
        let state = IntentLog::empty_state(&config, &rings, 1, TxgId(0), FrameSeq(1));
        let other = LogState { watermark: FrameSeq(1), ..state.clone() };
        let refused = IntentLog::start(config, &rings, &other).err();
        assert!(matches!(refused, Some(LogError::NotEmpty { .. })), "{refused:?}");
        let log = IntentLog::start(config, &rings, &state).unwrap();
        assert_eq!((log.is_paused(), log.is_failed()), (false, false));
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        log.pause().await;
        assert_eq!((log.is_paused(), log.is_failed()), (true, false));
        log.release(TxgId(1));
        let next = log.next_state(&rings, 2, TxgId(1));
        let other = LogState { next_seq: next.next_seq.next(), ..next.clone() };
        let refused = log.resume(&rings, &other).await;
        assert!(matches!(refused, Err(LogError::NotEmpty { .. })), "{refused:?}");
        assert!(log.is_paused());
        log.resume(&rings, &next).await.unwrap();
        assert_eq!((log.is_paused(), log.is_failed()), (false, false));
        log.fail_side(DeviceId(1), DeviceError::new("x", Operation::Write, 0, 0, ErrorKind::Gone));
        assert_eq!((log.is_paused(), log.is_failed()), (true, true));
    });
}
