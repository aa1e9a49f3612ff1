//! Reports: the summary and the status of an imported pool.

use forebay_array::{GroupGeometry, MemberState, MemberStatus};
use forebay_device::layers::Counts;
use forebay_format::config::{MemberConfig, MemberUse, RingConfig};
use forebay_segment::SegmentKind;
use forebay_units::{BLOCK_BYTES, DeviceId, Layout};

use crate::Pool;
use crate::layout::log_number;
use crate::opener::OpenDevice;
use crate::status::stats::io_counts;
use crate::status::{
    Health, LogMemory, ObjectsStatus, PoolCondition, PoolStatus, PoolSummary, Protection, ScanKind,
    ScanPhase, VdevKind, VdevNote, VdevSpace, VdevStatus,
};

impl Pool {
    /// A line of `pool list`.
    #[must_use]
    pub fn summary(&self) -> PoolSummary {
        let usable = self.dirty.space.usable_blocks.get() * BLOCK_BYTES;
        let map = self.store.map.borrow();
        let mapped: u64 = map.volumes().map(|v| map.placed_blocks(v)).sum();
        let alloc_bytes = mapped * BLOCK_BYTES;
        let (dedup, compression) = (self.dedup_stats(), self.compression_stats());
        let (raw_size_bytes, data_bytes) = self.raw_bytes();
        let share = u128::from(alloc_bytes) * u128::from(raw_size_bytes);
        let raw_alloc_bytes = share.checked_div(u128::from(data_bytes)).unwrap_or(0) as u64;
        PoolSummary {
            name: self.name(),
            guid: self.guid,
            format_version: self.sync.version.get(),
            size_bytes: usable,
            alloc_bytes,
            free_bytes: usable.saturating_sub(alloc_bytes),
            available_bytes: self.free_blocks() * BLOCK_BYTES,
            overdrawn_bytes: self.overdrawn_blocks() * BLOCK_BYTES,
            raw_size_bytes,
            raw_alloc_bytes,
            raw_free_bytes: raw_size_bytes.saturating_sub(raw_alloc_bytes),
            dedup_referenced_bytes: dedup.referenced_bytes,
            dedup_stored_bytes: dedup.stored_bytes,
            compressed_referenced_bytes: compression.referenced_bytes,
            compressed_stored_bytes: compression.stored_bytes,
            health: self.overall(),
            store: self.store_summary(),
        }
    }

    /// Bytes of all segments with their parity (a mirror counts as one side), and their data bytes.
    fn raw_bytes(&self) -> (u64, u64) {
        let each = self.store.array.groups().into_iter().map(|group| raw_bytes_of(&group));
        each.fold((0, 0), |sum, group| (sum.0 + group.0, sum.1 + group.1))
    }

