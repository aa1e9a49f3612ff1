//! What experiments conclude: what is an input is called so, and what is not known is not ranked.

use forebay_lab::catalogue;
use forebay_lab::simulate::{Args, DEFAULT_SEED, results_of};
use forebay_report::{Basis, Experiment, X};

fn experiment(id: &str, devices: &[&str]) -> Experiment {
    let out = std::env::temp_dir().join(format!("forebay-findings-{id}-{}", std::process::id()));
    let args = Args {
        devices: devices.iter().map(|&d| d.to_owned()).collect(),
        out: out.clone(),
        seed: Some(DEFAULT_SEED),
        json: true,
        small: true,
        ..Args::default()
    };
    let results = results_of(&args, id).expect("runs");
    let _ = std::fs::remove_dir_all(out);
    results.experiments.into_iter().next().expect("one experiment")
}

fn name_of(id: &str) -> String {
    catalogue::find(id).expect("built in").device.name
}

#[test]
fn what_an_hour_of_rest_does_is_an_input() {
    let degradation = experiment("degradation", &["ocz-vertex-2-ex-50gb"]);
    let about = |f: &&forebay_report::Finding| f.text.contains("hour of rest");
    let rest: Vec<_> = degradation.findings.iter().filter(about).collect();
    assert!(!rest.is_empty(), "{:?}", degradation.findings);
    // No page cleans while it is idle, so that the rate cannot come back.
    assert!(rest.iter().all(|f| f.basis == Basis::Input), "{rest:?}");
}

#[test]
fn misaligned_random_writes_wear_flash_more() {
    let alignment = experiment("alignment", &["ocz-vertex-2-ex-50gb"]);
    let life = alignment.findings.iter().find_map(|f| {
        let (_, rest) = f.text.split_once("the flash lasts ")?;
        rest.split(' ').next()?.parse::<f64>().ok()
    });
    let times = life.expect("how long the flash lasts is said");
    // Each write is two units, and leaves cleaning no easier.
    assert!((1.2..3.0).contains(&times), "{times} times as long");
}

#[test]
fn devices_with_a_reservation_are_in_no_ranking() {
    let reserved = ["intel-x25-e-32gb", "intel-900p-480gb"];
    for id in reserved {
        assert!(catalogue::find(id).expect("built in").reservation.is_some(), "{id}");
    }
    let price = experiment("price", &["intel-x25-e-32gb", "intel-900p-480gb", "intel-320-300gb"]);
    let points = price.charts.iter().flat_map(|c| &c.series).flat_map(|s| &s.points);
    let ranked: Vec<&X> = points.map(|p| &p.x).collect();
    assert_eq!(ranked, [&X::Name(name_of("intel-320-300gb"))]);
    for id in reserved {
        let name = name_of(id);
        assert!(!price.findings.iter().any(|f| f.text.contains(&name)), "{name} is recommended");
        let rows = &price.tables[0].rows;
        let row = rows.iter().find(|row| format!("{:?}", row[0].value).contains(&name));
        assert!(!row.expect("in the table").first().expect("a name").note.is_empty(), "{name}");
    }
}

#[test]
fn only_devices_that_lose_nothing_in_any_way_are_said_to_keep_every_write() {
    // Safe with flushes alone; safe until power is cut twice; safe; unsafe.
    let devices =
        ["intel-x25-e-32gb", "stec-zeusram-8gb", "intel-s3700-200gb", "ocz-vector-180-480gb"];
    let cuts = experiment("power-cut", &devices);
    let start = "Every promised write survived";
    let said: Vec<_> = cuts.findings.iter().filter(|f| f.text.starts_with(start)).collect();
    let table = cuts.tables.iter().find(|t| t.id == "lost").expect("the table");
    let mut kept = 0;
    for (row, id) in table.rows.iter().zip(devices) {
        let is_safe = row[1..].iter().all(|cell| cell.good == Some(true));
        let name = name_of(id);
        let is_said = said.iter().any(|f| f.text.contains(&name));
        assert_eq!(is_said, is_safe, "{name}: {said:?}");
        kept += usize::from(is_safe);
    }
    assert!((1..devices.len()).contains(&kept), "{kept} of the devices are safe in every way");
    assert!(cuts.findings.iter().all(|f| f.basis == Basis::Input), "{:?}", cuts.findings);
}

#[test]
fn mirror_that_shares_its_adapter_covers_its_devices_alone() {
    let attachment = experiment("attachment", &[]);
    let chart = attachment.charts.iter().find(|c| c.id == "outages").expect("the chart");
    let years = |name: &str| {
        let point = chart.series[0].points.iter().find(|p| p.x == X::Name(name.into()));
        point.and_then(|p| p.y).expect(name)
    };
    let (one, shared) = (years("one drive behind an adapter"), years("mirror behind one adapter"));
    assert!(shared > one && shared < 2.0 * one, "{one} years, mirrored {shared}");
    assert!(years("mirror, an adapter and backplane each") > 1000.0 * shared);
    let failed: Vec<_> = attachment.checks.iter().filter(|c| !c.pass).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
