//! Send streams: a snapshot, or what it has changed since an older one, on its way to another pool
//! (`docs/send-stream.md`). The checksum of a record covers that of the record before it, so one
//! that is missing, repeated or moved is found, as damaged ones are. What cannot be true of a whole
//! stream (overlaps, gaps, wrong totals) is an error of the record that shows it.

mod decoder;
mod token;
mod units;

use std::fmt;

use forebay_units::BLOCK_BYTES;

use crate::checksum::{crc64, crc64_of_parts};
use crate::{Decoder, Encoder, FormatError};

pub use decoder::{Record, StreamDecoder};
pub use token::ResumeToken;
pub use units::{StoredUnit, units_of};

/// The first bytes of a stream.
pub const MAGIC: &[u8; 8] = b"FBSTREAM";
/// The version of streams of plain data, which every program reads.
pub const VERSION: u32 = 1;
/// The version of streams with compressed and repeated ranges. Their first bytes say which.
pub const VERSION_AS_STORED: u32 = 2;
/// Flags of version 2: ranges that are compressed, and ranges that are as an earlier one.
pub const COMPRESSED: u32 = 1;
/// See [`COMPRESSED`].
pub const REPEATED: u32 = 2;
/// Bytes before the first record.
pub const PREAMBLE_BYTES: usize = 16;
/// Bytes of a record before its payload.
pub const RECORD_BYTES: usize = 40;
/// Longest payload of a record.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

const WHAT: &str = "begin record";
const BEGIN: u32 = 1;
const DATA: u32 = 2;
const HOLE: u32 = 3;
const END: u32 = 4;
const UNITS: u32 = 5;
const REPEAT: u32 = 6;

/// What a stream holds: its first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// The pool that sent it.
    pub pool_guid: u64,
    /// The snapshot's lasting identity.
    pub guid: u64,
    /// The identity of the snapshot that the stream goes on from; 0 for a whole volume.
    pub base_guid: u64,
    /// Seconds since 1970 when the snapshot was taken.
    pub created_at: u64,
    /// Size of the volume in the snapshot.
    pub size_bytes: u64,
    /// Where the records begin: above 0 in a stream that goes on after an interruption.
    pub start_bytes: u64,
    /// Whether ranges may be compressed or repeated: the version of the stream.
    pub is_as_stored: bool,
    /// The snapshot's name without the volume's.
    pub snapshot: String,
    /// `POOL/VOL` that it was sent from.
    pub source: String,
    /// Name of the base without the volume's; empty for a whole volume.
    pub base: String,
}

impl StreamHeader {
    /// Whether the stream holds only what changed since a base.
    #[must_use]
    pub fn is_incremental(&self) -> bool {
        self.base_guid != 0
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(self.pool_guid).u64(self.guid).u64(self.base_guid).u64(self.created_at);
        out.u64(self.size_bytes).u64(self.start_bytes);
        out.string(&self.snapshot).string(&self.source).string(&self.base);
        out.finish()
    }

    fn decode(payload: &[u8], is_as_stored: bool) -> Result<Self, FormatError> {
        let mut input = Decoder::new(WHAT, payload);
        Ok(Self {
            pool_guid: input.u64()?,
            guid: input.u64()?,
            base_guid: input.u64()?,
            created_at: input.u64()?,
            size_bytes: input.u64()?,
            start_bytes: input.u64()?,
            is_as_stored,
            snapshot: input.string()?,
            source: input.string()?,
            base: input.string()?,
        })
    }

    /// The size and the start are those of blocks, within each other.
    fn is_sound(&self) -> bool {
        self.guid != 0
            && self.size_bytes % BLOCK_BYTES == 0
            && self.start_bytes % BLOCK_BYTES == 0
            && self.start_bytes <= self.size_bytes
    }
}

/// Sums of a stream: its last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records, the first one and the last one included.
    pub records: u64,
    /// Bytes of data in the volume, however they travel.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
}

/// What is wrong with a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFlaw {
    /// It does not begin with the magic number.
    NoMagic,
    /// It has a version that this program does not read.
    Version {
        /// The version.
        found: u32,
    },
    /// It has features that this program does not know.
    Features {
        /// Their flags.
        unknown: u32,
    },
    /// It ends early.
    Truncated,
    /// The compressed units of a record are none, or not of its length.
    Units,
    /// A checksum differs: bytes of the record are damaged, or it does not follow the one before.
    Checksum,
    /// The record has another number than the one that is due.
    Number {
        /// The number.
        found: u64,
    },
    /// The payload has a length that no record of its kind has.
    Payload {
        /// The length.
        len_bytes: u32,
    },
    /// The kind is unknown.
    UnknownKind {
        /// The kind.
        kind: u32,
    },
    /// The record is not where one of its kind may be.
    OutOfPlace {
        /// The kind.
        kind: u32,
    },
    /// The range begins before the last one ends, leaves a gap in a whole volume, or leaves the
    /// volume.
    Range {
        /// Where it begins.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// What the first record says cannot be.
    Header,
    /// The first record cannot be read.
    Format(FormatError),
    /// The totals of the last record are not those of the records.
    Totals {
        /// Those of the records.
        counted: Totals,
    },
    /// There is something behind the last record.
    Behind,
}

