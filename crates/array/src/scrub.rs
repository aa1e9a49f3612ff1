//! Scrub: compares every column of some rows, and rewrites the columns that are wrong.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, SegmentId};

use crate::Array;
use crate::error::ArrayError;
use crate::geometry::{ColumnRange, GroupGeometry};
use crate::member::Member;
use crate::read::SegmentSource;
use crate::repair::Held;
use crate::rows::{BlockVerdict, Judge, Rows};

/// A column of a row that differs from the other columns, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mismatch {
    /// The row.
    pub row: u32,
    /// The member that holds the column.
    pub device: DeviceId,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Columns that differed, by row.
    pub mismatches: Vec<Mismatch>,
    /// Bytes that were rewritten.
    pub repaired_bytes: u64,
    /// Live blocks without a right version.
    pub damaged: Vec<BlockAddr>,
}

/// One member's copy of a role's column.
struct ColumnCopy {
    role: usize,
    member: Rc<Member>,
    /// The bytes read; `None` when the read failed.
    held: Option<IoBuf>,
}

/// A run of wrong blocks in a column, counted from the first row under check.
struct WrongRun {
    first: usize,
    blocks: usize,
    /// Whether the member is at fault: its data is live and was judged, or its parity is of such
    /// data only.
    is_proved: bool,
}

impl WrongRun {
    fn start_bytes(&self) -> u64 {
        self.first as u64 * BLOCK_BYTES
    }

    fn end_bytes(&self) -> u64 {
        (self.first + self.blocks) as u64 * BLOCK_BYTES
    }
}

impl Array {
    /// Compares all columns of some rows with each other. It cannot tell which column is right:
    /// a member is named when its column differs from what the first readable columns imply.
    pub async fn check_parity(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
    ) -> Result<Vec<Mismatch>, ArrayError> {
        let any_content = |_: BlockAddr, _: &[u8]| BlockVerdict::Dead;
        Ok(self.compare(segment, first_row, rows, &any_content, false).await?.mismatches)
    }

    /// Reads every column of some rows, has the data judged, recovers wrong blocks from other
    /// columns, and rewrites every wrong column: data, parity and copies. The caller names rows
    /// that were written, and prevents reuse of the segment meanwhile.
    pub async fn scrub_rows(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        judge: Judge<'_>,
    ) -> Result<Scrubbed, ArrayError> {
        self.compare(segment, first_row, rows, judge, true).await
    }

    async fn compare(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        judge: Judge<'_>,
        rewrite: bool,
    ) -> Result<Scrubbed, ArrayError> {
        self.check_rows(segment, first_row, rows)?;
        let group = self.group_of(segment)?;
        let geometry = group.geometry();
        let index = geometry.index_of(segment);
        let source = &SegmentSource { group: &group, index, excluded: &[] };
        let mut judged = Rows::new(first_row, rows);
        let copies = self.read_copies(source, &judged).await;

        // When every data column was read, it is not read again.
        for role in 0..geometry.data_columns() {
            let held = copies.iter().filter(|copy| copy.role == role).find_map(|c| c.held.as_ref());
            judged.columns.extend(held.map(|buf| IoBuf::copy_of(buf)));
        }
        if judged.columns.len() < geometry.data_columns() {
            self.load_rows(source, &mut judged).await;
        }
        self.judge_rows(source, &mut judged, judge).await;
        // Without a judge nothing can be concluded about unreadable rows.
        if let (false, Some(block)) = (rewrite, judged.damaged.first()) {
            let addr = BlockAddr::new(segment, *block);
            let (have, need) = (copies.len(), geometry.data_columns());
            return Err(ArrayError::Unreadable { addr, blocks: 1, have, need, causes: Vec::new() });
        }

        let mut scrubbed = Scrubbed {
            damaged: judged.damaged_live().map(|b| BlockAddr::new(segment, b)).collect(),
            ..Scrubbed::default()
        };
        let expected = self.all_columns(source, &mut judged).await;
        for copy in &copies {
            let right = &expected[copy.role];
            let mut wrong_blocks = 0;
            for run in wrong_runs(&geometry, &judged, copy, right) {
                if run.is_proved && copy.held.is_some() {
                    wrong_blocks += run.blocks as u64;
                }
                add_mismatches(&mut scrubbed.mismatches, &geometry, first_row, copy, &run);
                if rewrite && self.rewrite_run(source, &judged, copy, right, &run).await {
                    scrubbed.repaired_bytes += run.end_bytes() - run.start_bytes();
                }
            }
            if rewrite {
                copy.member.count_checksum_errors(wrong_blocks);
            }
        }
        scrubbed.mismatches.sort_unstable();
        Ok(scrubbed)
    }

