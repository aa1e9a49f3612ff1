//! Writer of the map journal: a chain of frames in segments of its own.

use std::rc::Rc;

use forebay_array::Array;
use forebay_device::IoBuf;
use forebay_format::journal::{
    FrameKind, HEADER_BYTES, MAX_PAYLOAD_BYTES, encode_frame, frame_blocks,
};
use forebay_format::superblock::JournalPosition;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, CommitId, SegmentId};

use crate::error::SegmentError;
use crate::stream::RowStream;
use crate::{InFlight, MAP_STREAM, SegmentKind, SegmentTable, WriteCounts};

/// Appends frames to the map journal.
pub struct JournalWriter {
    rows: RowStream,
    pool: u64,
    next_seq: u64,
    /// Checksum of the last frame.
    link: u64,
    /// The positions of the first frames in the journal's segments, in order.
    segments: Vec<JournalPosition>,
    /// Where the journal ends while no segment is open.
    left_at: Option<JournalPosition>,
    counts: WriteCounts,
}

impl JournalWriter {
    /// The writer of a new pool's journal.
    #[must_use]
    pub fn new(
        array: Rc<Array>,
        table: Rc<SegmentTable>,
        in_flight: Rc<InFlight>,
        pool: u64,
    ) -> Self {
        let rows = RowStream::new(array, table, in_flight, SegmentKind::Map, MAP_STREAM);
        let (segments, counts) = (Vec::new(), WriteCounts::default());
        Self { rows, pool, next_seq: 1, link: 0, segments, left_at: None, counts }
    }

    /// Continues at the journal's end according to a committed root. Rows after the end belong to
    /// no root, so they may be written again. `segments` hold the journal so far. `doubled` says
    /// whether the last of them has copies of its blocks; `None` when it has no blocks yet.
    pub fn resume(
        &mut self,
        end: JournalPosition,
        segments: Vec<JournalPosition>,
        doubled: Option<bool>,
    ) {
        let segment = end.addr.segment();
        self.rows.table.reopen(segment);
        self.rows.adopt_at(segment, end.addr.block(), doubled);
        self.next_seq = end.seq;
        self.link = end.link;
        self.segments = segments;
    }

    /// Leaves the journal at its end according to a committed root, because the segment there takes
    /// no more rows. The frames of the segment that [`Self::open`] opens do not follow it, so the
    /// journal must begin there.
    pub fn leave(&mut self, end: JournalPosition, segments: Vec<JournalPosition>) {
        self.next_seq = end.seq;
        self.link = end.link;
        self.segments = segments;
        self.left_at = Some(end);
    }

