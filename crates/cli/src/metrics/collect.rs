//! What a serving process tells of its pools, as metrics. `docs/metrics.md` lists them.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::DramState;
use forebay_nbd::Counts;
use forebay_pool::Pool;
use forebay_pool::status::{
    CacheDeviceStats, Health, IoCounts, LogMemory, PoolStats, PoolStatus, PoolSummary, SpareState,
    Timings, VdevStatus, VolumeStatus,
};
use forebay_units::Nanos;

use super::drives;
use super::exposition::{Exposition, Format};
use super::protobuf::{Histogram, SCHEMA};
use crate::client_classes::Figures;
use crate::drives::{Drive, Drives};

/// Upper bounds of the latency histograms, in microseconds.
const BOUNDS_US: [u64; 20] = [
    50, 100, 150, 200, 300, 500, 750, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 5_000_000, 30_000_000,
];
const STATES: [Health; 6] = [
    Health::Online,
    Health::Degraded,
    Health::Offline,
    Health::Faulted,
    Health::Unavail,
    Health::Suspended,
];
const LOG_MEMORY_STATES: [DramState; 8] = [
    DramState::Disarmed,
    DramState::Armed,
    DramState::Saving,
    DramState::Saved,
    DramState::SaveFailed,
    DramState::Restoring,
    DramState::Restored,
    DramState::Unprotected,
];

/// A pool at one moment.
struct Sample {
    summary: PoolSummary,
    status: PoolStatus,
    stats: PoolStats,
    volumes: Vec<VolumeStatus>,
    latencies: [Timings; 3],
    volume_latencies: Vec<(String, [Timings; 3])>,
    drives: BTreeMap<String, Drive>,
}

impl Sample {
    fn pool(&self) -> &str {
        &self.summary.name
    }
}

/// A device: its pool, its part in it, and its status.
type Device<'a> = (&'a str, &'static str, &'a VdevStatus);

/// The metrics of `pools`, and of the server: how many clients are connected, and what became of
/// others.
#[must_use]
pub fn metrics(
    pools: &[Rc<Pool>],
    drives: &Drives,
    (clients, classes): ((usize, &Counts), &[Figures]),
    format: Format,
) -> Vec<u8> {
    let sample = |pool: &Rc<Pool>| Sample {
        summary: pool.summary(),
        status: pool.status(),
        stats: pool.stats(),
        volumes: pool.volumes(),
        latencies: pool.pulse().latencies,
        volume_latencies: pool.volume_timings(),
        drives: drives.of(&pool.status()),
    };
    let samples: Vec<Sample> = pools.iter().map(sample).collect();
    let mut out = Exposition::new(format);
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    out.gauges("forebay_build_info", "The program; always 1.", [(version, 1.0)]);
    connections(&mut out, clients);
    client_classes(&mut out, classes);
    spaces(&mut out, &samples);
    states(&mut out, &samples);
    traffic(&mut out, &samples);
    latencies(&mut out, &samples);
    memory(&mut out, &samples);
    dedup(&mut out, &samples);
    compression(&mut out, &samples);
    caches(&mut out, &samples);
    volumes(&mut out, &samples);
    devices(&mut out, &samples);
    log_memories(&mut out, &samples);
    super::objects::objects(&mut out, samples.iter().map(|sample| &sample.status));
    let below = samples.iter().flat_map(|sample| {
        sample.drives.iter().map(|(device, drive)| (sample.pool(), device.as_str(), drive))
    });
    drives::drives(&mut out, &below.collect::<Vec<_>>());
    out.finish()
}

/// A family of gauges with one value a pool.
fn of_pools(
    out: &mut Exposition,
    samples: &[Sample],
    name: &str,
    help: &str,
    of: fn(&Sample) -> f64,
) {
    let all = samples.iter().map(|sample| (vec![("pool", sample.pool())], of(sample)));
    out.gauges(name, help, all);
}

fn connections(out: &mut Exposition, (open, counts): (usize, &Counts)) {
    let open = [(vec![], open as f64)];
    out.gauges("forebay_nbd_connections", "Open connections of NBD clients.", open);
    let Counts { accepted, refused, denied, protocol_errors, lost, timed_out, evicted } = *counts;
    let accepted = [(vec![], accepted as f64)];
    out.counters("forebay_nbd_connections_accepted", "Connections accepted.", accepted);
    let reasons = [
        ("refused", refused),
        ("denied", denied.export),
        ("not_encrypted", denied.not_encrypted),
        ("certificate_out_of_time", denied.certificate_out_of_time),
        ("certificate_refused", denied.certificate),
        ("tls_version", denied.tls_version),
        ("tls_ended_by_client", denied.by_client),
        ("protocol_error", protocol_errors),
        ("lost", lost),
        ("timed_out", timed_out),
        ("evicted", evicted),
    ];
    let ended = reasons.map(|(reason, count)| (vec![("reason", reason)], count as f64));
    out.counters("forebay_nbd_connections_broken", "Connections that ended otherwise.", ended);
}

