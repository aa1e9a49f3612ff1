//! Frames of the map journal: a linear stream through segments of their own.
//!
//! A [`FrameKind::Pad`] fills the rest of a stripe; a [`FrameKind::Jump`] ends a segment and names
//! the next one. Each frame holds the checksum of the frame before it, and a root that of the last
//! frame: the frames of a root are a chain. A frame that a crash left behind is not in it.

use forebay_units::{BLOCK_BYTES, SegmentId};

use crate::checksum::crc64_of_parts;
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const MAGIC: u64 = u64::from_le_bytes(*b"FBAYJRNL");
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 56;
/// The flag of [`FrameHeader::copied`].
const COPIED: u16 = 1;
/// Longest payload of one frame: a frame fits into the smallest segment.
pub const MAX_PAYLOAD_BYTES: usize = 120 << 10;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Changes of the map.
    Delta,
    /// Images of leaves of the map.
    Leaves,
    /// States of segments ([`SegmentRecord`]s).
    Segments,
    /// Nothing: it fills the rest of a stripe.
    Pad,
    /// The stream goes on in another segment (four bytes: its id).
    Jump,
    /// Snapshots ([`crate::snapshot::SnapshotRecord`]s); since version 6 of the superblock.
    Snapshots,
    /// Fingerprints of de-duplicated blocks ([`crate::fingerprints::Fingerprints`]); since version
    /// 7 of the superblock.
    Fingerprints,
}

impl FrameKind {
    fn code(self) -> u16 {
        match self {
            FrameKind::Delta => 1,
            FrameKind::Leaves => 2,
            FrameKind::Segments => 3,
            FrameKind::Pad => 4,
            FrameKind::Jump => 5,
            FrameKind::Snapshots => 6,
            FrameKind::Fingerprints => 7,
        }
    }

    fn from_code(code: u16) -> Option<Self> {
        const ALL: [FrameKind; 7] = [
            FrameKind::Delta,
            FrameKind::Leaves,
            FrameKind::Segments,
            FrameKind::Pad,
            FrameKind::Jump,
            FrameKind::Snapshots,
            FrameKind::Fingerprints,
        ];
        ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The pool.
    pub pool: u64,
    /// Sequence number: dense, from 1 for the pool's life.
    pub seq: u64,
    /// The root for which the frame was written.
    pub commit: u64,
    /// What it holds.
    pub kind: FrameKind,
    /// Its blocks have copies in the second half of the segment.
    pub copied: bool,
    /// Bytes of payload after the header.
    pub payload_bytes: u32,
    /// Checksum of the frame before it; 0 in the first of a pool's life.
    pub link: u64,
    /// CRC-64 of the header before this field, and of the payload.
    pub sum: u64,
}

impl FrameHeader {
    /// Blocks of the whole frame.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        frame_blocks(self.payload_bytes as usize)
    }

    /// From the first block of a frame. The payload is not checked yet: see [`Self::check`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("map journal frame", bytes);
        if input.u64()? != MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let (pool, seq, commit) = (input.u64()?, input.u64()?, input.u64()?);
        let (code, flags) = (input.u16()?, input.u16()?);
        let kind = FrameKind::from_code(code)
            .ok_or_else(|| input.error(FormatFlaw::UnknownKind { kind: code }))?;
        if flags & !COPIED != 0 {
            return Err(input.error(FormatFlaw::UnknownFlags { flags }));
        }
        let payload_bytes = input.u32()?;
        let (link, sum) = (input.u64()?, input.u64()?);
        if kind != FrameKind::Pad && payload_bytes as usize > MAX_PAYLOAD_BYTES {
            return Err(input.error(FormatFlaw::PayloadTooLong { len_bytes: payload_bytes }));
        }
        let copied = flags & COPIED != 0;
        Ok(Self { pool, seq, commit, kind, copied, payload_bytes, link, sum })
    }

    /// The payload in the bytes of the whole frame, when its checksum holds.
    pub fn check<'a>(&self, frame: &'a [u8]) -> Result<&'a [u8], FormatError> {
        let mut input = Decoder::new("map journal frame", frame);
        // Padding carries nothing, so only its header is summed and only that is read.
        let summed = if self.kind == FrameKind::Pad { 0 } else { self.payload_bytes as usize };
        let header = input.bytes(HEADER_BYTES)?;
        let payload = input.bytes(summed)?;
        input.check_sum(self.sum, crc64_of_parts(&[&header[..HEADER_BYTES - 8], payload]))?;
        Ok(payload)
    }
}

