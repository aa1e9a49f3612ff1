//! Tables and JSON of `forebay trace`.

mod page;
mod summary;

use forebay_trace::{Bucket, MissCount, Names, PatternRow, Rules, SeekGroup};
use serde::Serialize;

use super::json::document;
use super::numbers::bytes;
use super::table::{Column, Table};
use crate::clock::{dtrace_time, time_of_day};
use crate::escape::visible;

pub use page::{TraceDigest, TraceRows, trace_experiments, trace_names};
pub use summary::{summary_json, summary_text};

/// What was read, for the head of each JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct TraceHead {
    /// The path that was given.
    pub source: String,
    /// The format's name.
    pub format: &'static str,
    /// Where requests were counted.
    pub stage: &'static str,
    /// Events that were read, of every stage and device.
    pub events: u64,
    /// Whether the trace was read to its end.
    pub complete: bool,
    /// What was wrong with the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// The heading of `iopattern` or `biopattern`.
#[must_use]
pub fn iopattern_heading(rules: Rules, has_time: bool) -> String {
    match rules {
        Rules::Dtrace => {
            let time = if has_time { format!("{:<20} ", "TIME") } else { String::new() };
            format!(
                "{time}{:>4} {:>4} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}\n",
                "%RAN", "%SEQ", "COUNT", "MIN", "MAX", "AVG", "KR", "KW"
            )
        }
        Rules::Bcc => format!(
            "{:<9} {:<7} {:>5} {:>5} {:>8} {:>10}\n",
            "TIME", "DISK", "%RND", "%SEQ", "COUNT", "KBYTES"
        ),
    }
}

/// A line of `iopattern` or `biopattern`. Times are those of the interval's end.
#[must_use]
pub fn iopattern_line(row: &PatternRow, rules: Rules, has_time: bool, names: &Names) -> String {
    let (random, sequential) = (row.random_pct(rules), row.sequential_pct(rules));
    let wall_secs = names.wall_zero().map(|zero| zero.saturating_add(row.end.0) / 1_000_000_000);
    let secs = row.end.0 / 1_000_000_000;
    match rules {
        Rules::Dtrace => {
            let time = wall_secs.map_or_else(|| format!("+{secs}"), dtrace_time);
            let time = if has_time { format!("{time:<20} ") } else { String::new() };
            let (kr, kw) = (row.read_bytes / 1024, row.written_bytes / 1024);
            format!(
                "{time}{random:>4} {sequential:>4} {:>6} {:>6} {:>6} {:>6} {kr:>6} {kw:>6}\n",
                row.count,
                row.min_bytes,
                row.max_bytes,
                row.avg_bytes()
            )
        }
        Rules::Bcc => {
            let time = wall_secs.map_or_else(
                || format!("{:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60),
                time_of_day,
            );
            let disk = row.device.map_or("all", |device| names.device_name(device));
            let kib = (row.read_bytes + row.written_bytes) / 1024;
            let disk = visible(disk);
            format!("{time:<9} {disk:<7} {random:>5} {sequential:>5} {:>8} {kib:>10}\n", row.count)
        }
    }
}

/// All lines of a run, for JSON.
pub struct PatternReport<'a> {
    /// Whose rules.
    pub rules: Rules,
    /// Whether flushes count.
    pub counts_flushes: bool,
    /// The lines.
    pub rows: &'a [PatternRow],
    /// Names of devices.
    pub names: &'a Names,
}

#[derive(Serialize)]
struct PatternRowJson<'a> {
    start_ns: u64,
    end_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    random_pct: u64,
    sequential_pct: u64,
    count: u64,
    random: u64,
    min_bytes: u64,
    max_bytes: u64,
    avg_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    discards: u64,
    flushes_and_empty: u64,
}