fn spaces(out: &mut Exposition, samples: &[Sample]) {
    let mut each = |name, help, of| of_pools(out, samples, name, help, of);
    each("forebay_pool_size_bytes", "What all volumes may take.", |s| s.summary.size_bytes as f64);
    each("forebay_pool_allocated_bytes", "What volumes have taken.", |s| {
        s.summary.alloc_bytes as f64
    });
    each("forebay_pool_available_bytes", "What no volume has set aside.", |s| {
        s.summary.available_bytes as f64
    });
    each("forebay_pool_raw_size_bytes", "Data devices, parity included.", |s| {
        s.summary.raw_size_bytes as f64
    });
    each("forebay_pool_raw_allocated_bytes", "What volumes have taken, parity included.", |s| {
        s.summary.raw_alloc_bytes as f64
    });
    each("forebay_pool_lost_blocks", "Blocks of 4 KiB that are known to be lost.", |s| {
        s.status.lost_count as f64
    });
    each("forebay_pool_uptime_seconds", "Time since the import.", |s| s.stats.uptime_secs);
    each("forebay_pool_import_duration_seconds", "How long the import took.", |s| {
        s.stats.last_import.seconds
    });
    each("forebay_pool_scrub_start_time_seconds", "When the last scrub began; 0: never.", |s| {
        s.status.scrubbed_at as f64
    });
    each("forebay_pool_scan_errors", "What the last scan could not repair.", |s| {
        s.status.scan.as_ref().map_or(0.0, |scan| scan.errors as f64)
    });
    each("forebay_pool_log_unprotected", "1 if a device of the log fails, or lacks a side.", |s| {
        let is_online = |vdev: &VdevStatus| vdev.state == Health::Online;
        f64::from(u8::from(!s.status.logs.iter().all(is_online)))
    });
}

fn states(out: &mut Exposition, samples: &[Sample]) {
    let all = samples.iter().flat_map(|sample| {
        STATES.map(|state| {
            let is_it = sample.summary.health == state;
            (vec![("pool", sample.pool()), ("state", state.as_str())], f64::from(u8::from(is_it)))
        })
    });
    out.gauges("forebay_pool_state", "1 for the state of the pool, 0 for the others.", all);
}

fn traffic(out: &mut Exposition, samples: &[Sample]) {
    let operations = samples.iter().flat_map(|sample| {
        let t = &sample.stats.since_import;
        let ops = [
            ("read", t.reads),
            ("write", t.writes),
            ("trim", t.trims),
            ("flush", t.flushes),
            ("durable_write", t.fuas),
            ("log_write", t.log_writes),
        ];
        ops.map(|(op, count)| (vec![("pool", sample.pool()), ("op", op)], count))
    });
    let all: Vec<_> = operations.collect();
    let count = all.iter().map(|(labels, count)| (labels.clone(), count.count as f64));
    let help = "Operations of clients since the import; log_write: writes to the log's devices.";
    out.counters("forebay_pool_operations", help, count);
    let bytes = all.iter().map(|(labels, count)| (labels.clone(), count.bytes as f64));
    out.counters("forebay_pool_operation_bytes", "Their bytes.", bytes);
    let media = samples.iter().flat_map(|sample| {
        let m = &sample.stats.since_import.media;
        let causes = [
            ("data", m.data),
            ("parity", m.parity),
            ("metadata", m.metadata),
            ("cleaning", m.cleaning),
            ("padding", m.padding),
            ("repair", m.repair),
            ("log", m.log),
        ];
        causes.map(|(cause, bytes)| (vec![("pool", sample.pool()), ("cause", cause)], bytes as f64))
    });
    let help = "Bytes that went to the devices, by why.";
    out.counters("forebay_pool_media_written_bytes", help, media);
}

/// Operations whose latencies are measured, in the order of the pool.
const MEASURED: [&str; 3] = ["durable_write", "flush", "read"];

/// The buckets of a histogram.
struct Buckets {
    at_most: Vec<u64>,
    count: u64,
    sum: f64,
    native: Vec<(i32, u64)>,
}

