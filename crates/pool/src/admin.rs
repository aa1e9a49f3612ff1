//! Commands on pools and their devices, and what a pool tells of itself.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_array::{ArrayError, MemberState, MemberStatus};
use forebay_device::layers::Counts;
use forebay_format::config::{MemberConfig, MemberUse};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, CommitId, DeviceId};

use crate::config::{POOL_PROPERTIES, check_property, effective};
use crate::create::{add_to_config, check_alike, member, open_spec};
use crate::devices::{log_range, open_candidate, owner_of};
use crate::labels::{OpenDevice, Opener, clear_label, open_in_time, write_through};
use crate::recovery::{build_array_group, find_devices, newest_root};
use crate::spec::PoolSpec;
use crate::stats::io_counts;
use crate::status::{FoundPool, Health, PoolStatus, PoolSummary, VdevStatus};
use crate::{Pool, PoolError};

/// Lines of history that are kept.
const HISTORY_LINES: usize = 200;

impl Pool {
    /// Looks for pools on `paths`. Devices that cannot be opened, or have no label, are passed by.
    pub async fn discover(opener: Rc<dyn Opener>, paths: &[String]) -> Vec<FoundPool> {
        let found = find_devices(&opener, paths).await;
        let mut by_guid: BTreeMap<u64, Vec<&crate::recovery::Found>> = BTreeMap::new();
        for device in &found {
            by_guid.entry(device.label.configs[0].0.pool).or_default().push(device);
        }
        let mut pools = Vec::new();
        for (guid, devices) in by_guid {
            let newest = newest_root(&devices, 0);
            let config = match &newest {
                Ok((_, config)) => config.clone(),
                Err(_) => devices[0].label.configs[0].1.clone(),
            };
            // Devices that left a pool, or whose pool was destroyed, are nobody's.
            if config.destroyed || devices.iter().all(|f| owner_of(&f.label).is_none()) {
                continue;
            }
            let belongs = |f: &&&crate::recovery::Found| {
                crate::devices::member_of(&config, f.label.configs[0].0.device).is_some()
            };
            let paths: Vec<String> =
                devices.iter().filter(belongs).map(|f| f.path.clone()).collect();
            let is_here =
                |m: &MemberConfig| devices.iter().any(|f| f.label.configs[0].0.device == m.device);
            let vdev = |m: &MemberConfig| {
                let state = match (is_here(m), m.state) {
                    (false, _) => Health::Unavail,
                    (true, MemberUse::Online) => Health::Online,
                    (true, MemberUse::Offline) => Health::Offline,
                    (true, MemberUse::Faulted) => Health::Faulted,
                };
                leaf(m, state)
            };
            let mut state = Health::Online;
            let mut groups = Vec::new();
            for (number, group) in config.groups.iter().enumerate() {
                let children: Vec<VdevStatus> = group.members.iter().map(vdev).collect();
                let good = children.iter().filter(|c| c.state == Health::Online).count();
                let geometry = crate::recovery::geometry_of(group).ok();
                let need = geometry.map_or(usize::MAX, |g| g.data_columns().max(1));
                let health = match good {
                    good if good == children.len() => Health::Online,
                    good if good >= need => Health::Degraded,
                    _ => Health::Unavail,
                };
                state = worse(state, health);
                groups.push(branch(&group.layout, number, health, children));
            }
            let mut logs = Vec::new();
            for ring in &config.logs {
                let children: Vec<VdevStatus> = ring.sides.iter().map(vdev).collect();
                let good = children.iter().filter(|c| c.state == Health::Online).count();
                let health = match good {
                    good if good == children.len() => Health::Online,
                    0 => Health::Unavail,
                    _ => Health::Degraded,
                };
                state =
                    worse(state, if health == Health::Online { health } else { Health::Degraded });
                logs.push(branch("mirror", ring.ring as usize, health, children));
            }
            let log_is_gone = config.logs.iter().any(|ring| {
                ring.sides.iter().any(|side| side.state == MemberUse::Online)
                    && !ring.sides.iter().any(is_here)
            });
            let remark = match &newest {
                Err(e) => {
                    state = Health::Unavail;
                    format!("cannot be imported: {e}")
                }
                Ok((root, _)) if log_is_gone && root.exported => {
                    "its log device is missing: import with -m to go on without it (no data is \
                     lost with it)"
                        .to_owned()
                }
                Ok(_) if log_is_gone => {
                    "its log device is missing, and with it acknowledged writes: bring it back, or \
                     import with -m to lose them"
                        .to_owned()
                }
                Ok((root, _)) if root.exported => String::new(),
                Ok(_) => "was not exported; an import replays its log".to_owned(),
            };
            pools.push(FoundPool { name: config.name, guid, state, groups, logs, remark, paths });
        }
        pools
    }

