//! The running log: append, release, pause, resume.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_device::{DeviceError, IoBytes};
use forebay_format::label::LogMark;
use forebay_format::log_frame::{LogState, RecordKind};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BLOCK_BYTES, DeviceId, FrameSeq, Lba, TxgId, VolumeId};

use crate::LogError;
use crate::config::{LogConfig, LogRing, Side, check_rings, empty_state};
use crate::core::{Core, Issue, Mode, Next, Ticket};
use crate::pack::Queued;
use crate::stats::LogStats;

/// One write or zeroing, as it is appended and as replay gives it back.
#[derive(Clone, Debug)]
pub struct Record {
    /// The volume.
    pub volume: VolumeId,
    /// The group that will take it to the main store.
    pub txg: TxgId,
    /// What it does.
    pub kind: RecordKind,
    /// The first block.
    pub lba: Lba,
    /// How many blocks, 1 at least.
    pub blocks: u32,
    /// The data, in as many pieces as is convenient: `blocks` times 4096 bytes in all for a
    /// write, none for zeros.
    pub data: Vec<IoBytes>,
}

impl Record {
    /// A write of `data`, whose length must be a multiple of 4096.
    #[must_use]
    pub fn write(volume: VolumeId, txg: TxgId, lba: Lba, data: IoBytes) -> Self {
        let blocks = (data.len() as u64 / BLOCK_BYTES) as u32;
        Self { volume, txg, kind: RecordKind::Write, lba, blocks, data: vec![data] }
    }

    /// Zeros, or a trim.
    #[must_use]
    pub fn zero(volume: VolumeId, txg: TxgId, lba: Lba, blocks: u32) -> Self {
        Self { volume, txg, kind: RecordKind::Zero, lba, blocks, data: Vec::new() }
    }

    fn check(&self, released: TxgId) -> Result<(), LogError> {
        let refuse = |detail: String| {
            let Self { volume, lba, blocks, .. } = self;
            let detail = format!("volume {volume}, {blocks} blocks at {lba}: {detail}");
            Err(LogError::BadRecord { detail })
        };
        let bytes: u64 = self.data.iter().map(|piece| piece.len() as u64).sum();
        let expected = match self.kind {
            RecordKind::Write => u64::from(self.blocks) * BLOCK_BYTES,
            RecordKind::Zero => 0,
        };
        if bytes != expected {
            return refuse(format!("{expected} bytes of data expected, {bytes} found"));
        }
        let end = self.lba.0.checked_add(u64::from(self.blocks));
        if self.blocks == 0 || end.is_none_or(|end| end > u64::MAX / BLOCK_BYTES) {
            return refuse("the range is empty or past any volume".to_owned());
        }
        if self.txg <= released {
            return refuse(format!("group {} is committed already", self.txg));
        }
        Ok(())
    }
}

/// What the pool must know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device failed a write. It must not be used again before it was resilvered.
    SideFailed {
        /// Which.
        device: DeviceId,
        /// How.
        error: DeviceError,
    },
    /// The log stopped because a side failed: commit, release, then resume without it.
    Paused,
    /// Space runs low, or records wait for it: commit a group soon.
    Pressure,
}

struct Shared {
    core: RefCell<Core>,
    /// Told when there is an event.
    news: Rc<Notify>,
    /// Told when a device write ends while the log does not run.
    settled: Rc<Notify>,
}

impl Shared {
    fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        let (out, news, settled) = {
            let mut core = self.core.borrow_mut();
            let out = act(&mut core);
            (out, std::mem::take(&mut core.news), std::mem::take(&mut core.settled))
        };
        if news {
            self.news.notify_all();
        }
        if settled {
            self.settled.notify_all();
        }
        out
    }
}

/// The log of one pool. Dropping it closes it: appends that still wait fail with
/// [`LogError::Closed`].
pub struct IntentLog {
    shared: Rc<Shared>,
}

