//! Discovery: the pools that could be imported from a set of devices.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::{MemberConfig, MemberUse};

use crate::admin::candidate::owner_of;
use crate::import::device_match::{Found, find_devices, newest_root};
use crate::import::divergence::one_history;
use crate::layout::log_number;
use crate::opener::FencedOpener;
use crate::status::report::{branch, leaf, worse};
use crate::status::{FoundPool, Health, Importable, VdevStatus};
use crate::{Opener, Pool};

impl Pool {
    /// Looks for pools on `paths`. Devices that cannot be opened or have no label are skipped.
    pub async fn discover(opener: Rc<dyn Opener>, paths: &[String]) -> Vec<FoundPool> {
        let found = find_devices(&FencedOpener::new(opener), paths).await;
        let mut by_guid: BTreeMap<u64, Vec<&Found>> = BTreeMap::new();
        for device in &found {
            by_guid.entry(device.label.configs[0].0.pool).or_default().push(device);
        }
        let mut pools = Vec::new();
        for (guid, devices) in by_guid {
            let history = one_history(devices.clone(), None);
            let newest = history.and_then(|history| newest_root(&history.devices, 0));
            let config = match &newest {
                Ok((_, config)) => config.clone(),
                Err(_) => devices[0].label.configs[0].1.clone(),
            };
            // Devices that left a pool, or whose pool was destroyed, belong to no pool.
            if config.destroyed || devices.iter().all(|f| owner_of(&f.label).is_none()) {
                continue;
            }
            let belongs = |f: &&&Found| {
                crate::layout::member_of(&config, f.label.configs[0].0.device).is_some()
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
                let mut vdev = leaf(m, state);
                if state == Health::Online && (m.stale_since.is_some() || !m.stale.is_empty()) {
                    vdev.note = "awaiting resilver".into();
                }
                vdev
            };
            let mut state = Health::Online;
            let mut groups = Vec::new();
            for (number, group) in config.groups.iter().enumerate() {
                let children: Vec<VdevStatus> = group.members.iter().map(vdev).collect();
                let good = children.iter().filter(|c| c.state == Health::Online).count();
                let geometry = crate::layout::geometry_of(group).ok();
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
                logs.push(branch("mirror", log_number(&config, ring), health, children));
            }
            let log_is_gone = config.logs.iter().any(|ring| {
                ring.sides.iter().any(|side| side.state == MemberUse::Online)
                    && !ring.sides.iter().any(is_here)
            });
            let importable = match newest {
                Err(kind) => {
                    state = Health::Unavail;
                    Importable::Refused(kind)
                }
                Ok((root, _)) if log_is_gone => {
                    Importable::WithoutLog { loses_writes: !root.exported }
                }
                Ok((root, _)) if root.exported => Importable::Exported,
                Ok(_) => Importable::NotExported,
            };
            let name = config.name;
            pools.push(FoundPool { name, guid, state, groups, logs, importable, paths });
        }
        pools
    }
}