    /// Commits everything, marks the pool exported, and lets its devices go. New operations are
    /// refused from here on; those that were answered are committed.
    pub async fn export(self: &Rc<Self>) -> Result<(), PoolError> {
        self.close(false).await
    }

    async fn close(self: &Rc<Self>, destroy: bool) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        if self.closing.replace(true) {
            return Err(PoolError::new(format!("pool '{}' is being exported", self.name())));
        }
        self.sync.wake.notify_all();
        self.sync.done.notify_all();
        let tasks = self.tasks.take();
        rt::join_all(tasks).await;
        if !self.is_stopped() {
            self.keep_running_scan();
            // What was absorbed before the door closed, whoever still waits for it.
            let last = match self.sync_group().await {
                Ok(()) => {
                    let mut writers = self.writers.lock().await;
                    match self.write_last_root(&mut writers).await {
                        Ok(()) if destroy => self.write_destroyed_root(&mut writers).await,
                        other => other,
                    }
                }
                Err(error) => Err(error),
            };
            if let Err(error) = last {
                self.stop(&error.message);
            }
        }
        if self.is_stopped() {
            return Err(PoolError::new(format!(
                "pool '{}' was suspended and is left as it is: {}; the next import goes on from \
                 its last root and its log",
                self.name(),
                self.stop_reason()
            )));
        }
        Ok(())
    }

    /// Destroys the pool: its devices are free for another one. A crash on the way leaves a pool
    /// that was exported, or one that is destroyed.
    pub async fn destroy(self: &Rc<Self>) -> Result<(), PoolError> {
        self.close(true).await
    }

    /// The last commands, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<String> {
        self.config.borrow().history.clone()
    }

    /// Keeps a line of history, with the time before it. It reaches the devices with the next
    /// change of the configuration, at the latest at export.
    pub async fn log_history(&self, line: &str) -> Result<(), PoolError> {
        const LONGEST: usize = 500;
        let mut short = line.to_owned();
        let mut end = LONGEST.min(short.len());
        while !short.is_char_boundary(end) {
            end -= 1;
        }
        short.truncate(end);
        let mut config = self.config.borrow_mut();
        config.history.push(format!("{} {short}", rt::wall_clock()));
        let extra = config.history.len().saturating_sub(HISTORY_LINES);
        config.history.drain(..extra);
        drop(config);
        self.sync.config_dirty.set(true);
        Ok(())
    }

    /// All properties.
    #[must_use]
    pub fn get(&self) -> BTreeMap<String, String> {
        let config = self.config.borrow();
        let mut all = effective(POOL_PROPERTIES, &config.properties);
        let summary = self.summary();
        all.insert("guid".into(), self.guid.to_string());
        all.insert("size".into(), summary.size_bytes.to_string());
        all.insert("allocated".into(), summary.alloc_bytes.to_string());
        all.insert("free".into(), summary.free_bytes.to_string());
        all.insert("health".into(), summary.health.as_str().into());
        all
    }

    /// Sets a property.
    pub async fn set(&self, property: &str, value: &str) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        check_property(POOL_PROPERTIES, property, value)?;
        let (name, value) = (property.to_owned(), value.to_owned());
        self.config.borrow_mut().properties.insert(name, value);
        self.apply_properties();
        self.commit_config().await
    }

    /// Puts the configuration on the devices.
    pub(crate) async fn commit_config(&self) -> Result<(), PoolError> {
        self.check_config_fits()?;
        self.sync.config_dirty.set(true);
        self.commit_all().await
    }

    /// Adds groups of data devices, or log devices.
    pub async fn add(&self, spec: &PoolSpec) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        if spec.groups.is_empty() && spec.logs.is_empty() {
            return Err(PoolError::new("name the devices to add"));
        }
        check_alike(&self.config.borrow().groups, spec)?;
        let opened = open_spec(&self.opener, spec).await?;
        for candidate in opened.all() {
            clear_label(&candidate.device()).await?;
        }
        for (_, sides) in &opened.logs {
            let smallest = sides.iter().map(|c| c.size_bytes).min().unwrap_or(0);
            let (start_bytes, len_bytes) = log_range(smallest);
            for side in sides {
                write_through(&side.device(), start_bytes, len_bytes).await?;
            }
        }
        // No await from here to the end of the change: whoever else changes the configuration
        // does so before or after.
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
                self.array.add_group(group)?;
                self.table.add_group(geometry.segments, crate::recovery::data_blocks(&geometry));
            }
            self.devices.borrow_mut().extend(devices);
            *self.config.borrow_mut() = config;
        }
        let (_, _, usable) = crate::recovery::limits_for(&self.config.borrow(), &self.array);
        self.space.usable_blocks.set(usable);
        self.restart_log(!spec.logs.is_empty()).await
    }

    /// Commits, and with `anew` starts the log on what the configuration says now.
    pub(crate) async fn restart_log(&self, anew: bool) -> Result<(), PoolError> {
        let request = anew.then(|| self.restart_log_wanted());
        self.commit_config().await?;
        if let Some(request) = request {
            let over = || self.is_stopped() || self.sync.ended.get();
            let done = || self.log_restarted(request) || over();
            self.health.log_changed.until(done).await;
        }
        if self.is_stopped() {
            return Err(PoolError::new(self.stop_reason()));
        }
        Ok(())
    }

    /// Whether the log lies on data devices now.
    pub(crate) fn log_in_pool(&self) -> bool {
        let config = self.config.borrow();
        config.log_rings.iter().any(|ring| ring.ring >= crate::recovery::POOL_RINGS_FROM)
    }

    fn is_log(&self, device: u32) -> bool {
        let config = self.config.borrow();
        config.logs.iter().flat_map(|r| &r.sides).any(|side| side.device == device)
    }

    /// Removes a log device (with all its sides).
    pub async fn remove(&self, name: &str) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        let ring = {
            let config = self.config.borrow();
            let by_name = name.strip_prefix("mirror-").and_then(|n| n.parse::<u32>().ok());
            config
                .logs
                .iter()
                .find(|r| Some(r.ring) == by_name && r.sides.len() > 1)
                .map(|r| r.ring)
        };
        let ring = match ring {
            Some(ring) => ring,
            None => {
                let found = self.find_member(name)?;
                let config = self.config.borrow();
                let has = |r: &&forebay_format::config::RingConfig| {
                    r.sides.iter().any(|s| s.device == found.device)
                };
                let ring = config.logs.iter().find(has).ok_or_else(|| {
                    PoolError::new(format!(
                        "{name} is a data device: only log devices can be removed; 'pool replace' \
                         puts another in its place"
                    ))
                })?;
                if ring.sides.len() > 1 {
                    return Err(PoolError::new(format!(
                        "{name} is one side of mirror-{0}: 'pool detach {1} {name}' takes it out, \
                         'pool remove {1} mirror-{0}' removes all of its sides",
                        ring.ring, config.name
                    )));
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
                // Its label would name the pool otherwise; a device that fails keeps an old one,
                // which no import believes.
                let _ = clear_label(&open.device()).await;
            }
        }
    }

    /// Adds a side to a device: a mirror of a log device, or another copy of a data mirror.
    pub async fn attach(&self, device: &str, new: &str, force: bool) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        let old = self.find_member(device)?;
        let candidate = open_candidate(&self.opener, new, force).await?;
        let is_log = self.is_log(old.device);
        let needed = self.needed_bytes(&old)?;
        if candidate.size_bytes < needed {
            return Err(too_small(new, candidate.size_bytes, needed));
        }
        if !is_log {
            self.check_mirror(&old)?;
        }
        clear_label(&candidate.device()).await?;
        let open = OpenDevice::new(new, candidate.deadline.clone());
        let added = member(&mut self.config.borrow_mut(), &candidate);
        let id = DeviceId(added.device);
        if is_log {
            let (start_bytes, len_bytes) = self.ring_range(old.device)?;
            write_through(&open.device(), start_bytes, len_bytes).await?;
            self.devices.borrow_mut().insert(id, open);
            {
                let mut config = self.config.borrow_mut();
                let has = |r: &&mut forebay_format::config::RingConfig| {
                    r.sides.iter().any(|s| s.device == old.device)
                };
                config.logs.iter_mut().find(has).expect("is a log").sides.push(added);
            }
            return self.restart_log(true).await;
        }
        self.array
            .attach(DeviceId(old.device), id, open.device())
            .map_err(|e| self.in_words(&e))?;
        self.devices.borrow_mut().insert(id, open);
        {
            let mut config = self.config.borrow_mut();
            let has = |g: &&mut forebay_format::config::GroupConfig| {
                g.members.iter().any(|m| m.device == old.device)
            };
            let group = config.groups.iter_mut().find(has).expect("is a data member");
            group.layout = "mirror".to_owned();
            group.members.push(added);
        }
        self.commit_config().await?;
        self.want_resilver();
        Ok(())
    }

    fn ring_range(&self, side: u32) -> Result<(u64, u64), PoolError> {
        let config = self.config.borrow();
        let ring = config.logs.iter().find(|r| r.sides.iter().any(|s| s.device == side));
        ring.map(|r| (r.start_bytes, r.len_bytes))
            .ok_or_else(|| PoolError::new("the log device was removed meanwhile"))
    }

    fn check_mirror(&self, member: &MemberConfig) -> Result<(), PoolError> {
        let config = self.config.borrow();
        let group = config
            .groups
            .iter()
            .find(|g| g.members.iter().any(|m| m.device == member.device))
            .ok_or_else(|| PoolError::new(format!("{} is being replaced", member.path)))?;
        if group.layout == "mirror" || (group.layout == "raid0" && group.members.len() == 1) {
            return Ok(());
        }
        Err(PoolError::new(format!(
            "{} is part of a {}: only mirrors, single devices and log devices can be attached to",
            member.path, group.layout
        )))
    }

    fn needed_bytes(&self, old: &MemberConfig) -> Result<u64, PoolError> {
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
                let geometry = crate::recovery::geometry_of(group)?;
                return Ok(geometry.needed_bytes() + label);
            }
        }
        Err(PoolError::new(format!("{} is no device of the pool", old.path)))
    }

    /// Takes a side off a mirror.
    pub async fn detach(&self, name: &str) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        let found = self.find_member(name)?;
        if self.is_log(found.device) {
            {
                let config = self.config.borrow();
                let ring =
                    config.logs.iter().find(|r| r.sides.iter().any(|s| s.device == found.device));
                if ring.is_none_or(|r| r.sides.len() < 2) {
                    return Err(PoolError::new(format!(
                        "{name} is the only side of its log device; 'pool remove' removes it"
                    )));
                }
            }
            for ring in &mut self.config.borrow_mut().logs {
                ring.sides.retain(|s| s.device != found.device);
            }
            self.restart_log(true).await?;
        } else {
            self.array.detach(DeviceId(found.device)).map_err(|e| self.in_words(&e))?;
            self.forget_member(DeviceId(found.device));
            let in_log = self.log_in_pool();
            self.restart_log(in_log).await?;
        }
        self.let_go(&[found.device]).await;
        Ok(())
    }

    /// Takes a data member that the array has let go out of the configuration. Its place goes to
    /// its replacement, if it had one.
    pub(crate) fn forget_member(&self, device: DeviceId) {
        let mut config = self.config.borrow_mut();
        for group in &mut config.groups {
            for member in &mut group.members {
                forget(member, device.0);
            }
            group.members.retain(|m| m.device != device.0);
        }
    }

    /// Puts `new` (or the same device, made anew) in the place of `device`.
    pub async fn replace(
        &self,
        device: &str,
        new: Option<&str>,
        force: bool,
    ) -> Result<(), PoolError> {
        let turn = self.admin.lock().await;
        let old = self.find_member(device)?;
        let path = new.unwrap_or(&old.path).to_owned();
        if path == old.path {
            let in_use = self
                .array
                .status()
                .iter()
                .any(|m| m.id.0 == old.device && matches!(m.state, MemberState::Online));
            if in_use && !self.is_log(old.device) {
                return Err(PoolError::new(format!(
                    "{path} is in use; take it offline first to replace it with itself, or name \
                     another device"
                )));
            }
            self.devices.borrow_mut().remove(&DeviceId(old.device));
        }
        if self.is_log(old.device) {
            drop(turn);
            if path == old.path {
                return Err(PoolError::new(format!(
                    "name another device to take the place of log device {path}"
                )));
            }
            self.attach(device, &path, force).await?;
            return self.detach(device).await;
        }
        let same = path == old.path;
        let candidate = open_candidate(&self.opener, &path, force || same).await?;
        let needed = self.needed_bytes(&old)?;
        if candidate.size_bytes < needed {
            return Err(too_small(&path, candidate.size_bytes, needed));
        }
        clear_label(&candidate.device()).await?;
        let open = OpenDevice::new(&path, candidate.deadline.clone());
        let added = member(&mut self.config.borrow_mut(), &candidate);
        let id = DeviceId(added.device);
        self.array
            .replace(DeviceId(old.device), id, open.device())
            .map_err(|e| self.in_words(&e))?;
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

    /// Takes a device out until it is brought online again.
    pub async fn offline(&self, name: &str) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
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
                    return Err(PoolError::new(format!(
                        "{name} is the only good side of its log device; remove it instead"
                    )));
                }
            }
            self.set_side(found.device, MemberUse::Offline);
            self.restart_log(true).await?;
            self.devices.borrow_mut().remove(&id);
            return Ok(());
        }
        // Nothing of the log may lie on it alone.
        let in_pool = self.config.borrow().logs.is_empty();
        let outcome = self.array.offline(id).await;
        if outcome.is_ok() {
            self.devices.borrow_mut().remove(&id);
        }
        self.take_array_events();
        self.refresh_member_configs();
        self.restart_log(in_pool).await?;
        outcome.map_err(|e| self.in_words(&e))
    }

    /// What the array says, with the device's path: it knows devices by their number.
    fn in_words(&self, error: &ArrayError) -> PoolError {
        let (ArrayError::WouldLose { device, .. }
        | ArrayError::TooSmall { device, .. }
        | ArrayError::Full { device }
        | ArrayError::NotMirror { device, .. }
        | ArrayError::WrongState { device, .. }
        | ArrayError::NotOpen { device }
        | ArrayError::DeviceInUse { device }) = error
        else {
            return PoolError::new(error.to_string());
        };
        let config = self.config.borrow();
        let path = crate::devices::member_of(&config, device.0).map(|m| m.path.clone());
        let text = error.to_string();
        PoolError::new(match path {
            Some(path) => text.replacen(&format!("device {device}"), &path, 1),
            None => text,
        })
    }

    fn set_side(&self, device: u32, state: MemberUse) {
        let mut config = self.config.borrow_mut();
        for side in config.logs.iter_mut().flat_map(|r| &mut r.sides) {
            if side.device == device {
                side.state = state;
            }
        }
    }

    async fn carries_label(&self, open: &OpenDevice, device: u32) -> bool {
        let label = crate::labels::read_label(&open.device()).await;
        label.configs.iter().any(|(e, _)| e.pool == self.guid && e.device == device)
    }

    /// Brings a device back; what it missed is rebuilt.
    pub async fn online(&self, name: &str) -> Result<(), PoolError> {
        let _turn = self.admin.lock().await;
        let found = self.find_member(name)?;
        let id = DeviceId(found.device);
        let held = self.devices.borrow().get(&id).cloned();
        if let Some(held) = &held {
            held.deadline.revive().map_err(|late| {
                PoolError::new(format!(
                    "{} still has {late} commands under way that were given up: they could \
                     overwrite what is newer; wait until it has ended them, or put another device \
                     in its place with 'pool replace'",
                    found.path
                ))
            })?;
        }
        let open = match held {
            Some(held) if self.carries_label(&held, found.device).await => held,
            // Closed, or nothing answers there any more: it may have come back under its name.
            held => match open_in_time(&self.opener, &found.path) {
                Ok(device) => OpenDevice::new(&found.path, device),
                Err(error) => held.ok_or(error)?,
            },
        };
        if !self.carries_label(&open, found.device).await {
            return Err(PoolError::new(format!(
                "{} no longer carries this pool's label; use 'pool replace' to make it part of \
                 the pool again",
                found.path
            )));
        }
        self.mark(&open.device()).await;
        self.devices.borrow_mut().insert(id, open.clone());
        if self.is_log(found.device) {
            self.set_side(found.device, MemberUse::Online);
            return self.restart_log(true).await;
        }
        self.array.online(id, Some(open.device())).map_err(|e| self.in_words(&e))?;
        self.take_array_events();
        self.commit_config().await?;
        self.want_resilver();
        Ok(())
    }

    /// A line of `pool list`.
    #[must_use]
    pub fn summary(&self) -> PoolSummary {
        let usable = self.space.usable_blocks.get() * BLOCK_BYTES;
        let map = self.map.borrow();
        let mapped: u64 = map.volumes().map(|v| map.mapped_blocks(v)).sum();
        let alloc_bytes = mapped * BLOCK_BYTES;
        PoolSummary {
            name: self.name(),
            guid: self.guid,
            size_bytes: usable,
            alloc_bytes,
            free_bytes: usable.saturating_sub(alloc_bytes),
            health: self.overall(),
        }
    }

    fn overall(&self) -> Health {
        if self.is_stopped() {
            return Health::Suspended;
        }
        let mut state = Health::Online;
        for group in self.group_status().iter().chain(&self.log_status()) {
            let as_pool = match group.state {
                Health::Online => Health::Online,
                _ => Health::Degraded,
            };
            state = worse(state, as_pool);
        }
        state
    }

    fn group_status(&self) -> Vec<VdevStatus> {
        let status = self.array.status();
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let mut groups = Vec::new();
        for (number, group) in config.groups.iter().enumerate() {
            let mut children = Vec::new();
            for (column, first) in group.members.iter().enumerate() {
                let members: Vec<VdevStatus> =
                    std::iter::successors(Some(first), |m| m.replacement.as_deref())
                        .map(|m| {
                            let now = status.iter().find(|s| s.id.0 == m.device);
                            let io = devices.get(&DeviceId(m.device)).map(|d| d.counted.counts());
                            let scan = self.scan_status();
                            let mut vdev = member_status(m, now, io, scan.as_ref());
                            let suspect = self.health.diagnosis.suspects(DeviceId(m.device));
                            if suspect && vdev.state == Health::Online && vdev.note.is_empty() {
                                vdev.state = Health::Degraded;
                                vdev.note = "too many errors".into();
                            }
                            vdev
                        })
                        .collect();
                if members.len() == 1 {
                    children.extend(members);
                } else {
                    children.push(branch("replacing", column, Health::Degraded, members));
                }
            }
            let good = children.iter().filter(|c| c.state == Health::Online && c.note.is_empty());
            let all = good.count() == children.len();
            let state = if all { Health::Online } else { Health::Degraded };
            groups.push(branch(&group.layout, number, state, children));
        }
        groups
    }

    fn log_status(&self) -> Vec<VdevStatus> {
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let errors = self.health.log_errors.borrow();
        let mut logs = Vec::new();
        for ring in &config.logs {
            let mut children = Vec::new();
            for side in &ring.sides {
                let open = devices.get(&DeviceId(side.device));
                let state = match (side.state, open.is_some()) {
                    (MemberUse::Online, true) => Health::Online,
                    (MemberUse::Online, false) => Health::Unavail,
                    (MemberUse::Offline, _) => Health::Offline,
                    (MemberUse::Faulted, _) => Health::Faulted,
                };
                let mut vdev = leaf(side, state);
                vdev.write_errors = errors.get(&DeviceId(side.device)).copied().unwrap_or(0);
                vdev.io = open.map(|d| io_counts(&d.counted.counts())).unwrap_or_default();
                children.push(vdev);
            }
            let good = children.iter().filter(|c| c.state == Health::Online).count();
            let state = match good {
                good if good == children.len() => Health::Online,
                0 => Health::Faulted,
                _ => Health::Degraded,
            };
            logs.push(branch("mirror", ring.ring as usize, state, children));
        }
        logs
    }

    /// Everything that `pool status` shows.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let (lost, lost_count) = self.lost();
        let state = self.overall();
        let (status, action) = self.advice(state, lost_count);
        PoolStatus {
            name: self.name(),
            guid: self.guid,
            state,
            status,
            action,
            scan: self.scan_status(),
            groups: self.group_status(),
            logs: self.log_status(),
            lost,
            lost_count,
            txg: self.sync.committed.get().0,
        }
    }

    fn advice(&self, state: Health, lost_count: u64) -> (String, String) {
        let name = self.name();
        if state == Health::Suspended {
            return (
                format!("The pool stopped taking writes: {}.", self.stop_reason()),
                format!(
                    "Put that right (bring devices back; make room where device files lie), then \
                     'forebay pool export {name}' and import it again. What was answered as \
                     durable is kept."
                ),
            );
        }
        if lost_count > 0 {
            return (
                "Some data cannot be read: no copy or parity could repair it.".into(),
                format!(
                    "Restore the blocks listed below from a backup by writing them again, then \
                     run 'forebay pool scrub {name}'."
                ),
            );
        }
        if state == Health::Degraded {
            let last = self.health.remarks.borrow().last().cloned().unwrap_or_default();
            let mut text = "One or more devices are missing, failed, or being rebuilt.".to_owned();
            if !last.is_empty() {
                text.push_str(&format!(" Last: {last}."));
            }
            return (
                text,
                format!(
                    "Bring the device back with 'forebay pool online', or put another in its place \
                     with 'forebay pool replace {name} OLD NEW'. One that failed and is well again \
                     is taken back with 'forebay pool clear {name}'."
                ),
            );
        }
        let erred = |v: &VdevStatus| v.read_errors + v.write_errors + v.checksum_errors > 0;
        if self.group_status().iter().chain(&self.log_status()).any(erred) {
            return (
                "Some operations on a device failed or gave wrong data. They were made good from \
                 the others; no data is lost."
                    .into(),
                format!(
                    "See whether the device should be replaced; 'forebay pool clear {name}' \
                     starts the counters again."
                ),
            );
        }
        (String::new(), String::new())
    }

    /// The number of the last root: for those who watch a pool commit.
    #[must_use]
    pub fn last_commit(&self) -> CommitId {
        self.sync.commit.get()
    }

    /// What the operator should know, oldest first.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.health.remarks.borrow().clone()
    }

    /// Commits everything absorbed so far.
    pub async fn sync(&self) -> Result<(), PoolError> {
        self.commit_all().await
    }
}

