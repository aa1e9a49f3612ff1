//! Changes of volumes since their snapshots, as NBD clients ask for them: dirty bitmaps.

use std::cell::RefCell;
use std::collections::BTreeMap;

use forebay_nbd::{BitmapRun, Bitmaps};
use forebay_pool::ChangedRun;
use forebay_units::VolumeId;

use super::OpenPools;

/// What a volume or snapshot has changed since each older snapshot, by the name of that one.
pub(super) struct ChangesOf {
    pools: OpenPools,
    /// The pool's name: a pool that was suspended goes on as another one.
    pool: String,
    /// `VOL` or `VOL@SNAP`.
    version: String,
    /// The snapshots that the client has asked about: a later one of the same name is another.
    known: RefCell<BTreeMap<String, VolumeId>>,
}

impl ChangesOf {
    /// Those of `version` (`VOL` or `VOL@SNAP`) of the pool `pool` of `pools`.
    pub(super) fn new(pools: OpenPools, pool: String, version: String) -> Self {
        Self { pools, pool, version, known: RefCell::default() }
    }
}

impl Bitmaps for ChangesOf {
    fn names(&self) -> Vec<String> {
        let pool = self.pools.borrow().get(&self.pool).cloned();
        let names = pool.map(|pool| pool.snapshots_before(&self.version));
        names.and_then(Result::ok).unwrap_or_default()
    }

    fn runs(&self, name: &str, offset_bytes: u64, len_bytes: u64) -> Option<Vec<BitmapRun>> {
        let pool = self.pools.borrow().get(&self.pool).cloned()?;
        let known = self.known.borrow().get(name).copied();
        let since = known.or_else(|| pool.snapshot_before(&self.version, name))?;
        self.known.borrow_mut().insert(name.to_owned(), since);
        let runs = pool.changes_since(&self.version, since, offset_bytes, len_bytes)?;
        let run = |run: ChangedRun| BitmapRun { len_bytes: run.len_bytes, dirty: run.changed };
        Some(runs.into_iter().map(run).collect())
    }
}
