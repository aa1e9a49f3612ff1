//! Data placement: selects the stream of a block, so that a segment's blocks have similar
//! lifespans.
//!
//! It infers as SepBIT does (Wang et al., FAST 2022): a block that overwrites a short-lived one is
//! short-lived; one that has lived long will live long. Lifespans count blocks that the host wrote.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Number of data streams; the map journal has its own.
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
const LIFESPAN_SEGMENTS: usize = 16;

/// The classifier of one pool.
pub struct Classes {
    separate: bool,
    lifespans: RefCell<VecDeque<u64>>,
    short: Cell<u64>,
    /// Recently overwritten blocks, and how many of them were young.
    overwritten: Cell<(f64, f64)>,
    young: Cell<u64>,
    skewed: Cell<bool>,
}

impl Classes {
    /// With `separate` false there is one stream for writes and one for moved blocks. That is for
    /// pools with so few segments that six open ones would take a large share.
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

    /// Records that a group overwrites `blocks`, of which `young` were young. `live_young` is the
    /// share of young blocks among the live blocks, and `live_age` their average age. Returns
    /// whether the overwrites are skewed.
    pub fn judge_skew(&self, blocks: u64, young: u64, live_age: u64, live_young: f64) -> bool {
        /// Weight that earlier groups keep with each new group.
        const DECAY: f64 = 7.0 / 8.0;
        /// Least blocks for a significant share.
        const MIN_BLOCKS: f64 = 500.0;
        /// Ratio of the two shares of young blocks at which skew begins.
        const SKEW_BEGINS_RATIO: f64 = 1.5;
        /// Ratio at which skew ends.
        const SKEW_ENDS_RATIO: f64 = 1.25;
        let (count, sum) = self.overwritten.get();
        let (count, sum) = (count * DECAY + blocks as f64, sum * DECAY + young as f64);
        self.overwritten.set((count, sum));
        self.young.set(live_age / 2);
        if count >= MIN_BLOCKS {
            let ratio = sum / count / live_young.max(0.01);
            let limit = if self.skewed.get() { SKEW_ENDS_RATIO } else { SKEW_BEGINS_RATIO };
            self.skewed.set(ratio >= limit);
        }
        self.skewed.get()
    }

    /// The last result of [`Classes::judge_skew`].
    #[must_use]
    pub fn is_skewed(&self) -> bool {
        self.skewed.get()
    }

    fn separates(&self) -> bool {
        self.separate && self.skewed.get()
    }

    /// The stream of a block that the host writes at `now`. `old_clock` is when the segment of the
    /// overwritten block was opened, if there is such a block.
    #[must_use]
    pub fn user_stream(&self, now: u64, old_clock: Option<u64>) -> u8 {
        match old_clock {
            Some(then) if self.separates() && now.saturating_sub(then) < self.short.get() => {
                USER_SHORT
            }
            _ => USER_LONG,
        }
    }

    /// The stream of a block that the cleaner moves out of a segment of `stream`, opened at
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

    /// Whether a stream takes the host's own writes.
    #[must_use]
    pub fn is_user(stream: u8) -> bool {
        stream <= USER_SHORT
    }

    /// Records that a segment of `stream`, opened at `clock`, was emptied at `now`.
    pub fn reclaimed(&self, now: u64, stream: u8, clock: u64) {
        if stream != USER_SHORT && self.short.get() != u64::MAX {
            return;
        }
        if !Self::is_user(stream) {
            return;
        }
        let mut lifespans = self.lifespans.borrow_mut();
        lifespans.push_back(now.saturating_sub(clock));
        if lifespans.len() >= LIFESPAN_SEGMENTS {
            if lifespans.len() > LIFESPAN_SEGMENTS {
                lifespans.pop_front();
            }
            self.short.set(lifespans.iter().sum::<u64>() / lifespans.len() as u64);
        }
    }
}
