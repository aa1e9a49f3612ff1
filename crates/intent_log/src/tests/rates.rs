//! Rates of durable writes in virtual time, over models of devices: the adaptive setting beside
//! every fixed one.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{BlockDevice, DeviceFuture, Geometry, IoBuf, IoBytes, ZeroOptions};
use forebay_rt::sync::Semaphore;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{DeviceId, Lba, Nanos, TxgId, VolumeId};

use super::{POOL, stamped, start};
use crate::{GroupCommit, IntentLog, LogConfig, LogRing, Record, Side};

/// How long the commands of a simulated device take, and how many it works on at once.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    /// Of a command, whatever its length.
    latency_us: u64,
    /// Commands that it serves at a time.
    depth: u64,
    bytes_per_us: u64,
    /// A flush after each write; those that wait share the next. 0 without a volatile cache.
    flush_us: u64,
}

const MODELS: [Model; 8] = [
    Model { name: "memory", latency_us: 8, depth: 64, bytes_per_us: 4000, flush_us: 0 },
    Model { name: "fast NVMe", latency_us: 12, depth: 32, bytes_per_us: 2000, flush_us: 0 },
    Model { name: "virtual disk", latency_us: 60, depth: 4, bytes_per_us: 1000, flush_us: 0 },
    Model { name: "one at a time", latency_us: 40, depth: 1, bytes_per_us: 1000, flush_us: 0 },
    Model { name: "SATA SSD, cache", latency_us: 50, depth: 32, bytes_per_us: 500, flush_us: 400 },
    Model { name: "NVMe, cache", latency_us: 15, depth: 16, bytes_per_us: 1500, flush_us: 150 },
    Model { name: "slow and wide", latency_us: 1000, depth: 64, bytes_per_us: 200, flush_us: 0 },
    Model { name: "disk", latency_us: 4000, depth: 1, bytes_per_us: 150, flush_us: 0 },
];
/// Writes that clients keep under way, one each.
const DEPTHS: [u64; 5] = [1, 2, 8, 32, 128];
/// What a client takes from an answer to its next write.
const ROUND_TRIP: Nanos = Nanos::from_micros(15);
/// What each write takes on the one thread of all.
const THREAD: Nanos = Nanos::from_micros(4);

struct Simulated {
    model: Model,
    commands: Rc<Semaphore>,
    link_free: Cell<Nanos>,
    flushes: Rc<Semaphore>,
    /// Flushes begun and ended.
    flushed: Cell<(u64, u64)>,
    frames: Cell<u64>,
}

impl Simulated {
    async fn serve(&self, bytes: u64) {
        self.frames.set(self.frames.get() + 1);
        let permit = self.commands.acquire(1).await.unwrap();
        let link_free =
            rt::now().max(self.link_free.get()) + Nanos(1000 * bytes / self.model.bytes_per_us);
        self.link_free.set(link_free);
        rt::sleep_until(link_free + Nanos::from_micros(self.model.latency_us)).await;
        drop(permit);
        if self.model.flush_us == 0 {
            return;
        }
        // The next flush to begin covers this write.
        let needed = self.flushed.get().0 + 1;
        let turn = self.flushes.acquire(1).await.unwrap();
        if self.flushed.get().1 < needed {
            let begun = self.flushed.get().0 + 1;
            self.flushed.set((begun, self.flushed.get().1));
            rt::sleep(Nanos::from_micros(self.model.flush_us)).await;
            self.flushed.set((begun, begun));
        }
        drop(turn);
    }
}

impl BlockDevice for Simulated {
    fn name(&self) -> &str {
        self.model.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 1 << 40,
            block_bytes: 4096,
            volatile_cache: self.model.flush_us > 0,
            discard_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, _: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(std::future::ready(Ok(buf)))
    }

