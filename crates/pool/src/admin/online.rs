//! The command that brings a device back into use, from where it was or from another path.

use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_format::config::{MemberConfig, MemberUse};
use forebay_units::DeviceId;

use crate::Pool;
use crate::admin::candidate::reserve_all;
use crate::admin::error::AdminError;
use crate::import::divergence::went_on_apart;
use crate::labels::{Label, read_label};
use crate::opener::OpenDevice;
use crate::store_watch::is_in_store;

impl Pool {
    /// Brings a device back into use; a resilver rebuilds what it missed. `name` is the device's,
    /// or the path where it is now: its label says which device of the pool it is.
    pub async fn online(&self, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        if let Some(cache) = self.find_cache(name)? {
            return self.online_cache(&cache).await;
        }
        let (found, path) = self.find_returned(name).await?;
        let id = DeviceId(found.device);
        if let Some(held) = self.held(id) {
            held.deadline.revive().map_err(|commands| AdminError::LateCommands {
                device: found.path.clone(),
                commands,
            })?;
        }
        if path != found.path && self.held(id).is_some() {
            // It may be the one that is still open, whose lock is exclusive.
            self.close_to_open_anew(&found, &path)?;
        }
        // A connection that another client has overtaken still reads the label, and never writes.
        let is_reconnected =
            self.lost_sides().contains(&path) && self.opener.source().answers(&path).is_some();
        let is_store = self.held(id).is_some_and(|held| is_in_store(&held.device()));
        if is_store && !self.is_in_use(&found) {
            // One that has failed a write takes no more until it is opened anew.
            self.close_to_open_anew(&found, &path)?;
        }
        let open = match self.held(id).filter(|_| !is_reconnected) {
            Some(held) if self.carries_label(&held, found.device).await => held,
            // The device was closed or does not answer. It may have come back under its name.
            held => match (self.opener.open(&path).await, held) {
                (Ok(device), _) => OpenDevice::new(&path, device),
                (Err(_), Some(held)) if is_readable(&held).await => held,
                (Err(error), _) => return Err(error.into()),
            },
        };
        if !self.carries_label(&open, found.device).await {
            return Err(AdminError::LabelGone { device: path });
        }
        let label = read_label(&open.device()).await;
        if went_on_apart(&label, &self.config.borrow(), self.nonce) {
            return Err(AdminError::Diverged { pool: self.name(), device: found.path });
        }
        reserve_all(&self.opener, &[open.device()], false).await?;
        self.write_first_heartbeat(&open.device()).await;
        let is_log = self.is_log(found.device);
        if !is_log {
            self.store.array.online(id, Some(open.device())).map_err(|e| self.of_member(e))?;
        }
        self.note_path(found.device, &path);
        let before = self.devices.borrow_mut().insert(id, open.clone());
        if let Some(before) = before.filter(|before| !Rc::ptr_eq(&before.counted, &open.counted)) {
            self.stats.counted_before(id, &before.counted.counts());
        }
        if is_log {
            self.log_without_failed().await?;
            self.set_side(found.device, MemberUse::Online);
            return self.start_log_on(found.device).await;
        }
        self.take_array_events();
        self.commit_config().await?;
        self.want_resilver();
        Ok(())
    }

    /// Closes a device that is not in use, whose content is to be opened at `path`. Nothing else
    /// changes, so that it is as it was when that fails.
    fn close_to_open_anew(&self, found: &MemberConfig, path: &str) -> Result<(), AdminError> {
        if self.is_in_use(found) {
            let (pool, device) = (self.name(), found.path.clone());
            return Err(AdminError::CopyOfOneInUse { pool, device, path: path.to_owned() });
        }
        if self.is_log(found.device) {
            return self.close_side(found);
        }
        let id = DeviceId(found.device);
        self.store.array.close_unused(id).map_err(|e| self.of_member(e))?;
        self.devices.borrow_mut().remove(&id);
        Ok(())
    }

    /// Starts the log anew with a side that has come to it. Fails if the side does not take it.
    pub(super) async fn start_log_on(&self, side: u32) -> Result<(), AdminError> {
        self.restart_log(true).await?;
        let config = self.config.borrow();
        let mut sides = config.logs.iter().flat_map(|ring| &ring.sides);
        match sides.find(|found| found.device == side) {
            Some(found) if found.state != MemberUse::Online => {
                let (pool, device) = (config.name.clone(), found.path.clone());
                Err(AdminError::SideFailed { pool, device })
            }
            _ => Ok(()),
        }
    }

    fn held(&self, id: DeviceId) -> Option<OpenDevice> {
        self.devices.borrow().get(&id).cloned()
    }

    /// The device that `name` names, and the path where it is.
    async fn find_returned(&self, name: &str) -> Result<(MemberConfig, String), AdminError> {
        let unknown = match self.find_member(name) {
            Err(error @ AdminError::UnknownDevice { .. }) => error,
            found => return found.map(|found| (found.clone(), found.path)),
        };
        match self.device_at(name).await {
            Some(found) => Ok((found, name.to_owned())),
            None => Err(unknown),
        }
    }

    /// The device of this pool whose label is at `path`.
    async fn device_at(&self, path: &str) -> Option<MemberConfig> {
        let device = self.opener.open_to_look(path).await.ok()?;
        let label = read_label(&device).await;
        let config = self.config.borrow();
        let sides = config.logs.iter().flat_map(|ring| &ring.sides);
        let mut all = config.data_members().chain(sides);
        all.find(|member| self.is_label_of(&label, member.device)).cloned()
    }

    /// Refuses to replace a device that is not in use by itself, which has come back at `path`: all
    /// that it has would be written again.
    pub(crate) async fn check_not_itself(
        &self,
        old: &MemberConfig,
        path: &str,
    ) -> Result<(), AdminError> {
        if self.is_in_use(old) {
            return Ok(());
        }
        match self.device_at(path).await {
            Some(found) if found.device == old.device => Err(AdminError::IsItself {
                pool: self.name(),
                device: old.path.clone(),
                path: path.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    async fn carries_label(&self, open: &OpenDevice, device: u32) -> bool {
        self.is_label_of(&read_label(&open.device()).await, device)
    }

    fn is_label_of(&self, label: &Label, device: u32) -> bool {
        label.configs.iter().any(|(e, _)| e.pool == self.guid && e.device == device)
    }

    /// Has the configuration name `path` for a device.
    fn note_path(&self, device: u32, path: &str) {
        let mut config = self.config.borrow_mut();
        let config = &mut *config;
        let members = config.groups.iter_mut().flat_map(|group| &mut group.members);
        for member in members.chain(config.logs.iter_mut().flat_map(|ring| &mut ring.sides)) {
            let mut at = Some(member);
            while let Some(member) = at {
                if member.device == device {
                    path.clone_into(&mut member.path);
                }
                at = member.replacement.as_deref_mut();
            }
        }
    }
}

/// What cannot be read may have the pool's label.
async fn is_readable(open: &OpenDevice) -> bool {
    open.device().read(0, IoBuf::zeroed(4096)).await.is_ok()
}
