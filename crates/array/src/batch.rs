//! A batch: whole rows, filled block by block before they are written.

use forebay_device::IoBuf;
use forebay_units::{BLOCK_LEN, BlockAddr, SegmentId};

use crate::geometry::GroupGeometry;

/// The origin of a batch's data, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKind {
    /// Data that clients wrote.
    User,
    /// Blocks that the cleaner moves.
    Cleaning,
    /// The map journal.
    Map,
}

/// Rows under construction. Blocks may be put in any order; blocks that are not put are zeros.
pub struct RowBatch {
    pub(crate) geometry: GroupGeometry,
    pub(crate) segment: SegmentId,
    pub(crate) first_row: u32,
    pub(crate) rows: u32,
    pub(crate) kind: WriteKind,
    /// Whether it is a copy of another batch, for the statistics.
    pub(crate) is_copy: bool,
    /// One buffer per data column.
    columns: Vec<IoBuf>,
    /// One bit per block that was put.
    put: Vec<u64>,
}

impl RowBatch {
    pub(crate) fn new(
        geometry: GroupGeometry,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        kind: WriteKind,
    ) -> Self {
        let len = u64::from(rows) * geometry.unit_bytes;
        let columns = (0..geometry.data_columns()).map(|_| IoBuf::recycled(len as usize)).collect();
        let put = vec![0; (rows * geometry.blocks_per_row()).div_ceil(64) as usize];
        Self { geometry, segment, first_row, rows, kind, is_copy: false, columns, put }
    }

    /// Blocks in the batch.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.rows * self.geometry.blocks_per_row()
    }

    /// The address that block `index` of the batch will have.
    #[must_use]
    pub fn addr(&self, index: u32) -> BlockAddr {
        BlockAddr::new(self.segment, self.first_row * self.geometry.blocks_per_row() + index)
    }

    /// The buffer of block `index`, which the caller fills whole. Panics past the end.
    pub fn block_mut(&mut self, index: u32) -> &mut [u8] {
        assert!(index < self.blocks(), "block {index} is past the end of a batch");
        self.put[index as usize / 64] |= 1 << (index % 64);
        let (role, offset_bytes) = self.geometry.locate(index);
        &mut self.columns[role][offset_bytes as usize..][..BLOCK_LEN]
    }

    /// Copies one block in. Panics past the end.
    pub fn put(&mut self, index: u32, block: &[u8; BLOCK_LEN]) {
        self.block_mut(index).copy_from_slice(block);
    }

    /// Copies blocks in from `first` on. Panics when they reach past the end, or when `bytes` is
    /// not a whole number of blocks.
    pub fn put_run(&mut self, first: u32, bytes: &[u8]) {
        assert!(bytes.len() % BLOCK_LEN == 0, "a run is whole blocks");
        let blocks = (bytes.len() / BLOCK_LEN) as u32;
        assert!(first + blocks <= self.blocks(), "a run reaches past the end of a batch");
        for index in first..first + blocks {
            self.put[index as usize / 64] |= 1 << (index % 64);
        }
        for run in self.geometry.runs(first, blocks) {
            let len = run.len_bytes as usize;
            let from = &bytes[run.logical_bytes as usize..][..len];
            self.columns[run.role][run.column_offset_bytes as usize..][..len].copy_from_slice(from);
        }
    }

    /// A batch of the copies of these rows of a doubled segment ([`GroupGeometry::copy_of`]).
    /// `None` when the rows have no copies.
    #[must_use]
    pub fn copied(&self) -> Option<RowBatch> {
        let doubled_rows = self.geometry.doubled_rows();
        if self.first_row + self.rows > doubled_rows {
            return None;
        }
        let first_row = self.first_row + doubled_rows;
        let mut copy = Self::new(self.geometry, self.segment, first_row, self.rows, self.kind);
        copy.is_copy = true;
        for index in 0..self.blocks() {
            if let Some(block) = self.block(index) {
                let to = self.addr(index).block();
                let to = self.geometry.copy_of(to).expect("the row has a copy");
                copy.put_run(to - first_row * self.geometry.blocks_per_row(), block);
            }
        }
        Some(copy)
    }

    /// Shortens the batch to its first `rows` rows.
    pub fn truncate_rows(&mut self, rows: u32) {
        self.rows = self.rows.min(rows);
        let len = u64::from(self.rows) * self.geometry.unit_bytes;
        self.columns.iter_mut().for_each(|column| column.truncate(len as usize));
    }

    /// The block that was put at `index`, if any.
    #[must_use]
    pub fn block(&self, index: u32) -> Option<&[u8]> {
        if index >= self.blocks() || self.put[index as usize / 64] >> (index % 64) & 1 == 0 {
            return None;
        }
        let (role, offset_bytes) = self.geometry.locate(index);
        Some(&self.columns[role][offset_bytes as usize..][..BLOCK_LEN])
    }

    /// The data columns, with zeros where nothing was put.
    pub(crate) fn into_columns(mut self) -> Vec<IoBuf> {
        for index in 0..self.blocks() {
            if self.put[index as usize / 64] >> (index % 64) & 1 == 0 {
                // Old content of recycled memory must not reach a device.
                self.block_mut(index).fill(0);
            }
        }
        self.columns
    }
}
