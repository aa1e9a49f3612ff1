//! What overwriting a full pool costs, on simulated devices in virtual time; prints JSON lines.
//! Words: device=256M devices=4 layout=raid0 fill=85 pattern=uniform|zipf theta=0.99 times=10
//! dirty=auto seed=1 clients=32 think_us=0 write_mb=1000 latency_us=100 keep=0. `fill` is in
//! hundredths of the bytes of all segments, `usable=85` of what `pool list` calls the size. With
//! `keep`, a snapshot is taken each 64th of the volume, and so many stay. Counts are the devices'.

// A tool, not part of the engine: it may look at the real clock to say how long it took.
#![allow(clippy::disallowed_methods)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
};
use forebay_format::footer::pages_of;
use forebay_format::journal::{FrameHeader, FrameKind};
use forebay_format::label::body_range;
use forebay_pool::spec::{GroupSpec, PoolSpec, VolumeSpec};
use forebay_pool::status::PoolStats;
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, FixedMap, Layout, Nanos, parse_bytes};
use hdrhistogram::Histogram;

/// A device in memory that keeps eight bytes of a block whose words are all alike, and whole
/// blocks of others. One command at a time moves bytes.
struct Sparse {
    name: String,
    geometry: Geometry,
    words: RefCell<Vec<u64>>,
    whole: RefCell<FixedMap<usize, Box<[u8]>>>,
    free_at: Cell<Nanos>,
    nanos_per_mib: u64,
    latency: Nanos,
    written: Cell<u64>,
    metadata: RefCell<Metadata>,
}

/// Bytes of what the pool writes for itself, by what they are.
#[derive(Clone, Copy, Default)]
struct Metadata {
    /// Superblocks, configurations, heartbeats.
    roots: u64,
    footers: u64,
    changes: u64,
    checkpoints: u64,
    /// Records of segments, and jumps.
    segments: u64,
    /// Zeros that fill rows of the journal.
    padding: u64,
}

impl Metadata {
    /// Notes a block of a body. What a frame or a footer takes is counted where it says how long it
    /// is.
    fn note(&mut self, block: &[u8]) {
        if let Ok(frame) = FrameHeader::decode(block) {
            let bytes = u64::from(frame.blocks()) * BLOCK_BYTES;
            match frame.kind {
                FrameKind::Delta => self.changes += bytes,
                FrameKind::Leaves => self.checkpoints += bytes,
                FrameKind::Segments
                | FrameKind::Snapshots
                | FrameKind::Fingerprints
                | FrameKind::Jump => self.segments += bytes,
                FrameKind::Pad => self.padding += bytes,
            }
        } else if let Ok(pages) = pages_of(block) {
            self.footers += u64::from(pages) * BLOCK_BYTES;
        }
    }

    fn add(mut self, other: &Self) -> Self {
        self.roots += other.roots;
        self.footers += other.footers;
        self.changes += other.changes;
        self.checkpoints += other.checkpoints;
        self.segments += other.segments;
        self.padding += other.padding;
        self
    }
}

impl Sparse {
    fn new(name: &str, size_bytes: u64, write_mb: u64, latency: Nanos) -> Self {
        let geometry = Geometry {
            size_bytes,
            block_bytes: 4096,
            volatile_cache: false,
            discard_bytes: 4096,
            read_only: false,
        };
        Self {
            name: name.to_owned(),
            geometry,
            words: vec![0; (size_bytes / BLOCK_BYTES) as usize].into(),
            whole: RefCell::default(),
            free_at: Cell::default(),
            nanos_per_mib: (1 << 20) * 1000 / write_mb,
            latency,
            written: Cell::new(0),
            metadata: RefCell::default(),
        }
    }

    async fn take_time(&self, len: u64) {
        let begin = self.free_at.get().max(rt::now());
        let end = begin + Nanos((self.nanos_per_mib * len) >> 20);
        self.free_at.set(end);
        rt::sleep_until(end + self.latency).await;
    }

    fn blocks(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        assert!(offset % BLOCK_BYTES == 0 && len % BLOCK_LEN == 0);
        let first = (offset / BLOCK_BYTES) as usize;
        first..first + len / BLOCK_LEN
    }
}

fn word_of(block: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
    (block[8..] == block[..BLOCK_LEN - 8]).then_some(word)
}