fn too_small(path: &str, size_bytes: u64, needed_bytes: u64) -> PoolError {
    PoolError::new(format!(
        "{path} has {}, but {} are needed; use a larger device",
        forebay_units::format_bytes(size_bytes),
        forebay_units::format_bytes(needed_bytes)
    ))
}

fn forget(member: &mut MemberConfig, device: u32) {
    if member.device == device
        && let Some(next) = member.replacement.take()
    {
        *member = *next;
    }
    if let Some(mut next) = member.replacement.take() {
        forget(&mut next, device);
        if next.device != device {
            member.replacement = Some(next);
        }
    }
}

fn worse(a: Health, b: Health) -> Health {
    a.max(b)
}

fn leaf(member: &MemberConfig, state: Health) -> VdevStatus {
    VdevStatus {
        name: member.path.clone(),
        kind: "device".into(),
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: String::new(),
        size_bytes: member.size_bytes,
        io: crate::status::IoCounts::default(),
        children: Vec::new(),
    }
}

fn member_status(
    member: &MemberConfig,
    now: Option<&MemberStatus>,
    io: Option<Counts>,
    scan: Option<&crate::status::ScanStatus>,
) -> VdevStatus {
    let state = match now.map(|n| n.state) {
        Some(MemberState::Online) => Health::Online,
        Some(MemberState::Degraded) => Health::Degraded,
        Some(MemberState::Offline) => Health::Offline,
        Some(MemberState::Faulted) => Health::Faulted,
        Some(MemberState::Unavail | MemberState::Removed) | None => Health::Unavail,
    };
    let mut vdev = leaf(member, state);
    vdev.io = io.map(|c| io_counts(&c)).unwrap_or_default();
    if let Some(now) = now {
        vdev.read_errors = now.errors.read;
        vdev.write_errors = now.errors.write;
        vdev.checksum_errors = now.errors.checksum;
        if now.stale_segments > 0 && state == Health::Online {
            let running = scan.is_some_and(|s| s.kind == "resilver" && s.state == "in progress");
            vdev.note = if running { "resilvering" } else { "awaiting resilver" }.into();
        }
    }
    vdev
}

/// A node above devices. A group of one device is that device.
fn branch(kind: &str, number: usize, state: Health, mut children: Vec<VdevStatus>) -> VdevStatus {
    let single = matches!(kind, "mirror" | "raid0") && children.len() == 1;
    if single {
        return children.remove(0);
    }
    let sum = |of: fn(&VdevStatus) -> u64| children.iter().map(of).sum();
    VdevStatus {
        name: format!("{kind}-{number}"),
        kind: kind.to_owned(),
        state,
        read_errors: sum(|c| c.read_errors),
        write_errors: sum(|c| c.write_errors),
        checksum_errors: sum(|c| c.checksum_errors),
        note: String::new(),
        size_bytes: sum(|c| c.size_bytes),
        io: crate::status::IoCounts::default(),
        children,
    }
}
