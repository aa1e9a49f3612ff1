//! Which part of a pool a device elsewhere may be: on another host of the log, in an object store
//! of the data, and then only beside a log device.

use std::collections::BTreeSet;

use forebay_pool::spec::PoolSpec;
use forebay_pool::status::PoolStatus;

use super::leaves;
use crate::control::Action;
use crate::failure::Failure;
use crate::object_stores;
use crate::remote_log;

/// Fails when `action` would give a device elsewhere a place that it cannot have, or would leave a
/// pool in an object store without a log device.
pub(super) fn check(pool: &PoolStatus, action: &Action) -> Result<(), Failure> {
    match action {
        Action::Add { spec } => check_new(pool, spec),
        Action::Remove { device } => check_last_log(pool, device),
        Action::Attach { device, new_device: new, .. }
        | Action::Replace { device, new_device: Some(new), .. } => check_side(pool, device, new),
        _ => Ok(()),
    }
}

fn check_new(pool: &PoolStatus, spec: &PoolSpec) -> Result<(), Failure> {
    match pool.logs.is_empty() {
        true => object_stores::check_log(spec),
        false => Ok(()),
    }
}

fn check_last_log(pool: &PoolStatus, device: &str) -> Result<(), Failure> {
    let [log] = pool.logs.as_slice() else { return Ok(()) };
    let is_last = log.name == device || log.children.iter().any(|side| side.name == device);
    let data = data_devices(pool);
    match data.iter().find(|name| object_stores::is_name(name)) {
        Some(store) if is_last => {
            let message = format!(
                "{device} is the last log device, and {store} cannot hold the log: each durable \
                 write would be a request to the store"
            );
            Err(Failure::usage(message)
                .with_hint(format!("'forebay pool add {} log DEV' adds one before", pool.name)))
        }
        _ => Ok(()),
    }
}

fn check_side(pool: &PoolStatus, device: &str, new: &str) -> Result<(), Failure> {
    let data = data_devices(pool);
    let mut logs = BTreeSet::new();
    pool.logs.iter().for_each(|log| leaves(log, &mut logs));
    if object_stores::is_name(new) && (logs.is_empty() || logs.contains(device)) {
        let message = format!(
            "{new}: a device in an object store can be a data device only, of a pool with a log \
             device"
        );
        return Err(Failure::usage(message)
            .with_hint(format!("'forebay pool add {} log DEV' adds one", pool.name)));
    }
    match remote_log::is_name(new) && data.contains(device) {
        true => Err(Failure::usage(format!(
            "{new}: a device on another host can be a log device only, and {device} is none"
        ))),
        false => Ok(()),
    }
}

fn data_devices(pool: &PoolStatus) -> BTreeSet<String> {
    let mut data = BTreeSet::new();
    pool.groups.iter().for_each(|group| leaves(group, &mut data));
    data
}