    fn write(&self, _: u64, data: IoBytes, _: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.serve(data.len() as u64).await;
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, _: u64, _: u64, _: bool) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, _: u64, _: u64, _: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Load {
    log: IntentLog,
    data: IoBytes,
    thread_free: Cell<Nanos>,
    done: Cell<u64>,
    is_over: Cell<bool>,
}

/// A client that waits for each write.
async fn client(load: Rc<Load>, id: u64) {
    while !load.is_over.get() {
        rt::sleep(ROUND_TRIP).await;
        let turn = rt::now().max(load.thread_free.get()) + THREAD;
        load.thread_free.set(turn);
        rt::sleep_until(turn).await;
        let record = Record::write(VolumeId(1), TxgId(1), Lba(id), load.data.clone());
        load.log.append(vec![record]).await.unwrap();
        load.done.set(load.done.get() + 1);
    }
}

/// Writes in a second, and records a frame, once `settle` writes have been made.
fn rate(model: Model, depth: u64, config: LogConfig, settle: u64, count: u64) -> (f64, f64) {
    Runtime::simulated(depth).block_on(async move {
        let device = Rc::new(Simulated {
            model,
            commands: Semaphore::new(model.depth),
            link_free: Cell::default(),
            flushes: Semaphore::new(1),
            flushed: Cell::default(),
            frames: Cell::new(0),
        });
        let side = Side { device_id: DeviceId(1), device: device.clone(), start_bytes: 0 };
        let ring = LogRing { index: 0, len_bytes: 1 << 39, sides: vec![side] };
        let load = Rc::new(Load {
            log: start(config, &[ring]).0,
            data: stamped(1, 1),
            thread_free: Cell::default(),
            done: Cell::default(),
            is_over: Cell::default(),
        });
        let clients = (0..depth).map(|id| rt::spawn(client(load.clone(), id)));
        let clients: Vec<_> = clients.collect();
        let reach = |count: u64| {
            let load = load.clone();
            async move {
                while load.done.get() < count {
                    rt::sleep(Nanos::from_micros(50)).await;
                }
                (rt::now(), load.done.get())
            }
        };
        let (begun, first) = reach(settle).await;
        let frames = device.frames.get();
        let (ended, last) = reach(settle + count).await;
        load.is_over.set(true);
        rt::join_all(clients).await;
        let seconds = ended.since(begun).0 as f64 / 1e9;
        let records = (last - first) as f64;
        (records / seconds, records / (device.frames.get() - frames) as f64)
    })
}

/// The best fixed setting for a device and a depth: its rate, frames in flight, and gather time.
fn best_fixed(model: Model, depth: u64, count: u64) -> (f64, usize, u64) {
    let mut best = (0.0, 0, 0);
    for frames_in_flight in [1, 2, 4, 8, 16] {
        for gather_us in [0, 20, 60, 200, 600] {
            if frames_in_flight as u64 > depth && frames_in_flight > 1 {
                continue;
            }
            let group_commit = GroupCommit::Fixed { gather: Nanos::from_micros(gather_us) };
            let config = LogConfig { frames_in_flight, group_commit, ..LogConfig::new(POOL) };
            let found = rate(model, depth, config, 2 * depth, count).0;
            if found > best.0 {
                best = (found, frames_in_flight, gather_us);
            }
        }
    }
    best
}

#[test]
fn adaptive_group_commit_is_within_five_percent_of_the_best_fixed_setting() {
    let mut misses = Vec::new();
    for model in MODELS {
        for depth in DEPTHS {
            let count = 200 + 16 * depth;
            let (best, frames, gather_us) = best_fixed(model, depth, count);
            let settle = 8000 + 700 * depth;
            let (found, records) = rate(model, depth, LogConfig::new(POOL), settle, 2 * count);
            let fixed = format!("{best:.0} | {frames}, {gather_us} µs");
            let ratio = found / best;
            let row = format!(
                "| {} | {depth} | {fixed} | {found:.0} | {ratio:.2} | {records:.1} |",
                model.name
            );
            println!("{row}");
            if found < 0.95 * best {
                misses.push(row);
            }
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}