impl IntentLog {
    /// What the superblock must say before a log on `rings` is started: an empty log whose first
    /// frame is `next_seq`. `epoch` must be higher than any that the pool has used.
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

    /// Starts a log that is empty, as `state` (durable in the superblock by now) says. Without
    /// rings, appends wait for [`IntentLog::release`]. Fails when figures are out of range or
    /// `state` was made for other rings.
    pub fn start(config: LogConfig, rings: &[LogRing], state: &LogState) -> Result<Self, LogError> {
        config.check()?;
        check_rings(rings, true)?;
        let expected = empty_state(&config, rings, state.epoch, state.committed, state.next_seq);
        if *state != expected {
            let detail = format!("{state:?} is not the empty log {expected:?}");
            return Err(LogError::StateMismatch { detail });
        }
        let core = RefCell::new(Core::new(config, rings, state));
        let log =
            Self { shared: Rc::new(Shared { core, news: Notify::new(), settled: Notify::new() }) };
        log.start_workers();
        Ok(log)
    }

    fn start_workers(&self) {
        let (count, generation) = self.shared.with(|core| (core.worker_count(), core.generation));
        for at in 0..count {
            rt::spawn(work(self.shared.clone(), at, generation));
        }
    }

    /// Takes `records` into the log, in this order and after all earlier appends, before it
    /// returns. The future ends when all of them are durable on every side and so is everything
    /// before them, or when [`IntentLog::release`] says that their groups are committed.
    /// Dropping the future withdraws nothing. No records at all: the wait is for what was
    /// appended before.
    ///
    /// Fails at once, with nothing taken, when a record's figures do not agree.
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
            let ticket = Ticket::new(records.len() as u64);
            for record in records {
                core.note_append(record.txg);
                core.queue.push(Queued::new(record, ticket.clone()));
            }
            core.wake_worker();
            Append { state: Ok(ticket) }
        })
    }

    /// What the superblock that commits `committed` must say of the log. Space is freed by
    /// [`IntentLog::release`] up to the tail recorded here and no further.
    #[must_use]
    pub fn state(&self, committed: TxgId) -> LogState {
        self.shared.with(|core| core.state(committed))
    }

    /// Group `committed` and all earlier ones are in the main store, and so is the superblock
    /// with the [`IntentLog::state`] taken for it: acknowledges their records and frees their
    /// space.
    pub fn release(&self, committed: TxgId) {
        self.shared.with(|core| core.release(committed));
    }

    /// Stops issuing frames and waits for those in flight, which are still acknowledged unless
    /// one of them fails.
    pub async fn pause(&self) {
        self.shared.with(Core::pause);
        let still = || self.shared.with(|core| core.is_still() || core.mode == Mode::Failed);
        self.shared.settled.until(still).await;
    }

    /// Takes `device` for failed, as if a write to it had failed now.
    pub fn fail_side(&self, device: DeviceId, error: DeviceError) {
        self.shared.with(|core| core.fail(device, error));
    }

    /// What the superblock must say before [`IntentLog::resume`] with `rings`. Only while paused.
    #[must_use]
    pub fn next_state(&self, rings: &[LogRing], epoch: u32, committed: TxgId) -> LogState {
        self.shared.with(|core| empty_state(&core.config, rings, epoch, committed, core.next_seq))
    }

    /// Goes on with `rings`, after a pause and a commit whose superblock holds `state` (from
    /// [`IntentLog::next_state`]) and whose group was released. Waits for late writes to devices
    /// that stay. Fails when the log runs, or when records of uncommitted groups are in frames.
    pub async fn resume(&self, rings: &[LogRing], state: &LogState) -> Result<(), LogError> {
        check_rings(rings, true)?;
        let staying: Vec<DeviceId> =
            rings.iter().flat_map(|ring| &ring.sides).map(|side| side.device_id).collect();
        let check = || {
            self.shared.with(|core| {
                if let Some(device) = staying.iter().find(|id| core.failed.contains(id)) {
                    let detail = format!("device {device} has failed: leave it out");
                    return Err(LogError::NotQuiet { detail });
                }
                let expected =
                    empty_state(&core.config, rings, state.epoch, state.committed, core.next_seq);
                if *state != expected || state.epoch <= core.epoch {
                    let detail =
                        format!("{state:?} is not {expected:?} with an epoch above {}", core.epoch);
                    return Err(LogError::StateMismatch { detail });
                }
                match core.not_quiet() {
                    Some(detail) => Err(LogError::NotQuiet { detail }),
                    None => Ok(()),
                }
            })
        };
        check()?;
        // A write of the old configuration that ended late would fall on new frames.
        let settled =
            || self.shared.with(|core| staying.iter().all(|id| !core.outstanding.contains_key(id)));
        self.shared.settled.until(settled).await;
        check()?;
        self.shared.with(|core| core.reconfigure(rings, state));
        self.start_workers();
        Ok(())
    }

    /// The next thing that the pool must know of.
    pub async fn next_event(&self) -> Event {
        loop {
            let seen = self.shared.news.notified();
            if let Some(event) = self.take_event() {
                return event;
            }
            seen.await;
        }
    }

    /// The next thing that the pool must know of, if there is one by now.
    #[must_use]
    pub fn take_event(&self) -> Option<Event> {
        self.shared.with(|core| core.events.pop_front())
    }

    /// Whether a side has failed and the log waits for [`IntentLog::resume`].
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.shared.with(|core| core.mode == Mode::Failed)
    }

    /// Whether the log stands still, because it was paused or because a side has failed.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.with(|core| core.mode != Mode::Running)
    }

    /// The epoch of the frames that are written now.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.shared.with(|core| core.epoch)
    }

    /// How far the log has come: what an import must find.
    #[must_use]
    pub fn mark(&self) -> LogMark {
        self.shared.with(|core| core.mark())
    }

    /// Space in use, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared.with(|core| core.used_bytes())
    }

    /// Space in all, in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.with(|core| core.capacity_bytes())
    }

    /// Of each ring that is written to: its number, its space in use and in all, in bytes.
    #[must_use]
    pub fn rings(&self) -> Vec<(u8, u64, u64)> {
        self.shared.with(|core| core.ring_bytes())
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared.with(|core| core.stats())
    }
}

