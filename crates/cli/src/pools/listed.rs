//! What the list of known pools says of a pool that is about to be opened, or is open.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::FoundPool;

use super::{PoolSet, known, leaves};
use crate::devices::is_elsewhere;
use crate::failure::{ErrorCode, Failure};
use crate::state::{KnownPool, StateDir};

impl PoolSet {
    /// The entry of a known pool as the list has it now: a command may have changed its devices.
    /// `None` if the list does not have it, because it was exported.
    pub async fn as_known_now(&self, known: &KnownPool) -> Result<Option<KnownPool>, Failure> {
        let all = self.writer.run(StateDir::known_pools).await?;
        Ok(all.into_iter().find(|pool| pool.guid == known.guid))
    }

    /// Devices of the pool `known` at other paths than the list has: where its own configuration
    /// has them, because a spare may have taken a place, and where other known pools had theirs,
    /// because the names of disks change.
    pub async fn found_elsewhere(&self, known: &KnownPool) -> Result<Vec<String>, Failure> {
        // The list as it is now: an import a moment ago may have changed it.
        let all = self.writer.run(StateDir::known_pools).await?;
        let others: BTreeSet<String> = all.into_iter().flat_map(|pool| pool.devices).collect();
        // What is elsewhere has its name as its place, and a look at it may take long.
        let is_local = |path: &&String| !is_elsewhere(path);
        let others = others.iter().filter(is_local).filter(|path| !known.devices.contains(path));
        let others: Vec<String> = others.cloned().collect();
        let local: Vec<String> = known.devices.iter().filter(is_local).cloned().collect();
        let here = self.found(known.guid, &local).await;
        let mut named = BTreeSet::new();
        here.iter().flat_map(|pool| &pool.groups).for_each(|group| leaves(group, &mut named));
        named.retain(|path| !known.devices.contains(path));
        let found: usize = here.iter().map(|pool| pool.paths.len()).sum();
        if found < local.len() && !others.is_empty() {
            let there = self.found(known.guid, &others).await;
            named.extend(there.into_iter().flat_map(|pool| pool.paths));
        }
        Ok(named.into_iter().collect())
    }

    async fn found(&self, guid: u64, paths: &[String]) -> Vec<FoundPool> {
        let found = Pool::discover(self.opener.clone(), paths).await;
        found.into_iter().filter(|pool| pool.guid == guid).collect()
    }

    /// Exports a pool again that was imported because it was on the list, and is no more: another
    /// command has exported it while this one waited for its devices.
    pub(super) async fn check_still_listed(&self, pool: &Rc<Pool>) -> Result<(), Failure> {
        // A list that cannot be read says nothing. Who writes it judges whether that matters.
        if !matches!(self.as_known_now(&known(pool)).await, Ok(None)) {
            return Ok(());
        }
        pool.export().await?;
        let message = format!("the pool '{}' was exported meanwhile", pool.name());
        Err(Failure::new(ErrorCode::PoolNotFound, message)
            .with_hint("'forebay pool import -d DIR' brings it back"))
    }
}
