//! `pool stats`.

use std::collections::BTreeMap;
use std::fmt::Write;

use forebay_pool::status::{
    CacheDeviceStats, CacheStats, CompressionStats, DedupStats, Latency, OpCount, PoolStats,
    Traffic,
};
use serde::Serialize;

use super::json::document;
use super::numbers::{bytes, count};
use super::table::{Column, Table};
use crate::clock::duration;
use crate::escape::visible;

/// The JSON of `pool stats`.
#[must_use]
pub fn stats_json(pools: &[Box<PoolStats>]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: Vec<Entry<'a>>,
    }
    #[derive(Serialize)]
    struct Entry<'a> {
        #[serde(flatten)]
        stats: &'a PoolStats,
        per_host_byte: BTreeMap<&'static str, Shares>,
    }
    let pools = pools.iter().map(|stats| {
        let PoolStats { since_import, since_creation, .. } = &**stats;
        let shares = [("since_import", since_import), ("since_creation", since_creation)];
        let per_host_byte = shares.map(|(span, traffic)| (span, Shares::of(traffic))).into();
        Entry { stats, per_host_byte }
    });
    let pools = pools.collect();
    document("pool stats", Body { pools })
}

/// Bytes written to the media for each byte that hosts wrote, by cause, and other ratios.
#[derive(Serialize)]
struct Shares {
    /// All causes but the log, as in `write_amplification`.
    main_store: f64,
    #[serde(flatten)]
    causes: BTreeMap<&'static str, f64>,
    /// The share of log writes that began where the last one ended, 0 to 1.
    log_sequential_share: f64,
}

impl Shares {
    fn of(traffic: &Traffic) -> Self {
        let ratio = |part: u64, whole: u64| match whole {
            0 => 0.0,
            _ => part as f64 / whole as f64,
        };
        let each = |bytes: u64| ratio(bytes, traffic.writes.bytes);
        let m = traffic.media;
        Self {
            main_store: each(m.data + m.parity + m.metadata + m.cleaning + m.padding),
            causes: CAUSES.iter().map(|(name, of)| (*name, each(of(traffic)))).collect(),
            log_sequential_share: ratio(traffic.log_sequential_writes, traffic.log_writes.count),
        }
    }
}

/// The causes of bytes on the media.
const CAUSES: [Named<u64>; 7] = [
    ("data", |t| t.media.data),
    ("parity", |t| t.media.parity),
    ("metadata", |t| t.media.metadata),
    ("cleaning", |t| t.media.cleaning),
    ("padding", |t| t.media.padding),
    ("repair", |t| t.media.repair),
    ("log", |t| t.media.log),
];

/// The text for one pool.
#[must_use]
pub fn stats_text(stats: &PoolStats, exact: bool) -> String {
    let mut text = format!(
        "pool {}, imported {} ago\n\n",
        stats.name,
        duration(stats.uptime_secs.max(0.0) as u64)
    );
    text.push_str(&traffic_table(&stats.since_import, &stats.since_creation, exact));
    text.push('\n');
    text.push_str(&space_lines(stats, exact));
    text.push_str(&import_lines(stats, exact));
    text.push('\n');
    text.push_str(&latency_table(stats, exact));
    text.push('\n');
    text.push_str(&device_table(stats, exact));
    text
}

/// `pool stats --polls`: what kept all other work of a pool's server waiting.
#[must_use]
pub fn polls_text(stats: &PoolStats) -> String {
    if stats.long_polls.is_empty() {
        return format!("pool {}: no task has kept the others waiting for 500 us\n", stats.name);
    }
    let mut table = Table::new(&[
        Column::left("TASK STARTED AT"),
        Column::right("POLLS"),
        Column::right("MEAN"),
        Column::right("LONGEST"),
    ]);
    for polls in &stats.long_polls {
        let micros = |us: f64| format!("{us:.0} us");
        let (mean, longest) = (micros(polls.mean_us), micros(polls.longest_us));
        table.push(vec![polls.place.clone(), polls.count.to_string(), mean, longest]);
    }
    let title = "polls of 500 us or more since the server's start";
    format!("pool {}: {title}\n\n{}", stats.name, table.render(false))
}

