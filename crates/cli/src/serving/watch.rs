//! Notices when a pool is less well than it was, or well again, and when clients are sent away, and
//! says so: servers mostly run where nobody looks at a live line.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_nbd::Counts;
use forebay_pool::Pool;
use forebay_pool::status::{Health, PoolStatus};
use forebay_units::Nanos;

/// Between two lines on clients: one that comes again and again shall not fill the server's log.
const CLIENTS_EVERY: Nanos = Nanos::from_secs(60);

/// What was said of each pool last. A pool that was never seen counts as well.
#[derive(Default)]
pub struct Watch {
    said: BTreeMap<String, Health>,
    clients: Counts,
    clients_said_at: Option<Nanos>,
}

impl Watch {
    /// The lines to say now.
    pub fn look(&mut self, pools: &[Rc<Pool>]) -> Vec<String> {
        let named = |name: &String| pools.iter().any(|pool| pool.name() == *name);
        self.said.retain(|name, _| named(name));
        let mut lines = Vec::new();
        for pool in pools {
            let health = pool.summary().health;
            let before = self.said.insert(pool.name(), health).unwrap_or(Health::Online);
            if health != before {
                lines.push(line(before, &pool.status()));
            }
        }
        lines
    }
}

impl Watch {
    /// The line to say of clients that were sent away since the last one; `most` is how many
    /// connections a server takes.
    pub fn clients(&mut self, counts: Counts, most: usize, now: Nanos) -> Option<String> {
        if self.clients_said_at.is_some_and(|at| now < at + CLIENTS_EVERY) {
            return None;
        }
        let before = self.clients;
        let mut parts = Vec::new();
        let mut part = |count: u64, why: &str| {
            if count > 0 {
                parts.push(format!("{count} {why}"));
            }
        };
        part(
            counts.refused - before.refused,
            &format!("for a server takes {most} connections at a time"),
        );
        part(counts.protocol_errors - before.protocol_errors, "for breaking the protocol");
        part(counts.timed_out - before.timed_out, "for being too slow");
        if parts.is_empty() {
            return None;
        }
        self.clients = counts;
        self.clients_said_at = Some(now);
        Some(format!("clients were sent away: {}", parts.join(", ")))
    }
}

/// What is said of a pool whose health was `before`.
#[must_use]
pub fn line(before: Health, now: &PoolStatus) -> String {
    let mut text =
        format!("pool '{}' went from {} to {}", now.name, before.as_str(), now.state.as_str());
    if !now.status.is_empty() {
        text.push_str(&format!(": {}", now.status));
    }
    if now.state != Health::Online {
        text.push_str(&format!(" 'forebay pool status {}' says what to do.", now.name));
    }
    text
}
