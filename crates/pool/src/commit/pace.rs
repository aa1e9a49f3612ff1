//! How much the commits keep in flight to the array: as much as the log's latency bears.
//!
//! Log and array often lie on the same disk, or share a bus or a hypervisor's limit. Writes to the
//! array that queue there delay every durable write. This is the control of TCP's congestion window
//! (additive increase, multiplicative decrease), with the log's latency for the signal.

use std::rc::Rc;

use forebay_intent_log::RecentFrames;
use forebay_rt as rt;
use forebay_segment::BATCH_ROWS;
use forebay_units::{BLOCK_BYTES, Nanos};

use crate::Pool;

/// How often the limit is set.
const PERIOD: Nanos = Nanos::from_millis(10);
/// Without durable writes for this long, the limit no longer holds.
const QUIET_AFTER: Nanos = Nanos::from_millis(500);
/// Most bytes in flight to the array.
pub(crate) const MOST_IN_FLIGHT_BYTES: u64 = 64 << 20;
/// Frames that take this much longer than on an idle array show a queue that must shrink at once.
const STALL_FACTOR: u64 = 8;
/// A stall is at least this long, so that single slow interrupts count for nothing.
const STALL_LEAST: Nanos = Nanos::from_millis(2);

/// The limit of bytes in flight to the array, and what it follows from.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Bytes of a write to all devices of a group.
    batch_bytes: u64,
    limit_bytes: u64,
    /// Median latency of log frames while nothing is in flight to the array.
    base: Option<Nanos>,
    last_frame: Option<Nanos>,
    last_stall: Nanos,
}

/// What happened since the last step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub now: Nanos,
    pub frames: Option<RecentFrames>,
    /// Most bytes in flight to the array at a time.
    pub peak_bytes: u64,
}

impl Pacer {
    pub fn new(batch_bytes: u64) -> Self {
        Self {
            batch_bytes,
            limit_bytes: MOST_IN_FLIGHT_BYTES,
            base: None,
            last_frame: None,
            last_stall: Nanos::ZERO,
        }
    }

    fn least_bytes(&self) -> u64 {
        2 * self.batch_bytes
    }

    /// The limit from now on.
    pub fn step(&mut self, seen: Observed) -> u64 {
        let Some(frames) = seen.frames else {
            let is_quiet = self.last_frame.is_none_or(|at| seen.now.since(at) > QUIET_AFTER);
            return if is_quiet { MOST_IN_FLIGHT_BYTES } else { self.limit_bytes };
        };
        self.last_frame = Some(seen.now);
        if let (Some(median), 0) = (frames.median, seen.peak_bytes) {
            let base = self.base.map_or(median.0, |base| (7 * base.0 + median.0) / 8);
            self.base = Some(Nanos(base));
        }
        let Some(base) = self.base else {
            // Durable writes began while the array was busy, so nothing is known of them yet.
            self.limit_bytes = self.least_bytes();
            return self.limit_bytes;
        };
        let is_used = 2 * seen.peak_bytes > self.limit_bytes;
        let stalled = frames.longest.0 > (STALL_FACTOR * base.0).max(STALL_LEAST.0);
        if stalled && seen.now.since(self.last_stall) > Nanos(5 * PERIOD.0) {
            self.last_stall = seen.now;
            self.limit_bytes = (self.limit_bytes.min(seen.peak_bytes)) / 2;
        } else if frames.median.is_some_and(|median| median.0 > 2 * base.0) {
            self.limit_bytes -= self.limit_bytes / 4;
        } else if is_used && frames.median.is_some_and(|median| 4 * median.0 < 5 * base.0) {
            self.limit_bytes += self.batch_bytes.max(self.limit_bytes / 8);
        } else if is_used && frames.median.is_some_and(|median| 2 * median.0 < 3 * base.0) {
            self.limit_bytes += self.batch_bytes;
        }
        self.limit_bytes = self.limit_bytes.clamp(self.least_bytes(), MOST_IN_FLIGHT_BYTES);
        self.limit_bytes
    }
}

impl Pool {
    /// Data of a write to all devices of the widest group.
    fn batch_bytes(&self) -> u64 {
        let groups = self.store.array.groups();
        let per_row = groups.iter().map(|group| u64::from(group.blocks_per_row())).max();
        u64::from(BATCH_ROWS) * per_row.unwrap_or(1) * BLOCK_BYTES
    }

