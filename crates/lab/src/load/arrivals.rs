//! When the requests of a load arrive.

use crate::LabError;
use forebay_flash::Chance;
use serde::{Deserialize, Serialize};

/// When requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// Each completion sends the next: the load keeps its requests outstanding.
    #[default]
    Closed,
    /// At random, independent of completions.
    Poisson {
        /// Requests a second on average.
        rate_s: f64,
    },
    /// Bursts of requests at once; the bursts arrive at random.
    Bursts {
        /// Requests a second on average.
        rate_s: f64,
        /// Requests of a burst.
        burst: u32,
    },
}

/// The most requests a second that an open load may send.
const MAX_RATE_S: f64 = 1e7;
/// The largest burst.
const MAX_BURST: u32 = 65_536;

impl Arrivals {
    pub(super) fn check(&self) -> Result<(), LabError> {
        if let Some(rate_s) = self.rate_s().filter(|rate| !(*rate > 0.0 && *rate <= MAX_RATE_S)) {
            let allowed = "above 0 and at most 10,000,000";
            return Err(LabError::field("load", "arrivals.rate_s", rate_s, allowed));
        }
        if let Self::Bursts { burst, .. } = self {
            if !(1..=MAX_BURST).contains(burst) {
                return Err(LabError::field("load", "arrivals.burst", burst, "from 1 to 65,536"));
            }
        }
        Ok(())
    }

    /// Requests a second on average, when that does not depend on the device.
    #[must_use]
    pub fn rate_s(&self) -> Option<f64> {
        match *self {
            Self::Closed => None,
            Self::Poisson { rate_s } | Self::Bursts { rate_s, .. } => Some(rate_s),
        }
    }
}

/// The instants at which an open load's requests arrive.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalTimes {
    chance: Chance,
    /// Mean time between bursts.
    mean_ns: f64,
    burst: u32,
    /// Requests of the present burst that have not come.
    left: u32,
    at_ns: f64,
}

impl ArrivalTimes {
    /// The arrivals from `from_ns` on; none when the load is closed.
    pub(crate) fn new(arrivals: Arrivals, from_ns: u64, seed: u64) -> Option<Self> {
        let burst = match arrivals {
            Arrivals::Bursts { burst, .. } => burst,
            Arrivals::Closed | Arrivals::Poisson { .. } => 1,
        };
        let mean_ns = f64::from(burst) * 1e9 / arrivals.rate_s()?;
        let chance = Chance::derive(seed, "arrivals");
        Some(Self { chance, mean_ns, burst, left: 0, at_ns: from_ns as f64 })
    }

    /// When the next request arrives.
    #[inline]
    pub(crate) fn next_ns(&mut self) -> u64 {
        if self.left == 0 {
            self.left = self.burst;
            self.at_ns += exponential(&mut self.chance) * self.mean_ns;
        }
        self.left -= 1;
        self.at_ns as u64
    }
}

/// A draw from the exponential distribution with mean 1, by von Neumann's method: comparisons of
/// uniform numbers alone, so that it is the same on every machine, which a logarithm is not.
pub(crate) fn exponential(chance: &mut Chance) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = chance.unit();
        let (mut least, mut run) = (first, 1u32);
        loop {
            let next = chance.unit();
            if next >= least {
                break;
            }
            (least, run) = (next, run + 1);
        }
        if run % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

#[cfg(test)]
mod tests;
