//! Points of the charts: rates, latencies and fill levels of a pool over time, of bounded size.

use std::collections::VecDeque;

use forebay_pool::status::{MediaBytes, OpCount, Pulse, Timings};
use forebay_units::Nanos;

/// Points of the last minutes: one a second.
const FINE_POINTS: usize = 600;
/// Points of the last day: one a minute.
const COARSE_POINTS: usize = 1440;
/// Between two of the latter.
const COARSE_INTERVAL: Nanos = Nanos::from_secs(60);

/// What a point has, in this order. Rates are a second's; latencies are microseconds, or null when
/// there was no such operation.
pub const FIELDS: [&str; 20] = [
    "time",
    "reads",
    "writes",
    "durable",
    "flushes",
    "read_bytes",
    "write_bytes",
    "log_bytes",
    "data_bytes",
    "parity_bytes",
    "cleaning_bytes",
    "other_bytes",
    "durable_p50",
    "durable_p99",
    "flush_p50",
    "flush_p99",
    "read_p50",
    "read_p99",
    "dirty",
    "log_used",
];

/// Points at equal intervals.
struct Track {
    before: Option<(Nanos, Pulse)>,
    /// The time of each point, and the point as JSON.
    points: VecDeque<(u64, String)>,
    max: usize,
}

impl Track {
    fn new(max: usize) -> Self {
        Self { before: None, points: VecDeque::new(), max }
    }

    /// Takes a point if `interval` is over since the last one.
    fn note(&mut self, pulse: &Pulse, time_secs: u64, now: Nanos, interval: Nanos) {
        let Some((at, before)) = &self.before else {
            self.before = Some((now, pulse.clone()));
            return;
        };
        let span = now.since(*at);
        if span < interval || span == Nanos(0) {
            return;
        }
        self.points.push_back((time_secs, point(before, pulse, time_secs, span)));
        if self.points.len() > self.max {
            self.points.pop_front();
        }
        self.before = Some((now, pulse.clone()));
    }

    fn json(&self, after: u64) -> String {
        let new: Vec<&str> = self
            .points
            .iter()
            .filter(|(time, _)| *time > after)
            .map(|(_, point)| point.as_str())
            .collect();
        format!("[{}]", new.join(","))
    }
}

/// The points of one pool.
pub struct History {
    fine: Track,
    coarse: Track,
}

impl Default for History {
    fn default() -> Self {
        Self { fine: Track::new(FINE_POINTS), coarse: Track::new(COARSE_POINTS) }
    }
}

impl History {
    /// Takes what the pool is at `now`.
    pub fn note(&mut self, pulse: &Pulse, time_secs: u64, now: Nanos) {
        self.fine.note(pulse, time_secs, now, Nanos(0));
        self.coarse.note(pulse, time_secs, now, COARSE_INTERVAL);
    }

    /// The points later than `after`, as two fields of a JSON object.
    pub fn json(&self, after: u64) -> String {
        format!("\"fine\":{},\"coarse\":{}", self.fine.json(after), self.coarse.json(after))
    }
}

fn point(before: &Pulse, now: &Pulse, time_secs: u64, span: Nanos) -> String {
    let secs = span.as_secs_f64();
    let rate = |now: u64, before: u64| Some(now.saturating_sub(before) as f64 / secs);
    let (new, old) = (&now.traffic, &before.traffic);
    let count = |new: OpCount, old: OpCount| rate(new.count, old.count);
    let bytes = |new: OpCount, old: OpCount| rate(new.bytes, old.bytes);
    let media = |of: fn(&MediaBytes) -> u64| rate(of(&new.media), of(&old.media));
    let latency = |at: usize, quantile: f64| {
        let new: Timings = now.latencies[at].since(&before.latencies[at]);
        new.quantile(quantile).map(|nanos| nanos.0 as f64 / 1e3)
    };
    let values: [Option<f64>; FIELDS.len()] = [
        Some(time_secs as f64),
        count(new.reads, old.reads),
        count(new.writes, old.writes),
        count(new.fuas, old.fuas),
        count(new.flushes, old.flushes),
        bytes(new.reads, old.reads),
        bytes(new.writes, old.writes),
        media(|m| m.log),
        media(|m| m.data),
        media(|m| m.parity),
        media(|m| m.cleaning),
        media(|m| m.metadata + m.padding + m.repair),
        latency(0, 0.5),
        latency(0, 0.99),
        latency(1, 0.5),
        latency(1, 0.99),
        latency(2, 0.5),
        latency(2, 0.99),
        Some(now.dirty_bytes as f64),
        Some(now.log_used_bytes as f64),
    ];
    let texts = values.map(|value| match value {
        Some(value) if value < 1000.0 => format!("{}", (value * 10.0).round() / 10.0),
        Some(value) => format!("{value:.0}"),
        None => "null".to_owned(),
    });
    format!("[{}]", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(writes: u64, bytes: u64, timings: &[(u64, u64)]) -> Pulse {
        let mut pulse = Pulse { dirty_bytes: bytes, ..Pulse::default() };
        pulse.traffic.writes = OpCount { count: writes, bytes };
        pulse.latencies[0] = Timings(timings.to_vec());
        pulse
    }

    fn points(text: &str) -> Vec<Vec<serde_json::Value>> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_point_has_rates_and_the_latencies_of_its_interval_alone() {
        let mut track = Track::new(10);
        let secs = |n: u64| Nanos::from_secs(n);
        track.note(&pulse(100, 4096, &[(1_000, 100)]), 50, secs(1), Nanos(0));
        track.note(&pulse(104, 12_288, &[(1_000, 100), (9_000, 4)]), 52, secs(3), Nanos(0));
        let found = points(&track.json(0));
        assert_eq!(found.len(), 1);
        let of = |name: &str| {
            let at = FIELDS.iter().position(|field| *field == name).unwrap();
            found[0][at].as_f64()
        };
        assert_eq!(of("time"), Some(52.0));
        assert_eq!(of("writes"), Some(2.0));
        assert_eq!(of("write_bytes"), Some(4096.0));
        assert_eq!((of("durable_p50"), of("durable_p99")), (Some(9.0), Some(9.0)));
        assert_eq!(of("read_p50"), None);
        assert_eq!(of("dirty"), Some(12_288.0));
    }

    #[test]
    fn old_points_are_let_go_and_known_ones_left_out() {
        let mut history = History::default();
        for second in 0..2_000 {
            history.note(&Pulse::default(), second, Nanos::from_secs(second));
        }
        assert_eq!(history.fine.points.len(), FINE_POINTS);
        assert_eq!(history.coarse.points.len(), 1_999 / 60);
        assert_eq!(points(&history.fine.json(1_997)).len(), 2);
        assert_eq!(history.fine.points.front().unwrap().0, 2_000 - FINE_POINTS as u64);
    }
}