impl Buckets {
    fn new(timings: &Timings) -> Self {
        let bounds = BOUNDS_US.map(Nanos::from_micros);
        let per_octave = f64::from(1 << SCHEMA);
        let mut native: Vec<(i32, u64)> = Vec::new();
        for (nanos, count) in &timings.0 {
            // A time stands for those up to a hundredth below it: near a bound, for the lower ones.
            let index = ((*nanos as f64 / 1e9).log2() * per_octave - 0.1).ceil() as i32;
            match native.last_mut() {
                Some((last, sum)) if *last == index => *sum += count,
                _ => native.push((index, *count)),
            }
        }
        let (count, sum) = (timings.count(), timings.sum_secs());
        Self { at_most: timings.at_most(&bounds), count, sum, native }
    }

    fn histogram<'a>(&'a self, bounds: &'a [f64]) -> Histogram<'a> {
        let Self { at_most, count, sum, native } = self;
        Histogram { bounds, at_most, count: *count, sum: *sum, native }
    }
}

fn latencies(out: &mut Exposition, samples: &[Sample]) {
    let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
    let mut pools = Vec::new();
    let mut volumes = Vec::new();
    for sample in samples {
        for (op, timings) in MEASURED.iter().zip(&sample.latencies) {
            pools.push((vec![("pool", sample.pool()), ("op", *op)], Buckets::new(timings)));
        }
        for (volume, latencies) in &sample.volume_latencies {
            for (op, timings) in MEASURED.iter().zip(latencies) {
                let labels = vec![("pool", sample.pool()), ("volume", volume), ("op", *op)];
                volumes.push((labels, Buckets::new(timings)));
            }
        }
    }
    fn each<'a>(
        all: &'a [(Vec<(&'a str, &'a str)>, Buckets)],
        bounds: &'a [f64],
    ) -> impl Iterator<Item = (Vec<(&'a str, &'a str)>, Histogram<'a>)> {
        all.iter().map(|(labels, buckets)| (labels.clone(), buckets.histogram(bounds)))
    }
    let help = "How long operations took since the import, from receipt to the answer.";
    out.histograms("forebay_pool_operation_duration_seconds", help, each(&pools, &bounds));
    let name = "forebay_volume_operation_duration_seconds";
    out.histograms(name, "The same of each volume, to 9 %.", each(&volumes, &bounds));
}

/// What clients did, by the way on which they came.
fn client_classes(out: &mut Exposition, all: &[Figures]) {
    let labels =
        |(class, request, ..): &Figures| vec![("class", class.as_str()), ("op", request.as_str())];
    let bytes = all.iter().map(|figures| (labels(figures), figures.2 as f64));
    let help = "Bytes of client operations since the start of the server, by class of clients.";
    out.counters("forebay_client_operation_bytes", help, bytes);
    let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
    let buckets: Vec<_> =
        all.iter().map(|figures| (labels(figures), Buckets::new(&figures.3))).collect();
    let each = buckets.iter().map(|(labels, of)| (labels.clone(), of.histogram(&bounds)));
    let help = "How long client operations took in the pool, by class of clients.";
    out.histograms("forebay_client_operation_duration_seconds", help, each);
}

fn memory(out: &mut Exposition, samples: &[Sample]) {
    let mut each = |name, help, of| of_pools(out, samples, name, help, of);
    each("forebay_pool_dirty_bytes", "Data that is not in the main store yet.", |s| {
        s.stats.dirty_bytes as f64
    });
    each("forebay_pool_dirty_limit_bytes", "The limit of these.", |s| {
        s.stats.dirty_limit_bytes as f64
    });
    each("forebay_pool_log_used_bytes", "Of the log, what is in use.", |s| {
        s.stats.log_used_bytes as f64
    });
    each("forebay_pool_log_size_bytes", "Size of the log.", |s| s.stats.log_capacity_bytes as f64);
    each("forebay_pool_map_memory_bytes", "Memory of the map.", |s| {
        s.stats.map_memory_bytes as f64
    });
    each("forebay_pool_write_amplification", "Bytes to the main store per byte written.", |s| {
        s.stats.write_amplification
    });
    let segments = samples.iter().flat_map(|sample| {
        let s = &sample.stats.segments;
        [("free", s.free), ("open", s.open), ("full", s.full)]
            .map(|(state, count)| (vec![("pool", sample.pool()), ("state", state)], count as f64))
    });
    out.gauges("forebay_pool_segments", "Segments of the main store.", segments);
}