/// JSON of `trace iopattern`.
#[must_use]
pub fn pattern_json(head: &TraceHead, report: &PatternReport<'_>) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: &'a TraceHead,
        rules: Rules,
        counts_flushes: bool,
        intervals: Vec<PatternRowJson<'a>>,
    }
    let row = |row: &PatternRow| PatternRowJson {
        start_ns: row.start.0,
        end_ns: row.end.0,
        device: row.device.map(|device| report.names.device_name(device)),
        random_pct: row.random_pct(report.rules),
        sequential_pct: row.sequential_pct(report.rules),
        count: row.count,
        random: row.random,
        min_bytes: row.min_bytes,
        max_bytes: row.max_bytes,
        avg_bytes: row.avg_bytes(),
        read_bytes: row.read_bytes,
        written_bytes: row.written_bytes,
        discards: row.discards,
        flushes_and_empty: row.empty,
    };
    let intervals = report.rows.iter().map(row).collect();
    let (rules, counts_flushes) = (report.rules, report.counts_flushes);
    document("trace iopattern", Body { head, rules, counts_flushes, intervals })
}

/// Histograms of seeks.
pub struct SeekReport<'a> {
    /// Whose rules.
    pub rules: Rules,
    /// Whether seeks backwards are negative.
    pub is_signed: bool,
    /// All together.
    pub total: Vec<Bucket>,
    /// Each thread or device; empty when only the total is wanted.
    pub groups: Vec<SeekGroup>,
    /// Names of threads and devices.
    pub names: &'a Names,
}

/// Text of `trace seeksize`, as DTrace prints an aggregation.
#[must_use]
pub fn seek_text(report: &SeekReport<'_>) -> String {
    if report.total.is_empty() {
        return "no seeks: no request follows another\n".to_owned();
    }
    if report.groups.is_empty() {
        return quantize(&report.total);
    }
    let mut text = match report.rules {
        Rules::Dtrace => format!("\n{:>8}  {}\n", "PID", "CMD"),
        Rules::Bcc => String::new(),
    };
    for group in &report.groups {
        if let Some(pid) = group.pid {
            let name = visible(report.names.process_name(pid).unwrap_or("-"));
            text.push_str(&format!("{pid:>8}  {name}\n"));
        }
        if let Some(device) = group.device {
            text.push_str(&format!("{:>8}  {}\n", "DISK", report.names.device_name(device)));
        }
        text.push_str(&quantize(&group.buckets));
        text.push('\n');
    }
    text
}

/// A histogram as DTrace's `quantize()` prints it: an empty row on either side, and bars of 40.
fn quantize(buckets: &[Bucket]) -> String {
    const BAR: u64 = 40;
    let mut text = format!(
        "\n{:>16} {:>41} {:<9}\n",
        "value", "------------- Distribution -------------", "count"
    );
    let all: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return text };
    let before = Bucket { sectors: lower(first.sectors), count: 0 };
    let after = Bucket { sectors: -lower(-last.sectors), count: 0 };
    for bucket in std::iter::once(&before).chain(buckets).chain(std::iter::once(&after)) {
        // Half a mark is one, as libdtrace rounds.
        let marks = (u128::from(bucket.count) * u128::from(BAR) * 2 + u128::from(all))
            .checked_div(u128::from(all) * 2);
        let bar = "@".repeat(marks.unwrap_or(0) as usize);
        let (value, count) = (bucket.sectors, bucket.count);
        text.push_str(&format!("{value:>16} |{bar:<40} {count:<9}\n"));
    }
    text
}

/// The bucket below `sectors`.
fn lower(sectors: i64) -> i64 {
    match sectors {
        0 => -1,
        1 => 0,
        above if above > 0 => above / 2,
        below => below.saturating_mul(2),
    }
}

#[derive(Serialize)]
struct BucketJson {
    sectors: i64,
    count: u64,
}

fn buckets_json(buckets: &[Bucket]) -> Vec<BucketJson> {
    buckets.iter().map(|b| BucketJson { sectors: b.sectors, count: b.count }).collect()
}

