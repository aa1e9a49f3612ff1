//! Writes of sides that end late or never, and what the log does meanwhile.

use std::cell::Cell;

use forebay_device::{BlockDevice, DeviceError, DeviceFuture, ErrorKind, Layer, Operation};
use forebay_rt::{self as rt, Runtime, spawn, sync::Notify};
use forebay_units::Nanos;

use super::disk::Power;
use super::*;
use crate::{LogError, LogEvent, NotQuiet};

/// Longer than everything takes that does not wait for a held device.
const MOMENT: Nanos = Nanos::from_millis(20);

/// A disk whose writes wait while it is held, and then fail if it is broken.
struct Gate {
    disk: Rc<Disk>,
    is_held: Cell<bool>,
    is_broken: Cell<bool>,
    opened: Rc<Notify>,
}

impl Gate {
    fn id(&self) -> DeviceId {
        DeviceId(self.disk.id)
    }

    fn open(&self) {
        self.is_held.set(false);
        self.opened.notify_all();
    }

    fn error(&self, offset_bytes: u64, len_bytes: u64) -> DeviceError {
        let kind = ErrorKind::Os { errno: 5 };
        DeviceError::new(self.disk.name(), Operation::Write, offset_bytes, len_bytes, kind)
    }
}

impl Layer for Gate {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.disk
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.opened.until(|| !self.is_held.get()).await;
            match self.is_broken.get() {
                true => Err(self.error(offset_bytes, data.len() as u64)),
                false => self.disk.write(offset_bytes, data, fua).await,
            }
        })
    }
}

fn gates<const COUNT: usize>() -> [Rc<Gate>; COUNT] {
    let power = Rc::new(Power::default());
    std::array::from_fn(|at| {
        Rc::new(Gate {
            disk: Disk::new(at as u32 + 1, 2 * MIB, 5, &power),
            is_held: Cell::new(false),
            is_broken: Cell::new(false),
            opened: Notify::new(),
        })
    })
}

fn on(gates: &[&Rc<Gate>]) -> [LogRing; 1] {
    let sides = gates.iter().map(|gate| Side {
        device_id: gate.id(),
        device: (*gate).clone(),
        start_bytes: 8192,
    });
    [LogRing { index: 0, len_bytes: MIB, sides: sides.collect() }]
}

fn started(config: LogConfig, rings: &[LogRing]) -> Rc<IntentLog> {
    Rc::new(start(config, rings).0)
}

/// Resumes the log on `rings` with the next epoch, as a task of its own.
fn resume(
    log: &Rc<IntentLog>,
    rings: [LogRing; 1],
    committed: TxgId,
) -> (LogState, rt::JoinHandle<Result<(), LogError>>) {
    let state = log.next_state(&rings, log.epoch() + 1, committed);
    log.release(committed);
    let (log, with) = (log.clone(), state.clone());
    (state, spawn(async move { log.resume(&rings, &with).await }))
}

// A restart waits for a late write of a side that stays. What fails meanwhile must not stay.
#[test]
fn side_that_fails_while_a_restart_waits_for_a_late_write_is_not_used() {
    for late_write_fails in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let [a, b, c] = gates();
            let log = started(LogConfig::new(POOL), &on(&[&a, &b, &c]));
            a.is_held.set(true);
            let waiting = spawn(log.append(vec![write(1, 1, 1)]));
            rt::sleep(MOMENT).await;
            log.fail_side(c.id(), c.error(0, 0));
            let (_, resumed) = resume(&log, on(&[&a, &b]), TxgId(1));
            waiting.await.unwrap();
            rt::sleep(MOMENT).await;
            assert!(!resumed.is_finished(), "the late write would lie over new frames");
            let failed = if late_write_fails { &a } else { &b };
            match late_write_fails {
                true => a.is_broken.set(true),
                false => log.fail_side(b.id(), b.error(0, 0)),
            }
            a.open();
            let refused = NotQuiet::DeviceFailed { device: failed.id() };
            assert_eq!(resumed.await, Err(refused.into()));
            // The log goes on with the other side alone.
            let whole = if late_write_fails { &b } else { &a };
            let (writes, later) = (failed.disk.writes().len(), log.append(vec![write(2, 2, 1)]));
            let (state, resumed) = resume(&log, on(&[whole]), TxgId(1));
            resumed.await.unwrap();
            later.await.unwrap();
            assert_eq!(failed.disk.writes().len(), writes);
            let (records, _) = replay(&on(&[whole]), &state).await;
            assert_eq!(records.iter().map(|record| record.lba.0).collect::<Vec<_>>(), [2]);
        });
    }
}

