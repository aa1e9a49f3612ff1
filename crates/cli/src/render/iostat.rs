//! `pool iostat`: what happened between two samples.

use forebay_pool::status::{CacheStats, IoCounts, VdevStatus};
use forebay_units::BLOCK_BYTES;
use serde::Serialize;

use super::json::document;
use super::numbers::count;
use crate::control::Sample;
use crate::escape::visible;

/// One line: a pool, a group, a device, the cache in memory, or a heading such as `logs`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IostatRow {
    /// Name.
    pub name: String,
    /// Depth in the tree; 0 for a pool.
    pub depth: usize,
    /// Bytes in use; pools, groups and log devices only.
    pub alloc_bytes: Option<u64>,
    /// Bytes free; likewise.
    pub free_bytes: Option<u64>,
    /// Reads a second.
    pub reads_per_sec: f64,
    /// Writes a second.
    pub writes_per_sec: f64,
    /// Bytes read a second.
    pub read_bytes_per_sec: f64,
    /// Bytes written a second.
    pub write_bytes_per_sec: f64,
}

/// Rows for a pool over the time from `before` (`None`: from import) to `after`.
#[must_use]
pub fn iostat_rows(before: Option<&Sample>, after: &Sample, verbose: bool) -> Vec<IostatRow> {
    let same_import = |b: &&Sample| b.uptime_secs <= after.uptime_secs;
    let before = before.filter(same_import);
    let span_secs = (after.uptime_secs - before.map_or(0.0, |b| b.uptime_secs)).max(1e-3);
    let old = |list: fn(&Sample) -> &Vec<VdevStatus>| before.map(list);
    let mut rows = Vec::new();
    let mut total = IoCounts::default();
    for (heading, list) in sections() {
        let now = list(after);
        if let Some(heading) = heading.filter(|_| !now.is_empty()) {
            rows.push(row(heading.to_owned(), 0, IoCounts::default(), span_secs));
        }
        for vdev in now {
            let earlier = old(list).and_then(|l| l.iter().find(|v| v.name == vdev.name));
            let io = vdev_rows(earlier, vdev, 1, span_secs, &mut rows);
            add(&mut total, &io);
        }
    }
    let has_memory = after.cache.size_bytes > 0;
    if has_memory || !after.status.caches.is_empty() {
        rows.push(row("cache".to_owned(), 0, IoCounts::default(), span_secs));
    }
    if has_memory {
        rows.push(cache_row(before.map(|b| &b.cache), &after.cache, span_secs));
    }
    // As in zpool, what goes to and from cache devices is not the pool's.
    for vdev in &after.status.caches {
        let earlier = before.and_then(|b| b.status.caches.iter().find(|v| v.name == vdev.name));
        vdev_rows(earlier, vdev, 1, span_secs, &mut rows);
    }
    let mut pool = row(after.status.name.clone(), 0, total, span_secs);
    pool.alloc_bytes = Some(after.summary.raw_alloc_bytes);
    pool.free_bytes = Some(after.summary.raw_free_bytes);
    if !verbose {
        return vec![pool];
    }
    rows.insert(0, pool);
    rows
}

/// The read cache in memory: its reads are blocks that were found, its writes those that were kept.
fn cache_row(before: Option<&CacheStats>, after: &CacheStats, span_secs: f64) -> IostatRow {
    let io = |cache: &CacheStats| IoCounts {
        reads: cache.hits,
        read_bytes: cache.hits * BLOCK_BYTES,
        writes: cache.kept,
        write_bytes: cache.kept * BLOCK_BYTES,
        ..IoCounts::default()
    };
    let io = difference(before.map(io).as_ref(), &io(after));
    let mut row = row("memory".to_owned(), 1, io, span_secs);
    row.alloc_bytes = Some(after.used_bytes);
    row.free_bytes = Some(after.limit_bytes.saturating_sub(after.used_bytes));
    row
}

type ListOf = fn(&Sample) -> &Vec<VdevStatus>;

