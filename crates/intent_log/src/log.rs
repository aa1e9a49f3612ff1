//! The running log: append, release, pause, resume.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_device::{DeviceError, ErrorKind, IoBytes, Operation};
use forebay_format::label::LogMark;
use forebay_format::log_frame::{FrameHeader, LogState};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BLOCK_BYTES, DeviceId, FrameSeq, Nanos, TxgId};

use crate::config::{LogConfig, LogRing, Side, check_rings, empty_state};
use crate::core::{Core, Issue, Mode, Next};
use crate::error::{LogError, NotQuiet};
use crate::event::LogEvent;
use crate::pack::Queued;
use crate::reader::frame_at;
use crate::record::Record;
use crate::stats::{FrameTimes, LogStats, RecentFrames};
use crate::ticket::Ticket;

/// How long no frame is written before a closing frame is: longer than a client that waits for each
/// write needs for its next one.
const IDLE: Nanos = Nanos::from_millis(5);

struct Shared {
    core: RefCell<Core>,
    times: RefCell<FrameTimes>,
    /// Notified when there is an event.
    new_events: Rc<Notify>,
    /// Notified when a device write ends while the log does not run.
    quiet_changed: Rc<Notify>,
    /// Notified when the task that closes an idle log has something to look at.
    unsaid: Rc<Notify>,
    /// Notified when the watermark has moved on.
    mark_moved: Rc<Notify>,
}

impl Shared {
    fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let (out, has_new_events, quiet_changed, wake_closer, wake_mark) = {
            let mut core = self.core.borrow_mut();
            let out = act(&mut core);
            let has_new_events = std::mem::take(&mut core.has_new_events);
            let quiet_changed = std::mem::take(&mut core.quiet_changed);
            let wake_closer = std::mem::take(&mut core.wake_closer);
            (out, has_new_events, quiet_changed, wake_closer, std::mem::take(&mut core.wake_mark))
        };
        if has_new_events {
            self.new_events.notify_all();
        }
        if quiet_changed {
            self.quiet_changed.notify_all();
        }
        if wake_closer {
            self.unsaid.notify_all();
        }
        if wake_mark {
            self.mark_moved.notify_all();
        }
        out
    }
}

/// The log of one pool. Dropping it closes it: waiting appends fail with [`LogError::Closed`].
pub struct IntentLog {
    shared: Rc<Shared>,
}

impl IntentLog {
    /// The state that the superblock must hold before a log on `rings` starts: an empty log whose
    /// first frame is `next_seq`. `epoch` must be higher than any that the pool has used.
    #[must_use]
    pub fn empty_state(
        config: &LogConfig,
        rings: &[LogRing],
        epoch: u32,
        committed: TxgId,
        next_seq: FrameSeq,
    ) -> LogState {
        empty_state(config, rings, epoch, committed, next_seq)
    }

    /// Starts an empty log with `state`, which the superblock holds durably by now. Without rings,
    /// appends wait for [`IntentLog::release`]. Fails when a value of the configuration is out of
    /// range or `state` was made for other rings.
    pub fn start(config: LogConfig, rings: &[LogRing], state: &LogState) -> Result<Self, LogError> {
        config.check()?;
        check_rings(rings, true)?;
        let expected = empty_state(&config, rings, state.epoch, state.committed, state.next_seq);
        if *state != expected {
            return Err(not_empty(expected, state));
        }
        let core = RefCell::new(Core::new(config, rings, state));
        let shared = Shared {
            core,
            times: RefCell::default(),
            new_events: Notify::new(),
            quiet_changed: Notify::new(),
            unsaid: Notify::new(),
            mark_moved: Notify::new(),
        };
        let log = Self { shared: Rc::new(shared) };
        log.start_workers();
        Ok(log)
    }

    fn start_workers(&self) {
        let (count, generation) = self.shared.with(|core| (core.worker_count(), core.generation));
        for at in 0..count {
            rt::spawn(work(self.shared.clone(), at, generation));
        }
        if count > 0 {
            rt::spawn(close_when_idle(self.shared.clone(), generation));
        }
    }