    /// True from [`Self::leave`] until a segment is opened.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left_at.is_some()
    }

    /// Blocks written so far; frames count as `data`.
    #[must_use]
    pub fn counts(&self) -> WriteCounts {
        self.counts
    }

    /// The position of the next frame, when a segment is open or was left.
    #[must_use]
    pub fn position(&self) -> Option<JournalPosition> {
        self.rows.position().map(|addr| self.place(addr)).or(self.left_at)
    }

    fn place(&self, addr: BlockAddr) -> JournalPosition {
        JournalPosition { addr, seq: self.next_seq, link: self.link }
    }

    /// Opens a segment where none is. Returns the position of its first frame.
    pub fn open(&mut self, commit: CommitId) -> Result<JournalPosition, SegmentError> {
        let segment = self.rows.open_segment(commit, 0, 0)?;
        let first = self.place(BlockAddr::new(segment, 0));
        self.segments.push(first);
        self.left_at = None;
        Ok(first)
    }

    async fn write(&mut self, kind: FrameKind, payload: &[u8], commit: CommitId) -> BlockAddr {
        let addr = self.rows.position().expect("room was made");
        let (seq, copied) = (self.next_seq, self.rows.is_doubled());
        let (frame, sum) = encode_frame(self.pool, seq, commit.0, self.link, kind, copied, payload);
        let frame = IoBuf::copy_of(&frame).freeze();
        for at in (0..frame.len()).step_by(BLOCK_LEN) {
            self.rows.put(Some(frame.slice(at, BLOCK_LEN)), commit).await;
            match kind {
                FrameKind::Pad => self.counts.padding += 1,
                _ => self.counts.data += 1,
            }
        }
        self.next_seq += 1;
        self.link = sum;
        addr
    }

    /// Bytes of frames that fit into the rest of the current row and leave room for a jump; 0 at a
    /// row's border.
    #[must_use]
    pub fn bytes_to_row_end(&self) -> usize {
        let before_jump = self.rows.blocks_left().saturating_sub(1);
        self.rows.blocks_to_row_end().min(before_jump) as usize * BLOCK_LEN
    }

    async fn fill_row(&mut self, commit: CommitId) {
        let blocks = self.rows.blocks_to_row_end();
        if blocks > 0 {
            let payload = vec![0; blocks as usize * BLOCK_LEN - HEADER_BYTES];
            self.write(FrameKind::Pad, &payload, commit).await;
        }
    }

    /// Appends a frame to the open segment. When it does not fit, the journal jumps to a new one.
    pub async fn append(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        commit: CommitId,
    ) -> Result<(), SegmentError> {
        assert!(payload.len() <= MAX_PAYLOAD_BYTES, "a frame is too long");
        // One block is always kept for the jump.
        if self.rows.blocks_left() <= frame_blocks(payload.len()) {
            self.jump(commit).await?;
        }
        self.write(kind, payload, commit).await;
        Ok(())
    }

    async fn jump(&mut self, commit: CommitId) -> Result<(), SegmentError> {
        let (keep, clock) = (0, 0);
        let next = self.rows.table.allocate(SegmentKind::Map, MAP_STREAM, commit, clock, keep);
        let next = next.ok_or(SegmentError::NoSpace)?;
        self.write(FrameKind::Jump, &next.0.to_le_bytes(), commit).await;
        // The reader leaves the segment at the jump, so the padding after it takes no number.
        let (seq, link) = (self.next_seq, self.link);
        self.fill_row(commit).await;
        (self.next_seq, self.link) = (seq, link);
        self.rows.issue(commit).await;
        self.rows.close(false);
        self.rows.adopt(next);
        self.segments.push(self.place(BlockAddr::new(next, 0)));
        Ok(())
    }

    /// Fills the current row and issues it. Keeps room for a jump.
    pub async fn finish_rows(&mut self, commit: CommitId) -> Result<(), SegmentError> {
        if self.rows.segment().is_none() {
            return Ok(());
        }
        if self.rows.blocks_left() == self.rows.blocks_to_row_end() {
            // In the last row, the jump must not be lost to padding.
            self.jump(commit).await?;
        }
        self.fill_row(commit).await;
        self.rows.issue(commit).await;
        Ok(())
    }

    /// Continues in a new segment, unless the open one is empty. Rows must be finished.
    pub async fn begin_segment(&mut self, commit: CommitId) -> Result<(), SegmentError> {
        match self.rows.position() {
            Some(at) if at.block() > 0 => self.jump(commit).await,
            _ => Ok(()),
        }
    }

    /// Retires the segments before frame `seq`, where the journal starts now.
    pub fn trim(&mut self, seq: u64, commit: CommitId) {
        while self.segments.len() > 1 && self.segments[1].seq <= seq {
            let first = self.segments.remove(0);
            self.rows.table.retire_map(first.addr.segment(), commit);
        }
    }

    /// The positions where the frames of a segment begin and end. The journal begins at `start`.
    #[must_use]
    pub fn extent(
        &self,
        segment: SegmentId,
        start: JournalPosition,
    ) -> Option<(JournalPosition, JournalPosition)> {
        let at = self.segments.iter().position(|first| first.addr.segment() == segment)?;
        let begin = if at == 0 { start } else { self.segments[at] };
        let end = match self.segments.get(at + 1) {
            Some(next) => *next,
            None => self.position()?,
        };
        Some((begin, end))
    }

    /// Number of segments that hold the journal.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }
}

/// Bytes of a frame with a payload of `len`, without padding to a block.
#[must_use]
pub const fn frame_room(len: usize) -> usize {
    HEADER_BYTES + len
}

/// Bytes of the journal that a payload of `len` takes.
#[must_use]
pub fn frame_bytes(len: usize) -> u64 {
    u64::from(frame_blocks(len)) * BLOCK_BYTES
}
