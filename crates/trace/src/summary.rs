//! Summary of a trace: what was asked for, when, how large, how deep, how long it took.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_units::{FixedMap, Nanos, SECTOR_BYTES};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::event::{Event, Flags, Op, Stage};

/// Requests under way that are kept; a trace without completions has no more than these.
const MAX_UNDER_WAY: usize = 1 << 20;
/// Sectors of 4 KiB, by which alignment is judged.
const ALIGNED_SECTORS: u64 = 8;
/// Up to here a forward gap is a small one: what a ZIL leaves between its blocks.
const SMALL_GAP_BYTES: u64 = 128 << 10;

/// A distribution in figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Values.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// Their mean.
    pub mean: f64,
    /// Half are at or below.
    pub p50: u64,
    /// 90 % are.
    pub p90: u64,
    /// 99 % are.
    pub p99: u64,
    /// 99.9 % are.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

/// Values with three digits kept.
struct Values {
    histogram: Histogram<u64>,
    sum: u128,
}

impl Values {
    fn new() -> Self {
        Self { histogram: Histogram::new(3).expect("three digits are possible"), sum: 0 }
    }

    fn add(&mut self, value: u64) {
        // The histogram grows as far as it must; 2^60 ns are 36 years.
        self.histogram.record(value.min(1 << 60)).expect("it resizes itself");
        self.sum += u128::from(value);
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let histogram = &self.histogram;
        if histogram.is_empty() {
            return None;
        }
        let at = |share: f64| histogram.value_at_quantile(share).min(histogram.max());
        Some(Percentiles {
            count: histogram.len(),
            min: histogram.min(),
            mean: self.sum as f64 / histogram.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        })
    }
}

/// Requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OpSummary {
    /// Requests.
    pub count: u64,
    /// Their bytes; of discards, what they name and not what moves.
    pub bytes: u64,
    /// The smallest that is not empty.
    pub min_bytes: u64,
    /// The largest.
    pub max_bytes: u64,
    /// Requests by size: at place n those of 2^n bytes up to the next power.
    #[serde(skip)]
    pub sizes: Vec<u64>,
    /// From issue to completion, in nanoseconds, where the source has it.
    pub latency_ns: Option<Percentiles>,
}

/// What a trace holds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The stage at which requests were counted.
    pub stage: Stage,
    /// Requests.
    pub records: u64,
    /// Reads.
    pub read: OpSummary,
    /// Writes.
    pub write: OpSummary,
    /// Discards.
    pub discard: OpSummary,
    /// Flushes.
    pub flush: OpSummary,
    /// Anything else.
    pub other: OpSummary,
    /// Requests of each device, by [`crate::DeviceIndex`].
    pub device_records: Vec<u64>,
    /// The first record's time, in nanoseconds of the source's clock.
    pub first_time_ns: u64,
    /// The last record's.
    pub last_time_ns: u64,
    /// From the earliest to the latest.
    pub span_ns: u64,
    /// Records whose time is before that of the record in front of them.
    pub time_goes_back: u64,
    /// Records without a length: flushes and empty requests.
    pub zero_length: u64,
    /// Records that do not begin and end at a multiple of 4 KiB.
    pub unaligned_4k: u64,
    /// Records by the first sector's place within 4 KiB.
    pub start_sector_mod_8: [u64; 8],
    /// Records that are equal to the one in front of them but for their time.
    pub immediate_repeats: u64,
    /// Records that begin where the one before on their device ended.
    pub sequential: u64,
    /// Records that have one before them on their device.
    pub pairs: u64,
    /// Records behind a forward gap of less than 128 KiB.
    pub small_forward_gaps: u64,
    /// Records that begin before the end of the one before on their device.
    pub backward: u64,
    /// Writes that must be durable before they complete.
    pub fua: u64,
    /// Writes with a flush in front of them.
    pub preflush: u64,
    /// Between a record and the next one.
    pub interarrival_ns: Option<Percentiles>,
    /// Between a flush and the next one.
    pub flush_gap_ns: Option<Percentiles>,
    /// Writes between a flush and the next one.
    pub writes_per_flush: Option<Percentiles>,
    /// Requests under way when one starts, itself included, where the source shows it.
    pub queue_depth: Option<Percentiles>,
}