/// Why a stream cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamError {
    /// Number of the record, from 0 on.
    pub record: u64,
    /// Where the record begins in the stream.
    pub offset_bytes: u64,
    /// What is wrong.
    pub flaw: StreamFlaw,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} at byte {}: {}", self.record, self.offset_bytes, self.flaw)
    }
}

impl std::error::Error for StreamError {}

impl fmt::Display for StreamFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("this is no send stream"),
            Self::Version { found } => {
                let newest = VERSION_AS_STORED;
                write!(
                    f,
                    "the stream has version {found}, this program knows {VERSION} to {newest}"
                )
            }
            Self::Features { unknown } => {
                write!(f, "the stream has features that this program does not know: {unknown:#x}")
            }
            Self::Units => f.write_str("its compressed units cannot be"),
            Self::Truncated => f.write_str("the stream ends within it"),
            Self::Checksum => {
                f.write_str("checksum mismatch: it is damaged, or does not follow the one before")
            }
            Self::Number { found } => write!(f, "it has number {found}"),
            Self::Payload { len_bytes } => write!(f, "it has a payload of {len_bytes} bytes"),
            Self::UnknownKind { kind } => write!(f, "kind {kind} is unknown"),
            Self::OutOfPlace { kind } => write!(f, "one of kind {kind} cannot stand here"),
            Self::Range { offset_bytes, len_bytes } => {
                write!(f, "{len_bytes} bytes at {offset_bytes} do not follow the range before")
            }
            Self::Header => f.write_str("its sizes or identities cannot be"),
            Self::Format(error) => error.fmt(f),
            Self::Totals { counted } => write!(
                f,
                "its totals are not those of {} records, {} bytes of data and {} of holes",
                counted.records, counted.data_bytes, counted.hole_bytes
            ),
            Self::Behind => f.write_str("there are bytes behind the last record"),
        }
    }
}

/// The checksum that the first record goes on from.
fn preamble_sum(preamble: &[u8]) -> u64 {
    crc64(preamble)
}

/// The checksum of a record: `before` is that of the one before, `head` its fields before the
/// checksum.
fn record_sum(before: u64, head: &[u8], payload: &[u8]) -> u64 {
    crc64_of_parts(&[&before.to_le_bytes(), head, payload])
}

/// Makes the records of a stream, one after the other.
pub struct StreamEncoder {
    sum: u64,
    totals: Totals,
}

impl StreamEncoder {
    /// An encoder, and the first bytes of its stream.
    #[must_use]
    pub fn begin(header: &StreamHeader) -> (Self, Vec<u8>) {
        let mut out = Encoder::new();
        match header.is_as_stored {
            false => out.bytes(MAGIC).u32(VERSION).u32(0),
            true => out.bytes(MAGIC).u32(VERSION_AS_STORED).u32(COMPRESSED | REPEATED),
        };
        let mut bytes = out.finish();
        let mut encoder = Self { sum: preamble_sum(&bytes), totals: Totals::default() };
        bytes.extend(encoder.record(BEGIN, 0, 0, &header.encode()));
        (encoder, bytes)
    }

    fn record(&mut self, kind: u32, offset: u64, len: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Encoder::new();
        let payload_len = u32::try_from(payload.len()).expect("at most MAX_PAYLOAD_BYTES");
        out.u32(kind).u32(payload_len).u64(self.totals.records).u64(offset).u64(len);
        let mut bytes = out.finish();
        self.sum = record_sum(self.sum, &bytes, payload);
        self.totals.records += 1;
        bytes.reserve_exact(8 + payload.len());
        bytes.extend_from_slice(&self.sum.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    /// A record of data, at most [`MAX_PAYLOAD_BYTES`].
    pub fn data(&mut self, offset_bytes: u64, data: &[u8]) -> Vec<u8> {
        self.totals.data_bytes += data.len() as u64;
        self.record(DATA, offset_bytes, data.len() as u64, data)
    }

    /// A record of data that is compressed, of `len_bytes` in the volume: units as
    /// [`StoredUnit::encode`] writes them.
    pub fn units(&mut self, offset_bytes: u64, len_bytes: u64, units: &[u8]) -> Vec<u8> {
        self.totals.data_bytes += len_bytes;
        self.record(UNITS, offset_bytes, len_bytes, units)
    }

    /// A record of a range that holds what the volume has, from `from_bytes` on, before it.
    pub fn repeat(&mut self, offset_bytes: u64, len_bytes: u64, from_bytes: u64) -> Vec<u8> {
        self.totals.data_bytes += len_bytes;
        self.record(REPEAT, offset_bytes, len_bytes, &from_bytes.to_le_bytes())
    }

    /// A record of a hole.
    pub fn hole(&mut self, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
        self.totals.hole_bytes += len_bytes;
        self.record(HOLE, offset_bytes, len_bytes, &[])
    }

    /// The last record.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        let Totals { records, data_bytes, hole_bytes } = self.totals;
        let mut payload = Encoder::new();
        payload.u64(records + 1).u64(data_bytes).u64(hole_bytes);
        self.record(END, 0, 0, &payload.finish())
    }
}

#[cfg(test)]
mod tests;
