//! Detectors: what the outcomes say about a device beside its rates.
//!
//! What enters: outcomes of steps and the conditions. What leaves: one finding for each detector.
//! What always holds: a detector whose steps are missing says so, and never "clear". Who calls:
//! `verdict`, the report, the command.

use serde::{Deserialize, Serialize};

use crate::plan::{DIRTY_BLOCKS, TURNS};
use crate::{
    Conditions, Content, Ended, Outcome, Pattern, Protection, Round, StepKind, Sync, WINDOW_ROUNDS,
    WriteCache,
};

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detector {
    /// Flushes that do nothing.
    IgnoredFlush,
    /// Compression of data.
    Compression,
    /// Cost of requests beside the 4 KiB grid.
    Misalignment,
    /// A write rate that falls with use and stays low.
    Degradation,
    /// A write rate that falls under load and comes back with rest.
    Throttling,
    /// The behavior of memory: flat in every respect. No defect.
    Memory,
}

impl Detector {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 6] = [
        Self::IgnoredFlush,
        Self::Compression,
        Self::Misalignment,
        Self::Degradation,
        Self::Throttling,
        Self::Memory,
    ];

    /// As pages print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IgnoredFlush => "ignores flushes",
            Self::Compression => "compresses",
            Self::Misalignment => "misaligns",
            Self::Degradation => "degrades",
            Self::Throttling => "throttles",
            Self::Memory => "behaves like memory",
        }
    }
}

/// What a detector found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// What it looks for is there.
    Hit,
    /// It is not.
    Clear,
    /// The measurements cannot tell.
    Open,
}

/// A detector's finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The detector.
    pub detector: Detector,
    /// What it found.
    pub sign: Sign,
    /// The evidence, in one sentence.
    pub text: String,
}

/// A flush of 64 blocks that takes less than so many plain writes of one block costs nothing.
const FREE_FLUSH_WRITES: f64 = 1.5;
/// Two loads that are compared differ from this ratio on, in every turn.
const DIFFERENT: f64 = 1.15;
/// A device degrades when its rate falls below this share of its first.
const DEGRADED_SHARE: f64 = 0.8;
/// Rest brings the rate back when it rises by this factor.
const REST_GAIN: f64 = 1.25;
/// Shares of memory differ by less than this.
const FLAT: f64 = 1.1;
/// Of memory, the ratio of p99.9 to the median is below this.
const FLAT_TAIL: f64 = 3.0;

/// The findings of all detectors.
#[must_use]
pub fn findings(conditions: &Conditions, outcomes: &[Outcome]) -> Vec<Finding> {
    let mut found =
        vec![ignored_flush(conditions, outcomes), compression(outcomes), misalignment(outcomes)];
    found.extend(falling_rate(conditions, outcomes));
    found.push(memory(outcomes, &found));
    found
}

fn finding(detector: Detector, sign: Sign, text: impl Into<String>) -> Finding {
    Finding { detector, sign, text: text.into() }
}

/// The outcome of a step, when it was done as planned.
pub(crate) fn whole(outcomes: &[Outcome], kind: StepKind) -> Option<&Outcome> {
    outcomes.iter().find(|o| o.kind == kind && o.is_whole())
}

fn micros(ns: f64) -> String {
    let us = ns / 1e3;
    if us < 100.0 { format!("{us:.1} µs") } else { format!("{us:.0} µs") }
}

fn ignored_flush(conditions: &Conditions, outcomes: &[Outcome]) -> Finding {
    let detector = Detector::IgnoredFlush;
    let kind = StepKind::FlushCost { dirty_blocks: DIRTY_BLOCKS[2] };
    let refused = outcomes.iter().any(|o| {
        let is_flush = matches!(
            o.kind,
            StepKind::FlushCost { .. } | StepKind::SyncWrites { sync: Sync::Flush, .. }
        );
        is_flush && matches!(o.measured.ended, Ended::Failed { is_unsupported: true, .. })
    });
    if refused {
        let text = "the device answers that it does not support flushes";
        return finding(detector, Sign::Hit, text);
    }
    let latency = |kind| whole(outcomes, kind).map(|o| o.measured.latency);
    let (Some(writes), Some(flushes)) = (latency(StepKind::PlainWrites), latency(kind)) else {
        return finding(detector, Sign::Open, "flushes were not measured");
    };
    let (Some(plain), Some(flush)) = (writes.p50_ns, flushes.p50_ns) else {
        return finding(detector, Sign::Open, "flushes were not measured");
    };
    let (plain, flush) = (plain as f64, flush as f64);
    // Other work of the machine makes medians longer, the shortest response seldom.
    let is_free_at_best = (flushes.min_ns as f64) < FREE_FLUSH_WRITES * writes.min_ns as f64;
    let figures = format!(
        "a flush of {} blocks takes {}, a write of one block {}",
        DIRTY_BLOCKS[2],
        micros(flush),
        micros(plain)
    );
    if flush >= FREE_FLUSH_WRITES * plain {
        return finding(detector, Sign::Clear, format!("flushes cost time: {figures}"));
    }
    if !is_free_at_best {
        let [flush, plain] = [flushes.min_ns, writes.min_ns].map(|ns| micros(ns as f64));
        let text = format!(
            "flushes cost time where nothing disturbs them: at least {flush}, a write {plain}; \
             {figures}"
        );
        return finding(detector, Sign::Clear, text);
    }
    if conditions.write_cache == Some(WriteCache::Durable) {
        let text = format!("flushes cost nothing, and the device says it needs none: {figures}");
        return finding(detector, Sign::Clear, text);
    }
    if conditions.protection == Some(Protection::UserData) {
        let source = conditions.protection_source.as_deref().unwrap_or("the operator");
        let text =
            format!("flushes cost nothing; data in flight is protected, by {source}: {figures}");
        return finding(detector, Sign::Clear, text);
    }
    let cache = match conditions.write_cache {
        Some(WriteCache::Volatile) => "the device says that its cache is volatile",
        _ => "whether its cache is volatile is unknown",
    };
    let text = format!(
        "flushes cost nothing, and {cache}: {figures}; timing is a suspicion, a power cut shows"
    );
    finding(detector, Sign::Hit, text)
}