#[test]
fn write_that_never_ends_holds_up_no_restart_without_its_side() {
    Runtime::simulated(2).block_on(async {
        let [a, b] = gates();
        let log = started(LogConfig::new(POOL), &on(&[&a, &b]));
        a.is_held.set(true);
        let waiting = spawn(log.append(vec![write(1, 1, 1)]));
        let paused = spawn({
            let log = log.clone();
            async move { log.pause().await }
        });
        rt::sleep(MOMENT).await;
        assert!(!paused.is_finished(), "a frame is in flight");
        log.fail_side(a.id(), a.error(0, 0));
        rt::sleep(MOMENT).await;
        assert!(paused.is_finished(), "only a commit acknowledges that frame now");
        let (_, resumed) = resume(&log, on(&[&b]), TxgId(1));
        waiting.await.unwrap();
        rt::sleep(MOMENT).await;
        assert!(resumed.is_finished(), "the device is given up");
        resumed.await.unwrap();
        log.append(vec![write(2, 2, 1)]).await.unwrap();
        // When the side comes back, its late write comes first.
        log.pause().await;
        let (state, resumed) = resume(&log, on(&[&a, &b]), TxgId(2));
        rt::sleep(MOMENT).await;
        assert!(!resumed.is_finished(), "the late write would lie over new frames");
        a.open();
        resumed.await.unwrap();
        log.append(vec![write(3, 3, 1)]).await.unwrap();
        let (records, _) = replay(&on(&[&a]), &state).await;
        assert_eq!(records.iter().map(|record| record.lba.0).collect::<Vec<_>>(), [3]);
    });
}

#[test]
fn failure_of_a_side_is_told_while_the_other_side_writes() {
    Runtime::simulated(3).block_on(async {
        let [a, b] = gates();
        let log = started(LogConfig::new(POOL), &on(&[&a, &b]));
        a.is_held.set(true);
        b.is_broken.set(true);
        let waiting = spawn(log.append(vec![write(1, 1, 1)]));
        let told = rt::timeout(MOMENT, Box::pin(log.next_event())).await;
        assert!(matches!(told, Ok(LogEvent::SideFailed { device, .. }) if device == b.id()));
        a.open();
        rt::sleep(MOMENT).await;
        assert!(!waiting.is_finished(), "one side has it");
        log.release(TxgId(1));
        waiting.await.unwrap();
    });
}

#[test]
fn record_that_comes_beside_a_closing_frame_is_written_after_it() {
    Runtime::simulated(4).block_on(async {
        let [a] = gates();
        let config = LogConfig { frames_in_flight: 1, ..LogConfig::new(POOL) };
        let log = started(config, &on(&[&a]));
        log.append(vec![write(1, 1, 1)]).await.unwrap();
        a.is_held.set(true);
        rt::sleep(MOMENT).await;
        let stats = log.stats();
        assert_eq!((stats.closing_frames, stats.frames_in_flight), (1, 1));
        let later = spawn(log.append(vec![write(2, 1, 1)]));
        rt::sleep(MOMENT).await;
        assert!(!later.is_finished());
        a.open();
        rt::sleep(MOMENT).await;
        assert!(later.is_finished(), "no frame was written for it");
        later.await.unwrap();
    });
}

#[test]
fn appends_fail_when_the_log_is_closed_although_their_frame_never_ends() {
    Runtime::simulated(5).block_on(async {
        let [a] = gates();
        let config = LogConfig { frames_in_flight: 1, ..LogConfig::new(POOL) };
        let log = started(config, &on(&[&a]));
        a.is_held.set(true);
        let mut waiting = vec![spawn(log.append(vec![write(1, 1, 1)]))];
        rt::sleep(MOMENT).await;
        waiting.push(spawn(log.append(Vec::new())));
        waiting.push(spawn(log.append(vec![write(2, 1, 1)])));
        waiting.push(spawn(log.append(Vec::new())));
        rt::sleep(MOMENT).await;
        log.close();
        rt::sleep(MOMENT).await;
        assert!(waiting.iter().all(rt::JoinHandle::is_finished));
        for append in waiting {
            assert_eq!(append.await, Err(LogError::Closed));
        }
        // The frame that ends afterwards finds none that waits for it.
        a.open();
        rt::sleep(MOMENT).await;
        assert_eq!(log.stats().frames_in_flight, 0);
    });
}

#[test]
fn a_frame_of_rings_that_were_left_while_it_is_read_back_is_not_called_lost() {
    Runtime::simulated(6).block_on(async {
        let [a, b] = gates();
        let log = started(LogConfig::new(POOL), &on(&[&a, &b]));
        log.append((1..=9).map(|id| write(id, 1, 1)).collect()).await.unwrap();
        a.disk.read_delay.set(Nanos::from_secs(1));
        let check = spawn({
            let log = log.clone();
            async move { log.check_newest_frames().await }
        });
        rt::yield_now().await;
        log.pause().await;
        let (_, resumed) = resume(&log, on(&[&a, &b]), TxgId(1));
        resumed.await.unwrap();
        // The first frame of the new rings lies over the one that is looked for.
        log.append((1..=20).map(|id| write(id, 2, 1)).collect()).await.unwrap();
        assert!(!check.is_finished());
        assert_eq!(check.await, []);
        assert_eq!(log.check_newest_frames().await, []);
    });
}
