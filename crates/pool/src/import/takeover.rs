//! Multihost checks of an import: whether another machine uses the pool, or has claimed it.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use forebay_format::label::Heartbeat;
use forebay_multihost::{
    Claim, LabeledDevice, Monitor, MultihostError, check_activity, is_claimed, is_reserved,
};
use forebay_units::{OwnerNonce, PoolGuid};

use crate::import::error::ImportErrorKind;
use crate::import::found::Found;
use crate::spec::ImportOptions;

/// The devices of the pool as a claim needs them.
pub(crate) fn labeled_devices(found: &[&Found]) -> Vec<LabeledDevice> {
    let labeled = |found: &&Found| LabeledDevice {
        path: found.path.clone(),
        device: found.guarded.device.clone(),
        heartbeat: found.label.heartbeat,
    };
    found.iter().map(labeled).collect()
}

/// The owners that wrote the roots found on the devices.
pub(crate) fn root_owners(found: &[&Found]) -> BTreeSet<OwnerNonce> {
    found.iter().flat_map(|found| &found.label.roots).map(|root| OwnerNonce(root.nonce)).collect()
}

/// Whether another import has claimed or reserved the devices: it is under way, or was cut short.
pub(crate) async fn is_being_imported(found: &[&Found], pool: u64) -> bool {
    let (pool, devices, owners) = (PoolGuid(pool), labeled_devices(found), root_owners(found));
    is_claimed(&devices, pool, &owners) || is_reserved(&devices, pool, &owners).await
}

/// How often an import watches the heartbeats: a device that fails may hide one of them.
const MAX_WATCHES: u32 = 4;

/// The takeover of a pool from its owners before.
pub(crate) struct Takeover<'a> {
    options: &'a ImportOptions,
    /// The last owner was another machine and did not export the pool.
    is_elsewhere: bool,
    /// Owners whose heartbeats stood still while this import watched them.
    silent: BTreeSet<OwnerNonce>,
    watches: u32,
    /// Why the pool was last to be refused.
    refusal: Option<ImportErrorKind>,
}

impl<'a> Takeover<'a> {
    /// A takeover that has watched no heartbeat yet. On one machine the locks of the devices keep
    /// owners apart; of another machine (`is_elsewhere`), a silent pool needs force as well.
    pub(crate) fn new(options: &'a ImportOptions, is_elsewhere: bool) -> Self {
        Self { options, is_elsewhere, silent: BTreeSet::new(), watches: 0, refusal: None }
    }

    /// Whether heartbeats were watched: then an old owner may have written since the labels were
    /// read.
    pub(crate) fn has_watched(&self) -> bool {
        self.watches > 0
    }

    /// Whether the pool must be refused for what was read. An owner that wrote while this import
    /// read, or since it read the labels, makes a pool look damaged. An error is certain when it
    /// comes again after the heartbeats were watched once more.
    pub(crate) fn is_certain(&mut self, refusal: &ImportErrorKind) -> bool {
        let before = self.refusal.replace(refusal.clone());
        !self.has_watched() || self.watches >= MAX_WATCHES || before.as_ref() == Some(refusal)
    }

    /// Refuses a pool that another machine imports or uses.
    pub(crate) async fn watch(
        &mut self,
        found: &[&Found],
        pool: u64,
    ) -> Result<(), ImportErrorKind> {
        self.watches += 1;
        self.silent.extend(check_activity(&labeled_devices(found), PoolGuid(pool)).await?);
        let Self { options, is_elsewhere, .. } = self;
        if *is_elsewhere && !options.force && options.known.is_none() {
            return Err(ImportErrorKind::NotExportedElsewhere);
        }
        Ok(())
    }

    /// Claims the devices with the heartbeat `mine`. An owner that is unknown until now is watched
    /// first: it imports the pool at this moment, or its heartbeat could not be read before.
    pub(crate) async fn claim(
        &mut self,
        found: &[&Found],
        monitor: &Rc<Monitor>,
        mine: Heartbeat,
    ) -> Result<Claim, ImportErrorKind> {
        let labeled = labeled_devices(found);
        loop {
            let known = root_owners(found).union(&self.silent).copied().collect();
            match Claim::new(&labeled, known, monitor, mine, self.options.force).await {
                Err(MultihostError::UnknownOwner) if self.watches < MAX_WATCHES => {
                    self.watch(found, mine.pool).await?;
                }
                claimed => return Ok(claimed?),
            }
        }
    }
}

/// Writes the kinds that concern another owner of the pool.
pub(crate) fn other_owner(f: &mut fmt::Formatter<'_>, kind: &ImportErrorKind) -> fmt::Result {
    match kind {
        ImportErrorKind::OwnedMeanwhile => write!(
            f,
            "another process has imported it since it was suspended here, and has written to it"
        ),
        ImportErrorKind::HeldHere { device } => {
            write!(f, "{device}, which is part of it, is in use by another process")
        }
        ImportErrorKind::InUseElsewhere { device } => write!(
            f,
            "it is imported on another machine and in use there (the heartbeat on {device} moves)"
        ),
        ImportErrorKind::NotExportedElsewhere => write!(
            f,
            "it was last used by another machine and not exported; that machine is silent now"
        ),
        ImportErrorKind::Overtaken { device } => {
            write!(f, "a request of an earlier process of this machine reached {device} meanwhile")
        }
        ImportErrorKind::Reserved { device, holder } => write!(
            f,
            "another machine has reserved {device}, under key {holder}, which no owner of the pool \
             has"
        ),
        _ => write!(f, "it was taken by another machine meanwhile"),
    }
}

impl From<MultihostError> for ImportErrorKind {
    fn from(error: MultihostError) -> Self {
        match error {
            MultihostError::InUse { device } => Self::InUseElsewhere { device },
            MultihostError::Lost | MultihostError::UnknownOwner => Self::TakenMeanwhile,
            MultihostError::Overtaken { device } => Self::Overtaken { device },
            MultihostError::Reserved { device, holder } => Self::Reserved { device, holder },
        }
    }
}

#[cfg(test)]
mod tests;
