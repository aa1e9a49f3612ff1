//! Watch: messages of a server when the health of a pool changes, and when it disconnects clients.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_nbd::{Account, Offenses};
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
    clients_reported_at: Option<Nanos>,
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

    /// The message on clients that were disconnected since the last one, by account. `offenses` is
    /// called when a message is due. `max`: the limit of connections.
    pub fn clients(
        &mut self,
        offenses: impl FnOnce() -> BTreeMap<Account, Offenses>,
        max: usize,
        now: Nanos,
    ) -> Option<String> {
        if self.clients_reported_at.is_some_and(|at| now < at + CLIENTS_INTERVAL) {
            return None;
        }
        let offenses = offenses();
        let lines: Vec<String> = offenses
            .iter()
            .map(|(account, offenses)| format!("{account}: {}", reasons(offenses, max)))
            .collect();
        if lines.is_empty() {
            return None;
        }
        self.clients_reported_at = Some(now);
        Some(format!("clients were disconnected: {}", lines.join("; ")))
    }
}

/// Why clients of one account were disconnected, with the number of connections for each reason.
fn reasons(offenses: &Offenses, max: usize) -> String {
    let denied = &offenses.denied;
    let reasons = [
        (offenses.refused, format!("over its share of {max} connections")),
        (denied.export, "for an export that does not exist or is not theirs".to_owned()),
        (denied.not_encrypted, "without TLS".to_owned()),
        (
            denied.certificate_out_of_time,
            "with a certificate that has expired or is not valid yet".to_owned(),
        ),
        (denied.certificate, "without a certificate that --tls-ca accepts".to_owned()),
        (denied.tls_version, "without a version or cipher of TLS 1.3".to_owned()),
        (denied.by_client, "that ended TLS (do they trust the server's certificate?)".to_owned()),
        (offenses.protocol_errors, "for breaking the protocol".to_owned()),
        (offenses.timed_out, "for being too slow".to_owned()),
        (offenses.evicted, "for holding memory that others waited for".to_owned()),
        (offenses.lost, "whose connection broke off in the middle of a message".to_owned()),
    ];
    let given = reasons.iter().filter(|(count, _)| *count > 0);
    given.map(|(count, why)| format!("{count} {why}")).collect::<Vec<_>>().join(", ")
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
