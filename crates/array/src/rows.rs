//! Rows under check: the data columns of some rows, and a verdict on each of their blocks.

use std::collections::BTreeSet;

use forebay_device::{IoBuf, IoBytes};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

use crate::Array;
use crate::geometry::{ColumnRange, GroupGeometry};
use crate::read::{ColumnPart, SegmentSource};
use crate::write::encode;

/// The verdict of a judge, which knows the checksums, on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockVerdict {
    /// Live and right.
    Good,
    /// Live and wrong.
    Bad,
    /// Not referenced: any content will do.
    Dead,
}

/// Returns the verdict on the bytes read for an address.
pub type Judge<'a> = &'a dyn Fn(BlockAddr, &[u8]) -> BlockVerdict;

/// The data columns of some rows, and the verdicts on their blocks.
pub(crate) struct Rows {
    pub(crate) first_row: u32,
    pub(crate) rows: u32,
    pub(crate) columns: Vec<IoBuf>,
    /// Blocks without a reference.
    pub(crate) dead: BTreeSet<u32>,
    /// Blocks that were wrong as read and are right now.
    pub(crate) recovered: BTreeSet<u32>,
    /// Blocks without a right version.
    pub(crate) damaged: BTreeSet<u32>,
}

impl Rows {
    pub(crate) fn new(first_row: u32, rows: u32) -> Self {
        Self {
            first_row,
            rows,
            columns: Vec::new(),
            dead: BTreeSet::new(),
            recovered: BTreeSet::new(),
            damaged: BTreeSet::new(),
        }
    }

    /// Damaged blocks that are live.
    pub(crate) fn damaged_live(&self) -> impl Iterator<Item = u32> + '_ {
        self.damaged.iter().copied().filter(|block| !self.dead.contains(block))
    }

    /// The part of a role's column that these rows take.
    pub(crate) fn range(&self, geometry: &GroupGeometry, role: usize) -> ColumnRange {
        let start_bytes = u64::from(self.first_row) * geometry.unit_bytes;
        let end_bytes = start_bytes + u64::from(self.rows) * geometry.unit_bytes;
        ColumnRange { role, start_bytes, end_bytes }
    }
}

impl Array {
    /// Reads the data columns of rows, from parity where needed. When devices fail in several
    /// places it reads block by block. An unreadable block is zeros, and damaged.
    pub(crate) async fn load_rows(&self, source: &SegmentSource<'_>, rows: &mut Rows) {
        let geometry = source.group.geometry();
        let ranges: Vec<ColumnRange> =
            (0..geometry.data_columns()).map(|role| rows.range(&geometry, role)).collect();
        if let Ok(parts) = self.load(source, &ranges).await {
            rows.columns = parts.into_iter().map(ColumnPart::into_buf).collect();
            return;
        }
        let first_block = rows.first_row * geometry.blocks_per_row();
        let blocks = rows.rows * geometry.blocks_per_row();
        let len = (ranges[0].end_bytes - ranges[0].start_bytes) as usize;
        rows.columns = ranges.iter().map(|_| IoBuf::zeroed(len)).collect();
        for block in first_block..first_block + blocks {
            let (role, start_bytes) = geometry.locate(block);
            let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
            match self.load(source, &[range]).await {
                Ok(parts) => {
                    let at = (start_bytes - ranges[role].start_bytes) as usize;
                    rows.columns[role][at..at + BLOCK_LEN].copy_from_slice(parts[0].bytes());
                }
                Err(_) => {
                    rows.damaged.insert(block);
                }
            }
        }
    }

    /// Has every block judged, and replaces wrong blocks by their right version.
    pub(crate) async fn judge_rows(
        &self,
        source: &SegmentSource<'_>,
        rows: &mut Rows,
        judge: Judge<'_>,
    ) {
        let geometry = source.group.geometry();
        let segment = geometry.segment_at(source.index);
        let first_block = rows.first_row * geometry.blocks_per_row();
        let start_bytes = u64::from(rows.first_row) * geometry.unit_bytes;
        for block in first_block..first_block + rows.rows * geometry.blocks_per_row() {
            let addr = BlockAddr::new(segment, block);
            let (role, column_offset_bytes) = geometry.locate(block);
            let at = (column_offset_bytes - start_bytes) as usize;
            match judge(addr, &rows.columns[role][at..at + BLOCK_LEN]) {
                // The zeros of an unreadable block may be its right content.
                BlockVerdict::Good => {
                    rows.damaged.remove(&block);
                }
                BlockVerdict::Dead => {
                    rows.dead.insert(block);
                }
                BlockVerdict::Bad => {
                    let right = match self.alternatives(addr).await {
                        Ok(mut all) => {
                            let right = all.find(|data| judge(addr, data) == BlockVerdict::Good);
                            right.filter(|_| all.may_be_written_back())
                        }
                        Err(_) => None,
                    };
                    if let Some(data) = right {
                        rows.columns[role][at..at + BLOCK_LEN].copy_from_slice(&data);
                        rows.recovered.insert(block);
                        rows.damaged.remove(&block);
                    } else {
                        rows.damaged.insert(block);
                    }
                }
            }
        }
    }

    /// Every column of judged rows, with computed parity. Takes the data columns out of `rows`.
    pub(crate) async fn all_columns(
        &self,
        source: &SegmentSource<'_>,
        rows: &mut Rows,
    ) -> Vec<IoBytes> {
        let columns = std::mem::take(&mut rows.columns);
        let mut columns: Vec<IoBytes> = columns.into_iter().map(IoBuf::freeze).collect();
        if let Some(kernel) = &source.group.kernel {
            let data: Vec<_> = columns.iter().map(|column| vec![column.clone()]).collect();
            columns.extend(encode(kernel, &data).await);
        }
        columns
    }
}
