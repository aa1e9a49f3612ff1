//! The load of one run: tasks that keep requests in flight, and what they measured.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{BlockDevice, DeviceError, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::args::{BenchArgs, Pattern};
use super::report::{BenchReport, LatencyReport, RESULT_FORMAT};
use crate::client::Client;
use crate::latency::Latencies;

/// Bytes of pseudo-random data that writes take their data from.
const DATA_BYTES: usize = 16 << 20;

/// Measured requests.
#[derive(Default)]
struct Measured {
    reads: Latencies,
    writes: Latencies,
    flushes: Latencies,
    bytes: u64,
}

/// The state of one run, which its tasks share.
pub(super) struct Load {
    args: BenchArgs,
    /// Blocks of the export that the run uses.
    blocks: u64,
    data: IoBytes,
    measured: RefCell<Measured>,
    error: RefCell<Option<DeviceError>>,
    /// Requests that may still begin; `u64::MAX` when a time ends the run.
    requests_left: Cell<u64>,
    /// When the next request may begin, if their rate is limited.
    next_turn: Cell<Nanos>,
    end: Nanos,
    measure_from: Nanos,
    is_over: Cell<bool>,
    running_tasks: Cell<usize>,
    task_ended: Notify,
}

impl Load {
    /// A load on the first `blocks` blocks of an export; its time begins now.
    pub(super) fn new(args: BenchArgs, blocks: u64) -> Rc<Self> {
        let measure_from = rt::now() + nanos(args.warmup_seconds);
        let end = match args.count {
            Some(_) => Nanos(u64::MAX),
            None => measure_from + nanos(args.seconds),
        };
        Rc::new(Self {
            blocks,
            data: random_bytes(DATA_BYTES.max(2 * args.block_size as usize), args.seed),
            measured: RefCell::default(),
            error: RefCell::default(),
            requests_left: Cell::new(args.count.unwrap_or(u64::MAX)),
            next_turn: Cell::new(rt::now()),
            end,
            measure_from,
            is_over: Cell::new(false),
            running_tasks: Cell::new(0),
            task_ended: Notify::default(),
            args,
        })
    }

    /// Starts the tasks of one connection, one for each request in flight.
    pub(super) fn start(self: &Rc<Self>, connection: u64, client: &Rc<Client>) {
        let cursor = Rc::new(Cell::new(0));
        for lane in 0..self.args.queue_depth {
            self.running_tasks.set(self.running_tasks.get() + 1);
            let (load, client, cursor) = (self.clone(), client.clone(), cursor.clone());
            let id = connection << 32 | u64::from(lane);
            rt::spawn(async move {
                if let Err(e) = load.work(&client, connection, id, &cursor).await {
                    load.error.borrow_mut().get_or_insert(e);
                    load.is_over.set(true);
                }
                load.running_tasks.set(load.running_tasks.get() - 1);
                load.task_ended.notify_all();
            });
        }
    }

    /// Waits until all tasks have ended, or one has failed: other tasks may hang then.
    pub(super) async fn finished(&self) {
        let is_finished = || self.running_tasks.get() == 0 || self.error.borrow().is_some();
        self.task_ended.until(is_finished).await;
    }

    /// Lets no further request begin; returns the error of the first failed request.
    pub(super) fn end(&self) -> Result<(), DeviceError> {
        self.is_over.set(true);
        self.error.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn take_request(&self) -> bool {
        if self.is_over.get() || self.requests_left.get() == 0 {
            return false;
        }
        if self.requests_left.get() != u64::MAX {
            self.requests_left.set(self.requests_left.get() - 1);
        }
        true
    }

    /// Waits for the turn of the next request. Turns that passed while all lanes were busy are
    /// lost: requests that make up for them would come faster than the rate.
    async fn wait_for_turn(&self) {
        let Some(rate) = self.args.rate else { return };
        let turn = self.next_turn.get().max(rt::now());
        self.next_turn.set(turn + Nanos(1_000_000_000 / u64::from(rate)));
        rt::sleep_until(turn.min(self.end)).await;
    }

    /// Makes one request after the other.
    async fn work(
        &self,
        client: &Client,
        connection: u64,
        id: u64,
        cursor: &Cell<u64>,
    ) -> Result<(), DeviceError> {
        let args = &self.args;
        let len = args.block_size as usize;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(args.seed ^ (id + 1).rotate_left(20));
        let mut buf = IoBuf::recycled(len);
        let mut started = rt::now();
        while self.take_request() {
            if args.rate.is_some() {
                self.wait_for_turn().await;
                started = rt::now();
            }
            if started >= self.end {
                break;
            }
            let offset = self.next_block(&mut rng, connection, cursor) * args.block_size;
            let is_read = below(&mut rng, 100) < u64::from(args.read_percent);
            let mut written = None;
            if is_read {
                buf = client.read(offset, buf).await?;
            } else {
                let at = below(&mut rng, (self.data.len() - len) as u64 + 1) as usize;
                client.write(offset, self.data.slice(at, len), args.fua).await?;
                if args.flush_each {
                    written = Some(rt::now());
                    client.flush().await?;
                }
            }
            let now = rt::now();
            if started >= self.measure_from {
                let mut measured = self.measured.borrow_mut();
                let kind = if is_read { &mut measured.reads } else { &mut measured.writes };
                kind.add(now.since(started));
                if let Some(written) = written {
                    measured.flushes.add(now.since(written));
                }
                measured.bytes += args.block_size;
            }
            started = now;
        }
        Ok(())
    }

    fn next_block(&self, rng: &mut Xoshiro256PlusPlus, connection: u64, cursor: &Cell<u64>) -> u64 {
        match self.args.pattern {
            Pattern::Random => below(rng, self.blocks),
            Pattern::Sequential => {
                let part = self.blocks / u64::from(self.args.connections);
                let next = cursor.get();
                cursor.set((next + 1) % part);
                connection * part + next
            }
        }
    }

    /// The report on the requests so far.
    pub(super) fn report(&self, export_bytes: u64, interrupted: bool) -> BenchReport {
        let measured = self.measured.borrow();
        let seconds = rt::now().since(self.measure_from).as_secs_f64().max(1e-9);
        let requests = measured.reads.count() + measured.writes.count();
        let report = |all: &Latencies| (all.count() > 0).then(|| LatencyReport::from(all));
        BenchReport {
            format: RESULT_FORMAT.to_owned(),
            arguments: self.args.clone(),
            export_bytes,
            seconds,
            interrupted,
            requests,
            iops: requests as f64 / seconds,
            mb_per_second: measured.bytes as f64 / seconds / 1e6,
            reads: report(&measured.reads),
            writes: report(&measured.writes),
            flushes: report(&measured.flushes),
        }
    }
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

fn random_bytes(len: usize, seed: u64) -> IoBytes {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut buf = IoBuf::recycled(len);
    for chunk in buf.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    buf.freeze()
}

fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}
