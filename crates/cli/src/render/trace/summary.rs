//! Text and JSON of `forebay trace summary`.

use forebay_trace::{Names, OpSummary, Percentiles, Summary};
use serde::Serialize;

use super::{TraceHead, document, share};
use crate::escape::visible;
use crate::render::numbers::bytes;
use crate::render::table::{Column, Table};

/// Devices that the text lists.
const MAX_DEVICES: usize = 16;

/// Text of `trace summary`.
#[must_use]
pub fn summary_text(head: &TraceHead, got: &Summary, names: &Names, has_times: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<12} {value}\n"));
    let stage = match head.stage {
        "request" => "one record a request".to_owned(),
        stage => format!("requests count at {stage}"),
    };
    line("trace", format!("{}, {}, {stage}", visible(&head.source), head.format));
    line("requests", requests(got, has_times));
    for (name, op) in each_op(got).into_iter().filter(|(_, op)| op.count > 0) {
        line(name, operation(op));
    }
    let placed = got.start_sector_mod_8.iter().sum::<u64>();
    if placed > 0 {
        line("pattern", pattern(got));
        line("alignment", alignment(got, placed));
    }
    if got.immediate_repeats > 0 {
        let repeats = share(got.immediate_repeats, got.records);
        line("repeats", format!("{repeats} of the requests repeat the one before"));
    }
    if got.fua + got.preflush > 0 {
        line("barriers", format!("{} FUA, {} with a flush in front", got.fua, got.preflush));
    }
    if got.time_goes_back > 0 {
        line("clock", format!("{} records are older than the one before", got.time_goes_back));
    }
    if got.device_records.len() > 1 {
        line("devices", devices(got, names));
    }
    text.push_str(&distributions(got, has_times));
    text.push_str(&sizes(got));
    text
}

fn each_op(got: &Summary) -> [(&'static str, &OpSummary); 5] {
    [
        ("reads", &got.read),
        ("writes", &got.write),
        ("discards", &got.discard),
        ("flushes", &got.flush),
        ("others", &got.other),
    ]
}

fn requests(got: &Summary, has_times: bool) -> String {
    let count = got.records;
    if !has_times || got.span_ns == 0 {
        return format!("{count}");
    }
    let secs = got.span_ns as f64 / 1e9;
    format!("{count} in {secs:.3} s, {:.1} a second", count as f64 / secs)
}

fn operation(op: &OpSummary) -> String {
    if op.bytes == 0 {
        return op.count.to_string();
    }
    let filled: u64 = op.sizes.iter().sum();
    let mean = op.bytes.checked_div(filled).unwrap_or(0);
    let empty = match op.count - filled {
        0 => String::new(),
        count => format!(", {count} of them empty"),
    };
    let of = |value| bytes(value, false);
    let (all, min, max) = (of(op.bytes), of(op.min_bytes), of(op.max_bytes));
    format!("{}{empty}, {all}; {min} to {max}, {} on average", op.count, of(mean))
}

fn pattern(got: &Summary) -> String {
    let of = |part| share(part, got.pairs);
    let far = got.pairs - got.sequential - got.small_forward_gaps - got.backward;
    format!(
        "{} sequential, {} after a forward gap below 128K, {} further forward, {} backward",
        of(got.sequential),
        of(got.small_forward_gaps),
        of(far),
        of(got.backward)
    )
}

fn alignment(got: &Summary, placed: u64) -> String {
    let whole = share(placed - got.unaligned_4k.min(placed), placed);
    let usual = (0..8).max_by_key(|at| (got.start_sector_mod_8[*at], 8 - *at)).unwrap_or(0);
    let usual_share = share(got.start_sector_mod_8[usual], placed);
    format!("{whole} in whole blocks of 4K; {usual_share} begin at sector {usual} of a block")
}

fn devices(got: &Summary, names: &Names) -> String {
    let mut each: Vec<(u64, &str)> = names
        .devices()
        .iter()
        .zip(&got.device_records)
        .map(|(name, count)| (*count, name.as_str()))
        .collect();
    each.sort_by(|a, b| b.cmp(a));
    let shown = each.iter().take(MAX_DEVICES).map(|(n, name)| format!("{} {n}", visible(name)));
    let more = match each.len().saturating_sub(MAX_DEVICES) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
}

/// Nanoseconds as people read them.
fn span(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0}ns"),
        _ if ns < 1e6 => format!("{:.1}us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.2}s", ns / 1e9),
    }
}

