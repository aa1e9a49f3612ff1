//! The map journal: frames appended to segments of their own, and read back in order.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{DeviceError, ErrorKind, IoBuf, Operation};
use forebay_format::checksum::crc64;
use forebay_format::journal::{
    FrameHeader, FrameKind, HEADER_BYTES, MAX_PAYLOAD_BYTES, encode_frame, frame_blocks,
};
use forebay_format::superblock::JournalPosition;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, CommitId, DeviceId, SegmentId};

use crate::stream::RowStream;
use crate::{InFlight, MAP_STREAM, SegmentKind, SegmentTable, WriteCounts};

/// Appends frames.
pub struct JournalWriter {
    rows: RowStream,
    pool: u64,
    next_seq: u64,
    /// Segments of the journal in order, with the sequence number of their first frame.
    segments: Vec<(SegmentId, u64)>,
    counts: WriteCounts,
}

impl JournalWriter {
    /// A writer whose next frame is number `next_seq`. `segments` are those that hold the journal
    /// so far (none of them is written again: a new one is opened).
    #[must_use]
    pub fn new(
        array: Rc<Array>,
        table: Rc<SegmentTable>,
        in_flight: Rc<InFlight>,
        pool: u64,
        next_seq: u64,
        segments: Vec<(SegmentId, u64)>,
    ) -> Self {
        let rows = RowStream::new(array, table, in_flight, SegmentKind::Map, MAP_STREAM);
        Self { rows, pool, next_seq, segments, counts: WriteCounts::default() }
    }

    /// Goes on where a committed root says the journal ends: what lies behind that place belongs
    /// to no root, so it may be written again.
    pub fn resume(&mut self, end: JournalPosition) {
        self.rows.table.reopen(end.addr.segment());
        self.rows.adopt_at(end.addr.segment(), end.addr.block());
        self.next_seq = end.seq;
    }

    /// What it has written so far (frames count as `data`).
    #[must_use]
    pub fn counts(&self) -> WriteCounts {
        self.counts
    }

    /// The sequence number of the next frame.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Where the next frame goes, when a segment is open.
    #[must_use]
    pub fn position(&self) -> Option<JournalPosition> {
        self.rows.position().map(|addr| JournalPosition { addr, seq: self.next_seq })
    }

    /// Opens the first segment. Gives the position of the first frame.
    pub fn open(&mut self, commit: CommitId) -> Result<JournalPosition, DeviceError> {
        let segment = self.rows.open_segment(commit, 0, 0)?;
        self.segments.push((segment, self.next_seq));
        Ok(JournalPosition { addr: BlockAddr::new(segment, 0), seq: self.next_seq })
    }

    async fn write(&mut self, kind: FrameKind, payload: &[u8], commit: CommitId) -> BlockAddr {
        let frame = encode_frame(self.pool, self.next_seq, commit.0, kind, payload);
        let addr = self.rows.position().expect("room was made");
        for block in frame.chunks(BLOCK_LEN) {
            self.rows.put(block, commit).await;
            match kind {
                FrameKind::Pad => self.counts.padding += 1,
                _ => self.counts.data += 1,
            }
        }
        self.next_seq += 1;
        addr
    }

    async fn fill_row(&mut self, commit: CommitId) {
        let blocks = self.rows.blocks_to_row_end();
        if blocks > 0 {
            let payload = vec![0; blocks as usize * BLOCK_LEN - HEADER_BYTES];
            self.write(FrameKind::Pad, &payload, commit).await;
        }
    }

    /// Appends a frame; a segment is open. When it does not fit, the journal jumps to a new one.
    pub async fn append(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        commit: CommitId,
    ) -> Result<(), DeviceError> {
        assert!(payload.len() <= MAX_PAYLOAD_BYTES, "a frame is too long");
        // One block is always kept for the jump.
        if self.rows.blocks_left() <= frame_blocks(payload.len()) {
            self.jump(commit).await?;
        }
        self.write(kind, payload, commit).await;
        Ok(())
    }

    async fn jump(&mut self, commit: CommitId) -> Result<(), DeviceError> {
        let (keep, clock) = (0, 0);
        let next = self.rows.table.allocate(SegmentKind::Map, MAP_STREAM, commit, clock, keep);
        let next = next.ok_or_else(crate::stream::no_space)?;
        self.write(FrameKind::Jump, &next.0.to_le_bytes(), commit).await;
        // The reader leaves this segment at the jump: the padding behind it takes no number.
        let seq = self.next_seq;
        self.fill_row(commit).await;
        self.next_seq = seq;
        self.rows.issue(commit).await;
        self.rows.close(false);
        self.rows.adopt(next);
        self.segments.push((next, self.next_seq));
        Ok(())
    }

