//! Group commit: how many frames are in flight, and how long the next one gathers records.
//!
//! Records, frames and the clock enter; a verdict about the next frame leaves. The core calls; no
//! task, device or clock is known here. Windows of two settings take turns, and the one with the
//! lower mean latency of a record stays. A client that is alone never waits here.

use forebay_units::Nanos;

use crate::config::GroupCommit;

/// Frames in flight on each ring at first.
const FIRST_FRAMES: u64 = 4;
/// Least records of a window.
const WINDOW_RECORDS: u64 = 64;
/// Pairs of windows of a trial.
const TRIAL_PAIRS: u32 = 4;
/// Pairs that a neighboring setting must win. Other work of the machine decides single ones.
const TRIAL_WINS: u32 = 3;
/// A setting with so much more latency is given up after a pair of windows.
const HOPELESS_PERCENT: u128 = 125;
/// A pause in which nothing happens counts for no longer than so many frames take: devices stall.
const MAX_GAP_FRAMES: u64 = 16;
/// Most windows between two trials of a setting that stays the best.
const MAX_PAUSE_WINDOWS: u32 = 256;
/// Fractions of a record in the moving average of records under way.
const CONCURRENCY_ONE: u64 = 16;

/// How frames are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    /// Frames in flight on each ring.
    frames: u64,
    /// Whether a frame waits for its share of the records under way.
    gathers: bool,
}

/// What the next frame has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Issue,
    /// Gather until then.
    Until(Nanos),
    /// Wait for a frame to end.
    Hold,
}

/// The records that wait for a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub records: u64,
    pub bytes: u64,
    /// Bytes of data that fill a frame.
    pub full_bytes: u64,
    pub frames_in_flight: u64,
    pub rings: u64,
}

/// Latency of the records that ended in a window.
#[derive(Default)]
struct Window {
    /// Records that end first, because they began before the setting.
    left_of_last: u64,
    /// Records under way, summed over the nanoseconds.
    area: u128,
    ended: u64,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    area: u128,
    ended: u64,
}

/// Windows of two settings in turns.
struct Trial {
    tried: Setting,
    windows: u32,
    /// Of the setting in use, and of the tried one.
    sums: [Sum; 2],
    /// The last window of the setting in use.
    before: Sum,
    /// Pairs of windows in which the tried setting was better.
    wins: u32,
}

impl Sum {
    /// Whether the mean latency is at most `percent` of another.
    fn is_below(self, other: Self, percent: u128) -> bool {
        let mean = |sum: Self| sum.area / u128::from(sum.ended.max(1));
        100 * mean(self) <= percent * mean(other)
    }
}

impl Trial {
    fn new(tried: Setting) -> Self {
        let sums = [Sum::default(); 2];
        Self { tried, windows: 0, sums, before: Sum::default(), wins: 0 }
    }

    /// Adds the next window.
    fn add(&mut self, found: Sum, percent: u128) {
        let sum = &mut self.sums[(self.windows % 2) as usize];
        sum.area += found.area;
        sum.ended += found.ended;
        match self.windows % 2 {
            0 => self.before = found,
            _ => self.wins += u32::from(found.is_below(self.before, percent)),
        }
        self.windows += 1;
    }

    /// Whether all windows are over, or the rest cannot change the outcome.
    fn is_decided(&self) -> bool {
        let pairs = self.windows / 2;
        let is_hopeless = pairs - self.wins > TRIAL_PAIRS - TRIAL_WINS;
        let is_far_off =
            pairs > self.wins && !self.sums[1].is_below(self.sums[0], HOPELESS_PERCENT);
        let is_whole = self.windows % 2 == 0;
        is_whole && (pairs == TRIAL_PAIRS || is_hopeless || is_far_off)
    }
}

/// The state of group commit.
pub(crate) struct GroupController {
    mode: GroupCommit,
    max_frames: u64,
    used: Setting,
    trial: Option<Trial>,
    /// Which neighbor is tried next.
    next_trial: u32,
    /// Trials that changed nothing since the last one that did.
    kept: u32,
    pause_windows: u32,
    window: Window,
    last: Nanos,
    /// Moving average of the records under way when a frame ends, in parts of [`CONCURRENCY_ONE`].
    concurrency: u64,
    /// The average when trials began to pause.
    settled_concurrency: u64,
    /// Moving average of the time that a frame takes.
    frame_time: Nanos,
    gathering_since: Option<Nanos>,
}

impl GroupController {
    pub fn new(mode: GroupCommit, frames_in_flight: usize) -> Self {
        let max_frames = frames_in_flight as u64;
        let frames = match mode {
            GroupCommit::Adaptive => FIRST_FRAMES.min(max_frames),
            GroupCommit::Fixed { .. } => max_frames,
        };
        Self {
            mode,
            max_frames,
            used: Setting { frames, gathers: false },
            trial: None,
            next_trial: 0,
            kept: 0,
            pause_windows: 0,
            window: Window::default(),
            last: Nanos::ZERO,
            concurrency: CONCURRENCY_ONE,
            settled_concurrency: 0,
            frame_time: Nanos::ZERO,
            gathering_since: None,
        }
    }

    fn setting(&self) -> Setting {
        match &self.trial {
            Some(trial) if trial.windows % 2 != 0 => trial.tried,
            _ => self.used,
        }
    }