fn dedup(out: &mut Exposition, samples: &[Sample]) {
    let help = "Blocks of volumes and snapshots that are de-duplicated.";
    of_pools(out, samples, "forebay_dedup_referenced_bytes", help, |s| {
        s.stats.dedup.referenced_bytes as f64
    });
    let help = "De-duplicated contents, each stored once.";
    of_pools(out, samples, "forebay_dedup_stored_bytes", help, |s| {
        s.stats.dedup.stored_bytes as f64
    });
}

fn compression(out: &mut Exposition, samples: &[Sample]) {
    let help = "Blocks of volumes, snapshots and contents that are compressed.";
    of_pools(out, samples, "forebay_compressed_referenced_bytes", help, |s| {
        s.stats.compression.referenced_bytes as f64
    });
    let help = "Packed blocks, which hold compressed ones.";
    of_pools(out, samples, "forebay_compressed_stored_bytes", help, |s| {
        s.stats.compression.stored_bytes as f64
    });
}

fn caches(out: &mut Exposition, samples: &[Sample]) {
    of_pools(out, samples, "forebay_cache_size_bytes", "Blocks in the read cache.", |s| {
        s.stats.cache.used_bytes as f64
    });
    let found = samples.iter().flat_map(|sample| {
        let cache = &sample.stats.cache;
        [("hit", cache.hits), ("miss", cache.misses)].map(|(result, count)| {
            (vec![("pool", sample.pool()), ("result", result)], count as f64)
        })
    });
    let help = "Blocks that were looked up in the read cache in memory.";
    out.counters("forebay_cache_lookups", help, found);
    let each = |of: fn(&CacheDeviceStats) -> u64| -> Vec<(Vec<(&str, &str)>, f64)> {
        let all = samples.iter().flat_map(|sample| {
            sample.stats.cache_devices.iter().map(move |device| {
                let labels = vec![("pool", sample.pool()), ("device", device.name.as_str())];
                (labels, of(device) as f64)
            })
        });
        all.collect()
    };
    let hits = each(|device| device.hits);
    out.counters("forebay_cache_device_hits", "Blocks read from a cache device.", hits);
    let admitted = each(|device| device.admitted);
    out.counters("forebay_cache_device_admitted_blocks", "Blocks put on it.", admitted);
    let used = each(|device| device.used_bytes);
    out.gauges("forebay_cache_device_used_bytes", "Blocks on it.", used);
    let written = each(|device| device.written_bytes);
    let help = "Bytes written to it since it was added.";
    out.counters("forebay_cache_device_written_bytes", help, written);
}

fn volumes(out: &mut Exposition, samples: &[Sample]) {
    let mut each = |name: &str, help: &str, of: fn(&VolumeStatus) -> u64| {
        let all = samples.iter().flat_map(|sample| {
            sample.volumes.iter().map(move |volume| {
                let short = volume.name.rsplit('/').next().unwrap_or(&volume.name);
                (vec![("pool", sample.pool()), ("volume", short)], of(volume) as f64)
            })
        });
        out.gauges(name, help, all);
    };
    each("forebay_volume_size_bytes", "Size that clients see.", |v| v.size_bytes);
    each("forebay_volume_used_bytes", "What its data takes.", |v| v.used_bytes);
    each("forebay_volume_reserved_bytes", "What is set aside for it.", |v| v.reserved_bytes);
}

/// The devices below `vdev`.
fn leaves<'a>(pool: &'a str, part: &'static str, vdev: &'a VdevStatus, all: &mut Vec<Device<'a>>) {
    if vdev.children.is_empty() {
        all.push((pool, part, vdev));
    }
    vdev.children.iter().for_each(|child| leaves(pool, part, child, all));
}

fn labels_of<'a>(device: &Device<'a>) -> Vec<(&'a str, &'a str)> {
    let (pool, part, vdev) = *device;
    vec![("pool", pool), ("device", vdev.name.as_str()), ("part", part)]
}

