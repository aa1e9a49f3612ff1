//! A load generator for any NBD server, with FUA and flushes, which fio's NBD engine lacks.
//!
//! Each connection keeps its share of requests in flight. Data is pseudo-random and never the
//! same twice in a row, since what compresses or repeats flatters some servers.

mod overwrite;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use clap::{Args, ValueEnum};
use forebay_device::{BlockDevice, DeviceError, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{Nanos, format_bytes, parse_bytes};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::client::{Client, ClientError};
use crate::latency::Latencies;
pub use overwrite::DataFound;

/// Version of the JSON that a run writes.
pub const RESULT_FORMAT: &str = "forebay-bench-nbd/1";

/// Bytes of pseudo-random data that writes are cut from.
const DATA_BYTES: usize = 16 << 20;

/// Where the next request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Anywhere, in whole blocks.
    Random,
    /// After the last one; each connection in its own part.
    Sequential,
}

/// The longest run: who means more than this has mistyped it.
const LONGEST_SECONDS: f64 = 1e6;

/// Reads a time such as `10`, `0.5`, `500ms` or `2m`, in seconds.
fn parse_seconds(text: &str) -> Result<f64, String> {
    let bad = || {
        format!("'{text}' is not a time; write seconds, or a number with ms, s, m or h: 0.5, 500ms")
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(bad()),
    };
    if seconds > LONGEST_SECONDS {
        return Err(format!("'{text}' is longer than {LONGEST_SECONDS} seconds"));
    }
    Ok(seconds)
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

/// What to do to which server.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct BenchArgs {
    /// Server and export: nbd+unix:///EXPORT?socket=PATH or nbd://HOST:PORT/EXPORT
    pub uri: String,
    /// Where requests go.
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Pattern,
    /// Percent of requests that read; the others write, and need --overwrite.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Allow writes, which destroy what the export holds.
    #[arg(long)]
    #[serde(default)]
    pub overwrite: bool,
    /// Bytes of each request.
    #[arg(long, default_value = "4K", value_parser = parse_bytes)]
    pub block_size: u64,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queue_depth: u32,
    /// Connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// Writes are durable before their reply (FUA).
    #[arg(long)]
    pub fua: bool,
    /// A flush follows each write, and counts into its latency.
    #[arg(long)]
    pub flush_each: bool,
    /// How long to run, in seconds, or with a unit: 0.5, 500ms, 10s, 2m.
    #[arg(long, value_name = "TIME", default_value = "10", conflicts_with = "count",
        value_parser = parse_seconds)]
    pub seconds: f64,
    /// Requests to make, instead of a time.
    #[arg(long)]
    pub count: Option<u64>,
    /// How long the load runs before the measuring begins, likewise.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_seconds)]
    pub warmup_seconds: f64,
    /// Only the first so many bytes of the export.
    #[arg(long, value_parser = parse_bytes)]
    pub span: Option<u64>,
    /// Seed of offsets and data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write JSON instead of words.
    #[arg(long)]
    pub json: bool,
}

/// Why a run ended without figures.
#[derive(Debug)]
pub enum BenchError {
    /// No connection.
    Client(ClientError),
    /// A request failed.
    Device(DeviceError),
    /// The arguments do not fit the export.
    Arguments(String),
    /// The load would write, and `--overwrite` was not given. Nothing has been written.
    WouldOverwrite {
        /// The export, as the client names it.
        export: String,
        /// The load writes anywhere in this many first bytes of the export.
        len_bytes: u64,
        /// What the server tells about data in these bytes.
        found: DataFound,
    },
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(e) => e.fmt(f),
            Self::Device(e) => e.fmt(f),
            Self::Arguments(why) => f.write_str(why),
            Self::WouldOverwrite { export, len_bytes, found } => write!(
                f,
                "writes would destroy the first {} of {export} ({found}): give --overwrite to allow \
                 them, or --read-percent 100 to only read",
                format_bytes(*len_bytes)
            ),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<ClientError> for BenchError {
    fn from(e: ClientError) -> Self {
        Self::Client(e)
    }
}

/// Latencies of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the percentiles")]
pub struct LatencyReport {
    pub count: u64,
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    #[serde(rename = "p99.9_us")]
    pub p999_us: f64,
    #[serde(rename = "p99.99_us")]
    pub p9999_us: f64,
    pub max_us: f64,
}

impl From<&Latencies> for LatencyReport {
    fn from(all: &Latencies) -> Self {
        let us = |ns: Nanos| ns.0 as f64 / 1e3;
        Self {
            count: all.count(),
            mean_us: us(all.mean()),
            min_us: us(all.min()),
            p50_us: us(all.percentile(50.0)),
            p90_us: us(all.percentile(90.0)),
            p99_us: us(all.percentile(99.0)),
            p999_us: us(all.percentile(99.9)),
            p9999_us: us(all.percentile(99.99)),
            max_us: us(all.max()),
        }
    }
}

/// What a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// [`RESULT_FORMAT`].
    pub format: String,
    /// What was asked.
    pub arguments: BenchArgs,
    /// Size of the export in bytes.
    pub export_bytes: u64,
    /// Measured time in seconds.
    pub seconds: f64,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// Reads and writes completed; flushes are not counted.
    pub requests: u64,
    /// Reads and writes per second.
    pub iops: f64,
    /// Data moved, in millions of bytes per second.
    pub mb_per_second: f64,
    /// Reads, when there were any.
    pub reads: Option<LatencyReport>,
    /// Writes (with their flushes, when asked for), when there were any.
    pub writes: Option<LatencyReport>,
    /// The flushes alone, when there were any.
    pub flushes: Option<LatencyReport>,
}

