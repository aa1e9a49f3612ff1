//! Figures of a pool: since import, and over its lifetime.

use std::cell::{Cell, RefCell};

use forebay_array::WriteKind;
use forebay_device::layers::Counts;
use forebay_format::config::{FiguresConfig, PoolConfig};
use forebay_format::superblock::COUNTERS;
use forebay_map::Map;
use forebay_rt as rt;
use forebay_segment::{Classes, SegmentKind, SegmentState};
use forebay_txg::Held;
use forebay_units::{BLOCK_BYTES, DeviceId, Nanos, VolumeId};

use crate::Pool;
use crate::state::Writers;
use crate::status::{
    ImportReport, IoCounts, Latency, LongPoll, MediaBytes, OpCount, PoolStats, Pulse,
    STATUS_VERSION, SegmentCounts, Timings, Traffic,
};
use hdrhistogram::Histogram;

pub(crate) struct Stats {
    since: RefCell<Traffic>,
    before: Traffic,
    /// Blocks that hosts have written to the main store over the pool's lifetime: the cleaner's
    /// clock.
    clock: Cell<u64>,
    fua: RefCell<Histogram<u64>>,
    flush: RefCell<Histogram<u64>>,
    read: RefCell<Histogram<u64>>,
    /// Counts of devices and latencies before this import, and of devices that were opened again.
    earlier: RefCell<FiguresConfig>,
    /// When they were last written to the configuration.
    kept_at: Cell<Nanos>,
    imported_at: Nanos,
    pub import: RefCell<ImportReport>,
    retired: Cell<Held>,
    root_bytes: Cell<u64>,
    repair_bytes: Cell<u64>,
    last_group_blocks: Cell<u64>,
}

fn histogram() -> RefCell<Histogram<u64>> {
    // 100 ns to 1000 s with two digits take 40 KiB each.
    RefCell::new(Histogram::new_with_bounds(100, 1_000_000_000_000, 2).expect("bounds are sane"))
}

/// Most time of lifetime figures that a crash, or an export, may lose.
const KEPT_IN_USE: Nanos = Nanos::from_secs(600);
const KEPT_AT_THE_END: Nanos = Nanos::from_secs(60);

/// One digit: at most 528 places, each within 6 % of its neighbors.
fn coarse(earlier: &[(u64, u64)], since: &Histogram<u64>) -> Histogram<u64> {
    let bounds = Histogram::new_with_bounds(100, 1_000_000_000_000, 1);
    let mut all: Histogram<u64> = bounds.expect("bounds are sane");
    for (nanos, count) in earlier {
        all.saturating_record_n(*nanos, *count);
    }
    for place in since.iter_recorded() {
        all.saturating_record_n(place.value_iterated_to(), place.count_since_last_iteration());
    }
    all
}

fn places(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    recorded.map(|p| (p.value_iterated_to(), p.count_since_last_iteration())).collect()
}

/// The form of [`FiguresConfig::devices`].
fn figures_of(c: &Counts) -> [u64; 8] {
    [
        c.reads,
        c.read_bytes,
        c.writes,
        c.write_bytes,
        c.sequential_writes,
        c.flushes,
        c.discards,
        c.discard_bytes,
    ]
}

fn added(earlier: &[u64; 8], counts: &Counts) -> [u64; 8] {
    let now = figures_of(counts);
    std::array::from_fn(|at| earlier[at].saturating_add(now[at]))
}

impl Stats {
    pub fn new(counters: &[u64; COUNTERS], earlier: &FiguresConfig) -> Self {
        Self {
            since: RefCell::default(),
            before: from_counters(counters),
            clock: Cell::new(counters[20]),
            fua: histogram(),
            flush: histogram(),
            read: histogram(),
            earlier: RefCell::new(earlier.clone()),
            kept_at: Cell::new(rt::now()),
            imported_at: rt::now(),
            import: RefCell::default(),
            retired: Cell::default(),
            root_bytes: Cell::new(0),
            repair_bytes: Cell::new(0),
            last_group_blocks: Cell::new(0),
        }
    }

    /// Whether lifetime figures justify writing a configuration. Each one replaces the one before
    /// the last, which older roots need, so figures of a moment do not, `at_the_end` either.
    pub fn figures_are_due(&self, at_the_end: bool) -> bool {
        let kept = if at_the_end { KEPT_AT_THE_END } else { KEPT_IN_USE };
        rt::now().since(self.kept_at.get()) >= kept
    }

    /// Keeps the counts of a device that is opened again.
    pub fn counted_before(&self, device: DeviceId, counts: &Counts) {
        let mut earlier = self.earlier.borrow_mut();
        let sum = earlier.devices.entry(device.0).or_default();
        *sum = added(sum, counts);
    }