impl BlockDevice for Sparse {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.take_time(buf.len() as u64).await;
            let range = self.blocks(offset_bytes, buf.len());
            let (words, whole) = (self.words.borrow(), self.whole.borrow());
            for (out, at) in buf.chunks_mut(BLOCK_LEN).zip(range) {
                match whole.get(&at) {
                    Some(bytes) => out.copy_from_slice(bytes),
                    None => fill(out, words[at]),
                }
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.written.set(self.written.get() + data.len() as u64);
            self.take_time(data.len() as u64).await;
            let range = self.blocks(offset_bytes, data.len());
            let (body_start, body_end) = body_range(self.geometry.size_bytes);
            let in_body = (body_start..body_end).contains(&offset_bytes);
            if !in_body {
                self.metadata.borrow_mut().roots += data.len() as u64;
            }
            let (mut words, mut whole) = (self.words.borrow_mut(), self.whole.borrow_mut());
            for (block, at) in data.chunks(BLOCK_LEN).zip(range) {
                match word_of(block) {
                    Some(word) => {
                        words[at] = word;
                        whole.remove(&at);
                    }
                    None => {
                        if in_body {
                            self.metadata.borrow_mut().note(block);
                        }
                        whole.insert(at, block.into());
                    }
                }
            }
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async {
            rt::sleep(self.latency).await;
            Ok(())
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let range = self.blocks(offset_bytes, len_bytes as usize);
            let mut whole = self.whole.borrow_mut();
            for at in range.clone() {
                whole.remove(&at);
            }
            self.words.borrow_mut()[range].fill(0);
            Ok(())
        })
    }
}

fn fill(out: &mut [u8], word: u64) {
    for chunk in out.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

struct Shelf(BTreeMap<String, Rc<Sparse>>);

impl Shelf {
    fn new(words: &Words) -> Self {
        let size = words.number("device", 192 << 20);
        let write_mb = words.number("write_mb", 1000);
        let latency = Nanos::from_micros(words.number("latency_us", 100));
        let device = |name: &str| Rc::new(Sparse::new(name, size, write_mb, latency));
        Self(words.devices().map(|name| (name.clone(), device(&name))).collect())
    }

    /// Bytes written to all devices.
    fn written(&self) -> u64 {
        self.0.values().map(|device| device.written.get()).sum()
    }

    /// Metadata written to all devices.
    fn metadata(&self) -> Metadata {
        let each = self.0.values().map(|device| *device.metadata.borrow());
        each.fold(Metadata::default(), |sum, one| sum.add(&one))
    }
}

/// Opens the devices of a shelf.
fn opener(shelf: &Rc<Shelf>) -> Rc<dyn Opener> {
    let shelf = shelf.clone();
    OpenWith::new(1, move |path| match shelf.0.get(path) {
        Some(device) => Ok(device.clone() as Device),
        None => Err(DeviceError::new(path, Operation::Open, 0, 0, ErrorKind::Gone)),
    })
}

/// Which block is written next.
enum Pattern {
    Uniform(u64),
    /// Cumulative chances by rank, and the block of each rank.
    Zipf(Vec<f64>, Vec<u32>),
}

impl Pattern {
    fn new(name: &str, blocks: u64, theta: f64) -> Self {
        if name == "uniform" {
            return Self::Uniform(blocks);
        }
        assert_eq!(name, "zipf", "a pattern is uniform or zipf");
        let mut sum = 0.0;
        let chances: Vec<f64> = (1..=blocks)
            .map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            })
            .collect();
        let mut places: Vec<u32> = (0..blocks as u32).collect();
        for at in (1..places.len()).rev() {
            places.swap(at, rt::random_below(at as u64 + 1) as usize);
        }
        Self::Zipf(chances, places)
    }

    fn next(&self) -> u64 {
        match self {
            Self::Uniform(blocks) => rt::random_below(*blocks),
            Self::Zipf(chances, places) => {
                let unit = (rt::random_u64() >> 11) as f64 / (1u64 << 53) as f64;
                let wanted = unit * chances.last().expect("blocks");
                let rank = chances.partition_point(|sum| *sum < wanted);
                u64::from(places[rank.min(places.len() - 1)])
            }
        }
    }
}

/// Bytes written for each byte of the host under greedy cleaning with large segments, when there
/// are `alpha` bytes of segments for each byte of data: α/(α + W(−α·e^−α)).
fn greedy(alpha: f64) -> f64 {
    let x = -alpha * (-alpha).exp();
    let mut w = -0.1f64;
    for _ in 0..200 {
        w -= (w * w.exp() - x) / (w.exp() * (w + 1.0));
    }
    alpha / (alpha + w)
}

