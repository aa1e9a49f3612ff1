//! A load on a device: a closed loop with a constant number of requests outstanding, or requests
//! that arrive whatever the device does.

use crate::LabError;
use crate::load::{ArrivalTimes, Arrivals, Ask, AskKind, Asks, Load};
use crate::operations::OperationLog;
use crate::responses::{BothTimes, ResponseCounts, Responses};
use forebay_flash::{Completion, Content, DeviceSpec, Model, Request, Stats, Status};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

mod queues;
mod replay;

/// What happened in one stretch of time. Times are nominal: what the device's full size would take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the stretch, in minutes from the start of the run.
    pub minute: f64,
    /// Requests completed a second.
    pub iops: f64,
    /// 2^20 bytes a second, as Iometer prints.
    pub mib_s: f64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
    /// Longest response time in milliseconds.
    pub max_ms: f64,
    /// Mean power in watts.
    pub power_w: f64,
    /// Media bytes programmed for each byte the host wrote.
    pub amplification: f64,
    /// How long requests took.
    #[serde(default)]
    pub responses: Responses,
}

/// Sums over one stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    done: u64,
    bytes: u64,
    response_ns: u128,
    longest_ns: u64,
}

/// How a stretch of load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its time was over.
    OnTime,
    /// The flash wore out.
    WornOut,
}

/// Sums over a whole load.
#[derive(Clone, Debug)]
pub(crate) struct LoadRun {
    pub samples: Vec<Sample>,
    /// How many requests of each sample took how long.
    pub histograms: Vec<ResponseCounts>,
    pub ended: Ended,
    /// Requests outstanding until all have completed: integrated by the device, and rate times
    /// response by the host.
    pub little: (f64, f64),
    /// Requests outstanding until the limit, integrated by the device.
    /// Nothing for an open load, which keeps none outstanding.
    pub outstanding: Option<f64>,
    pub whole: Sample,
    /// Over the last [`TAIL_SHARE`] of the load.
    pub tail: Responses,
}

/// The share of a load whose responses are kept apart as its tail: what the load ends in.
pub(crate) const TAIL_SHARE: f64 = 1.0 / 6.0;

/// A model with its clock.
pub(crate) struct Bench {
    model: Box<dyn Model>,
    /// Latest instant given to the model.
    pub now: u64,
    /// How many times smaller than the named device the model is; stretches time alike.
    pub scale: f64,
    start: u64,
    /// Where each request is noted.
    pub log: Option<OperationLog>,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bench({} at {} ns, 1/{})", self.model.name(), self.now, self.scale)
    }
}

impl Bench {
    pub(crate) fn new(device: &DeviceSpec, scale: f64, seed: u64) -> Result<Self, LabError> {
        let model = forebay_flash::build(device, seed)?;
        Ok(Self { model, now: 0, scale, start: 0, log: None })
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.model.identity().capacity_bytes
    }

    pub(crate) fn stats(&self) -> Stats {
        self.model.stats(Nanos(self.now))
    }

    /// Virtual nanoseconds that stand for so many nominal minutes.
    pub(crate) fn span_ns(&self, minutes: f64) -> u64 {
        (minutes * 60e9 / self.scale).round() as u64
    }

    /// Nominal minutes since the start of the run.
    pub(crate) fn minute_at(&self, ns: u64) -> f64 {
        (ns - self.start) as f64 * self.scale / 60e9
    }

    /// The run starts now: minutes count from here.
    pub(crate) fn start_counting(&mut self) {
        self.start = self.now;
    }

    /// A number that follows from the model's whole state.
    pub(crate) fn digest(&self) -> u64 {
        self.model.digest()
    }

    /// One request, at `now`.
    pub(crate) fn submit(&mut self, request: &Request<'_>) -> Result<Completion, LabError> {
        let done = self.model.submit(Nanos(self.now), request)?;
        if let Some(log) = &mut self.log {
            log.note(self.now, request, &done)?;
        }
        Ok(done)
    }

    /// One request, and waits for it.
    pub(crate) fn wait_for(&mut self, request: &Request<'_>) -> Result<Completion, LabError> {
        let done = self.submit(request)?;
        self.now = self.now.max(done.at.0);
        Ok(done)
    }

    pub(crate) fn secure_erase(&mut self) -> Result<(), LabError> {
        self.wait_for(&Request::secure_erase()).map(|_| ())
    }