/// Builds a [`Summary`] from events.
pub struct SummaryBuilder {
    stage: Stage,
    records: u64,
    ops: [OpTotals; 5],
    device_records: Vec<u64>,
    ends: Vec<Option<u64>>,
    times: Times,
    zero_length: u64,
    unaligned_4k: u64,
    start_sector_mod_8: [u64; 8],
    previous: Option<Event>,
    immediate_repeats: u64,
    sequential: u64,
    pairs: u64,
    small_forward_gaps: u64,
    backward: u64,
    fua: u64,
    preflush: u64,
    flushes: FlushGaps,
    under_way: UnderWay,
}

struct OpTotals {
    summary: OpSummary,
    latency: Values,
}

struct Times {
    first: u64,
    last: u64,
    least: u64,
    most: u64,
    goes_back: u64,
    interarrival: Values,
}

struct FlushGaps {
    last: Option<Nanos>,
    gaps: Values,
    writes: u64,
    writes_per_flush: Values,
}

/// Requests that have begun and not ended.
struct UnderWay {
    /// By device, place and operation, for sources that tell stages apart.
    started: FixedMap<(u32, u64, Op), Nanos>,
    /// Ends to come, for sources that have the latency at the start.
    ends: BinaryHeap<Reverse<u64>>,
    depth: Values,
}

impl SummaryBuilder {
    /// Nothing counted yet; requests will count at `stage`, and those of [`Stage::Request`] always.
    #[must_use]
    pub fn new(stage: Stage) -> Self {
        let totals = || OpTotals {
            summary: OpSummary { sizes: vec![0; 64], ..OpSummary::default() },
            latency: Values::new(),
        };
        Self {
            stage,
            records: 0,
            ops: std::array::from_fn(|_| totals()),
            device_records: Vec::new(),
            ends: Vec::new(),
            times: Times {
                first: 0,
                last: 0,
                least: u64::MAX,
                most: 0,
                goes_back: 0,
                interarrival: Values::new(),
            },
            zero_length: 0,
            unaligned_4k: 0,
            start_sector_mod_8: [0; 8],
            previous: None,
            immediate_repeats: 0,
            sequential: 0,
            pairs: 0,
            small_forward_gaps: 0,
            backward: 0,
            fua: 0,
            preflush: 0,
            flushes: FlushGaps {
                last: None,
                gaps: Values::new(),
                writes: 0,
                writes_per_flush: Values::new(),
            },
            under_way: UnderWay {
                started: FixedMap::default(),
                ends: BinaryHeap::new(),
                depth: Values::new(),
            },
        }
    }

    /// Counts an event, of any stage: latency needs two of them.
    pub fn event(&mut self, event: &Event) {
        self.latency_and_depth(event);
        if event.stage != self.stage && event.stage != Stage::Request {
            return;
        }
        self.records += 1;
        self.totals(event);
        self.time(event);
        self.place(event);
        self.flush(event);
        let is_repeat = self.previous.is_some_and(|before| {
            let place = |e: &Event| (e.device, e.op, e.offset_bytes, e.len_bytes);
            place(&before) == place(event)
        });
        self.immediate_repeats += u64::from(is_repeat && event.has_position());
        self.previous = Some(*event);
    }

    fn totals(&mut self, event: &Event) {
        let at = event.device.0 as usize;
        if at >= self.device_records.len() {
            self.device_records.resize(at + 1, 0);
            self.ends.resize(at + 1, None);
        }
        self.device_records[at] += 1;
        let len = event.len_bytes;
        let op = &mut self.ops[event.op as usize].summary;
        op.count += 1;
        op.bytes = op.bytes.saturating_add(len);
        op.max_bytes = op.max_bytes.max(len);
        if let Some(log) = len.checked_ilog2() {
            op.sizes[log as usize] += 1;
            op.min_bytes = if op.min_bytes == 0 { len } else { op.min_bytes.min(len) };
        }
        self.zero_length += u64::from(len == 0);
        self.fua += u64::from(event.flags.has(Flags::FUA));
        self.preflush += u64::from(event.flags.has(Flags::PREFLUSH) && event.op == Op::Write);
    }

