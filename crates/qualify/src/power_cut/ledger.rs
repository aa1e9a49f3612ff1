//! The witness's memory: cycles, acknowledgements and verdicts, as lines of an append-only file.
//!
//! What enters: messages of the machine under test. What leaves: entries to append, replies. What
//! always holds: the memory follows from the entries alone. A lost entry weakens a check; it never
//! makes a false alarm. Who calls: `forebay witness`.

use serde::{Deserialize, Serialize};

use crate::line::{decode_line, encode_line};
use crate::power_cut::{CutFindings, CutPlan, LossBound, loss_bound};
use crate::record::LogDamage;

/// Layout and version, at the start of each line.
const MARK: &str = "forebay-witness/1";

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A cycle begins.
    Begin {
        /// Seconds since 1970.
        at_s: u64,
        /// The device, as the machine under test describes it.
        device: String,
        /// That machine's boot.
        boot: String,
        /// What is written.
        plan: CutPlan,
    },
    /// For each writer: its records up to this one are durable.
    Durable(Vec<u64>),
    /// Each place has a durable record.
    Filled,
    /// The command that cuts the power was started.
    Cut {
        /// Seconds since 1970.
        at_s: u64,
    },
    /// The machine under test ended the cycle by itself.
    Ended {
        /// Seconds since 1970.
        at_s: u64,
    },
    /// The cycle was verified.
    Verdict {
        /// Seconds since 1970.
        at_s: u64,
        /// The power was cut: another boot, or only the drive's supply as the operator says.
        is_cut: bool,
        /// What was found.
        findings: Box<CutFindings>,
    },
}

/// What the machine under test tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The first message of a connection: which device.
    Hello {
        /// The device.
        device: String,
    },
    /// A cycle begins.
    Begin {
        /// This boot of the machine.
        boot: String,
        /// What is written.
        plan: CutPlan,
    },
    /// A writer's records up to this one are durable.
    Durable(u16, u64),
    /// Each place has a durable record.
    Filled,
    /// The cycle ends without a power cut.
    End,
    /// The cycle was verified.
    Verdict {
        /// The power was cut.
        is_cut: bool,
        /// What was found.
        findings: Box<CutFindings>,
    },
}

/// What the witness answers to a hello, a begin and a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// What it knows.
    State {
        /// The last cycle, if it is not verified yet.
        cycle: Option<Box<Cycle>>,
        /// All verified ones.
        tally: Tally,
    },
    /// The file is about this other device.
    OtherDevice(String),
    /// The message makes no sense now.
    OutOfTurn,
}

/// A cycle that is not verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// From 1.
    pub number: u64,
    /// The boot that wrote it.
    pub boot: String,
    /// What was written.
    pub plan: CutPlan,
    /// For each writer: its records up to this one are durable.
    pub durable: Vec<u64>,
    /// Each place has a durable record.
    pub is_filled: bool,
    /// The machine under test ended it by itself.
    pub has_ended: bool,
}

/// Verified cycles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Cycles that ended with a power cut.
    pub cuts: u64,
    /// Those of them after which something durable was lost.
    pub failed: u64,
    /// Cycles that ended otherwise.
    pub not_cut: u64,
    /// Those of them after which something was lost.
    pub not_cut_failed: u64,
    /// Everything that was found.
    pub findings: CutFindings,
}

impl Tally {
    /// Bounds of the probability that a cut loses something, at 95 %.
    #[must_use]
    pub fn bound(&self) -> Option<LossBound> {
        loss_bound(self.cuts, self.failed)
    }

    fn add(&mut self, is_cut: bool, found: &CutFindings) {
        let failed = u64::from(found.damaged() > 0);
        let (count, bad) = match is_cut {
            true => (&mut self.cuts, &mut self.failed),
            false => (&mut self.not_cut, &mut self.not_cut_failed),
        };
        *count += 1;
        *bad += failed;
        self.findings.merge(found);
    }
}

/// The memory of a witness.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// The device that the file is about.
    pub device: Option<String>,
    /// The last cycle, if it is not verified.
    pub cycle: Option<Cycle>,
    /// Verified cycles.
    pub tally: Tally,
    /// Cycles that were begun.
    pub cycles: u64,
    records: usize,
}

impl Ledger {
    /// Reads a file, up to its end or its first damaged line.
    ///
    /// # Errors
    /// The first line is none of a witness.
    pub fn read(text: &[u8]) -> Result<(Self, Option<LogDamage>), LogDamage> {
        let (mut ledger, mut good_bytes) = (Self::default(), 0);
        for (number, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
            let Some(entry) = decode_line::<Entry>(MARK, number, line) else {
                if number == 0 && !MARK.as_bytes().starts_with(&line[..line.len().min(4)]) {
                    return Err(LogDamage::NotALog);
                }
                return Ok((ledger, Some(LogDamage::Line { number: number + 1, good_bytes })));
            };
            good_bytes += line.len();
            ledger.apply(&entry);
            ledger.records = number + 1;
        }
        Ok((ledger, None))
    }

    /// Takes an entry, and returns its line for the file.
    #[must_use]
    pub fn append(&mut self, entry: &Entry) -> String {
        let line = encode_line(MARK, self.records, entry);
        self.records += 1;
        self.apply(entry);
        line
    }

    fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Begin { device, boot, plan, .. } => {
                self.device = Some(device.clone());
                self.cycles += 1;
                self.cycle = Some(Cycle {
                    number: self.cycles,
                    boot: boot.clone(),
                    durable: vec![0; usize::from(plan.writers)],
                    plan: plan.clone(),
                    is_filled: false,
                    has_ended: false,
                });
            }
            Entry::Verdict { is_cut, findings, .. } => {
                self.cycle = None;
                self.tally.add(*is_cut, findings);
            }
            Entry::Cut { .. } => {}
            Entry::Durable(levels) => {
                let Some(cycle) = &mut self.cycle else { return };
                for (have, level) in cycle.durable.iter_mut().zip(levels) {
                    *have = (*have).max(*level);
                }
            }
            Entry::Filled => self.change_cycle(|cycle| cycle.is_filled = true),
            Entry::Ended { .. } => self.change_cycle(|cycle| cycle.has_ended = true),
        }
    }

    fn change_cycle(&mut self, change: impl FnOnce(&mut Cycle)) {
        if let Some(cycle) = &mut self.cycle {
            change(cycle);
        }
    }

    /// What the witness knows, for a reply.
    #[must_use]
    pub fn state(&self) -> Reply {
        Reply::State { cycle: self.cycle.clone().map(Box::new), tally: self.tally.clone() }
    }
}