    /// Fills the row and sends it. Keeps room for a jump.
    pub async fn finish_rows(&mut self, commit: CommitId) -> Result<(), DeviceError> {
        if self.rows.segment().is_none() {
            return Ok(());
        }
        if self.rows.blocks_left() == self.rows.blocks_to_row_end() || self.rows.blocks_left() == 0
        {
            // The last row: end the segment properly instead of padding its jump away.
            self.jump(commit).await?;
        }
        self.fill_row(commit).await;
        self.rows.issue(commit).await;
        Ok(())
    }

    /// Goes on in a new segment, unless nothing is in the open one yet. Rows are finished.
    pub async fn begin_segment(&mut self, commit: CommitId) -> Result<(), DeviceError> {
        match self.rows.position() {
            Some(at) if at.block() > 0 => self.jump(commit).await,
            _ => Ok(()),
        }
    }

    /// Retires segments that lie wholly before frame `seq`: the journal now starts there.
    pub fn trim(&mut self, seq: u64, commit: CommitId) {
        while self.segments.len() > 1 && self.segments[1].1 <= seq {
            let (segment, _) = self.segments.remove(0);
            self.rows.table.retire_map(segment, commit);
        }
    }

    /// Where the frames of one of its segments begin and end. `start` is where the journal does.
    #[must_use]
    pub fn extent(
        &self,
        segment: SegmentId,
        start: JournalPosition,
    ) -> Option<(JournalPosition, JournalPosition)> {
        let at = self.segments.iter().position(|(id, _)| *id == segment)?;
        let first =
            |(id, seq): (SegmentId, u64)| JournalPosition { addr: BlockAddr::new(id, 0), seq };
        let begin = if at == 0 { start } else { first(self.segments[at]) };
        let end = match self.segments.get(at + 1) {
            Some(next) => first(*next),
            None => self.position()?,
        };
        Some((begin, end))
    }

    /// Segments that hold the journal.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }
}

/// Reads the journal at import.
pub struct JournalReader {
    array: Rc<Array>,
    pool: u64,
    next: JournalPosition,
    end: JournalPosition,
    /// Read ahead: the first block's address, and bytes.
    window: Option<(BlockAddr, IoBuf)>,
    /// Segments seen, with the number of their first frame.
    pub segments: Vec<(SegmentId, u64)>,
    /// Bytes read.
    pub bytes: u64,
    /// Checksums of the blocks of all frames read, when they are wanted.
    sums: Option<BTreeMap<BlockAddr, u64>>,
}

const WINDOW_BLOCKS: u32 = 1024;

impl JournalReader {
    /// Reads from `start` up to, not including, `end`.
    #[must_use]
    pub fn new(array: Rc<Array>, pool: u64, start: JournalPosition, end: JournalPosition) -> Self {
        let segments = vec![(start.addr.segment(), start.seq)];
        Self { array, pool, next: start, end, window: None, segments, bytes: 0, sums: None }
    }

    /// Reads everything, repairs what it can, and gives the checksum of each block of each frame.
    pub async fn all_sums(mut self) -> Result<BTreeMap<BlockAddr, u64>, DeviceError> {
        self.sums = Some(BTreeMap::new());
        while self.next().await?.is_some() {}
        Ok(self.sums.expect("put there above"))
    }

    fn note(&mut self, addr: BlockAddr, frame: &[u8]) {
        if let Some(sums) = &mut self.sums {
            for (index, block) in frame.chunks(BLOCK_LEN).enumerate() {
                sums.insert(addr.plus(index as u32), crc64(block));
            }
        }
    }

    fn corrupt(&self, detail: String) -> DeviceError {
        let kind = ErrorKind::Corrupt {
            detail: format!("map journal frame {} at {}: {detail}", self.next.seq, self.next.addr),
        };
        DeviceError::new("pool", Operation::Read, 0, 0, kind)
    }

    async fn blocks(&mut self, addr: BlockAddr, blocks: u32) -> Result<Vec<u8>, DeviceError> {
        let inside = |(at, buf): &(BlockAddr, IoBuf)| {
            let have = (buf.len() / BLOCK_LEN) as u32;
            at.segment() == addr.segment()
                && addr.block() >= at.block()
                && addr.block() + blocks <= at.block() + have
        };
        if !self.window.as_ref().is_some_and(inside) {
            let geometry =
                self.array.geometry_of(addr.segment()).map_err(|e| self.corrupt(e.to_string()))?;
            let left = geometry.blocks_per_segment().saturating_sub(addr.block());
            if blocks > left {
                return Err(self.corrupt("reaches past its segment".into()));
            }
            let ahead = WINDOW_BLOCKS.max(blocks).min(left);
            // What lies ahead may never have been written, and need not be readable.
            let buf = match self.array.read(addr, ahead).await {
                Ok(buf) => buf,
                Err(_) => {
                    self.array.read(addr, blocks).await.map_err(|e| self.corrupt(e.to_string()))?
                }
            };
            self.bytes += buf.len() as u64;
            self.window = Some((addr, buf));
        }
        let (at, buf) = self.window.as_ref().expect("just read");
        let start = (addr.block() - at.block()) as usize * BLOCK_LEN;
        Ok(buf[start..start + blocks as usize * BLOCK_LEN].to_vec())
    }

