//! Measures the log's speed on a real file, beside raw durable writes to the same file: `cargo run
//! --release -p forebay-intent-log --example log_speed -- FILE [SECONDS] [ROUNDS]`
//!
//! It creates FILE (512 MiB) and removes it. The rounds of all figures alternate. Other work on the
//! machine can only slow a round, so ratios compare best rounds.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::{Device, FileDevice, IoBuf, IoBytes, MemoryDevice, OpenOptions};
use forebay_intent_log::{
    GroupCommit, IntentLog, LogConfig, LogEvent, LogRing, LogStats, Record, Replay, Side,
};
use forebay_rt::{FuturesUnordered, Runtime, StreamExt, join_all, now, spawn};
use forebay_units::{DeviceId, FrameSeq, Lba, Nanos, TxgId, VolumeId};

const FILE_BYTES: u64 = 512 << 20;
const POOL: u64 = 7;

#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Raw writes one after the other: bytes of each.
    Raw(usize),
    /// 4 KiB appends: frames in flight if they are fixed, KiB of the longest frame.
    Log(Option<usize>, u32),
}

struct Figure {
    load: Load,
    depth: usize,
    rates: Vec<f64>,
    latencies_us: Vec<f64>,
    stats: LogStats,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next().map(PathBuf::from) else {
        eprintln!("usage: log_speed FILE [SECONDS] [ROUNDS]");
        std::process::exit(2);
    };
    let seconds: f64 = args.next().map_or(0.25, |s| s.parse().expect("SECONDS is a number"));
    let rounds: usize = args.next().map_or(9, |s| s.parse().expect("ROUNDS is a number"));
    make_file(&path);
    let span = Nanos((seconds * 1e9) as u64);
    let shown = path.clone();
    Runtime::real().expect("io_uring").block_on(async move {
        let device = FileDevice::open(&shown, OpenOptions::default()).await;
        let device: Device = Rc::new(device.expect("opens"));
        measure_cpu().await;
        fill(&device).await;
        measure(&device, span, rounds).await;
        measure_replay(&device).await;
    });
    let _ = std::fs::remove_file(&path);
}

// The log never creates files: a pool gets existing devices.
#[allow(clippy::disallowed_methods)]
fn make_file(path: &Path) {
    std::fs::File::create(path).and_then(|file| file.set_len(FILE_BYTES)).expect("file");
}

fn noise(len: usize) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&forebay_rt::random_u64().to_le_bytes());
    }
    buf.freeze()
}

async fn fill(device: &Device) {
    let data = noise(1 << 20);
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        device.write(at, data.clone(), false).await.expect("write");
    }
    device.flush().await.expect("flush");
}

/// Measures the log's own cost on a device without latency. Best of five rounds.
async fn measure_cpu() {
    let device: Device = Rc::new(MemoryDevice::new("memory", FILE_BYTES));
    let span = Nanos::from_millis(200);
    let each = |count: u64| span.0 as f64 / count as f64;
    let (mut raw_ns, mut log_ns) = (f64::MAX, [f64::MAX; 2]);
    for _ in 0..5 {
        raw_ns = raw_ns.min(each(raw(&device, 8192, 1, span).await.0));
        for (best, depth) in log_ns.iter_mut().zip([1, 32]) {
            *best = best.min(each(log(&device, None, 128 << 10, depth, span).await.0));
        }
    }
    println!(
        "in memory: {raw_ns:.0} ns a raw 8 KiB write, {:.0} ns an append at depth 1, {:.0} at 32",
        log_ns[0], log_ns[1]
    );
}

