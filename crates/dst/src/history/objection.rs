//! Objections: why the oracle of a volume rejects what a client found.

use std::fmt;

use super::change::Op;

/// A sector of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The volume's name.
    pub volume: String,
    /// The sector's number.
    pub sector: u64,
}

/// Where the contents of a sector come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No write.
    Zeros,
    /// A change since the last crash.
    Op(Op),
    /// The write with this number, from before the last crash.
    BeforeCrash(u32),
}

/// Why the oracle rejects what a client found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the parts of the message
pub enum Objection {
    /// The sector holds an intact stamp of another place.
    Misplaced { place: Place, volume: u32, sector: u64, number: u32 },
    /// The sector holds neither zeros nor an intact stamp.
    Garbage { place: Place },
    /// The sector holds a write that later changes have replaced for certain.
    Replaced { place: Place, found: Origin, newest: Origin },
    /// A read returned data that had been replaced before the read was issued.
    StaleRead { place: Place, issued: u64, found: Origin, newest: Op },
    /// The sector holds a write that was never issued there.
    NeverWritten { place: Place, number: u32 },
    /// The sector lacks a change that must be in the prefix; `because` is the change that needs it.
    Missing { place: Place, found: Origin, missing: Origin, because: Option<Op> },
    /// No order of the changes gives the sectors found; `member` is part of a cycle.
    NoOrder { volume: String, member: Op },
}

/// The verdict of the oracle.
pub type Judged<T = ()> = Result<T, Box<Objection>>;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sector {}", self.volume, self.sector)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Zeros => f.write_str("zeros"),
            Origin::Op(op) => op.fmt(f),
            Origin::BeforeCrash(number) => {
                write!(f, "write {number} (from before the last crash)")
            }
        }
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objection::Misplaced { place, volume, sector, number } => {
                write!(f, "{place} holds write {number} of volume {volume} sector {sector}")
            }
            Objection::Garbage { place } => write!(f, "{place} holds garbage"),
            Objection::Replaced { place, found, newest } => {
                write!(f, "{place} holds {found}, which was replaced; the newest is {newest}")
            }
            Objection::StaleRead { place, issued, found, newest } => {
                write!(f, "{place}: a read issued at {issued} found {found}, after {newest}")
            }
            Objection::NeverWritten { place, number } => {
                write!(f, "{place} holds write {number}, which was never issued there")
            }
            Objection::Missing { place, found, missing, because } => {
                write!(f, "{place} holds {found}, but {missing} must be there")?;
                because.as_ref().map_or(Ok(()), |op| write!(f, " because of {op}"))
            }
            Objection::NoOrder { volume, member } => {
                write!(f, "{volume}: no order of its writes gives these sectors; see {member}")
            }
        }
    }
}