fn distributions(got: &Summary, has_times: bool) -> String {
    let titles = ["", "COUNT", "MIN", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"];
    let columns: Vec<Column> = titles
        .iter()
        .map(|title| if title.is_empty() { Column::left(title) } else { Column::right(title) })
        .collect();
    let mut table = Table::new(&columns);
    let mut rows = 0;
    let mut row = |name: &str, values: &Option<Percentiles>, is_time: bool| {
        let Some(v) = values else { return };
        let of = |value: f64| if is_time { span(value) } else { format!("{value:.0}") };
        let mean = if is_time { span(v.mean) } else { format!("{:.1}", v.mean) };
        let mut cells = vec![name.to_owned(), v.count.to_string(), of(v.min as f64), mean];
        cells.extend([v.p50, v.p90, v.p99, v.p999, v.max].map(|value| of(value as f64)));
        table.push(cells);
        rows += 1;
    };
    if has_times {
        row("between requests", &got.interarrival_ns, true);
        row("between flushes", &got.flush_gap_ns, true);
    }
    row("writes between flushes", &got.writes_per_flush, false);
    row("latency of reads", &got.read.latency_ns, true);
    row("latency of writes", &got.write.latency_ns, true);
    row("latency of flushes", &got.flush.latency_ns, true);
    row("latency of discards", &got.discard.latency_ns, true);
    row("under way", &got.queue_depth, false);
    if rows == 0 { String::new() } else { format!("\n{}", table.render(false)) }
}

fn sizes(got: &Summary) -> String {
    let ops = [("READS", &got.read), ("WRITES", &got.write), ("DISCARDS", &got.discard)];
    let shown: Vec<_> = ops.into_iter().filter(|(_, op)| op.bytes > 0).collect();
    let is_filled = |at: &usize| shown.iter().any(|(_, op)| op.sizes[*at] > 0);
    let (Some(first), Some(last)) = ((0..64).find(is_filled), (0..64).rev().find(is_filled)) else {
        return String::new();
    };
    let mut columns = vec![Column::right("SIZE FROM")];
    columns.extend(shown.iter().map(|(title, _)| Column::right(title)));
    let mut table = Table::new(&columns);
    for at in first..=last {
        let mut cells = vec![bytes(1 << at, false)];
        cells.extend(shown.iter().map(|(_, op)| op.sizes[at].to_string()));
        table.push(cells);
    }
    format!("\n{}", table.render(false))
}

/// JSON of `trace summary`.
#[must_use]
pub fn summary_json(head: &TraceHead, got: &Summary, names: &Names) -> String {
    #[derive(Serialize)]
    struct Device<'a> {
        name: &'a str,
        records: u64,
    }
    #[derive(Serialize)]
    struct Size {
        from_bytes: u64,
        reads: u64,
        writes: u64,
        discards: u64,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(flatten)]
        head: &'a TraceHead,
        summary: &'a Summary,
        devices: Vec<Device<'a>>,
        sizes: Vec<Size>,
    }
    let records = |at: usize| got.device_records.get(at).copied().unwrap_or(0);
    let device = |(at, name)| Device { name, records: records(at) };
    let size = |at: usize| Size {
        from_bytes: 1 << at,
        reads: got.read.sizes[at],
        writes: got.write.sizes[at],
        discards: got.discard.sizes[at],
    };
    let is_filled = |size: &Size| size.reads + size.writes + size.discards > 0;
    let body = Body {
        head,
        summary: got,
        devices: names.devices().iter().map(String::as_str).enumerate().map(device).collect(),
        sizes: (0..64).map(size).filter(is_filled).collect(),
    };
    document("trace summary", body)
}