impl IntentLog {
    /// Ends the log: appends that wait, and all later ones, fail with [`LogError::Closed`]. For a
    /// pool that stops.
    pub fn close(&self) {
        self.shared.with(Core::close);
    }
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

/// One frame slot: takes what has gathered, writes it, and comes back for more. A slot that
/// returns needs no other task to start the next frame.
async fn work(shared: Rc<Shared>, at: usize, generation: u64) {
    loop {
        let next = std::future::poll_fn(|cx| {
            match shared.with(|core| core.next_for(at, generation, cx.waker())) {
                Next::Write(issue) => Poll::Ready(Some(issue)),
                Next::End => Poll::Ready(None),
                Next::Wait => Poll::Pending,
            }
        });
        let Some(issue) = next.await else { return };
        let durable = if let [side] = &issue.sides[..] {
            write_side(&shared, &issue, side).await
        } else {
            let sides = issue.sides.iter().map(|side| write_side(&shared, &issue, side));
            rt::join_all(sides).await.into_iter().all(|durable| durable)
        };
        shared.with(|core| core.frame_done(issue.generation, issue.seq, durable));
    }
}

async fn write_side(shared: &Shared, issue: &Issue, side: &Side) -> bool {
    let offset = side.start_bytes + issue.position_bytes;
    let outcome = side.device.write(offset, issue.bytes.clone(), true).await;
    let error = outcome.err();
    shared.with(|core| core.side_done(issue.generation, side.device_id, error.as_ref()));
    error.is_none()
}
