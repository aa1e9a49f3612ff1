//! A pool that cannot be opened, as far as its devices tell of it.

use forebay_pool::status::{FoundPool, Health, IoCounts, VdevStatus};
use serde::Serialize;

use super::tree::{device_tree, field};
use crate::devices::is_locked;
use crate::escape::visible;
use crate::state::KnownPool;

/// What is known of it.
#[derive(Clone, Debug, Serialize)]
pub struct Closed {
    name: String,
    guid: u64,
    state: Health,
    /// Why it cannot be opened, and what to do.
    status: String,
    groups: Vec<VdevStatus>,
    logs: Vec<VdevStatus>,
}

impl Closed {
    /// `found`: what was read on its devices, if anything was.
    #[must_use]
    pub fn new(known: &KnownPool, found: Option<FoundPool>, why: String) -> Self {
        let (groups, logs) = match found {
            Some(found) => (found.groups, found.logs),
            None => (known.devices.iter().map(|path| unread(path)).collect(), Vec::new()),
        };
        let (name, guid) = (known.name.clone(), known.guid);
        Self { name, guid, state: Health::Unavail, status: why, groups, logs }
    }
}

/// A device of which nothing was read: how the pool is made of such is not known.
fn unread(path: &str) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: "device".to_owned(),
        state: Health::Unavail,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: if is_locked(path) { "in use".to_owned() } else { String::new() },
        size_bytes: 0,
        space: None,
        io: IoCounts::default(),
        children: Vec::new(),
    }
}

/// Its part of `pool status`.
#[must_use]
pub fn closed_text(pool: &Closed) -> String {
    format!(
        "  pool: {}\n state: {}\n{}config:\n\n{}",
        pool.name,
        pool.state.as_str(),
        field("status", &visible(&pool.status)),
        // Nothing is in use, so there are no error counts to show.
        device_tree(&pool.name, pool.state, &pool.groups, &pool.logs, None)
    )
}
