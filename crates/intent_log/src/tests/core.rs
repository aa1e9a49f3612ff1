//! Model test of the queue and the core, without devices or an executor.

mod gathering;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use forebay_device::{DeviceError, ErrorKind, IoBytes, Operation};
use forebay_format::log_frame::{
    Fragment, RecordKind, decode, frame_len_bytes, next_position_bytes,
};
use forebay_units::{BLOCK_LEN, DeviceId, FrameSeq, Nanos, TxgId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::disk::{Disk, Power};
use super::{MIB, POOL, ring, stamped};
use crate::config::empty_state;
use crate::core::{Core, Issue, Mode, Next};
use crate::event::LogEvent;
use crate::pack::Queued;
use crate::ticket::Ticket;
use crate::{GroupCommit, LogConfig, LogRing, Record};

/// What each frame takes.
const TOOK: Nanos = Nanos::from_micros(50);

#[derive(Clone, Debug)]
enum Step {
    /// One append of records of these lengths in blocks (0: a zeroing). With `true`, they belong to
    /// the group before the open one, while that group is not committed.
    Append(Vec<u32>, bool),
    /// An append without records waits for everything so far.
    Barrier,
    /// The woken workers run.
    Turn,
    /// A frame's writes end; with a number, the write to that side fails.
    End(Index, Option<u8>),
    /// Writes end and workers run until the queue is empty or the log is full.
    Run,
    /// The next group opens.
    Open,
    /// All groups but the open one are committed.
    Commit,
    /// The pool takes a commit's state and releases it later.
    State,
    /// The pool releases the commit before the one whose state it took.
    Older,
    /// A pause, a commit of everything, then new rings.
    Renew,
}

fn step() -> impl Strategy<Value = Step> {
    let blocks = prop_oneof![1 => Just(0u32), 6 => 1u32..6, 3 => 6u32..80];
    let append = (prop::collection::vec(blocks, 1..5), prop::bool::weighted(0.2));
    prop_oneof![
        8 => append.prop_map(|(blocks, late)| Step::Append(blocks, late)),
        2 => Just(Step::Barrier),
        6 => Just(Step::Turn),
        8 => (any::<Index>(), Just(None)).prop_map(|(i, side)| Step::End(i, side)),
        1 => (any::<Index>(), prop::option::weighted(0.3, 0u8..2))
            .prop_map(|(i, side)| Step::End(i, side)),
        3 => Just(Step::Run),
        2 => Just(Step::Open),
        2 => Just(Step::Commit),
        2 => Just(Step::State),
        2 => Just(Step::Older),
        1 => Just(Step::Renew),
    ]
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Sent {
    txg: TxgId,
    blocks: u32,
    kind: RecordKind,
    /// Blocks that are in frames, and the frame that has the last of them.
    framed_blocks: u32,
    last: Option<u64>,
    answered: bool,
    ticket: usize,
}

struct Waits {
    ticket: Rc<Ticket>,
    /// Number of records that must be acknowledged before this wait ends.
    upto: usize,
    own: bool,
}

struct Placed {
    ring: usize,
    start_bytes: u64,
    end_bytes: u64,
    max_txg: TxgId,
    issue: Option<Issue>,
    durable: bool,
}

struct Rig {
    core: Core,
    config: LogConfig,
    rings: Vec<LogRing>,
    workers: Vec<(Arc<Woken>, Option<u64>)>,
    sent: Vec<Sent>,
    /// Numbers of the uncommitted records that are not wholly in frames.
    queue: VecDeque<usize>,
    waits: Vec<Waits>,
    frames: BTreeMap<u64, Placed>,
    ends: Vec<u64>,
    watermark: u64,
    next_seq: u64,
    /// Replay starts here or later.
    tail: u64,
    recorded: Option<(TxgId, u64)>,
    open: TxgId,
    released: TxgId,
    epoch: u32,
    failed: bool,
    pressed: bool,
    now: Nanos,
    /// Workers that gather records until their time is over.
    timers: Vec<usize>,
}

impl Rig {
    fn new(config: LogConfig, rings: Vec<LogRing>) -> Self {
        let state = empty_state(&config, &rings, 1, TxgId(0), FrameSeq(1));
        let core = Core::new(config, &rings, &state);
        let mut rig = Self {
            core,
            config,
            workers: Vec::new(),
            sent: Vec::new(),
            queue: VecDeque::new(),
            waits: Vec::new(),
            frames: BTreeMap::new(),
            ends: vec![0; rings.len()],
            rings,
            watermark: 0,
            next_seq: 1,
            tail: 1,
            recorded: None,
            open: TxgId(1),
            released: TxgId(0),
            epoch: 1,
            failed: false,
            pressed: false,
            now: Nanos::ZERO,
            timers: Vec::new(),
        };
        rig.start_workers();
        rig
    }

    fn start_workers(&mut self) {
        self.timers.clear();
        self.workers = (0..self.core.worker_count())
            .map(|_| (Arc::new(Woken(AtomicBool::new(true))), None))
            .collect();
    }

    fn append(&mut self, blocks: &[u32], late: bool) {
        let before = TxgId(self.open.0 - 1);
        let txg = if late && before > self.released { before } else { self.open };
        let ticket = Ticket::new(blocks.len() as u64);
        for blocks in blocks {
            let id = self.sent.len() as u64;
            let record = match blocks {
                0 => Record::zero(super::VolumeId(1), txg, super::Lba(id * 100), 7),
                _ => {
                    let data = stamped(id, *blocks);
                    // The data are in two buffers of any numbers of blocks.
                    let cut = (id as usize * 5 + 1) * BLOCK_LEN % data.len();
                    let (a, b) = (data.slice(0, cut), data.slice(cut, data.len() - cut));
                    let whole =
                        Record::write(super::VolumeId(1), txg, super::Lba(id * 100), data.clone());
                    Record { data: vec![a, b], ..whole }
                }
            };
            self.sent.push(Sent {
                txg,
                blocks: record.blocks,
                kind: record.kind,
                framed_blocks: 0,
                last: None,
                answered: false,
                ticket: self.waits.len(),
            });
            self.queue.push_back(id as usize);
            self.core.note_append(txg);
            self.core.queue.push(Queued::new(record, ticket.clone()));
        }
        self.waits.push(Waits { ticket, upto: self.sent.len(), own: true });
        self.core.wake_worker();
    }

    /// Runs every woken worker until all of them wait or write.
    fn turn(&mut self) {
        self.now = self.now + Nanos::from_micros(100);
        for at in std::mem::take(&mut self.timers) {
            self.workers[at].0.0.store(true, Ordering::Relaxed);
        }
        while let Some(at) = self
            .workers
            .iter()
            .position(|(woken, busy)| busy.is_none() && woken.0.load(Ordering::Relaxed))
        {
            self.workers[at].0.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(self.workers[at].0.clone());
            match self.core.next_for(at, self.core.generation, &waker, self.now) {
                Next::Wait => {}
                Next::Gather(_) => self.timers.push(at),
                Next::End => panic!("the log has not been closed"),
                Next::Write(issue) => {
                    self.workers[at].1 = Some(issue.seq.0);
                    self.take_frame(at % self.rings.len(), issue);
                }
            }
        }
        self.note_events();
    }

    /// Checks that a frame holds the next records, in order, where no live frame is.
    fn take_frame(&mut self, ring: usize, issue: Issue) {
        assert!(!self.failed && self.core.mode == Mode::Running, "a stopped log issues no frame");
        let bytes = IoBytes::joined(issue.parts.clone());
        let frame = decode(&bytes).unwrap();
        let header = &frame.header;
        assert_eq!((header.seq.0, issue.seq.0), (self.next_seq, self.next_seq));
        assert_eq!((header.pool, header.epoch), (POOL, self.epoch));
        assert_eq!(header.watermark.0, self.watermark, "the frame holds the watermark");
        assert_eq!(usize::from(header.ring), ring);
        let len_bytes = self.rings[ring].len_bytes;
        let limit = self.rings[ring].frame_limit_bytes(self.config.max_frame_bytes);
        let (start_bytes, end_bytes) =
            (issue.position_bytes, issue.position_bytes + bytes.len() as u64);
        assert_eq!(header.position_bytes, start_bytes);
        assert_eq!(start_bytes, next_position_bytes(self.ends[ring], len_bytes, limit));
        assert!(end_bytes <= len_bytes && end_bytes - start_bytes <= limit);
        for (seq, live) in self.frames.range(self.tail..) {
            let apart =
                live.ring != ring || live.end_bytes <= start_bytes || end_bytes <= live.start_bytes;
            assert!(apart, "frame {} overwrites frame {seq}, which replay may need", self.next_seq);
        }
        let mut at = frame.data_start;
        for entry in &frame.entries {
            let id = *self.queue.front().expect("the entry matches no appended record");
            let sent = &mut self.sent[id];
            assert_eq!((entry.txg, entry.kind), (sent.txg, sent.kind));
            assert_eq!(entry.lba.0, id as u64 * 100 + u64::from(sent.framed_blocks));
            for block in 0..entry.data_bytes() as usize / BLOCK_LEN {
                let word = ((id as u64) << 16) | (u64::from(sent.framed_blocks) + block as u64);
                let block = &bytes[at..at + BLOCK_LEN];
                assert!(block.chunks_exact(8).all(|found| found == word.to_le_bytes()));
                at += BLOCK_LEN;
            }
            let fragment =
                match (sent.framed_blocks, sent.framed_blocks + entry.blocks == sent.blocks) {
                    (_, false) => Fragment::Continues,
                    (0, true) => Fragment::Whole,
                    (_, true) => Fragment::Last,
                };
            assert_eq!(entry.fragment, fragment);
            sent.framed_blocks += entry.blocks;
            if sent.framed_blocks == sent.blocks {
                sent.last = Some(self.next_seq);
                self.queue.pop_front();
            }
        }
        let groups = frame.entries.iter().map(|entry| entry.txg);
        assert_eq!(Some(header.max_txg), groups.max(), "no frame is empty");
        self.ends[ring] = end_bytes;
        let max_txg = header.max_txg;
        self.frames.insert(
            self.next_seq,
            Placed { ring, start_bytes, end_bytes, max_txg, issue: Some(issue), durable: false },
        );
        self.next_seq += 1;
    }

    fn in_flight(&self) -> Vec<u64> {
        let open = |placed: &Placed| placed.issue.is_some();
        self.frames.iter().filter(|(_, placed)| open(placed)).map(|(seq, _)| *seq).collect()
    }

    /// Ends the writes of a frame, one side after the other.
    fn end(&mut self, seq: u64, failing: Option<u8>) {
        let placed = self.frames.get_mut(&seq).expect("in flight");
        let issue = placed.issue.take().expect("in flight");
        let failing = failing.map(|side| usize::from(side) % issue.sides.len());
        for (number, side) in issue.sides.iter().enumerate() {
            let error = (failing == Some(number))
                .then(|| DeviceError::new("x", Operation::Write, 0, 0, ErrorKind::Gone));
            self.core.side_done(issue.generation, side.device_id, error.as_ref());
            self.failed |= error.is_some();
        }
        placed.durable = failing.is_none();
        self.core.pass(self.now);
        self.core.frame_done(issue.generation, issue.seq, failing.is_none(), TOOK);
        // After a failure nothing is acknowledged, because another side may lack the frame.
        while !self.failed
            && self.frames.get(&(self.watermark + 1)).is_some_and(|placed| placed.durable)
        {
            self.watermark += 1;
        }
        for sent in &mut self.sent {
            sent.answered |= sent.last.is_some_and(|last| last <= self.watermark);
        }
        let worker = self.workers.iter_mut().find(|(_, busy)| *busy == Some(seq));
        let (woken, busy) = worker.expect("a worker wrote the frame");
        *busy = None;
        woken.0.store(true, Ordering::Relaxed);
    }

    fn run(&mut self) {
        loop {
            self.turn();
            let open = self.in_flight();
            if open.is_empty() && self.timers.is_empty() {
                return;
            }
            for seq in open {
                self.end(seq, None);
            }
        }
    }

    /// Takes the state of a root that commits `committed`, and checks it against every frame.
    fn state(&mut self, committed: TxgId) {
        let state = self.core.state(committed);
        let done = |placed: &Placed| placed.max_txg <= committed && placed.issue.is_none();
        let tail = (self.tail..self.next_seq).find(|seq| !done(&self.frames[seq]));
        let tail = tail.unwrap_or(self.next_seq);
        assert_eq!((state.tail_seq.0, state.next_seq.0), (tail, self.next_seq));
        assert_eq!((state.watermark.0, state.epoch), (self.watermark, self.epoch));
        for (at, ring) in state.rings.iter().enumerate() {
            let first = self.frames.range(tail..).find(|(_, placed)| placed.ring == at);
            let expected = first.map_or(self.ends[at], |(_, placed)| placed.start_bytes);
            assert_eq!(ring.tail_bytes, expected, "where replay begins in ring {at}");
        }
        self.recorded = Some((committed, tail));
    }

    fn release(&mut self, committed: TxgId) {
        self.pressed = false;
        self.core.release(committed);
        self.released = self.released.max(committed);
        for sent in self.sent.iter_mut().filter(|sent| sent.txg <= committed) {
            sent.answered = true;
        }
        let sent = &self.sent;
        self.queue.retain(|id| sent[*id].txg > committed);
        if let Some((recorded, tail)) = self.recorded {
            if recorded <= committed {
                self.tail = tail;
            }
        }
    }

    fn commit(&mut self) {
        let committed = TxgId(self.open.0 - 1);
        self.state(committed);
        self.release(committed);
    }

    /// Pauses, commits everything, and continues with new rings on the same devices.
    fn renew(&mut self) {
        self.renew_with(self.rings.len());
    }

    /// The same with the first `count` rings.
    fn renew_with(&mut self, count: usize) {
        self.core.pause();
        for seq in self.in_flight() {
            self.end(seq, None);
        }
        assert!(self.core.is_still());
        self.open = self.open.next();
        self.commit();
        assert_eq!(self.core.check_quiet(), Ok(()));
        self.epoch += 1;
        self.rings.truncate(count);
        self.ends.truncate(count);
        let next_seq = FrameSeq(self.next_seq);
        let state = empty_state(&self.config, &self.rings, self.epoch, self.released, next_seq);
        self.core.reconfigure(&self.rings, &state);
        self.frames.clear();
        self.ends.fill(0);
        (self.tail, self.watermark) = (self.next_seq, self.next_seq - 1);
        (self.recorded, self.failed, self.pressed) = (None, false, false);
        self.start_workers();
    }

    /// Checks that no ring has room for a record of which `left_bytes` wait.
    fn check_full(&self, left_bytes: u64) {
        for (at, ring) in self.rings.iter().enumerate() {
            let limit = ring.frame_limit_bytes(self.config.max_frame_bytes);
            let begin = next_position_bytes(self.ends[at], ring.len_bytes, limit);
            let skipped = if begin == 0 { ring.len_bytes - self.ends[at] } else { 0 };
            let taken = self.core.ring_bytes()[at].1 + skipped % ring.len_bytes;
            let room = ring.len_bytes.saturating_sub(taken);
            let wanted = frame_len_bytes(1, left_bytes).min(limit);
            assert!(room < wanted, "ring {at} has {room} bytes for a frame of {wanted}");
        }
    }

    fn note_events(&mut self) {
        while let Some(event) = self.core.events.pop_front() {
            self.pressed |= event == LogEvent::Pressure;
        }
    }

    /// Checks the invariants.
    fn check(&mut self) {
        self.note_events();
        assert_eq!(self.core.mode == Mode::Failed, self.failed);
        assert_eq!(self.core.queue.len(), self.queue.len());
        let waiting = |id: &usize| match self.sent[*id].kind {
            RecordKind::Write => {
                u64::from(self.sent[*id].blocks - self.sent[*id].framed_blocks) * BLOCK_LEN as u64
            }
            RecordKind::Zero => 0,
        };
        assert_eq!(self.core.queue.bytes(), self.queue.iter().map(waiting).sum::<u64>());
        for (number, waits) in self.waits.iter().enumerate() {
            let answered = waits.ticket.open.get() == 0;
            if waits.own {
                let own = self.sent.iter().filter(|sent| sent.ticket == number);
                let expected = own.filter(|sent| !sent.answered).count() as u64;
                assert_eq!(waits.ticket.open.get(), expected, "append {number}");
            } else if answered {
                let all = self.sent[..waits.upto].iter().all(|sent| sent.answered);
                assert!(all, "a barrier ended before its records were acknowledged");
            } else {
                let committed = self.sent[..waits.upto].iter().all(|s| s.txg <= self.released);
                assert!(!committed, "a barrier waits for records that are committed");
            }
        }
        let records = self.sent.iter().filter(|sent| !sent.answered).count() as u64;
        let barriers = self.waits.iter().filter(|waits| !waits.own && waits.ticket.open.get() > 0);
        let most = records + barriers.count() as u64;
        assert!((records..=most).contains(&self.core.under_way()), "{records} under way");
        let live = self.frames.range(self.tail..);
        let live: u64 = live.map(|(_, placed)| placed.end_bytes - placed.start_bytes).sum();
        let (used, capacity) = (self.core.used_bytes(), self.core.capacity_bytes());
        assert!(live <= used && used <= capacity, "{live} live, {used} used of {capacity}");
        // If all workers sleep while records wait, the log must have reported pressure.
        let idle = self
            .workers
            .iter()
            .all(|(woken, busy)| busy.is_none() && !woken.0.load(Ordering::Relaxed));
        let idle = idle && self.timers.is_empty();
        if idle && !self.failed && self.core.mode == Mode::Running && !self.queue.is_empty() {
            assert!(self.pressed, "records wait for space without a pressure event");
            self.check_full(waiting(&self.queue[0]));
        }
    }
}

fn rings(count: u8, sides: u32) -> Vec<LogRing> {
    let power = Rc::new(Power::default());
    (0..count)
        .map(|index| {
            let disks: Vec<Rc<Disk>> = (0..sides)
                .map(|side| Disk::new(u32::from(index) * 2 + side, MIB + 65536, 0, &power))
                .collect();
            ring(index, MIB, &disks.iter().collect::<Vec<_>>())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn core_agrees_with_a_list_of_appended_records(
        shape in (1u8..3, 1u32..3, 2u32..20, 1usize..4),
        gather_us in prop_oneof![Just(None), Just(Some(0)), Just(Some(150))],
        steps in prop::collection::vec(step(), 1..240),
    ) {
        let (ring_count, sides, frame_blocks, frames_in_flight) = shape;
        let config = LogConfig {
            max_frame_bytes: frame_blocks * 4096,
            frames_in_flight,
            group_commit: gather_us.map_or(GroupCommit::Adaptive, |gather_us| {
                GroupCommit::Fixed { gather: Nanos::from_micros(gather_us) }
            }),
            ..LogConfig::new(POOL)
        };
        let mut rig = Rig::new(config, rings(ring_count, sides));
        for step in steps {
            match step {
                Step::Append(blocks, late) => rig.append(&blocks, late),
                Step::Barrier => {
                    let ticket = Ticket::new(1);
                    rig.core.add_barrier(ticket.clone());
                    let upto = rig.sent.len();
                    rig.waits.push(Waits { ticket, upto, own: false });
                }
                Step::Turn => rig.turn(),
                Step::End(index, failing) => {
                    let open = rig.in_flight();
                    if !open.is_empty() {
                        rig.end(*index.get(&open), failing);
                    }
                }
                Step::Run => rig.run(),
                Step::Open => rig.open = rig.open.next(),
                Step::Commit => rig.commit(),
                Step::State => rig.state(TxgId(rig.open.0 - 1)),
                Step::Older => rig.release(TxgId(rig.open.0.saturating_sub(2))),
                Step::Renew => rig.renew(),
            }
            rig.check();
        }
        if rig.failed {
            rig.renew();
        }
        // In the end every record is in a frame or committed, and every wait has ended.
        rig.run();
        rig.check();
        while !rig.queue.is_empty() {
            rig.open = rig.open.next();
            rig.commit();
            rig.run();
            rig.check();
        }
        prop_assert!(rig.waits.iter().all(|waits| waits.ticket.open.get() == 0));
        rig.open = rig.open.next();
        rig.commit();
        prop_assert_eq!(rig.core.used_bytes(), 0, "space is in use without a live frame");
    }
}

#[test]
fn late_write_to_an_old_ring_changes_nothing() {
    let config = LogConfig::new(POOL);
    let mut rig = Rig::new(config, rings(1, 1));
    rig.append(&[3], false);
    rig.turn();
    let [seq] = rig.in_flight()[..] else { panic!("one frame") };
    let issue = rig.frames.get_mut(&seq).and_then(|placed| placed.issue.take()).unwrap();
    rig.core.fail(DeviceId(0), DeviceError::new("x", Operation::Write, 0, 0, ErrorKind::Gone));
    rig.open = rig.open.next();
    rig.core.release(TxgId(1));
    assert_eq!(rig.core.check_quiet(), Ok(()));
    assert_eq!(rig.core.outstanding.len(), 1, "resume waits for this");
    let state = empty_state(&config, &rig.rings, 2, TxgId(1), FrameSeq(2));
    rig.core.reconfigure(&rig.rings, &state);
    let error = DeviceError::new("x", Operation::Write, 0, 0, ErrorKind::Gone);
    rig.core.side_done(issue.generation, DeviceId(0), Some(&error));
    rig.core.frame_done(issue.generation, issue.seq, false, Nanos::ZERO);
    assert!(rig.core.mode == Mode::Running && rig.core.failed.is_empty());
    assert!(rig.core.outstanding.is_empty());
}
