//! The administrator's workload: which jobs are done to volumes and devices while clients work.
//!
//! What enters: the pool shape, the fault plan and a seed. What leaves: the jobs of each boot. What
//! always holds: a device is taken out only when parity or the log's mirror can spare it
//! ([`FaultPlan::removable`]). The pool may refuse a job; refusals are counted by name.

use forebay_sim::{Rng, Seed};

use crate::fault_plan::FaultPlan;
use crate::scenario::Admin;
use crate::subject::{Manage, PoolSpec, Raid, Sync};

/// The state of the workload from boot to boot.
pub struct AdminWorkload {
    /// Sizes of the volumes that clients use.
    volumes: Vec<u64>,
    next_volume: u32,
    /// Volumes that the administrator created and did not destroy.
    created: Vec<u32>,
    /// The run has jobs on devices.
    manages_devices: bool,
    data: Vec<usize>,
    removable: Vec<usize>,
    /// Disks that are offline.
    offline: Vec<usize>,
    /// Disks outside the pool.
    spares: Vec<usize>,
    /// Log disks that can hold nothing but a log: on other hosts, and in memory.
    only_logs: Vec<usize>,
    /// Log disks; empty when the log is on the data disks.
    log: Vec<usize>,
    /// Faults strike a log disk, so no mirror side may be left alone.
    log_needs_mirror: bool,
    /// New groups are mirrors.
    mirrors: bool,
    /// Groups are mirrors, whose copies come and go.
    has_copies: bool,
    /// Each group is one disk.
    is_single: bool,
    /// Sectors of volumes that were destroyed in a nearly full pool.
    free_sectors: u64,
}

impl AdminWorkload {
    /// The workload of a run on `spec` with the faults of `fault_plan`.
    #[must_use]
    pub fn new(
        spec: &PoolSpec,
        fault_plan: &FaultPlan,
        volumes: &[u64],
        manage: bool,
        seed: Seed,
    ) -> Self {
        let mut rng = seed.rng();
        let first_spare = spec.hot_spare_range().end;
        Self {
            volumes: volumes.to_vec(),
            next_volume: volumes.len() as u32,
            created: Vec::new(),
            manages_devices: manage && rng.chance(600),
            data: (0..spec.data_disks).collect(),
            removable: fault_plan.removable(spec, &mut rng),
            offline: Vec::new(),
            spares: (first_spare..spec.cache_range().start).collect(),
            only_logs: spec.remote_log_range().chain(spec.mirrored_memory_disks()).collect(),
            log: spec.log_range().collect(),
            log_needs_mirror: spec.log.sides() > 1 && fault_plan.strikes_log(spec),
            mirrors: spec.raid != Raid::Raid0,
            has_copies: spec.raid == Raid::Mirror && spec.last_group.is_none(),
            is_single: spec.data_disks == spec.groups,
            free_sectors: 0,
        }
    }

    /// The jobs of one boot.
    pub fn jobs(&mut self, seed: Seed) -> Vec<Admin> {
        let (rng, more) = (&mut seed.rng(), &mut seed.derive("more").rng());
        let mut jobs = Vec::new();
        for _ in 0..rng.between(1, 6) {
            jobs.push(Admin::Pause { ns: 1 << rng.between(14, 25) });
            let job = if self.manages_devices && rng.chance(600) {
                self.device_job(rng).map(Admin::Manage)
            } else {
                None
            };
            jobs.push(job.unwrap_or_else(|| self.volume_job(rng)));
            if self.manages_devices && more.chance(150) {
                jobs.push(self.sync(more));
            }
            if self.manages_devices && more.chance(150) {
                jobs.extend(self.structure(more).map(Admin::Manage));
            }
        }
        jobs
    }

    /// The jobs of one boot of a nearly full pool: volumes are created, destroyed and resized while
    /// the cleaner moves their blocks. Their total size never grows.
    pub fn jobs_of_a_full_pool(&mut self, seed: Seed) -> Vec<Admin> {
        let rng = &mut seed.rng();
        let mut jobs = Vec::new();
        for _ in 0..rng.between(2, 10) {
            jobs.push(Admin::Pause { ns: 1 << rng.between(18, 28) });
            let all = (self.volumes.len() + self.created.len()) as u64;
            jobs.push(match rng.below(16) {
                0..6 => {
                    let volume = rng.below(self.volumes.len() as u64) as u32;
                    let blocks = self.volumes[volume as usize] / 8;
                    let sectors = rng.between(blocks / 2, blocks) * 8;
                    // Sometimes back to the old size, which would show data that was cut off.
                    let sectors = if rng.chance(400) { blocks * 8 } else { sectors };
                    Admin::Resize { volume, sectors }
                }
                6..9 if self.volumes.len() > 1 && all > 1 => {
                    self.free_sectors += self.volumes.pop().unwrap_or(0);
                    Admin::Destroy { volume: self.volumes.len() as u32 }
                }
                9 if !self.created.is_empty() => {
                    Admin::Destroy { volume: self.created.swap_remove(0) }
                }
                6..12 if self.free_sectors > 0 => {
                    let sectors = (self.free_sectors / 8).min(rng.between(256, 4096)) * 8;
                    self.free_sectors -= sectors;
                    let volume = self.next_volume;
                    self.next_volume += 1;
                    self.created.push(volume);
                    Admin::Create { volume, sectors }
                }
                12 => self.sync(rng),
                13 if self.manages_devices => match self.device_job(rng) {
                    Some(job) => Admin::Manage(job),
                    None => Admin::Scrub,
                },
                14 => Admin::Scrub,
                _ => Admin::Manage(Manage::Commit),
            });
        }
        jobs
    }

