//! `pool status`.

use forebay_pool::status::{Health, PoolStatus, ScanStatus, VdevStatus};
use serde::Serialize;

use super::{Closed, bytes, count, document, duration, local_time, visible};

/// The JSON of `pool status`.
#[must_use]
pub fn status_json(pools: &[PoolStatus], unavailable: &[Closed]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: &'a [PoolStatus],
        unavailable: &'a [Closed],
    }
    document("pool status", Body { pools, unavailable })
}

/// The text for one pool. `verbose` lists what is lost.
#[must_use]
pub fn status_text(pool: &PoolStatus, exact: bool, verbose: bool) -> String {
    let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.state.as_str());
    if !pool.status.is_empty() {
        text.push_str(&field("status", &pool.status));
    }
    if !pool.action.is_empty() {
        text.push_str(&field("action", &pool.action));
    }
    if let Some(scan) = &pool.scan {
        text.push_str(&scan_text(scan));
    }
    text.push_str("config:\n\n");
    let errors_shown = Some(exact);
    text.push_str(&device_tree(&pool.name, pool.state, &pool.groups, &pool.logs, errors_shown));
    text.push('\n');
    text.push_str(&errors(pool, verbose));
    text
}

fn errors(pool: &PoolStatus, verbose: bool) -> String {
    if pool.lost_count == 0 {
        return "errors: No known data errors\n".to_owned();
    }
    if !verbose {
        return format!(
            "errors: {} data errors, use 'forebay pool status -v {}' for a list\n",
            pool.lost_count, pool.name
        );
    }
    let mut text = "errors: Permanent errors have been detected at:\n\n".to_owned();
    for place in &pool.lost {
        text.push_str(&format!("        {place}\n"));
    }
    let more = pool.lost_count.saturating_sub(pool.lost.len() as u64);
    if more > 0 {
        text.push_str(&format!("        and {more} more\n"));
    }
    text
}

/// The tree of names and states, each line after a tab; with error counts (exact or not) and a
/// header when `errors_shown` is given.
#[must_use]
pub fn device_tree(
    pool: &str,
    state: Health,
    groups: &[VdevStatus],
    logs: &[VdevStatus],
    errors_shown: Option<bool>,
) -> String {
    let mut lines = Vec::new();
    let sum = |f: fn(&VdevStatus) -> u64| groups.iter().chain(logs).map(f).sum::<u64>();
    let errors = [sum(|v| v.read_errors), sum(|v| v.write_errors), sum(|v| v.checksum_errors)];
    lines.push(Line::new(pool.to_owned(), state, errors, ""));
    for group in groups {
        tree_lines(group, 1, &mut lines);
    }
    if !logs.is_empty() {
        lines.push(Line { name: "logs".to_owned(), rest: None, note: String::new() });
        for log in logs {
            tree_lines(log, 1, &mut lines);
        }
    }
    let width = lines.iter().map(|l| l.name.chars().count()).max().unwrap_or(0).max(10);
    let cells = |name: &str, state: &str, counts: [String; 3]| match errors_shown {
        Some(_) => {
            let [r, w, c] = counts;
            format!("{name:<width$}  {state:<8} {r:>5} {w:>5} {c:>5}")
        }
        None => format!("{name:<width$}  {state:<8}"),
    };
    let mut text = String::new();
    if errors_shown.is_some() {
        let titles = ["READ", "WRITE", "CKSUM"].map(str::to_owned);
        text.push_str(&format!("\t{}\n", cells("NAME", "STATE", titles)));
    }
    for line in lines {
        let row = match line.rest {
            None => line.name,
            Some((state, errors)) => {
                let counts = errors.map(|e| count(e, errors_shown.unwrap_or(false)));
                format!("{}  {}", cells(&line.name, state.as_str(), counts), line.note)
            }
        };
        text.push_str(&format!("\t{}\n", row.trim_end()));
    }
    text
}

struct Line {
    name: String,
    rest: Option<(Health, [u64; 3])>,
    note: String,
}

impl Line {
    fn new(name: String, state: Health, errors: [u64; 3], note: &str) -> Self {
        let note = if note.is_empty() { String::new() } else { format!("({note})") };
        Self { name, rest: Some((state, errors)), note }
    }
}

fn tree_lines(vdev: &VdevStatus, depth: usize, lines: &mut Vec<Line>) {
    // A log on one device is a mirror of one side: show the device, as zpool does.
    if let ("mirror", [only]) = (vdev.kind.as_str(), &vdev.children[..]) {
        return tree_lines(only, depth, lines);
    }
    let errors = [vdev.read_errors, vdev.write_errors, vdev.checksum_errors];
    let name = format!("{}{}", "  ".repeat(depth), visible(&vdev.name));
    lines.push(Line::new(name, vdev.state, errors, &vdev.note));
    for child in &vdev.children {
        tree_lines(child, depth + 1, lines);
    }
}

/// The `scan:` lines alone.
#[must_use]
pub fn scan_text(scan: &ScanStatus) -> String {
    format!("  scan: {}\n", scan_lines(scan).join("\n        "))
}

fn scan_lines(scan: &ScanStatus) -> Vec<String> {
    let kind = &scan.kind;
    let repaired = if kind == "scrub" { "repaired" } else { "resilvered" };
    let since = local_time(scan.started_at);
    let ended = local_time(scan.started_at + scan.elapsed_secs);
    let done = bytes(scan.done_bytes, false);
    let total = bytes(scan.total_bytes, false);
    match scan.state.as_str() {
        "in progress" => {
            let rate = scan.done_bytes / scan.elapsed_secs.max(1);
            let share = if scan.total_bytes == 0 {
                100.0
            } else {
                scan.done_bytes as f64 * 100.0 / scan.total_bytes as f64
            };
            let left = scan.total_bytes.saturating_sub(scan.done_bytes);
            let to_go = match left.checked_div(rate) {
                Some(secs) => format!("{} to go", duration(secs)),
                None => "no estimated completion time".to_owned(),
            };
            vec![
                format!("{kind} in progress since {since}"),
                format!("{done} scanned at {}/s, {total} total", bytes(rate, false)),
                format!(
                    "{} {repaired}, {share:.2}% done, {to_go}",
                    bytes(scan.repaired_bytes, false)
                ),
            ]
        }
        "paused" => vec![
            format!("{kind} paused, begun on {since}"),
            format!("{done} scanned, {total} total"),
            format!("{} {repaired}", bytes(scan.repaired_bytes, false)),
        ],
        "completed" => {
            let did = if kind == "scrub" { "scrub repaired" } else { "resilvered" };
            vec![format!(
                "{did} {} in {} with {} errors on {ended}",
                bytes(scan.repaired_bytes, false),
                duration(scan.elapsed_secs),
                scan.errors,
            )]
        }
        other => vec![format!("{kind} {other} on {ended}")],
    }
}

/// `title: text`, wrapped to 80 columns under the text's first word.
pub(super) fn field(title: &str, text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the start");
        if !last.is_empty() && last.len() + 1 + word.len() > 70 {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    format!("{title}: {}\n", lines.join("\n\t"))
}