    /// Queues `records` in this order, after all earlier appends, before it returns.
    ///
    /// The future completes when these records and all earlier ones are durable on every side, or
    /// when [`IntentLog::release`] reports that their groups are committed. Dropping the future
    /// withdraws nothing. Without records, the future waits for the earlier appends.
    ///
    /// Fails at once, with nothing queued, when a record is inconsistent.
    pub fn append(&self, records: Vec<Record>) -> Append {
        self.shared.with(|core| {
            if core.closed {
                return Append { state: Err(LogError::Closed) };
            }
            for record in &records {
                if let Err(error) = record.check(core.released) {
                    return Append { state: Err(error) };
                }
            }
            if records.is_empty() {
                let ticket = Ticket::new(1);
                core.add_barrier(ticket.clone());
                return Append { state: Ok(ticket) };
            }
            core.pass(rt::now());
            let ticket = Ticket::new(records.len() as u64);
            for record in records {
                core.note_append(record.txg);
                core.queue.push(Queued::new(record, ticket.clone()));
            }
            core.wake_worker();
            Append { state: Ok(ticket) }
        })
    }

    /// The log's state for the superblock that commits `committed`. [`IntentLog::release`] frees
    /// space up to the tail recorded here and no further.
    #[must_use]
    pub fn state(&self, committed: TxgId) -> LogState {
        self.shared.with(|core| core.state(committed))
    }

    /// Acknowledges the records of group `committed` and all earlier ones, and frees their space.
    /// Those groups, and the superblock with the [`IntentLog::state`] taken for them, are in the
    /// main store.
    pub fn release(&self, committed: TxgId) {
        self.shared.with(|core| core.release(committed));
    }

    /// Stops issuing frames and waits for those in flight. They are still acknowledged unless one
    /// of them fails.
    pub async fn pause(&self) {
        self.shared.with(Core::pause);
        let is_still = || self.shared.with(|core| core.is_still() || core.mode == Mode::Failed);
        self.shared.quiet_changed.until(is_still).await;
    }

    /// Treats `device` as if a write to it had failed now.
    pub fn fail_side(&self, device: DeviceId, error: DeviceError) {
        self.shared.with(|core| core.fail(device, error));
    }

    /// The state that the superblock must hold before [`IntentLog::resume`] with `rings`. Only
    /// while paused.
    #[must_use]
    pub fn next_state(&self, rings: &[LogRing], epoch: u32, committed: TxgId) -> LogState {
        self.shared.with(|core| empty_state(&core.config, rings, epoch, committed, core.next_seq))
    }

    /// Continues with `rings`. The caller has paused the log, committed a superblock that holds
    /// `state` (from [`IntentLog::next_state`]), and released its group. Waits for late writes to
    /// devices that stay. Fails when the log runs, or when frames hold records of uncommitted
    /// groups.
    pub async fn resume(&self, rings: &[LogRing], state: &LogState) -> Result<(), LogError> {
        check_rings(rings, true)?;
        let staying: Vec<DeviceId> =
            rings.iter().flat_map(|ring| &ring.sides).map(|side| side.device_id).collect();
        let check = || {
            self.shared.with(|core| {
                if let Some(device) = staying.iter().find(|id| core.failed.contains(id)) {
                    return Err(NotQuiet::DeviceFailed { device: *device }.into());
                }
                let expected =
                    empty_state(&core.config, rings, state.epoch, state.committed, core.next_seq);
                if *state != expected {
                    return Err(not_empty(expected, state));
                }
                if state.epoch <= core.epoch {
                    return Err(LogError::StaleEpoch { used: core.epoch, found: state.epoch });
                }
                Ok(core.check_quiet()?)
            })
        };
        check()?;
        // A late write of the old configuration would overwrite new frames.
        let no_late_write =
            || self.shared.with(|core| staying.iter().all(|id| !core.outstanding.contains_key(id)));
        self.shared.quiet_changed.until(no_late_write).await;
        check()?;
        self.shared.with(|core| core.reconfigure(rings, state));
        self.start_workers();
        Ok(())
    }