async fn measure(device: &Device, span: Nanos, rounds: usize) {
    let mut figures = Vec::new();
    let mut add = |load, depth| {
        figures.push(Figure {
            load,
            depth,
            rates: Vec::new(),
            latencies_us: Vec::new(),
            stats: LogStats::default(),
        });
    };
    for depth in [1, 32] {
        add(Load::Raw(4096), depth);
    }
    add(Load::Raw(8192), 1);
    add(Load::Raw(65536), 4);
    for depth in [1, 8, 32, 128] {
        for in_flight in [None, Some(1), Some(2), Some(4), Some(8), Some(16)] {
            if depth > 1 || in_flight.is_none_or(|frames| frames == 4) {
                add(Load::Log(in_flight, 128), depth);
            }
        }
    }
    add(Load::Log(Some(4), 64), 32);
    add(Load::Log(Some(4), 1024), 32);
    for _ in 0..rounds {
        for figure in &mut figures {
            let (count, latencies) = match figure.load {
                Load::Raw(len) => raw(device, len, figure.depth, span).await,
                Load::Log(in_flight, kib) => {
                    let (count, latencies, stats) =
                        log(device, in_flight, kib << 10, figure.depth, span).await;
                    figure.stats = stats;
                    (count, latencies)
                }
            };
            figure.rates.push(count as f64 / span.as_secs_f64());
            figure.latencies_us.extend(latencies);
        }
    }
    let base = |depth| {
        figures.iter().find(|c| c.load == Load::Raw(4096) && c.depth == depth).map(|f| rate_of(f).1)
    };
    let (base_1, base_32) = (base(1).expect("measured"), base(32).expect("measured"));
    println!(
        "| load | depth | per s, best | median | MB/s, best | p10 us | p50 us | of raw 4 KiB | \
         records a frame |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for figure in &figures {
        let (name, unit) = match figure.load {
            Load::Raw(len) => (format!("raw {} KiB", len >> 10), len),
            Load::Log(None, kib) => (format!("log 4 KiB, adaptive, of {kib} KiB"), 4096),
            Load::Log(Some(n), kib) => (format!("log 4 KiB, {n} frames of {kib} KiB"), 4096),
        };
        let (median, rate) = rate_of(figure);
        let mut sorted = figure.latencies_us.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        println!(
            "| {name} | {} | {rate:.0} | {median:.0} | {:.1} | {:.0} | {:.0} | {:.2} | {:.1} |",
            figure.depth,
            rate * unit as f64 / 1e6,
            at(0.1),
            at(0.5),
            rate / if figure.depth == 1 { base_1 } else { base_32 },
            figure.stats.records as f64 / figure.stats.frames.max(1) as f64,
        );
    }
}

/// Median and best of the rounds.
fn rate_of(figure: &Figure) -> (f64, f64) {
    let mut sorted = figure.rates.clone();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() / 2], sorted[sorted.len() - 1])
}

async fn raw(device: &Device, len: usize, depth: usize, span: Nanos) -> (u64, Vec<f64>) {
    let data = noise(len);
    let place = Rc::new(Cell::new(0u64));
    let end = now() + span;
    let workers = (0..depth).map(|_| {
        let (device, data, place) = (device.clone(), data.clone(), place.clone());
        spawn(async move {
            let mut latencies = Vec::new();
            while now() < end {
                let at = place.get();
                place.set((at + len as u64) % (FILE_BYTES / 2));
                let begun = now();
                device.write(at, data.clone(), true).await.expect("write");
                latencies.push(now().since(begun).0 as f64 / 1e3);
            }
            latencies
        })
    });
    let latencies = join_all(workers).await.concat();
    (latencies.len() as u64, latencies)
}

fn rings(device: &Device) -> [LogRing; 1] {
    let side = Side { device_id: DeviceId(1), device: device.clone(), start_bytes: 0 };
    [LogRing { index: 0, len_bytes: FILE_BYTES / 2, sides: vec![side] }]
}

