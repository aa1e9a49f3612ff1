//! Health of the drives below pools: temperature, wear, errors, as smartctl and nvme-cli read them.
//!
//! What enters: paths of devices, every ten minutes. What leaves: the last reading of each drive,
//! or why there is none. What always holds: a tool that hangs delays nothing but the next reading.
//! Who calls: the server, `pool status -v`, the metrics, the web page.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use forebay_pool::status::{PoolStatus, VdevStatus};
use forebay_qualify::Health;
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::commands::{disk_folder, drive_health};
use crate::pools::PoolSet;
use crate::wear_forecast::{Begun, Forecast, forecast};

/// Between two readings: each disturbs the drive.
const READ_INTERVAL: Nanos = Nanos::from_secs(600);
/// Between two looks at whether there are devices that were not read yet.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(10);
/// A drive that was under power for less has no rate of wear yet.
const FORECAST_HOURS_MIN: u64 = 24 * 30;
const HOURS_PER_YEAR: f64 = 24.0 * 365.25;

/// The drive below a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drive {
    /// `/dev/NAME`.
    pub disk: String,
    /// Its counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unknown: String,
    /// Years until its rated life is used up, if it wears as it has so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub years_left: Option<f64>,
    /// Years left at the rate at which it is written, and what the flash model of its type says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

impl Drive {
    async fn read(disk: String, begun: Option<Begun>) -> Self {
        match drive_health(&disk).await {
            Ok(health) => {
                let years_left = years_left(&health);
                let forecast = forecast(&health, begun, rt::now());
                Self { disk, health: Some(health), unknown: String::new(), years_left, forecast }
            }
            Err(unknown) => Self { disk, unknown, ..Self::default() },
        }
    }
}

/// How long the rest of the rated life lasts at the rate of the time under power.
fn years_left(health: &Health) -> Option<f64> {
    let hours = health.power_on_hours.filter(|hours| *hours >= FORECAST_HOURS_MIN)? as f64;
    let used = health.used_percent.filter(|used| *used > 0.0)?;
    Some((hours * (100.0 - used).max(0.0) / used) / HOURS_PER_YEAR)
}

/// Readings by the paths of devices.
#[derive(Default)]
pub struct Drives {
    known: RefCell<BTreeMap<String, Drive>>,
    /// The first reading of each disk.
    begun: RefCell<BTreeMap<String, Begun>>,
}

impl Drives {
    /// Reads the drives below `devices`. Devices that lie on one drive share its reading; files
    /// have none.
    pub async fn read(&self, devices: &[String]) {
        let paths = devices.to_vec();
        let disks: Vec<(String, String)> = rt::aside(move || {
            let named = |path: String| {
                let folder = disk_folder(Path::new(&path))?;
                let name = folder.file_name()?.to_string_lossy().into_owned();
                Some((path, format!("/dev/{name}")))
            };
            paths.into_iter().filter_map(named).collect()
        })
        .await;
        let mut read: BTreeMap<&str, Drive> = BTreeMap::new();
        for (path, disk) in &disks {
            if !read.contains_key(disk.as_str()) {
                let begun = self.begun.borrow().get(disk).copied();
                let drive = Drive::read(disk.clone(), begun).await;
                self.remember(&drive);
                read.insert(disk, drive);
            }
            let drive = read.get(disk.as_str()).cloned().unwrap_or_default();
            self.known.borrow_mut().insert(path.clone(), drive);
        }
    }

    fn remember(&self, drive: &Drive) {
        let written = drive.health.as_ref().and_then(|health| health.host_written);
        if let Some(written) = written {
            let begun = Begun { at: rt::now(), written_bytes: written.bytes };
            self.begun.borrow_mut().entry(drive.disk.clone()).or_insert(begun);
        }
    }

    /// What is known of the drives below the devices of a pool.
    #[must_use]
    pub fn of(&self, pool: &PoolStatus) -> BTreeMap<String, Drive> {
        let known = self.known.borrow();
        let drive = |path: String| Some((path.clone(), known.get(&path)?.clone()));
        devices_of(pool).into_iter().filter_map(drive).collect()
    }
}

/// The paths of a pool's devices.
pub fn devices_of(pool: &PoolStatus) -> Vec<String> {
    fn leaves(vdev: &VdevStatus, all: &mut Vec<String>) {
        if vdev.children.is_empty() {
            all.push(vdev.name.clone());
        }
        vdev.children.iter().for_each(|child| leaves(child, all));
    }
    let mut all = Vec::new();
    let lists = [&pool.groups, &pool.logs, &pool.caches];
    lists.into_iter().flatten().for_each(|vdev| leaves(vdev, &mut all));
    all.extend(pool.spares.iter().map(|spare| spare.name.clone()));
    all
}

/// Reads the drives of the pools of `set` as long as the process lives: new ones soon, and all of
/// them every ten minutes.
pub async fn keep_reading(set: Rc<PoolSet>) {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut read_at = rt::now();
    loop {
        // The pools themselves are not kept: they would hold their devices open.
        let devices: Vec<String> =
            set.pools().iter().flat_map(|pool| devices_of(&pool.status())).collect();
        let is_due = rt::now().since(read_at) >= READ_INTERVAL;
        if is_due || devices.iter().any(|device| !known.contains(device)) {
            read_at = rt::now();
            set.drives().read(&devices).await;
            known = devices.into_iter().collect();
        }
        rt::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wear_goes_on_as_it_has() {
        let health = |hours, used| Health {
            power_on_hours: Some(hours),
            used_percent: Some(used),
            ..Health::default()
        };
        let years = years_left(&health(8766, 10.0)).unwrap();
        assert!((years - 9.0).abs() < 1e-9, "{years}");
        assert_eq!(years_left(&health(8766, 130.0)), Some(0.0));
        assert_eq!(years_left(&health(100, 1.0)), None);
        assert_eq!(years_left(&health(8766, 0.0)), None);
    }
}