    /// Whether a frame has all that it would gather.
    pub fn is_due(&self, waiting: &Waiting) -> bool {
        let setting = self.setting();
        if waiting.bytes >= waiting.full_bytes {
            return true;
        }
        if let GroupCommit::Fixed { gather } = self.mode {
            return gather == Nanos::ZERO;
        }
        if !setting.gathers {
            return true;
        }
        let frames = setting.frames * waiting.rings;
        waiting.records * frames * CONCURRENCY_ONE + CONCURRENCY_ONE / 2 >= self.concurrency
    }

    /// Whether another frame may be in flight.
    pub fn has_slot(&self, frames_in_flight: u64, rings: u64) -> bool {
        frames_in_flight < self.setting().frames * rings
    }

    /// Whether a worker waits for records.
    pub fn is_gathering(&self) -> bool {
        self.gathering_since.is_some()
    }

    /// No worker waits for records any more.
    pub fn stop_gathering(&mut self) {
        self.gathering_since = None;
    }

    /// What a worker does that could write the next frame.
    pub fn verdict(&mut self, now: Nanos, waiting: &Waiting) -> Verdict {
        if !self.has_slot(waiting.frames_in_flight, waiting.rings) {
            self.gathering_since = None;
            return Verdict::Hold;
        }
        let patience = match self.mode {
            _ if self.is_due(waiting) => Nanos::ZERO,
            GroupCommit::Fixed { gather } => gather,
            GroupCommit::Adaptive => self.frame_time,
        };
        let until = *self.gathering_since.get_or_insert(now) + patience;
        if now >= until {
            self.gathering_since = None;
            return Verdict::Issue;
        }
        Verdict::Until(until)
    }

    /// The time goes on to `now` with `records` under way.
    pub fn pass(&mut self, now: Nanos, records: u64) {
        if self.window.left_of_last == 0 {
            let most = MAX_GAP_FRAMES * self.frame_time.0.max(1);
            self.window.area += u128::from(now.since(self.last).0.min(most)) * u128::from(records);
        }
        self.last = now;
    }

    /// A frame ended after `took`, with `records` under way, its own included.
    pub fn frame_ended(&mut self, took: Nanos, records: u64) {
        let weigh = |old: u64, new: u64| if old == 0 { new } else { (3 * old + new) / 4 };
        self.frame_time = Nanos(weigh(self.frame_time.0, took.0));
        self.concurrency = weigh(self.concurrency, records * CONCURRENCY_ONE);
    }

    /// `records` were acknowledged.
    pub fn records_ended(&mut self, records: u64) {
        if self.mode != GroupCommit::Adaptive {
            return;
        }
        let window = &mut self.window;
        if window.left_of_last > 0 {
            window.left_of_last = window.left_of_last.saturating_sub(records);
            return;
        }
        window.ended += records;
        let usual = self.concurrency / CONCURRENCY_ONE;
        if window.ended >= WINDOW_RECORDS.max(4 * usual) {
            self.window_ended();
        }
    }

    fn window_ended(&mut self) {
        let percent = self.percent_of_tried();
        let window = std::mem::take(&mut self.window);
        let found = Sum { area: window.area, ended: window.ended };
        match &mut self.trial {
            None => self.consider_trial(),
            Some(trial) => {
                trial.add(found, percent);
                if trial.is_decided() {
                    self.end_trial();
                }
            }
        }
        if self.trial.is_some() {
            // Records under way belong to the setting before.
            self.window.left_of_last = 2 * self.concurrency / CONCURRENCY_ONE;
        }
    }

    /// Begins a trial when one is due and a single client is not alone.
    fn consider_trial(&mut self) {
        if 2 * self.concurrency < 3 * CONCURRENCY_ONE {
            return;
        }
        let (now, then) = (self.concurrency, self.settled_concurrency);
        if 2 * now > 3 * then || 3 * now < 2 * then {
            self.settled_concurrency = now;
            (self.kept, self.pause_windows) = (0, 0);
        }
        if self.pause_windows > 0 {
            self.pause_windows -= 1;
            return;
        }
        for _ in 0..3 {
            self.next_trial += 1;
            let Setting { frames, gathers } = self.used;
            let tried = match self.next_trial % 3 {
                0 => Setting { frames: (2 * frames).min(self.max_frames), gathers },
                1 => Setting { frames: (frames / 2).max(1), gathers },
                _ => Setting { frames, gathers: !gathers },
            };
            if tried != self.used {
                self.trial = Some(Trial::new(tried));
                return;
            }
        }
    }

    /// The latency that a tried setting may have, in percent of that of the setting in use. Fewer
    /// commands are better if the latency is the same.
    fn percent_of_tried(&self) -> u128 {
        let has_fewer_commands = |tried: Setting| {
            tried.frames < self.used.frames || (tried.gathers && !self.used.gathers)
        };
        match &self.trial {
            Some(trial) if has_fewer_commands(trial.tried) => 100,
            _ => 98,
        }
    }

    /// Keeps the better setting.
    fn end_trial(&mut self) {
        let percent = self.percent_of_tried();
        let Some(Trial { tried, sums: [used, other], wins, .. }) = self.trial.take() else {
            return;
        };
        if wins >= TRIAL_WINS && other.is_below(used, percent) {
            if tried.gathers == self.used.gathers {
                // The same direction again.
                self.next_trial += 2;
            }
            self.used = tried;
            self.kept = 0;
        } else {
            self.kept += 1;
        }
        if self.kept >= 3 {
            self.pause_windows = (1 << (2 * self.kept).min(16)).min(MAX_PAUSE_WINDOWS);
        }
    }
}

#[cfg(test)]
mod tests;
