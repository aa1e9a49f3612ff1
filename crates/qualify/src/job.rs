//! A load on a device: its places, its pace, what is measured.
//!
//! What enters: a device, a job, a seed. What leaves: response times, rates, and a sample for each
//! interval. What always holds: requests lie inside the job's span, and not more than the job's
//! bytes are written. Who calls: `run`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::content::{Content, Data, Numbers};
use crate::latency::{Latency, Times};

/// How a write is made durable before the next one of the same worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// It is not.
    #[default]
    None,
    /// By a flush behind it; the response time is that of both.
    Flush,
    /// By the write itself: FUA to a device, O_DSYNC (RWF_DSYNC) to a file.
    Fua,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Percent of the requests at a random place; the others follow one another.
    pub random_percent: u8,
    /// Percent of the requests that read.
    pub read_percent: u8,
    /// Bytes of a request.
    pub block_bytes: u32,
    /// Added to every place: a partition that begins at a bad sector.
    pub offset_bytes: u64,
    /// Bytes from the start of the device that are used.
    pub span_bytes: u64,
    /// Requests in flight.
    pub queue_depth: u32,
    /// How writes are made durable.
    pub sync: Sync,
    /// What is written.
    pub content: Content,
    /// How long it runs, in nanoseconds.
    pub limit_ns: u64,
    /// Bytes that it may write.
    pub max_bytes: u64,
    /// Time between samples, in nanoseconds.
    pub sample_ns: u64,
}

/// One interval of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its end, in seconds from the start of the load.
    pub at_s: f64,
    /// Requests a second.
    pub iops: f64,
    /// Median response.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Longest.
    pub max_ns: u64,
}

/// Why a load ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Its time was over.
    #[default]
    Time,
    /// It had written the bytes that it may write.
    Bytes,
    /// The steps before it made it needless.
    Needless,
    /// The operator stopped it.
    Stopped,
    /// The device failed a request.
    Failed {
        /// The device's error.
        error: String,
        /// Whether the device said that it cannot do this.
        is_unsupported: bool,
    },
}

/// What a load measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How long it ran.
    pub seconds: f64,
    /// Requests that completed.
    pub requests: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Response times.
    pub latency: Latency,
    /// Intervals in order.
    pub samples: Vec<Sample>,
    /// Why it ended.
    pub ended: Ended,
}

impl Measured {
    /// Requests a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }

    /// Bytes a second, read and written.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        let bytes = self.written_bytes + self.read_bytes;
        if self.seconds > 0.0 { bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// Whether a device said that it cannot do something.
pub(crate) fn failed(error: &DeviceError) -> Ended {
    use forebay_device::ErrorKind;
    let is_unsupported = match error.kind {
        ErrorKind::Unsupported => true,
        ErrorKind::Os { errno } => errno == EOPNOTSUPP,
        _ => false,
    };
    Ended::Failed { error: error.to_string(), is_unsupported }
}

const EOPNOTSUPP: i32 = 95;

/// Where the load is, for a progress line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Now {
    /// Since the load began.
    pub elapsed: Nanos,
    /// Response times so far.
    pub latency: Latency,
    /// Rate over the last interval.
    pub iops: f64,
}

struct Shared {
    device: Device,
    job: Job,
    data: Data,
    begun: Nanos,
    numbers: RefCell<Numbers>,
    position: Cell<u64>,
    issued: Cell<u64>,
    /// Bytes of the writes that were issued: the limit holds for these.
    issued_bytes: Cell<u64>,
    ended: RefCell<Option<Ended>>,
    tally: RefCell<Tally>,
}

/// What has completed.
struct Tally {
    all: Times,
    interval: Times,
    interval_end: Nanos,
    measured: Measured,
}

/// A request about to be issued.
struct Request {
    offset_bytes: u64,
    is_read: bool,
    number: u64,
}

impl Shared {
    /// The next request; `None` when the load is over.
    fn next(&self) -> Option<Request> {
        if self.ended.borrow().is_some() {
            return None;
        }
        if rt::now().since(self.begun) >= Nanos(self.job.limit_ns) {
            self.ended.borrow_mut().get_or_insert(Ended::Time);
            return None;
        }
        let block = u64::from(self.job.block_bytes);
        let mut numbers = self.numbers.borrow_mut();
        let is_read = numbers.below(100) < u64::from(self.job.read_percent);
        if !is_read && self.issued_bytes.get() + block > self.job.max_bytes {
            self.ended.borrow_mut().get_or_insert(Ended::Bytes);
            return None;
        }
        // The last place must fit with the offset added.
        let places = (self.job.span_bytes - self.job.offset_bytes) / block;
        let place = if numbers.below(100) < u64::from(self.job.random_percent) {
            numbers.below(places)
        } else {
            let place = self.position.get();
            self.position.set((place + 1) % places);
            place
        };
        let number = self.issued.get();
        self.issued.set(number + 1);
        if !is_read {
            self.issued_bytes.set(self.issued_bytes.get() + block);
        }
        Some(Request { offset_bytes: place * block + self.job.offset_bytes, is_read, number })
    }

