//! The writer of one data stream: it takes blocks of volumes and returns addresses and checksums.

use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{IoBuf, IoBytes};
use forebay_format::checksum::{bound_sum, crc64};
use forebay_format::footer::{Footer, FooterLength, Run};
use forebay_units::{BLOCK_LEN, BlockAddr, CommitId, Lba, SegmentId, VolumeId};

use crate::error::SegmentError;
use crate::stream::RowStream;
use crate::{InFlight, SegmentKind, SegmentTable};

/// Blocks that a writer has put into rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Blocks of volumes.
    pub data: u64,
    /// Blocks of `data` that were moved to fill a row.
    pub fillers: u64,
    /// Blocks of footers.
    pub footer: u64,
    /// Zeros that fill rows.
    pub padding: u64,
}

/// Fills segments of one stream.
pub struct DataWriter {
    rows: RowStream,
    pool: u64,
    footer: Footer,
    length: FooterLength,
    counts: WriteCounts,
    /// Long runs of the segments closed since the last [`DataWriter::take_long_runs`].
    long_runs: Vec<Run>,
}

/// Least blocks of a run whose sums the map may drop once the footer is on media.
const MIN_LONG_RUN_BLOCKS: u32 = 32;

impl DataWriter {
    /// A writer for `stream` of pool `pool`.
    #[must_use]
    pub fn new(
        array: Rc<Array>,
        table: Rc<SegmentTable>,
        in_flight: Rc<InFlight>,
        pool: u64,
        stream: u8,
    ) -> Self {
        let rows = RowStream::new(array, table, in_flight, SegmentKind::Data, stream);
        let (footer, length) = (Footer::default(), FooterLength::default());
        Self { rows, pool, footer, length, counts: WriteCounts::default(), long_runs: Vec::new() }
    }

    /// Blocks written so far.
    #[must_use]
    pub fn counts(&self) -> WriteCounts {
        self.counts
    }

    /// The open segment.
    #[must_use]
    pub fn segment(&self) -> Option<SegmentId> {
        self.rows.segment()
    }

    /// Blocks until the end of the current row; 0 at a row's border.
    #[must_use]
    pub fn blocks_to_row_end(&self) -> u32 {
        self.rows.blocks_to_row_end()
    }

    /// Counts the last block as moved to fill a row.
    pub fn count_filler(&mut self) {
        self.counts.fillers += 1;
    }

    /// Blocks that the open segment has room for, in any case.
    #[must_use]
    pub fn blocks_left(&self) -> u32 {
        match self.rows.segment() {
            Some(_) => self.length.certain(self.rows.blocks_left()),
            None => 0,
        }
    }

    /// Writes one block; returns its address and sum. Fails with [`SegmentError::NoSpace`] rather
    /// than leave fewer than `keep` segments free. `clock` is the pool's write clock.
    pub async fn append(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        block: IoBytes,
        commit: CommitId,
        clock: u64,
        keep: u32,
    ) -> Result<(BlockAddr, u64), SegmentError> {
        if self.rows.segment().is_none() {
            let segment = self.rows.open_segment(commit, clock, keep)?;
            self.footer = Footer { pool: self.pool, segment, birth: commit.0, ..Footer::default() };
            self.length = FooterLength::default();
        }
        let sum = bound_sum(block.block_sum(0, crc64), self.pool, volume, lba);
        let addr = self.rows.put(Some(block), commit).await;
        self.counts.data += 1;
        self.note(volume, lba, sum, commit).await;
        Ok((addr, sum))
    }

    /// Adds the last block to the footer. Closes the segment when another block might leave no room
    /// for the footer.
    async fn note(&mut self, volume: VolumeId, lba: Lba, sum: u64, commit: CommitId) {
        self.footer.push(volume, lba, sum);
        self.length.push(volume, lba);
        let left = self.rows.blocks_left();
        if left > self.length.blocks_with(1) {
            return;
        }
        let bytes = IoBuf::copy_of(&self.footer.encode()).freeze();
        let segment = self.rows.segment().expect("a block was put into it");
        self.rows.table.holds(segment, self.footer.sums.len() as u32);
        for _ in (bytes.len() / BLOCK_LEN) as u32..left {
            self.rows.put(None, commit).await;
            self.counts.padding += 1;
        }
        for at in (0..bytes.len()).step_by(BLOCK_LEN) {
            self.rows.put(Some(bytes.slice(at, BLOCK_LEN)), commit).await;
            self.counts.footer += 1;
        }
        self.rows.close(true);
        let long = |r: &&Run| r.volume != Run::PADDING && r.blocks >= MIN_LONG_RUN_BLOCKS;
        self.long_runs.extend(self.footer.runs.iter().filter(long));
    }

    /// Takes the long runs of the segments closed since the last call.
    pub fn take_long_runs(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.long_runs)
    }

    /// Fills the current row with zeros and issues it, so that every appended block is in flight.
    /// [`InFlight::drain`] waits for them.
    pub async fn finish_rows(&mut self, commit: CommitId) {
        while self.rows.blocks_to_row_end() > 0 {
            self.rows.put(None, commit).await;
            self.counts.padding += 1;
            self.note(Run::PADDING, Lba(0), 0, commit).await;
        }
        self.rows.issue(commit).await;
    }
}
