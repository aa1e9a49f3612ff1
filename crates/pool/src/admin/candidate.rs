//! Candidates: devices that are about to join a pool.

use forebay_device::{Device, ErrorKind};
use forebay_format::config::{CacheConfig, MemberConfig, PoolConfig};
use forebay_format::label::MIN_DEVICE_BYTES;
use forebay_multihost::MultihostError;

use crate::Pool;
use crate::admin::error::{AdminError, CandidateError};
use crate::admin::signatures::content_of;
use crate::cache_devices::read_header;
use crate::labels::{Label, read_label};
use crate::layout::{has_group, member_of};
use crate::opener::{FencedOpener, Guarded};

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

    /// The refusal of a device that must have `needed_bytes`.
    pub fn too_small(&self, needed_bytes: u64) -> CandidateError {
        let (device, size_bytes) = (self.path.clone(), self.size_bytes);
        CandidateError::TooSmall { device, size_bytes, needed_bytes }
    }
}

/// Opens a device that is to join a pool. Refuses it if it is too small or in use, or (without
/// `force`) if it belongs to a pool or holds foreign data.
pub(crate) async fn open_candidate(
    opener: &FencedOpener,
    path: &str,
    force: bool,
) -> Result<Candidate, CandidateError> {
    let device = || path.to_owned();
    let guarded = opener.open(path).await.map_err(|error| match error.kind {
        ErrorKind::Busy => CandidateError::InUse { device: device() },
        _ => CandidateError::Open(error),
    })?;
    let size_bytes = guarded.device.geometry().size_bytes;
    if size_bytes < MIN_DEVICE_BYTES {
        let needed_bytes = MIN_DEVICE_BYTES;
        return Err(CandidateError::TooSmall { device: device(), size_bytes, needed_bytes });
    }
    let owner = owner_of(&read_label(&guarded.device).await);
    if !force {
        if let Some(pool) = owner.or(cache_owner_of(&guarded.device).await) {
            return Err(CandidateError::OwnedByPool { device: device(), pool });
        }
    }
    if !force {
        if let Some(content) = content_of(&guarded.device).await {
            return Err(CandidateError::NotEmpty { device: device(), content });
        }
    }
    Ok(Candidate { path: path.to_owned(), guarded, size_bytes })
}

/// Reserves devices for the pool, those that have reservations, before anything is written to them.
/// If one is refused, all of them are given up.
pub(crate) async fn reserve_all(
    opener: &FencedOpener,
    devices: &[Device],
    force: bool,
) -> Result<(), CandidateError> {
    for (done, device) in devices.iter().enumerate() {
        let Err(error) = opener.monitor().reserve(device, force).await else { continue };
        release_all(opener, &devices[..done]).await;
        let holder = match error {
            MultihostError::Reserved { holder, .. } => Some(holder),
            MultihostError::Lost
            | MultihostError::UnknownOwner
            | MultihostError::Overtaken { .. }
            | MultihostError::InUse { .. } => None,
        };
        return Err(CandidateError::Reserved { device: device.name().to_owned(), holder });
    }
    Ok(())
}

/// Gives up reservations of devices that are not, or no longer, the pool's.
pub(crate) async fn release_all(opener: &FencedOpener, devices: &[Device]) {
    for device in devices {
        opener.monitor().release(device).await;
    }
}

/// What a device seems to hold, in words: a member of a pool, or the content of other software.
/// `None` when nothing is recognized.
pub async fn describe_content(device: &Device) -> Option<String> {
    if let Some(pool) = owner_of(&read_label(device).await) {
        return Some(format!("a member of the Forebay pool {pool}"));
    }
    if let Some(pool) = cache_owner_of(device).await {
        return Some(format!("a cache device of the Forebay pool {pool}"));
    }
    content_of(device).await.map(str::to_owned)
}

/// The pool that a label names, unless it was destroyed or the device has left it.
pub(crate) fn owner_of(label: &Label) -> Option<String> {
    let (envelope, config) = label.current()?;
    let member = member_of(config, envelope.device).is_some();
    (member && !config.destroyed).then(|| config.name.clone())
}

/// The pool whose cache device this is, by its header.
pub(crate) async fn cache_owner_of(device: &Device) -> Option<String> {
    read_header(device).await.ok().map(|header| header.pool_name)
}

/// Data and log devices of a configuration.
fn members_of(config: &PoolConfig) -> impl Iterator<Item = &MemberConfig> {
    config.data_members().chain(config.logs.iter().flat_map(|ring| &ring.sides))
}

/// Whether `name` is the last part of a path.
fn ends_with(path: &str, name: &str) -> bool {
    path.rsplit('/').next() == Some(name)
}

impl Pool {
    /// A cache device by its path, or by the last part of the path; `None` if the name is no cache
    /// device's. Fails if the last part is that of another device as well.
    pub(crate) fn find_cache(&self, name: &str) -> Result<Option<CacheConfig>, AdminError> {
        let config = self.config.borrow();
        if let Some(exact) = config.caches.iter().find(|cache| cache.path == name) {
            return Ok(Some(exact.clone()));
        }
        let mut loose = config.caches.iter().filter(|cache| ends_with(&cache.path, name));
        let Some(found) = loose.next() else { return Ok(None) };
        if members_of(&config).any(|member| member.path == name) {
            return Ok(None);
        }
        let is_member = members_of(&config).any(|member| ends_with(&member.path, name));
        if loose.next().is_some() || is_member {
            let (pool, name) = (config.name.clone(), name.to_owned());
            return Err(AdminError::AmbiguousDevice { pool, name });
        }
        Ok(Some(found.clone()))
    }

    /// A member by its path, or by the last part of the path if that is unambiguous.
    pub(crate) fn find_member(&self, name: &str) -> Result<MemberConfig, AdminError> {
        let config = self.config.borrow();
        if let Some(found) = members_of(&config).find(|member| member.path == name) {
            return Ok(found.clone());
        }
        let mut loose = members_of(&config).filter(|member| ends_with(&member.path, name));
        let found = (loose.next(), loose.next());
        let (pool, name) = (config.name.clone(), name.to_owned());
        match found {
            (Some(found), None) => Ok(found.clone()),
            (Some(_), Some(_)) => Err(AdminError::AmbiguousDevice { pool, name }),
            _ if has_group(&config, &name) => Err(AdminError::NamesGroup { pool, name }),
            _ if config.spares.iter().any(|spare| spare.path == name) => {
                Err(AdminError::NotMember { pool, device: name, is_spare: true })
            }
            _ if config.caches.iter().any(|cache| cache.path == name) => {
                Err(AdminError::NotMember { pool, device: name, is_spare: false })
            }
            _ => Err(AdminError::UnknownDevice { pool, name }),
        }
    }
}
