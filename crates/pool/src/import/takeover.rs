//! Multihost checks of an import: whether another machine uses the pool, or has claimed it.

use std::collections::BTreeSet;
use std::fmt;

use forebay_multihost::{LabeledDevice, MultihostError, check_activity, is_claimed, is_reserved};
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

/// Refuses a pool that another machine imports or uses. With `elsewhere` (the last owner was
/// another machine and did not export the pool) a silent pool is refused too, unless the operator
/// forces it. On one machine the locks of the devices do this.
pub(crate) async fn check_not_in_use(
    found: &[&Found],
    elsewhere: bool,
    options: &ImportOptions,
) -> Result<(), ImportErrorKind> {
    check_activity(&labeled_devices(found)).await?;
    if elsewhere && !options.force && options.known.is_none() {
        return Err(ImportErrorKind::NotExportedElsewhere);
    }
    Ok(())
}

/// Writes the kinds that concern another owner of the pool.
pub(crate) fn other_owner(f: &mut fmt::Formatter<'_>, kind: &ImportErrorKind) -> fmt::Result {
    match kind {
        ImportErrorKind::OwnedMeanwhile => write!(
            f,
            "another process has imported it since it was suspended here, and has written to it"
        ),
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
            MultihostError::Lost => Self::TakenMeanwhile,
            MultihostError::Overtaken { device } => Self::Overtaken { device },
            MultihostError::Reserved { device, holder } => Self::Reserved { device, holder },
        }
    }
}
