//! Address arithmetic of one group: the device and the offset of each block of a segment.
//!
//! A *segment* has one contiguous *column* on every member, and a *row* is `unit_bytes` of every
//! column. Each column has a *role*: data 0, 1, …, then parity P, Q, R. Roles rotate by one with
//! each segment and never within one, so a batch of rows is one write per device.

use std::fmt;

use forebay_units::{BLOCK_BYTES, BlockAddr, Layout, SegmentId};

/// Most members a group may have.
pub const MAX_MEMBERS: usize = 24;

/// Shape of one group. All its functions are pure; [`GroupGeometry::check`] makes them safe to
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupGeometry {
    /// The layout of the data.
    pub layout: Layout,
    /// Members, without replacements in progress.
    pub members: usize,
    /// Bytes that a row takes from each column; a multiple of 4096.
    pub unit_bytes: u64,
    /// Bytes of a segment on each member; a multiple of `unit_bytes`.
    pub column_bytes: u64,
    /// Where the first column starts on each member; a multiple of 4096.
    pub data_start_bytes: u64,
    /// The first segment id of this group.
    pub first_segment: u32,
    /// Number of segment ids that this group owns.
    pub segments: u32,
}

/// Why a geometry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The layout cannot have so many members.
    Members {
        /// The layout.
        layout: Layout,
        /// Members of the group.
        members: usize,
        /// Fewest members of the layout.
        least: usize,
    },
    /// A size that must be a multiple of another is not, or is zero.
    Unaligned {
        /// Which field.
        field: &'static str,
        /// Its value.
        bytes: u64,
        /// What it must be a positive multiple of.
        multiple_of_bytes: u64,
    },
    /// A segment has more blocks than an address can name.
    TooManyBlocks {
        /// Blocks of a segment.
        blocks: u64,
    },
    /// No segments, or ids past what an address can name.
    Segments {
        /// First id.
        first_segment: u32,
        /// Number of segments.
        segments: u32,
    },
    /// The members would have to be larger than a device can be.
    TooLarge,
    /// Groups share segment ids.
    Overlap {
        /// The first shared id.
        segment: u32,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Members { layout, members, least } => {
                write!(f, "{layout} takes {least} to {MAX_MEMBERS} devices, not {members}")
            }
            Self::Unaligned { field, bytes, multiple_of_bytes } => {
                write!(f, "{field} is {bytes}, but must be a multiple of {multiple_of_bytes}")
            }
            Self::TooManyBlocks { blocks } => write!(
                f,
                "a segment of {blocks} blocks is larger than {} blocks",
                BlockAddr::MAX_BLOCKS
            ),
            Self::Segments { first_segment, segments } => write!(
                f,
                "{segments} segments from {first_segment} on do not fit the {} ids of a pool",
                BlockAddr::MAX_SEGMENTS
            ),
            Self::TooLarge => write!(f, "the columns end past what a device can address"),
            Self::Overlap { segment } => write!(f, "two groups claim segment {segment}"),
        }
    }
}

impl std::error::Error for GeometryError {}

/// A run of logical bytes that is contiguous in one data column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The data column (role).
    pub role: usize,
    /// Offset in the column.
    pub column_offset_bytes: u64,
    /// Offset in the requested range.
    pub logical_bytes: u64,
    /// Length.
    pub len_bytes: u64,
}

/// The part of one data column that a range of blocks takes: always contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnRange {
    /// The data column (role).
    pub role: usize,
    /// First byte in the column.
    pub start_bytes: u64,
    /// One past the last byte in the column.
    pub end_bytes: u64,
}

