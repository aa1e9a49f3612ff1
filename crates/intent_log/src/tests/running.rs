//! The log while it runs.

use super::disk::Power;
use super::*;
use crate::{
    ConfigError, GroupCommit, LogError, LogEvent, LogStats, NotQuiet, RecordError, RecordKind,
    ReplayVerdict,
};
use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_format::log_frame::MAX_FRAME_BYTES;
use forebay_rt::{Runtime, join_all, sleep, spawn, timeout, yield_now};
use forebay_units::Nanos;

fn disks(count: u32, size_bytes: u64) -> Vec<Rc<Disk>> {
    let power = Rc::new(Power::default());
    (1..=count).map(|id| Disk::new(id, size_bytes, 20, &power)).collect()
}

#[test]
fn append_at_queue_depth_one_is_one_write_of_two_blocks() {
    Runtime::simulated(1).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        for id in 1..=20 {
            log.append(vec![write(id, 1, 1)]).await.unwrap();
        }
        let expected: Vec<_> = (0..20).map(|i| (8192 + i * 8192, 8192)).collect();
        assert_eq!(disk.writes(), expected);
        let stats = log.stats();
        assert_eq!(
            (stats.frames, stats.frames_by_records[0], stats.frames_by_len[1]),
            (20, 20, 20)
        );
        assert_eq!(stats.used_bytes, 20 * 8192);
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.frames, end.verdict), (20, 20, ReplayVerdict::CleanEnd));
        assert!(records.iter().zip(1..).all(|(record, id)| same(record, &write(id, 1, 1))));
    });
}

#[test]
fn waiting_appends_share_a_frame() {
    Runtime::simulated(2).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let config = LogConfig { frames_in_flight: 1, ..LogConfig::new(POOL) };
        let (log, state) = start(config, &rings);
        let first = log.append(vec![write(1, 1, 1)]);
        yield_now().await;
        sleep(Nanos(0)).await;
        let rest: Vec<_> = (2..=31).map(|id| log.append(vec![write(id, 1, 1)])).collect();
        first.await.unwrap();
        join_all(rest).await.into_iter().for_each(|outcome| outcome.unwrap());
        let writes = disk.writes();
        assert!(writes.len() <= 2, "{writes:?}");
        assert_eq!(replay(&rings, &state).await.0.len(), 31);
    });
}

#[test]
fn writes_of_a_hundred_volumes_are_one_sequential_stream() {
    Runtime::simulated(3).block_on(async {
        let disk = &disks(1, 17 * MIB)[0];
        let rings = [ring(0, 16 * MIB, &[disk])];
        let log = Rc::new(start(LogConfig::new(POOL), &rings).0);
        let open = Rc::new(std::cell::Cell::new(1));
        let clients = (0..100u64).map(|client| {
            let (log, open) = (log.clone(), open.clone());
            spawn(async move {
                for i in 0..80 {
                    let id = client + 100 * i;
                    log.append(vec![write(id, open.get(), 1)]).await.unwrap();
                    if client == 0 && i % 5 == 4 {
                        let done = TxgId(open.replace(open.get() + 1));
                        let _ = log.state(done);
                        log.release(done);
                    }
                }
            })
        });
        join_all(clients).await;
        let stats = log.stats();
        assert_eq!(stats.records, 8000 - stats.records_overtaken);
        let writes = disk.writes();
        let follows = writes.windows(2).filter(|pair| pair[0].0 + pair[0].1 == pair[1].0).count();
        assert!(stats.wraps > 0, "the ring must be gone round: {stats:?}");
        let share = follows as f64 / (writes.len() - 1) as f64;
        assert!(share >= 0.99, "{share} of {} writes", writes.len());
        let counted_share = stats.sequential_frames as f64 / stats.frames as f64;
        assert!((counted_share - share).abs() < 0.01);
    });
}

