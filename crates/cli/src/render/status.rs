//! `pool status`.

use std::collections::BTreeMap;

use forebay_pool::status::{
    LogMemory, PoolStatus, ScanKind, ScanPhase, ScanStatus, StoreCost, VdevStatus,
};
use serde::Serialize;

use super::closed::Closed;
use super::json::document;
use super::numbers::bytes;
use super::tree::{device_tree, field};
use crate::clock::{duration, local_time};
use crate::control::StatusReport;
use crate::drives::Drive;
use crate::escape::visible;
use crate::explain::reserve_line;
use crate::wear_forecast::Forecast;

/// A pool that could be opened.
#[derive(Clone, Debug, Serialize)]
pub struct OpenPool {
    /// What the pool reports.
    #[serde(flatten)]
    pub status: StatusReport,
    /// The id of the process that serves it.
    pub server_pid: Option<u32>,
}

/// The JSON of `pool status`.
#[must_use]
pub fn status_json(pools: &[OpenPool], unavailable: &[Closed]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: &'a [OpenPool],
        unavailable: &'a [Closed],
    }
    document("pool status", Body { pools, unavailable })
}

/// The text for one pool. `verbose` lists the lost blocks.
#[must_use]
pub fn status_text(pool: &OpenPool, exact: bool, verbose: bool) -> String {
    let served = match pool.server_pid {
        Some(pid) => format!("by process {pid}"),
        None => "no".to_owned(),
    };
    let StatusReport { pool, advice, drives } = &pool.status;
    let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.state.as_str());
    text.push_str(&format!("served: {served}\n"));
    if !advice.status.is_empty() {
        text.push_str(&field("status", &advice.status));
    }
    if !advice.action.is_empty() {
        text.push_str(&field("action", &advice.action));
    }
    if let Some(scan) = &pool.scan {
        text.push_str(&scan_text(scan));
    }
    text.push_str("config:\n\n");
    let errors_shown = Some(exact);
    let PoolStatus { name, state, groups, logs, caches, .. } = pool;
    text.push_str(&device_tree(name, *state, groups, logs, caches, errors_shown));
    text.push_str(&spares(pool));
    logs.iter().for_each(|log| text.push_str(&log_memory(log)));
    groups.iter().for_each(|group| text.push_str(&objects(group)));
    text.push_str(&store(pool, verbose));
    if verbose {
        text.push_str(&drive_lines(drives));
    }
    text.push('\n');
    text.push_str(&errors(pool, verbose));
    text
}

/// The drives below the devices, a line for each.
fn drive_lines(drives: &BTreeMap<String, Drive>) -> String {
    let mut disks: BTreeMap<&str, &Drive> = BTreeMap::new();
    disks.extend(drives.values().map(|drive| (drive.disk.as_str(), drive)));
    if disks.is_empty() {
        return String::new();
    }
    let mut text = "\ndrives:\n\n".to_owned();
    for (disk, drive) in disks {
        let paths = drives.iter().filter(|(path, of)| of.disk == disk && path.as_str() != disk);
        let paths: Vec<String> = paths.map(|(path, _)| visible(path).to_string()).collect();
        let below = match paths.is_empty() {
            true => String::new(),
            false => format!(" ({})", paths.join(", ")),
        };
        text.push_str(&format!("\t{}{below}\n\t  {}\n", visible(disk), drive_line(drive)));
    }
    text
}

fn drive_line(drive: &Drive) -> String {
    let Some(health) = &drive.health else {
        return format!("health is not known: {}", visible(&drive.unknown));
    };
    let count = |name: &str, count: Option<u64>| count.map(|count| format!("{count} {name}"));
    let warning = health.critical_warning.filter(|bits| *bits > 0);
    let parts = [
        warning.map(|bits| format!("WARNS OF A FAILURE (0x{bits:02x})")),
        health.temperature_c.map(|degrees| format!("{degrees:.0} °C")),
        health.used_percent.map(|used| format!("{used:.0}% of its rated life used")),
        drive.years_left.map(|years| format!("worn out in {years:.1} years at this rate")),
        drive.forecast.as_ref().and_then(model_words),
        health.spare_percent.map(|left| format!("{left:.0}% of spare blocks left")),
        health.host_written.map(|all| format!("{} written", bytes(all.bytes as u64, false))),
        count("media errors", health.media_errors),
        count("unsafe shutdowns", health.unsafe_shutdowns),
        count("hours", health.power_on_hours),
    ];
    let known: Vec<String> = parts.into_iter().flatten().collect();
    match known.is_empty() {
        true => "it counts nothing that is known here".to_owned(),
        false => known.join(", "),
    }
}