    /// Nothing for so many nominal minutes, noting power each `sample_minutes`.
    pub(crate) fn idle(&mut self, minutes: f64, sample_minutes: f64) -> Vec<Sample> {
        let end = self.now + self.span_ns(minutes);
        let step = self.span_ns(sample_minutes).max(1);
        let (mut samples, mut before) = (Vec::new(), self.stats());
        while self.now < end {
            self.now = next_edge(self.now, step, end);
            let stats = self.stats();
            let power_w = power_between(&before, &stats);
            let minute = self.minute_at(self.now);
            samples.push(Sample { minute, power_w, ..Sample::default() });
            before = stats;
        }
        samples
    }

    /// Fills the span once in order, pseudo-random data, as fast as it goes.
    pub(crate) fn fill(&mut self, block_bytes: u32, depth: u32) -> Result<(), LabError> {
        let capacity = self.capacity_bytes();
        let mut in_flight: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        let mut offset = 0;
        while offset < capacity {
            if in_flight.len() >= depth as usize {
                let Reverse(done) = in_flight.pop().expect("not empty");
                self.now = self.now.max(done);
            }
            let len = u64::from(block_bytes).min(capacity - offset);
            let done = self.submit(&Request::write(offset, len))?;
            in_flight.push(Reverse(done.at.0));
            offset += len;
        }
        self.now = in_flight.into_iter().map(|Reverse(at)| at).fold(self.now, u64::max);
        Ok(())
    }

    /// Runs `load` until its limit, with a sample each `sample_minutes`.
    pub(crate) fn run(
        &mut self,
        load: &Load,
        limit: Limit,
        sample_minutes: f64,
        seed: u64,
    ) -> Result<LoadRun, LabError> {
        let asks = Asks::new(load, self.capacity_bytes(), seed)?;
        let stored = stored_thousandths(load, seed);
        let end = self.now + self.span_ns(limit.minutes);
        let step = self.span_ns(sample_minutes).max(1);
        let mut run = Loop {
            load,
            stored,
            asks,
            in_flight: BinaryHeap::new(),
            sampler: Sampler::new(self, step, end, limit.requests),
            end,
            ended: Ended::OnTime,
        };
        match ArrivalTimes::new(load.arrivals, self.now, seed) {
            Some(times) => run.drive_open(self, times, limit.requests)?,
            None => {
                run.start(self)?;
                run.drive(self, limit.requests)?;
            }
        }
        Ok(run.finish(self))
    }
}

/// What ends a load: time or a number of requests, the earlier of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Nominal minutes.
    pub minutes: f64,
    /// Completed requests.
    pub requests: u64,
}

/// Sums since the last sample and since the start of a load.
struct Sampler {
    begin: u64,
    step: u64,
    edge: u64,
    first: Stats,
    before: Stats,
    window: Window,
    whole: Window,
    /// Responses of all requests, also of those that complete after the limit.
    responses_ns: u128,
    /// Times of the open stretch, of all closed stretches, and of the load's tail.
    times: BothTimes,
    all_times: BothTimes,
    tail_times: BothTimes,
    /// The tail begins at this instant, or after so many requests.
    tail_from_ns: u64,
    tail_from_requests: u64,
    /// The device's counters when the limit is reached.
    at_limit: Option<Stats>,
    samples: Vec<Sample>,
    histograms: Vec<ResponseCounts>,
}

impl Sampler {
    fn new(bench: &Bench, step: u64, end: u64, max_requests: u64) -> Self {
        let first = bench.stats();
        let tail_ns = (end - bench.now) as f64 * TAIL_SHARE;
        Self {
            begin: bench.now,
            step,
            edge: next_edge(bench.now, step, end),
            first,
            before: first,
            window: Window::default(),
            whole: Window::default(),
            responses_ns: 0,
            times: BothTimes::default(),
            all_times: BothTimes::default(),
            tail_times: BothTimes::default(),
            tail_from_ns: end - tail_ns as u64,
            tail_from_requests: max_requests - (max_requests as f64 * TAIL_SHARE) as u64,
            at_limit: None,
            samples: Vec::new(),
            histograms: Vec::new(),
        }
    }

