//! Watch: messages of a server when the health of a pool changes, and when it disconnects clients.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_nbd::Counts;
use forebay_pool::Pool;
use forebay_pool::status::Health;
use forebay_units::Nanos;

use crate::explain::{Advice, advice};
use crate::log;

/// Between two messages on clients: a client that keeps coming back does not fill the log.
const CLIENTS_INTERVAL: Nanos = Nanos::from_secs(60);

/// What the last messages said. A pool without a message counts as ONLINE.
#[derive(Default)]
pub struct Watch {
    health: BTreeMap<String, Health>,
    clients: Counts,
    reported_at: Option<Nanos>,
}

impl Watch {
    /// The messages on pools whose health has changed, and whether each is for the worse.
    pub fn pools(&mut self, pools: &[Rc<Pool>]) -> Vec<(log::Level, String)> {
        let named = |name: &String| pools.iter().any(|pool| pool.name() == *name);
        self.health.retain(|name, _| named(name));
        let mut lines = Vec::new();
        for pool in pools {
            let health = pool.summary().health;
            let before = self.health.insert(pool.name(), health).unwrap_or(Health::Online);
            if health != before {
                let level = if health > before { log::Level::Warning } else { log::Level::Notice };
                let advice = advice(&pool.name(), &pool.condition());
                lines.push((level, line(&pool.name(), before, health, &advice)));
            }
        }
        lines
    }

    /// The message on clients that were disconnected since the last one. `max`: the limit of
    /// connections.
    pub fn clients(&mut self, counts: Counts, max: usize, now: Nanos) -> Option<String> {
        if self.reported_at.is_some_and(|at| now < at + CLIENTS_INTERVAL) {
            return None;
        }
        let before = self.clients;
        let mut parts = Vec::new();
        let mut part = |count: u64, why: &str| {
            if count > 0 {
                parts.push(format!("{count} {why}"));
            }
        };
        part(counts.refused - before.refused, &format!("over the limit of {max} connections"));
        part(counts.protocol_errors - before.protocol_errors, "for breaking the protocol");
        part(counts.timed_out - before.timed_out, "for being too slow");
        if parts.is_empty() {
            return None;
        }
        self.clients = counts;
        self.reported_at = Some(now);
        Some(format!("clients were disconnected: {}", parts.join(", ")))
    }
}

/// The message on a pool whose health was `before` and is `now`.
#[must_use]
pub fn line(pool: &str, before: Health, now: Health, advice: &Advice) -> String {
    let mut text = format!("pool '{pool}' went from {} to {}", before.as_str(), now.as_str());
    if !advice.status.is_empty() {
        text.push_str(&format!(": {}", advice.status));
    }
    if now != Health::Online {
        text.push_str(&format!(" 'forebay pool status {pool}' says what to do."));
    }
    text
}
