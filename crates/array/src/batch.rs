//! A batch: whole rows of blocks, each in the memory of its writer.

use std::sync::LazyLock;

use forebay_device::{IoBuf, IoBytes};
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
    /// What was put.
    blocks: Vec<Option<IoBytes>>,
}

/// A block that was not put.
static ZEROS: LazyLock<IoBytes> = LazyLock::new(|| IoBuf::zeroed(BLOCK_LEN).freeze());

impl RowBatch {
    pub(crate) fn new(
        geometry: GroupGeometry,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        kind: WriteKind,
    ) -> Self {
        let blocks = vec![None; (rows * geometry.blocks_per_row()) as usize];
        Self { geometry, segment, first_row, rows, kind, is_copy: false, blocks }
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

    /// Puts one block. Panics past the end, and when `block` has another length.
    pub fn put(&mut self, index: u32, block: IoBytes) {
        assert_eq!(block.len(), BLOCK_LEN, "the length of a block");
        self.blocks[index as usize] = Some(block);
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
        for (index, block) in (0..).zip(&self.blocks) {
            if let Some(block) = block {
                let to = self.addr(index).block();
                let to = self.geometry.copy_of(to).expect("the row has a copy");
                copy.put(to - first_row * self.geometry.blocks_per_row(), block.clone());
            }
        }
        Some(copy)
    }

    /// Shortens the batch to its first `rows` rows.
    pub fn truncate_rows(&mut self, rows: u32) {
        self.rows = self.rows.min(rows);
        self.blocks.truncate(self.blocks() as usize);
    }

    /// The block that was put at `index`, if any.
    #[must_use]
    pub fn block(&self, index: u32) -> Option<&[u8]> {
        self.blocks.get(index as usize)?.as_deref()
    }

    /// The data columns in parts, with zeros where nothing was put.
    pub(crate) fn into_columns(self) -> Vec<Vec<IoBytes>> {
        let mut columns: Vec<Vec<IoBytes>> = vec![Vec::new(); self.geometry.data_columns()];
        for (index, block) in (0..).zip(self.blocks) {
            let block = block.unwrap_or_else(|| ZEROS.clone());
            let (role, _) = self.geometry.locate(index);
            // The blocks of a column come in order.
            let column = &mut columns[role];
            match column.last_mut().and_then(|last| last.with_next(&block).map(|all| (last, all))) {
                Some((last, all)) => *last = all,
                None => column.push(block),
            }
        }
        columns
    }
}
