//! Sensors of the machine and of a disk: temperature and power, from files of the kernel.
//!
//! What enters: the folder of sysfs and the disk's folder in it. What leaves: degrees, and the mean
//! power of a step by sensor. What always holds: a sensor that cannot be read is left out. Who
//! calls: `qualify`.

use std::path::{Path, PathBuf};

use forebay_qualify::Power;
use forebay_rt as rt;
use forebay_units::Nanos;

use super::facts::line;

/// What can be read.
#[derive(Default)]
pub struct Sensors {
    /// In thousandths of a degree Celsius.
    temperature: Option<PathBuf>,
    power: Vec<Meter>,
}

/// A sensor of power, and what it said since the step began.
struct Meter {
    name: String,
    file: PathBuf,
    kind: MeterKind,
    sum_watts: f64,
    samples: u32,
    begun: Option<(Nanos, f64)>,
}

/// What the file counts.
enum MeterKind {
    /// Microjoules since some time, which begin anew at this number.
    Energy { range_uj: Option<f64> },
    /// Microwatts now.
    Watts,
}

fn number(file: &Path) -> Option<f64> {
    line(file)?.parse().ok()
}

/// Entries of a folder, in order; none where it is missing.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folders of a disk's own sensors: drivers put them at either place.
fn of_disk(disk: &Path) -> Vec<PathBuf> {
    let places = ["device", "device/hwmon"].map(|place| disk.join(place));
    let all = places.iter().flat_map(|place| entries(place));
    all.filter(|path| name_of(path).starts_with("hwmon") && name_of(path) != "hwmon").collect()
}

/// The power sensors of a hwmon folder.
fn of_hwmon(folder: &Path, owner: Option<&str>) -> Vec<Meter> {
    let chip = line(&folder.join("name")).unwrap_or_else(|| name_of(folder));
    let mut meters: Vec<Meter> = Vec::new();
    for file in entries(folder) {
        let file_name = name_of(&file);
        let Some((number, ending)) = file_name.split_once('_') else { continue };
        // Either file is enough: a chip has the mean over its interval, the last value, or both.
        let is_second = ending == "input" && folder.join(format!("{number}_average")).exists();
        if !number.starts_with("power") || !["average", "input"].contains(&ending) || is_second {
            continue;
        }
        let label = line(&folder.join(format!("{number}_label")));
        let label = label.map(|label| format!(" {label}")).unwrap_or_default();
        let name = format!("{}{label}", owner.unwrap_or(&chip));
        meters.push(Meter::new(name, file, MeterKind::Watts));
    }
    meters
}

impl Meter {
    fn new(name: String, file: PathBuf, kind: MeterKind) -> Self {
        Self { name, file, kind, sum_watts: 0.0, samples: 0, begun: None }
    }

    fn begin(&mut self) {
        (self.sum_watts, self.samples) = (0.0, 0);
        self.begun = number(&self.file).map(|value| (rt::now(), value));
    }

    fn sample(&mut self) {
        if let (MeterKind::Watts, Some(value)) = (&self.kind, number(&self.file)) {
            self.sum_watts += value / 1e6;
            self.samples += 1;
        }
    }

    /// Watts since the step began.
    fn mean(&self) -> Option<f64> {
        match self.kind {
            MeterKind::Watts => {
                (self.samples > 0).then(|| self.sum_watts / f64::from(self.samples))
            }
            MeterKind::Energy { range_uj } => {
                let ((begun, before), now) = (self.begun?, number(&self.file)?);
                let turn = if now < before { range_uj? } else { 0.0 };
                let seconds = rt::now().since(begun).as_secs_f64();
                (seconds > 0.0).then(|| (now + turn - before) / 1e6 / seconds)
            }
        }
    }
}

impl Sensors {
    /// Those below `sys` (`/sys`), and those of the disk whose folder is `disk`.
    pub fn find(sys: &Path, disk: Option<&Path>) -> Self {
        let own: Vec<PathBuf> = disk.map(of_disk).unwrap_or_default();
        let temperature = own.iter().map(|folder| folder.join("temp1_input"));
        let temperature = temperature.into_iter().find(|file| number(file).is_some());
        let mut power: Vec<Meter> =
            own.iter().flat_map(|folder| of_hwmon(folder, Some("drive"))).collect();
        let owned: Vec<String> = own.iter().map(|path| name_of(path)).collect();
        for zone in entries(&sys.join("class/powercap")) {
            // intel-rapl:0 is a package, and intel-rapl:0:1 a part of it.
            let zone_name = name_of(&zone);
            if zone_name.matches(':').count() != 1 || zone_name.contains("mmio") {
                continue;
            }
            let name = line(&zone.join("name")).unwrap_or(zone_name);
            let range_uj = number(&zone.join("max_energy_range_uj"));
            let kind = MeterKind::Energy { range_uj };
            power.push(Meter::new(name, zone.join("energy_uj"), kind));
        }
        for folder in entries(&sys.join("class/hwmon")) {
            if !owned.contains(&name_of(&folder)) {
                power.extend(of_hwmon(&folder, None));
            }
        }
        power.retain(|meter| number(&meter.file).is_some());
        Self { temperature, power }
    }

    /// Names of what is there, for people.
    pub fn names(&self) -> Vec<String> {
        let temperature = self.temperature.iter().map(|_| "temperature of the drive".to_owned());
        temperature
            .chain(self.power.iter().map(|meter| format!("power of {}", meter.name)))
            .collect()
    }

    /// Degrees Celsius.
    pub fn temperature_c(&self) -> Option<f64> {
        number(self.temperature.as_ref()?).map(|thousandths| thousandths / 1000.0)
    }

    /// A step begins.
    pub fn begin(&mut self) {
        self.power.iter_mut().for_each(Meter::begin);
    }

    /// A moment of the step.
    pub fn sample(&mut self) {
        self.power.iter_mut().for_each(Meter::sample);
    }

    /// The mean power of the step.
    pub fn power(&self) -> Vec<Power> {
        let mean = |meter: &Meter| Some(Power { sensor: meter.name.clone(), watts: meter.mean()? });
        self.power.iter().filter_map(mean).collect()
    }
}

#[cfg(test)]
mod tests;
