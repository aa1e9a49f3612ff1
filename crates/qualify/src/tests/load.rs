//! The load: places, limits, depth, percentiles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use forebay_device::{DeviceFuture, IoBuf, IoBytes, Layer};
use forebay_rt as rt;
use forebay_units::Nanos;

use super::*;
use crate::job::{Now, run};

/// Notes every write.
struct Noted {
    inner: Fake,
    writes: RefCell<Vec<(u64, usize, bool)>>,
    flushes: Cell<u64>,
    in_flight: Cell<u32>,
    deepest: Cell<u32>,
}

impl Layer for Noted {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.writes.borrow_mut().push((offset_bytes, data.len(), fua));
        self.in_flight.set(self.in_flight.get() + 1);
        self.deepest.set(self.deepest.get().max(self.in_flight.get()));
        Box::pin(async move {
            let outcome = self.inner.write(offset_bytes, data, fua).await;
            self.in_flight.set(self.in_flight.get() - 1);
            outcome
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.flushes.set(self.flushes.get() + 1);
        self.inner.flush()
    }
}

fn job() -> Job {
    Job {
        random_percent: 100,
        read_percent: 0,
        block_bytes: 4096,
        offset_bytes: 0,
        span_bytes: SIZE_BYTES,
        queue_depth: 8,
        sync: Sync::None,
        content: Content::PseudoRandom,
        limit_ns: 200_000_000,
        max_bytes: u64::MAX,
        sample_ns: 20_000_000,
    }
}

/// Runs `job`; what it measured, and what the device got.
fn load(job: Job, goes_on: impl Fn(Now) -> bool + 'static) -> (Measured, Rc<Noted>) {
    Runtime::simulated(7).block_on(async move {
        let noted = Rc::new(Noted {
            inner: Fake::new(fakes::HONEST, SIZE_BYTES, 7),
            writes: RefCell::default(),
            flushes: Cell::new(0),
            in_flight: Cell::new(0),
            deepest: Cell::new(0),
        });
        let device: Device = noted.clone();
        (run(&device, job, (7, 0), &goes_on).await, noted)
    })
}

#[test]
fn places_stay_inside_the_span_and_on_their_grid() {
    for (offset_bytes, random_percent) in [(0, 100), (512, 100), (512, 50), (0, 0)] {
        let span_bytes = 1 << 20;
        let job = Job { offset_bytes, random_percent, span_bytes, ..job() };
        let (measured, noted) = load(job, |_| true);
        let writes = noted.writes.borrow();
        assert_eq!(measured.requests, writes.len() as u64);
        assert!(writes.iter().all(|(at, len, _)| at + *len as u64 <= span_bytes));
        assert!(writes.iter().all(|(at, ..)| at % 4096 == offset_bytes));
        let places: BTreeSet<u64> = writes.iter().map(|(at, ..)| *at).collect();
        assert!(places.len() > 200, "the span is used: {}", places.len());
    }
}

#[test]
fn sequential_load_is_one_stream() {
    let (_, noted) = load(Job { random_percent: 0, ..job() }, |_| true);
    let writes = noted.writes.borrow();
    assert!(writes.windows(2).all(|w| w[1].0 == w[0].0 + 4096));
}

#[test]
fn depth_is_kept_and_durability_is_asked_for() {
    for (queue_depth, sync) in [(1, Sync::Flush), (8, Sync::Fua), (64, Sync::None)] {
        let (measured, noted) = load(Job { queue_depth, sync, ..job() }, |_| true);
        assert_eq!(noted.deepest.get(), queue_depth);
        assert!(noted.writes.borrow().iter().all(|w| w.2 == (sync == Sync::Fua)));
        let flushes = if sync == Sync::Flush { measured.requests } else { 0 };
        assert_eq!(noted.flushes.get(), flushes);
        assert_eq!(measured.written_bytes, measured.requests * 4096);
        // Little's law: what is in flight is the rate times the response time.
        let in_flight = measured.iops() * measured.latency.mean_ns / 1e9;
        let off = in_flight / f64::from(queue_depth);
        assert!((0.95..1.05).contains(&off), "QD{queue_depth}: {in_flight}");
    }
}

#[test]
fn byte_limit_is_never_passed() {
    let max_bytes = 100 * 4096 + 100;
    let (measured, noted) = load(Job { max_bytes, ..job() }, |_| true);
    assert_eq!(measured.ended, Ended::Bytes);
    assert_eq!(noted.writes.borrow().len(), 100);
}

#[test]
fn operator_ends_a_load_early() {
    let job = Job { limit_ns: 60_000_000_000, ..job() };
    let (measured, _) = load(job, |now| now.elapsed < Nanos::from_secs(1));
    assert_eq!(measured.ended, Ended::Stopped);
    assert!(measured.seconds < 2.0, "{}", measured.seconds);
    assert!(measured.requests > 0);
}

#[test]
fn percentile_without_a_request_beyond_it_is_unknown() {
    let (measured, _) = load(Job { limit_ns: 30_000_000, ..job() }, |_| true);
    let latency = measured.latency;
    assert!((100..1000).contains(&latency.count), "{latency:?}");
    assert!(latency.p99_ns.is_some() && latency.p999_ns.is_none());
    assert!(latency.p50_ns <= latency.p90_ns && latency.p90_ns <= latency.p99_ns);
    assert!(latency.p99_ns.unwrap() <= latency.max_ns);
}

#[test]
fn samples_cover_the_load_and_a_stall_is_a_sample_of_zero() {
    // One write of four seconds: nothing completes meanwhile.
    let stall = Nature { write_ns: 4_000_000_000, ..fakes::HONEST };
    let measured = Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(Fake::new(stall, SIZE_BYTES, 1));
        let job = Job { limit_ns: 1_000_000_000, sample_ns: 500_000_000, ..job() };
        run(&device, Job { queue_depth: 1, ..job }, (1, 0), &|_| true).await
    });
    assert!(measured.samples.len() >= 6, "{:?}", measured.samples);
    assert!(measured.samples[..6].iter().all(|s| s.iops == 0.0));
    let (measured, _) = load(job(), |_| true);
    let sum: f64 = measured.samples.iter().map(|s| s.iops * 0.02).sum();
    let rest = measured.requests as f64 - sum;
    assert!((0.0..20.0 * 8.0).contains(&rest), "all but the last interval: {rest}");
}

