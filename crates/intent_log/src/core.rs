//! The log's state between device commands: rings, live frames, and waiting appends.
//!
//! This file is synchronous; `log.rs` awaits devices and wakes tasks.

mod closing;
mod ring;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use forebay_device::{DeviceError, IoBytes};
use forebay_format::label::LogMark;
use forebay_format::log_frame::{FrameHeader, LogState, RingState};
use forebay_units::{DeviceId, FrameSeq, Nanos, TxgId};

use crate::config::{LogConfig, LogRing, Side};
use crate::error::NotQuiet;
use crate::event::LogEvent;
use crate::group_commit::GroupController;
use crate::pack::{Packed, Queue};
use crate::stats::LogStats;
use crate::ticket::{Ticket, Waiter};
use ring::Ring;
pub(crate) use workers::Next;
use workers::Worker;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Running,
    /// Paused by the pool: frames in flight are still acknowledged.
    Paused,
    /// A side failed: only a commit acknowledges records now.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    InFlight,
    Durable,
    /// Some side failed: the frame may be there or not.
    Unknown,
}

/// A frame whose space is still in use.
struct Live {
    ring: u8,
    fate: Fate,
    position_blocks: u32,
    /// The frame's blocks, and those skipped before it.
    taken_blocks: u32,
    max_txg: TxgId,
    is_closing: bool,
}

/// A frame ready for its device command.
pub(crate) struct Issue {
    pub(crate) generation: u64,
    pub(crate) seq: FrameSeq,
    pub(crate) sides: Rc<[Side]>,
    pub(crate) position_bytes: u64,
    /// The frame, in parts.
    pub(crate) parts: Vec<IoBytes>,
}

pub(crate) struct Core {
    pub(crate) config: LogConfig,
    pub(crate) mode: Mode,
    pub(crate) closed: bool,
    pub(crate) generation: u64,
    pub(crate) epoch: u32,
    rings: Vec<Ring>,
    workers: Vec<Worker>,
    woken: usize,
    next_worker: usize,
    pub(crate) queue: Queue,
    group_commit: GroupController,
    /// The worker that waits for records of its frame.
    gatherer: usize,
    pub(crate) next_seq: FrameSeq,
    watermark: FrameSeq,
    /// Frames from `tail_seq` on.
    live: VecDeque<Live>,
    tail_seq: FrameSeq,
    /// Waiters of the frames after `acknowledged`.
    unacked: VecDeque<Vec<Waiter>>,
    /// Their number.
    unacked_count: usize,
    /// The group of the last recorded state, and its tail. Space is freed only up to this tail,
    /// because replay may still start there.
    recorded: (TxgId, FrameSeq),
    pub(crate) released: TxgId,
    max_appended: TxgId,
    in_flight: u64,
    /// Device writes under way, old generations included.
    pub(crate) outstanding: BTreeMap<DeviceId, u64>,
    pub(crate) failed: BTreeSet<DeviceId>,
    pub(crate) events: VecDeque<LogEvent>,
    /// Whether `events` has grown since the last notification.
    pub(crate) has_new_events: bool,
    /// Whether something happened that a pause or a resume waits for.
    pub(crate) quiet_changed: bool,
    pressure_reported: bool,
    /// A frame has become durable, or a group was committed, and no frame says so yet.
    unsaid: bool,
    /// Whether the task that closes the log waits to be told of `unsaid`.
    pub(crate) closer_waits: bool,
    /// Whether that task must be woken.
    pub(crate) wake_closer: bool,
    /// The frame up to which appends are acknowledged. Behind the watermark only while
    /// [`LogConfig::waits_for_witness`].
    acknowledged: FrameSeq,
    /// Whether a task waits for the watermark to move on.
    pub(crate) mark_waits: bool,
    /// Whether that task must be woken.
    pub(crate) wake_mark: bool,
    stats: LogStats,
}

