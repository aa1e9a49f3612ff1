//! Commands on a pool's devices: add, remove, attach, detach, replace, offline.

use std::rc::Rc;

use forebay_array::ArrayError;
use forebay_device::Device;
use forebay_format::config::{MemberConfig, MemberUse, PoolConfig};
use forebay_rt::sync::MutexGuard;
use forebay_units::{DeviceId, Layout};

use crate::Pool;
use crate::admin::candidate::{Candidate, open_candidate, release_all, reserve_all};
use crate::admin::create::{
    LogPlace, Opened, add_to_config, check_alike, clear, give_back_all, member, open_spec,
    take_devices,
};
use crate::admin::error::{AdminError, UsableChange};
use crate::admin::volumes::check_fits;
use crate::labels::clear_label;
use crate::layout::{
    LayoutError, build_array_group, has_data_group, limits_for, log_number, log_range,
};
use crate::opener::OpenDevice;
use crate::spec::PoolSpec;

impl Pool {
    /// Adds groups of data devices, or log devices.
    pub async fn add(self: &Rc<Self>, spec: &PoolSpec) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        if [&spec.caches, &spec.spares].iter().all(|paths| paths.is_empty())
            && spec.groups.is_empty()
            && spec.logs.is_empty()
        {
            return Err(AdminError::NoDevice);
        }
        check_alike(&self.config.borrow().groups, spec)?;
        let mut opened = open_spec(&self.opener, spec).await?;
        // Nothing is written before this, so a refused command leaves the devices as they were.
        let mut trial = self.config.borrow().clone();
        add_to_config(&mut trial, &opened)?;
        check_fits(&trial)?;
        let usable_before = self.dirty.space.usable_blocks.get();
        self.check_usable(&trial, UsableChange::Groups)?;
        let mut places = Vec::new();
        for (_, sides) in &opened.logs {
            let smallest = sides.iter().map(|c| c.size_bytes).min().unwrap_or(0);
            let (start_bytes, len_bytes) = log_range(smallest);
            places.extend(sides.iter().map(|side| LogPlace {
                device: side.device(),
                start_bytes,
                len_bytes,
            }));
        }
        if let Err(error) = self.take_for_add(&opened, &places, spec.force).await {
            self.dirty.space.usable_blocks.set(usable_before);
            return Err(error);
        }
        // No await from here to the end of the change, so that no other change of the configuration
        // falls in between.
        {
            let mut config = self.config.borrow().clone();
            let first_new = config.groups.len();
            let devices = add_to_config(&mut config, &opened)?;
            let mut groups = Vec::new();
            for group in &config.groups[first_new..] {
                groups.push(build_array_group(group, &devices, &|_| Vec::new())?);
            }
            for group in groups {
                let geometry = group.geometry;
                self.store.array.add_group(group).map_err(LayoutError::from)?;
                self.store
                    .table
                    .add_group(geometry.segments, crate::layout::data_blocks(&geometry));
            }
            self.devices.borrow_mut().extend(devices);
            *self.config.borrow_mut() = config;
            self.hold_spares(std::mem::take(&mut opened.spares));
        }
        let (_, _, usable) = limits_for(&self.config.borrow());
        self.restart_log(!spec.logs.is_empty()).await?;
        // Without the root a power cut would take the groups away, and the log would not fit.
        self.dirty.space.usable_blocks.set(usable);
        self.prepare_cache_devices(opened.cache_devices()).await
    }

    /// Takes the devices that are to be added. If that fails, they are as free as before.
    async fn take_for_add(
        &self,
        opened: &Opened,
        places: &[LogPlace],
        force: bool,
    ) -> Result<(), AdminError> {
        take_devices(&self.opener, &opened.devices(), places, force).await?;
        let data = opened.groups.iter().flat_map(|(_, devices)| devices);
        for candidate in data.chain(&opened.caches) {
            let cleared = clear(&candidate.device()).await;
            if cleared.is_err() {
                give_back_all(places).await;
            }
            self.release_if_failed(&opened.devices(), cleared).await?;
        }
        Ok(())
    }

    pub(crate) fn is_log(&self, device: u32) -> bool {
        let config = self.config.borrow();
        config.logs.iter().flat_map(|r| &r.sides).any(|side| side.device == device)
    }

    /// Removes a log device (with all its sides), a cache device, or a spare.
    pub async fn remove(&self, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        if self.leave_spares(name).is_some() {
            return self.commit_config().await;
        }
        if let Some(cache) = self.find_cache(name)? {
            return self.remove_cache(&cache).await;
        }
        let ring = {
            let config = self.config.borrow();
            let by_name = name.strip_prefix("mirror-").and_then(|n| n.parse::<usize>().ok());
            let mut mirrors = config.logs.iter().filter(|ring| ring.sides.len() > 1);
            mirrors.find(|ring| by_name == Some(log_number(&config, ring))).map(|ring| ring.ring)
        };
        let ring = match ring {
            Some(ring) => ring,
            None => {
                if has_data_group(&self.config.borrow(), name) {
                    return Err(AdminError::DataGroup { group: name.to_owned() });
                }
                let found = self.find_member(name)?;
                let config = self.config.borrow();
                let has = |r: &&forebay_format::config::RingConfig| {
                    r.sides.iter().any(|s| s.device == found.device)
                };
                let device = || name.to_owned();
                let ring = config.logs.iter().find(has);
                let ring = ring.ok_or_else(|| AdminError::DataDevice { device: device() })?;
                if ring.sides.len() > 1 {
                    return Err(AdminError::SideOfLog {
                        pool: config.name.clone(),
                        device: device(),
                        mirror: log_number(&config, ring),
                    });
                }
                ring.ring
            }
        };
        let gone: Vec<u32> = {
            let mut config = self.config.borrow_mut();
            let at = config.logs.iter().position(|r| r.ring == ring).expect("just found");
            config.logs.remove(at).sides.into_iter().map(|s| s.device).collect()
        };
        self.restart_log(true).await?;
        self.let_go(&gone).await;
        Ok(())
    }

    pub(crate) async fn let_go(&self, devices: &[u32]) {
        for device in devices {
            let open = self.devices.borrow_mut().remove(&DeviceId(*device));
            if let Some(open) = open {
                // Otherwise its label would still name the pool. A device that fails this keeps an
                // old label, which no import believes.
                let _ = clear_label(&open.device()).await;
                let _ = open.device().save().await;
                release_all(&self.opener, &[open.device()]).await;
            }
        }
    }

    /// Adds a side to a log device, or another copy to a data mirror.
    pub async fn attach(&self, device: &str, new: &str, force: bool) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let old = self.find_member(device)?;
        let candidate = open_candidate(&self.opener, new, force).await?;
        let is_log = self.is_log(old.device);
        let needed = self.needed_bytes(&old)?;
        if candidate.size_bytes < needed {
            return Err(candidate.too_small(needed).into());
        }
        if !is_log {
            self.check_mirror(&old)?;
        }
        self.check_one_more(&candidate)?;
        let open = OpenDevice::new(new, candidate.guarded.clone());
        let added = member(&mut self.config.borrow_mut(), &candidate);
        let id = DeviceId(added.device);
        if is_log {
            let (start_bytes, len_bytes) = self.ring_range(old.device)?;
            let device = open.device();
            let place = LogPlace { device: device.clone(), start_bytes, len_bytes };
            take_devices(&self.opener, &[device], &[place], force).await?;
            self.devices.borrow_mut().insert(id, open);
            {
                let mut config = self.config.borrow_mut();
                let has = |r: &&mut forebay_format::config::RingConfig| {
                    r.sides.iter().any(|s| s.device == old.device)
                };
                config.logs.iter_mut().find(has).expect("is a log").sides.push(added);
            }
            return self.start_log_on(id.0).await;
        }
        reserve_all(&self.opener, &[open.device()], force).await?;
        let attached = async {
            clear(&open.device()).await?;
            let attached = self.store.array.attach(DeviceId(old.device), id, open.device());
            attached.map_err(|error| self.of_member(error))
        };
        self.release_if_failed(&[open.device()], attached.await).await?;
        self.devices.borrow_mut().insert(id, open);
        {
            let mut config = self.config.borrow_mut();
            let has = |g: &&mut forebay_format::config::GroupConfig| {
                g.members.iter().any(|m| m.device == old.device)
            };
            let group = config.groups.iter_mut().find(has).expect("is a data member");
            group.layout = Layout::Mirror;
            group.members.push(added);
        }
        self.commit_config().await?;
        self.want_resilver();
        Ok(())
    }

    /// Gives up the reservations of devices that a command could not take after all.
    async fn release_if_failed<E>(
        &self,
        devices: &[Device],
        outcome: Result<(), E>,
    ) -> Result<(), E> {
        if outcome.is_err() {
            release_all(&self.opener, devices).await;
        }
        outcome
    }

    /// Refuses a device for which the configuration has no room.
    fn check_one_more(&self, candidate: &Candidate) -> Result<(), AdminError> {
        let mut trial = self.config.borrow().clone();
        let added = member(&mut trial, candidate);
        // The path of the new member does not matter: it takes the same room.
        if let Some(first) = trial.groups.first_mut() {
            first.members.push(added);
        }
        Ok(check_fits(&trial)?)
    }

    fn ring_range(&self, side: u32) -> Result<(u64, u64), AdminError> {
        let config = self.config.borrow();
        let ring = config.logs.iter().find(|r| r.sides.iter().any(|s| s.device == side));
        ring.map(|r| (r.start_bytes, r.len_bytes)).ok_or(AdminError::LogRemoved)
    }

    fn check_mirror(&self, member: &MemberConfig) -> Result<(), AdminError> {
        let config = self.config.borrow();
        let group = config
            .groups
            .iter()
            .find(|g| g.members.iter().any(|m| m.device == member.device))
            .ok_or_else(|| AdminError::BeingReplaced { device: member.path.clone() })?;
        if group.layout == Layout::Mirror
            || (group.layout == Layout::Raid0 && group.members.len() == 1)
        {
            return Ok(());
        }
        let (device, layout) = (member.path.clone(), group.layout);
        Err(AdminError::NotMirror { device, layout })
    }

    pub(crate) fn needed_bytes(&self, old: &MemberConfig) -> Result<u64, AdminError> {
        let config = self.config.borrow();
        let label = forebay_format::label::LABEL_BYTES;
        for ring in &config.logs {
            if ring.sides.iter().any(|s| s.device == old.device) {
                return Ok(ring.start_bytes + ring.len_bytes + label);
            }
        }
        for group in &config.groups {
            let mut members = group
                .members
                .iter()
                .flat_map(|m| std::iter::successors(Some(m), |m| m.replacement.as_deref()));
            if members.any(|m| m.device == old.device) {
                // The label at the end begins at a multiple of its size, behind all data.
                let data = crate::layout::geometry_of(group).needed_bytes();
                return Ok(data.next_multiple_of(label) + label);
            }
        }
        Err(AdminError::UnknownDevice { pool: config.name.clone(), name: old.path.clone() })
    }

    /// Detaches a side of a mirror.
    pub async fn detach(&self, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let found = self.find_member(name)?;
        if self.is_log(found.device) {
            {
                let config = self.config.borrow();
                let ring =
                    config.logs.iter().find(|r| r.sides.iter().any(|s| s.device == found.device));
                if ring.is_none_or(|r| r.sides.len() < 2) {
                    return Err(AdminError::OnlySide { device: name.to_owned() });
                }
            }
            for ring in &mut self.config.borrow_mut().logs {
                ring.sides.retain(|s| s.device != found.device);
            }
            self.restart_log(true).await?;
        } else {
            let id = DeviceId(found.device);
            self.store.array.check_detach(id).map_err(|e| self.of_member(e))?;
            let mut trial = self.config.borrow().clone();
            forget_in(&mut trial, id);
            self.check_usable(&trial, UsableChange::Without { device: found.path.clone() })?;
            let had_redundancy = self.redundant_groups();
            self.store.array.detach(id).map_err(|e| self.of_member(e))?;
            self.forget_member(DeviceId(found.device));
            let in_log = self.log_in_pool();
            self.restart_log(in_log).await?;
            if self.redundant_groups() < had_redundancy {
                self.scan.copies_wanted.set(true);
                self.sync.done.notify_all();
            }
        }
        self.let_go(&[found.device]).await;
        Ok(())
    }

    fn redundant_groups(&self) -> usize {
        self.store.array.groups().iter().filter(|geometry| geometry.has_redundancy()).count()
    }

    /// Removes a data member that the array has released from the configuration. A replacement
    /// takes its place.
    pub(crate) fn forget_member(&self, device: DeviceId) {
        forget_in(&mut self.config.borrow_mut(), device);
    }

    /// Puts `new` (or the same device, made anew) in the place of `device`.
    pub async fn replace(
        &self,
        device: &str,
        new: Option<&str>,
        force: bool,
    ) -> Result<(), AdminError> {
        let turn = self.turn().await?;
        self.replace_in(turn, device, new, force).await
    }

    /// The same, in a turn that the caller has.
    pub(crate) async fn replace_in(
        &self,
        turn: MutexGuard<'_, ()>,
        device: &str,
        new: Option<&str>,
        force: bool,
    ) -> Result<(), AdminError> {
        let old = self.find_member(device)?;
        let path = new.unwrap_or(&old.path).to_owned();
        if path == old.path {
            // A device is closed first, because its lock is exclusive.
            self.close_out_of_use(&old)?;
        } else if !force {
            self.check_not_itself(&old, &path).await?;
        }
        if self.is_log(old.device) {
            drop(turn);
            self.attach(device, &path, force).await?;
            return self.detach(device).await;
        }
        let same = path == old.path;
        let candidate = self.open_instead(&old, &path, force || same).await;
        let candidate = candidate.map_err(|error| match same {
            true => {
                let (pool, device) = (self.name(), path.clone());
                AdminError::NotTakenIn { pool, device, error: Box::new(error) }
            }
            false => error,
        })?;
        reserve_all(&self.opener, &[candidate.device()], force).await?;
        let open = OpenDevice::new(&path, candidate.guarded.clone());
        let added = member(&mut self.config.borrow_mut(), &candidate);
        let id = DeviceId(added.device);
        let replaced = async {
            clear_label(&open.device()).await?;
            let replaced = self.store.array.replace(DeviceId(old.device), id, open.device());
            replaced.map_err(|error| self.of_member(error))
        };
        // What is in the place of a member stays reserved: it may be that member.
        let unused = if same { Vec::new() } else { vec![open.device()] };
        self.release_if_failed(&unused, replaced.await).await?;
        self.devices.borrow_mut().insert(id, open);
        {
            let mut config = self.config.borrow_mut();
            let members = config.groups.iter_mut().flat_map(|g| &mut g.members);
            for member in members {
                let mut at = Some(member);
                while let Some(member) = at {
                    if member.device == old.device {
                        let after = member.replacement.take();
                        let mut added = added.clone();
                        added.replacement = after;
                        member.replacement = Some(Box::new(added));
                    }
                    at = member.replacement.as_deref_mut();
                }
            }
        }
        self.commit_config().await?;
        self.want_resilver();
        Ok(())
    }

    /// Closes a device that is to be opened anew, at its path or another.
    pub(crate) fn close_out_of_use(&self, old: &MemberConfig) -> Result<(), AdminError> {
        if self.is_in_use(old) {
            return Err(AdminError::InUseHere { device: old.path.clone() });
        }
        let id = DeviceId(old.device);
        if self.is_log(old.device) {
            return self.close_side(old);
        }
        self.store.array.close(id).map_err(|e| self.of_member(e))?;
        self.take_array_events();
        self.devices.borrow_mut().remove(&id);
        Ok(())
    }

    /// Whether the pool reads or writes the device.
    pub(crate) fn is_in_use(&self, member: &MemberConfig) -> bool {
        let id = DeviceId(member.device);
        if self.is_log(member.device) {
            return member.state == MemberUse::Online && self.devices.borrow().contains_key(&id);
        }
        self.store.array.status().iter().any(|m| m.id == id && m.state.is_in_use())
    }

    pub(super) fn close_side(&self, old: &MemberConfig) -> Result<(), AdminError> {
        let id = DeviceId(old.device);
        let held = self.devices.borrow().get(&id).cloned();
        if let Some(held) = held {
            let late = |commands| AdminError::LateCommands { device: old.path.clone(), commands };
            held.deadline.close().map_err(late)?;
            self.devices.borrow_mut().remove(&id);
        }
        Ok(())
    }

    /// Opens the device that is to take the place of `old`. Changes nothing.
    async fn open_instead(
        &self,
        old: &MemberConfig,
        path: &str,
        force: bool,
    ) -> Result<Candidate, AdminError> {
        let candidate = open_candidate(&self.opener, path, force).await?;
        let needed = self.needed_bytes(old)?;
        if candidate.size_bytes < needed {
            return Err(candidate.too_small(needed).into());
        }
        self.check_one_more(&candidate)?;
        Ok(candidate)
    }

    /// Takes a device out of use until it is brought online again.
    pub async fn offline(&self, name: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        if let Some(cache) = self.find_cache(name)? {
            return self.offline_cache(&cache).await;
        }
        let found = self.find_member(name)?;
        let id = DeviceId(found.device);
        if self.is_log(found.device) {
            {
                let config = self.config.borrow();
                let others = config
                    .logs
                    .iter()
                    .find(|r| r.sides.iter().any(|s| s.device == found.device))
                    .is_some_and(|r| {
                        r.sides
                            .iter()
                            .any(|s| s.device != found.device && s.state == MemberUse::Online)
                    });
                if !others {
                    return Err(AdminError::OnlyUsableSide { device: name.to_owned() });
                }
            }
            self.set_side(found.device, MemberUse::Offline);
            self.restart_log(true).await?;
            self.close_device(id).await;
            return Ok(());
        }
        // No part of the log may lie on this device alone.
        let in_pool = self.config.borrow().logs.is_empty();
        let outcome = self.store.array.offline(id).await;
        if outcome.is_ok() {
            self.close_device(id).await;
        }
        self.take_array_events();
        self.refresh_member_configs();
        self.restart_log(in_pool).await?;
        outcome.map_err(|e| self.of_member(e))
    }

    /// The array's error with the device's path: the array knows devices by number.
    pub(crate) fn of_member(&self, error: ArrayError) -> AdminError {
        let (ArrayError::WouldLose { device, .. }
        | ArrayError::TooSmall { device, .. }
        | ArrayError::Full { device }
        | ArrayError::NotMirror { device, .. }
        | ArrayError::NotOpen { device }
        | ArrayError::NoSuchDevice { device }
        | ArrayError::DeviceInUse { device }) = error
        else {
            return LayoutError(error).into();
        };
        AdminError::Member { device: self.device_path(device), error }
    }

    pub(crate) fn set_side(&self, device: u32, state: MemberUse) {
        let mut config = self.config.borrow_mut();
        for side in config.logs.iter_mut().flat_map(|r| &mut r.sides) {
            if side.device == device {
                side.state = state;
            }
        }
    }
}

/// Takes a data member out of a configuration. A replacement takes its place.
fn forget_in(config: &mut PoolConfig, device: DeviceId) {
    for group in &mut config.groups {
        for member in &mut group.members {
            forget(member, device.0);
        }
        group.members.retain(|m| m.device != device.0);
    }
}

fn forget(member: &mut MemberConfig, device: u32) {
    if member.device == device {
        if let Some(next) = member.replacement.take() {
            *member = *next;
        }
    }
    if let Some(mut next) = member.replacement.take() {
        forget(&mut next, device);
        if next.device != device {
            member.replacement = Some(next);
        }
    }
}

#[cfg(test)]
mod tests;
