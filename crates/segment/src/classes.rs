//! Which stream a block goes to: blocks that will die together should lie together.
//!
//! The inference is that of SepBIT (Wang et al., FAST 2022): a block that overwrites a short-lived
//! one will be short-lived, and a block that has survived long will live long. Lifespans are
//! measured in blocks that the host has written.
//!
//! Where all blocks are as likely to be overwritten as any other there is nothing to infer, and
//! more open segments only cost space. Whether that is so shows in ages: of what is overwritten as
//! large a share is young as of what is alive then, and a much larger one under skew. (Averages
//! would not tell: whatever the skew, a block is overwritten after as many writes as there are
//! blocks, on average over writes.)

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Data streams; the map journal is apart.
pub const STREAMS: u8 = 6;
/// The stream of the map journal.
pub const MAP_STREAM: u8 = 15;

const USER_LONG: u8 = 0;
const USER_SHORT: u8 = 1;
const MOVED_SHORT: u8 = 2;
const MOVED_YOUNG: u8 = 3;
const MOVED_MIDDLE: u8 = 4;
const MOVED_OLD: u8 = 5;

/// Reclaimed segments over which the short lifespan is averaged, as in the paper.
const WINDOW: usize = 16;

/// The classifier of one pool.
pub struct Classes {
    separate: bool,
    lifespans: RefCell<VecDeque<u64>>,
    short: Cell<u64>,
    /// Blocks overwritten of late, and those of them that were young.
    overwritten: Cell<(f64, f64)>,
    young: Cell<u64>,
    skewed: Cell<bool>,
}

impl Classes {
    /// With `separate` false there is one stream for writes and one for moved blocks: for pools of
    /// so few segments that six open ones would take a large share.
    #[must_use]
    pub fn new(separate: bool) -> Self {
        Self {
            separate,
            lifespans: RefCell::default(),
            short: Cell::new(u64::MAX),
            overwritten: Cell::default(),
            young: Cell::default(),
            skewed: Cell::new(false),
        }
    }

    /// The age below which a block counts as young for [`Classes::judge_skew`].
    #[must_use]
    pub fn young(&self) -> u64 {
        self.young.get()
    }

    /// Notes that a group overwrites `blocks` of which `young` were young, while `live_young` is
    /// that share of all that is alive, which is `live_age` old on average. Says whether writes
    /// favour some blocks over others.
    pub fn judge_skew(&self, blocks: u64, young: u64, live_age: u64, live_young: f64) -> bool {
        /// Older groups count less and less.
        const KEPT: f64 = 7.0 / 8.0;
        /// Blocks of which a share says something.
        const ENOUGH: f64 = 500.0;
        /// So many times the share of what is alive: skew begins, and ends.
        const BEGINS: f64 = 1.5;
        const ENDS: f64 = 1.25;
        let (count, sum) = self.overwritten.get();
        let (count, sum) = (count * KEPT + blocks as f64, sum * KEPT + young as f64);
        self.overwritten.set((count, sum));
        self.young.set(live_age / 2);
        if count >= ENOUGH {
            let times = sum / count / live_young.max(0.01);
            self.skewed.set(times >= if self.skewed.get() { ENDS } else { BEGINS });
        }
        self.skewed.get()
    }

    /// What [`Classes::judge_skew`] said last.
    #[must_use]
    pub fn is_skewed(&self) -> bool {
        self.skewed.get()
    }

    fn separates(&self) -> bool {
        self.separate && self.skewed.get()
    }

    /// The stream of a block that the host writes at `now`, overwriting one whose segment was
    /// opened at `old_clock` (if any).
    #[must_use]
    pub fn user_stream(&self, now: u64, old_clock: Option<u64>) -> u8 {
        match old_clock {
            Some(then) if self.separates() && now.saturating_sub(then) < self.short.get() => {
                USER_SHORT
            }
            _ => USER_LONG,
        }
    }

    /// The stream of a block that the cleaner moves out of a segment of `stream` opened at
    /// `clock`.
    #[must_use]
    pub fn moved_stream(&self, now: u64, stream: u8, clock: u64) -> u8 {
        if !self.separates() {
            return MOVED_YOUNG;
        }
        if stream == USER_SHORT {
            return MOVED_SHORT;
        }
        let (age, short) = (now.saturating_sub(clock), self.short.get());
        if age < short.saturating_mul(4) {
            MOVED_YOUNG
        } else if age < short.saturating_mul(16) {
            MOVED_MIDDLE
        } else {
            MOVED_OLD
        }
    }

    /// The stream of all moved blocks while there is no room to separate them.
    #[must_use]
    pub fn of_all_moved() -> u8 {
        MOVED_YOUNG
    }

    /// Whether a stream takes the host's own writes.
    #[must_use]
    pub fn is_user(stream: u8) -> bool {
        stream <= USER_SHORT
    }

    /// Notes that a segment of `stream`, opened at `clock`, was emptied at `now`.
    pub fn reclaimed(&self, now: u64, stream: u8, clock: u64) {
        if stream != USER_SHORT && self.short.get() != u64::MAX {
            return;
        }
        if !Self::is_user(stream) {
            return;
        }
        let mut lifespans = self.lifespans.borrow_mut();
        lifespans.push_back(now.saturating_sub(clock));
        if lifespans.len() >= WINDOW {
            if lifespans.len() > WINDOW {
                lifespans.pop_front();
            }
            self.short.set(lifespans.iter().sum::<u64>() / lifespans.len() as u64);
        }
    }
}