impl Core {
    pub(crate) fn new(config: LogConfig, rings: &[LogRing], state: &LogState) -> Self {
        let mut core = Self {
            config,
            mode: Mode::Paused,
            closed: false,
            generation: 0,
            epoch: 0,
            rings: Vec::new(),
            workers: Vec::new(),
            woken: 0,
            next_worker: 0,
            queue: Queue::default(),
            group_commit: GroupController::new(config.group_commit, config.frames_in_flight),
            gatherer: 0,
            next_seq: state.next_seq,
            watermark: FrameSeq(state.next_seq.0 - 1),
            live: VecDeque::new(),
            tail_seq: state.next_seq,
            unacked: VecDeque::new(),
            unacked_count: 0,
            recorded: (state.committed, state.next_seq),
            released: state.committed,
            max_appended: TxgId(0),
            in_flight: 0,
            outstanding: BTreeMap::new(),
            failed: BTreeSet::new(),
            events: VecDeque::new(),
            has_new_events: false,
            quiet_changed: false,
            pressure_reported: false,
            unsaid: false,
            closer_waits: false,
            wake_closer: false,
            acknowledged: FrameSeq(state.next_seq.0 - 1),
            mark_waits: false,
            wake_mark: false,
            stats: LogStats::default(),
        };
        core.reconfigure(rings, state);
        core
    }

    /// Takes new rings and drops all state of the old ones.
    pub(crate) fn reconfigure(&mut self, rings: &[LogRing], state: &LogState) {
        self.wake_all();
        self.generation += 1;
        self.epoch = state.epoch;
        self.rings = rings
            .iter()
            .map(|ring| Ring {
                index: ring.index,
                len_bytes: ring.len_bytes,
                limit_bytes: ring.frame_limit_bytes(self.config.max_frame_bytes),
                sides: ring.sides.clone().into(),
                end_bytes: 0,
                used_bytes: 0,
                written_bytes: 0,
                newest: None,
            })
            .collect();
        let workers = self.rings.len() * self.config.frames_in_flight;
        self.workers = (0..workers).map(|_| Worker::default()).collect();
        self.woken = 0;
        self.next_worker = 0;
        self.live.clear();
        self.tail_seq = self.next_seq;
        self.watermark = FrameSeq(self.next_seq.0 - 1);
        self.acknowledged = self.watermark;
        self.unsaid = false;
        self.wake_closer = std::mem::take(&mut self.closer_waits);
        let waiting: Vec<Waiter> = self.unacked.drain(..).flatten().collect();
        self.unacked_count = 0;
        self.group_commit.stop_gathering();
        for (ticket, _) in waiting {
            // Every record is released, so only barriers can be left.
            ticket.resolve_one();
        }
        self.recorded = (state.committed, self.next_seq);
        self.in_flight = 0;
        self.failed.clear();
        self.mode = Mode::Running;
        self.pressure_reported = false;
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    fn report(&mut self, event: LogEvent) {
        self.events.push_back(event);
        self.has_new_events = true;
    }

    fn report_pressure(&mut self) {
        if !self.pressure_reported {
            self.pressure_reported = true;
            self.report(LogEvent::Pressure);
        }
    }

    fn check_pressure(&mut self) {
        let (used, capacity) = (self.used_bytes(), self.capacity_bytes());
        let limit = capacity * u64::from(self.config.pressure_percent) / 100;
        if used >= limit {
            self.report_pressure();
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.used_bytes).sum()
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.len_bytes).sum()
    }

    /// Index, used bytes and total bytes of each ring.
    pub(crate) fn ring_bytes(&self) -> Vec<(u8, u64, u64)> {
        self.rings.iter().map(|ring| (ring.index, ring.used_bytes, ring.len_bytes)).collect()
    }

    fn build(&mut self, at: usize) -> Option<Issue> {
        let ring = &self.rings[at];
        let limit = ring.limit_bytes.min(ring.free_bytes());
        let packed = self.queue.pack(limit, ring.limit_bytes)?;
        let (len_bytes, sides) = (packed.len_bytes(), ring.sides.len());
        self.stats.note_frame(len_bytes, packed.entries.len(), sides);
        self.stats.payload_bytes += packed.data_bytes;
        Some(self.issue(at, packed))
    }