#[test]
fn full_log_reports_pressure_waits_and_never_overwrites_live_frames() {
    Runtime::simulated(4).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        let waits: Vec<_> =
            (1..=300).map(|id| log.append(vec![write(id, 1 + id / 200, 1)])).collect();
        sleep(Nanos::from_millis(10)).await;
        assert_eq!(log.next_event().await, LogEvent::Pressure);
        let stats = log.stats();
        assert!(stats.queued_records > 0 && stats.frames_in_flight == 0, "{stats:?}");
        assert!(stats.used_bytes <= MIB);
        // Every record that entered the log is still there.
        let (records, end) = replay(&rings, &state).await;
        assert_eq!(records.len() as u64, 300 - stats.queued_records);
        assert_eq!(end.verdict, ReplayVerdict::CleanEnd);
        // A release without a recorded state frees nothing, because replay may still begin at the
        // old tail. It does acknowledge.
        log.release(TxgId(1));
        assert_eq!(log.used_bytes(), stats.used_bytes);
        let state = log.state(TxgId(1));
        log.release(TxgId(1));
        assert!(log.used_bytes() < stats.used_bytes);
        join_all(waits).await.into_iter().for_each(|outcome| outcome.unwrap());
        let (records, _) = replay(&rings, &state).await;
        let ids: Vec<u64> = records.iter().map(|record| record.lba.0).collect();
        assert_eq!(ids, (200..=300).collect::<Vec<_>>());
        assert_eq!(
            log.append(vec![write(9, 1, 1)]).await.unwrap_err(),
            LogError::BadRecord {
                volume: VolumeId(9),
                lba: Lba(9),
                blocks: 1,
                error: RecordError::Committed { txg: TxgId(1) },
            }
        );
    });
}

#[test]
fn a_refused_record_leaves_the_others_of_its_append_out() {
    Runtime::simulated(14).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        let empty = Record::zero(VolumeId(1), TxgId(1), Lba(9), 0);
        let refused = log.append(vec![write(1, 1, 1), empty]).await.unwrap_err();
        assert!(matches!(refused, LogError::BadRecord { lba: Lba(9), .. }), "{refused}");
        log.append(vec![write(2, 1, 1)]).await.unwrap();
        let (records, _) = replay(&rings, &state).await;
        assert_eq!(records.len(), 1);
        assert!(same(&records[0], &write(2, 1, 1)));
    });
}

#[test]
fn pressure_is_reported_once_at_its_share_of_the_log_and_again_after_a_release() {
    Runtime::simulated(13).block_on(async {
        for (pressure_percent, frames) in [(1, 2), (50, 64), (99, 127)] {
            let disk = &disks(1, 2 * MIB)[0];
            let config =
                LogConfig { max_frame_bytes: 8192, pressure_percent, ..LogConfig::new(POOL) };
            let (log, _) = start(config, &[ring(0, MIB, &[disk])]);
            for txg in 1..=2 {
                for number in 1..=128 {
                    log.append(vec![write(number, txg, 1)]).await.unwrap();
                    let expected = (number == frames).then_some(LogEvent::Pressure);
                    assert_eq!(log.take_event(), expected, "{number} of {frames}");
                }
                let _ = log.state(TxgId(txg));
                log.release(TxgId(txg));
            }
        }
    });
}

#[test]
fn records_longer_than_a_frame_are_replayed_whole() {
    Runtime::simulated(5).block_on(async {
        let disk = &disks(1, 5 * MIB)[0];
        let rings = [ring(0, 4 * MIB, &[disk])];
        let (log, state) = start(LogConfig::new(POOL), &rings);
        let mut sent = vec![write(1, 1, 1), write(2, 1, 300), write(3, 1, 1), write(4, 2, 31)];
        // Buffers of any number of blocks make up the data.
        let data = stamped(5, 64);
        let blocks = |first: usize, count: usize| data.slice(first * 4096, count * 4096);
        let mut parted = write(5, 2, 64);
        parted.data = vec![blocks(0, 1), blocks(1, 49), blocks(50, 14)];
        sent.push(parted.clone());
        parted.data[1] = data.slice(4096, 49 * 4096 - 512);
        parted.data[2] = data.slice(50 * 4096 - 512, 14 * 4096 + 512);
        let refused = log.append(vec![parted]).await.unwrap_err();
        let error = RecordError::PartLength { part_bytes: 49 * 4096 - 512 };
        let (volume, lba) = (VolumeId(5), sent[4].lba);
        assert_eq!(refused, LogError::BadRecord { volume, lba, blocks: 64, error });
        sent.push(Record::zero(VolumeId(9), TxgId(2), Lba(77), u32::MAX));
        log.append(sent.clone()).await.unwrap();
        assert!(log.stats().frames_by_len[6..].iter().all(|n| *n == 0), "{:?}", log.stats());
        let (records, _) = replay(&rings, &state).await;
        assert_eq!(records.len(), sent.len());
        assert!(records.iter().zip(&sent).all(|(got, sent)| same(got, sent)));
        assert_eq!(records[5].kind, RecordKind::Zero);
        // Once its group is committed, replay returns no part of it.
        let state = log.state(TxgId(1));
        let (records, end) = replay(&rings, &state).await;
        let ids: Vec<u64> = records.iter().map(|record| record.lba.0).collect();
        assert_eq!((ids, end.verdict), (vec![4, 5, 77], ReplayVerdict::CleanEnd));
    });
}

