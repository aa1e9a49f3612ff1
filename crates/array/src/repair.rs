//! Making members hold what they should: one block, whole rows, a whole column.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, SegmentId};

use crate::Array;
use crate::error::ArrayError;
use crate::event::ArrayEvent;
use crate::geometry::{ColumnRange, GroupGeometry};
use crate::member::Member;
use crate::read::ColumnReads;
use crate::write::encode;

/// What someone who knows the checksums says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockVerdict {
    /// Live, and right.
    Good,
    /// Live, and wrong.
    Bad,
    /// Nobody refers to it: whatever it holds will do.
    Dead,
}

/// Says of a block at an address whether it is right.
pub type Judge<'a> = &'a dyn Fn(BlockAddr, &[u8]) -> BlockVerdict;

/// Columns of a row that do not fit the rest, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mismatch {
    /// The row.
    pub row: u32,
    /// The member whose column it is.
    pub device: DeviceId,
}

/// What scrubbing found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Columns that did not fit, by row.
    pub mismatches: Vec<Mismatch>,
    /// Bytes that were rewritten.
    pub repaired_bytes: u64,
    /// Live blocks of which no version is right.
    pub damaged: Vec<BlockAddr>,
}

/// What rebuilding did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Members that hold the segment now.
    pub members: Vec<DeviceId>,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Live blocks that were wrong as read and came back from other columns.
    pub recovered: Vec<BlockAddr>,
    /// Live blocks of which no version is right.
    pub damaged: Vec<BlockAddr>,
}

/// Data columns of some rows, judged.
struct Rows {
    first_row: u32,
    rows: u32,
    columns: Vec<IoBuf>,
    /// Blocks that nobody refers to.
    dead: BTreeSet<u32>,
    /// Blocks that were wrong and are right now.
    recovered: BTreeSet<u32>,
    /// Blocks that are not to be had.
    damaged: BTreeSet<u32>,
}

impl Rows {
    /// Damage that somebody misses.
    fn damaged_live(&self) -> impl Iterator<Item = u32> + '_ {
        self.damaged.iter().copied().filter(|block| !self.dead.contains(block))
    }

    fn range(&self, geometry: &GroupGeometry, role: usize) -> ColumnRange {
        let start_bytes = u64::from(self.first_row) * geometry.unit_bytes;
        let end_bytes = start_bytes + u64::from(self.rows) * geometry.unit_bytes;
        ColumnRange { role, start_bytes, end_bytes }
    }
}

/// Rows that rebuilding takes at a time, by the bytes of their columns.
const REBUILD_COLUMN_BYTES: u64 = 1 << 20;

impl Array {
    /// Rewrites one block with its right content on every member that should hold it and does
    /// not. Says how many members were rewritten. The caller has checked `data`, and keeps the
    /// segment from being reused meanwhile.
    pub async fn repair(&self, addr: BlockAddr, data: &[u8]) -> Result<usize, ArrayError> {
        assert_eq!(data.len(), BLOCK_LEN, "a block is repaired whole");
        let group = self.group_of(addr.segment())?;
        let geometry = group.geometry();
        let limit = geometry.blocks_per_segment();
        if addr.block() >= limit {
            let (segment, first) = (addr.segment(), addr.block());
            return Err(ArrayError::OutOfRange { segment, first, count: 1, limit });
        }
        let index = geometry.index_of(addr.segment());
        let place = ColumnReads { group: &group, index, bad: &[] };
        let (role, start_bytes) = geometry.locate(addr.block());
        let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
        let right = IoBuf::copy_of(data).freeze();
        let mut repaired = 0;
        for member in group.sources(index, role) {
            let readable = match self.read_member(&place, &member, range).await {
                Ok(held) if held[..] == *data => continue,
                Ok(_) => {
                    member.count_checksum_errors(1);
                    true
                }
                Err(_) => false,
            };
            let rewritten =
                self.rewrite(&place, &member, range, addr, right.clone(), readable).await;
            repaired += usize::from(rewritten);
        }
        Ok(repaired)
    }