    /// Sets the limit again and again while writes to the array are under way.
    pub(crate) async fn pace_loop(self: Rc<Self>) {
        let in_flight = &self.store.in_flight;
        let mut pacer = Pacer::new(self.batch_bytes());
        let over = || self.is_stopped() || self.lifecycle.closing.get();
        let mut step = |peak_bytes| {
            let frames = self.log.take_recent_frames();
            in_flight.set_limit(pacer.step(Observed { now: rt::now(), frames, peak_bytes }));
        };
        loop {
            let was_idle = in_flight.take_peak_bytes() == 0;
            let ended = || Box::pin(self.sync.done.until(over));
            rt::select(Box::pin(in_flight.until_busy()), ended()).await;
            if over() {
                return;
            }
            if was_idle {
                step(0);
            }
            // An export waits for this task.
            rt::select(Box::pin(rt::sleep(PERIOD)), ended()).await;
            step(in_flight.take_peak_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 64 << 10;

    /// A disk that log and array share: a frame waits for what is in flight before it.
    struct SharedDisk {
        pacer: Pacer,
        limit_bytes: u64,
        now: Nanos,
    }

    impl SharedDisk {
        fn new() -> Self {
            Self { pacer: Pacer::new(BATCH), limit_bytes: MOST_IN_FLIGHT_BYTES, now: Nanos::ZERO }
        }

        /// A period with `wanted` bytes in flight as far as the limit allows. Returns the latency
        /// of the log's frames: 100 µs, and a microsecond for each `bytes_per_us` before them.
        fn period(&mut self, wanted: u64, bytes_per_us: u64, has_frames: bool) -> Nanos {
            self.now = self.now + PERIOD;
            let peak_bytes = wanted.min(self.limit_bytes);
            let latency = Nanos::from_micros(100 + peak_bytes / bytes_per_us);
            let frames = RecentFrames { median: Some(latency), longest: latency };
            let frames = has_frames.then_some(frames);
            self.limit_bytes = self.pacer.step(Observed { now: self.now, frames, peak_bytes });
            latency
        }
    }

    #[test]
    fn a_shared_disk_keeps_twice_the_latency_of_an_idle_one() {
        for bytes_per_us in [1000, 2000, 5000] {
            let mut disk = SharedDisk::new();
            for _ in 0..100 {
                disk.period(0, bytes_per_us, true);
            }
            let latencies: Vec<Nanos> =
                (0..500).map(|_| disk.period(1 << 30, bytes_per_us, true)).collect();
            let settled = &latencies[100..];
            assert!(settled.iter().all(|l| l.0 <= 240_000), "{:?}", settled.iter().max());
            // More would be in flight if the log bore it: the disk is not left idle either.
            let least = Nanos::from_micros(100 + 2 * BATCH / bytes_per_us);
            assert!(settled.iter().all(|l| *l >= least));
            assert!(bytes_per_us < 2000 || settled.iter().any(|l| l.0 > 140_000));
        }
    }

    #[test]
    fn an_array_on_other_disks_is_not_held_back() {
        let mut disk = SharedDisk::new();
        disk.period(0, u64::MAX, true);
        for _ in 0..100 {
            disk.period(1 << 30, u64::MAX, true);
        }
        assert_eq!(disk.limit_bytes, MOST_IN_FLIGHT_BYTES);
    }

    #[test]
    fn without_durable_writes_the_limit_does_not_hold() {
        let mut disk = SharedDisk::new();
        disk.period(1 << 30, 1000, false);
        assert_eq!(disk.limit_bytes, MOST_IN_FLIGHT_BYTES);
        disk.period(1 << 30, 1000, true);
        assert_eq!(disk.limit_bytes, 2 * BATCH);
        let quiet = QUIET_AFTER.0 / PERIOD.0;
        for _ in 0..quiet {
            disk.period(1 << 30, 1000, false);
            assert_eq!(disk.limit_bytes, 2 * BATCH);
        }
        disk.period(1 << 30, 1000, false);
        assert_eq!(disk.limit_bytes, MOST_IN_FLIGHT_BYTES);
    }

    #[test]
    fn a_stall_halves_what_was_in_flight() {
        let mut pacer = Pacer::new(BATCH);
        let us = Nanos::from_micros;
        let step = |pacer: &mut Pacer, at_ms: u64, median, longest, peak_bytes| {
            let frames = Some(RecentFrames { median, longest });
            pacer.step(Observed { now: Nanos::from_millis(at_ms), frames, peak_bytes })
        };
        step(&mut pacer, 1000, Some(us(100)), us(150), 0);
        // Nothing ends, and the oldest frame grows old.
        assert_eq!(step(&mut pacer, 1010, None, us(9000), 8 << 20), 4 << 20);
        assert_eq!(step(&mut pacer, 1020, None, us(19000), 8 << 20), 4 << 20);
        // Single frames may be slow: interrupts and neighbors do that.
        assert_eq!(step(&mut pacer, 1200, Some(us(170)), us(1900), 4 << 20), 4 << 20);
    }
}
