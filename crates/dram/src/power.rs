//! The power supply: what it says, and whether that is enough.

use std::future::Future;
use std::pin::Pin;

use forebay_device::{Cause, DramReason};
use forebay_units::Nanos;

/// An answer of a power supply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerReading {
    /// Words such as `OL` (on line), `OB` (on battery), `LB` (low battery).
    pub status: String,
    /// For how long the battery would hold, in seconds; `None` if the supply does not say.
    pub runtime_secs: Option<u64>,
}

/// What [`PowerSource::read`] returns while it runs.
pub type Reading<'a> = Pin<Box<dyn Future<Output = Result<PowerReading, Cause>> + 'a>>;

/// A power supply that can be asked.
pub trait PowerSource {
    /// Asks it. Ends within a few seconds.
    fn read(&self) -> Reading<'_>;
}

/// An answer older than this says nothing any more.
pub const READING_MAX_AGE: Nanos = Nanos::from_secs(5);
/// Seconds between an answer and a loss of power that is noticed through it: its age, and the time
/// until the next one.
const NOTICE_SECS: u64 = READING_MAX_AGE.0 / 1_000_000_000 + 2;

/// For how many seconds the battery must hold: until the loss is noticed, and then twice as long as
/// a save of the whole memory takes, because other things are saved at the same time.
#[must_use]
pub fn needed_runtime_secs(save_secs: u64) -> u64 {
    NOTICE_SECS + 2 * save_secs
}

/// Whether an answer is enough to acknowledge writes that only memory has. On battery a device that
/// is armed stays so while the battery holds for long enough; one that is not waits for the line.
pub fn judge(reading: &PowerReading, save_secs: u64, is_armed: bool) -> Result<(), DramReason> {
    // Network UPS Tools: docs/new-drivers.txt, "ups.status". Words unknown here are no obstacle.
    const OBSTACLES: [&str; 7] = ["LB", "FSD", "RB", "OFF", "BYPASS", "CAL", "OVER"];
    let has = |word: &str| reading.status.split_whitespace().any(|found| found == word);
    let is_supplied = has("OL") || (is_armed && has("OB"));
    if !is_supplied || OBSTACLES.into_iter().any(has) {
        return Err(DramReason::NotOnLine { status: reading.status.clone() });
    }
    let needed_secs = needed_runtime_secs(save_secs);
    match reading.runtime_secs {
        None => Err(DramReason::NoRuntime),
        Some(runtime_secs) if runtime_secs < needed_secs => {
            Err(DramReason::ShortRuntime { runtime_secs, needed_secs })
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: &str, runtime_secs: Option<u64>, is_armed: bool) -> Result<(), DramReason> {
        judge(&PowerReading { status: status.to_owned(), runtime_secs }, 4, is_armed)
    }

    #[test]
    fn line_arms_and_battery_only_keeps_armed() {
        for status in ["OL", "OL CHRG", "CHRG OL BOOST"] {
            assert_eq!(judged(status, Some(15), false), Ok(()), "{status}");
        }
        assert_eq!(judged("OB DISCHRG", Some(15), true), Ok(()));
        let refused = |status: &str| Err(DramReason::NotOnLine { status: status.to_owned() });
        assert_eq!(judged("OB DISCHRG", Some(15), false), refused("OB DISCHRG"));
        let never = ["", "OB LB", "OL LB", "FSD OL", "OL RB", "OFF", "OL BYPASS", "OL CAL", "OLX"];
        for status in never {
            assert_eq!(judged(status, Some(9_999), true), refused(status), "{status}");
        }
    }

    /// A save of 4 s: 5 s of age, 2 s until the next answer, and twice 4 s.
    #[test]
    fn battery_must_hold_for_notice_and_two_saves() {
        let short = DramReason::ShortRuntime { runtime_secs: 14, needed_secs: 15 };
        assert_eq!(judged("OL", Some(14), true), Err(short));
        assert_eq!(judged("OL", Some(15), true), Ok(()));
        assert_eq!(judged("OL", None, true), Err(DramReason::NoRuntime));
    }
}