    /// Closes every stretch that ends at `at` or earlier.
    fn sample_until(&mut self, bench: &mut Bench, at: u64, end: u64) {
        while at >= self.edge && self.edge <= end && bench.now < end {
            bench.now = self.edge.max(bench.now);
            let stats = bench.stats();
            let minute = bench.minute_at(self.edge);
            let mut sample = self.window.close(minute, &self.before, &stats);
            sample.responses = self.times.responses();
            self.histograms.push(self.times.counts());
            self.all_times.take(&mut self.times);
            self.samples.push(sample);
            (self.before, self.window) = (stats, Window::default());
            if self.edge == end {
                break;
            }
            self.edge = next_edge(self.edge, self.step, end);
        }
    }

    /// Moves the clock to a completion and takes note of it. Returns whether it was before `end`:
    /// later ones are drained and do not count.
    #[inline]
    fn complete(
        &mut self,
        bench: &mut Bench,
        at: u64,
        end: u64,
        flying: &Flying,
        bytes: u64,
    ) -> bool {
        self.sample_until(bench, at, end);
        if at >= end {
            bench.now = bench.now.max(end);
            self.at_limit.get_or_insert_with(|| bench.stats());
            bench.now = bench.now.max(at);
            return false;
        }
        bench.now = at;
        self.note(at, flying, bytes);
        true
    }

    /// The whole load, whose time was over at `end`.
    fn finish(mut self, bench: &Bench, end: u64, ended: Ended, is_closed: bool) -> LoadRun {
        let last = bench.stats();
        self.all_times.take(&mut self.times);
        let all = last.since(&self.first);
        let host = self.responses_ns as f64 / all.now.0.max(1) as f64;
        let little = (all.mean_outstanding(), host);
        let kept = self.at_limit.unwrap_or(last).since(&self.first).mean_outstanding();
        let outstanding = is_closed.then_some(kept);
        let mut whole = self.whole.close(bench.minute_at(bench.now), &self.first, &last);
        let span_s = (bench.now.min(end) - self.begin).max(1) as f64 / 1e9;
        let span_counted = (bench.now - self.begin).max(1) as f64 / 1e9;
        whole.iops *= span_counted / span_s;
        whole.mib_s *= span_counted / span_s;
        whole.responses = self.all_times.responses();
        let (samples, histograms) = (self.samples, self.histograms);
        let tail = self.tail_times.responses();
        LoadRun { samples, histograms, ended, little, outstanding, whole, tail }
    }

    /// A request that completed at `at`. Rates and responses are of reads and writes, not of trims.
    #[inline]
    fn note(&mut self, at: u64, flying: &Flying, bytes: u64) {
        if flying.kind == AskKind::Trim {
            return;
        }
        let (response_ns, read) = (at - flying.asked, flying.kind == AskKind::Read);
        self.window.note(response_ns, bytes);
        self.whole.note(response_ns, bytes);
        self.times.note(read, response_ns);
        if at >= self.tail_from_ns || self.whole.done >= self.tail_from_requests {
            self.tail_times.note(read, response_ns);
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    /// When the host asked for it.
    asked: u64,
    worker: u32,
    kind: AskKind,
}

/// A load with its requests in flight, by completion.
struct Loop<'a> {
    load: &'a Load,
    stored: Option<u16>,
    asks: Asks,
    in_flight: BinaryHeap<Reverse<(u64, Flying)>>,
    sampler: Sampler,
    end: u64,
    ended: Ended,
}

impl Loop<'_> {
    /// Sends the next request of `worker`. Returns whether the device took it.
    #[inline]
    fn send(&mut self, bench: &mut Bench, worker: u32) -> Result<bool, LabError> {
        let ask = self.asks.next(worker as usize);
        let done = bench.submit(&request_of(ask, self.load, self.stored))?;
        let flying = Flying { asked: bench.now, worker, kind: ask.kind };
        self.in_flight.push(Reverse((done.at.0, flying)));
        Ok(done.status != Status::WornOut)
    }

    fn start(&mut self, bench: &mut Bench) -> Result<(), LabError> {
        for worker in (0..self.load.workers).cycle().take(self.load.depth() as usize) {
            self.send(bench, worker)?;
        }
        Ok(())
    }

    /// Takes note of a completion. Returns whether the load goes on.
    #[inline]
    fn complete(&mut self, bench: &mut Bench, at: u64, flying: &Flying, max_requests: u64) -> bool {
        let bytes = u64::from(self.load.block_bytes);
        self.sampler.responses_ns += u128::from(at - flying.asked);
        if !self.sampler.complete(bench, at, self.end, flying, bytes) {
            return false;
        }
        if self.sampler.whole.done == max_requests {
            self.end = at;
            return false;
        }
        true
    }

