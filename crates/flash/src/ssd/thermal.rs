//! Temperature of a drive: it follows the power, and slows the controller above a limit.

use forebay_units::Nanos;

use super::Ssd;
use crate::model::Model;
use crate::spec::ThermalSpec;

/// Degrees below the limit at which the drive is fast again.
const HYSTERESIS_C: f64 = 2.0;
/// Parts of the time constant between two looks.
const LOOKS: f64 = 200.0;

#[derive(Clone, Debug)]
pub(super) struct Thermal {
    spec: ThermalSpec,
    at: u64,
    energy_j: f64,
    celsius: f64,
    is_hot: bool,
}

impl Thermal {
    pub(super) fn new(spec: &ThermalSpec) -> Self {
        let (spec, celsius) = (spec.clone(), spec.ambient_c);
        Self { spec, at: 0, energy_j: 0.0, celsius, is_hot: false }
    }

    /// Whether it is time to look again.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        (now - self.at) as f64 >= self.spec.time_s * 1e9 / LOOKS
    }

    /// The drive has drawn `energy_j` since it was new.
    pub(super) fn note(&mut self, now: u64, energy_j: f64) {
        let seconds = (now - self.at) as f64 / 1e9;
        if seconds <= 0.0 {
            return;
        }
        let watts = (energy_j - self.energy_j) / seconds;
        let end_c = self.spec.ambient_c + watts * self.spec.c_per_w;
        self.celsius += (end_c - self.celsius) * (1.0 - (-seconds / self.spec.time_s).exp());
        (self.at, self.energy_j) = (now, energy_j);
        let limit_c = self.spec.limit_c - if self.is_hot { HYSTERESIS_C } else { 0.0 };
        self.is_hot = self.celsius >= limit_c;
    }

    /// What a command costs the controller now.
    #[inline]
    pub(super) fn command_ns(&self, cool_ns: u64) -> u64 {
        if self.is_hot { (cool_ns as f64 * self.spec.slowdown) as u64 } else { cool_ns }
    }

    /// Degrees Celsius at the last look.
    pub(super) fn celsius(&self) -> f64 {
        self.celsius
    }
}

impl Ssd {
    /// What a command costs the controller at `now`.
    #[inline]
    pub(super) fn command_ns_at(&mut self, now: u64) -> u64 {
        let cool_ns = self.command_ns;
        if self.thermal.as_ref().is_some_and(|thermal| thermal.is_due(now)) {
            let energy_j = self.stats(Nanos(now)).energy_j;
            if let Some(thermal) = &mut self.thermal {
                thermal.note(now, energy_j);
            }
        }
        self.thermal.as_ref().map_or(cool_ns, |thermal| thermal.command_ns(cool_ns))
    }

    /// Degrees Celsius, of a device whose description says what heat does.
    #[must_use]
    pub fn celsius(&self) -> Option<f64> {
        self.thermal.as_ref().map(Thermal::celsius)
    }
}