impl GroupGeometry {
    /// Checks every limit. The other functions rely on it.
    pub fn check(&self) -> Result<(), GeometryError> {
        let least = match self.layout {
            Layout::Raid0 | Layout::Mirror => 1,
            Layout::Raidz1 => 2,
            Layout::Raidz2 => 3,
            Layout::Raidz3 => 4,
        };
        if self.members < least || self.members > MAX_MEMBERS {
            let (layout, members) = (self.layout, self.members);
            return Err(GeometryError::Members { layout, members, least });
        }
        let unaligned = |field, bytes: u64, multiple_of_bytes: u64, zero_is_right: bool| {
            let fits = bytes % multiple_of_bytes == 0 && (bytes > 0 || zero_is_right);
            if fits {
                Ok(())
            } else {
                Err(GeometryError::Unaligned { field, bytes, multiple_of_bytes })
            }
        };
        unaligned("unit_bytes", self.unit_bytes, BLOCK_BYTES, false)?;
        unaligned("column_bytes", self.column_bytes, self.unit_bytes, false)?;
        unaligned("data_start_bytes", self.data_start_bytes, BLOCK_BYTES, true)?;
        let blocks = (self.column_bytes / BLOCK_BYTES).saturating_mul(self.data_columns() as u64);
        if blocks > u64::from(BlockAddr::MAX_BLOCKS) {
            return Err(GeometryError::TooManyBlocks { blocks });
        }
        let (first_segment, segments) = (self.first_segment, self.segments);
        let end = u64::from(first_segment) + u64::from(segments);
        if segments == 0 || end > u64::from(BlockAddr::MAX_SEGMENTS) {
            return Err(GeometryError::Segments { first_segment, segments });
        }
        let data_bytes = self.column_bytes.checked_mul(u64::from(segments));
        match data_bytes.and_then(|bytes| bytes.checked_add(self.data_start_bytes)) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(GeometryError::TooLarge),
        }
    }

    /// Parity columns: as many members may be missing. For mirrors, the spare copies.
    #[must_use]
    pub fn parity_columns(&self) -> usize {
        self.layout.parity_columns(self.members)
    }

    /// Columns of a row that hold different data.
    #[must_use]
    pub fn data_columns(&self) -> usize {
        self.members - self.parity_columns()
    }

    /// Whether lost columns are computed from parity.
    #[must_use]
    pub fn is_raidz(&self) -> bool {
        !matches!(self.layout, Layout::Raid0 | Layout::Mirror)
    }

    /// Rows of a segment.
    #[must_use]
    pub fn rows(&self) -> u32 {
        (self.column_bytes / self.unit_bytes) as u32
    }

    /// Blocks of a row.
    #[must_use]
    pub fn blocks_per_row(&self) -> u32 {
        (self.unit_bytes / BLOCK_BYTES) as u32 * self.data_columns() as u32
    }

    /// Blocks of a segment, all of them usable for data.
    #[must_use]
    pub fn blocks_per_segment(&self) -> u32 {
        self.rows() * self.blocks_per_row()
    }

    /// Whether a segment belongs to this group.
    #[must_use]
    pub fn owns(&self, segment: SegmentId) -> bool {
        segment.0 >= self.first_segment && segment.0 - self.first_segment < self.segments
    }

    /// A segment's index within the group.
    #[must_use]
    pub fn index_of(&self, segment: SegmentId) -> u32 {
        debug_assert!(self.owns(segment));
        segment.0 - self.first_segment
    }

    /// The segment at an index within the group.
    #[must_use]
    pub fn segment_at(&self, index: u32) -> SegmentId {
        SegmentId(self.first_segment + index)
    }

    /// The role of a member's column in the segment with this index: below
    /// [`GroupGeometry::data_columns`] a data column, from there on parity P, Q, R. In a mirror
    /// every column is a copy, and the role is the column itself.
    #[must_use]
    pub fn role_of(&self, index: u32, column: usize) -> usize {
        if self.layout == Layout::Mirror {
            return column;
        }
        (column + index as usize % self.members) % self.members
    }

    /// The column with a role: the inverse of [`GroupGeometry::role_of`].
    #[must_use]
    pub fn column_of(&self, index: u32, role: usize) -> usize {
        if self.layout == Layout::Mirror {
            return role;
        }
        (role + self.members - index as usize % self.members) % self.members
    }

    /// Where a segment's column starts on its member.
    #[must_use]
    pub fn column_start_bytes(&self, index: u32) -> u64 {
        self.data_start_bytes + u64::from(index) * self.column_bytes
    }

    /// Least size of each member.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.data_start_bytes + u64::from(self.segments) * self.column_bytes
    }

    /// The data column of a block, and its first byte there.
    #[must_use]
    pub fn locate(&self, block: u32) -> (usize, u64) {
        let offset_bytes = u64::from(block) * BLOCK_BYTES;
        let unit = offset_bytes / self.unit_bytes;
        let data_columns = self.data_columns() as u64;
        let (row, role) = (unit / data_columns, unit % data_columns);
        (role as usize, row * self.unit_bytes + offset_bytes % self.unit_bytes)
    }

    /// The block at a byte of a data column: the inverse of [`GroupGeometry::locate`].
    #[must_use]
    pub fn block_at(&self, role: usize, column_offset_bytes: u64) -> u32 {
        let row = column_offset_bytes / self.unit_bytes;
        let unit = row * self.data_columns() as u64 + role as u64;
        ((unit * self.unit_bytes + column_offset_bytes % self.unit_bytes) / BLOCK_BYTES) as u32
    }

    /// Rows of a doubled segment that hold data; the same number of rows after them holds copies.
    /// Metadata segments are doubled in groups without redundancy, where a bad sector has no other
    /// remedy: see [`GroupGeometry::has_redundancy`].
    #[must_use]
    pub fn doubled_rows(&self) -> u32 {
        self.rows() / 2
    }

    /// The copy of a block of a doubled segment: on the next data column, as far from the block as
    /// the segment allows. `None` when the block is not in the doubled rows.
    #[must_use]
    pub fn copy_of(&self, block: u32) -> Option<u32> {
        let (role, offset_bytes) = self.locate(block);
        let doubled_bytes = u64::from(self.doubled_rows()) * self.unit_bytes;
        (offset_bytes < doubled_bytes)
            .then(|| self.block_at((role + 1) % self.data_columns(), doubled_bytes + offset_bytes))
    }

    /// Whether a member may be missing, or wrong.
    #[must_use]
    pub fn has_redundancy(&self) -> bool {
        self.parity_columns() > 0
    }

    /// Splits a range of blocks at unit borders, in logical order.
    pub fn runs(&self, block: u32, blocks: u32) -> impl Iterator<Item = Run> + use<> {
        let geometry = *self;
        let start_bytes = u64::from(block) * BLOCK_BYTES;
        let end_bytes = start_bytes + u64::from(blocks) * BLOCK_BYTES;
        let mut at_bytes = start_bytes;
        std::iter::from_fn(move || {
            if at_bytes >= end_bytes {
                return None;
            }
            let (role, column_offset_bytes) = geometry.locate((at_bytes / BLOCK_BYTES) as u32);
            let left_bytes = geometry.unit_bytes - at_bytes % geometry.unit_bytes;
            let len_bytes = left_bytes.min(end_bytes - at_bytes);
            let logical_bytes = at_bytes - start_bytes;
            at_bytes += len_bytes;
            Some(Run { role, column_offset_bytes, logical_bytes, len_bytes })
        })
    }

    /// The part of each data column that a range of blocks takes. Rows between the first and the
    /// last are whole, so each part is contiguous, and a long range is one read per device.
    #[must_use]
    pub fn column_ranges(&self, block: u32, blocks: u32) -> Vec<ColumnRange> {
        let mut ranges: Vec<ColumnRange> = Vec::new();
        for run in self.runs(block, blocks) {
            let (role, start_bytes) = (run.role, run.column_offset_bytes);
            let end_bytes = start_bytes + run.len_bytes;
            match ranges.iter_mut().find(|range| range.role == role) {
                Some(range) => {
                    debug_assert_eq!(range.end_bytes, start_bytes);
                    range.end_bytes = end_bytes;
                }
                None => ranges.push(ColumnRange { role, start_bytes, end_bytes }),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests;
