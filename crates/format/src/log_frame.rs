//! Frames of the intent log, and the log's place in the superblock.
//!
//! A frame is one device command: a header, a table of records, zeros up to a multiple of 4096
//! bytes, then the data of the records in table order. Its checksum covers every byte of it, its
//! own place included, so that neither a stale frame nor a copy of one elsewhere can pass.

use forebay_units::{BLOCK_BYTES, BLOCK_LEN, FrameSeq, Lba, TxgId, VolumeId};

use crate::checksum::{crc64, crc64_of_parts, crc64_with_block};
use crate::{Decoder, Encoder, FormatError, FormatFlaw, LogFlaw};

/// "FBLF", the first four bytes of a frame.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"FBLF");
/// Version of the frame's layout.
pub const FRAME_VERSION: u16 = 2;
/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 64;
/// Bytes of one record in the table.
pub const RECORD_LEN: usize = 32;
/// No frame is longer, in bytes.
pub const MAX_FRAME_BYTES: u32 = 1 << 20;
/// No ring is shorter, in bytes.
pub const MIN_RING_BYTES: u64 = 1 << 20;
/// Rings that a log can have.
pub const MAX_RINGS: usize = 64;

const CRC_AT: usize = 56;
const FRAME: &str = "log frame";
const STATE: &str = "log state";
const FLAG_CONTINUES: u8 = 1;
const FLAG_LAST: u8 = 2;
/// "FBLS", the first four bytes of a log state.
const STATE_MAGIC: u32 = u32::from_le_bytes(*b"FBLS");
const STATE_VERSION: u16 = 1;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The pool that the log belongs to.
    pub pool: u64,
    /// Grows at each import and whenever the log's devices change. Frames of other epochs are never
    /// replayed.
    pub epoch: u32,
    /// The frame's number in the log's one sequence.
    pub seq: FrameSeq,
    /// Index of the ring it lies in.
    pub ring: u8,
    /// Where in the ring, in bytes from its start; a multiple of 4096.
    pub position_bytes: u64,
    /// Length in bytes; a multiple of 4096, at most [`MAX_FRAME_BYTES`].
    pub len_bytes: u32,
    /// Highest transaction group of its records; that of `committed` when there are none.
    pub max_txg: TxgId,
    /// This group and earlier ones were in the main store, under a root, when this frame was built.
    /// An import whose newest root is older than that has lost a root.
    pub committed: TxgId,
    /// Every frame up to this one was durable when this one was built.
    pub watermark: FrameSeq,
    /// Records in the table.
    pub record_count: u16,
}

/// What a record does to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    /// They hold the record's data.
    Write,
    /// They read as zeros (a trim, or a write of zeros).
    Zero,
}

/// Which part of a write a record holds. A write that is too long for one frame is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole write.
    Whole,
    /// A part of a write; the next record holds more of it.
    Continues,
    /// The last part of a split write.
    Last,
}

/// One row of a frame's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordEntry {
    /// What it does.
    pub kind: RecordKind,
    /// Which part of a write it holds.
    pub fragment: Fragment,
    /// The volume.
    pub volume: VolumeId,
    /// The first block.
    pub lba: Lba,
    /// How many blocks.
    pub blocks: u32,
    /// The transaction group that takes it to the main store.
    pub txg: TxgId,
}

impl RecordEntry {
    /// Bytes of data that it has in the frame.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match self.kind {
            RecordKind::Write => u64::from(self.blocks) * BLOCK_BYTES,
            RecordKind::Zero => 0,
        }
    }

    fn encode(&self, out: &mut Encoder) {
        let kind = match self.kind {
            RecordKind::Write => 1,
            RecordKind::Zero => 2,
        };
        let flags = match self.fragment {
            Fragment::Whole => 0,
            Fragment::Continues => FLAG_CONTINUES,
            Fragment::Last => FLAG_LAST,
        };
        let data_blocks = (self.data_bytes() / BLOCK_BYTES) as u32;
        out.u8(kind).u8(flags).u16(0).u32(self.volume.0).u64(self.lba.0);
        out.u32(self.blocks).u32(data_blocks).u64(self.txg.0);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let kind = match from.u8()? {
            1 => RecordKind::Write,
            2 => RecordKind::Zero,
            other => return Err(from.error(FormatFlaw::UnknownKind { kind: other.into() })),
        };
        let fragment = match from.u8()? {
            0 => Fragment::Whole,
            FLAG_CONTINUES => Fragment::Continues,
            FLAG_LAST => Fragment::Last,
            other => return Err(from.error(FormatFlaw::UnknownFlags { flags: other.into() })),
        };
        let reserved = from.u16()?;
        if reserved != 0 {
            return Err(from.error(FormatFlaw::Reserved { found: reserved.into() }));
        }
        let volume = VolumeId(from.u32()?);
        let lba = Lba(from.u64()?);
        let blocks = from.u32()?;
        let data_blocks = from.u32()?;
        let entry = Self { kind, fragment, volume, lba, blocks, txg: TxgId(from.u64()?) };
        if entry.data_bytes() != u64::from(data_blocks) * BLOCK_BYTES {
            return Err(from.error(LogFlaw::RecordData { data_blocks, blocks }));
        }
        let end = lba.0.checked_add(u64::from(blocks));
        if end.is_none_or(|end| end > u64::MAX / BLOCK_BYTES) {
            return Err(from.error(LogFlaw::RecordRange { lba, blocks }));
        }
        Ok(entry)
    }
}