    pub fn clock(&self) -> u64 {
        self.clock.get()
    }

    pub fn tick(&self) {
        self.clock.set(self.clock.get() + 1);
    }

    pub fn count_write(&self, bytes: u64, fua: bool) {
        let mut since = self.since.borrow_mut();
        add(&mut since.writes, bytes);
        if fua {
            add(&mut since.fuas, bytes);
        }
    }

    /// Bytes that clients have written since import.
    pub fn written_bytes(&self) -> u64 {
        self.since.borrow().writes.bytes
    }

    pub fn count_trim(&self, bytes: u64) {
        add(&mut self.since.borrow_mut().trims, bytes);
    }

    pub fn count_read(&self, bytes: u64, took: Nanos) {
        add(&mut self.since.borrow_mut().reads, bytes);
        self.read.borrow_mut().saturating_record(took.0);
    }

    pub fn count_flush(&self, took: Nanos) {
        add(&mut self.since.borrow_mut().flushes, 0);
        self.flush.borrow_mut().saturating_record(took.0);
    }

    pub fn fua_latency(&self, took: Nanos) {
        self.fua.borrow_mut().saturating_record(took.0);
    }

    /// Takes the room that the write buffers of retired groups held; their root gives it back.
    pub fn retiring(&self, held: Held) {
        let mut sum = self.retired.get();
        sum += held;
        self.retired.set(sum);
    }

    pub fn take_retired(&self) -> Held {
        self.retired.take()
    }

    /// Data blocks in the last group. The next group may be as large.
    pub fn last_group_blocks(&self) -> u64 {
        self.last_group_blocks.get()
    }

    pub fn note_group_blocks(&self, blocks: u64) {
        self.last_group_blocks.set(blocks);
    }

    pub fn cleaned(&self, segments: u64) {
        self.since.borrow_mut().segments_cleaned += segments;
    }

    pub fn wrote_root(&self, bytes: u64) {
        self.root_bytes.set(self.root_bytes.get() + bytes);
    }

    pub fn repaired(&self, bytes: u64) {
        self.repair_bytes.set(self.repair_bytes.get() + bytes);
    }
}

fn add(count: &mut OpCount, bytes: u64) {
    count.count += 1;
    count.bytes += bytes;
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    if histogram.is_empty() {
        return Latency::default();
    }
    let us = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        count: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        p50_us: us(0.5),
        p90_us: us(0.9),
        p99_us: us(0.99),
        p999_us: us(0.999),
        p9999_us: us(0.9999),
        max_us: histogram.max() as f64 / 1e3,
    }
}

fn from_counters(c: &[u64; COUNTERS]) -> Traffic {
    let op = |at: usize| OpCount { count: c[at], bytes: c[at + 1] };
    Traffic {
        reads: op(0),
        writes: op(2),
        trims: op(4),
        flushes: op(6),
        fuas: op(8),
        log_writes: op(10),
        log_sequential_writes: c[12],
        media: MediaBytes {
            data: c[13],
            parity: c[14],
            metadata: c[15],
            cleaning: c[16],
            padding: c[17],
            repair: c[18],
            log: c[19],
        },
        segments_cleaned: c[21],
    }
}

/// Memory of a map, as a root tells it to the next import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapSize {
    /// Bytes of all of it. Roots of earlier programs say 0.
    pub bytes: u64,
    /// The volume with the largest part.
    pub volume: VolumeId,
    /// Bytes of that part.
    pub volume_bytes: u64,
}

/// Where the counters of a superblock have a [`MapSize`].
const MAP_COUNTERS: std::ops::Range<usize> = 22..25;

impl MapSize {
    pub fn from_counters(counters: &[u64; COUNTERS]) -> Self {
        let [bytes, volume, volume_bytes] = counters[MAP_COUNTERS] else {
            unreachable!("the range has three counters")
        };
        Self { bytes, volume: VolumeId(volume as u32), volume_bytes }
    }
}

pub(crate) fn map_size(map: &Map) -> MapSize {
    let (volume, volume_bytes) = map.largest_volume().unwrap_or_default();
    MapSize { bytes: map.memory_bytes(), volume, volume_bytes }
}

