//! Long work in slices, so that nothing else waits for it for long.

use forebay_units::Nanos;

use crate::executor::{self, is_simulated, yield_to_all};
use crate::time::now;

/// How long a slice may take.
const SLICE: Nanos = Nanos::from_micros(50);
/// Steps between two looks at the clock.
const STEPS_PER_LOOK: u32 = 8;
/// Most steps of a slice under simulation, where much work takes no time.
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
        let is_simulated = is_simulated();
        Self { begun: Self::clock(is_simulated), steps: 0, is_simulated }
    }

    /// Under simulation, the work of the current poll.
    fn clock(is_simulated: bool) -> Nanos {
        if is_simulated { executor::with(|inner| inner.modelled.get()) } else { now() }
    }

    /// Ends the slice when it has taken long enough. To be called after each step of some
    /// microseconds at most.
    #[inline]
    pub async fn step(&mut self) {
        self.steps += 1;
        if self.steps >= STEPS_PER_LOOK && self.is_over() {
            yield_to_all().await;
            self.begun = Self::clock(self.is_simulated);
            self.steps = 0;
        }
    }

    fn is_over(&mut self) -> bool {
        if self.is_simulated && self.steps >= SIMULATED_STEPS {
            return true;
        }
        // Another poll has begun if its work is less.
        let spent = || Self::clock(self.is_simulated).0.saturating_sub(self.begun.0);
        self.steps % STEPS_PER_LOOK == 0 && spent() >= SLICE.0
    }
}