    fn sync(&mut self, rng: &mut Rng) -> Admin {
        let volume = rng.below(self.volumes.len() as u64) as u32;
        Admin::Sync { volume, sync: *rng.pick(&[Sync::Standard, Sync::Always, Sync::Disabled]) }
    }

    /// Adds groups and copies, and removes copies.
    fn structure(&mut self, rng: &mut Rng) -> Option<Manage> {
        let copies = self.has_copies;
        match rng.below(3) {
            0 if copies || self.is_single => {
                let spare = self.spares.pop()?;
                Some(Manage::AttachCopy(*rng.pick(&self.data), spare))
            }
            1 if copies => {
                // A disk that may fail may also be removed.
                let able = |disk: &&usize| self.data.contains(disk) && !self.offline.contains(disk);
                let able: Vec<usize> = self.removable.iter().filter(able).copied().collect();
                let disk = *able.get(rng.below(able.len().max(1) as u64) as usize)?;
                self.removable.retain(|other| *other != disk);
                self.data.retain(|other| *other != disk);
                Some(Manage::DetachCopy(disk))
            }
            _ => self.group(),
        }
    }

    /// Turns all spares into a group. A pool with redundancy gets only mirrors.
    fn group(&mut self) -> Option<Manage> {
        let fits = if self.mirrors { self.spares.len() == 2 } else { self.spares.len() == 1 };
        fits.then(|| Manage::AddGroup(std::mem::take(&mut self.spares)))
    }

    fn volume_job(&mut self, rng: &mut Rng) -> Admin {
        match rng.below(8) {
            0 | 1 => {
                let volume = self.next_volume;
                self.next_volume += 1;
                self.created.push(volume);
                Admin::Create { volume, sectors: rng.between(8, 128) * 8 }
            }
            2 | 3 if !self.created.is_empty() => {
                let index = rng.below(self.created.len() as u64) as usize;
                Admin::Destroy { volume: self.created.swap_remove(index) }
            }
            4 | 5 => {
                let volume = rng.below(self.volumes.len() as u64) as u32;
                // Also smaller: sectors that were cut off must be zeros after a later growth.
                let blocks = self.volumes[volume as usize] / 8;
                let least = blocks - (blocks / 2).min(48);
                let sectors = rng.between(least, blocks + 64) * 8;
                Admin::Resize { volume, sectors }
            }
            6 => Admin::Manage(Manage::Commit),
            _ => Admin::Scrub,
        }
    }

    fn device_job(&mut self, rng: &mut Rng) -> Option<Manage> {
        match rng.below(10) {
            0..3 => {
                let able: Vec<usize> =
                    self.removable.iter().copied().filter(|d| !self.offline.contains(d)).collect();
                if able.is_empty() {
                    return self.online(rng);
                }
                let disk = *rng.pick(&able);
                self.offline.push(disk);
                Some(Manage::Offline(disk))
            }
            3..6 => self.online(rng),
            6 | 7 => self.replace(rng),
            _ => self.log_job(rng),
        }
    }

    fn online(&mut self, rng: &mut Rng) -> Option<Manage> {
        if self.offline.is_empty() {
            return None;
        }
        let index = rng.below(self.offline.len() as u64) as usize;
        Some(Manage::Online(self.offline.swap_remove(index)))
    }

    /// Replaces a data disk. Log disks are attached and detached instead.
    fn replace(&mut self, rng: &mut Rng) -> Option<Manage> {
        let spare = self.spares.pop()?;
        let index = rng.below(self.data.len() as u64) as usize;
        let old = std::mem::replace(&mut self.data[index], spare);
        self.removable.retain(|disk| *disk != old);
        self.offline.retain(|disk| *disk != old);
        Some(Manage::Replace(old, spare))
    }

    fn log_job(&mut self, rng: &mut Rng) -> Option<Manage> {
        match self.log.len() {
            0 => {
                let spare = self.spares.pop()?;
                self.log.push(spare);
                Some(Manage::AddLog(spare))
            }
            1 if rng.chance(500) && !self.spares.is_empty() => {
                let spare = self.spares.pop()?;
                let side = self.log[0];
                self.log.push(spare);
                Some(Manage::Attach(side, spare))
            }
            2.. if rng.chance(500) && !self.log_needs_mirror => {
                let index = rng.below(self.log.len() as u64) as usize;
                // Not when the remaining side is offline.
                if self.log.iter().enumerate().any(|(i, d)| i != index && self.offline.contains(d))
                {
                    return None;
                }
                let side = self.log.swap_remove(index);
                self.retire(&[side]);
                Some(Manage::Detach(side))
            }
            _ => {
                let all = std::mem::take(&mut self.log);
                self.retire(&all);
                Some(Manage::RemoveLog(all[0]))
            }
        }
    }

    fn retire(&mut self, disks: &[usize]) {
        self.removable.retain(|disk| !disks.contains(disk));
        self.offline.retain(|disk| !disks.contains(disk));
        // A disk that faults will strike must not replace one that they spare.
        if !self.log_needs_mirror {
            self.spares.extend(disks.iter().filter(|disk| !self.only_logs.contains(disk)));
        }
    }
}
