//! A recorded trace on a device, at its own pace or as fast as the device answers.

use super::{Bench, Ended, Flying, LoadRun, Sampler};
use crate::LabError;
use crate::load::AskKind;
use crate::recorded::{Events, LeftOut, Recorded, TracePace, TraceRequest};
use forebay_flash::{Request, Status};
use forebay_trace::Op;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What happens next: instant, whether it is the write behind a flush, and its number.
type Due = Reverse<(u64, bool, u64)>;

/// A request under way.
#[derive(Clone, Copy)]
struct UnderWay {
    request: TraceRequest,
    arrived: u64,
}

/// A trace with its requests in flight, by the instant at which something happens to them.
struct Replay<'a> {
    bench: &'a mut Bench,
    of: &'a Recorded,
    due: BinaryHeap<Due>,
    /// By number, from `first` on; none when it has ended.
    under_way: VecDeque<Option<UnderWay>>,
    first: u64,
    in_flight: usize,
    sampler: Sampler,
    ended: Ended,
}

impl Bench {
    /// Replays `of` to its end, with a sample each `sample_minutes`.
    pub(crate) fn replay(
        &mut self,
        of: &Recorded,
        sample_minutes: f64,
    ) -> Result<(LoadRun, LeftOut), LabError> {
        let mut events = of.open()?;
        let step = self.span_ns(sample_minutes).max(1);
        // A trace ends with its last request, not at a time.
        let sampler = Sampler::new(self, step, u64::MAX / 2, u64::MAX);
        let mut replay = Replay {
            of,
            due: BinaryHeap::new(),
            under_way: VecDeque::new(),
            first: 0,
            in_flight: 0,
            sampler,
            ended: Ended::OnTime,
            bench: self,
        };
        replay.drive(&mut events)?;
        Ok((replay.finish(), events.finish(&of.file)?))
    }
}

impl Replay<'_> {
    fn drive(&mut self, events: &mut Events) -> Result<(), LabError> {
        let (begin, capacity) = (self.bench.now, self.bench.capacity_bytes());
        let mut next = events.next(self.of, capacity);
        while self.ended == Ended::OnTime {
            let is_open = self.of.pace != TracePace::Max;
            let room = match next.map(|request| request.op == Op::Flush || request.flushes_before) {
                Some(true) => 1,
                _ => self.of.outstanding as usize,
            };
            let arrival = match next {
                Some(request) if is_open => Some((begin + request.due_ns).max(self.bench.now)),
                Some(_) if self.in_flight < room => Some(self.bench.now),
                _ => None,
            };
            let due = self.due.peek().map(|Reverse((at, ..))| *at);
            match (arrival, due) {
                (Some(at), due) if due.is_none_or(|due| at <= due) => {
                    let Some(request) = next else { break };
                    self.bench.now = at;
                    self.arrive(request)?;
                    next = events.next(self.of, capacity);
                }
                (_, Some(_)) => self.advance()?,
                (_, None) => break,
            }
        }
        while !self.due.is_empty() {
            self.advance()?;
        }
        Ok(())
    }

    fn arrive(&mut self, request: TraceRequest) -> Result<(), LabError> {
        let number = self.first + self.under_way.len() as u64;
        self.under_way.push_back(Some(UnderWay { request, arrived: self.bench.now }));
        self.in_flight += 1;
        if request.flushes_before {
            let flushed = self.bench.submit(&Request::flush())?;
            self.due.push(Reverse((flushed.at.0, true, number)));
            return Ok(());
        }
        self.send(number, &request)
    }

    fn send(&mut self, number: u64, request: &TraceRequest) -> Result<(), LabError> {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let asked = match request.op {
            Op::Read => Request::read(offset, len),
            Op::Write if request.fua => Request::write(offset, len).fua(),
            Op::Write => Request::write(offset, len),
            Op::Discard => Request::trim(offset, len),
            Op::Flush | Op::Other => Request::flush(),
        };
        let done = self.bench.submit(&asked)?;
        if done.status == Status::WornOut {
            self.ended = Ended::WornOut;
        }
        self.due.push(Reverse((done.at.0, false, number)));
        Ok(())
    }

    /// The next completion, or the write behind a flush that has completed.
    fn advance(&mut self) -> Result<(), LabError> {
        let Some(Reverse((at, is_flushed, number))) = self.due.pop() else { return Ok(()) };
        let place = (number - self.first) as usize;
        let Some(under_way) = self.under_way[place] else { return Ok(()) };
        self.sampler.sample_until(self.bench, at, u64::MAX / 2);
        self.bench.now = self.bench.now.max(at);
        if is_flushed {
            return self.send(number, &under_way.request);
        }
        self.under_way[place] = None;
        self.in_flight -= 1;
        while let Some(None) = self.under_way.front() {
            self.under_way.pop_front();
            self.first += 1;
        }
        let kind = match under_way.request.op {
            Op::Read => AskKind::Read,
            Op::Discard => AskKind::Trim,
            Op::Write | Op::Flush | Op::Other => AskKind::Write,
        };
        let bytes = under_way.request.len_bytes;
        self.sampler.responses_ns += u128::from(at - under_way.arrived);
        let flying = Flying { asked: under_way.arrived, worker: 0, kind };
        self.sampler.note(at, &flying, bytes);
        Ok(())
    }

    fn finish(mut self) -> LoadRun {
        let last = self.bench.stats();
        let minute = self.bench.minute_at(self.bench.now);
        let sampler = &mut self.sampler;
        if sampler.window.done > 0 {
            let mut sample = sampler.window.close(minute, &sampler.before, &last);
            sample.responses = sampler.times.responses();
            sampler.samples.push(sample);
            sampler.histograms.push(sampler.times.counts());
        }
        sampler.all_times.take(&mut sampler.times);
        let mut whole = sampler.whole.close(minute, &sampler.first, &last);
        whole.responses = sampler.all_times.responses();
        let all = last.since(&sampler.first);
        let host = sampler.responses_ns as f64 / all.now.0.max(1) as f64;
        LoadRun {
            samples: std::mem::take(&mut sampler.samples),
            histograms: std::mem::take(&mut sampler.histograms),
            ended: self.ended,
            little: (all.mean_outstanding(), host),
            outstanding: None,
            tail: whole.responses,
            whole,
        }
    }
}