/// Amplification, segments, log and memory.
fn space_lines(stats: &PoolStats, exact: bool) -> String {
    let mut text = String::new();
    let amplification = |ratio: f64| match stats.since_import.writes.bytes {
        0 => "-".to_owned(),
        _ => format!("{ratio:.3}"),
    };
    let _ = writeln!(
        text,
        "write amplification  {} since import ({} with the log)",
        amplification(stats.write_amplification),
        amplification(stats.write_amplification_with_log)
    );
    let s = &stats.segments;
    let _ = writeln!(
        text,
        "segments             {} free, {} open, {} full ({:.1}% live), {} cleaned; {} each",
        s.free,
        s.open,
        s.full,
        s.live_share * 100.0,
        s.cleaned,
        bytes(s.segment_bytes, exact)
    );
    let _ = writeln!(
        text,
        "dirty                {} of {}",
        bytes(stats.dirty_bytes, exact),
        bytes(stats.dirty_limit_bytes, exact)
    );
    let _ = writeln!(
        text,
        "log                  {} of {}, {} sequential",
        bytes(stats.log_used_bytes, exact),
        bytes(stats.log_capacity_bytes, exact),
        // Rounded down: only a log without a single seek shows 100%.
        floor_share(stats.since_import.log_sequential_writes, stats.since_import.log_writes.count)
    );
    let _ = writeln!(text, "map in memory        {}", bytes(stats.map_memory_bytes, exact));
    text.push_str(&dedup_lines(&stats.dedup, exact));
    text.push_str(&compression_lines(&stats.compression, exact));
    text.push_str(&cache_lines(&stats.cache, exact));
    stats.cache_devices.iter().for_each(|d| text.push_str(&cache_device_lines(d, exact)));
    let _ = writeln!(text, "footers in memory    {}", bytes(stats.footer_cache_bytes, exact));
    text
}

/// Compression: what it saves, and what it takes. Nothing where no block was ever compressed.
fn compression_lines(stats: &CompressionStats, exact: bool) -> String {
    let CompressionStats { referenced_bytes: all, stored_bytes: stored, .. } = *stats;
    if stored == 0 && stats.packed_blocks + stats.plain_blocks == 0 {
        return String::new();
    }
    let ratio = if stored == 0 { 1.0 } else { all as f64 / stored as f64 };
    format!(
        "compression          {} in {} ({ratio:.2}x), {} saved; {} blocks smaller since import, {} \
         not\n  \
         in gaps            {}; {} packed blocks repacked since import\n  \
         in memory          {}\n",
        bytes(all, exact),
        bytes(stored, exact),
        bytes(all.saturating_sub(stored), exact),
        count(stats.packed_blocks, exact),
        count(stats.plain_blocks, exact),
        bytes(stats.gap_bytes, exact),
        count(stats.repacked_blocks, exact),
        bytes(stats.memory_bytes, exact),
    )
}

/// De-duplication: what it saves, and what it takes. Nothing where no content was ever shared.
fn dedup_lines(dedup: &DedupStats, exact: bool) -> String {
    if dedup.stored_bytes == 0 && dedup.new_blocks == 0 {
        return String::new();
    }
    let ratio = dedup.referenced_bytes as f64 / dedup.stored_bytes.max(1) as f64;
    let index = match dedup.index_one_in {
        0 | 1 => "all fingerprints".to_owned(),
        one_in => format!("one in {one_in} fingerprints"),
    };
    format!(
        "de-duplication       {} in {} ({ratio:.2}x); {} blocks found since import, {} new\n  \
         in memory          {}: {} entries, {index}\n",
        bytes(dedup.referenced_bytes, exact),
        bytes(dedup.stored_bytes, exact),
        count(dedup.found_blocks, exact),
        count(dedup.new_blocks, exact),
        bytes(dedup.memory_bytes, exact),
        count(dedup.index_entries, exact),
    )
}

/// The read cache, and what it was good for.
fn cache_lines(cache: &CacheStats, exact: bool) -> String {
    if cache.size_bytes == 0 {
        return "read cache           off\n".to_owned();
    }
    let short = match cache.limit_bytes < cache.size_bytes {
        true => format!(" (at most {} for now)", bytes(cache.limit_bytes, exact)),
        false => String::new(),
    };
    let mut text = format!(
        "read cache           {} of {}{short}, {}\n",
        bytes(cache.used_bytes, exact),
        bytes(cache.size_bytes, exact),
        cache.policy
    );
    let _ = writeln!(
        text,
        "  blocks asked for   {} found ({}), {} missed, {} of these left a short time before",
        count(cache.hits, exact),
        share(cache.hits, cache.hits + cache.misses),
        count(cache.misses, exact),
        count(cache.ghost_hits, exact)
    );
    let _ = writeln!(
        text,
        "  blocks read ahead  {}, {} of these for nothing",
        count(cache.read_ahead, exact),
        count(cache.read_ahead_unused, exact)
    );
    text
}

/// A cache device, and what it was good for.
fn cache_device_lines(device: &CacheDeviceStats, exact: bool) -> String {
    let mut text = format!(
        "cache device         {}: {} of {}, index in memory {}\n",
        visible(&device.name),
        bytes(device.used_bytes, exact),
        bytes(device.size_bytes, exact),
        bytes(device.memory_bytes, exact),
    );
    let _ = writeln!(
        text,
        "  blocks             {} read from it, {} put on it, {} there since before the import",
        count(device.hits, exact),
        count(device.admitted, exact),
        count(device.loaded, exact),
    );
    let _ = writeln!(
        text,
        "  blocks left out    {} while it was busy, {} by cache_dwpd; {} reads were slow",
        count(device.refused_busy, exact),
        count(device.refused_budget, exact),
        count(device.slow_reads, exact),
    );
    let _ = writeln!(
        text,
        "  written to it      {} in all: {:.2} drive writes, {:.2} a day",
        bytes(device.written_bytes, exact),
        device.drive_writes,
        device.drive_writes_per_day,
    );
    text
}

