//! Finding and opening the devices of a pool.

use forebay_device::{Device, ErrorKind};
use forebay_format::config::MemberConfig;
use forebay_format::label::MIN_DEVICE_BYTES;
use forebay_units::format_bytes;

use crate::admin::signatures::content_of;
use crate::labels::{Label, read_label};
use crate::layout::{is_group_name, member_of};
use crate::opener::{FencedOpener, Guarded};
use crate::{Pool, PoolError};

/// A device that is about to join a pool.
pub(crate) struct Candidate {
    pub path: String,
    pub guarded: Guarded,
    pub size_bytes: u64,
}

impl Candidate {
    pub fn device(&self) -> Device {
        self.guarded.device.clone()
    }
}

/// Opens a device that is to join a pool, and refuses it when it is too small, in use, or (without
/// `force`) belongs to a pool already or holds something of others.
pub(crate) async fn open_candidate(
    opener: &FencedOpener,
    path: &str,
    force: bool,
) -> Result<Candidate, PoolError> {
    let guarded = opener.open(path).map_err(|e| match e.kind {
        ErrorKind::Busy => PoolError::new(format!(
            "{path} is in use (by a pool that is imported, or another program); name another \
             device, or export that pool first"
        )),
        _ => PoolError::new(e.to_string()),
    })?;
    let device = guarded.device.clone();
    let size_bytes = device.geometry().size_bytes;
    if size_bytes < MIN_DEVICE_BYTES {
        return Err(PoolError::new(format!(
            "{path} has {}, but a device needs {} at least",
            format_bytes(size_bytes),
            format_bytes(MIN_DEVICE_BYTES)
        )));
    }
    if !force && let Some(owner) = owner_of(&read_label(&device).await) {
        return Err(PoolError::new(format!(
            "{path} belongs to pool '{owner}'; use -f to take it all the same (that pool's data \
             on it is lost)"
        )));
    }
    if !force && let Some(what) = content_of(&device).await {
        return Err(PoolError::new(format!(
            "{path} holds {what}; use -f to take it all the same (what is on it is lost)"
        )));
    }
    Ok(Candidate { path: path.to_owned(), guarded, size_bytes })
}

/// The pool that a label names, unless it was destroyed or has left it.
pub(crate) fn owner_of(label: &Label) -> Option<String> {
    let (envelope, config) = label.current()?;
    let member = member_of(config, envelope.device).is_some();
    (member && !config.destroyed).then(|| config.name.clone())
}

impl Pool {
    /// The id of a member by path, or by the last part of a path when that is unambiguous.
    pub(crate) fn find_member(&self, name: &str) -> Result<MemberConfig, PoolError> {
        let config = self.config.borrow();
        let all: Vec<&MemberConfig> =
            config.data_members().chain(config.logs.iter().flat_map(|ring| &ring.sides)).collect();
        let exact = all.iter().find(|m| m.path == name);
        if let Some(found) = exact {
            return Ok((**found).clone());
        }
        let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
        let mut loose = all.iter().filter(|m| last(&m.path).as_deref() == Some(name));
        match (loose.next(), loose.next()) {
            (Some(found), None) => Ok((**found).clone()),
            (Some(_), Some(_)) => Err(PoolError::new(format!(
                "'{name}' names more than one device of pool '{}'; give the whole path",
                config.name
            ))),
            _ if is_group_name(name) => Err(PoolError::new(format!(
                "'{name}' is a group; name one of its devices: 'forebay pool status {}' lists them",
                config.name
            ))),
            _ => Err(PoolError::new(format!(
                "pool '{}' has no device '{name}'; 'forebay pool status {}' lists them",
                config.name, config.name
            ))),
        }
    }
}
