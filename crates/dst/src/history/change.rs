//! One change of a volume, as a client recorded it.

use std::fmt;

/// What a change puts into its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Stamps.
    Write,
    /// Zeros: a trim or a write-zeroes.
    Zero,
}

/// The answer to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// None yet.
    Pending,
    /// Success, at this time of the history's clock.
    Done(u64),
    /// An error: each sector may or may not have changed, then or later.
    Failed,
    /// None: the client gave it up at this time. It has taken effect by then, or never will.
    GivenUp(u64),
}

/// A change that a client issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its number in the volume's history.
    pub number: u32,
    /// What it puts into its sectors.
    pub change: Change,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
    /// When it was issued, by the history's clock.
    pub issued: u64,
    /// Its answer.
    pub answer: Answer,
    /// It must survive every later crash.
    pub is_durable: bool,
    /// A rollback went on beside it: it may be lost, whatever its answer is.
    pub is_optional: bool,
}

impl Op {
    /// When it completed; `u64::MAX` without a successful answer.
    #[must_use]
    pub fn completed(&self) -> u64 {
        match self.answer {
            Answer::Done(at) => at,
            Answer::Pending | Answer::Failed | Answer::GivenUp(_) => u64::MAX,
        }
    }

    /// When it took effect, at the latest; `u64::MAX` when it still may.
    #[must_use]
    pub fn ended(&self) -> u64 {
        match self.answer {
            Answer::Done(at) | Answer::GivenUp(at) => at,
            Answer::Pending | Answer::Failed => u64::MAX,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.change == Change::Zero { "zeroing" } else { "write" };
        let Op { number, first, issued, .. } = self;
        let end = first + self.count;
        write!(f, "{what} {number} (sectors {first}..{end}, issued at {issued}, ")?;
        match self.answer {
            Answer::Pending => f.write_str("not answered")?,
            Answer::Failed => f.write_str("failed")?,
            Answer::GivenUp(at) => write!(f, "given up at {at}")?,
            Answer::Done(at) => write!(f, "completed at {at}")?,
        }
        f.write_str(if self.is_durable { ", durable)" } else { ")" })
    }
}
