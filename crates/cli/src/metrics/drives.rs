//! Figures of the drives below devices, where smartctl tells them.

use forebay_qualify::Health;

use super::exposition::Exposition;
use crate::drives::Drive;

const SECONDS_PER_YEAR: f64 = 365.25 * 86_400.0;

/// A pool, a device of it, and the drive below that.
type Below<'a> = (&'a str, &'a str, &'a Drive);

/// Adds the figures of all drives.
pub fn drives(out: &mut Exposition, all: &[Below<'_>]) {
    let each = |of: fn(&Health) -> Option<f64>| {
        let known = all.iter().filter_map(|below| Some((below, of(below.2.health.as_ref()?)?)));
        known.map(|(below, value)| (labels(below), value)).collect::<Vec<_>>()
    };
    let temperatures = each(|health| health.temperature_c);
    out.gauges("forebay_device_temperature_celsius", "Temperature of the drive.", temperatures);
    let wear = each(|health| health.used_percent.map(|used| used / 100.0));
    out.gauges("forebay_device_wear_ratio", "Share of the drive's rated life that is used.", wear);
    let left = all.iter().flat_map(|below| {
        let known = years_left(below.2).into_iter();
        known.map(|(by, years)| {
            let mut labels = labels(below);
            labels.push(("by", by));
            (labels, years * SECONDS_PER_YEAR)
        })
    });
    let help = "How long the drive lasts if it is written as fast as now.";
    out.gauges("forebay_device_life_left_seconds", help, left.collect::<Vec<_>>());
    let spare = each(|health| health.spare_percent.map(|left| left / 100.0));
    out.gauges("forebay_device_spare_ratio", "Share of the drive's spare blocks left.", spare);
    let warning = each(|health| health.critical_warning.map(|bits| bits as f64));
    out.gauges("forebay_device_critical_warning", "What the drive warns of; 0: nothing.", warning);
    let errors = each(|health| health.media_errors.map(|count| count as f64));
    out.counters("forebay_device_media_errors", "Errors of media that the drive counts.", errors);
    let written = each(|health| health.host_written.map(|written| written.bytes));
    let help = "Bytes that hosts have written to the drive in its life.";
    out.counters("forebay_device_lifetime_written_bytes", help, written);
}

/// The forecasts of a drive: which figure each follows from, and years.
fn years_left(drive: &Drive) -> Vec<(&'static str, f64)> {
    let model = drive.forecast.as_ref().and_then(|forecast| forecast.model.as_ref());
    let by_counter = drive.forecast.as_ref().and_then(|forecast| forecast.years_by_counter);
    let all = [
        ("counter", by_counter.or(drive.years_left)),
        ("cycles", model.map(|model| model.years_by_cycles)),
        ("rating", model.and_then(|model| model.years_by_rating)),
    ];
    all.into_iter().filter_map(|(by, years)| Some((by, years?))).collect()
}

fn labels<'a>(below: &Below<'a>) -> Vec<(&'static str, &'a str)> {
    vec![("pool", below.0), ("device", below.1)]
}