/// Bytes before the data of a frame with `records` records.
#[must_use]
pub fn table_end_bytes(records: usize) -> usize {
    (HEADER_LEN + records * RECORD_LEN).next_multiple_of(BLOCK_LEN)
}

/// Bytes of a frame with `records` records and `data_bytes` of data.
#[must_use]
pub fn frame_len_bytes(records: usize, data_bytes: u64) -> u64 {
    table_end_bytes(records) as u64 + data_bytes
}

/// The longest frame of a ring of `ring_len_bytes`, when the log's own limit is
/// `max_frame_bytes`: a short ring must hold several.
#[must_use]
pub fn ring_frame_limit_bytes(max_frame_bytes: u32, ring_len_bytes: u64) -> u64 {
    u64::from(max_frame_bytes).min(ring_len_bytes / 8 / BLOCK_BYTES * BLOCK_BYTES)
}

/// Position of the next frame of a ring when the last one ended at `end_bytes`: there, or at the
/// ring's start when the longest frame would not fit. A reader can compute it as well as the
/// writer.
#[must_use]
pub fn next_position_bytes(end_bytes: u64, ring_len_bytes: u64, frame_limit_bytes: u64) -> u64 {
    if ring_len_bytes.saturating_sub(end_bytes) < frame_limit_bytes { 0 } else { end_bytes }
}