    /// Waits for the next event.
    pub async fn next_event(&self) -> LogEvent {
        loop {
            let seen = self.shared.new_events.notified();
            if let Some(event) = self.take_event() {
                return event;
            }
            seen.await;
        }
    }

    /// The next event, if there is one.
    #[must_use]
    pub fn take_event(&self) -> Option<LogEvent> {
        self.shared.with(|core| core.events.pop_front())
    }

    /// Whether a side has failed and the log waits for [`IntentLog::resume`].
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.with(|core| core.mode == Mode::Failed)
    }

    /// Whether the log is stopped, because it was paused or because a side has failed.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.with(|core| core.mode != Mode::Running)
    }

    /// The epoch of new frames.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.shared.with(|core| core.epoch)
    }

    /// The epoch and the watermark: the least that an import must find.
    #[must_use]
    pub fn mark(&self) -> LogMark {
        self.shared.with(|core| core.mark())
    }

    /// Waits until the mark is another than `seen`, or the log is closed. Returns the mark.
    pub async fn mark_after(&self, seen: LogMark) -> LogMark {
        let moved = || {
            self.shared.with(|core| {
                core.mark_waits = true;
                core.closed || core.mark() != seen
            })
        };
        self.shared.mark_moved.until(moved).await;
        self.mark()
    }

    /// Reads back the newest durable frame of each ring. Returns the devices that do not have it,
    /// each with an error that says so.
    pub async fn check_newest_frames(&self) -> Vec<(DeviceId, DeviceError)> {
        let pool = self.shared.with(|core| core.config.pool);
        let mut lacking = Vec::new();
        for frame in self.shared.with(|core| core.newest_frames()) {
            for side in frame.sides.iter() {
                let offset = side.start_bytes + frame.position_bytes;
                let outcome = frame_at(&side.device, offset).await;
                let is_same = |header: &FrameHeader| header.pool == pool && header.seq == frame.seq;
                if outcome.as_ref().is_ok_and(|found| found.as_ref().is_some_and(is_same)) {
                    continue;
                }
                if self.shared.with(|core| core.is_kept(&frame)) {
                    let forgotten = || {
                        let kind = ErrorKind::Forgotten;
                        let name = side.device.name();
                        DeviceError::new(name, Operation::Read, offset, BLOCK_BYTES, kind)
                    };
                    lacking.push((side.device_id, outcome.err().unwrap_or_else(forgotten)));
                }
            }
        }
        lacking
    }

    /// Whether appends wait for [`IntentLog::witnessed`] from here on.
    pub fn wait_for_witness(&self, waits: bool) {
        self.shared.with(|core| {
            core.config.waits_for_witness = waits;
            if !waits {
                core.acknowledge(core.mark().watermark);
            }
        });
    }

    /// The log's progress up to `mark` is known outside of the log's devices.
    pub fn witnessed(&self, mark: LogMark) {
        self.shared.with(|core| {
            if mark.epoch == core.epoch {
                core.acknowledge(mark.watermark);
            }
        });
    }

    /// Space in use, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.with(|core| core.used_bytes())
    }

    /// Total space, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.with(|core| core.capacity_bytes())
    }

    /// Index, used bytes and total bytes of each ring in use.
    #[must_use]
    pub fn rings(&self) -> Vec<(u8, u64, u64)> {
        self.shared.with(|core| core.ring_bytes())
    }

    /// Latencies of the frames that ended since the last call; `None` when none did and none is in
    /// flight.
    #[must_use]
    pub fn take_recent_frames(&self) -> Option<RecentFrames> {
        self.shared.times.borrow_mut().take(rt::now())
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared.with(|core| core.stats())
    }

    /// Ends the log. Waiting appends, and all later ones, fail with [`LogError::Closed`].
    pub fn close(&self) {
        self.shared.with(Core::close);
    }
}