    /// Writes what a member should hold; says whether it took it. What was not `readable` is read
    /// back: a device that cannot read what it has just written is failed, unless it is needed.
    async fn rewrite(
        &self,
        place: &ColumnReads<'_>,
        member: &Rc<Member>,
        range: ColumnRange,
        addr: BlockAddr,
        data: IoBytes,
        readable: bool,
    ) -> bool {
        if !member.is_writable() || self.frozen.get() {
            return false;
        }
        let len_bytes = data.len() as u64;
        let offset_bytes =
            place.group.geometry().column_start_bytes(place.index) + range.start_bytes;
        let writes = vec![(member.clone(), data)];
        let failed =
            !self.write_columns(place.group, place.index, offset_bytes, writes).await.is_empty();
        if failed {
            return false;
        }
        if !readable && let Err(cause) = self.read_member(place, member, range).await {
            self.fault_for(place.group, member, cause);
            return false;
        }
        self.events.push(ArrayEvent::Repaired { device: member.id, addr, len_bytes });
        true
    }

    /// Compares all columns of some rows with each other. It cannot tell who is right: a member
    /// is named when it differs from what the first columns that could be read make of its own.
    pub async fn check_parity(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
    ) -> Result<Vec<Mismatch>, ArrayError> {
        let anything = |_: BlockAddr, _: &[u8]| BlockVerdict::Dead;
        Ok(self.compare(segment, first_row, rows, &anything, false).await?.mismatches)
    }

    /// Reads every column of some rows, has the data judged, brings wrong blocks back from other
    /// columns, and rewrites every column (data, parity, copies) that is not what it should be.
    /// The caller keeps the segment from being reused meanwhile, and names rows that were written.
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
        let place = &ColumnReads { group: &group, index: geometry.index_of(segment), bad: &[] };
        let mut judged = Rows {
            first_row,
            rows,
            columns: Vec::new(),
            dead: BTreeSet::new(),
            recovered: BTreeSet::new(),
            damaged: BTreeSet::new(),
        };
        let copies: Vec<(usize, Rc<Member>)> = {
            let slots = group.slots.borrow();
            let mut copies = Vec::new();
            for (column, slot) in slots.iter().enumerate() {
                let role = group.role_of_column(place.index, column);
                let current = slot.iter().filter(|member| member.is_current(place.index));
                copies.extend(current.map(|member| (role, member.clone())));
            }
            copies
        };
        let reads = copies.iter().map(|(role, member)| {
            let range = judged.range(&geometry, *role);
            async move { self.read_member(place, member, range).await.ok() }
        });
        let held: Vec<Option<IoBuf>> = rt::join_all(reads).await;

        // When every data column was read, it is not read again.
        for role in 0..geometry.data_columns() {
            let copy = copies.iter().zip(&held).find(|((r, _), held)| *r == role && held.is_some());
            if let Some((_, Some(buf))) = copy {
                judged.columns.push(IoBuf::copy_of(buf));
            }
        }
        if judged.columns.len() < geometry.data_columns() {
            self.load_rows(place, &mut judged).await;
        }
        self.judge_rows(place, &mut judged, judge).await;
        // Without a judge nothing can be said of rows that cannot be read.
        if let (false, Some(block)) = (rewrite, judged.damaged.first()) {
            let addr = BlockAddr::new(segment, *block);
            let (have, need) = (copies.len(), geometry.data_columns());
            return Err(ArrayError::Unreadable { addr, blocks: 1, have, need, causes: Vec::new() });
        }