/// Writes header, table and checksum into `head`, the part of a frame before its data. `block_crcs`
/// are the CRC-64 of the blocks of data, in order. Panics when the lengths do not agree: that is a
/// bug of the caller.
pub fn seal(
    header: &FrameHeader,
    entries: &[RecordEntry],
    head: &mut [u8],
    block_crcs: impl Iterator<Item = u64>,
) {
    let data_bytes: u64 = entries.iter().map(RecordEntry::data_bytes).sum();
    let len_bytes = frame_len_bytes(entries.len(), data_bytes);
    assert_eq!(head.len(), table_end_bytes(entries.len()), "length before the data");
    assert_eq!(len_bytes, u64::from(header.len_bytes), "frame length");
    assert!(len_bytes <= u64::from(MAX_FRAME_BYTES), "frame too long");
    assert_eq!(usize::from(header.record_count), entries.len(), "record count");
    assert!(header.position_bytes % BLOCK_BYTES == 0, "frame position");
    let ahead = header.max_txg.0.checked_sub(header.committed.0).map(u32::try_from);
    let Some(Ok(ahead)) = ahead else { panic!("groups of a frame") };
    let mut out = Encoder::with_capacity(HEADER_LEN + entries.len() * RECORD_LEN);
    out.u32(FRAME_MAGIC).u16(FRAME_VERSION).u8(header.ring).u8(0);
    out.u64(header.pool).u32(header.epoch);
    out.u16((len_bytes / BLOCK_BYTES) as u16).u16(header.record_count);
    out.u64(header.seq.0).u64(header.max_txg.0).u64(header.watermark.0);
    let position = u32::try_from(header.position_bytes / BLOCK_BYTES);
    out.u32(position.expect("a ring has at most 2^32 blocks")).u32(ahead);
    out.u64(0);
    debug_assert_eq!(out.len(), HEADER_LEN);
    for entry in entries {
        entry.encode(&mut out);
    }
    let table = out.finish();
    head[..table.len()].copy_from_slice(&table);
    head[table.len()..].fill(0);
    let mut blocks = 0;
    let crc = block_crcs.fold(frame_crc(head), |crc, block_crc| {
        blocks += 1;
        crc64_with_block(crc, block_crc)
    });
    assert_eq!(blocks, data_bytes / BLOCK_BYTES, "blocks of data");
    head[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

fn frame_crc(frame: &[u8]) -> u64 {
    crc64_of_parts(&[&frame[..CRC_AT], &frame[HEADER_LEN..]])
}

/// Reads a header **without** checking its checksum: to find out how much to read, and for hints.
pub fn peek(bytes: &[u8]) -> Result<FrameHeader, FormatError> {
    let mut from = Decoder::new(FRAME, bytes);
    if from.u32()? != FRAME_MAGIC {
        return Err(from.error(FormatFlaw::NoMagic));
    }
    let version = from.u16()?;
    from.check_version(version.into(), FRAME_VERSION.into())?;
    let ring = from.u8()?;
    let reserved = from.u8()?;
    let pool = from.u64()?;
    let epoch = from.u32()?;
    let len_bytes = u32::from(from.u16()?) * BLOCK_BYTES as u32;
    let record_count = from.u16()?;
    let seq = FrameSeq(from.u64()?);
    let max_txg = TxgId(from.u64()?);
    let watermark = FrameSeq(from.u64()?);
    let position_bytes = u64::from(from.u32()?) * BLOCK_BYTES;
    let ahead = from.u32()?;
    if reserved != 0 {
        return Err(from.error(FormatFlaw::Reserved { found: reserved.into() }));
    }
    let Some(committed) = max_txg.0.checked_sub(ahead.into()).map(TxgId) else {
        return Err(from.error(LogFlaw::CommittedGroup { max_txg, ahead }));
    };
    if len_bytes > MAX_FRAME_BYTES || (len_bytes as usize) < table_end_bytes(record_count.into()) {
        return Err(from.error(LogFlaw::FrameLength { len_bytes, records: record_count }));
    }
    if watermark >= seq {
        return Err(from.error(LogFlaw::Watermark { watermark, seq }));
    }
    Ok(FrameHeader {
        pool,
        epoch,
        seq,
        ring,
        position_bytes,
        len_bytes,
        max_txg,
        committed,
        watermark,
        record_count,
    })
}

/// A frame that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Its table; the data of the records follows in this order from `data_start` on.
    pub entries: Vec<RecordEntry>,
    /// Where in the frame the data starts, in bytes.
    pub data_start: usize,
}

/// Decodes the frame at the start of `bytes`, which may be longer. The table is decoded only after
/// the checksum over the whole frame was right.
pub fn decode(bytes: &[u8]) -> Result<Frame, FormatError> {
    let header = peek(bytes)?;
    let mut from = Decoder::new(FRAME, bytes);
    let frame = from.bytes(header.len_bytes as usize)?;
    let mut stored = [0; 8];
    stored.copy_from_slice(&frame[CRC_AT..HEADER_LEN]);
    from.check_sum(u64::from_le_bytes(stored), frame_crc(frame))?;
    let entries = decode_table(frame, header.record_count)?;
    let data_start = table_end_bytes(entries.len());
    let data_bytes: u64 = entries.iter().map(RecordEntry::data_bytes).sum();
    if data_start as u64 + data_bytes != u64::from(header.len_bytes) {
        let len_bytes = header.len_bytes;
        return Err(from.error(LogFlaw::FrameData { data_bytes, len_bytes }));
    }
    if let Some(late) = entries.iter().find(|entry| entry.txg > header.max_txg) {
        let (record, frame) = (late.txg, header.max_txg);
        return Err(from.error(LogFlaw::RecordGroup { record, frame }));
    }
    Ok(Frame { header, entries, data_start })
}

fn decode_table(frame: &[u8], record_count: u16) -> Result<Vec<RecordEntry>, FormatError> {
    let mut from = Decoder::new(FRAME, frame);
    from.bytes(HEADER_LEN)?;
    (0..record_count).map(|_| RecordEntry::decode(&mut from)).collect()
}

/// The readable part of the table of a frame whose checksum failed. It is a hint for people, and
/// fit for nothing else.
#[must_use]
pub fn hint_table(bytes: &[u8]) -> Vec<RecordEntry> {
    let Ok(header) = peek(bytes) else { return Vec::new() };
    let mut from = Decoder::new(FRAME, bytes);
    let mut entries = Vec::new();
    if from.bytes(HEADER_LEN).is_ok() {
        for _ in 0..header.record_count {
            let Ok(entry) = RecordEntry::decode(&mut from) else { break };
            entries.push(entry);
        }
    }
    entries
}

/// Where replay starts in one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Index of the ring.
    pub index: u8,
    /// Length of the ring in bytes.
    pub len_bytes: u64,
    /// Position of its first frame that still counts (or of the next frame, when none does), in
    /// bytes from the ring's start.
    pub tail_bytes: u64,
}