fn shape(layout: &str) -> Layout {
    Layout::parse(layout).unwrap_or_else(|| panic!("layout {layout} is unknown"))
}

/// Where the segments are, on average over samples.
#[derive(Clone, Copy, Default)]
struct Held {
    samples: f64,
    free: f64,
    emptied: f64,
    open: f64,
    journal: f64,
    /// Bytes of full data segments before their footers.
    held: f64,
}

impl Held {
    fn sample(&mut self, stats: &PoolStats) {
        self.samples += 1.0;
        self.free += (stats.segments.free - stats.segments.emptied) as f64;
        self.emptied += stats.segments.emptied as f64;
        self.held += stats.segments.held_bytes as f64;
        self.open += stats.segments.open as f64;
        self.journal += stats.segments.journal as f64;
    }
}

struct Words(BTreeMap<String, String>);

impl Words {
    fn text(&self, word: &str, default: &str) -> String {
        self.0.get(word).cloned().unwrap_or_else(|| default.to_owned())
    }
    fn number(&self, word: &str, default: u64) -> u64 {
        let text = self.text(word, &default.to_string());
        parse_bytes(&text).unwrap_or_else(|_| panic!("{word}={text} is no number"))
    }
    fn devices(&self) -> impl Iterator<Item = String> {
        (0..self.number("devices", 4)).map(|i| format!("d{i}"))
    }
}

fn main() {
    let known = "device devices layout fill usable pattern theta times dirty seed clients think_us \
                 write_mb latency_us keep";
    let is_known = |word: &str| known.split_whitespace().any(|one| one == word);
    let mut words = BTreeMap::new();
    for argument in std::env::args().skip(1) {
        let pair = argument.split_once('=').filter(|(word, _)| is_known(word));
        let Some((word, value)) = pair else {
            eprintln!("'{argument}' is not WORD=VALUE with one of {known}");
            std::process::exit(2);
        };
        words.insert(word.to_owned(), value.to_owned());
    }
    let words = Words(words);
    rt::Runtime::simulated(words.number("seed", 1)).block_on(measure(words));
}

async fn measure(words: Words) {
    let began = std::time::Instant::now();
    let shelf = Rc::new(Shelf::new(&words));
    let pool = created_pool(&shelf, &words).await;
    let segments = pool.stats().segments;
    let all = (segments.free + segments.open + segments.full) * segments.segment_bytes;
    let bytes = match words.number("usable", 0) {
        0 => all * words.number("fill", 85) / 100,
        percent => pool.summary().size_bytes * percent / 100,
    };
    let blocks = bytes / BLOCK_BYTES;
    let alpha = all as f64 / (blocks * BLOCK_BYTES) as f64;
    let volume = filled_volume(&pool, blocks, words.number("keep", 0) > 0).await;
    report_fill(&pool, all, blocks);
    let load = Rc::new(Load::new(pool.clone(), volume, blocks, &words));
    let (second_half, held) = overwrite(&load, &shelf, blocks, &words).await;
    let (before, written, metadata) = second_half;
    let device_bytes = shelf.written() - written;
    report("half", &before, &pool.stats(), device_bytes, Some((held, alpha)));
    let host = pool.stats().since_import.writes.bytes - before.since_import.writes.bytes;
    report_metadata(&metadata, &shelf.metadata(), host);
    report_latencies(&load.latencies.borrow(), began);
    pool.export().await.expect("the pool is exported");
}

async fn created_pool(shelf: &Rc<Shelf>, words: &Words) -> Rc<Pool> {
    let layout = shape(&words.text("layout", "raid0"));
    let devices = words.devices().collect();
    let spec = PoolSpec {
        groups: vec![GroupSpec { layout, devices }],
        properties: BTreeMap::from([("dirty_limit".to_owned(), words.text("dirty", "auto"))]),
        ..PoolSpec::default()
    };
    Pool::create(opener(shelf), "tank", &spec).await.expect("the pool is made")
}

