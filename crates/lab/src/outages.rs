//! Outages of a mirror whose sides are parts in series: failures and repairs in virtual time, and
//! the formulas that they must agree with.
//!
//! Each part fails at random, whatever its age, and is replaced after a constant time. Parts fail
//! independently. A side works while all of its parts do, and the mirror while one side does.

use crate::LabError;
use crate::load::exponential;
use forebay_flash::Chance;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A part that fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// How often it fails.
    pub failures_a_year: f64,
}

/// A mirror of sides, each with parts of its own, and parts that all sides need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outages {
    /// Parts without which no side works.
    #[serde(default)]
    pub shared: Vec<Part>,
    /// Parts of each side.
    pub sides: Vec<Vec<Part>>,
    /// Time until a failed part is replaced.
    pub repair_hours: f64,
    /// Time that is simulated.
    pub years: f64,
    /// Seed.
    #[serde(default)]
    pub seed: u64,
}

/// What happened, or what formulas say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Parts that are replaced in a year.
    pub repairs_a_year: f64,
    /// How often in a year the last side that worked stops.
    pub outages_a_year: f64,
    /// Hours in a year without a side that works.
    pub hours_a_year: f64,
}

/// Outages over the simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutagesOutcome {
    /// Outages that were met.
    pub outages: u64,
    /// As simulated.
    pub simulated: Rates,
    /// By the formulas of alternating renewal.
    pub formula: Rates,
}

/// Hours of a year.
const YEAR_HOURS: f64 = 365.25 * 24.0;
/// Parts that may be in an arrangement.
const MAX_PARTS: usize = 1000;
/// Failures that a run may have: seconds of computing.
const MAX_FAILURES: f64 = 1e9;

impl Outages {
    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.shared.iter().chain(self.sides.iter().flatten())
    }

    fn check(&self) -> Result<(), LabError> {
        let refused = |field, found: &dyn std::fmt::Display, allowed| {
            Err(LabError::field("outages", field, found.to_string(), allowed))
        };
        let parts = self.parts().count();
        if self.sides.is_empty() || self.sides.iter().any(Vec::is_empty) {
            return refused("sides", &"empty", "a list of sides, each with parts");
        }
        if parts > MAX_PARTS {
            return refused("parts", &parts, "at most 1,000");
        }
        for part in self.parts() {
            if !(part.failures_a_year > 0.0 && part.failures_a_year <= 1e3) {
                let found = part.failures_a_year;
                return refused("failures_a_year", &found, "above 0 and at most 1,000");
            }
        }
        if !(self.repair_hours > 0.0 && self.repair_hours <= 1e5) {
            return refused("repair_hours", &self.repair_hours, "above 0 and at most 100,000");
        }
        let failures = self.years * self.parts().map(|part| part.failures_a_year).sum::<f64>();
        if !(self.years > 0.0 && failures <= MAX_FAILURES) {
            let allowed = "above 0, and not so many that more than 1e9 parts fail";
            return refused("years", &self.years, allowed);
        }
        Ok(())
    }

    /// The exact rates of independent parts, each alternating between work and repair.
    #[must_use]
    pub fn formula(&self) -> Rates {
        let repair = self.repair_hours / YEAR_HOURS;
        // Share of time that a part works, and how often a year it fails.
        let works = |part: &Part| 1.0 / (1.0 + part.failures_a_year * repair);
        let fails = |part: &Part| part.failures_a_year * works(part);
        let series = |parts: &[Part]| {
            let works_all: f64 = parts.iter().map(works).product();
            let fails_all: f64 = parts.iter().map(|p| fails(p) * works_all / works(p)).sum();
            (works_all, fails_all)
        };
        let (shared_works, shared_fails) = series(&self.shared);
        let sides: Vec<(f64, f64)> = self.sides.iter().map(|side| series(side)).collect();
        let none_works: f64 = sides.iter().map(|(works, _)| 1.0 - works).product();
        // The last side stops while all others are down.
        let last_stops: f64 = (0..sides.len())
            .map(|last| {
                let others = sides.iter().enumerate().filter(|(side, _)| *side != last);
                sides[last].1 * others.map(|(_, (works, _))| 1.0 - works).product::<f64>()
            })
            .sum();
        let outages_a_year = shared_fails * (1.0 - none_works) + shared_works * last_stops;
        let works = shared_works * (1.0 - none_works);
        Rates {
            repairs_a_year: self.parts().map(fails).sum(),
            outages_a_year,
            hours_a_year: (1.0 - works) * YEAR_HOURS,
        }
    }

    /// Runs the years.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn run(&self) -> Result<OutagesOutcome, LabError> {
        self.check()?;
        let mut state = State::new(self);
        while state.step() {}
        Ok(OutagesOutcome {
            outages: state.outages,
            simulated: Rates {
                repairs_a_year: state.repairs as f64 / self.years,
                outages_a_year: state.outages as f64 / self.years,
                hours_a_year: state.down_hours / self.years,
            },
            formula: self.formula(),
        })
    }
}

