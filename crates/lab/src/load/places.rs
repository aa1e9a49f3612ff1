//! Which places the random requests of a load go to.

use crate::LabError;
use forebay_flash::Chance;
use serde::{Deserialize, Serialize};

/// How often each place is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Places {
    /// All alike.
    #[default]
    Uniform,
    /// The place of rank k in proportion to 1/k^theta. Ranks are scattered over the span.
    Zipf {
        /// The exponent, above 0 and at most 5; 0.99 is common.
        theta: f64,
    },
    /// A share of the places takes a share of the requests. Hot places are scattered over the span.
    HotCold {
        /// Share of the places that is hot, above 0 and below 1.
        places: f64,
        /// Share of the requests that they take, 0 to 1.
        requests: f64,
    },
}

impl Places {
    pub(super) fn check(&self) -> Result<(), LabError> {
        let bad = |field, found: f64, allowed| Err(LabError::field("load", field, found, allowed));
        match *self {
            Self::Zipf { theta } if !(theta > 0.0 && theta <= 5.0) => {
                bad("places.zipf.theta", theta, "above 0 and at most 5")
            }
            Self::HotCold { places, .. } if !(places > 0.0 && places < 1.0) => {
                bad("places.hot-cold.places", places, "above 0 and below 1")
            }
            Self::HotCold { requests, .. } if !(0.0..=1.0).contains(&requests) => {
                bad("places.hot-cold.requests", requests, "from 0 to 1")
            }
            _ => Ok(()),
        }
    }
}

/// Draws places below a bound.
#[derive(Clone, Debug)]
pub(super) struct PlaceDraw {
    kind: Kind,
    places: u32,
    /// Coprime with `places`: ranks times this, modulo `places`, visit each place once.
    step: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Zipf(Zipf),
    HotCold { hot: u32, requests: f64 },
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// A number near the golden section of `places` that shares no divisor with it.
fn scatter_step(places: u32) -> u32 {
    let golden = (f64::from(places) * 0.618_033_988_749_894_9) as u32;
    (golden.max(1)..).find(|step| common_divisor(*step, places) == 1).unwrap_or(1)
}

impl PlaceDraw {
    pub(super) fn new(places: Places, count: u32) -> Self {
        let kind = match places {
            Places::Uniform => Kind::Uniform,
            Places::Zipf { theta } => Kind::Zipf(Zipf::new(count, theta)),
            Places::HotCold { places, requests } => {
                let hot = (f64::from(count) * places) as u32;
                Kind::HotCold { hot: hot.clamp(1, count.max(2) - 1), requests }
            }
        };
        Self { kind, places: count, step: scatter_step(count) }
    }

    /// The next place.
    #[inline]
    pub(super) fn next(&self, chance: &mut Chance) -> u32 {
        let rank = match &self.kind {
            Kind::Uniform => return chance.below(self.places),
            Kind::Zipf(zipf) => zipf.rank(chance),
            Kind::HotCold { hot, requests } if chance.unit() < *requests => chance.below(*hot),
            Kind::HotCold { hot, .. } => hot + chance.below(self.places - hot),
        };
        (u64::from(rank) * u64::from(self.step) % u64::from(self.places)) as u32
    }
}

/// Ranks by Zipf's law: rejection-inversion after Hörmann and Derflinger (1996), exact and without
/// a table.
#[derive(Clone, Debug)]
struct Zipf {
    ranks: f64,
    theta: f64,
    /// Integral up to the middle between the first two ranks, less the first rank's weight.
    from: f64,
    /// Integral up to half a rank past the last.
    to: f64,
    /// Ranks nearer than this to the point drawn are taken without another look.
    sure: f64,
}

impl Zipf {
    fn new(ranks: u32, theta: f64) -> Self {
        let mut zipf =
            Self { ranks: f64::from(ranks.max(1)), theta, from: 0.0, to: 0.0, sure: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    fn is_harmonic(&self) -> bool {
        (self.theta - 1.0).abs() < 1e-9
    }

    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.theta;
        if self.is_harmonic() { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn inverse(&self, y: f64) -> f64 {
        let power = 1.0 - self.theta;
        if self.is_harmonic() { y.exp() } else { (1.0 + y * power).max(0.0).powf(1.0 / power) }
    }

    /// A rank from 0 on.
    fn rank(&self, chance: &mut Chance) -> u32 {
        loop {
            let at = self.to + chance.unit() * (self.from - self.to);
            let x = self.inverse(at);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks);
            if rank - x <= self.sure || at >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u32 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