    fn drive(&mut self, bench: &mut Bench, max_requests: u64) -> Result<(), LabError> {
        while let Some(Reverse((at, flying))) = self.in_flight.pop() {
            if self.complete(bench, at, &flying, max_requests)
                && !self.send(bench, flying.worker)?
            {
                self.ended = Ended::WornOut;
                break;
            }
        }
        Ok(())
    }

    /// Requests arrive at `times`, by turns on the queues of the workers.
    fn drive_open(
        &mut self,
        bench: &mut Bench,
        mut times: ArrivalTimes,
        max_requests: u64,
    ) -> Result<(), LabError> {
        let mut arrival = times.next_ns();
        let mut workers = (0..self.load.workers).cycle();
        loop {
            let due = self.in_flight.peek().map(|Reverse((at, _))| *at);
            if arrival < self.end && due.is_none_or(|due| arrival <= due) {
                bench.now = bench.now.max(arrival);
                let worker = workers.next().expect("at least one worker");
                if !self.send(bench, worker)? {
                    self.ended = Ended::WornOut;
                    return Ok(());
                }
                arrival = times.next_ns();
                continue;
            }
            let Some(Reverse((at, flying))) = self.in_flight.pop() else { return Ok(()) };
            self.complete(bench, at, &flying, max_requests);
        }
    }

    fn finish(self, bench: &Bench) -> LoadRun {
        let is_closed = self.load.arrivals == Arrivals::Closed;
        self.sampler.finish(bench, self.end, self.ended, is_closed)
    }
}

impl Window {
    #[inline]
    fn note(&mut self, response_ns: u64, bytes: u64) {
        self.done += 1;
        self.bytes += bytes;
        self.response_ns += u128::from(response_ns);
        self.longest_ns = self.longest_ns.max(response_ns);
    }

    fn close(&self, minute: f64, before: &Stats, after: &Stats) -> Sample {
        let between = after.since(before);
        let seconds = between.now.0.max(1) as f64 / 1e9;
        Sample {
            minute,
            iops: self.done as f64 / seconds,
            mib_s: self.bytes as f64 / seconds / f64::from(1 << 20),
            mean_ms: self.response_ns as f64 / self.done.max(1) as f64 / 1e6,
            max_ms: self.longest_ns as f64 / 1e6,
            power_w: power_between(before, after),
            amplification: if between.written_bytes == 0 {
                0.0
            } else {
                between.write_amplification()
            },
            responses: Responses::default(),
        }
    }
}

/// The next edge of a stretch. One that would leave less than half a stretch over takes that in:
/// a sample over a sliver of time says nothing.
fn next_edge(edge: u64, step: u64, end: u64) -> u64 {
    if edge + step + step / 2 >= end { end } else { edge + step }
}

fn power_between(before: &Stats, after: &Stats) -> f64 {
    let seconds = (after.now.0 - before.now.0).max(1) as f64 / 1e9;
    (after.energy_j - before.energy_j) / seconds
}

/// Thousandths of its size that LZ4 leaves of the load's data; none when that is all of it.
pub(crate) fn stored_thousandths(load: &Load, seed: u64) -> Option<u16> {
    // Controllers compress mapping units, so the unit is what gets measured, whatever the request.
    const UNIT_LEN: usize = 4096;
    let block = load.content.block(UNIT_LEN, seed);
    let packed = lz4_flex::block::compress(&block).len();
    (packed < UNIT_LEN).then(|| (packed * 1000).div_ceil(UNIT_LEN).clamp(1, 1000) as u16)
}

#[inline]
pub(crate) fn request_of(ask: Ask, load: &Load, stored: Option<u16>) -> Request<'static> {
    let len = u64::from(ask.len_bytes);
    match ask.kind {
        AskKind::Read => return Request::read(ask.offset_bytes, len),
        AskKind::Trim => return Request::trim(ask.offset_bytes, len),
        AskKind::Write => {}
    }
    let write = Request::write(ask.offset_bytes, len).on_stream(ask.stream);
    let write = match stored {
        Some(thousandths) => write.with(Content::Stored(thousandths)),
        None => write,
    };
    if load.fua { write.fua() } else { write }
}