    fn time(&mut self, event: &Event) {
        let now = event.time.0;
        let times = &mut self.times;
        match self.previous {
            None => times.first = now,
            Some(before) => {
                times.goes_back += u64::from(now < before.time.0);
                times.interarrival.add(now.saturating_sub(before.time.0));
            }
        }
        times.last = now;
        times.least = times.least.min(now);
        times.most = times.most.max(now);
    }

    fn place(&mut self, event: &Event) {
        if !event.has_position() {
            return;
        }
        let start = event.offset_bytes / SECTOR_BYTES;
        let is_aligned =
            (event.offset_bytes | event.len_bytes) % (ALIGNED_SECTORS * SECTOR_BYTES) == 0;
        self.unaligned_4k += u64::from(!is_aligned);
        self.start_sector_mod_8[(start % ALIGNED_SECTORS) as usize] += 1;
        let end = &mut self.ends[event.device.0 as usize];
        if let Some(before) = end.replace(event.end_bytes()) {
            self.pairs += 1;
            let gap = event.offset_bytes.checked_sub(before);
            self.sequential += u64::from(gap == Some(0));
            let is_small = gap.is_some_and(|gap| gap > 0 && gap < SMALL_GAP_BYTES);
            self.small_forward_gaps += u64::from(is_small);
            self.backward += u64::from(gap.is_none());
        }
    }

    fn flush(&mut self, event: &Event) {
        let flushes = &mut self.flushes;
        match event.op {
            Op::Flush => {
                if let Some(last) = flushes.last.replace(event.time) {
                    flushes.gaps.add(event.time.since(last).0);
                    flushes.writes_per_flush.add(flushes.writes);
                }
                flushes.writes = 0;
            }
            Op::Write if event.len_bytes > 0 => flushes.writes += 1,
            _ => {}
        }
    }

    fn latency_and_depth(&mut self, event: &Event) {
        let under_way = &mut self.under_way;
        let key = (event.device.0, event.offset_bytes, event.op);
        match event.stage {
            Stage::Issued => {
                if under_way.started.len() < MAX_UNDER_WAY {
                    under_way.started.insert(key, event.time);
                }
                under_way.depth.add(under_way.started.len() as u64);
            }
            Stage::Completed => {
                let matched = under_way.started.remove(&key).map(|start| event.time.since(start));
                if let Some(latency) = event.latency.or(matched) {
                    self.ops[event.op as usize].latency.add(latency.0);
                }
            }
            Stage::Request => {
                let Some(latency) = event.latency else { return };
                self.ops[event.op as usize].latency.add(latency.0);
                while under_way.ends.peek().is_some_and(|end| end.0 <= event.time.0) {
                    under_way.ends.pop();
                }
                if under_way.ends.len() < MAX_UNDER_WAY {
                    under_way.ends.push(Reverse((event.time + latency).0));
                }
                under_way.depth.add(under_way.ends.len() as u64);
            }
            Stage::Queued => {}
        }
    }

    /// The summary of all events so far.
    #[must_use]
    pub fn finish(self) -> Summary {
        let [read, write, discard, flush, other] = self.ops.map(|totals| {
            let latency_ns = totals.latency.percentiles();
            OpSummary { latency_ns, ..totals.summary }
        });
        let times = &self.times;
        Summary {
            stage: self.stage,
            records: self.records,
            read,
            write,
            discard,
            flush,
            other,
            device_records: self.device_records,
            first_time_ns: times.first,
            last_time_ns: times.last,
            span_ns: times.most.saturating_sub(times.least),
            time_goes_back: times.goes_back,
            zero_length: self.zero_length,
            unaligned_4k: self.unaligned_4k,
            start_sector_mod_8: self.start_sector_mod_8,
            immediate_repeats: self.immediate_repeats,
            sequential: self.sequential,
            pairs: self.pairs,
            small_forward_gaps: self.small_forward_gaps,
            backward: self.backward,
            fua: self.fua,
            preflush: self.preflush,
            interarrival_ns: times.interarrival.percentiles(),
            flush_gap_ns: self.flushes.gaps.percentiles(),
            writes_per_flush: self.flushes.writes_per_flush.percentiles(),
            queue_depth: self.under_way.depth.percentiles(),
        }
    }
}

#[cfg(test)]
mod tests;
