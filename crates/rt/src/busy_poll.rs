//! Busy polling: how long an idle loop polls for completions before it sleeps.
//!
//! After several short waits in a row the loop busy-polls in the next one. After a long wait, or
//! when another thread needed the processor, it sleeps at once: busy polling must cost nothing when
//! it gains nothing. The crate's README says why.

use forebay_units::Nanos;

/// The longest busy poll. An answer that takes longer is not worth a busy processor.
const MAX_BUSY_POLL: Nanos = Nanos::from_micros(400);
/// After this many short waits in a row, the next wait is expected to be short.
const SHORT_WAITS: u32 = 2;
/// Waits without busy polling after another thread has needed the processor.
const BACK_OFF_WAITS: u32 = 256;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// A completion arrived during the busy poll.
    Polled,
    /// The thread slept, after a busy poll in vain or at once.
    Slept,
    /// The busy poll kept another thread from the processor.
    Preempted,
}

/// Decides from the last waits how long the next one busy-polls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyPoll {
    short_waits: u32,
    back_off_waits: u32,
}

impl BusyPoll {
    /// How long to busy-poll in the next wait; zero: sleep at once.
    pub(crate) fn span(self) -> Nanos {
        let expects_short_wait = self.short_waits >= SHORT_WAITS;
        if expects_short_wait && self.back_off_waits == 0 { MAX_BUSY_POLL } else { Nanos::ZERO }
    }

    /// Records that a wait of `span` has ended.
    pub(crate) fn record(&mut self, span: Nanos, end: WaitEnd) {
        self.back_off_waits = self.back_off_waits.saturating_sub(1);
        match end {
            WaitEnd::Preempted => *self = Self { short_waits: 0, back_off_waits: BACK_OFF_WAITS },
            WaitEnd::Polled | WaitEnd::Slept if span <= MAX_BUSY_POLL => {
                self.short_waits = (self.short_waits + 1).min(SHORT_WAITS);
            }
            WaitEnd::Polled | WaitEnd::Slept => self.short_waits = 0,
        }
    }
}

#[cfg(test)]
mod tests;