fn devices(out: &mut Exposition, samples: &[Sample]) {
    let mut all = Vec::new();
    for Sample { status, .. } in samples {
        let parts = [("data", &status.groups), ("log", &status.logs), ("cache", &status.caches)];
        for (part, list) in parts {
            list.iter().for_each(|vdev| leaves(&status.name, part, vdev, &mut all));
        }
    }
    let mut states = Vec::new();
    for device in &all {
        for state in &STATES[..5] {
            let mut labels = labels_of(device);
            labels.push(("state", state.as_str()));
            states.push((labels, f64::from(u8::from(device.2.state == *state))));
        }
    }
    for Sample { status, .. } in samples {
        for spare in &status.spares {
            for state in [SpareState::Avail, SpareState::Unavail] {
                let named = [("device", spare.name.as_str()), ("part", "spare")];
                let mut labels = vec![("pool", status.name.as_str())];
                labels.extend(named);
                labels.push(("state", state.as_str()));
                states.push((labels, f64::from(u8::from(spare.state == state))));
            }
        }
    }
    let help = "1 for the state that the device is in, 0 for the others.";
    out.gauges("forebay_device_state", help, states);
    let mut each = |name, help, of: fn(&IoCounts) -> [(&'static str, u64); 4]| {
        let samples = all.iter().flat_map(|device| {
            of(&device.2.io).into_iter().map(|(op, count)| {
                let mut labels = labels_of(device);
                labels.push(("op", op));
                (labels, count as f64)
            })
        });
        out.counters(name, help, samples.collect::<Vec<_>>());
    };
    each("forebay_device_operations", "Commands to a device since it was opened.", |io| {
        [("read", io.reads), ("write", io.writes), ("flush", io.flushes), ("discard", io.discards)]
    });
    each("forebay_device_operation_bytes", "Their bytes.", |io| {
        let none = 0;
        let (read, write) = (io.read_bytes, io.write_bytes);
        [("read", read), ("write", write), ("flush", none), ("discard", io.discard_bytes)]
    });
    let errors = all.iter().flat_map(|device| {
        let vdev = device.2;
        let kinds = [
            ("read", vdev.read_errors),
            ("write", vdev.write_errors),
            ("checksum", vdev.checksum_errors),
        ];
        kinds.map(|(kind, count)| {
            let mut labels = labels_of(device);
            labels.push(("kind", kind));
            (labels, count as f64)
        })
    });
    let help = "Failed commands and wrong data since the import.";
    out.counters("forebay_device_errors", help, errors.collect::<Vec<_>>());
}

/// A log device in memory, and its labels.
type LogMemoryOf<'a> = (Vec<(&'a str, &'a str)>, &'a LogMemory);

fn log_memory<'a>((pool, _, vdev): Device<'a>) -> Option<LogMemoryOf<'a>> {
    let labels = vec![("pool", pool), ("device", vdev.name.as_str())];
    vdev.memory.as_ref().map(|memory| (labels, memory))
}

/// A sample of 1 or 0 with one more label.
fn flag<'a>(
    (labels, _): &LogMemoryOf<'a>,
    label: (&'a str, &'a str),
    is_so: bool,
) -> (Vec<(&'a str, &'a str)>, f64) {
    let mut labels = labels.clone();
    labels.push(label);
    (labels, f64::from(u8::from(is_so)))
}

fn log_memories(out: &mut Exposition, samples: &[Sample]) {
    let mut sides = Vec::new();
    for Sample { status, .. } in samples {
        status.logs.iter().for_each(|vdev| leaves(&status.name, "log", vdev, &mut sides));
    }
    let all: Vec<LogMemoryOf<'_>> = sides.into_iter().filter_map(log_memory).collect();
    let states = all.iter().flat_map(|of| {
        LOG_MEMORY_STATES.map(|state| {
            let state = state.as_str();
            flag(of, ("state", state), of.1.state == state)
        })
    });
    let help = "1 for the state of a log device in memory, 0 for the others.";
    out.gauges("forebay_log_memory_state", help, states);
    let outlives = all.iter().flat_map(|of| {
        let survives = &of.1.survives;
        let events = [
            ("process_crash", survives.process_crash),
            ("kernel_crash", survives.kernel_crash),
            ("power_loss", survives.power_loss),
            ("host_loss", survives.host_loss),
        ];
        events.map(|(event, is_survived)| flag(of, ("event", event), is_survived))
    });
    let help = "1 if what the log device in memory holds outlives such an event now.";
    out.gauges("forebay_log_memory_survives", help, outlives);
    let unsaved = all.iter().map(|of| (of.0.clone(), of.1.unsaved_bytes as f64));
    out.gauges("forebay_log_memory_unsaved_bytes", "Bytes that only the memory has.", unsaved);
    let save = all.iter().map(|of| (of.0.clone(), of.1.save_secs as f64));
    let help = "How long a save of the whole memory takes.";
    out.gauges("forebay_log_memory_save_seconds", help, save);
    let runtime = all.iter().filter_map(|of| Some((of.0.clone(), of.1.runtime_secs? as f64)));
    let help = "For how long the power supply says that it holds.";
    out.gauges("forebay_log_memory_runtime_seconds", help, runtime);
}