    fn judge(&self, frame: &[u8]) -> Result<FrameHeader, String> {
        let header = FrameHeader::decode(frame).map_err(|e| e.to_string())?;
        if header.pool != self.pool || header.seq != self.next.seq {
            return Err(format!("found frame {} of pool {:x}", header.seq, header.pool));
        }
        Ok(header)
    }

    async fn frame(&mut self) -> Result<(FrameHeader, Vec<u8>), DeviceError> {
        let addr = self.next.addr;
        let first = self.blocks(addr, 1).await?;
        let attempt = match self.judge(&first) {
            Ok(header) => {
                let whole = if header.kind == FrameKind::Pad { 1 } else { header.blocks() };
                let frame = self.blocks(addr, whole).await?;
                match header.check(&frame) {
                    Ok(payload) => {
                        let payload = payload.to_vec();
                        self.note(addr, &frame);
                        return Ok((header, payload));
                    }
                    Err(e) => e.to_string(),
                }
            }
            Err(e) => e,
        };
        // Not what it should be: ask the array for other versions of the blocks.
        self.window = None;
        let mut good = Vec::new();
        let header = {
            let mut found = None;
            let versions = self.array.alternatives(addr).await;
            for candidate in versions.map_err(|e| self.corrupt(e.to_string()))? {
                if let Ok(header) = self.judge(&candidate) {
                    good = candidate.to_vec();
                    found = Some(header);
                    break;
                }
            }
            found.ok_or_else(|| self.corrupt(attempt.clone()))?
        };
        let blocks = if header.kind == FrameKind::Pad { 1 } else { header.blocks() };
        // The damage is in one device's column mostly: try all blocks without each in turn.
        for skip in doubted_sets(&self.array, addr.segment()) {
            let Ok(frame) = self.array.read_reconstructed(addr, blocks, &skip).await else {
                continue;
            };
            if let Ok(payload) = header.check(&frame) {
                let payload = payload.to_vec();
                self.note(addr, &frame);
                for block in 0..blocks {
                    let start = block as usize * BLOCK_LEN;
                    let bytes = &frame[start..start + BLOCK_LEN];
                    // A failed repair leaves what there was: the frame has been read all the same.
                    let _ = self.array.repair(addr.plus(block), bytes).await;
                }
                return Ok((header, payload));
            }
        }
        match header.check(&good) {
            Ok(payload) => {
                let payload = payload.to_vec();
                self.note(addr, &good);
                Ok((header, payload))
            }
            Err(_) => Err(self.corrupt(format!("{attempt}; no copy or parity repairs it"))),
        }
    }

    /// The next frame that says something, with its kind; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<(FrameKind, Vec<u8>)>, DeviceError> {
        loop {
            if self.next.seq == self.end.seq {
                return Ok(None);
            }
            let (header, payload) = self.frame().await?;
            let block = self.next.addr.block() + header.blocks();
            self.next.seq += 1;
            if header.kind == FrameKind::Jump {
                let bytes: [u8; 4] = payload
                    .as_slice()
                    .try_into()
                    .map_err(|_| self.corrupt("a jump of a wrong length".into()))?;
                let segment = SegmentId(u32::from_le_bytes(bytes));
                if segment.0 >= BlockAddr::MAX_SEGMENTS {
                    return Err(self.corrupt("jumps out of the pool".into()));
                }
                self.next.addr = BlockAddr::new(segment, 0);
                self.segments.push((segment, self.next.seq));
                continue;
            }
            if block < BlockAddr::MAX_BLOCKS {
                self.next.addr = BlockAddr::new(self.next.addr.segment(), block);
            }
            if header.kind != FrameKind::Pad {
                return Ok(Some((header.kind, payload)));
            }
        }
    }
}

/// Bytes of journal that a payload of `len` takes.
#[must_use]
pub fn frame_bytes(len: usize) -> u64 {
    u64::from(frame_blocks(len)) * BLOCK_BYTES
}

/// Sets of members to leave out when a run of blocks that is checked as a whole is wrong: each one
/// alone, then (where parity allows) each pair.
fn doubted_sets(array: &Array, segment: SegmentId) -> Vec<Vec<DeviceId>> {
    let Ok(geometry) = array.geometry_of(segment) else { return Vec::new() };
    let number = array.groups().iter().position(|g| g.owns(segment));
    let members: Vec<DeviceId> = array
        .status()
        .into_iter()
        .filter(|member| Some(member.group) == number)
        .map(|member| member.id)
        .collect();
    let mut sets: Vec<Vec<DeviceId>> = Vec::new();
    if geometry.parity_columns() >= 1 {
        sets.extend(members.iter().map(|id| vec![*id]));
    }
    if geometry.parity_columns() >= 2 {
        for (at, first) in members.iter().enumerate() {
            sets.extend(members[at + 1..].iter().map(|second| vec![*first, *second]));
        }
    }
    sets
}