/// The state of the log as a superblock records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The epoch of the frames that count.
    pub epoch: u32,
    /// Records of this group and earlier ones are in the main store.
    pub committed: TxgId,
    /// The first frame that still counts; [`LogState::next_seq`] when none does.
    pub tail_seq: FrameSeq,
    /// The number of the next frame when this state was taken.
    pub next_seq: FrameSeq,
    /// Every frame up to this one was durable when this state was taken.
    pub watermark: FrameSeq,
    /// No frame of this epoch is longer, in bytes.
    pub max_frame_bytes: u32,
    /// The rings, at most [`MAX_RINGS`].
    pub rings: Vec<RingState>,
}

impl LogState {
    /// The state as bytes: 56 and 17 for each ring.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.rings.len() <= MAX_RINGS, "too many rings");
        let mut out = Encoder::new();
        out.u32(STATE_MAGIC).u16(STATE_VERSION).u8(self.rings.len() as u8).u8(0);
        out.u32(self.epoch).u32(self.max_frame_bytes).u64(self.committed.0);
        out.u64(self.tail_seq.0).u64(self.next_seq.0).u64(self.watermark.0);
        for ring in &self.rings {
            out.u8(ring.index).u64(ring.len_bytes).u64(ring.tail_bytes);
        }
        let mut bytes = out.finish();
        let crc = crc64(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the state at the start of `bytes`; returns it with its length in bytes.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        let mut from = Decoder::new(STATE, bytes);
        if from.u32()? != STATE_MAGIC {
            return Err(from.error(FormatFlaw::NoMagic));
        }
        let version = from.u16()?;
        from.check_version(version.into(), STATE_VERSION.into())?;
        let ring_count = usize::from(from.u8()?);
        let reserved = from.u8()?;
        if ring_count > MAX_RINGS {
            return Err(from.error(LogFlaw::TooManyRings { rings: ring_count }));
        }
        if reserved != 0 {
            return Err(from.error(FormatFlaw::Reserved { found: reserved.into() }));
        }
        let epoch = from.u32()?;
        let max_frame_bytes = from.u32()?;
        let committed = TxgId(from.u64()?);
        let tail_seq = FrameSeq(from.u64()?);
        let next_seq = FrameSeq(from.u64()?);
        let watermark = FrameSeq(from.u64()?);
        let mut rings = Vec::with_capacity(ring_count);
        for _ in 0..ring_count {
            let index = from.u8()?;
            rings.push(RingState { index, len_bytes: from.u64()?, tail_bytes: from.u64()? });
        }
        let used = bytes.len() - from.rest().len();
        let stored = from.u64()?;
        from.check_sum(stored, crc64(&bytes[..used]))?;
        let state =
            Self { epoch, committed, tail_seq, next_seq, watermark, max_frame_bytes, rings };
        state.check()?;
        Ok((state, used + 8))
    }

    /// Checks that the fields agree with each other.
    pub fn check(&self) -> Result<(), FormatError> {
        let refuse = |flaw: LogFlaw| Err(FormatError::new(STATE, flaw));
        let (tail, next, watermark) = (self.tail_seq, self.next_seq, self.watermark);
        if tail.0 == 0 || tail > next || watermark >= next {
            return refuse(LogFlaw::FrameNumbers { tail, next, watermark });
        }
        let frame = u64::from(self.max_frame_bytes);
        if frame % BLOCK_BYTES != 0
            || frame < 2 * BLOCK_BYTES
            || self.max_frame_bytes > MAX_FRAME_BYTES
        {
            return refuse(LogFlaw::FrameLimit { max_frame_bytes: self.max_frame_bytes });
        }
        for (i, ring) in self.rings.iter().enumerate() {
            let RingState { index, len_bytes, tail_bytes } = *ring;
            if self.rings[..i].iter().any(|other| other.index == index) {
                return refuse(LogFlaw::DuplicateRing { ring: index });
            }
            if len_bytes < MIN_RING_BYTES
                || len_bytes / BLOCK_BYTES > u64::from(u32::MAX)
                || len_bytes % BLOCK_BYTES != 0
                || tail_bytes % BLOCK_BYTES != 0
                || tail_bytes > len_bytes
            {
                return refuse(LogFlaw::Ring { ring: index, tail_bytes, len_bytes });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