// Between the decision to gather and the start of the timer the clock of a machine goes on.
#[test]
fn a_time_to_gather_that_is_over_at_once_holds_no_frame() {
    Runtime::real().unwrap().block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let group_commit = GroupCommit::Fixed { gather: Nanos(1) };
        let config = LogConfig { group_commit, ..LogConfig::new(POOL) };
        let (log, _) = start(config, &[ring(0, MIB, &[disk])]);
        for id in 1..=20 {
            let append = Box::pin(log.append(vec![write(id, 1, 1)]));
            timeout(Nanos::from_secs(60), append).await.expect("the frame is written").unwrap();
        }
    });
}

#[test]
fn empty_append_waits_for_earlier_appends_only() {
    Runtime::simulated(6).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[disk])]);
        log.append(Vec::new()).await.unwrap();
        let first = spawn(log.append((1..=100).map(|id| write(id, 1, 1)).collect()));
        log.append(Vec::new()).await.unwrap();
        assert_eq!(log.stats().queued_records, 0);
        assert_eq!(log.stats().records, 100);
        yield_now().await;
        first.await.unwrap();
        assert!(disk.writes().len() >= 4);
    });
}

#[test]
fn appends_without_a_ring_wait_for_the_commit() {
    Runtime::simulated(7).block_on(async {
        let (log, _) = start(LogConfig::new(POOL), &[]);
        let one = spawn(log.append(vec![write(1, 1, 1), write(2, 2, 1)]));
        let two = spawn(log.append(Vec::new()));
        assert_eq!(log.next_event().await, LogEvent::Pressure);
        log.release(TxgId(1));
        sleep(Nanos(1000)).await;
        assert!(!one.is_finished() && !two.is_finished());
        log.release(TxgId(2));
        one.await.unwrap();
        two.await.unwrap();
        assert_eq!(log.stats().records_overtaken, 2);
        let last = spawn(log.append(vec![write(3, 3, 1)]));
        drop(log);
        assert_eq!(last.await, Err(LogError::Closed));
    });
}

#[test]
fn frames_spread_over_rings_and_replay_in_order() {
    Runtime::simulated(8).block_on(async {
        let disks = disks(3, 2 * MIB);
        let rings: Vec<_> = (0..3).map(|i| ring(i as u8 * 5, MIB, &[&disks[i]])).collect();
        let log = Rc::new(start(LogConfig::new(POOL), &rings).0);
        let mut state = log.state(TxgId(0));
        for txg in 1..=30u64 {
            let clients = (0..24u64).map(|client| {
                let log = log.clone();
                spawn(async move { log.append(vec![write(txg * 100 + client, txg, 1)]).await })
            });
            join_all(clients).await.into_iter().for_each(|outcome| outcome.unwrap());
            if txg % 3 == 0 && txg < 30 {
                state = log.state(TxgId(txg));
                log.release(TxgId(txg));
            }
        }
        let counts: Vec<usize> = disks.iter().map(|disk| disk.writes().len()).collect();
        assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
        let (records, end) = replay(&rings, &state).await;
        assert_eq!((records.len(), end.verdict), (72, ReplayVerdict::CleanEnd));
        let txgs: Vec<u64> = records.iter().map(|record| record.txg.0).collect();
        assert!(txgs.is_sorted() && txgs[0] == 28);
    });
}