impl BenchReport {
    /// As one JSON document.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data")
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = &self.arguments;
        let pattern = match args.pattern {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        };
        writeln!(
            f,
            "{} {pattern}, {} % reads, {} connection(s) x {} in flight{}{}, {:.1} s{}",
            format_bytes(args.block_size),
            args.read_percent,
            args.connections,
            args.queue_depth,
            if args.fua { ", FUA" } else { "" },
            if args.flush_each { ", flush after each write" } else { "" },
            self.seconds,
            if self.interrupted { " (interrupted)" } else { "" },
        )?;
        writeln!(f, "{:>12.0} requests/s   {:.1} MB/s", self.iops, self.mb_per_second)?;
        let kinds = [("reads", self.reads), ("writes", self.writes), ("flushes", self.flushes)];
        for (name, report) in kinds {
            let Some(r) = report else { continue };
            writeln!(
                f,
                "{name:>8}: {} | latency in us: mean {:.1}  min {:.1}  p50 {:.1}  p90 {:.1}  \
                 p99 {:.1}  p99.9 {:.1}  p99.99 {:.1}  max {:.1}",
                r.count,
                r.mean_us,
                r.min_us,
                r.p50_us,
                r.p90_us,
                r.p99_us,
                r.p999_us,
                r.p9999_us,
                r.max_us
            )?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Found {
    reads: Latencies,
    writes: Latencies,
    flushes: Latencies,
    bytes: u64,
}

struct Run {
    args: BenchArgs,
    blocks: u64,
    data: IoBytes,
    found: RefCell<Found>,
    failed: RefCell<Option<DeviceError>>,
    /// Requests that may still begin; `u64::MAX` when time decides.
    left: Cell<u64>,
    end: Cell<Nanos>,
    measure_from: Nanos,
    over: Cell<bool>,
    working: Cell<usize>,
    done: Notify,
}

/// Tells a run to end now, with what it has.
#[derive(Default)]
pub struct Stop {
    asked: Cell<bool>,
    changed: Notify,
}

impl Stop {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self::default())
    }

    /// Ends the run.
    pub fn ask(&self) {
        self.asked.set(true);
        self.changed.notify_all();
    }

    async fn asked(&self) {
        self.changed.until(|| self.asked.get()).await;
    }
}

/// Runs the load until its end or until `stop`.
pub async fn run(args: BenchArgs, stop: &Stop) -> Result<BenchReport, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(Rc::new(Client::connect(&args.uri).await?));
    }
    run_on(args, clients, stop).await
}