fn not_empty(expected: LogState, found: &LogState) -> LogError {
    LogError::NotEmpty { expected: Box::new(expected), found: Box::new(found.clone()) }
}

impl Drop for IntentLog {
    fn drop(&mut self) {
        self.shared.with(Core::close);
    }
}

/// Future of [`IntentLog::append`].
#[must_use = "the records are in the log's queue, but only this future says when they are durable"]
pub struct Append {
    state: Result<Rc<Ticket>, LogError>,
}

impl Future for Append {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.state {
            Err(error) => Poll::Ready(Err(error.clone())),
            Ok(ticket) if ticket.open.get() == 0 => Poll::Ready(Ok(())),
            Ok(ticket) if ticket.closed.get() => Poll::Ready(Err(LogError::Closed)),
            Ok(ticket) => {
                *ticket.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One frame slot: packs the waiting records, writes the frame, and repeats. The slot starts its
/// next frame by itself, without another task.
async fn work(shared: Rc<Shared>, at: usize, generation: u64) {
    loop {
        let mut gathering = None;
        let next = std::future::poll_fn(|cx| {
            let now = rt::now();
            match shared.with(|core| core.next_for(at, generation, cx.waker(), now)) {
                Next::Write(issue) => return Poll::Ready(Some(issue)),
                Next::End => return Poll::Ready(None),
                Next::Wait => gathering = None,
                Next::Gather(until) => {
                    let sleep = gathering.insert(Box::pin(rt::sleep_until(until)));
                    if sleep.as_mut().poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                }
            }
            Poll::Pending
        });
        let Some(issue) = next.await else { return };
        write_frame(&shared, issue).await;
    }
}

async fn write_frame(shared: &Shared, mut issue: Issue) {
    let frame = (issue.generation, issue.seq);
    let begun = rt::now();
    shared.times.borrow_mut().begin(frame, begun);
    let parts = std::mem::take(&mut issue.parts);
    let durable = if let [side] = &issue.sides[..] {
        write_side(shared, &issue, side, parts).await
    } else {
        let sides = issue.sides.iter().map(|side| write_side(shared, &issue, side, parts.clone()));
        rt::join_all(sides).await.into_iter().all(|durable| durable)
    };
    let ended = rt::now();
    shared.times.borrow_mut().end(frame, ended);
    shared.with(|core| {
        core.pass(ended);
        core.frame_done(issue.generation, issue.seq, durable, ended.since(begun));
    });
}

/// Writes a closing frame when the log has been idle for [`IDLE`]. The last frames of a log are
/// above the watermark of every other frame, so that without it their loss could not be told from
/// frames that were never finished.
async fn close_when_idle(shared: Rc<Shared>, generation: u64) {
    let has_ended = || shared.with(|core| core.closed || core.generation != generation);
    loop {
        let wanted = || {
            shared.with(|core| {
                let wanted = core.wants_closing_frame();
                core.closer_waits = !wanted;
                wanted
            })
        };
        shared.unsaid.until(|| has_ended() || wanted()).await;
        let next_seq = shared.with(|core| core.next_seq);
        // A log that is closed keeps no device open.
        let _ = rt::timeout(IDLE, Box::pin(shared.unsaid.until(has_ended))).await;
        if has_ended() {
            return;
        }
        let build = |core: &mut Core| {
            if core.next_seq == next_seq { core.build_closing_frame() } else { None }
        };
        if let Some(issue) = shared.with(build) {
            write_frame(&shared, issue).await;
        }
    }
}

async fn write_side(shared: &Shared, issue: &Issue, side: &Side, parts: Vec<IoBytes>) -> bool {
    let offset = side.start_bytes + issue.position_bytes;
    let outcome = side.device.write_vectored(offset, parts, true).await;
    let error = outcome.err();
    shared.with(|core| core.side_done(issue.generation, side.device_id, error.as_ref()));
    error.is_none()
}
