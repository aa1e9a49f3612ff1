//! Wear forecast of a drive: how long it lasts by its own counters and by the flash model of its
//! type, at the rate at which it is written.
//!
//! What enters: readings of a drive. What leaves: a rate, and years. What always holds: a figure
//! whose parts are not known is left out. Who calls: `drives`.

use forebay_lab::catalogue;
use forebay_qualify::Health;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

/// A drive that was under power for less has no rate of its life yet.
const LIFE_HOURS_MIN: u64 = 24 * 30;
/// A server that has seen a drive for less measures no rate.
const MEASURED_MIN: Nanos = Nanos::from_secs(3600);
const HOURS_PER_DAY: f64 = 24.0;
const DAYS_PER_YEAR: f64 = 365.25;

/// How fast a drive is written, and how long it lasts if that goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Bytes that the host writes a day.
    pub bytes_per_day: f64,
    /// Hours that the rate was measured for; none: it is the mean of the drive's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_hours: Option<f64>,
    /// Media bytes for each byte of the host, as the drive counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
    /// Years until its rated life is used up, by its counter of wear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub years_by_counter: Option<f64>,
    /// What the flash model of its type says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelForecast>,
}

/// What the catalogue has of a drive of this type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelForecast {
    /// The page, as `forebay simulate --device` takes it.
    pub device: String,
    /// Years until the cycles of its flash are used up.
    pub years_by_cycles: f64,
    /// Years until the bytes that its vendor rates it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub years_by_rating: Option<f64>,
}

/// The first reading of a drive by this process.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// When.
    pub at: Nanos,
    /// What the host had written.
    pub written_bytes: f64,
}

/// The forecast of a drive that was read at `now`. None: it does not count what is written to it.
#[must_use]
pub fn forecast(health: &Health, begun: Option<Begun>, now: Nanos) -> Option<Forecast> {
    let written = health.host_written?.bytes;
    let measured = begun.filter(|begun| now.since(begun.at) >= MEASURED_MIN).map(|begun| {
        let hours = now.since(begun.at).0 as f64 / Nanos::from_secs(3600).0 as f64;
        (hours, (written - begun.written_bytes).max(0.0) / hours * HOURS_PER_DAY)
    });
    let of_life = || {
        let hours = health.power_on_hours.filter(|hours| *hours >= LIFE_HOURS_MIN)?;
        Some(written / hours as f64 * HOURS_PER_DAY)
    };
    let bytes_per_day = measured.map_or_else(of_life, |(_, rate)| Some(rate))?;
    // A drive that is not written lasts as long as one likes.
    let years =
        |bytes: f64| (bytes_per_day > 0.0).then(|| bytes.max(0.0) / bytes_per_day / DAYS_PER_YEAR);
    let amplification = health.media_written.filter(|_| written > 0.0).map(|m| m.bytes / written);
    let left_by_counter = |used: f64| written * (100.0 - used) / used;
    let used = health.used_percent.filter(|used| *used > 0.0);
    let page = health.model.as_deref().and_then(catalogue::of_drive);
    let model = page.and_then(|page| {
        // A pool writes whole segments in order, which a drive need not move.
        let by_cycles = page.bytes_by_cycles(amplification.unwrap_or(1.0))?;
        Some(ModelForecast {
            years_by_cycles: years(by_cycles - written)?,
            years_by_rating: page.rated_bytes().and_then(|rated| years(rated - written)),
            device: page.id,
        })
    });
    Some(Forecast {
        bytes_per_day,
        measured_hours: measured.map(|(hours, _)| hours),
        write_amplification: amplification,
        years_by_counter: used.and_then(|used| years(left_by_counter(used))),
        model,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_qualify::Counted;

    const GB: f64 = 1e9;

    fn health(written_gb: f64, media_gb: f64) -> Health {
        let counted = |gb| Some(Counted { bytes: gb * GB, unit_bytes: 1.0 });
        Health {
            model: Some("INTEL SSDSC2BA200G3".to_owned()),
            host_written: counted(written_gb),
            media_written: counted(media_gb),
            power_on_hours: Some(1000 * 24),
            used_percent: Some(10.0),
            ..Health::default()
        }
    }

    fn near(figure: f64, wanted: f64) -> bool {
        (figure - wanted).abs() < wanted * 1e-6
    }

    #[test]
    fn counter_and_model_are_beside_each_other() {
        // 10 GB a day for a thousand days, a tenth of the life, twice as much at the flash.
        let found = forecast(&health(10_000.0, 20_000.0), None, Nanos(0)).unwrap();
        assert!(near(found.bytes_per_day, 10.0 * GB) && found.measured_hours.is_none());
        assert!(near(found.years_by_counter.unwrap(), 9000.0 / DAYS_PER_YEAR));
        assert_eq!(found.write_amplification, Some(2.0));
        let model = found.model.unwrap();
        assert_eq!(model.device, "intel-s3700-200gb");
        let page = catalogue::find("intel-s3700-200gb").unwrap();
        let days = |bytes: f64| (bytes - 10_000.0 * GB) / (10.0 * GB) / DAYS_PER_YEAR;
        assert!(near(model.years_by_cycles, days(page.bytes_by_cycles(2.0).unwrap())));
        assert!(near(model.years_by_rating.unwrap(), days(page.rated_bytes().unwrap())));
    }

    #[test]
    fn a_rate_that_was_measured_takes_the_place_of_the_mean() {
        let (at, now) = (Nanos(0), Nanos::from_secs(2 * 3600));
        let begun = Some(Begun { at, written_bytes: 9_990.0 * GB });
        let found = forecast(&health(10_000.0, 0.0), begun, now).unwrap();
        assert!(near(found.bytes_per_day, 120.0 * GB), "{found:?}");
        assert_eq!(found.measured_hours, Some(2.0));
        // Half an hour is no measurement.
        let found = forecast(&health(10_000.0, 0.0), begun, Nanos::from_secs(1800)).unwrap();
        assert!(near(found.bytes_per_day, 10.0 * GB) && found.measured_hours.is_none());
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut unknown = health(10_000.0, 20_000.0);
        unknown.model = Some("QEMU NVMe Ctrl".to_owned());
        unknown.used_percent = Some(0.0);
        let found = forecast(&unknown, None, Nanos(0)).unwrap();
        assert!(found.model.is_none() && found.years_by_counter.is_none());
        unknown.power_on_hours = Some(10);
        assert!(forecast(&unknown, None, Nanos(0)).is_none());
        // Nothing was written for as long as it was measured: no end is in sight.
        let begun = Some(Begun { at: Nanos(0), written_bytes: 10_000.0 * GB });
        let idle = forecast(&health(10_000.0, 20_000.0), begun, Nanos::from_secs(7200)).unwrap();
        assert!(idle.years_by_counter.is_none() && idle.model.is_none());
    }
}