#[test]
fn failed_side_stops_acknowledgements_until_the_pool_has_committed() {
    Runtime::simulated(9).block_on(async {
        let disks = disks(3, 2 * MIB);
        let mirror = [ring(0, MIB, &[&disks[0], &disks[1]])];
        let (log, old_state) = start(LogConfig::new(POOL), &mirror);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        disks[1].fails_from.set(2);
        let lost = spawn(log.append(vec![write(2, 1, 1)]));
        let LogEvent::SideFailed { device, error } = log.next_event().await else {
            panic!("the failure must come first")
        };
        assert_eq!((device, error.offset_bytes), (DeviceId(2), 12288 + 8192));
        assert_eq!(log.next_event().await, LogEvent::Paused);
        // Both sides have the newest frame that is durable.
        assert_eq!(log.check_newest_frames().await, []);
        let later = spawn(log.append(vec![write(3, 2, 1)]));
        sleep(Nanos::from_millis(5)).await;
        assert!(!lost.is_finished() && !later.is_finished() && log.is_failed());
        // Acknowledged records are found, because the good side has them.
        assert!(!replay(&mirror, &old_state).await.0.is_empty());

        let both = log.next_state(&mirror, 2, TxgId(1));
        let failed = NotQuiet::DeviceFailed { device: DeviceId(2) };
        assert_eq!(log.resume(&mirror, &both).await, Err(failed.into()));
        let alone = [ring(0, MIB, &[&disks[0]])];
        let next = log.next_state(&alone, 2, TxgId(1));
        let unreleased = NotQuiet::Unreleased { held: TxgId(1), released: TxgId(0) };
        assert_eq!(log.resume(&alone, &next).await, Err(unreleased.into()));
        log.release(TxgId(1));
        lost.await.unwrap();
        assert!(!later.is_finished());
        let stale = log.next_state(&alone, 1, TxgId(1));
        let stale_epoch = Err(LogError::StaleEpoch { used: 1, found: 1 });
        assert_eq!(log.resume(&alone, &stale).await, stale_epoch);
        log.resume(&alone, &next).await.unwrap();
        later.await.unwrap();

        // Replay ignores the frames of the old epoch on the old side.
        let (records, _) = replay(&mirror, &next).await;
        assert_eq!(records.iter().map(|record| record.lba.0).collect::<Vec<_>>(), [3]);
        let old_side = [LogRing { sides: mirror[0].sides[1..].to_vec(), ..mirror[0].clone() }];
        let (records, end) = replay(&old_side, &next).await;
        assert!(records.is_empty() && end.verdict == ReplayVerdict::CleanEnd);

        // A new mirror side joins: pause, commit, resume.
        log.pause().await;
        let queued = spawn(log.append(vec![write(4, 3, 1)]));
        let joined = [ring(0, MIB, &[&disks[0], &disks[2]])];
        let next = log.next_state(&joined, 3, TxgId(2));
        log.release(TxgId(2));
        assert!(!queued.is_finished());
        log.resume(&joined, &next).await.unwrap();
        queued.await.unwrap();
        assert_eq!(disks[2].writes().len(), 1);
        let error = DeviceError::new("disk1", Operation::Write, 0, 0, ErrorKind::Gone);
        let side_failed = |device| LogEvent::SideFailed { device, error: error.clone() };
        log.fail_side(DeviceId(1), error.clone());
        log.fail_side(DeviceId(1), error.clone());
        log.fail_side(DeviceId(3), error.clone());
        let events: Vec<_> = std::iter::from_fn(|| log.take_event()).collect();
        let failed = [DeviceId(1), DeviceId(3)].map(side_failed);
        assert_eq!(events, [failed[0].clone(), LogEvent::Paused, failed[1].clone()], "each once");
        log.pause().await;
        assert!(log.is_failed(), "a pause changes nothing of that");
    });
}

#[test]
fn new_rings_are_refused_while_the_log_runs() {
    Runtime::simulated(11).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        let next = log.next_state(&rings, 2, TxgId(0));
        assert_eq!(log.resume(&rings, &next).await, Err(NotQuiet::Running.into()));
        log.pause().await;
        // Frames without a side would be acknowledged and nowhere.
        let bare = [ring(0, MIB, &[])];
        let refused = log.resume(&bare, &log.next_state(&bare, 2, TxgId(0))).await;
        assert_eq!(refused, Err(ConfigError::NoSide { ring: 0 }.into()));
        log.resume(&rings, &next).await.unwrap();
    });
}