    /// Space of each group, in order.
    fn group_space(&self) -> Vec<VdevSpace> {
        let groups = self.store.array.groups();
        let mut live = vec![0u64; groups.len()];
        self.store.table.for_each(|segment, info| {
            let at = groups.partition_point(|group| group.first_segment <= segment.0);
            if let (SegmentKind::Data, Some(live)) = (info.kind, live.get_mut(at.wrapping_sub(1))) {
                *live += u64::from(info.live);
            }
        });
        let space = |(group, live): (&GroupGeometry, u64)| {
            let (raw_size_bytes, data_bytes) = raw_bytes_of(group);
            let share = u128::from(live * BLOCK_BYTES) * u128::from(raw_size_bytes);
            let raw_alloc_bytes = share.checked_div(u128::from(data_bytes)).unwrap_or(0) as u64;
            VdevSpace { raw_size_bytes, raw_alloc_bytes: Some(raw_alloc_bytes) }
        };
        groups.iter().zip(live).map(space).collect()
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
        let status = self.store.array.status();
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let mut groups = Vec::new();
        let space = self.group_space();
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
                            let open = devices.get(&DeviceId(m.device));
                            vdev.protection = self.protection(open);
                            vdev.objects = open
                                .and_then(|open| open.device().objects())
                                .map(ObjectsStatus::from);
                            let suspect = self.health.diagnosis.suspects(DeviceId(m.device));
                            if suspect && vdev.state == Health::Online && vdev.note.is_none() {
                                vdev.state = Health::Degraded;
                                vdev.note = Some(VdevNote::TooManyErrors);
                            }
                            vdev
                        })
                        .collect();
                if members.len() == 1 {
                    children.extend(members);
                } else {
                    // A whole original keeps the group's redundancy until the copy is whole too.
                    let whole = |v: &VdevStatus| v.state == Health::Online && v.note.is_none();
                    let is_whole = members.iter().any(whole);
                    let state = if is_whole { Health::Online } else { Health::Degraded };
                    children.push(branch(VdevKind::Replacing, column, state, members));
                }
            }
            let good = children.iter().filter(|c| c.state == Health::Online && c.note.is_none());
            let all = good.count() == children.len();
            let state = if all { Health::Online } else { Health::Degraded };
            let mut vdev = branch(VdevKind::Group(group.layout), number, state, children);
            vdev.space = space.get(number).copied();
            groups.push(vdev);
        }
        groups
    }

    fn protection(&self, open: Option<&OpenDevice>) -> Option<Protection> {
        let is_reserved = self.opener.monitor().has_reserved(open?.device().name());
        Some(if is_reserved { Protection::Reservation } else { Protection::Heartbeat })
    }

    fn log_memory_of(&self, open: &OpenDevice, ring: &RingConfig) -> Option<LogMemory> {
        let dram = open.device().dram()?;
        if !dram.needs_mirror {
            return Some(dram.into());
        }
        let devices = self.devices.borrow();
        let holds = |side: &&MemberConfig| {
            let device = devices.get(&DeviceId(side.device)).map(|open| open.device());
            side.state == MemberUse::Online
                && device.is_some_and(|device| !device.dram().is_some_and(|d| d.needs_mirror))
        };
        let opener = self.opener.source();
        let others: Vec<&MemberConfig> = ring.sides.iter().filter(holds).collect();
        let is_elsewhere = others.iter().any(|side| opener.answers(&side.path).is_some());
        Some(LogMemory::from(dram).in_mirror((!others.is_empty(), is_elsewhere)))
    }

    fn log_status(&self) -> Vec<VdevStatus> {
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let errors = self.health.log_errors.borrow();
        let rings = self.log.rings();
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
                let mut vdev = leaf(&side.path, side.size_bytes, state);
                vdev.protection = self.protection(open);
                vdev.memory = open.and_then(|d| self.log_memory_of(d, ring));
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
            let mut vdev =
                branch(VdevKind::Group(Layout::Mirror), log_number(&config, ring), state, children);
            // A log device that the log does not use at present holds nothing to replay.
            let held = rings.iter().find(|(index, ..)| u32::from(*index) == ring.ring);
            let (used, len) = held.map_or((0, ring.len_bytes), |(_, used, len)| (*used, *len));
            vdev.space = Some(VdevSpace { raw_size_bytes: len, raw_alloc_bytes: Some(used) });
            logs.push(vdev);
        }
        logs
    }

    /// Everything that `pool status` shows.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let (lost, lost_count) = self.lost();
        let state = self.overall();
        PoolStatus {
            name: self.name(),
            guid: self.guid,
            state,
            scan: self.scan_status(),
            scrubbed_at: self.config.borrow().scrubbed_at,
            groups: self.group_status(),
            logs: self.log_status(),
            caches: self.cache_device_status(),
            spares: self.spare_status(),
            lost,
            lost_count,
            txg: self.sync.committed.get().0,
            outage_reserve: self.outage_reserve(),
            store: self.store_summary(),
        }
    }

    /// Whether `so` holds for every device.
    fn all_devices(&self, so: fn(&VdevStatus) -> bool) -> bool {
        fn all(vdev: &VdevStatus, so: fn(&VdevStatus) -> bool) -> bool {
            match vdev.children.is_empty() {
                true => so(vdev),
                false => vdev.children.iter().all(|child| all(child, so)),
            }
        }
        self.group_status().iter().chain(&self.log_status()).all(|vdev| all(vdev, so))
    }

    /// What is wrong with the pool.
    #[must_use]
    pub fn condition(&self) -> PoolCondition {
        if let Some(reason) = &*self.lifecycle.stopped.borrow() {
            return PoolCondition::Suspended(reason.clone());
        }
        if self.lost().1 > 0 {
            return PoolCondition::DataLost;
        }
        let is_degraded = self.overall() == Health::Degraded;
        if is_degraded && self.all_devices(is_well) {
            return PoolCondition::Rebuilding;
        }
        if is_degraded && self.all_devices(|d| is_well(d) || d.state == Health::Offline) {
            return PoolCondition::DevicesOffline;
        }
        if is_degraded {
            return PoolCondition::DevicesFailed { last: self.health.events.last() };
        }
        if let Some(condition) = self.store_condition() {
            return condition;
        }
        match self.all_devices(has_no_errors) {
            true => PoolCondition::Well,
            false => PoolCondition::DeviceErrors,
        }
    }
}