/// Two loads that took turns.
struct Turns {
    /// The load of the odd turns against the mean of its neighbors, which cancels a drift.
    ratios: Vec<f64>,
    /// The most by which two neighboring turns of the other load differ, as a share of their mean.
    noise: f64,
}

impl Turns {
    fn new(outcomes: &[Outcome], turn_of: impl Fn(StepKind) -> Option<u32>) -> Option<Self> {
        let mut rates = Vec::new();
        for outcome in outcomes.iter().filter(|o| o.is_whole()) {
            if let Some(turn) = turn_of(outcome.kind) {
                if turn as usize != rates.len() {
                    return None;
                }
                rates.push(outcome.measured.iops());
            }
        }
        if rates.len() != TURNS as usize || rates.iter().any(|rate| *rate <= 0.0) {
            return None;
        }
        let around = |at: usize| (rates[at - 1] + rates[at + 1]) / 2.0;
        let odd = || (1..rates.len() - 1).step_by(2);
        let ratios = odd().map(|at| rates[at] / around(at)).collect();
        let spread = |at: usize| (rates[at - 1] - rates[at + 1]).abs() / around(at);
        Some(Self { ratios, noise: odd().map(spread).fold(0.0, f64::max) })
    }

    /// What it means that every one of `gains` (ratios, or their inverses) is large enough. Noise
    /// may make such a difference, and may hide one.
    fn judge(&self, gains: &[f64]) -> Sign {
        let is_different = gains.iter().all(|gain| *gain >= DIFFERENT);
        let gain = mean(gains);
        match is_different {
            true if gain - 1.0 > self.noise => Sign::Hit,
            false if gain + self.noise < DIFFERENT => Sign::Clear,
            _ => Sign::Open,
        }
    }

