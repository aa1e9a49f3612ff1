#![allow(clippy::disallowed_methods, reason = "a test makes the kernel's files itself")]

use forebay_rt::Runtime;

use super::*;

/// A tree like the kernel's, removed when it is dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sensors_are_found_named_and_read() {
    let tree = Tree::new("sensors");
    let disk = "block/nvme0n1/device/hwmon3";
    tree.put(&format!("{disk}/name"), "nvme");
    tree.put(&format!("{disk}/temp1_input"), "41850");
    tree.put(&format!("{disk}/power1_input"), "3500000");
    // The kernel lists the drive's chip again, beside all others.
    tree.put("class/hwmon/hwmon3/name", "nvme");
    tree.put("class/hwmon/hwmon3/power1_input", "3500000");
    tree.put("class/hwmon/hwmon4/name", "power_meter");
    tree.put("class/hwmon/hwmon4/power1_average", "95000000");
    tree.put("class/hwmon/hwmon4/power1_input", "90000000");
    tree.put("class/hwmon/hwmon5/name", "coretemp");
    tree.put("class/hwmon/hwmon5/temp1_input", "50000");
    tree.put("class/hwmon/hwmon6/name", "ina226");
    tree.put("class/hwmon/hwmon6/power1_input", "12000000");
    tree.put("class/hwmon/hwmon6/power1_label", "slot 2");
    let zone = "class/powercap/intel-rapl:0";
    tree.put(&format!("{zone}/name"), "package-0");
    tree.put(&format!("{zone}/energy_uj"), "999000000");
    tree.put(&format!("{zone}/max_energy_range_uj"), "1000000000");
    tree.put("class/powercap/intel-rapl:0:0/name", "core");
    tree.put("class/powercap/intel-rapl:0:0/energy_uj", "5");
    let mut sensors = Sensors::find(&tree.0, Some(&tree.0.join("block/nvme0n1")));
    assert_eq!(sensors.temperature_c(), Some(41.85));
    let wanted = [
        "temperature of the drive",
        "power of drive",
        "power of package-0",
        "power of power_meter",
        "power of ina226 slot 2",
    ];
    assert_eq!(sensors.names(), wanted);
    let power = Runtime::simulated(1).block_on(async move {
        sensors.begin();
        sensors.sample();
        rt::sleep(Nanos::from_secs(2)).await;
        tree.put(&format!("{disk}/power1_input"), "5500000");
        // The counter of energy began anew, at its range.
        tree.put(&format!("{zone}/energy_uj"), "61000000");
        sensors.sample();
        sensors.power()
    });
    let watts: Vec<f64> = power.iter().map(|power| power.watts).collect();
    assert_eq!(watts.len(), 4, "{power:?}");
    assert_eq!((watts[0], watts[2], watts[3]), (4.5, 95.0, 12.0));
    assert!((watts[1] - 31.0).abs() < 0.1, "62 J in 2 s: {power:?}");
}

#[test]
fn machine_without_sensors_has_none() {
    let tree = Tree::new("sensors-none");
    let mut sensors = Sensors::find(&tree.0, None);
    sensors.begin();
    assert_eq!((sensors.names().len(), sensors.temperature_c()), (0, None));
    assert_eq!(sensors.power(), vec![]);
    // A file that gives no number is no sensor.
    tree.put("class/hwmon/hwmon0/power1_input", "");
    tree.put("class/powercap/intel-rapl:0/energy_uj", "hidden");
    assert_eq!(Sensors::find(&tree.0, None).names().len(), 0);
}