#[test]
fn stats_count_frames_records_and_failed_writes() {
    Runtime::simulated(12).block_on(async {
        let disks = disks(2, 2 * MIB);
        let (log, _) = start(LogConfig::new(POOL), &[ring(0, MIB, &[&disks[0], &disks[1]])]);
        let zero = Record::zero(VolumeId(1), TxgId(1), Lba(0), 9);
        log.append(vec![write(1, 1, 1), write(2, 1, 2), zero]).await.unwrap();
        disks[1].fails_from.set(2);
        let lost = spawn(log.append(vec![write(3, 1, 1)]));
        sleep(Nanos::from_millis(1)).await;
        let later = spawn(log.append(vec![write(4, 1, 1)]));
        let mut expected = LogStats {
            frames: 2,
            device_writes: 4,
            device_write_bytes: 2 * (16384 + 8192),
            payload_bytes: 3 * 4096 + 4096,
            frame_bytes: 16384 + 8192,
            records: 4,
            sequential_frames: 2,
            queued_records: 1,
            queued_bytes: 4096,
            used_bytes: 16384 + 8192,
            capacity_bytes: MIB,
            write_errors: 1,
            ..LogStats::default()
        };
        (expected.frames_by_len[1], expected.frames_by_len[2]) = (1, 1);
        (expected.frames_by_records[0], expected.frames_by_records[2]) = (1, 1);
        assert_eq!(log.stats(), expected);
        assert_eq!((log.used_bytes(), log.capacity_bytes()), (16384 + 8192, MIB));
        assert_eq!(log.rings(), [(0, 16384 + 8192, MIB)]);
        let frames = log.take_recent_frames().unwrap();
        assert!(frames.median.is_some_and(|median| median <= frames.longest), "{frames:?}");
        assert_eq!(log.take_recent_frames(), None);
        log.release(TxgId(1));
        lost.await.unwrap();
        later.await.unwrap();
        let overtaken =
            LogStats { queued_records: 0, queued_bytes: 0, records_overtaken: 1, ..expected };
        assert_eq!(log.stats(), overtaken);
    });
}

#[test]
fn frames_have_from_two_blocks_to_their_longest_length() {
    let check = |max_frame_bytes| LogConfig { max_frame_bytes, ..LogConfig::new(POOL) }.check();
    for max_frame_bytes in [0, 4096, 8191, 12_288 + 512, MAX_FRAME_BYTES + 4096] {
        assert_eq!(check(max_frame_bytes), Err(ConfigError::FrameLimit { max_frame_bytes }));
    }
    for max_frame_bytes in [8192, 12_288, MAX_FRAME_BYTES] {
        assert_eq!(check(max_frame_bytes), Ok(()));
    }
}

#[test]
fn invalid_configuration_is_refused() {
    Runtime::simulated(10).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let config = LogConfig::new(POOL);
        let state = |rings: &[LogRing]| {
            IntentLog::empty_state(&LogConfig::new(POOL), rings, 1, TxgId(0), FrameSeq(1))
        };
        let short = ConfigError::RingLength { ring: 0, len_bytes: MIB - 4096 };
        let past_end = ConfigError::SideRange {
            ring: 0,
            device_name: "disk1".to_owned(),
            start_bytes: 8192,
            len_bytes: 2 * MIB,
            size_bytes: 2 * MIB,
        };
        for (rings, expected) in [
            (vec![ring(0, MIB - 4096, &[disk])], short),
            (vec![ring(0, 2 * MIB, &[disk])], past_end),
            (
                vec![ring(0, MIB, &[disk]), ring(0, MIB, &[disk])],
                ConfigError::DuplicateRing { ring: 0 },
            ),
            (vec![ring(64, MIB, &[disk])], ConfigError::RingIndex { ring: 64 }),
            (vec![ring(0, MIB, &[])], ConfigError::NoSide { ring: 0 }),
        ] {
            let error = IntentLog::start(config, &rings, &state(&rings)).err().unwrap();
            assert_eq!(error, LogError::Config(expected));
        }
        let rings = [ring(0, MIB, &[disk])];
        for config in [
            LogConfig { max_frame_bytes: 5000, ..config },
            LogConfig { frames_in_flight: 0, ..config },
            LogConfig { pressure_percent: 101, ..config },
        ] {
            assert!(IntentLog::start(config, &rings, &state(&rings)).is_err());
        }
        let (log, _) = start(config, &rings);
        let mut short = write(1, 1, 2);
        short.blocks = 3;
        assert!(matches!(log.append(vec![short]).await, Err(LogError::BadRecord { .. })));
        assert_eq!(log.stats().queued_records, 0);
    });
}

#[test]
fn space_is_freed_for_the_root_that_the_tail_was_recorded_for() {
    Runtime::simulated(19).block_on(async {
        let disk = &disks(1, 2 * MIB)[0];
        let rings = [ring(0, MIB, &[disk])];
        let (log, _) = start(LogConfig::new(POOL), &rings);
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        let _ = log.state(TxgId(1));
        log.append(vec![write(2, 2, 1)]).await.unwrap();
        // The tail of the next root, which may still fail.
        let _ = log.state(TxgId(2));
        log.release(TxgId(1));
        assert_eq!(log.used_bytes(), 2 * 8192);
        log.release(TxgId(2));
        assert_eq!(log.used_bytes(), 0);
    });
}