/// Which parts work, and what happens next. Times are whole milliseconds.
struct State {
    /// Mean time to failure of each part, and the side it is of; none for shared ones.
    parts: Vec<(f64, Option<usize>)>,
    repair_ms: u64,
    end_ms: u64,
    chance: Chance,
    /// The next change of each part: when, which part, and whether it fails.
    next: BinaryHeap<Reverse<(u64, usize, bool)>>,
    /// Parts that are down, shared ones and those of each side.
    shared_down: u32,
    side_down: Vec<u32>,
    down_since: Option<u64>,
    outages: u64,
    repairs: u64,
    down_hours: f64,
}

const HOUR_MS: f64 = 3_600_000.0;

impl State {
    fn new(of: &Outages) -> Self {
        let mean_ms = |part: &Part| YEAR_HOURS * HOUR_MS / part.failures_a_year;
        let shared = of.shared.iter().map(|part| (mean_ms(part), None));
        let sides = of.sides.iter().enumerate();
        let sides = sides.flat_map(|(i, side)| side.iter().map(move |p| (mean_ms(p), Some(i))));
        let mut state = Self {
            parts: shared.chain(sides).collect(),
            repair_ms: (of.repair_hours * HOUR_MS) as u64,
            end_ms: (of.years * YEAR_HOURS * HOUR_MS) as u64,
            chance: Chance::derive(of.seed, "outages"),
            next: BinaryHeap::new(),
            shared_down: 0,
            side_down: vec![0; of.sides.len()],
            down_since: None,
            outages: 0,
            repairs: 0,
            down_hours: 0.0,
        };
        for part in 0..state.parts.len() {
            state.fails_next(part, 0);
        }
        state
    }

    fn fails_next(&mut self, part: usize, now_ms: u64) {
        let life_ms = exponential(&mut self.chance) * self.parts[part].0;
        self.next.push(Reverse((now_ms + life_ms as u64, part, true)));
    }

    fn works(&self) -> bool {
        self.shared_down == 0 && self.side_down.contains(&0)
    }

    /// The next failure or repair. Returns whether time is left.
    fn step(&mut self) -> bool {
        let Some(Reverse((now_ms, part, fails))) = self.next.pop() else { return false };
        if now_ms >= self.end_ms {
            let since = self.down_since.take();
            self.down_hours += since.map_or(0.0, |since| (self.end_ms - since) as f64 / HOUR_MS);
            return false;
        }
        let worked = self.works();
        let down = match self.parts[part].1 {
            None => &mut self.shared_down,
            Some(side) => &mut self.side_down[side],
        };
        if fails {
            *down += 1;
            self.next.push(Reverse((now_ms + self.repair_ms, part, false)));
        } else {
            *down -= 1;
            self.repairs += 1;
            self.fails_next(part, now_ms);
        }
        match (worked, self.works()) {
            (true, false) => {
                self.outages += 1;
                self.down_since = Some(now_ms);
            }
            (false, true) => {
                let since = self.down_since.take().unwrap_or(now_ms);
                self.down_hours += (now_ms - since) as f64 / HOUR_MS;
            }
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests;