/// What the flash model says beside the drive's own counter.
fn model_words(forecast: &Forecast) -> Option<String> {
    let model = forecast.model.as_ref()?;
    let a_day = bytes(forecast.bytes_per_day as u64, false);
    let over = match forecast.measured_hours {
        Some(hours) => format!("of the last {hours:.0} hours"),
        None => "of its life".to_owned(),
    };
    let counted =
        forecast.years_by_counter.map(|years| format!("{years:.1} years by its counter, "));
    Some(format!(
        "at {a_day} a day ({over}): {}{:.1} years by the flash model of {}",
        counted.unwrap_or_default(),
        model.years_by_cycles,
        model.device,
    ))
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

/// The `scan:` lines alone.
#[must_use]
pub fn scan_text(scan: &ScanStatus) -> String {
    format!("  scan: {}\n", scan_lines(scan).join("\n        "))
}

fn scan_lines(scan: &ScanStatus) -> Vec<String> {
    let kind = scan.kind.as_str();
    let repaired = if scan.kind == ScanKind::Scrub { "repaired" } else { "resilvered" };
    let since = local_time(scan.started_at);
    let ended = local_time(scan.started_at + scan.elapsed_secs);
    let done = bytes(scan.done_bytes, false);
    let total = bytes(scan.total_bytes, false);
    match scan.state {
        ScanPhase::InProgress => {
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
        ScanPhase::Paused => vec![
            format!("{kind} paused, begun on {since}"),
            format!("{done} scanned, {total} total"),
            format!("{} {repaired}", bytes(scan.repaired_bytes, false)),
        ],
        ScanPhase::Completed => {
            let did = if scan.kind == ScanKind::Scrub { "scrub repaired" } else { "resilvered" };
            vec![format!(
                "{did} {} in {} with {} errors on {ended}",
                bytes(scan.repaired_bytes, false),
                duration(scan.elapsed_secs),
                scan.errors,
            )]
        }
        ScanPhase::Stopped => vec![format!("{kind} stopped on {ended}")],
    }
}

/// What a log device in memory, or the sides of a mirror that are, outlive now.
fn log_memory(vdev: &VdevStatus) -> String {
    let mut text = String::new();
    if let Some(memory) = &vdev.memory {
        text.push_str(&format!("\n\tlog memory of {}: {}\n", visible(&vdev.name), memory.state));
        let lines = [Some(protection(memory)), memory.reason.clone().map(visible_owned)];
        let survives = &memory.survives;
        let cases = [
            ("process crash", survives.process_crash),
            ("kernel crash", survives.kernel_crash),
            ("power loss", survives.power_loss),
            ("loss of the host", survives.host_loss),
        ];
        let cases = cases.map(|(name, is_survived)| {
            format!("{name} {}", if is_survived { "yes" } else { "NO" })
        });
        let survives = format!("survives: {}", cases.join(", "));
        for line in lines.into_iter().flatten().chain([survives]) {
            text.push_str(&format!("\t  {line}\n"));
        }
    }
    vdev.children.iter().for_each(|child| text.push_str(&log_memory(child)));
    text
}

/// What devices in object stores have there, and what was asked of the stores.
fn objects(vdev: &VdevStatus) -> String {
    let mut text = String::new();
    if let Some(o) = &vdev.objects {
        let (stored, put, got) =
            (bytes(o.stored_bytes, false), bytes(o.put_bytes, false), bytes(o.got_bytes, false));
        text.push_str(&format!(
            "\n\tobjects of {}: {}, {stored}\n",
            visible(&vdev.name),
            o.objects
        ));
        let requests = format!(
            "{} puts ({put}), {} gets ({got}), {} listings, {} deleted, {} made again",
            o.puts, o.gets, o.lists, o.deletes, o.retries
        );
        text.push_str(&format!("\t  requests since it was opened: {requests}\n"));
        if o.waiting_bytes > 0 {
            text.push_str(&format!("\t  {} wait to be stored\n", bytes(o.waiting_bytes, false)));
        }
    }
    vdev.children.iter().for_each(|child| text.push_str(&objects(child)));
    text
}

/// How long the pool does without its object store, and with `verbose` what the store costs.
fn store(pool: &PoolStatus, verbose: bool) -> String {
    let mut text = String::new();
    if let Some(reserve) = &pool.outage_reserve {
        let lasts = reserve_line(reserve).unwrap_or_else(|| "without an end".to_owned());
        let rate = |free: u64, rate: u64| {
            format!("{} free, {}/s written", bytes(free, false), bytes(rate, false))
        };
        let log = rate(reserve.log_free_bytes, reserve.log_bytes_per_sec);
        let memory = rate(reserve.memory_free_bytes, reserve.write_bytes_per_sec);
        text.push_str(&format!("\n\twithout the store writes go on {lasts}\n"));
        text.push_str(&format!("\t  log: {log}; memory: {memory}\n"));
    }
    if let (Some(store), true) = (&pool.store, verbose) {
        let StoreCost { requests, egress, stored_a_month } = store.cost;
        text.push_str(&format!(
            "\n\tcost by store_prices: {requests:.4} for requests and {egress:.4} for reads since \
             it was opened, {stored_a_month:.4} a month for what is stored\n"
        ));
    }
    text
}

fn visible_owned(text: String) -> String {
    visible(&text).to_string()
}

/// What protects a log device in memory, and what a save would be.
fn protection(memory: &LogMemory) -> String {
    let mut parts = Vec::new();
    if let Some(ups) = &memory.ups {
        let status = memory.ups_status.as_deref().unwrap_or("no answer");
        let holds = match memory.runtime_secs {
            Some(secs) => format!(", holds {}", duration(secs)),
            None => String::new(),
        };
        parts.push(format!("power {}: {}{holds}", visible(ups), visible(status)));
    }
    if memory.has_backup {
        let unsaved = bytes(memory.unsaved_bytes, false);
        parts.push(format!("{unsaved} not saved, a save takes {} s", memory.save_secs));
    }
    if memory.is_mirrored {
        parts.push("mirrored".to_owned());
    }
    parts.push(format!("in {}", visible(&memory.path)));
    parts.join("; ")
}

/// The spares, below the tree of devices.
fn spares(pool: &PoolStatus) -> String {
    if pool.spares.is_empty() {
        return String::new();
    }
    let width = pool.spares.iter().map(|spare| spare.name.chars().count()).max().unwrap_or(0);
    let mut text = "\tspares\n".to_owned();
    for spare in &pool.spares {
        let name = visible(&spare.name);
        text.push_str(&format!("\t  {name:<width$}  {}\n", spare.state.as_str()));
    }
    text
}
