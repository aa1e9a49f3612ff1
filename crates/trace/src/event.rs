//! A trace's event: one request at one point of its life.

use forebay_units::Nanos;
use serde::Serialize;

/// A device of a trace, counted from 0 in the order of appearance. [`crate::Names`] has its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u32);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Data from the device.
    Read,
    /// Data to the device. A length of zero is the completion of an empty barrier.
    Write,
    /// The range is no longer needed: TRIM, UNMAP, DISCARD.
    Discard,
    /// The volatile cache becomes durable; no data and no position.
    Flush,
    /// Anything else that the source names.
    Other,
}

impl Op {
    /// All of them, in the order of their codes in the compact format.
    pub const ALL: [Op; 5] = [Op::Read, Op::Write, Op::Discard, Op::Flush, Op::Other];

    /// Whether data moves: a read or a write.
    #[must_use]
    pub fn is_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// The letter that blkparse and the CSV formats use.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Discard => 'D',
            Op::Flush => 'F',
            Op::Other => 'N',
        }
    }
}

/// The point of a request's life at which the source saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The source has one record a request, stamped with its start.
    Request,
    /// The request entered the block layer (blktrace `Q`).
    Queued,
    /// The driver took the request (blktrace `D`).
    Issued,
    /// The request ended (blktrace `C`).
    Completed,
}

impl Stage {
    /// All of them, in the order of their codes in the compact format.
    pub const ALL: [Stage; 4] = [Stage::Request, Stage::Queued, Stage::Issued, Stage::Completed];
}

/// Attributes of a request, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// Durable before its completion (FUA).
    pub const FUA: Flags = Flags(1);
    /// The cache is flushed before the data is written (PREFLUSH).
    pub const PREFLUSH: Flags = Flags(2);
    /// The issuer waits for it (REQ_SYNC).
    pub const SYNC: Flags = Flags(4);
    /// Metadata of a file system (REQ_META).
    pub const META: Flags = Flags(8);
    /// Read ahead of need (REQ_RAHEAD).
    pub const AHEAD: Flags = Flags(16);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// One request at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The instant, from the source's own zero. [`crate::Names::wall_zero`] may place that zero.
    pub time: Nanos,
    /// From start to completion, where the source has it in one record.
    pub latency: Option<Nanos>,
    /// First byte; 0 for requests without a position.
    pub offset_bytes: u64,
    /// Bytes; 0 for flushes. `offset_bytes + len_bytes` does not overflow.
    pub len_bytes: u64,
    /// The device.
    pub device: DeviceIndex,
    /// The thread, 0 where the source has none.
    pub pid: u32,
    /// What it does.
    pub op: Op,
    /// Where in its life.
    pub stage: Stage,
    /// Attributes.
    pub flags: Flags,
}

impl Event {
    /// The first byte behind the request.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes)
    }

    /// Whether the request has a place on the device: flushes and empty requests have none.
    #[must_use]
    pub fn has_position(&self) -> bool {
        self.len_bytes > 0 && self.op != Op::Flush
    }
}