    fn noise_note(&self) -> String {
        format!("turns of one load differ by {:.0} %", self.noise * 100.0)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn compression(outcomes: &[Outcome]) -> Finding {
    let detector = Detector::Compression;
    let turn_of = |kind| match kind {
        StepKind::Content { turn, .. } if turn < TURNS => Some(turn),
        _ => None,
    };
    let Some(turns) = Turns::new(outcomes, turn_of) else {
        return finding(detector, Sign::Open, "contents were not compared");
    };
    let (gain, noise) = (mean(&turns.ratios), turns.noise_note());
    let half = half_compressible(outcomes)
        .map(|gain| format!(", half compressible data {gain:.2} times"))
        .unwrap_or_default();
    let text = format!(
        "a repeating byte is written {gain:.2} times as fast as pseudo-random data{half}; {noise}"
    );
    finding(detector, turns.judge(&turns.ratios), text)
}

/// How fast half compressible data is written, against its neighbors.
fn half_compressible(outcomes: &[Outcome]) -> Option<f64> {
    let rate = |turn: u32, content| {
        let outcome = whole(outcomes, StepKind::Content { content, turn })?;
        Some(outcome.measured.iops()).filter(|rate| *rate > 0.0)
    };
    let before = rate(TURNS - 1, Content::PseudoRandom)?;
    let after = rate(TURNS + 1, Content::PseudoRandom)?;
    Some(rate(TURNS, Content::Half)? * 2.0 / (before + after))
}

fn misalignment(outcomes: &[Outcome]) -> Finding {
    let detector = Detector::Misalignment;
    let turn_of = |kind| match kind {
        StepKind::Alignment { turn, .. } => Some(turn),
        _ => None,
    };
    let Some(turns) = Turns::new(outcomes, turn_of) else {
        let text = "alignments were not compared (the device may have blocks of 4 KiB)";
        return finding(detector, Sign::Open, text);
    };
    let costs: Vec<f64> = turns.ratios.iter().map(|ratio| 1.0 / ratio).collect();
    let (cost, noise) = (mean(&costs), turns.noise_note());
    let text = format!(
        "4 KiB writes on the grid are {cost:.2} times as fast as 512 bytes beside it; {noise}"
    );
    finding(detector, turns.judge(&costs), text)
}

/// The mean rate of the first half of a load.
fn early_rate(outcome: &Outcome) -> f64 {
    let samples = &outcome.measured.samples;
    let rates: Vec<f64> = samples.iter().take(samples.len().div_ceil(2)).map(|s| s.iops).collect();
    if rates.is_empty() { outcome.measured.iops() } else { mean(&rates) }
}

/// The best of the last rounds: one slow round must not pass for a fall.
fn best_of_window(rounds: &[Round]) -> Option<f64> {
    let window = rounds.iter().rev().take(WINDOW_ROUNDS).map(|round| round.iops);
    window.max_by(f64::total_cmp)
}

/// Degradation and throttling: a rate that falls, and what rest does to it.
fn falling_rate(conditions: &Conditions, outcomes: &[Outcome]) -> [Finding; 2] {
    let content = Content::PseudoRandom;
    let fresh = whole(outcomes, StepKind::Content { content, turn: 0 });
    let rounds = outcomes
        .iter()
        .find(|o| matches!(o.kind, StepKind::SteadyState { .. }) && o.is_whole())
        .and_then(|o| best_of_window(&o.rounds));
    let rested = whole(outcomes, StepKind::Recovery);
    let (Some(fresh), Some(last), Some(rested)) = (fresh, rounds, rested) else {
        let open = |detector| finding(detector, Sign::Open, "the rate over time was not measured");
        return [open(Detector::Degradation), open(Detector::Throttling)];
    };
    let (first, rested) = (fresh.measured.iops(), early_rate(rested));
    let figures = format!(
        "random 4 KiB writes a second: {first:.0} at first, {last:.0} at the end of the load, \
         {rested:.0} after resting"
    );
    if rested >= REST_GAIN * last {
        let text = format!("the rate falls under load and comes back with rest; {figures}");
        return [
            finding(Detector::Degradation, Sign::Clear, figures),
            finding(Detector::Throttling, Sign::Hit, text),
        ];
    }
    let throttling = finding(Detector::Throttling, Sign::Clear, figures.clone());
    if last < DEGRADED_SHARE * first {
        let text = format!("the rate falls with use, and rest does not bring it back; {figures}");
        return [finding(Detector::Degradation, Sign::Hit, text), throttling];
    }
    let written: u64 = outcomes.iter().map(|o| o.measured.written_bytes).sum();
    let passes = written as f64 / conditions.size_bytes.max(1) as f64;
    if passes < 1.0 {
        let percent = passes * 100.0;
        let text = format!(
            "no fall, but only {percent:.1} % of the device's size was written: flash slows down \
             after all of it; {figures}"
        );
        return [finding(Detector::Degradation, Sign::Open, text), throttling];
    }
    let text = format!("no fall while {passes:.1} times its size was written; {figures}");
    [finding(Detector::Degradation, Sign::Clear, text), throttling]
}

fn memory(outcomes: &[Outcome], found: &[Finding]) -> Finding {
    let detector = Detector::Memory;
    let rate =
        |pattern| whole(outcomes, StepKind::Sustained { pattern }).map(|o| o.measured.iops());
    let single = whole(outcomes, StepKind::PlainWrites).map(|o| o.measured.latency);
    let free = whole(outcomes, StepKind::FlushCost { dirty_blocks: DIRTY_BLOCKS[2] });
    let (Some(sequential), Some(random), Some(single), Some(free)) =
        (rate(Pattern::Sequential), rate(Pattern::Random), single, free)
    else {
        return finding(detector, Sign::Open, "the sustained loads were not measured");
    };
    let spread = (sequential / random).max(random / sequential);
    let tail = match (single.p999_ns.or(single.p99_ns), single.p50_ns) {
        (Some(tail), Some(p50)) => tail as f64 / p50.max(1) as f64,
        _ => f64::INFINITY,
    };
    let is_free = match (free.measured.latency.p50_ns, single.p50_ns) {
        (Some(flush), Some(plain)) => (flush as f64) < FREE_FLUSH_WRITES * plain as f64,
        _ => false,
    };
    let may_fall = |f: &Finding| f.detector == Detector::Degradation && f.sign == Sign::Open;
    let is_other =
        found.iter().any(|f| f.sign == Sign::Hit && f.detector != Detector::IgnoredFlush);
    let text = format!(
        "sequential against random {spread:.2}, p99.9 against p50 {tail:.1}, flushes {}",
        if is_free { "free" } else { "not free" }
    );
    let is_hit = !is_other && is_free && spread < FLAT && tail < FLAT_TAIL;
    let sign = match is_hit {
        true if found.iter().any(may_fall) => Sign::Open,
        true => Sign::Hit,
        false => Sign::Clear,
    };
    finding(detector, sign, text)
}
