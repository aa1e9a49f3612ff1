//! A device under a closed loop: so many requests outstanding, the next one when one completes.

use crate::LabError;
use crate::load::{Ask, Asks, Load};
use forebay_flash::{Completion, Content, DeviceSpec, Model, Request, Stats, Status};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    pub ended: Ended,
    /// Little's law by the device's own two counts: outstanding, and rate times response.
    pub little: (f64, f64),
    pub whole: Sample,
}

/// A model with its clock.
pub(crate) struct Bench {
    model: Box<dyn Model>,
    /// Latest instant given to the model.
    pub now: u64,
    /// How many times smaller than the named device the model is; stretches time alike.
    pub scale: f64,
    start: u64,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bench({} at {} ns, 1/{})", self.model.name(), self.now, self.scale)
    }
}

/// A request the model refused: a bug in a workload, told as such.
fn refused(error: &forebay_flash::RequestError) -> LabError {
    LabError::usage(format!("the load does not fit the device: {error}"))
}

impl Bench {
    pub(crate) fn new(device: &DeviceSpec, scale: f64, seed: u64) -> Result<Self, LabError> {
        let model = forebay_flash::build(device, seed)?;
        Ok(Self { model, now: 0, scale, start: 0 })
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
        self.model.submit(Nanos(self.now), request).map_err(|e| refused(&e))
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
            samples.push(Sample { minute, power_w, amplification: 0.0, ..Sample::default() });
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

    /// `load` for so many nominal minutes, a sample each `sample_minutes`; or until `most` requests
    /// have completed, when that comes first.
    pub(crate) fn run(
        &mut self,
        load: &Load,
        minutes: f64,
        most: u64,
        sample_minutes: f64,
        seed: u64,
    ) -> Result<LoadRun, LabError> {
        let mut asks = Asks::new(load, self.capacity_bytes(), seed)?;
        let stored = stored_thousandths(load, seed);
        let (begin, mut end) = (self.now, self.now + self.span_ns(minutes));
        let step = self.span_ns(sample_minutes).max(1);
        let first = self.stats();
        let (mut before, mut window) = (first, Window::default());
        let (mut whole, mut samples) = (Window::default(), Vec::new());
        let mut edge = next_edge(begin, step, end);
        let mut in_flight: BinaryHeap<Reverse<(u64, u64, u32)>> = BinaryHeap::new();
        let mut ended = Ended::OnTime;
        for worker in (0..load.workers).cycle().take(load.depth() as usize) {
            let ask = asks.next(worker as usize);
            let done = self.submit(&request_of(ask, load, stored))?;
            in_flight.push(Reverse((done.at.0, self.now, worker)));
        }
        while let Some(Reverse((at, asked, worker))) = in_flight.pop() {
            while at >= edge && edge <= end && self.now < end {
                self.now = edge.max(self.now);
                let stats = self.stats();
                let minute = self.minute_at(edge);
                samples.push(window.close(minute, &before, &stats));
                (before, window) = (stats, Window::default());
                if edge == end {
                    break;
                }
                edge = next_edge(edge, step, end);
            }
            if at >= end {
                self.now = self.now.max(at);
                continue; // Drain: what completes after the end counts nowhere.
            }
            self.now = at;
            window.note(at - asked, u64::from(load.block_bytes));
            whole.note(at - asked, u64::from(load.block_bytes));
            if whole.done == most {
                end = at;
                continue;
            }
            let ask = asks.next(worker as usize);
            let done = self.submit(&request_of(ask, load, stored))?;
            if done.status == Status::WornOut {
                ended = Ended::WornOut;
                break;
            }
            in_flight.push(Reverse((done.at.0, at, worker)));
        }
        let last = self.stats();
        let little = last.since(&first).little();
        let mut whole = whole.close(self.minute_at(self.now), &first, &last);
        let span_s = (self.now.min(end) - begin).max(1) as f64 / 1e9;
        let span_counted = (self.now - begin).max(1) as f64 / 1e9;
        whole.iops *= span_counted / span_s;
        whole.mib_s *= span_counted / span_s;
        Ok(LoadRun { samples, ended, little, whole })
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
fn request_of(ask: Ask, load: &Load, stored: Option<u16>) -> Request<'static> {
    let len = u64::from(ask.len_bytes);
    if ask.read {
        return Request::read(ask.offset_bytes, len);
    }
    let write = Request::write(ask.offset_bytes, len);
    let write = match stored {
        Some(thousandths) => write.with(Content::Stored(thousandths)),
        None => write,
    };
    if load.fua { write.fua() } else { write }
}