fn sum(a: &Traffic, b: &Traffic) -> Traffic {
    let op =
        |a: OpCount, b: OpCount| OpCount { count: a.count + b.count, bytes: a.bytes + b.bytes };
    Traffic {
        reads: op(a.reads, b.reads),
        writes: op(a.writes, b.writes),
        trims: op(a.trims, b.trims),
        flushes: op(a.flushes, b.flushes),
        fuas: op(a.fuas, b.fuas),
        log_writes: op(a.log_writes, b.log_writes),
        log_sequential_writes: a.log_sequential_writes + b.log_sequential_writes,
        media: MediaBytes {
            data: a.media.data + b.media.data,
            parity: a.media.parity + b.media.parity,
            metadata: a.media.metadata + b.media.metadata,
            cleaning: a.media.cleaning + b.media.cleaning,
            padding: a.media.padding + b.media.padding,
            repair: a.media.repair + b.media.repair,
            log: a.media.log + b.media.log,
        },
        segments_cleaned: a.segments_cleaned + b.segments_cleaned,
    }
}

impl Pool {
    /// Adds the writers' counts to the figures; called with each root.
    pub(crate) fn tally(&self, writers: &Writers) {
        let mut media = MediaBytes::default();
        for (stream, writer) in writers.data.iter().enumerate() {
            let counts = writer.counts();
            let data = counts.data * BLOCK_BYTES;
            if Classes::is_user(stream as u8) {
                let fillers = counts.fillers * BLOCK_BYTES;
                media.data += data - fillers;
                media.cleaning += fillers;
            } else {
                media.cleaning += data;
            }
            media.metadata += counts.footer * BLOCK_BYTES;
            media.padding += counts.padding * BLOCK_BYTES;
        }
        let journal = writers.journal.counts();
        media.metadata += journal.data * BLOCK_BYTES + self.stats.root_bytes.get();
        media.padding += journal.padding * BLOCK_BYTES;
        for kind in [WriteKind::User, WriteKind::Cleaning, WriteKind::Map] {
            media.parity += self.store.array.totals(kind).redundancy_bytes;
        }
        media.repair = self.stats.repair_bytes.get();
        let log = self.log.stats();
        media.log = log.device_write_bytes;
        let mut since = self.stats.since.borrow_mut();
        since.media = media;
        since.log_writes = OpCount { count: log.frames, bytes: log.frame_bytes };
        since.log_sequential_writes = log.sequential_frames;
    }

    /// Counters for the superblock.
    pub(crate) fn counters(&self) -> [u64; COUNTERS] {
        let total = sum(&self.stats.before, &self.stats.since.borrow());
        let mut c = [0; COUNTERS];
        let ops =
            [total.reads, total.writes, total.trims, total.flushes, total.fuas, total.log_writes];
        for (at, op) in ops.into_iter().enumerate() {
            c[2 * at] = op.count;
            c[2 * at + 1] = op.bytes;
        }
        c[12] = total.log_sequential_writes;
        let m = total.media;
        let media = [m.data, m.parity, m.metadata, m.cleaning, m.padding, m.repair, m.log];
        c[13..20].copy_from_slice(&media);
        c[20] = self.stats.clock();
        c[21] = total.segments_cleaned;
        let map = map_size(&self.store.map.borrow());
        let map = [map.bytes, u64::from(map.volume.0), map.volume_bytes];
        c[MAP_COUNTERS].copy_from_slice(&map);
        c
    }

    /// The figures that the configuration keeps, of devices that the pool still has.
    pub(crate) fn figures(&self, config: &PoolConfig) -> FiguresConfig {
        let earlier = self.stats.earlier.borrow();
        self.stats.kept_at.set(rt::now());
        let open = self.devices.borrow();
        let sides = config.logs.iter().flat_map(|ring| &ring.sides);
        let devices = config.data_members().chain(sides).map(|member| {
            let before = earlier.devices.get(&member.device).copied().unwrap_or_default();
            let now = open.get(&DeviceId(member.device)).map(|d| d.counted.counts());
            (member.device, added(&before, &now.unwrap_or_default()))
        });
        FiguresConfig {
            devices: devices.collect(),
            fua: places(&coarse(&earlier.fua, &self.stats.fua.borrow())),
            flush: places(&coarse(&earlier.flush, &self.stats.flush.borrow())),
            read: places(&coarse(&earlier.read, &self.stats.read.borrow())),
        }
    }

