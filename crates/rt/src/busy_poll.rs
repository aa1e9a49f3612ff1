//! How long an idle loop looks for completions itself before it sleeps.
//!
//! Who sleeps must be woken: an interrupt that finds a halted processor, in a virtual machine a trip
//! through the hypervisor as well, and a switch of context. That takes tens of microseconds, as much
//! as a fast device or the other side of a socket takes to answer. So who has seen that answers come
//! soon looks out for the next one for a while. Who waits long, or shares its processor with
//! somebody, sleeps at once: looking out must cost nothing when there is nothing to gain.

use forebay_units::Nanos;

/// The longest look-out. An answer that takes longer is not worth a busy processor.
const MOST: Nanos = Nanos::from_micros(400);
/// So many short waits in a row, and the next one is taken for short too.
const SHORT_WAITS: u32 = 2;
/// Waits without a look-out, after somebody else has needed the processor.
const WAITS_OF_REST: u32 = 256;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// While looking out.
    Seen,
    /// Asleep, after looking out in vain or at once.
    Slept,
    /// The look-out took the processor from somebody who needed it.
    InTheWay,
}

/// What the last waits were like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    short_waits: u32,
    rest: u32,
}

impl Patience {
    /// How long to look out in the next wait; zero: sleep at once.
    pub(crate) fn span(self) -> Nanos {
        if self.short_waits >= SHORT_WAITS && self.rest == 0 { MOST } else { Nanos::ZERO }
    }

    /// A wait of `span` has ended.
    pub(crate) fn note(&mut self, span: Nanos, ended: Ended) {
        self.rest = self.rest.saturating_sub(1);
        match ended {
            Ended::InTheWay => *self = Self { short_waits: 0, rest: WAITS_OF_REST },
            Ended::Seen | Ended::Slept if span <= MOST => {
                self.short_waits = (self.short_waits + 1).min(SHORT_WAITS);
            }
            Ended::Seen | Ended::Slept => self.short_waits = 0,
        }
    }
}

#[cfg(test)]
mod tests;