    /// Gives a frame its place and its number.
    fn issue(&mut self, at: usize, mut packed: Packed) -> Issue {
        let ring = &mut self.rings[at];
        let (position_bytes, waste) = ring.next_place();
        let len_bytes = packed.len_bytes();
        let seq = self.next_seq;
        self.next_seq = seq.next();
        self.stats.sequential_frames += u64::from(position_bytes == ring.end_bytes);
        self.stats.wraps += u64::from(position_bytes == 0 && ring.end_bytes != 0);
        ring.end_bytes = position_bytes + len_bytes;
        ring.used_bytes += waste + len_bytes;
        ring.written_bytes += waste + len_bytes;
        let header = FrameHeader {
            pool: self.config.pool,
            epoch: self.epoch,
            seq,
            ring: ring.index,
            position_bytes,
            len_bytes: len_bytes as u32,
            max_txg: packed.max_txg,
            committed: self.released,
            watermark: self.watermark,
            record_count: packed.entries.len() as u16,
        };
        self.live.push_back(Live {
            ring: at as u8,
            fate: Fate::InFlight,
            position_blocks: (position_bytes / 4096) as u32,
            taken_blocks: ((waste + len_bytes) / 4096) as u32,
            max_txg: packed.max_txg,
            is_closing: packed.entries.is_empty(),
        });
        self.in_flight += 1;
        let sides = ring.sides.clone();
        for side in sides.iter() {
            *self.outstanding.entry(side.device_id).or_default() += 1;
        }
        self.unacked_count += packed.waiters.len();
        self.unacked.push_back(std::mem::take(&mut packed.waiters));
        self.check_pressure();
        let generation = self.generation;
        Issue { generation, seq, sides, position_bytes, parts: packed.seal(&header) }
    }

    /// Ends one side's write. A failure stops the log at once, before the other sides complete.
    pub(crate) fn side_done(
        &mut self,
        generation: u64,
        device: DeviceId,
        error: Option<&DeviceError>,
    ) {
        let left = self.outstanding.get_mut(&device).map(|n| {
            *n -= 1;
            *n
        });
        if left == Some(0) {
            self.outstanding.remove(&device);
        }
        // No task waits for this while the log runs, and waking costs.
        self.quiet_changed |= self.mode != Mode::Running;
        let Some(error) = error else { return };
        self.stats.write_errors += 1;
        if generation == self.generation {
            self.fail(device, error.clone());
        }
    }

    pub(crate) fn fail(&mut self, device: DeviceId, error: DeviceError) {
        if self.failed.insert(device) {
            self.report(LogEvent::SideFailed { device, error });
        }
        if self.mode != Mode::Failed {
            self.mode = Mode::Failed;
            self.quiet_changed = true;
            self.report(LogEvent::Paused);
        }
    }

    /// Ends a frame whose sides have all completed.
    pub(crate) fn frame_done(
        &mut self,
        generation: u64,
        seq: FrameSeq,
        durable: bool,
        took: Nanos,
    ) {
        if generation != self.generation {
            return;
        }
        self.group_commit.frame_ended(took, self.under_way());
        self.in_flight -= 1;
        self.quiet_changed |= self.mode != Mode::Running;
        let at = (seq.0 - self.tail_seq.0) as usize;
        let live = &mut self.live[at];
        live.fate = if durable { Fate::Durable } else { Fate::Unknown };
        let is_closing = live.is_closing;
        let newest = &mut self.rings[usize::from(live.ring)].newest;
        if durable && newest.is_none_or(|(newest, _)| newest < seq) {
            *newest = Some((seq, u64::from(live.position_blocks) * 4096));
        }
        if self.mode == Mode::Failed {
            return;
        }
        if is_closing {
            // Its task writes no other frame.
            self.wake_worker();
        } else {
            self.note_unsaid();
        }
        let before = self.watermark;
        loop {
            let next = self.watermark.next();
            if next >= self.next_seq {
                break;
            }
            // The tail passes only completed frames of committed groups.
            let at = next.0.checked_sub(self.tail_seq.0);
            if at.is_some_and(|at| self.live[at as usize].fate != Fate::Durable) {
                break;
            }
            self.watermark = next;
        }
        if self.watermark > before {
            self.wake_mark |= std::mem::take(&mut self.mark_waits);
            if !self.config.waits_for_witness {
                self.acknowledge(self.watermark);
            }
        }
    }

    /// Makes `ticket` wait for all records so far.
    pub(crate) fn add_barrier(&mut self, ticket: Rc<Ticket>) {
        let waiter = (ticket, self.max_appended);
        if let Some(waiter) = self.queue.attach(waiter) {
            self.attach_to_frames(waiter);
        }
    }

