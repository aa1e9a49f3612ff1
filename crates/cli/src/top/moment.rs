//! What a pool was over the last minutes, as the screen wants it.

use std::collections::{BTreeMap, VecDeque};

use forebay_pool::status::{
    EventRecord, IoCounts, OpCount, PoolStats, PoolSummary, Pulse, Timings, Traffic,
};
use forebay_units::Nanos;

use crate::control::StatusReport;

/// Moments that are kept: one a second.
const MAX_MOMENTS: usize = 180;
/// Latencies are those of the operations of this time.
const LATENCY_WINDOW: Nanos = Nanos::from_secs(10);
/// Events that are kept.
const MAX_EVENTS: usize = 8;

/// A pool at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Devices, and what is wrong.
    pub status: StatusReport,
    /// Space.
    pub summary: PoolSummary,
    /// Figures.
    pub stats: PoolStats,
    /// What changes with each request.
    pub pulse: Pulse,
    /// Events since the last moment.
    pub events: Vec<EventRecord>,
}

/// Rates of an interval, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Reads.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
    /// Writes that clients wanted durable at once.
    pub durable: f64,
    /// Flushes.
    pub flushes: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Bytes to the log.
    pub log_bytes: f64,
    /// Bytes to the main store.
    pub main_bytes: f64,
    /// Those of them that the cleaner moved.
    pub cleaning_bytes: f64,
}

/// The last minutes of a pool.
#[derive(Debug, Default)]
pub struct Track {
    last: Option<Moment>,
    pulses: VecDeque<(Nanos, Pulse)>,
    rates: VecDeque<Rates>,
    devices: BTreeMap<String, IoCounts>,
    device_rates: BTreeMap<String, [f64; 4]>,
    events: VecDeque<EventRecord>,
}

impl Track {
    /// The number of the last event that is known.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.events.back().map_or(0, |event| event.sequence)
    }

    /// Takes what the pool is at `now`.
    pub fn add(&mut self, mut moment: Moment, now: Nanos) {
        // A pool that was imported anew begins again with its counts and its events.
        let is_new = |last: &Moment| last.stats.uptime_secs > moment.stats.uptime_secs;
        if self.last.as_ref().is_some_and(is_new) {
            *self = Self::default();
        }
        if let Some((at, before)) = self.pulses.back() {
            let secs = now.since(*at).as_secs_f64().max(1e-3);
            self.rates.push_back(rates(&before.traffic, &moment.pulse.traffic, secs));
            for (name, io) in &moment.stats.devices {
                let old = self.devices.get(name).copied().unwrap_or(*io);
                let rate = |now: u64, old: u64| now.saturating_sub(old) as f64 / secs;
                let rates = [
                    rate(io.reads, old.reads),
                    rate(io.writes, old.writes),
                    rate(io.read_bytes, old.read_bytes),
                    rate(io.write_bytes, old.write_bytes),
                ];
                self.device_rates.insert(name.clone(), rates);
            }
        }
        self.devices = moment.stats.devices.clone();
        self.events.extend(std::mem::take(&mut moment.events));
        self.pulses.push_back((now, moment.pulse.clone()));
        let excess = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..excess);
        let excess = self.pulses.len().saturating_sub(MAX_MOMENTS);
        self.pulses.drain(..excess);
        let excess = self.rates.len().saturating_sub(MAX_MOMENTS);
        self.rates.drain(..excess);
        self.last = Some(moment);
    }

    /// The last moment.
    #[must_use]
    pub fn last(&self) -> Option<&Moment> {
        self.last.as_ref()
    }

    /// The rates of the last second; nothing before the second moment.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.rates.back().copied().unwrap_or_default()
    }

    /// One figure of the rates over time, the newest last.
    pub fn over_time(&self, of: fn(&Rates) -> f64) -> impl Iterator<Item = f64> {
        self.rates.iter().map(of)
    }

    /// Reads, writes, bytes read and written of a device, a second.
    #[must_use]
    pub fn device_rates(&self, name: &str) -> [f64; 4] {
        self.device_rates.get(name).copied().unwrap_or_default()
    }

    /// The latest events, the newest last.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &EventRecord> {
        self.events.iter()
    }

    /// How long durable writes, flushes and reads took lately.
    #[must_use]
    pub fn latencies(&self) -> [Timings; 3] {
        let Some((now, last)) = self.pulses.back() else { return Default::default() };
        let is_recent = |(at, _): &&(Nanos, Pulse)| now.since(*at) <= LATENCY_WINDOW;
        let (_, first) = self.pulses.iter().find(is_recent).expect("the last one is");
        std::array::from_fn(|at| last.latencies[at].since(&first.latencies[at]))
    }
}

fn rates(before: &Traffic, now: &Traffic, secs: f64) -> Rates {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / secs;
    let count = |now: OpCount, before: OpCount| rate(now.count, before.count);
    let main = |traffic: &Traffic| {
        let m = &traffic.media;
        m.data + m.parity + m.metadata + m.cleaning + m.padding
    };
    Rates {
        reads: count(now.reads, before.reads),
        writes: count(now.writes, before.writes),
        durable: count(now.fuas, before.fuas),
        flushes: count(now.flushes, before.flushes),
        read_bytes: rate(now.reads.bytes, before.reads.bytes),
        write_bytes: rate(now.writes.bytes, before.writes.bytes),
        log_bytes: rate(now.media.log, before.media.log),
        main_bytes: rate(main(now), main(before)),
        cleaning_bytes: rate(now.media.cleaning, before.media.cleaning),
    }
}