/// Runs the load over clients that are connected already, one per connection. Writes nothing
/// unless the arguments have `overwrite`.
pub async fn run_on(
    args: BenchArgs,
    devices: Vec<Rc<Client>>,
    stop: &Stop,
) -> Result<BenchReport, BenchError> {
    let geometry = devices.first().map(|device| device.geometry());
    let geometry = geometry.ok_or_else(|| BenchError::Arguments("no connections".into()))?;
    let block = args.block_size;
    let span = args.span.unwrap_or(geometry.size_bytes).min(geometry.size_bytes);
    let blocks = span.checked_div(block).unwrap_or(0);
    if blocks < u64::from(args.connections) || block > 32 << 20 {
        return Err(BenchError::Arguments(format!(
            "blocks of {block} bytes do not fit {} connections and {span} bytes of export",
            args.connections
        )));
    }
    if !block.is_multiple_of(u64::from(geometry.block_bytes)) {
        return Err(BenchError::Arguments(format!(
            "the block size must be a multiple of the export's {} bytes",
            geometry.block_bytes
        )));
    }
    if geometry.read_only && args.read_percent < 100 {
        return Err(BenchError::Arguments(
            "the export is read-only: use --read-percent 100".into(),
        ));
    }
    if args.count.map_or(args.seconds <= 0.0, |count| count == 0) {
        return Err(BenchError::Arguments("that is no time to measure in".into()));
    }
    if args.read_percent < 100 && !args.overwrite {
        let found = overwrite::find_data(&devices[0], span).await;
        let export = devices[0].name().to_owned();
        return Err(BenchError::WouldOverwrite { export, len_bytes: span, found });
    }
    let start = rt::now();
    let measure_from = start + nanos(args.warmup_seconds);
    let end = match args.count {
        Some(_) => Nanos(u64::MAX),
        None => measure_from + nanos(args.seconds),
    };
    let run = Rc::new(Run {
        blocks,
        data: random_bytes(DATA_BYTES.max(2 * block as usize), args.seed),
        found: RefCell::default(),
        failed: RefCell::default(),
        left: Cell::new(args.count.unwrap_or(u64::MAX)),
        end: Cell::new(end),
        measure_from,
        over: Cell::new(false),
        working: Cell::new(0),
        done: Notify::default(),
        args,
    });
    for (index, device) in devices.iter().enumerate() {
        let cursor = Rc::new(Cell::new(0));
        for lane in 0..run.args.queue_depth {
            run.working.set(run.working.get() + 1);
            let (run, device, cursor) = (run.clone(), device.clone(), cursor.clone());
            let id = (index as u64) << 32 | u64::from(lane);
            rt::spawn(async move {
                let outcome = run.work(&device, index as u64, id, &cursor).await;
                if let Err(e) = outcome {
                    run.failed.borrow_mut().get_or_insert(e);
                    run.over.set(true);
                }
                run.working.set(run.working.get() - 1);
                run.done.notify_all();
            });
        }
    }
    // One that failed must not wait for others that hang.
    let finished = run.done.until(|| run.working.get() == 0 || run.failed.borrow().is_some());
    let (finished, asked) = (std::pin::pin!(finished), std::pin::pin!(stop.asked()));
    let interrupted = matches!(rt::select(finished, asked).await, rt::Either::Right(_));
    run.over.set(true);
    if let Some(e) = run.failed.borrow_mut().take() {
        return Err(BenchError::Device(e));
    }
    Ok(run.report(geometry.size_bytes, interrupted))
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

impl Run {
    fn may_begin(&self) -> bool {
        if self.over.get() || self.left.get() == 0 {
            return false;
        }
        if self.left.get() != u64::MAX {
            self.left.set(self.left.get() - 1);
        }
        true
    }

    /// One of the requests in flight, over and over.
    async fn work(
        &self,
        device: &Client,
        connection: u64,
        id: u64,
        cursor: &Cell<u64>,
    ) -> Result<(), DeviceError> {
        let args = &self.args;
        let len = args.block_size as usize;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(args.seed ^ (id + 1).rotate_left(20));
        let part = self.blocks / u64::from(args.connections);
        let mut buf = IoBuf::recycled(len);
        let mut started = rt::now();
        while started < self.end.get() && self.may_begin() {
            let block = match args.pattern {
                Pattern::Random => below(&mut rng, self.blocks),
                Pattern::Sequential => {
                    let next = cursor.get();
                    cursor.set((next + 1) % part);
                    connection * part + next
                }
            };
            let offset = block * args.block_size;
            let reads = below(&mut rng, 100) < u64::from(args.read_percent);
            let mut flush = None;
            if reads {
                buf = device.read(offset, buf).await?;
            } else {
                let at = below(&mut rng, (self.data.len() - len) as u64 + 1) as usize;
                device.write(offset, self.data.slice(at, len), args.fua).await?;
                if args.flush_each {
                    let written = rt::now();
                    device.flush().await?;
                    flush = Some(written);
                }
            }
            let now = rt::now();
            if started >= self.measure_from {
                let mut found = self.found.borrow_mut();
                let latency = now.since(started);
                if reads {
                    found.reads.add(latency)
                } else {
                    found.writes.add(latency)
                }
                if let Some(written) = flush {
                    found.flushes.add(now.since(written));
                }
                found.bytes += args.block_size;
            }
            started = now;
        }
        Ok(())
    }

    fn report(&self, export_bytes: u64, interrupted: bool) -> BenchReport {
        let found = self.found.borrow();
        let seconds = rt::now().since(self.measure_from).as_secs_f64().max(1e-9);
        let requests = found.reads.count() + found.writes.count();
        let some = |all: &Latencies| (all.count() > 0).then(|| LatencyReport::from(all));
        BenchReport {
            format: RESULT_FORMAT.to_owned(),
            arguments: self.args.clone(),
            export_bytes,
            seconds,
            interrupted,
            requests,
            iops: requests as f64 / seconds,
            mb_per_second: found.bytes as f64 / seconds / 1e6,
            reads: some(&found.reads),
            writes: some(&found.writes),
            flushes: some(&found.flushes),
        }
    }
}