    fn attach_to_frames(&mut self, waiter: Waiter) {
        match self.unacked.back_mut() {
            Some(last) if waiter.1 > self.released => {
                last.push(waiter);
                self.unacked_count += 1;
            }
            _ => waiter.0.resolve_one(),
        }
    }

    pub(crate) fn note_append(&mut self, txg: TxgId) {
        self.max_appended = self.max_appended.max(txg);
        if self.rings.is_empty() {
            self.report_pressure();
        }
    }

    /// The state to record with the commit of `committed`. Remembers its tail.
    pub(crate) fn state(&mut self, committed: TxgId) -> LogState {
        let ended = |live: &&Live| live.max_txg <= committed && live.fate != Fate::InFlight;
        let freed = self.live.iter().take_while(ended).count();
        let tail_seq = FrameSeq(self.tail_seq.0 + freed as u64);
        self.recorded = (committed, tail_seq);
        let mut tails: Vec<Option<u64>> = vec![None; self.rings.len()];
        let mut missing = tails.len();
        for live in self.live.iter().skip(freed) {
            let tail = &mut tails[usize::from(live.ring)];
            if tail.is_none() {
                *tail = Some(u64::from(live.position_blocks) * 4096);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        let rings = self.rings.iter().zip(tails).map(|(ring, tail)| RingState {
            index: ring.index,
            len_bytes: ring.len_bytes,
            tail_bytes: tail.unwrap_or(ring.end_bytes),
        });
        LogState {
            epoch: self.epoch,
            committed,
            tail_seq,
            next_seq: self.next_seq,
            watermark: self.watermark,
            max_frame_bytes: self.config.max_frame_bytes,
            rings: rings.collect(),
        }
    }

    /// The epoch and the watermark: the least that an import must find.
    pub(crate) fn mark(&self) -> LogMark {
        LogMark { epoch: self.epoch, watermark: self.watermark }
    }

    pub(crate) fn release(&mut self, committed: TxgId) {
        self.released = self.released.max(committed);
        let mut resolved = Vec::new();
        let (overtaken, loose) = self.queue.drop_committed(committed, &mut resolved);
        self.stats.records_overtaken += overtaken;
        for waiters in &mut self.unacked {
            waiters.retain(|(ticket, txg)| {
                if *txg <= committed {
                    resolved.push(ticket.clone());
                }
                *txg > committed
            });
        }
        self.unacked_count = self.unacked.iter().map(Vec::len).sum();
        for waiter in loose {
            self.attach_to_frames(waiter);
        }
        let (recorded_for, recorded_tail) = self.recorded;
        if recorded_for <= committed {
            while self.tail_seq < recorded_tail {
                let Some(freed) = self.live.pop_front() else { break };
                let ring = &mut self.rings[usize::from(freed.ring)];
                ring.used_bytes -= u64::from(freed.taken_blocks) * 4096;
                self.tail_seq = self.tail_seq.next();
            }
        }
        for ticket in resolved {
            ticket.resolve_one();
        }
        // Pressure is reported again when a frame is built above the limit or a record finds no
        // room. It is not reported here, because an idle log needs no commit.
        self.pressure_reported = false;
        self.note_unsaid();
        self.wake_worker();
    }

    /// Whether the log may take new rings; the error is the obstacle.
    pub(crate) fn check_quiet(&self) -> Result<(), NotQuiet> {
        if self.mode == Mode::Running {
            return Err(NotQuiet::Running);
        }
        let released = self.released;
        match self.live.iter().map(|live| live.max_txg).max() {
            Some(held) if held > released => Err(NotQuiet::Unreleased { held, released }),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_still(&self) -> bool {
        self.in_flight == 0
    }

    pub(crate) fn pause(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Paused;
        }
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
        for ticket in self.queue.drain_waiters() {
            ticket.close();
        }
        for (ticket, _) in self.unacked.drain(..).flatten() {
            ticket.close();
        }
        self.wake_all();
        self.wake_closer = true;
        self.wake_mark = true;
    }

    pub(crate) fn stats(&self) -> LogStats {
        LogStats {
            frames_in_flight: self.in_flight,
            queued_records: self.queue.len() as u64,
            queued_bytes: self.queue.bytes(),
            used_bytes: self.used_bytes(),
            capacity_bytes: self.capacity_bytes(),
            ..self.stats.clone()
        }
    }
}