    async fn perform(&self, request: &Request) -> Result<(), DeviceError> {
        let len = self.job.block_bytes as usize;
        if request.is_read {
            return self.device.read(request.offset_bytes, IoBuf::recycled(len)).await.map(drop);
        }
        let data = self.data.get(request.number, len);
        let is_fua = self.job.sync == Sync::Fua;
        self.device.write(request.offset_bytes, data, is_fua).await?;
        if self.job.sync == Sync::Flush { self.device.flush().await } else { Ok(()) }
    }

    async fn work(&self) {
        while let Some(request) = self.next() {
            let begun = rt::now();
            let outcome = self.perform(&request).await;
            match outcome {
                Ok(()) => self.completed(&request, begun),
                Err(error) => {
                    self.ended.borrow_mut().get_or_insert(failed(&error));
                    return;
                }
            }
        }
    }

    fn completed(&self, request: &Request, begun: Nanos) {
        let now = rt::now();
        let tally = &mut *self.tally.borrow_mut();
        tally.close_intervals(now.since(self.begun), Nanos(self.job.sample_ns));
        tally.all.add(now.since(begun));
        tally.interval.add(now.since(begun));
        tally.measured.requests += 1;
        let moved_bytes = u64::from(self.job.block_bytes);
        if request.is_read {
            tally.measured.read_bytes += moved_bytes;
        } else {
            tally.measured.written_bytes += moved_bytes;
        }
    }
}

impl Tally {
    /// Ends the intervals that are over. One in which nothing completed is a sample of 0.
    fn close_intervals(&mut self, elapsed: Nanos, length: Nanos) {
        while elapsed >= self.interval_end {
            let latency = self.interval.latency();
            self.measured.samples.push(Sample {
                at_s: self.interval_end.as_secs_f64(),
                iops: self.interval.count() as f64 / length.as_secs_f64(),
                p50_ns: latency.p50_ns,
                p99_ns: latency.p99_ns,
                max_ns: latency.max_ns,
            });
            self.interval.clear();
            self.interval_end = self.interval_end + length;
        }
    }
}

/// Runs `job` until its time or its bytes are over, a request fails, or `watch` returns `false`: it
/// is asked four times a second. Each `turn` has places of its own.
pub(crate) async fn run(
    device: &Device,
    job: Job,
    (seed, turn): (u64, u64),
    watch: &dyn Fn(Now) -> bool,
) -> Measured {
    let begun = rt::now();
    let tally = Tally {
        all: Times::new(),
        interval: Times::new(),
        interval_end: Nanos(job.sample_ns),
        measured: Measured::default(),
    };
    let shared = Rc::new(Shared {
        device: device.clone(),
        job,
        data: Data::new(job.content, seed),
        begun,
        numbers: RefCell::new(Numbers::new(seed.wrapping_add(turn))),
        position: Cell::new(0),
        issued: Cell::new(0),
        issued_bytes: Cell::new(0),
        ended: RefCell::new(None),
        tally: RefCell::new(tally),
    });
    // A task for each, so that a completion wakes its own worker only.
    let worker = |_| {
        let shared = shared.clone();
        rt::spawn(async move { shared.work().await })
    };
    let workers: Vec<_> = (0..job.queue_depth).map(worker).collect();
    let workers = async {
        for worker in workers {
            worker.await;
        }
    };
    let watching = watch_load(&shared, watch);
    let (workers, watching) = (std::pin::pin!(workers), std::pin::pin!(watching));
    match rt::select(workers, watching).await {
        rt::Either::Left(((), _)) => {}
        rt::Either::Right((never, _)) => match never {},
    }
    let elapsed = rt::now().since(begun);
    let mut tally = shared.tally.borrow_mut();
    tally.close_intervals(elapsed, Nanos(job.sample_ns));
    let mut measured = std::mem::take(&mut tally.measured);
    measured.seconds = elapsed.as_secs_f64();
    measured.latency = tally.all.latency();
    measured.ended = shared.ended.borrow_mut().take().unwrap_or_default();
    measured
}

/// Never ends: the load does.
async fn watch_load(shared: &Shared, watch: &dyn Fn(Now) -> bool) -> std::convert::Infallible {
    const INTERVAL: Nanos = Nanos::from_millis(250);
    let (mut before, mut at) = (0, shared.begun);
    loop {
        rt::sleep(INTERVAL).await;
        let (count, now) = (shared.tally.borrow().measured.requests, rt::now());
        let iops = (count - before) as f64 / now.since(at).as_secs_f64().max(1e-9);
        let latency = shared.tally.borrow().all.latency();
        if !watch(Now { elapsed: now.since(shared.begun), iops, latency }) {
            shared.ended.borrow_mut().get_or_insert(Ended::Stopped);
        }
        (before, at) = (count, now);
    }
}
