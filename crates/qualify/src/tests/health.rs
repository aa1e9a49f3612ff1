//! Counters as tools print them. The NVMe pages were recorded from a drive of qemu; the SATA page
//! has the attributes of a drive that counts the media's writes.

use super::*;

const SMARTCTL_NVME: &str = include_str!("health/smartctl-nvme.json");
const NVME: &str = include_str!("health/nvme-smart-log.json");
const SMARTCTL_SATA: &str = include_str!("health/smartctl-sata.json");

#[test]
fn counters_of_an_nvme_drive_are_the_same_by_both_tools() {
    let by_smartctl = Health::of_smartctl(SMARTCTL_NVME).unwrap();
    let by_nvme = Health::of_nvme(NVME).unwrap();
    assert_eq!((&*by_smartctl.source, &*by_nvme.source), ("smartctl", "nvme"));
    assert_eq!(by_smartctl.temperature_c, Some(50.0));
    assert_eq!((by_smartctl.used_percent, by_smartctl.critical_warning), (Some(0.0), Some(0)));
    assert!(by_smartctl.host_written.is_some_and(|c| c.unit_bytes == 512_000.0));
    // Only smartctl says what the drive calls itself.
    assert_eq!(by_smartctl.model.as_deref(), Some("QEMU NVMe Ctrl"));
    assert_eq!(Health { source: "nvme".to_owned(), model: None, ..by_smartctl }, by_nvme);
}

#[test]
fn counters_of_a_sata_drive_have_the_units_that_their_names_say() {
    let health = Health::of_smartctl(SMARTCTL_SATA).unwrap();
    let written = |counted: Option<Counted>| counted.unwrap().bytes;
    assert_eq!(written(health.host_written), 1_200_000.0 * 33_554_432.0);
    assert_eq!(written(health.media_written), 1_500_000.0 * 33_554_432.0);
    assert_eq!((health.used_percent, health.unsafe_shutdowns), (Some(7.0), Some(41)));
    assert_eq!((health.temperature_c, health.power_on_hours), (Some(26.0), Some(15_000)));
    // What the standard names counts before what the maker names.
    let mut page: serde_json::Value = serde_json::from_str(SMARTCTL_SATA).unwrap();
    let entry = |name: &str, value: u64, is_valid: bool| {
        let flags = serde_json::json!({"valid": is_valid});
        serde_json::json!({"name": name, "value": value, "flags": flags})
    };
    page["ata_device_statistics"]["pages"] = serde_json::json!([{"table": [
        entry("Logical Sectors Written", 1000, true),
        entry("Percentage Used Endurance Indicator", 12, true),
        entry("Number of Reported Uncorrectable Errors", 9, false),
    ]}]);
    let health = Health::of_smartctl(&page.to_string()).unwrap();
    assert_eq!(written(health.host_written), 512_000.0);
    assert_eq!((health.used_percent, health.media_errors), (Some(12.0), None));
}

