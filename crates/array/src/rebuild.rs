//! Rebuild: a segment's column returned to the members that miss it.

use std::rc::Rc;

use forebay_device::IoBytes;
use forebay_units::{BlockAddr, DeviceId, SegmentId};

use crate::Array;
use crate::error::ArrayError;
use crate::member::Member;
use crate::read::SegmentSource;
use crate::rows::{Judge, Rows};

/// The result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Members that hold the segment now.
    pub members: Vec<DeviceId>,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Live blocks that were wrong as read and were recovered from other columns.
    pub recovered: Vec<BlockAddr>,
    /// Live blocks without a right version.
    pub damaged: Vec<BlockAddr>,
}

/// Bytes of each column that one step of a rebuild takes.
const REBUILD_COLUMN_BYTES: u64 = 1 << 20;

/// The rebuild of one segment, step by step.
pub struct Rebuilding {
    segment: SegmentId,
    index: u32,
    next_row: u32,
    rows: u32,
    /// Role, member, and the member's rebuild mark, which must not change until the end.
    targets: Vec<(usize, Rc<Member>, (u64, u64))>,
    rebuilt: Rebuilt,
}

impl Rebuilding {
    /// Ends a rebuild of all rows: the members that accepted every row hold the segment now. The
    /// caller has checked that the segment was not reused.
    #[must_use]
    pub fn end(mut self) -> Rebuilt {
        for (_, member, mark) in self.targets {
            if member.mark_rebuilt(self.index, mark) {
                self.rebuilt.members.push(member.id);
            }
        }
        self.rebuilt
    }

    /// Abandons the rebuild and returns what it did so far.
    #[must_use]
    pub fn give_up(self) -> Rebuilt {
        self.rebuilt
    }
}

impl Array {
    /// Begins to rebuild a segment's column on every writable member that misses it: the first
    /// `rows` rows, those that were written. New rows may be written meanwhile.
    ///
    /// The segment may be reused between the steps. The caller checks for that before each step
    /// and before the end.
    pub fn begin_rebuild(&self, segment: SegmentId, rows: u32) -> Result<Rebuilding, ArrayError> {
        let group = self.group_of(segment)?;
        if rows > 0 {
            self.check_rows(segment, 0, rows)?;
        }
        let index = group.geometry().index_of(segment);
        let mut targets = Vec::new();
        for (column, slot) in group.slots.borrow().iter().enumerate() {
            let role = group.role_of_column(index, column);
            for member in slot.iter().filter(|m| m.is_writable() && m.is_stale(index)) {
                targets.push((role, member.clone(), member.rebuild_mark()));
            }
        }
        let rebuilt = Rebuilt::default();
        Ok(Rebuilding { segment, index, next_row: 0, rows, targets, rebuilt })
    }

    /// Rebuilds the next rows, with the data judged. Returns whether any rows are left. Fails when
    /// members that hold the segment went away and the others do not suffice.
    pub async fn rebuild_more(
        &self,
        rebuilding: &mut Rebuilding,
        judge: Judge<'_>,
    ) -> Result<bool, ArrayError> {
        let Rebuilding { segment, index, next_row, rows, targets, rebuilt } = rebuilding;
        if *next_row >= *rows || targets.is_empty() {
            return Ok(false);
        }
        let group = self.group_of(*segment)?;
        let geometry = group.geometry();
        let source = &SegmentSource { group: &group, index: *index, excluded: &[] };
        let step = (REBUILD_COLUMN_BYTES / geometry.unit_bytes).max(1) as u32;
        let mut judged = Rows::new(*next_row, step.min(*rows - *next_row));
        self.load_rows(source, &mut judged).await;
        self.judge_rows(source, &mut judged, judge).await;
        // What a member that went away holds is not lost: nothing may take its place.
        if group.lacks_sources(*index) && !self.gives_up_sources.get() {
            return Err(ArrayError::SourcesMissing { segment: *segment });
        }
        let address = |block: u32| BlockAddr::new(*segment, block);
        rebuilt.recovered.extend(judged.recovered.iter().copied().map(address));
        rebuilt.damaged.extend(judged.damaged_live().map(address));
        let columns = self.all_columns(source, &mut judged).await;
        let offset_bytes =
            geometry.column_start_bytes(*index) + u64::from(*next_row) * geometry.unit_bytes;
        targets.retain(|(_, member, mark)| member.rebuild_mark() == *mark);
        let writes: Vec<(Rc<Member>, Vec<IoBytes>)> = targets
            .iter()
            .map(|(role, member, _)| (member.clone(), vec![columns[*role].clone()]))
            .collect();
        let bytes = writes.len() as u64 * columns[0].len() as u64;
        self.write_columns(&group, *index, offset_bytes, writes).await;
        rebuilt.written_bytes += bytes;
        *next_row += judged.rows;
        Ok(*next_row < *rows)
    }
}