fn sections() -> [(Option<&'static str>, ListOf); 2] {
    [(None, |s| &s.status.groups), (Some("logs"), |s| &s.status.logs)]
}

/// Pushes the rows of `after` and what is below it; gives back its I/O since `before`.
fn vdev_rows(
    before: Option<&VdevStatus>,
    after: &VdevStatus,
    depth: usize,
    span_secs: f64,
    rows: &mut Vec<IostatRow>,
) -> IoCounts {
    let at = rows.len();
    rows.push(row(visible(&after.name), depth, IoCounts::default(), span_secs));
    let mut io = IoCounts::default();
    if after.children.is_empty() {
        io = difference(before.map(|b| &b.io), &after.io);
    }
    for child in &after.children {
        let earlier = before.and_then(|b| b.children.iter().find(|c| c.name == child.name));
        add(&mut io, &vdev_rows(earlier, child, depth + 1, span_secs, rows));
    }
    rows[at] = row(visible(&after.name), depth, io, span_secs);
    if let Some(space) = after.space {
        if let Some(alloc_bytes) = space.raw_alloc_bytes {
            rows[at].alloc_bytes = Some(alloc_bytes);
            rows[at].free_bytes = Some(space.raw_size_bytes.saturating_sub(alloc_bytes));
        }
    }
    io
}

fn difference(before: Option<&IoCounts>, after: &IoCounts) -> IoCounts {
    let zero = IoCounts::default();
    let b = before.unwrap_or(&zero);
    IoCounts {
        reads: after.reads.saturating_sub(b.reads),
        read_bytes: after.read_bytes.saturating_sub(b.read_bytes),
        writes: after.writes.saturating_sub(b.writes),
        write_bytes: after.write_bytes.saturating_sub(b.write_bytes),
        ..zero
    }
}

fn add(total: &mut IoCounts, io: &IoCounts) {
    total.reads += io.reads;
    total.read_bytes += io.read_bytes;
    total.writes += io.writes;
    total.write_bytes += io.write_bytes;
}

fn row(name: String, depth: usize, io: IoCounts, span_secs: f64) -> IostatRow {
    IostatRow {
        name,
        depth,
        alloc_bytes: None,
        free_bytes: None,
        reads_per_sec: io.reads as f64 / span_secs,
        writes_per_sec: io.writes as f64 / span_secs,
        read_bytes_per_sec: io.read_bytes as f64 / span_secs,
        write_bytes_per_sec: io.write_bytes as f64 / span_secs,
    }
}

fn name_width(rows: &[IostatRow]) -> usize {
    rows.iter().map(|r| 2 * r.depth + r.name.chars().count()).max().unwrap_or(0).max(10)
}

/// The three lines above the first report.
#[must_use]
pub fn iostat_header(rows: &[IostatRow]) -> String {
    let width = name_width(rows);
    format!(
        "{:width$}     capacity     operations     bandwidth\n\
         {:<width$}  alloc   free   read  write   read  write\n\
         {:-<width$}  -----  -----  -----  -----  -----  -----\n",
        "", "pool", ""
    )
}

/// The lines of one report.
#[must_use]
pub fn iostat_text(rows: &[IostatRow], scripted: bool, exact: bool) -> String {
    let width = name_width(rows);
    let mut text = String::new();
    for row in rows {
        let space = |v: Option<u64>| v.map_or_else(|| "-".to_owned(), |v| count(v, exact));
        let rate = |v: f64| count(v.round() as u64, exact);
        let rates = [
            row.reads_per_sec,
            row.writes_per_sec,
            row.read_bytes_per_sec,
            row.write_bytes_per_sec,
        ];
        let heading = row.depth == 0 && row.alloc_bytes.is_none();
        let mut cells = vec![space(row.alloc_bytes), space(row.free_bytes)];
        cells.extend(rates.map(|v| if heading { "-".to_owned() } else { rate(v) }));
        if scripted {
            text.push_str(&format!("{}\t{}\n", row.name, cells.join("\t")));
        } else {
            let name = format!("{}{}", "  ".repeat(row.depth), row.name);
            let cells: Vec<String> = cells.iter().map(|c| format!("{c:>5}")).collect();
            text.push_str(&format!("{name:<width$}  {}\n", cells.join("  ")));
        }
    }
    text
}

/// One JSON document for one report over all pools.
#[must_use]
pub fn iostat_json(rows: &[IostatRow]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        rows: &'a [IostatRow],
    }
    document("pool iostat", Body { rows })
}
