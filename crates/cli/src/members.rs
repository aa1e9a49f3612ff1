//! Names of a pool's devices: a request may name a device by any path that leads to it, the pool
//! knows it by the path that it was given.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use forebay_pool::status::{PoolStatus, VdevStatus};
use forebay_rt as rt;

use crate::control::Action;
use crate::failure::{ErrorCode, Failure};
use crate::path_probe::probe;
use crate::vdevs::devices_of;

/// What identifies a device: two paths to one device have the same.
type Identity = (u64, u64);

/// The identity of the device at `path`; `None` when nothing is there, or it does not answer.
async fn identity(path: &str) -> Option<Identity> {
    let meta = probe(path, |path| path.metadata()).await.ok()?.ok()?;
    let is_disk = meta.file_type().is_block_device();
    Some(if is_disk { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) })
}

/// Identities of the devices at `paths`, by path.
async fn identities<'a>(paths: &[&'a str]) -> BTreeMap<&'a str, Identity> {
    let found = rt::join_all(paths.iter().map(|path| identity(path))).await;
    paths.iter().zip(found).filter_map(|(path, found)| Some((*path, found?))).collect()
}

/// The words of `action` that name devices.
fn device_words(action: &Action) -> Vec<&String> {
    match action {
        Action::Remove { device }
        | Action::Detach { device }
        | Action::Offline { device }
        | Action::Online { device }
        | Action::Clear { device: Some(device) } => vec![device],
        Action::Attach { device, new_device, .. } => vec![device, new_device],
        Action::Replace { device, new_device, .. } => new_device.iter().chain([device]).collect(),
        Action::Add { spec } => devices_of(spec).collect(),
        _ => Vec::new(),
    }
}

/// `action` with the devices of `pool` named by the paths that the pool knows. Fails when a device
/// that is to join the pool is part of it already. A device that does not answer is known by the
/// pool's own name for it only.
pub async fn by_known_names(pool: &PoolStatus, mut action: Action) -> Result<Action, Failure> {
    let mut members = Vec::new();
    pool.groups
        .iter()
        .chain(&pool.logs)
        .chain(&pool.caches)
        .for_each(|vdev| leaves(vdev, &mut members));
    members.extend(pool.spares.iter().map(|spare| &spare.name));
    let words: Vec<String> = device_words(&action).into_iter().cloned().collect();
    let others = words.iter().filter(|word| !members.contains(word)).map(String::as_str);
    let mut paths: Vec<&str> = others.collect();
    if !paths.is_empty() {
        paths.extend(members.iter().map(|member| member.as_str()));
    }
    let identities = identities(&paths).await;
    let known = |path: &str| -> Option<&String> {
        let same = |member: &&&String| ***member == path;
        members.iter().find(same).copied().or_else(|| {
            let wanted = identities.get(path)?;
            let same = |member: &&&String| identities.get(member.as_str()) == Some(wanted);
            members.iter().find(same).copied()
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
