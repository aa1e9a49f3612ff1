//! Steady state by the definition of SNIA's performance test specification.
//!
//! Over a window of five rounds: the range of the values is at most 20 % of their mean, and the
//! least-squares line through them changes by at most 10 % of the mean from the first round to the
//! last. The 20 % are a range, and not a distance of each round from the mean.

use serde::{Deserialize, Serialize};

use crate::Latency;

/// Rounds of a window.
pub const WINDOW_ROUNDS: usize = 5;
/// Range allowed, as a share of the mean.
const MAX_RANGE: f64 = 0.20;
/// Change of the fitted line allowed, as a share of the mean.
const MAX_SLOPE: f64 = 0.10;

/// One round of the test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Requests a second.
    pub iops: f64,
    /// Response times.
    pub latency: Latency,
}

/// What the last window of rounds shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Whether both criteria hold. "Not reached" is a result.
    pub is_reached: bool,
    /// Rounds that were run.
    pub rounds: usize,
    /// Mean of the window, requests a second.
    pub mean_iops: f64,
    /// Range of the window, as a share of the mean.
    pub range: f64,
    /// Change of the fitted line over the window, as a share of the mean; negative when it falls.
    pub slope: f64,
}

/// Judges the last window of `values`; `None` with fewer rounds than a window has, or when nothing
/// completed.
#[must_use]
pub fn steadiness(values: &[f64]) -> Option<Steadiness> {
    let window = &values[values.len().checked_sub(WINDOW_ROUNDS)?..];
    let n = WINDOW_ROUNDS as f64;
    let mean = window.iter().sum::<f64>() / n;
    if mean <= 0.0 {
        return None;
    }
    let high = window.iter().copied().fold(f64::MIN, f64::max);
    let low = window.iter().copied().fold(f64::MAX, f64::min);
    let middle = (n - 1.0) / 2.0;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (x, y) in window.iter().enumerate() {
        let dx = x as f64 - middle;
        covariance += dx * (y - mean);
        variance += dx * dx;
    }
    let range = (high - low) / mean;
    let slope = covariance / variance * (n - 1.0) / mean;
    // The rounding of the sums must not decide a case that lies on the limit.
    const ROUNDING: f64 = 1e-12;
    let is_reached = range <= MAX_RANGE + ROUNDING && slope.abs() <= MAX_SLOPE + ROUNDING;
    Some(Steadiness { is_reached, rounds: values.len(), mean_iops: mean, range, slope })
}