/// What the last import did.
fn import_lines(stats: &PoolStats, exact: bool) -> String {
    let import = &stats.last_import;
    let mut text = format!(
        "last import          {:.3} s, of it {:.3} s replay: {} records, {} of log, {} of map\n",
        import.seconds,
        import.replay_seconds,
        count(import.log_records, exact),
        bytes(import.log_bytes, exact),
        bytes(import.map_bytes, exact)
    );
    for remark in &import.remarks {
        let _ = writeln!(text, "                     {remark}");
    }
    text
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", part as f64 * 100.0 / whole as f64) }
}

fn per_byte(bytes: u64, host_bytes: u64) -> String {
    match host_bytes {
        0 => "-".to_owned(),
        host => format!("{:.3}", bytes as f64 / host as f64),
    }
}

fn floor_share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let hundredths = (u128::from(part) * 10_000 / u128::from(whole)) as f64;
    format!("{:.2}%", hundredths / 100.0)
}

/// A figure of [`Traffic`] and its title.
type Named<T> = (&'static str, fn(&Traffic) -> T);

fn traffic_table(import: &Traffic, ever: &Traffic, exact: bool) -> String {
    let mut table = Table::new(&[
        Column::left("HOST"),
        Column::right("COUNT"),
        Column::right("BYTES"),
        Column::right("COUNT EVER"),
        Column::right("BYTES EVER"),
    ]);
    let ops: [Named<OpCount>; 6] = [
        ("reads", |t| t.reads),
        ("writes", |t| t.writes),
        ("  with FUA", |t| t.fuas),
        ("trims", |t| t.trims),
        ("flushes", |t| t.flushes),
        ("log writes", |t| t.log_writes),
    ];
    for (name, of) in ops {
        let (now, all) = (of(import), of(ever));
        let mut row = vec![name.to_owned()];
        for ops in [now, all] {
            row.push(count(ops.count, exact));
            row.push(bytes(ops.bytes, exact));
        }
        table.push(row);
    }
    let mut text = table.render(false);
    text.push('\n');
    text.push_str(&media_table(import, ever, exact));
    text
}

fn media_table(import: &Traffic, ever: &Traffic, exact: bool) -> String {
    let mut table = Table::new(&[
        Column::left("MEDIA"),
        Column::right("BYTES"),
        Column::right("SHARE"),
        Column::right("PER HOST BYTE"),
        Column::right("BYTES EVER"),
    ]);
    let total: u64 = CAUSES.iter().map(|(_, of)| of(import)).sum();
    for (name, of) in CAUSES {
        let now = of(import);
        table.push(vec![
            name.to_owned(),
            bytes(now, exact),
            share(now, total),
            per_byte(now, import.writes.bytes),
            bytes(of(ever), exact),
        ]);
    }
    table.render(false)
}

fn latency_table(stats: &PoolStats, exact: bool) -> String {
    let mut table = Table::new(&[
        Column::left("LATENCY, us"),
        Column::right("COUNT"),
        Column::right("MEAN"),
        Column::right("P50"),
        Column::right("P90"),
        Column::right("P99"),
        Column::right("P99.9"),
        Column::right("P99.99"),
        Column::right("MAX"),
    ]);
    let kinds: [(&str, &Latency); 3] = [
        ("FUA writes", &stats.fua_latency),
        ("flushes", &stats.flush_latency),
        ("reads", &stats.read_latency),
    ];
    for (name, l) in kinds {
        let mut row = vec![name.to_owned(), count(l.count, exact)];
        for us in [l.mean_us, l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us] {
            row.push(if l.count == 0 { "-".to_owned() } else { format!("{us:.0}") });
        }
        table.push(row);
    }
    table.render(false)
}

fn device_table(stats: &PoolStats, exact: bool) -> String {
    let mut table = Table::new(&[
        Column::left("DEVICE"),
        Column::right("READS"),
        Column::right("BYTES"),
        Column::right("WRITES"),
        Column::right("BYTES"),
        Column::right("SEQ"),
        Column::right("FLUSHES"),
        Column::right("DISCARDS"),
        Column::right("BYTES"),
    ]);
    for (name, io) in &stats.devices {
        table.push(vec![
            name.clone(),
            count(io.reads, exact),
            bytes(io.read_bytes, exact),
            count(io.writes, exact),
            bytes(io.write_bytes, exact),
            share(io.sequential_writes, io.writes),
            count(io.flushes, exact),
            count(io.discards, exact),
            bytes(io.discard_bytes, exact),
        ]);
    }
    table.render(false)
}
