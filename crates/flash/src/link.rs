//! The link between host and device: queue slots, command overhead, bandwidth, hops, bit errors.
//!
//! Completions are out of order: read data goes back when it is ready, whatever was asked before.

use std::collections::VecDeque;

use forebay_units::Nanos;

use crate::calendar::Calendar;
use crate::chance::Chance;
use crate::model::{Request, RequestKind};
use crate::spec::{InterfaceKind, InterfaceSpec};
use crate::stats::Stats;

/// Nanoseconds of a time in microseconds. Descriptions are checked to be sane numbers.
pub(crate) fn ns(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

/// Picoseconds one byte takes at a rate in 10^6 bytes per second.
pub(crate) fn ps_per_byte(mb_s: f64) -> u64 {
    (1e6 / mb_s).round().max(1.0) as u64
}

/// An attachment with its state.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    ps_per_byte: u64,
    command_ns: u64,
    queue_depth: usize,
    hops_ns: u64,
    hba_ns: u64,
    bit_error_rate: f64,
    retry_ns: u64,
    to_device: Calendar,
    /// The way back; a half-duplex link has none of its own.
    to_host: Option<Calendar>,
    hba_free: u64,
    /// Completion times of requests outstanding, sorted.
    outstanding: VecDeque<u64>,
    integrated_to: u64,
    chance: Chance,
    pub stats: Stats,
}

impl Link {
    pub(crate) fn new(spec: &InterfaceSpec, seed: u64) -> Self {
        let p = spec.resolve();
        let half_duplex = matches!(spec.kind, InterfaceKind::Sata2 | InterfaceKind::Sata6);
        let hba_ns = if p.hba_iops_cap > 0.0 { (1e9 / p.hba_iops_cap).round() as u64 } else { 0 };
        Self {
            ps_per_byte: ps_per_byte(p.bandwidth_mb_s),
            command_ns: ns(p.command_us),
            queue_depth: p.queue_depth as usize,
            hops_ns: ns(p.hop_us) * u64::from(p.hops),
            hba_ns,
            bit_error_rate: p.bit_error_rate,
            retry_ns: ns(p.retry_us),
            to_device: Calendar::default(),
            to_host: (!half_duplex).then(Calendar::default),
            hba_free: 0,
            outstanding: VecDeque::new(),
            integrated_to: 0,
            chance: Chance::derive(seed, "link"),
            stats: Stats::default(),
        }
    }

    /// The latest time any call gave.
    pub(crate) fn latest(&self) -> u64 {
        self.integrated_to
    }

    /// Integrates the number outstanding up to `now` and forgets what has completed.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64) {
        while let Some(&done) = self.outstanding.front().filter(|done| **done <= now) {
            self.integrate(done);
            self.outstanding.pop_front();
        }
        self.integrate(now);
        self.to_device.forget_before(now);
        self.to_host.iter_mut().for_each(|way| way.forget_before(now));
    }

    #[inline]
    fn integrate(&mut self, to: u64) {
        let span = u128::from(to - self.integrated_to);
        self.stats.outstanding_ns += span * self.outstanding.len() as u128;
        self.integrated_to = to;
    }

    fn bytes_ns(&self, bytes: u64) -> u64 {
        bytes * self.ps_per_byte / 1000
    }

    /// Time to carry a command with `bytes` of data, repeats included.
    #[inline]
    fn carry_ns(&mut self, bytes: u64) -> u64 {
        let once = self.command_ns + self.bytes_ns(bytes);
        if self.bit_error_rate == 0.0 {
            return once;
        }
        // A command's own frames are some 32 bytes.
        let hit = ((bytes + 32) * 8) as f64 * self.bit_error_rate;
        let mut total = once;
        while self.chance.unit() < hit {
            self.stats.link_retries += 1;
            total += once + self.retry_ns;
        }
        total
    }

    /// Sends a request at `now`. Returns when the device has it, with its data if it writes.
    #[inline]
    pub(crate) fn send(&mut self, now: u64, request: &Request<'_>) -> u64 {
        self.advance(now);
        let mut start = now;
        if self.outstanding.len() >= self.queue_depth {
            // So many must complete before this one finds a slot.
            start = start.max(self.outstanding[self.outstanding.len() - self.queue_depth]);
        }
        if self.hba_ns > 0 {
            start = start.max(self.hba_free);
            self.hba_free = start + self.hba_ns;
        }
        let bytes = match request.kind {
            RequestKind::Write => request.len_bytes,
            _ => 0,
        };
        let carry = self.carry_ns(bytes);
        self.stats.link_busy_ns += u128::from(carry);
        self.to_device.reserve(start, carry)
    }

    /// Returns read data of which the first part is ready at `first` and the last at `last`.
    pub(crate) fn return_data(&mut self, first: u64, last: u64, bytes: u64) -> u64 {
        let carry = self.bytes_ns(bytes);
        self.stats.link_busy_ns += u128::from(carry);
        let way = self.to_host.as_mut().unwrap_or(&mut self.to_device);
        way.reserve(first, carry).max(last + self.bytes_ns(bytes.min(4096)))
    }

    /// Notes the completion of a request sent at `now` that the device finished at `done`.
    /// Returns when the host learns of it.
    #[inline]
    pub(crate) fn complete(&mut self, now: u64, done: u64, request: &Request<'_>) -> Nanos {
        let at = done + self.hops_ns;
        let place = self.outstanding.iter().rposition(|&other| other <= at).map_or(0, |p| p + 1);
        self.outstanding.insert(place, at);
        let s = &mut self.stats;
        s.response_sum_ns += u128::from(at - now);
        s.response_max_ns = s.response_max_ns.max(at - now);
        match request.kind {
            RequestKind::Read => {
                s.reads += 1;
                s.read_bytes += request.len_bytes;
            }
            RequestKind::Write => {
                s.writes += 1;
                s.written_bytes += request.len_bytes;
            }
            RequestKind::Flush => s.flushes += 1,
            RequestKind::Trim | RequestKind::SecureErase => s.trims += 1,
        }
        Nanos(at)
    }

    /// Forgets everything in flight: power is gone at `now`.
    pub(crate) fn cut(&mut self, now: u64) {
        self.advance(now);
        self.outstanding.clear();
        self.to_device.clear();
        self.to_host.iter_mut().for_each(Calendar::clear);
        self.hba_free = now;
    }

    /// The counters, integrated up to `now`.
    pub(crate) fn stats_at(&self, now: u64) -> Stats {
        let mut link = self.clone();
        link.advance(now.max(self.integrated_to));
        link.stats.outstanding = link.outstanding.len() as u64;
        link.stats.now = Nanos(now);
        link.stats
    }
}

/// A host bus adapter that several devices share: it passes so many commands a second in all.
#[derive(Clone, Debug)]
pub struct Hba {
    interval_ns: u64,
    free: u64,
}

impl Hba {
    /// An adapter that passes `iops` commands a second (0 or less: no limit).
    #[must_use]
    pub fn new(iops: f64) -> Self {
        Self { interval_ns: if iops > 0.0 { (1e9 / iops).round() as u64 } else { 0 }, free: 0 }
    }

    /// Takes a command at `now`; submit it to its device at the instant returned.
    pub fn pass(&mut self, now: Nanos) -> Nanos {
        let at = now.0.max(self.free);
        self.free = at + self.interval_ns;
        Nanos(at)
    }
}

#[cfg(test)]
mod tests;
