//! What a number of power cuts proves of the probability of loss in one.

use serde::{Deserialize, Serialize};

/// Bounds of the probability that one power cut loses durable data, at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossBound {
    /// At least; 0 when no cut lost any.
    pub low: f64,
    /// At most.
    pub high: f64,
}

/// Bounds after `cuts`, of which `failed` lost data: Clopper and Pearson's. Without a failure it is
/// the one-sided bound, near 3/n (the rule of three); else it is the two-sided interval. `None`
/// without cuts.
#[must_use]
pub fn loss_bound(cuts: u64, failed: u64) -> Option<LossBound> {
    if cuts == 0 || failed > cuts {
        return None;
    }
    if failed == 0 {
        return Some(LossBound { low: 0.0, high: 1.0 - 0.05_f64.powf(1.0 / cuts as f64) });
    }
    // P(X >= failed) grows with p, and P(X <= failed) falls.
    let low = solve(|p| 1.0 - at_most(failed - 1, cuts, p) < 0.025);
    let high = if failed == cuts { 1.0 } else { solve(|p| at_most(failed, cuts, p) > 0.025) };
    Some(LossBound { low, high })
}

/// Where `is_below`, which holds at 0 and does not at 1, turns.
fn solve(is_below: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if is_below(middle) { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Probability of at most `k` failures in `n` trials.
fn at_most(k: u64, n: u64, p: f64) -> f64 {
    if p <= 0.0 {
        return 1.0;
    }
    if p >= 1.0 {
        return if k >= n { 1.0 } else { 0.0 };
    }
    // In logarithms: (1 - p)^n is too small for a number when there are many trials.
    let (ln_p, ln_q) = (p.ln(), (-p).ln_1p());
    let (mut ln_choose, mut sum) = (0.0_f64, 0.0_f64);
    for i in 0..=k {
        sum += (ln_choose + i as f64 * ln_p + (n - i) as f64 * ln_q).exp();
        ln_choose += ((n - i) as f64).ln() - ((i + 1) as f64).ln();
    }
    sum.min(1.0)
}