#[test]
fn failed_request_ends_the_load_with_its_error() {
    let refuses = Nature { refuses_flush: true, ..fakes::HONEST };
    let measured = Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(Fake::new(refuses, SIZE_BYTES, 1));
        run(&device, Job { sync: Sync::Flush, ..job() }, (1, 0), &|_| true).await
    });
    let Ended::Failed { error, is_unsupported: true } = measured.ended else { panic!("ended") };
    assert!(error.contains("flush"), "{error}");
    assert_eq!(measured.requests, 0);
}

#[test]
fn flush_cost_counts_the_flush_alone() {
    let outcome = Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(Fake::new(fakes::HONEST, SIZE_BYTES, 1));
        let kind = StepKind::FlushCost { dirty_blocks: 64 };
        run_step(&device, &Step { kind, job: job() }, 1, &Silent).await
    });
    let p50 = outcome.measured.latency.p50_ns.unwrap();
    // 100 µs and 50 µs for each of 64 blocks, within a tenth.
    assert!((2_970_000..3_630_000).contains(&p50), "{p50}");
    assert_eq!(outcome.measured.written_bytes, outcome.measured.requests * 64 * 4096);
}

#[test]
fn idle_step_writes_nothing() {
    Runtime::simulated(1).block_on(async {
        let device: Device = Rc::new(Fake::new(fakes::HONEST, SIZE_BYTES, 1));
        let begun = rt::now();
        let step = Step { kind: StepKind::Idle, job: job() };
        let outcome = run_step(&device, &step, 1, &Silent).await;
        assert_eq!(rt::now().since(begun), Nanos(job().limit_ns));
        assert_eq!(outcome.measured.written_bytes, 0);
    });
}