        let mut scrubbed = Scrubbed {
            damaged: judged.damaged_live().map(|b| BlockAddr::new(segment, b)).collect(),
            ..Scrubbed::default()
        };
        let expected = self.all_columns(place, &mut judged).await;
        for ((role, member), held) in copies.iter().zip(&held) {
            let differs = |block: usize| match held {
                Some(held) => {
                    let at = block * BLOCK_LEN;
                    held[at..at + BLOCK_LEN] != expected[*role][at..at + BLOCK_LEN]
                }
                None => true,
            };
            let doubts = self.doubts(&geometry, &judged, *role, differs);
            let mut wrong = 0;
            for doubt in &doubts {
                if doubt.live && held.is_some() {
                    wrong += doubt.blocks as u64;
                }
                let at_bytes = doubt.first as u64 * BLOCK_BYTES;
                let end_bytes = at_bytes + doubt.blocks as u64 * BLOCK_BYTES;
                let rows = at_bytes / geometry.unit_bytes..end_bytes.div_ceil(geometry.unit_bytes);
                for row in rows {
                    let mismatch = Mismatch { row: first_row + row as u32, device: member.id };
                    if scrubbed.mismatches.last() != Some(&mismatch) {
                        scrubbed.mismatches.push(mismatch);
                    }
                }
                if rewrite {
                    let whole = judged.range(&geometry, *role);
                    let start_bytes = whole.start_bytes + at_bytes;
                    let range = ColumnRange {
                        role: *role,
                        start_bytes,
                        end_bytes: whole.start_bytes + end_bytes,
                    };
                    let data =
                        expected[*role].slice(doubt.first * BLOCK_LEN, doubt.blocks * BLOCK_LEN);
                    let row = (start_bytes / geometry.unit_bytes) as u32;
                    let addr = BlockAddr::new(segment, row * geometry.blocks_per_row());
                    if self.rewrite(place, member, range, addr, data, held.is_some()).await {
                        scrubbed.repaired_bytes += end_bytes - at_bytes;
                    }
                }
            }
            if rewrite {
                member.count_checksum_errors(wrong);
            }
        }
        scrubbed.mismatches.sort_unstable();
        Ok(scrubbed)
    }

    /// Runs of blocks of a column that differ, cut where liveness changes. Rows with a block that
    /// is not to be had are left alone: what they hold may be all there is to recover it from.
    fn doubts(
        &self,
        geometry: &GroupGeometry,
        rows: &Rows,
        role: usize,
        differs: impl Fn(usize) -> bool,
    ) -> Vec<Doubt> {
        let per_row = geometry.blocks_per_row();
        let per_unit = (geometry.unit_bytes / BLOCK_BYTES) as usize;
        let damaged_rows: BTreeSet<u32> =
            rows.damaged.iter().map(|block| block / per_row).collect();
        let mut doubts: Vec<Doubt> = Vec::new();
        for block in 0..rows.rows as usize * per_unit {
            let row = rows.first_row + (block / per_unit) as u32;
            if damaged_rows.contains(&row) || !differs(block) {
                continue;
            }
            // Parity is live when anything is that it was computed from.
            let column_offset_bytes =
                u64::from(rows.first_row) * geometry.unit_bytes + block as u64 * BLOCK_BYTES;
            let live_data =
                |role: usize| !rows.dead.contains(&geometry.block_at(role, column_offset_bytes));
            let live = if role < geometry.data_columns() {
                live_data(role)
            } else {
                (0..geometry.data_columns()).any(live_data)
            };
            match doubts.last_mut() {
                Some(last) if last.first + last.blocks == block && last.live == live => {
                    last.blocks += 1;
                }
                _ => doubts.push(Doubt { first: block, blocks: 1, live }),
            }
        }
        doubts
    }

    /// Every column of judged rows, parity computed. Takes the data columns out of `rows`.
    async fn all_columns(&self, place: &ColumnReads<'_>, rows: &mut Rows) -> Vec<IoBytes> {
        let columns = std::mem::take(&mut rows.columns);
        let mut columns: Vec<IoBytes> = columns.into_iter().map(IoBuf::freeze).collect();
        if let Some(kernel) = &place.group.kernel {
            columns.extend(encode(kernel, &columns).await);
        }
        columns
    }

    /// Reads the data columns of rows, from parity where needed; block by block when devices
    /// fail in several places. Blocks that are not to be had are zeros, and damaged.
    async fn load_rows(&self, place: &ColumnReads<'_>, rows: &mut Rows) {
        let geometry = place.group.geometry();
        let ranges: Vec<ColumnRange> =
            (0..geometry.data_columns()).map(|role| rows.range(&geometry, role)).collect();
        if let Ok(pieces) = self.load(place, &ranges).await {
            rows.columns = pieces.into_iter().map(crate::read::ColumnPart::into_buf).collect();
            return;
        }
        let first_block = rows.first_row * geometry.blocks_per_row();
        let blocks = rows.rows * geometry.blocks_per_row();
        let len = (ranges[0].end_bytes - ranges[0].start_bytes) as usize;
        rows.columns = ranges.iter().map(|_| IoBuf::zeroed(len)).collect();
        for block in first_block..first_block + blocks {
            let (role, start_bytes) = geometry.locate(block);
            let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
            match self.load(place, &[range]).await {
                Ok(pieces) => {
                    let at = (start_bytes - ranges[role].start_bytes) as usize;
                    rows.columns[role][at..at + BLOCK_LEN].copy_from_slice(pieces[0].bytes());
                }
                Err(_) => {
                    rows.damaged.insert(block);
                }
            }
        }
    }

    /// Has every block judged; wrong ones are replaced by the version that is right.
    async fn judge_rows(&self, place: &ColumnReads<'_>, rows: &mut Rows, judge: Judge<'_>) {
        let geometry = place.group.geometry();
        let segment = geometry.segment_at(place.index);
        let first_block = rows.first_row * geometry.blocks_per_row();
        let start_bytes = u64::from(rows.first_row) * geometry.unit_bytes;
        for block in first_block..first_block + rows.rows * geometry.blocks_per_row() {
            let addr = BlockAddr::new(segment, block);
            let (role, column_offset_bytes) = geometry.locate(block);
            let at = (column_offset_bytes - start_bytes) as usize;
            match judge(addr, &rows.columns[role][at..at + BLOCK_LEN]) {
                // Zeros in place of what could not be read may be what was there.
                BlockVerdict::Good => {
                    rows.damaged.remove(&block);
                }
                BlockVerdict::Dead => {
                    rows.dead.insert(block);
                }
                BlockVerdict::Bad => {
                    let right = match self.alternatives(addr).await {
                        Ok(mut all) => all.find(|data| judge(addr, data) == BlockVerdict::Good),
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

    /// Gives a segment's column back to every member that can be written and misses it: `rows`
    /// from the start, those that were written. The data are judged on the way. The caller keeps
    /// the segment from being reused meanwhile; new rows may be written.
    pub async fn rebuild_segment(
        &self,
        segment: SegmentId,
        rows: u32,
        judge: Judge<'_>,
    ) -> Result<Rebuilt, ArrayError> {
        let mut rebuilding = self.begin_rebuild(segment, rows)?;
        while self.rebuild_more(&mut rebuilding, judge).await? {}
        Ok(rebuilding.end())
    }

    /// Begins what [`Array::rebuild_segment`] does in one go. Between its steps the caller need not
    /// keep the segment from being reused, when it looks before each, and before the end, whether
    /// that has happened.
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

    /// Rebuilds some more rows; says whether any are left.
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
        let place = &ColumnReads { group: &group, index: *index, bad: &[] };
        let step = (REBUILD_COLUMN_BYTES / geometry.unit_bytes).max(1) as u32;
        let mut judged = Rows {
            first_row: *next_row,
            rows: step.min(*rows - *next_row),
            columns: Vec::new(),
            dead: BTreeSet::new(),
            recovered: BTreeSet::new(),
            damaged: BTreeSet::new(),
        };
        self.load_rows(place, &mut judged).await;
        self.judge_rows(place, &mut judged, judge).await;
        let address = |block: u32| BlockAddr::new(*segment, block);
        rebuilt.recovered.extend(judged.recovered.iter().copied().map(address));
        rebuilt.damaged.extend(judged.damaged_live().map(address));
        let columns = self.all_columns(place, &mut judged).await;
        let offset_bytes =
            geometry.column_start_bytes(*index) + u64::from(*next_row) * geometry.unit_bytes;
        targets.retain(|(_, member, mark)| member.rebuild_mark() == *mark);
        let writes: Vec<(Rc<Member>, IoBytes)> = targets
            .iter()
            .map(|(role, member, _)| (member.clone(), columns[*role].clone()))
            .collect();
        let bytes = writes.len() as u64 * columns[0].len() as u64;
        self.write_columns(&group, *index, offset_bytes, writes).await;
        rebuilt.written_bytes += bytes;
        *next_row += judged.rows;
        Ok(*next_row < *rows)
    }
}

/// A segment's column on its way back to the members that miss it.
pub struct Rebuilding {
    segment: SegmentId,
    index: u32,
    next_row: u32,
    rows: u32,
    /// Their roles, and what must not have happened to them until the end.
    targets: Vec<(usize, Rc<Member>, (u64, u64))>,
    rebuilt: Rebuilt,
}

impl Rebuilding {
    /// All rows were rebuilt, and the segment is still what it was: the members that took
    /// everything hold it from here on.
    #[must_use]
    pub fn end(mut self) -> Rebuilt {
        for (_, member, mark) in self.targets {
            if member.mark_rebuilt(self.index, mark) {
                self.rebuilt.members.push(member.id);
            }
        }
        self.rebuilt
    }

    /// What was done so far, of one that is given up.
    #[must_use]
    pub fn give_up(self) -> Rebuilt {
        self.rebuilt
    }
}

/// Blocks of a column that are not what they should be.
struct Doubt {
    first: usize,
    blocks: usize,
    live: bool,
}