    /// What changes with each request.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        if let Some(writers) = self.writers.try_lock() {
            self.tally(&writers);
        }
        let Stats { fua, flush, read, since, .. } = &self.stats;
        Pulse {
            traffic: *since.borrow(),
            dirty_bytes: self.dirty.throttle.dirty_bytes(),
            log_used_bytes: self.log.used_bytes(),
            latencies: [fua, flush, read].map(|histogram| Timings(places(&histogram.borrow()))),
        }
    }

    /// Figures since import and over the pool's lifetime.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        if let Some(writers) = self.writers.try_lock() {
            self.tally(&writers);
        }
        let since = *self.stats.since.borrow();
        let media = since.media;
        let main = media.data + media.parity + media.metadata + media.cleaning + media.padding;
        let ratio = |bytes: u64| match since.writes.bytes {
            0 => 0.0,
            host => bytes as f64 / host as f64,
        };
        let earlier = self.stats.earlier.borrow();
        let ever = |earlier: &[(u64, u64)], since: &RefCell<Histogram<u64>>| {
            latency(&coarse(earlier, &since.borrow()))
        };
        let devices = self.devices.borrow();
        let since_creation = devices.iter().map(|(id, device)| {
            let before = earlier.devices.get(&id.0).copied().unwrap_or_default();
            (device.path.clone(), from_figures(&added(&before, &device.counted.counts())))
        });
        let names = devices.values().map(|d| (d.path.clone(), io_counts(&d.counted.counts())));
        PoolStats {
            version: STATUS_VERSION,
            name: self.name(),
            uptime_secs: rt::now().since(self.stats.imported_at).as_secs_f64(),
            since_import: since,
            since_creation: sum(&self.stats.before, &since),
            write_amplification: ratio(main),
            write_amplification_with_log: ratio(main + media.log),
            segments: self.segment_counts(),
            map_memory_bytes: self.store.map.borrow().memory_bytes(),
            dedup: self.dedup_stats(),
            compression: self.compression_stats(),
            cache: self.cache_stats(),
            cache_devices: self.cache_device_stats(),
            footer_cache_bytes: self.store.reader.pages_bytes(),
            dirty_bytes: self.dirty.throttle.dirty_bytes(),
            dirty_limit_bytes: self.dirty.throttle.limit_bytes(),
            log_used_bytes: self.log.used_bytes(),
            log_capacity_bytes: self.log.capacity_bytes(),
            fua_latency: latency(&self.stats.fua.borrow()),
            flush_latency: latency(&self.stats.flush.borrow()),
            read_latency: latency(&self.stats.read.borrow()),
            fua_latency_since_creation: ever(&earlier.fua, &self.stats.fua),
            flush_latency_since_creation: ever(&earlier.flush, &self.stats.flush),
            read_latency_since_creation: ever(&earlier.read, &self.stats.read),
            devices: names.collect(),
            devices_since_creation: since_creation.collect(),
            last_import: self.stats.import.borrow().clone(),
            long_polls: rt::long_polls().into_iter().map(long_poll).collect(),
        }
    }

    fn segment_counts(&self) -> SegmentCounts {
        let mut counts = SegmentCounts::default();
        let (mut live, mut held) = (0u64, 0u64);
        self.store.table.for_each(|segment, info| {
            match info.state {
                SegmentState::Free | SegmentState::Emptied(_) => {
                    counts.free += 1;
                    counts.emptied += u64::from(info.state != SegmentState::Free);
                    return;
                }
                SegmentState::Open => counts.open += 1,
                SegmentState::Full => counts.full += 1,
            }
            match (info.kind, info.state) {
                (SegmentKind::Map, _) => counts.journal += 1,
                (SegmentKind::Data, SegmentState::Full) => {
                    live += u64::from(info.live);
                    held += u64::from(self.store.table.capacity(segment));
                }
                (SegmentKind::Data, _) => {}
            }
        });
        counts.live_share = if held == 0 { 0.0 } else { live as f64 / held as f64 };
        counts.held_bytes = held * BLOCK_BYTES;
        counts.cleaned = self.stats.since.borrow().segments_cleaned;
        let first = self.store.array.groups().first().map_or(0, |g| g.blocks_per_segment());
        counts.segment_bytes = u64::from(first) * BLOCK_BYTES;
        counts
    }
}

fn long_poll(polls: rt::LongPolls) -> LongPoll {
    let micros = |nanos: Nanos| nanos.0 as f64 / 1e3;
    LongPoll {
        mean_us: micros(polls.total) / polls.count.max(1) as f64,
        longest_us: micros(polls.longest),
        count: polls.count,
        place: polls.place,
    }
}

fn from_figures(c: &[u64; 8]) -> IoCounts {
    IoCounts {
        reads: c[0],
        read_bytes: c[1],
        writes: c[2],
        write_bytes: c[3],
        sequential_writes: c[4],
        flushes: c[5],
        discards: c[6],
        discard_bytes: c[7],
    }
}

pub(crate) fn io_counts(counts: &Counts) -> IoCounts {
    from_figures(&figures_of(counts))
}

#[cfg(test)]
mod tests;
