//! Multihost checks of an import: whether another machine uses the pool, or has claimed it.

use std::collections::BTreeSet;

use forebay_multihost::{LabeledDevice, check_activity, is_claimed, is_reserved};
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
