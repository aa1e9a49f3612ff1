//! Names of a pool's devices: a request may name a device by any path that leads to it, the pool
//! knows it by the path that it was given.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use forebay_pool::status::{PoolStatus, VdevStatus};

use crate::control::Action;
use crate::failure::{ErrorCode, Failure};
use crate::vdevs::devices_of;

/// What identifies the device at `path`: two paths to one device have the same. `None` when
/// nothing is at `path`.
#[must_use]
pub fn identity(path: &str) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    let is_disk = meta.file_type().is_block_device();
    Some(if is_disk { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) })
}

/// `action` with the devices of `pool` named by the paths that the pool knows. Fails when a device
/// that is to join the pool is part of it already.
pub fn by_known_names(pool: &PoolStatus, mut action: Action) -> Result<Action, Failure> {
    let mut members = Vec::new();
    pool.groups.iter().chain(&pool.logs).for_each(|vdev| leaves(vdev, &mut members));
    let known = |path: &str| -> Option<&String> {
        let same = |member: &&&String| ***member == path;
        members.iter().find(same).copied().or_else(|| {
            let wanted = identity(path)?;
            members.iter().find(|member| identity(member) == Some(wanted)).copied()
        })
    };
    let mut joining = Vec::new();
    match &mut action {
        Action::Remove { device }
        | Action::Detach { device }
        | Action::Offline { device }
        | Action::Online { device }
        | Action::Clear { device: Some(device) } => rename(device, known(device)),
        Action::Attach { device, new_device, .. } => {
            rename(device, known(device));
            joining.push(new_device.clone());
        }
        Action::Replace { device, new_device, .. } => {
            rename(device, known(device));
            // Replaced by itself: another device is at its path now.
            joining.extend(new_device.clone().filter(|new| new != device));
        }
        Action::Add { spec } => joining.extend(devices_of(spec).cloned()),
        _ => {}
    }
    match joining.iter().find_map(|new| known(new)) {
        Some(member) => {
            let message = format!("{member} is part of '{}' already", pool.name);
            Err(Failure::new(ErrorCode::DeviceInUse, message).with_hint("name another device"))
        }
        None => Ok(action),
    }
}

fn rename(device: &mut String, known: Option<&String>) {
    // The pool itself resolves a name such as mirror-1, and refuses a wrong one.
    if let Some(known) = known {
        known.clone_into(device);
    }
}

fn leaves<'a>(vdev: &'a VdevStatus, paths: &mut Vec<&'a String>) {
    if vdev.children.is_empty() {
        paths.push(&vdev.name);
    }
    vdev.children.iter().for_each(|child| leaves(child, paths));
}

#[cfg(test)]
mod tests;