/// A volume of `blocks` blocks, each of which has been written once, with its number from 1 on.
async fn filled_volume(pool: &Rc<Pool>, blocks: u64, sparse: bool) -> Device {
    let spec = VolumeSpec {
        name: "v".into(),
        size_bytes: blocks * BLOCK_BYTES,
        sparse,
        properties: BTreeMap::new(),
    };
    if let Err(error) = pool.create_volume(&spec).await {
        println!("{{\"refused\": \"{error}\"}}");
        std::process::exit(1);
    }
    let volume = pool.open_volume("v").expect("just made");
    let mut at = 0;
    while at < blocks {
        let run = (blocks - at).min(32);
        let mut buf = IoBuf::zeroed(run as usize * BLOCK_LEN);
        for (block, number) in buf.chunks_mut(BLOCK_LEN).zip(at + 1..) {
            stamp(block, number);
        }
        volume.write(at * BLOCK_BYTES, buf.freeze(), false).await.expect("the fill is taken");
        at += run;
    }
    volume
}

/// Fills a block with words that no block of another number has.
fn stamp(block: &mut [u8], number: u64) {
    fill(block, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
}

/// What had been counted when the second half of the overwrites began: by the pool, bytes written
/// to devices, and which of them were metadata.
type Counted = (PoolStats, u64, Metadata);

/// Overwrites the volume as many times as the words say, and reports each time. Returns the counts
/// before the second half, and the samples of the second half.
async fn overwrite(load: &Rc<Load>, shelf: &Shelf, blocks: u64, words: &Words) -> (Counted, Held) {
    /// Samples in each time.
    const PARTS: u64 = 64;
    let (times, clients) = (words.number("times", 10), words.number("clients", 32));
    let (mut half, mut held) = (None, Held::default());
    for turn in 1..=times {
        let (before, written) = (load.pool.stats(), shelf.written());
        if turn == times / 2 + 1 {
            half = Some((load.pool.stats(), written, shelf.metadata()));
            held = Held::default();
            load.latencies.borrow_mut().reset();
        }
        for part in 0..PARTS {
            load.left.set(blocks * (part + 1) / PARTS - blocks * part / PARTS);
            let tasks = (0..clients).map(|_| rt::spawn(load.clone().run()));
            rt::join_all(tasks.collect::<Vec<_>>()).await;
            load.take_snapshot(turn * PARTS + part, words.number("keep", 0)).await;
            held.sample(&load.pool.stats());
        }
        let after = load.pool.stats();
        report(&format!("{turn}"), &before, &after, shelf.written() - written, None);
    }
    (half.expect("two times at least"), held)
}

struct Load {
    pool: Rc<Pool>,
    volume: Device,
    pattern: Pattern,
    think: Nanos,
    left: Cell<u64>,
    stamp: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
}

impl Load {
    /// Overwrites of a volume of `blocks` blocks that has been filled.
    fn new(pool: Rc<Pool>, volume: Device, blocks: u64, words: &Words) -> Self {
        let theta = words.text("theta", "0.99").parse().expect("theta is a number");
        Self {
            pool,
            volume,
            pattern: Pattern::new(&words.text("pattern", "uniform"), blocks, theta),
            think: Nanos::from_micros(words.number("think_us", 0)),
            left: Cell::new(0),
            stamp: Cell::new(blocks),
            latencies: Histogram::new_with_bounds(100, 1_000_000_000_000, 3).expect("sane").into(),
        }
    }

    /// Takes the snapshot of this number, and destroys the one that is now one too many.
    async fn take_snapshot(&self, number: u64, keep: u64) {
        if keep > 0 {
            let names = |number: u64| vec![format!("v@{number}")];
            self.pool.take_snapshots(&names(number)).await.expect("there is room for it");
            let old = names(number.saturating_sub(keep));
            // The first ones have none before them.
            let _ = self.pool.destroy_snapshots(&old).await;
        }
    }

    async fn run(self: Rc<Self>) {
        while self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            self.stamp.set(self.stamp.get() + 1);
            let mut buf = IoBuf::zeroed(BLOCK_LEN);
            stamp(&mut buf, self.stamp.get());
            let at = self.pattern.next() * BLOCK_BYTES;
            let begun = rt::now();
            if let Err(error) = self.volume.write(at, buf.freeze(), false).await {
                let condition = self.pool.condition();
                eprintln!("{error}: {condition:?} {:?}", self.pool.stats().segments);
                std::process::exit(1);
            }
            self.latencies.borrow_mut().saturating_record(rt::now().since(begun).0);
            if self.think > Nanos(0) {
                rt::sleep(self.think).await;
            }
        }
    }
}

