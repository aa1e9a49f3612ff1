//! Reasons of faults: why a device of a pool is UNAVAIL or FAULTED.
//!
//! What enters: lines of the device tree. What leaves: the same lines with the reason as a note.
//! What always holds: a note of the pool itself stays. Who calls: `pool status`, in the process
//! that has the pool open, or in the command when the pool cannot be opened.

use std::io::ErrorKind;
use std::rc::Rc;

use forebay_device::ErrorKind as DeviceErrorKind;
use forebay_pool::status::{Health, VdevNote, VdevStatus};
use forebay_pool::{Opener, Pool};
use forebay_rt as rt;

use crate::devices::{LOOK_TIMEOUT, is_elsewhere, is_locked, why_not_opened};
use crate::files;
use crate::path_probe::{NoAnswer, probe};

/// Adds the reason to each device at or below `vdev` that is UNAVAIL or FAULTED. `guid`: of the
/// pool.
pub async fn explain_faults(opener: &Rc<dyn Opener>, guid: u64, vdev: &mut VdevStatus) {
    let mut nodes = vec![vdev];
    while let Some(vdev) = nodes.pop() {
        let has_failed = matches!(vdev.state, Health::Unavail | Health::Faulted);
        if vdev.children.is_empty() && has_failed && vdev.note.is_none() {
            vdev.note = Some(reason(opener, guid, vdev).await);
        }
        nodes.extend(&mut vdev.children);
    }
}

async fn reason(opener: &Rc<dyn Opener>, guid: u64, device: &VdevStatus) -> VdevNote {
    let path = device.name.as_str();
    if !is_elsewhere(path) {
        if let Some(note) = reason_of_path(path).await {
            return note;
        }
    }
    if device.read_errors + device.write_errors + device.checksum_errors > 0 {
        return VdevNote::TooManyErrors;
    }
    // Nothing of a device that the pool holds can be read here, because its lock keeps others out.
    if device.state == Health::Faulted && device.protection.is_some() {
        return VdevNote::FailedEarlier;
    }
    if device.state == Health::Unavail && !is_elsewhere(path) && is_locked(path).await {
        return VdevNote::InUse;
    }
    if let Some(note) = reason_of_opening(opener, path).await {
        return note;
    }
    let paths = [path.to_owned()];
    let looking = Pool::discover(opener.clone(), &paths);
    let Ok(found) = rt::timeout(LOOK_TIMEOUT, looking).await else { return VdevNote::NoAnswer };
    match (found.first(), device.state) {
        (None, _) => VdevNote::NoLabel,
        (Some(pool), _) if pool.guid != guid => VdevNote::OtherPool { name: pool.name.clone() },
        (Some(_), Health::Faulted) => VdevNote::FailedEarlier,
        (Some(_), _) => VdevNote::Returned,
    }
}

/// What the system says of a path, if it cannot be opened.
async fn reason_of_path(path: &str) -> Option<VdevNote> {
    match probe(path, |path| files::open_to_read_and_write(path).err().map(|e| e.kind())).await {
        Err(NoAnswer) => Some(VdevNote::NoAnswer),
        Ok(Some(ErrorKind::NotFound)) => Some(VdevNote::Missing),
        Ok(Some(ErrorKind::PermissionDenied)) => Some(VdevNote::NoPermission),
        Ok(Some(kind)) => Some(VdevNote::NotOpened { error: kind.to_string() }),
        Ok(None) => None,
    }
}

/// What the device itself says, if it cannot be opened: one in an object store or on another host,
/// or a log device in memory that has lost it, though its backup device can be opened.
async fn reason_of_opening(opener: &Rc<dyn Opener>, path: &str) -> Option<VdevNote> {
    let opening = match is_elsewhere(path) {
        true => opener.open_to_look(path),
        false => opener.open(path),
    };
    match rt::timeout(LOOK_TIMEOUT, opening).await {
        Ok(Err(error)) if is_elsewhere(path) || matches!(error.kind, DeviceErrorKind::Layer(_)) => {
            Some(VdevNote::NotOpened { error: why_not_opened(&error) })
        }
        Err(rt::Elapsed) if is_elsewhere(path) => Some(VdevNote::NoAnswer),
        Ok(_) | Err(rt::Elapsed) => None,
    }
}

#[cfg(test)]
mod tests;