/// Whether the device is there and works; at most, a resilver of it is not done.
fn is_well(device: &VdevStatus) -> bool {
    let is_rebuilt =
        matches!(device.note, None | Some(VdevNote::Resilvering | VdevNote::AwaitingResilver));
    device.state == Health::Online && is_rebuilt
}

fn has_no_errors(device: &VdevStatus) -> bool {
    device.read_errors + device.write_errors + device.checksum_errors == 0
}

/// Bytes of all segments of a group with their parity (a mirror counts as one side), and their data
/// bytes.
fn raw_bytes_of(group: &GroupGeometry) -> (u64, u64) {
    let columns = match group.layout {
        Layout::Mirror => 1,
        _ => group.members as u64,
    };
    let segments = u64::from(group.segments);
    let data_blocks = u64::from(crate::layout::data_blocks(group));
    (segments * group.column_bytes * columns, segments * data_blocks * BLOCK_BYTES)
}

pub(crate) fn worse(a: Health, b: Health) -> Health {
    a.max(b)
}

pub(crate) fn leaf(path: &str, size_bytes: u64, state: Health) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: VdevKind::Device,
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
        size_bytes,
        space: None,
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
    let mut vdev = leaf(&member.path, member.size_bytes, state);
    vdev.io = io.map(|c| io_counts(&c)).unwrap_or_default();
    if let Some(now) = now {
        vdev.read_errors = now.errors.read;
        vdev.write_errors = now.errors.write;
        vdev.checksum_errors = now.errors.checksum;
        if now.stale_segments > 0 && state == Health::Online {
            let running = scan
                .is_some_and(|s| s.kind == ScanKind::Resilver && s.state == ScanPhase::InProgress);
            let note = if running { VdevNote::Resilvering } else { VdevNote::AwaitingResilver };
            vdev.note = Some(note);
        }
    }
    vdev
}

/// A node above devices. A group of one device is that device. Errors of the devices below do not
/// count here, because they were repaired and did not reach this level.
pub(crate) fn branch(
    kind: VdevKind,
    number: usize,
    state: Health,
    mut children: Vec<VdevStatus>,
) -> VdevStatus {
    let single =
        matches!(kind, VdevKind::Group(Layout::Mirror | Layout::Raid0)) && children.len() == 1;
    if single {
        return children.remove(0);
    }
    let sum = |of: fn(&VdevStatus) -> u64| children.iter().map(of).sum();
    VdevStatus {
        name: format!("{}-{number}", kind.as_str()),
        kind,
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
        size_bytes: sum(|c| c.size_bytes),
        space: None,
        io: crate::status::IoCounts::default(),
        children,
    }
}

#[cfg(test)]
mod tests;
