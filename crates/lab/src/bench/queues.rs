//! Loads on queues of their own, from which the device takes commands by arbitration.

use super::{Bench, Ended, Flying, LoadRun, Sampler, request_of, stored_thousandths};
use crate::LabError;
use crate::load::{ArrivalTimes, Arrivals, AskKind, Asks, Load};
use crate::queues::{Arbiter, QueueOutcome, Queues};
use crate::responses::BothTimes;
use forebay_flash::Status;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A queue with what waits in it.
struct Lane<'a> {
    load: &'a Load,
    stored: Option<u16>,
    asks: Asks,
    /// When the next request is put into the queue, where that does not depend on completions.
    arrivals: Option<(ArrivalTimes, u64)>,
    /// When each request was put into the queue.
    waiting: VecDeque<u64>,
    in_device: u32,
    done: u64,
    bytes: u64,
    response_ns: u128,
    times: BothTimes,
}

/// A command in the device: when it was submitted, and the request.
type InDevice = (u64, Flying);

/// All queues and the commands in the device, by completion.
struct Shared<'a> {
    lanes: Vec<Lane<'a>>,
    arbiter: Arbiter,
    in_device: BinaryHeap<Reverse<(u64, InDevice)>>,
    device_slots: usize,
    queue_slots: u32,
    sampler: Sampler,
    end: u64,
    ended: Ended,
}

impl Bench {
    /// Runs the queues for their time, with a sample each `sample_minutes`.
    pub(crate) fn run_queues(
        &mut self,
        of: &Queues,
        sample_minutes: f64,
        seed: u64,
    ) -> Result<(LoadRun, Vec<QueueOutcome>), LabError> {
        let end = self.now + self.span_ns(of.minutes);
        let step = self.span_ns(sample_minutes).max(1);
        let link_slots = self.model.identity().queue_depth;
        let device_slots = if of.device_slots == 0 { link_slots } else { of.device_slots };
        let mut shared = Shared {
            lanes: Vec::new(),
            arbiter: Arbiter::new(of),
            in_device: BinaryHeap::new(),
            device_slots: device_slots as usize,
            queue_slots: if of.queue_slots == 0 { u32::MAX } else { of.queue_slots },
            sampler: Sampler::new(self, step, end, u64::MAX),
            end,
            ended: Ended::OnTime,
        };
        for (i, queue) in of.queues.iter().enumerate() {
            let seed = crate::hash::mix(seed.wrapping_add(i as u64));
            shared.lanes.push(Lane::new(self, &queue.pattern, seed)?);
        }
        shared.drive(self)?;
        Ok(shared.finish(self))
    }
}

impl<'a> Lane<'a> {
    fn new(bench: &Bench, load: &'a Load, seed: u64) -> Result<Self, LabError> {
        let arrivals = ArrivalTimes::new(load.arrivals, bench.now, seed).map(|mut times| {
            let first = times.next_ns();
            (times, first)
        });
        let closed = if load.arrivals == Arrivals::Closed { load.outstanding } else { 0 };
        Ok(Self {
            load,
            stored: stored_thousandths(load, seed),
            asks: Asks::new(load, bench.capacity_bytes(), seed)?,
            arrivals,
            waiting: (0..closed).map(|_| bench.now).collect(),
            in_device: 0,
            done: 0,
            bytes: 0,
            response_ns: 0,
            times: BothTimes::default(),
        })
    }

    fn note(&mut self, at: u64, flying: &Flying) {
        if flying.kind == AskKind::Trim {
            return;
        }
        let response_ns = at - flying.asked;
        self.done += 1;
        self.bytes += u64::from(self.load.block_bytes);
        self.response_ns += u128::from(response_ns);
        self.times.note(flying.kind == AskKind::Read, response_ns);
    }

    fn outcome(&self, span_ns: u64) -> QueueOutcome {
        let seconds = span_ns.max(1) as f64 / 1e9;
        QueueOutcome {
            iops: self.done as f64 / seconds,
            mib_s: self.bytes as f64 / seconds / f64::from(1 << 20),
            mean_ms: self.response_ns as f64 / self.done.max(1) as f64 / 1e6,
            responses: self.times.responses(),
        }
    }
}

impl Shared<'_> {
    fn drive(&mut self, bench: &mut Bench) -> Result<(), LabError> {
        self.fetch(bench)?;
        while self.ended == Ended::OnTime {
            let arrivals = self.lanes.iter().enumerate();
            let arrivals = arrivals.filter_map(|(i, lane)| Some((lane.arrivals.as_ref()?.1, i)));
            let arrival = arrivals.min().filter(|(at, _)| *at < self.end);
            let due = self.in_device.peek().map(|Reverse((at, _))| *at);
            match arrival {
                Some((at, i)) if due.is_none_or(|due| at <= due) => {
                    bench.now = bench.now.max(at);
                    self.arrive(i);
                    self.fetch(bench)?;
                }
                _ if due.is_some() => self.complete(bench)?,
                _ => break,
            }
        }
        Ok(())
    }

    /// The next request of an open load is put into its queue.
    fn arrive(&mut self, queue: usize) {
        let lane = &mut self.lanes[queue];
        if let Some((times, next)) = &mut lane.arrivals {
            lane.waiting.push_back(*next);
            *next = times.next_ns();
        }
    }

    /// The device takes commands as long as it has room and a queue has one for it.
    fn fetch(&mut self, bench: &mut Bench) -> Result<(), LabError> {
        while self.in_device.len() < self.device_slots {
            let (lanes, most) = (&self.lanes, self.queue_slots);
            let is_ready = |i: usize| !lanes[i].waiting.is_empty() && lanes[i].in_device < most;
            let Some(i) = self.arbiter.next(is_ready) else { break };
            let lane = &mut self.lanes[i];
            let Some(asked) = lane.waiting.pop_front() else { break };
            let ask = lane.asks.next(0);
            let done = bench.submit(&request_of(ask, lane.load, lane.stored))?;
            lane.in_device += 1;
            let flying = Flying { asked, worker: i as u32, kind: ask.kind };
            self.in_device.push(Reverse((done.at.0, (bench.now, flying))));
            if done.status == Status::WornOut {
                self.ended = Ended::WornOut;
                break;
            }
        }
        Ok(())
    }

    fn complete(&mut self, bench: &mut Bench) -> Result<(), LabError> {
        let Some(Reverse((at, (submitted, flying)))) = self.in_device.pop() else { return Ok(()) };
        let lane = &mut self.lanes[flying.worker as usize];
        lane.in_device -= 1;
        // Little's law is of what the device has: a queue is the host's memory.
        self.sampler.responses_ns += u128::from(at - submitted);
        let bytes = u64::from(lane.load.block_bytes);
        if !self.sampler.complete(bench, at, self.end, &flying, bytes) {
            return Ok(());
        }
        lane.note(at, &flying);
        if lane.load.arrivals == Arrivals::Closed {
            lane.waiting.push_back(at);
        }
        self.fetch(bench)
    }

    fn finish(self, bench: &Bench) -> (LoadRun, Vec<QueueOutcome>) {
        let span_ns = bench.now.min(self.end) - self.sampler.begin;
        let outcomes = self.lanes.iter().map(|lane| lane.outcome(span_ns)).collect();
        (self.sampler.finish(bench, self.end, self.ended, false), outcomes)
    }
}