/// Blocks of a frame with `payload_bytes`.
#[must_use]
pub fn frame_blocks(payload_bytes: usize) -> u32 {
    ((HEADER_BYTES + payload_bytes) as u64).div_ceil(BLOCK_BYTES) as u32
}

/// A whole frame, padded to blocks, and its checksum. For [`FrameKind::Pad`] the payload is zeros
/// and not summed. `link` is the checksum of the frame before it; `copied` says that its blocks are
/// written a second time ([`FrameHeader::copied`]).
#[must_use]
pub fn encode_frame(
    pool: u64,
    seq: u64,
    commit: u64,
    link: u64,
    kind: FrameKind,
    copied: bool,
    payload: &[u8],
) -> (Vec<u8>, u64) {
    let mut out = Encoder::new();
    out.u64(MAGIC).u64(pool).u64(seq).u64(commit);
    out.u16(kind.code()).u16(if copied { COPIED } else { 0 });
    out.u32(payload.len() as u32).u64(link);
    let mut bytes = out.finish();
    let summed = if kind == FrameKind::Pad { &[] } else { payload };
    let sum = crc64_of_parts(&[&bytes, summed]);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(frame_blocks(payload.len()) as usize * BLOCK_BYTES as usize, 0);
    (bytes, sum)
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentUse {
    /// Nothing: it is free.
    Free,
    /// Blocks of volumes.
    Data,
    /// The map journal.
    Map,
}

impl SegmentUse {
    const fn byte(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Data => 1,
            Self::Map => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Free, Self::Data, Self::Map].into_iter().find(|kind| kind.byte() == byte)
    }
}

/// The state of a segment, besides its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The segment.
    pub segment: SegmentId,
    /// What it is used for.
    pub kind: SegmentUse,
    /// The stream that filled it.
    pub stream: u8,
    /// Whether its footer is on media.
    pub footer: bool,
    /// Rows that were written.
    pub rows: u32,
    /// Blocks before its footer, 0 without one.
    pub blocks: u32,
    /// The group in which it was opened.
    pub birth: u64,
    /// The group in which it was last written.
    pub last: u64,
    /// Blocks that the host had written to the pool when it was opened: the cleaner's clock.
    pub clock: u64,
}

impl SegmentRecord {
    /// Bytes of a record.
    pub const BYTES: usize = 39;

    /// Appends the record.
    pub fn encode(&self, out: &mut Encoder) {
        out.u32(self.segment.0).u8(self.kind.byte()).u8(self.stream).u8(u8::from(self.footer));
        out.u32(self.rows).u32(self.blocks).u64(self.birth).u64(self.last).u64(self.clock);
    }

    /// Reads all records of a payload.
    pub fn decode_all(payload: &[u8]) -> Result<Vec<Self>, FormatError> {
        let mut input = Decoder::new("segment record", payload);
        let mut records = Vec::with_capacity(payload.len() / Self::BYTES);
        while !input.rest().is_empty() {
            let segment = SegmentId(input.u32()?);
            let (kind, stream, footer) = (input.u8()?, input.u8()?, input.u8()? == 1);
            let (rows, blocks) = (input.u32()?, input.u32()?);
            let (birth, last, clock) = (input.u64()?, input.u64()?, input.u64()?);
            let Some(kind) = SegmentUse::from_byte(kind) else {
                return Err(input.error(FormatFlaw::UnknownKind { kind: kind.into() }));
            };
            if segment.0 >= forebay_units::BlockAddr::MAX_SEGMENTS {
                return Err(input.error(FormatFlaw::NoSegment { segment: segment.0.into() }));
            }
            records.push(Self { segment, kind, stream, footer, rows, blocks, birth, last, clock });
        }
        Ok(records)
    }
}
