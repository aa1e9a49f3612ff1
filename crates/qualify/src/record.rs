//! The result log: one line a record, as in `line.rs`, marked `forebay-qualify/1`.
//!
//! A line counts whole or not at all, and a log is read up to its first damaged line only.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::line::{decode_line, encode_line};
use crate::{Conditions, Ended, Outcome, Plan, Reading, Verdict, verdict};

/// Layout and version, at the start of each line.
const MARK: &str = "forebay-qualify/1";

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: what is measured, and how.
    Begin {
        /// The device and the machine.
        conditions: Box<Conditions>,
        /// The steps.
        plan: Box<Plan>,
    },
    /// A step is done.
    Step(Box<Outcome>),
    /// The qualification goes on after a crash or an interruption, at this time.
    Resumed {
        /// Seconds since 1970.
        at_s: u64,
    },
    /// The drive's counters were read.
    Health(Box<Reading>),
    /// The last line.
    End(Box<Verdict>),
}

/// Where a log is damaged, or why it is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDamage {
    /// The first line is no record of a qualification.
    NotALog,
    /// The line is cut off, or its checksum or number is wrong.
    Line {
        /// Counted from 1.
        number: usize,
        /// Bytes before it, which are good.
        good_bytes: usize,
    },
    /// Another version wrote it.
    Version,
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALog => f.write_str("this is no result of a qualification"),
            Self::Line { number, .. } => write!(f, "line {number} is damaged or cut off"),
            Self::Version => write!(f, "another version of Forebay wrote it; {MARK} is read"),
        }
    }
}

impl std::error::Error for LogDamage {}

/// The line of the record of this number, with its line feed.
#[must_use]
pub fn encode(number: usize, record: &Record) -> String {
    encode_line(MARK, number, record)
}

/// A qualification, as its log has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Qualification {
    /// The device and the machine.
    pub conditions: Conditions,
    /// The steps.
    pub plan: Plan,
    /// Outcomes of the steps that were done, in their order.
    pub outcomes: Vec<Outcome>,
    /// Readings of the drive's counters, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<Reading>,
    /// Times at which it was taken up again, in seconds since 1970.
    pub resumed_s: Vec<u64>,
    /// The verdict that ended it.
    pub verdict: Option<Verdict>,
    /// Records in the log.
    #[serde(skip)]
    pub records: usize,
}

impl Qualification {
    /// Whether there is nothing left to run: every step is done, or the device failed a request. A
    /// step that the device cannot do ends nothing.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let has_failed = |outcome: &Outcome| {
            matches!(outcome.measured.ended, Ended::Failed { is_unsupported: false, .. })
        };
        self.outcomes.len() == self.plan.steps.len() || self.outcomes.last().is_some_and(has_failed)
    }

    /// The verdict on what there is.
    #[must_use]
    pub fn judge(&self) -> Verdict {
        verdict(self)
    }
}

/// Reads a log, up to its end or its first damaged line.
///
/// # Errors
/// Not even the first record can be read.
pub fn read_log(text: &[u8]) -> Result<(Qualification, Option<LogDamage>), LogDamage> {
    let (mut found, mut good_bytes, mut damage) = (None::<Qualification>, 0, None);
    for (number, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
        let Some(record) = decode_line(MARK, number, line) else {
            damage = Some(LogDamage::Line { number: number + 1, good_bytes });
            break;
        };
        good_bytes += line.len();
        match (record, &mut found) {
            (Record::Begin { conditions, plan }, None) => {
                found = Some(Qualification {
                    conditions: *conditions,
                    plan: *plan,
                    outcomes: Vec::new(),
                    health: Vec::new(),
                    resumed_s: Vec::new(),
                    verdict: None,
                    records: 0,
                });
            }
            (Record::Step(outcome), Some(found)) => found.outcomes.push(*outcome),
            (Record::Health(reading), Some(found)) => found.health.push(*reading),
            (Record::Resumed { at_s }, Some(found)) => found.resumed_s.push(at_s),
            (Record::End(verdict), Some(found)) => found.verdict = Some(*verdict),
            _ => return Err(LogDamage::NotALog),
        }
        if let Some(found) = &mut found {
            found.records = number + 1;
        }
    }
    match found {
        Some(found) => Ok((found, damage)),
        None if text.starts_with(b"forebay-qualify/") && !text.starts_with(MARK.as_bytes()) => {
            Err(LogDamage::Version)
        }
        None => Err(LogDamage::NotALog),
    }
}
