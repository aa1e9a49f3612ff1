//! Busy polling: how long an idle loop polls for completions before it sleeps.
//!
//! After several short waits in a row the loop busy-polls in the next one. After a long wait, after
//! turns with much to do, or when another thread needed the processor, it sleeps at once: busy
//! polling must cost nothing when it gains nothing. The crate's README says why.

use forebay_units::Nanos;

/// The longest busy poll. An answer that takes longer is not worth a busy processor.
const MAX_BUSY_POLL: Nanos = Nanos::from_micros(400);
/// After this many short waits in a row, the next wait is expected to be short.
const SHORT_WAITS: u32 = 2;
/// Turns that work for longer than this, on average, are not followed by a busy poll. A wakeup
/// takes as long, and the work of such a turn is that of several requests, which share its wakeup.
const LONG_TURN: Nanos = Nanos::from_micros(25);
/// The average is that of about so many turns.
const TURNS_IN_AVERAGE: u64 = 8;
/// Waits without busy polling after another thread has needed the processor: the first time, and at
/// most. A machine that stands still for a moment looks the same and must cost little; a thread
/// that goes on needing the processor is met again in the next busy poll, and the number doubles.
const FIRST_BACK_OFF: u32 = 8;
const MAX_BACK_OFF: u32 = 256;
/// After this many busy polls that kept no thread from its processor the number starts again. A
/// poll that is preempted loses a time slice (3 ms), a wait that sleeps two wakeups (some 50 µs):
/// with more polls than this between two preemptions, polling gains more than it loses.
const UNDISTURBED_POLLS: u32 = 64;

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
    /// How many of the next waits do not busy-poll.
    back_off_waits: u32,
    /// `back_off_waits` after the last preemption.
    last_back_off: u32,
    /// Busy polls since then.
    polls: u32,
    /// How long the loop works between two waits, on average.
    turn: Nanos,
}

impl BusyPoll {
    /// How long to busy-poll in the next wait; zero: sleep at once.
    pub(crate) fn span(self) -> Nanos {
        let expects_short_wait = self.short_waits >= SHORT_WAITS;
        let gains = self.turn <= LONG_TURN && self.back_off_waits == 0;
        if expects_short_wait && gains { MAX_BUSY_POLL } else { Nanos::ZERO }
    }

    /// Records that the loop has worked for `span` since its last wait.
    pub(crate) fn record_turn(&mut self, span: Nanos) {
        let sum = (TURNS_IN_AVERAGE - 1) * self.turn.0 + span.0;
        self.turn = Nanos(sum / TURNS_IN_AVERAGE);
    }

    /// Records that a wait of `span` has ended.
    pub(crate) fn record(&mut self, span: Nanos, end: WaitEnd) {
        if end == WaitEnd::Preempted {
            let undisturbed = self.polls >= UNDISTURBED_POLLS;
            let doubled = (2 * self.last_back_off).clamp(FIRST_BACK_OFF, MAX_BACK_OFF);
            let waits = if undisturbed { FIRST_BACK_OFF } else { doubled };
            (self.short_waits, self.polls) = (0, 0);
            (self.back_off_waits, self.last_back_off) = (waits, waits);
            return;
        }
        self.back_off_waits = self.back_off_waits.saturating_sub(1);
        if end == WaitEnd::Polled {
            self.polls = self.polls.saturating_add(1);
        }
        let is_short = span <= MAX_BUSY_POLL;
        self.short_waits = if is_short { (self.short_waits + 1).min(SHORT_WAITS) } else { 0 };
    }
}

#[cfg(test)]
mod tests;
