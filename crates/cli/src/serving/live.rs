//! Live line: health and rates of the pools of a server, once a second.

use std::collections::BTreeMap;

use forebay_pool::status::{Health, PoolStats, PoolSummary};

use crate::pools::PoolSet;
use crate::render::{bytes, count};

/// The counters at the previous line.
pub struct Live {
    before: BTreeMap<String, PoolStats>,
}

/// One pool at one moment.
struct Moment {
    /// Health and space.
    summary: PoolSummary,
    /// Counters.
    stats: PoolStats,
}

impl Live {
    /// No previous line.
    #[must_use]
    pub fn new() -> Self {
        Self { before: BTreeMap::new() }
    }

    /// The line for now.
    pub fn next(&mut self, set: &PoolSet, connections: usize, width: usize) -> String {
        let now: Vec<Moment> = set
            .pools()
            .iter()
            .map(|pool| Moment { summary: pool.summary(), stats: pool.stats() })
            .collect();
        let line = live_line(&now, &self.before, connections, width);
        self.before = now.into_iter().map(|m| (m.stats.name.clone(), m.stats)).collect();
        line
    }
}

/// Rates since `before`, summed over the pools, in a line of at most `width` columns. The last
/// parts are left out first.
fn live_line(
    now: &[Moment],
    before: &BTreeMap<String, PoolStats>,
    connections: usize,
    width: usize,
) -> String {
    if now.is_empty() {
        return "no pools: waiting for one to be created or imported".to_owned();
    }
    let worst = now.iter().map(|m| m.summary.health).max().unwrap_or(Health::Online);
    let (mut reads, mut writes, mut flushes) = (0.0, 0.0, 0.0);
    let (mut read_bytes, mut write_bytes) = (0.0, 0.0);
    let (mut dirty, mut log, mut log_capacity, mut free) = (0, 0, 0, 0);
    for Moment { summary, stats } in now {
        let old = before.get(&stats.name).filter(|old| old.uptime_secs < stats.uptime_secs);
        let span_secs = stats.uptime_secs - old.map_or(0.0, |o| o.uptime_secs);
        let rate = |now: u64, old: Option<u64>| {
            now.saturating_sub(old.unwrap_or(0)) as f64 / span_secs.max(1e-3)
        };
        let (new, old) = (&stats.since_import, old.map(|o| &o.since_import));
        reads += rate(new.reads.count, old.map(|o| o.reads.count));
        writes += rate(new.writes.count, old.map(|o| o.writes.count));
        flushes += rate(new.flushes.count, old.map(|o| o.flushes.count));
        read_bytes += rate(new.reads.bytes, old.map(|o| o.reads.bytes));
        write_bytes += rate(new.writes.bytes, old.map(|o| o.writes.bytes));
        dirty += stats.dirty_bytes;
        log += stats.log_used_bytes;
        log_capacity += stats.log_capacity_bytes;
        free += summary.free_bytes;
    }
    let number = |v: f64| count(v.round() as u64, false);
    let size = |v: f64| bytes(v.round() as u64, false);
    let log_share = (log * 100).checked_div(log_capacity).unwrap_or(0);
    let parts = [
        worst.as_str().to_owned(),
        format!("{connections} client{}", if connections == 1 { "" } else { "s" }),
        format!("write {}/s {}/s", number(writes), size(write_bytes)),
        format!("read {}/s {}/s", number(reads), size(read_bytes)),
        format!("log {log_share}%"),
        format!("free {}", bytes(free, false)),
        format!("flush {}/s", number(flushes)),
        format!("dirty {}", bytes(dirty, false)),
    ];
    fitting(&parts, width)
}

/// The first parts, as many as fit into one line.
pub(super) fn fitting(parts: &[String], width: usize) -> String {
    const BETWEEN: &str = " | ";
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { BETWEEN };
        if line.len() + between.len() + part.len() > width {
            break;
        }
        line.push_str(between);
        line.push_str(part);
    }
    line
}
