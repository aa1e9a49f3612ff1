//! Access pattern: how much of the traffic is random, interval by interval.
//!
//! [`Rules::Dtrace`] are those of the DTrace toolkit's `iopattern`, [`Rules::Bcc`] those of bcc's
//! `biopattern`. Both compare a request's first byte with the end of the one before it on its
//! device, in the order of completions. `docs/trace.md` has both in full, with their differences.

use forebay_units::Nanos;
use serde::Serialize;

use crate::event::{DeviceIndex, Event, Op, Stage};

/// Intervals without a request that are printed one by one. A longer gap is passed over.
const MAX_EMPTY_ROWS: u64 = 86_400;

/// Whose semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rules {
    /// `iopattern`: the first request of a device is compared with byte 0, positions last for the
    /// whole run, shares are cut off, all devices make one row.
    Dtrace,
    /// `biopattern`: the first request of a device in an interval only sets the position, shares
    /// are rounded to even, each device has a row.
    Bcc,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub struct PatternOptions {
    /// Whose semantics.
    pub rules: Rules,
    /// Length of an interval; `None` for one row over all.
    pub interval: Option<Nanos>,
    /// The stage at which a request counts. Events of [`Stage::Request`] always count.
    pub stage: Stage,
    /// Only these; `None` for all.
    pub only: Option<Op>,
    /// Whether flushes and empty requests count as requests at sector 0, as they do in the
    /// originals. Otherwise they are counted apart.
    pub counts_empty: bool,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternRow {
    /// When the interval began, by the source's clock.
    pub start: Nanos,
    /// When it ended: a whole interval later, or with the last event when there is one row only.
    pub end: Nanos,
    /// The device, by the rules of bcc.
    pub device: Option<DeviceIndex>,
    /// Requests that did not begin where the one before ended.
    pub random: u64,
    /// Requests, discards among them.
    pub count: u64,
    /// The smallest read or write.
    pub min_bytes: u64,
    /// The largest read or write.
    pub max_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written; discards move none.
    pub written_bytes: u64,
    /// Reads and writes.
    pub transfers: u64,
    /// Flushes and empty requests, which `count` leaves out unless told otherwise.
    pub empty: u64,
    /// Discards.
    pub discards: u64,
}

impl PatternRow {
    /// Random requests in percent, by the rules' way of rounding; 0 without requests.
    #[must_use]
    pub fn random_pct(&self, rules: Rules) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let (whole, left) = (self.random * 100 / self.count, self.random * 100 % self.count);
        match rules {
            Rules::Dtrace => whole,
            Rules::Bcc => {
                let is_above = left * 2 > self.count;
                let is_tie = left * 2 == self.count;
                whole + u64::from(is_above || (is_tie && whole % 2 == 1))
            }
        }
    }

    /// What is left to 100 percent; 0 without requests.
    #[must_use]
    pub fn sequential_pct(&self, rules: Rules) -> u64 {
        if self.count == 0 { 0 } else { 100 - self.random_pct(rules) }
    }

    /// Bytes of a read or write on average, cut off.
    #[must_use]
    pub fn avg_bytes(&self) -> u64 {
        let bytes = u128::from(self.read_bytes) + u128::from(self.written_bytes);
        bytes.checked_div(u128::from(self.transfers)).unwrap_or(0) as u64
    }

    fn add(&mut self, event: &Event, is_random: bool) {
        self.count += 1;
        self.random += u64::from(is_random);
        if event.op == Op::Discard {
            self.discards += 1;
            return;
        }
        let len = event.len_bytes;
        self.transfers += 1;
        // As the original has it: a minimum of 0 counts as none yet.
        self.min_bytes = if self.min_bytes == 0 { len } else { self.min_bytes.min(len) };
        self.max_bytes = self.max_bytes.max(len);
        let sum = if event.op == Op::Read { &mut self.read_bytes } else { &mut self.written_bytes };
        *sum = sum.saturating_add(len);
    }
}

/// Where a device's requests stand.
#[derive(Clone, Copy, Default)]
struct Position {
    /// The end of its latest request; of bcc's rules, 0 also stands for "none yet".
    end_bytes: u64,
    row: PatternRow,
}

/// The access pattern of a stream of events.
pub struct Pattern {
    options: PatternOptions,
    devices: Vec<Position>,
    /// Of all devices together, by the rules of DTrace.
    row: PatternRow,
    start: Option<Nanos>,
    latest: Nanos,
}

impl Pattern {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(options: PatternOptions) -> Self {
        Self {
            options,
            devices: Vec::new(),
            row: PatternRow::default(),
            start: None,
            latest: Nanos::ZERO,
        }
    }

    /// Counts an event. Rows of intervals that it ends are added to `rows`.
    pub fn event(&mut self, event: &Event, rows: &mut Vec<PatternRow>) {
        // Intervals count from the source's first event, whatever its stage.
        self.start.get_or_insert(event.time);
        self.latest = self.latest.max(event.time);
        if event.stage != self.options.stage && event.stage != Stage::Request {
            return;
        }
        self.advance_to(event.time, rows);
        if self.options.only.is_some_and(|only| only != event.op) {
            return;
        }
        let at = event.device.0 as usize;
        if at >= self.devices.len() {
            self.devices.resize(at + 1, Position::default());
        }
        let position = &mut self.devices[at];
        let row = match self.options.rules {
            Rules::Dtrace => &mut self.row,
            Rules::Bcc => &mut position.row,
        };
        if !event.has_position() {
            row.empty += 1;
            if !self.options.counts_empty {
                return;
            }
        }
        let is_random = event.offset_bytes != position.end_bytes;
        let is_first = self.options.rules == Rules::Bcc && position.end_bytes == 0;
        if !is_first {
            row.add(event, is_random);
        }
        position.end_bytes = event.end_bytes();
    }

    /// Ends the intervals before `now`: also for a live source in which nothing happens.
    pub fn advance_to(&mut self, now: Nanos, rows: &mut Vec<PatternRow>) {
        let start = *self.start.get_or_insert(now);
        let Some(interval) = self.options.interval.filter(|interval| interval.0 > 0) else {
            return;
        };
        let passed = now.since(start).0 / interval.0;
        if passed == 0 {
            return;
        }
        for at in 0..passed.min(MAX_EMPTY_ROWS) {
            self.end_interval(start + Nanos(at * interval.0), rows);
        }
        self.start = Some(start + Nanos(passed.saturating_mul(interval.0)));
    }

    /// Ends the last interval, which may be shorter.
    pub fn finish(mut self, rows: &mut Vec<PatternRow>) {
        if let Some(start) = self.start {
            self.end_interval(start, rows);
        }
    }

    fn end_interval(&mut self, start: Nanos, rows: &mut Vec<PatternRow>) {
        let end = self.options.interval.map_or(self.latest, |interval| start + interval);
        match self.options.rules {
            Rules::Dtrace => {
                let row = std::mem::take(&mut self.row);
                rows.push(PatternRow { start, end, ..row });
            }
            Rules::Bcc => {
                for (at, position) in self.devices.iter_mut().enumerate() {
                    let row = std::mem::take(position).row;
                    if row.count > 0 {
                        let device = Some(DeviceIndex(at as u32));
                        rows.push(PatternRow { start, end, device, ..row });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
