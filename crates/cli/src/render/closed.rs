//! A pool that cannot be opened, with what its devices say.

use forebay_pool::status::{FoundPool, Health, IoCounts, VdevKind, VdevStatus};
use serde::Serialize;

use super::tree::{device_tree, field};
use crate::escape::visible;
use crate::failure::Failure;
use crate::state::KnownPool;

/// A pool that cannot be opened.
#[derive(Clone, Debug, Serialize)]
pub struct Closed {
    name: String,
    guid: u64,
    state: Health,
    /// Why it cannot be opened.
    error: Failure,
    groups: Vec<VdevStatus>,
    logs: Vec<VdevStatus>,
}

impl Closed {
    /// `found`: what its devices say, if one could be read. `error`: why it cannot be opened.
    #[must_use]
    pub fn new(known: &KnownPool, found: Option<FoundPool>, error: Failure) -> Self {
        let (groups, logs) = match found {
            Some(found) => (found.groups, found.logs),
            None => (known.devices.iter().map(|path| unread(path)).collect(), Vec::new()),
        };
        let (name, guid) = (known.name.clone(), known.guid);
        Self { name, guid, state: Health::Unavail, error, groups, logs }
    }

    /// The lines of its device tree.
    pub fn vdevs_mut(&mut self) -> impl Iterator<Item = &mut VdevStatus> {
        self.groups.iter_mut().chain(&mut self.logs)
    }
}

/// A device that could not be read: its place in the pool is unknown.
fn unread(path: &str) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: VdevKind::Device,
        state: Health::Unavail,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
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
        field("status", &visible(&pool.error.line())),
        // A pool that is not open has no error counts.
        device_tree(&pool.name, pool.state, &pool.groups, &pool.logs, &[], None)
    )
}