async fn log(
    device: &Device,
    frames_in_flight: Option<usize>,
    max_frame_bytes: u32,
    depth: usize,
    span: Nanos,
) -> (u64, Vec<f64>, LogStats) {
    let mut config = LogConfig { max_frame_bytes, ..LogConfig::new(POOL) };
    if let Some(frames) = frames_in_flight {
        config.frames_in_flight = frames;
        config.group_commit = GroupCommit::Fixed { gather: Nanos::ZERO };
    }
    let rings = rings(device);
    let epoch = (forebay_rt::random_u64() >> 32) as u32 | 1;
    let state = IntentLog::empty_state(&config, &rings, epoch, TxgId(0), FrameSeq(1));
    let log = Rc::new(IntentLog::start(config, &rings, &state).expect("starts"));
    let txg = Rc::new(Cell::new(1));
    let (watched, group) = (log.clone(), txg.clone());
    let commits = spawn(async move {
        while watched.next_event().await == LogEvent::Pressure {
            let done = TxgId(group.replace(group.get() + 1));
            let _ = watched.state(done);
            watched.release(done);
        }
    });
    let data = noise(4096);
    let end = now() + span;
    let clients = (0..depth as u32).map(|client| {
        let (log, data, txg) = (log.clone(), data.clone(), txg.clone());
        spawn(async move {
            let mut latencies = Vec::new();
            let mut lba = 0;
            while now() < end {
                lba += 7;
                let begun = now();
                let record =
                    Record::write(VolumeId(client), TxgId(txg.get()), Lba(lba), data.clone());
                log.append(vec![record]).await.expect("append");
                latencies.push(now().since(begun).0 as f64 / 1e3);
            }
            latencies
        })
    });
    let latencies = join_all(clients).await.concat();
    // The committing task waits for events until the runtime ends.
    drop(commits);
    let stats = log.stats();
    (latencies.len() as u64, latencies, stats)
}

async fn measure_replay(device: &Device) {
    for (name, batch) in [("8 KiB frames", 1), ("128 KiB frames", 31)] {
        let config = LogConfig { pressure_percent: 100, ..LogConfig::new(POOL) };
        let rings = rings(device);
        let epoch = (forebay_rt::random_u64() >> 32) as u32 | 1;
        let state = IntentLog::empty_state(&config, &rings, epoch, TxgId(0), FrameSeq(1));
        let log = IntentLog::start(config, &rings, &state).expect("starts");
        let data = noise(4096);
        let mut waits = FuturesUnordered::new();
        let mut id = 0;
        while log.used_bytes() < log.capacity_bytes() / 10 * 9 {
            let records = (0..batch).map(|_| {
                id += 1;
                Record::write(VolumeId(1), TxgId(1), Lba(id), data.clone())
            });
            waits.push(log.append(records.collect()));
            while waits.len() >= if batch == 1 { 1 } else { 8 } {
                waits.next().await;
            }
        }
        while waits.next().await.is_some() {}
        drop(log);
        let mut best = (0.0f64, 0.0f64);
        for _ in 0..3 {
            let begun = now();
            let mut replay = Replay::open(rings.to_vec(), &state, POOL).expect("opens");
            while replay.next().await.expect("reads").is_some() {}
            let taken = now().since(begun).as_secs_f64();
            let end = replay.end().expect("ended");
            assert_eq!(end.records, id);
            let raw = read_all(device, FILE_BYTES / 2).await;
            best.0 = best.0.max((FILE_BYTES / 2) as f64 / taken / 1e6);
            best.1 = best.1.max(raw);
        }
        println!(
            "replay, {name}: {:.0} MB/s with the search beyond the end; \
             raw 1 MiB reads at depth 4: {:.0} MB/s; ratio {:.2}",
            best.0,
            best.1,
            best.0 / best.1
        );
    }
}

async fn read_all(device: &Device, len: u64) -> f64 {
    let begun = now();
    let place = Rc::new(Cell::new(0));
    let workers = (0..4).map(|_| {
        let (device, place) = (device.clone(), place.clone());
        spawn(async move {
            while place.get() < len {
                let at = place.replace(place.get() + (1 << 20));
                device.read(at, IoBuf::recycled(1 << 20)).await.expect("read");
            }
        })
    });
    join_all(workers).await;
    len as f64 / now().since(begun).as_secs_f64() / 1e6
}