/// JSON of `trace seeksize`.
#[must_use]
pub fn seek_json(head: &TraceHead, report: &SeekReport<'_>) -> String {
    #[derive(Serialize)]
    struct Group<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        command: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<&'a str>,
        buckets: Vec<BucketJson>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: &'a TraceHead,
        rules: Rules,
        signed: bool,
        total: Vec<BucketJson>,
        groups: Vec<Group<'a>>,
    }
    let names = report.names;
    let group = |group: &SeekGroup| Group {
        pid: group.pid,
        command: group.pid.and_then(|pid| names.process_name(pid)),
        device: group.device.map(|device| names.device_name(device)),
        buckets: buckets_json(&group.buckets),
    };
    let groups = report.groups.iter().map(group).collect();
    let (rules, signed) = (report.rules, report.is_signed);
    document(
        "trace seeksize",
        Body { head, rules, signed, total: buckets_json(&report.total), groups },
    )
}

/// Misses of caches.
pub struct CacheReport {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Whether writes were left out.
    pub reads_only: bool,
    /// Accesses.
    pub accesses: u64,
    /// Distinct blocks.
    pub footprint_blocks: u64,
    /// Each policy at each size.
    pub misses: Vec<MissCount>,
}

fn ratio(misses: u64, accesses: u64) -> f64 {
    if accesses == 0 { 0.0 } else { misses as f64 / accesses as f64 }
}

/// Text of `trace cache`: a row a size, a column a policy.
#[must_use]
pub fn cache_text(report: &CacheReport) -> String {
    let scope = if report.reads_only { "reads" } else { "reads and writes" };
    let mut text = format!(
        "{} accesses of {} by {scope}, {} distinct blocks ({}); share of accesses that miss:\n",
        report.accesses,
        bytes(report.block_bytes, false),
        report.footprint_blocks,
        bytes(report.footprint_blocks.saturating_mul(report.block_bytes), false),
    );
    let mut sizes: Vec<u64> = Vec::new();
    for miss in &report.misses {
        if !sizes.contains(&miss.capacity_blocks) {
            sizes.push(miss.capacity_blocks);
        }
    }
    let mut policies = Vec::new();
    for miss in &report.misses {
        if !policies.contains(&miss.policy) {
            policies.push(miss.policy);
        }
    }
    let mut columns = vec![Column::right("BLOCKS"), Column::right("SIZE")];
    columns.extend(policies.iter().map(|policy| Column::right(&policy.name().to_uppercase())));
    let mut table = Table::new(&columns);
    for size in sizes {
        let mut row = vec![size.to_string(), bytes(size.saturating_mul(report.block_bytes), false)];
        for policy in &policies {
            let found = report
                .misses
                .iter()
                .find(|miss| miss.policy == *policy && miss.capacity_blocks == size);
            let cell = found.map(|miss| format!("{:.4}", ratio(miss.misses, report.accesses)));
            row.push(cell.unwrap_or_default());
        }
        table.push(row);
    }
    text.push_str(&table.render(false));
    text
}

/// JSON of `trace cache`.
#[must_use]
pub fn cache_json(head: &TraceHead, report: &CacheReport) -> String {
    #[derive(Serialize)]
    struct Miss {
        #[serde(flatten)]
        count: MissCount,
        miss_ratio: f64,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: &'a TraceHead,
        block_bytes: u64,
        reads_only: bool,
        accesses: u64,
        footprint_blocks: u64,
        caches: Vec<Miss>,
    }
    let miss = |count: &MissCount| Miss {
        count: *count,
        miss_ratio: ratio(count.misses, report.accesses),
    };
    let body = Body {
        head,
        block_bytes: report.block_bytes,
        reads_only: report.reads_only,
        accesses: report.accesses,
        footprint_blocks: report.footprint_blocks,
        caches: report.misses.iter().map(miss).collect(),
    };
    document("trace cache", body)
}

/// A share in percent with one decimal.
fn share(part: u64, whole: u64) -> String {
    format!("{:.1}%", 100.0 * ratio(part, whole))
}

#[cfg(test)]
mod tests;