    /// Reads every current copy of every column of the rows.
    async fn read_copies(&self, source: &SegmentSource<'_>, rows: &Rows) -> Vec<ColumnCopy> {
        let geometry = source.group.geometry();
        let mut members: Vec<(usize, Rc<Member>)> = Vec::new();
        for (column, slot) in source.group.slots.borrow().iter().enumerate() {
            let role = source.group.role_of_column(source.index, column);
            let current = slot.iter().filter(|member| member.is_current(source.index));
            members.extend(current.map(|member| (role, member.clone())));
        }
        let reads = members.into_iter().map(|(role, member)| {
            let range = rows.range(&geometry, role);
            async move {
                let held = self.read_member(source, &member, range).await.ok();
                ColumnCopy { role, member, held }
            }
        });
        rt::join_all(reads).await
    }

    /// Rewrites a run of wrong blocks. Returns whether the member accepted it.
    async fn rewrite_run(
        &self,
        source: &SegmentSource<'_>,
        rows: &Rows,
        copy: &ColumnCopy,
        right: &IoBytes,
        run: &WrongRun,
    ) -> bool {
        let geometry = source.group.geometry();
        let rows_start_bytes = rows.range(&geometry, copy.role).start_bytes;
        let range = ColumnRange {
            role: copy.role,
            start_bytes: rows_start_bytes + run.start_bytes(),
            end_bytes: rows_start_bytes + run.end_bytes(),
        };
        let data = right.slice(run.first * BLOCK_LEN, run.blocks * BLOCK_LEN);
        let addr = source.addr_of(&range);
        let held = match (&copy.held, run.is_proved) {
            (None, _) => Held::Nothing,
            (Some(_), true) => Held::Wrong,
            (Some(_), false) => Held::Unproved,
        };
        self.rewrite(source, &copy.member, range, addr, data, held).await
    }
}

/// Adds the rows that a run of wrong blocks touches.
fn add_mismatches(
    mismatches: &mut Vec<Mismatch>,
    geometry: &GroupGeometry,
    first_row: u32,
    copy: &ColumnCopy,
    run: &WrongRun,
) {
    let unit_bytes = geometry.unit_bytes;
    for row in run.start_bytes() / unit_bytes..run.end_bytes().div_ceil(unit_bytes) {
        let mismatch = Mismatch { row: first_row + row as u32, device: copy.member.id };
        if mismatches.last() != Some(&mismatch) {
            mismatches.push(mismatch);
        }
    }
}

/// Runs of blocks of a column that differ from `right`, split where proof begins or ends. Rows with
/// a damaged block are left out: their columns may be the only source for its recovery.
fn wrong_runs(
    geometry: &GroupGeometry,
    rows: &Rows,
    copy: &ColumnCopy,
    right: &IoBytes,
) -> Vec<WrongRun> {
    let differs = |block: usize| {
        let at = block * BLOCK_LEN..(block + 1) * BLOCK_LEN;
        copy.held.as_ref().is_none_or(|held| held[at.clone()] != right[at])
    };
    let per_row = geometry.blocks_per_row();
    let per_unit = (geometry.unit_bytes / BLOCK_BYTES) as usize;
    let damaged_rows: BTreeSet<u32> = rows.damaged.iter().map(|block| block / per_row).collect();
    let mut runs: Vec<WrongRun> = Vec::new();
    for block in 0..rows.rows as usize * per_unit {
        let row = rows.first_row + (block / per_unit) as u32;
        if damaged_rows.contains(&row) || !differs(block) {
            continue;
        }
        let column_offset_bytes =
            u64::from(rows.first_row) * geometry.unit_bytes + block as u64 * BLOCK_BYTES;
        let is_live_data =
            |role: usize| !rows.dead.contains(&geometry.block_at(role, column_offset_bytes));
        // What a dead block should hold is unknown, so parity that covers one may be right.
        let is_proved = if copy.role < geometry.data_columns() {
            is_live_data(copy.role)
        } else {
            (0..geometry.data_columns()).all(is_live_data)
        };
        match runs.last_mut() {
            Some(last) if last.first + last.blocks == block && last.is_proved == is_proved => {
                last.blocks += 1;
            }
            _ => runs.push(WrongRun { first: block, blocks: 1, is_proved }),
        }
    }
    runs
}
