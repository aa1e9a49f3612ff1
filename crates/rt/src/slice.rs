//! Long work in slices, so that nothing else waits for it for long.

use forebay_units::Nanos;

use crate::executor::{is_simulated, yield_to_all};
use crate::time::now;

/// How long a slice may take.
const SLICE: Nanos = Nanos::from_micros(50);
/// Steps between two looks at the clock.
const STEPS_PER_LOOK: u32 = 8;
/// Steps of a slice under simulation, where work takes no time.
const SIMULATED_STEPS: u32 = 64;

/// Cuts long work into slices. Between two of them, tasks that have something to do run first.
pub struct Slices {
    begun: Nanos,
    steps: u32,
    is_simulated: bool,
}

impl Slices {
    /// The first slice begins now.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self { begun: now(), steps: 0, is_simulated: is_simulated() }
    }

    /// Ends the slice when it has taken long enough. To be called after each step of some
    /// microseconds at most.
    #[inline]
    pub async fn step(&mut self) {
        self.steps += 1;
        if self.steps >= STEPS_PER_LOOK && self.is_over() {
            yield_to_all().await;
            *self = Self { begun: now(), steps: 0, is_simulated: self.is_simulated };
        }
    }

    fn is_over(&mut self) -> bool {
        if self.is_simulated {
            return self.steps >= SIMULATED_STEPS;
        }
        self.steps.is_multiple_of(STEPS_PER_LOOK) && now().since(self.begun) >= SLICE
    }
}