/// The pool's space and the share of it that the volume has.
fn report_fill(pool: &Pool, all: u64, blocks: u64) {
    let stats = pool.stats();
    let usable = pool.summary().size_bytes;
    let bytes = blocks * BLOCK_BYTES;
    println!(
        "{{\"segments\": {}, \"segment_bytes\": {}, \"bytes\": {all}, \"usable_bytes\": {usable}, \
         \"volume_bytes\": {bytes}, \"share_of_bytes\": {:.4}, \"share_of_usable\": {:.4}, \
         \"greedy\": {:.3}, \"dirty_limit\": {}}}",
        all / stats.segments.segment_bytes,
        stats.segments.segment_bytes,
        bytes as f64 / all as f64,
        bytes as f64 / usable as f64,
        greedy(all as f64 / bytes as f64),
        stats.dirty_limit_bytes,
    );
}

fn report_latencies(latencies: &Histogram<u64>, began: std::time::Instant) {
    let us = |q: f64| latencies.value_at_quantile(q) as f64 / 1e3;
    println!(
        "{{\"write_us\": {{\"p50\": {:.0}, \"p99\": {:.0}, \"p999\": {:.0}, \"max\": {:.0}}}, \
         \"virtual_seconds\": {:.1}, \"seconds\": {:.1}}}",
        us(0.5),
        us(0.99),
        us(0.999),
        us(1.0),
        rt::now().0 as f64 / 1e9,
        began.elapsed().as_secs_f64(),
    );
}

fn report(
    name: &str,
    before: &PoolStats,
    after: &PoolStats,
    device_bytes: u64,
    held: Option<(Held, f64)>,
) {
    let host = (after.since_import.writes.bytes - before.since_import.writes.bytes) as f64;
    let (a, b) = (&after.since_import.media, &before.since_import.media);
    let share = |after: u64, before: u64| (after - before) as f64 / host;
    print!(
        "{{\"turn\": \"{name}\", \"devices\": {:.3}, \"data\": {:.3}, \"cleaning\": {:.3}, \
         \"metadata\": {:.3}, \"padding\": {:.3}, \"parity\": {:.3}, \"log\": {:.3}",
        device_bytes as f64 / host,
        share(a.data, b.data),
        share(a.cleaning, b.cleaning),
        share(a.metadata, b.metadata),
        share(a.padding, b.padding),
        share(a.parity, b.parity),
        share(a.log, b.log),
    );
    if let Some((held, alpha)) = held {
        let all = (after.segments.free + after.segments.open + after.segments.full) as f64;
        let bytes = all * after.segments.segment_bytes as f64;
        let mean = |sum: f64| sum / held.samples;
        let share = |segments: f64| 100.0 * mean(segments) / all;
        let full = all - mean(held.free + held.emptied + held.journal + held.open) + 1.0;
        let footers = 100.0 * (full / all - mean(held.held) / bytes);
        // Open segments are half full; one of them is the journal's, which is counted there.
        let taken = mean(held.held) + (mean(held.open) - 1.0) / 2.0 * (bytes / all);
        print!(
            ", \"free\": {:.1}, \"emptied\": {:.1}, \"open\": {:.1}, \"journal\": {:.1}, \
             \"greedy_of_taken\": {:.3}, \"space_percent\": {{\"free\": {:.2}, \
             \"emptied\": {:.2}, \"open\": {:.2}, \"journal\": {:.2}, \"footers\": {:.2}}}",
            mean(held.free),
            mean(held.emptied),
            mean(held.open),
            mean(held.journal),
            greedy(alpha * taken / bytes),
            share(held.free),
            share(held.emptied),
            share(held.open - held.samples) / 2.0,
            share(held.journal),
            footers,
        );
    }
    println!("}}");
}

/// What of each byte of the host was written to which part of the metadata.
fn report_metadata(before: &Metadata, after: &Metadata, host: u64) {
    let share = |after: u64, before: u64| (after - before) as f64 / host as f64;
    println!(
        "{{\"footers\": {:.4}, \"changes\": {:.4}, \"checkpoints\": {:.4}, \
         \"segment_records\": {:.4}, \"journal_padding\": {:.4}, \"roots\": {:.4}}}",
        share(after.footers, before.footers),
        share(after.changes, before.changes),
        share(after.checkpoints, before.checkpoints),
        share(after.segments, before.segments),
        share(after.padding, before.padding),
        share(after.roots, before.roots),
    );
}
