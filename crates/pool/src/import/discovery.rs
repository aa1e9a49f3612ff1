//! Discovery: the pools that could be imported from a set of devices.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::{MemberConfig, MemberUse, PoolConfig};
use forebay_units::Layout;

use crate::admin::candidate::owner_of;
use crate::import::device_match::{Seen, look_at, newest_root};
use crate::import::divergence::one_history;
use crate::import::found::Found;
use crate::layout::{geometry_of, log_number, member_of};
use crate::opener::FencedOpener;
use crate::status::report::{branch, leaf, worse};
use crate::status::{FoundPool, Health, Importable, VdevKind, VdevNote, VdevStatus};
use crate::{Opener, Pool};

impl Pool {
    /// Looks for pools on `paths`. Devices that cannot be opened or have no label are skipped.
    pub async fn discover(opener: Rc<dyn Opener>, paths: &[String]) -> Vec<FoundPool> {
        let Seen { found, caches, .. } = look_at(&FencedOpener::new(opener), paths).await;
        let mut by_guid: BTreeMap<u64, Vec<&Found>> = BTreeMap::new();
        for device in &found {
            by_guid.entry(device.label.configs[0].0.pool).or_default().push(device);
        }
        let mut pools: Vec<FoundPool> =
            by_guid.into_iter().filter_map(|(guid, devices)| found_pool(guid, &devices)).collect();
        for (header, path) in caches {
            for pool in pools.iter_mut().filter(|pool| pool.guid == header.pool) {
                pool.paths.push(path.clone());
            }
        }
        pools
    }
}

/// The pool `guid` as its devices show it. `None` if none of them belongs to it any more.
fn found_pool(guid: u64, devices: &[&Found]) -> Option<FoundPool> {
    let history = one_history(devices.to_vec(), None);
    let newest = history.and_then(|history| newest_root(&history.devices, 0));
    let config = match &newest {
        Ok((_, config)) => config.clone(),
        Err(_) => devices[0].label.configs[0].1.clone(),
    };
    // Devices that left a pool, or whose pool was destroyed, belong to no pool.
    if config.destroyed || devices.iter().all(|f| owner_of(&f.label).is_none()) {
        return None;
    }
    let members = Members { config: &config, devices };
    let (groups_health, groups) = members.groups();
    let (logs_health, logs) = members.logs();
    let mut state = worse(groups_health, logs_health);
    let importable = match newest {
        Err(kind) => {
            state = Health::Unavail;
            Importable::Refused(kind)
        }
        Ok((root, _)) if members.is_log_missing() => {
            Importable::WithoutLog { loses_writes: !root.exported }
        }
        Ok((root, _)) if root.exported => Importable::Exported,
        Ok(_) => Importable::NotExported,
    };
    let paths = members.paths();
    Some(FoundPool { name: config.name, guid, state, groups, logs, importable, paths })
}

/// The members of a configuration, and the devices found of its pool.
struct Members<'a> {
    config: &'a PoolConfig,
    devices: &'a [&'a Found],
}

impl Members<'_> {
    /// Paths of the devices that the configuration has.
    fn paths(&self) -> Vec<String> {
        let belongs = |f: &&&Found| member_of(self.config, f.label.configs[0].0.device).is_some();
        self.devices.iter().filter(belongs).map(|f| f.path.clone()).collect()
    }

    fn found(&self, member: &MemberConfig) -> Option<&Found> {
        let is_it = |f: &&&Found| f.label.configs[0].0.device == member.device;
        self.devices.iter().find(is_it).copied()
    }

    fn is_here(&self, member: &MemberConfig) -> bool {
        self.found(member).is_some()
    }

    fn vdev(&self, member: &MemberConfig) -> VdevStatus {
        let state = match (self.is_here(member), member.state) {
            (false, _) => Health::Unavail,
            (true, MemberUse::Online) => Health::Online,
            (true, MemberUse::Offline) => Health::Offline,
            (true, MemberUse::Faulted) => Health::Faulted,
        };
        // A disk may have got another name since the pool was open.
        let path = self.found(member).map_or(&member.path, |found| &found.path);
        let mut vdev = leaf(path, member.size_bytes, state);
        if state == Health::Online && (member.stale_since.is_some() || !member.stale.is_empty()) {
            vdev.note = Some(VdevNote::AwaitingResilver);
        }
        vdev
    }

    /// A member with its replacements, as `pool status` shows them.
    fn slot(&self, column: usize, first: &MemberConfig) -> VdevStatus {
        let chain = std::iter::successors(Some(first), |m| m.replacement.as_deref());
        let mut chain: Vec<VdevStatus> = chain.map(|member| self.vdev(member)).collect();
        if chain.len() == 1 {
            return chain.remove(0);
        }
        let is_whole = |m: &VdevStatus| m.state == Health::Online && m.note.is_none();
        let state = if chain.iter().any(is_whole) { Health::Online } else { Health::Degraded };
        branch(VdevKind::Replacing, column, state, chain)
    }

    /// The groups, and the health of the worst.
    fn groups(&self) -> (Health, Vec<VdevStatus>) {
        let mut worst = Health::Online;
        let mut groups = Vec::new();
        for (number, group) in self.config.groups.iter().enumerate() {
            let slots = group.members.iter().enumerate();
            let children: Vec<VdevStatus> = slots.map(|(at, first)| self.slot(at, first)).collect();
            let needed = geometry_of(group).data_columns().max(1);
            let health = health_of(&children, needed);
            worst = worse(worst, health);
            groups.push(branch(VdevKind::Group(group.layout), number, health, children));
        }
        (worst, groups)
    }

    /// The log devices, and what they make of the pool: without one, it is degraded.
    fn logs(&self) -> (Health, Vec<VdevStatus>) {
        let mut worst = Health::Online;
        let mut logs = Vec::new();
        for ring in &self.config.logs {
            let children: Vec<VdevStatus> = ring.sides.iter().map(|s| self.vdev(s)).collect();
            let health = health_of(&children, 1);
            worst = worse(worst, health.min(Health::Degraded));
            logs.push(branch(
                VdevKind::Group(Layout::Mirror),
                log_number(self.config, ring),
                health,
                children,
            ));
        }
        (worst, logs)
    }

    /// Whether a log device that was in use has no side here.
    fn is_log_missing(&self) -> bool {
        self.config.logs.iter().any(|ring| {
            ring.sides.iter().any(|side| side.state == MemberUse::Online)
                && !ring.sides.iter().any(|side| self.is_here(side))
        })
    }
}

/// The health of a group or log device of which `needed` devices must be online.
fn health_of(children: &[VdevStatus], needed: usize) -> Health {
    match children.iter().filter(|child| child.state == Health::Online).count() {
        online if online == children.len() => Health::Online,
        online if online >= needed => Health::Degraded,
        _ => Health::Unavail,
    }
}