#[test]
fn absence_is_said_in_the_tools_own_words() {
    let virtual_disk = r#"{"smartctl":{"messages":[
        {"string":"/dev/vda: Unable to detect device type","severity":"error"}],"exit_status":1}}"#;
    let refused = Health::of_smartctl(virtual_disk).unwrap_err();
    assert_eq!(refused, "smartctl: /dev/vda: Unable to detect device type");
    assert!(Health::of_smartctl("").unwrap_err().contains("no JSON"));
    assert_eq!(Health::of_smartctl("{}").unwrap_err(), "smartctl: it has no counters");
    assert_eq!(Health::of_nvme(r#"{"error":"NVMe status"}"#).unwrap_err(), "nvme: NVMe status");
    assert!(Health::of_nvme("").is_err());
}

#[test]
fn writes_of_the_media_are_read_in_both_layouts() {
    let mut health = Health::of_nvme(NVME).unwrap();
    health.add_ocp("no such page");
    assert_eq!((health.media_written, &*health.source), (None, "nvme"));
    health.add_ocp(r#"{"Physical media units written":{"hi":1,"lo":5}}"#);
    assert_eq!(health.media_written.unwrap().bytes, 2f64.powi(64) + 5.0);
    health.add_ocp(r#"{"Physical media units written":"1,234"}"#);
    assert_eq!(health.media_written.unwrap().bytes, 1234.0);
}

/// Readings of a drive that counts in such units.
fn written(host: Option<f64>, media: f64, unit_bytes: f64) -> Health {
    let counted = |bytes| Counted { bytes, unit_bytes };
    let media_written = Some(counted(media));
    Health { host_written: host.map(counted), media_written, ..Health::default() }
}

#[test]
fn amplification_is_as_wide_as_the_units_of_the_counters() {
    let before = written(Some(0.0), 0.0, 10.0);
    let found = written(Some(100.0), 200.0, 10.0).amplification_since(&before, 0.0).unwrap();
    assert_eq!((found.low, found.high), (190.0 / 110.0, Some(210.0 / 90.0)));
    // Less than a unit was written: there is no upper bound.
    let found = written(Some(10.0), 30.0, 10.0).amplification_since(&before, 0.0).unwrap();
    assert_eq!((found.low, found.high), (1.0, None));
    assert_eq!(written(Some(0.0), 9.0, 10.0).amplification_since(&before, 0.0), None);
    // A drive that does not count the hosts' writes: the program's own stand for them.
    let before = written(None, 0.0, 10.0);
    let found = written(None, 200.0, 10.0).amplification_since(&before, 100.0).unwrap();
    assert_eq!((found.low, found.high), (1.9, Some(2.1)));
}

#[test]
fn readings_are_kept_in_the_log_and_shown() {
    let mut run = qualify(fakes::HONEST, Purpose::Forebay, 1);
    let steps = run.outcomes.len();
    let mut first = Health::of_nvme(NVME).unwrap();
    first.media_written = Some(Counted { bytes: 0.0, unit_bytes: 1.0 });
    let mut last = first.clone();
    let own_bytes: u64 = run.outcomes.iter().map(|o| o.measured.written_bytes).sum();
    last.host_written = first.host_written.map(|c| Counted { bytes: c.bytes + 1e12, ..c });
    last.media_written = Some(Counted { bytes: 2e12, unit_bytes: 1.0 });
    (last.used_percent, last.temperature_c) = (Some(3.0), Some(61.0));
    assert!(own_bytes > 0);
    run.health.push(Reading { at_s: 10, steps: 0, health: first });
    run.health.push(Reading { at_s: 90, steps, health: last });
    run.outcomes[1].power.push(Power { sensor: "package-0".to_owned(), watts: 31.5 });
    let text = run.wear_text().unwrap();
    assert!(text.contains("took 2.00 to 2.00 bytes"), "{text}");
    assert!(text.contains("0 % of its rated life was used up before, 3 % after"), "{text}");
    let begin = Record::Begin {
        conditions: Box::new(run.conditions.clone()),
        plan: Box::new(run.plan.clone()),
    };
    let steps = run.outcomes.iter().map(|o| Record::Step(Box::new(o.clone())));
    let readings = run.health.iter().map(|r| Record::Health(Box::new(r.clone())));
    let records: Vec<Record> = [begin].into_iter().chain(steps).chain(readings).collect();
    let lines = records.iter().enumerate().map(|(number, record)| encode(number, record));
    let (read, damage) = read_log(lines.collect::<String>().as_bytes()).unwrap();
    assert_eq!((damage, &read.health, &read.outcomes), (None, &run.health, &run.outcomes));
    let page = results(&[read], "test");
    let health = page.experiments.iter().find(|e| e.id == "health").unwrap();
    let tables: Vec<&str> = health.tables.iter().map(|table| table.id.as_str()).collect();
    assert_eq!((tables, health.charts.len()), (vec!["counters", "power"], 1));
    // The drive's own alarm decides; its temperature alone does not.
    let answer = |run: &mut Qualification, warning: u64| {
        run.health[1].health.critical_warning = Some(warning);
        run.judge().reasons
    };
    let is_against = |r: &Reason| matches!(r, Reason::Against(text) if text.contains("warns"));
    assert!(answer(&mut run, 0b100).iter().any(is_against));
    assert!(!answer(&mut run, 0b10).iter().any(is_against));
}
