//! The segment table: each segment's state, its live blocks, and when it was filled.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_format::journal::{SegmentRecord, SegmentUse};
use forebay_units::{BlockAddr, CommitId, SegmentId};

/// The content of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentKind {
    /// Blocks of volumes.
    #[default]
    Data,
    /// The map journal.
    Map,
}

/// The state of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentState {
    /// Empty: it may be allocated.
    #[default]
    Free,
    /// Being filled.
    Open,
    /// Full, or left part-filled by a crash.
    Full,
    /// Empty as of this group; free once the root after that group's is committed.
    Emptied(CommitId),
}

/// A segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentInfo {
    /// Its state.
    pub state: SegmentState,
    /// Its content.
    pub kind: SegmentKind,
    /// The stream that filled it.
    pub stream: u8,
    /// Whether its footer is on media.
    pub footer: bool,
    /// Rows written.
    pub rows: u32,
    /// Blocks before its footer; 0 without one.
    pub blocks: u32,
    /// Live blocks.
    pub live: u32,
    /// Live blocks that the syncing group overwrites: they die with its root.
    pub dying: u32,
    /// The group in which it was opened.
    pub birth: u64,
    /// The group in which it was last written.
    pub last: u64,
    /// The pool's write clock (blocks written by the host) when it was opened.
    pub clock: u64,
    /// Whether the cleaner is emptying it.
    pub cleaning: bool,
    /// How many reads keep it from being reused.
    pub(crate) pins: u32,
    changed: bool,
}

/// All segments of a pool.
pub struct SegmentTable {
    segments: RefCell<Vec<SegmentInfo>>,
    free: RefCell<BTreeSet<u32>>,
    data_blocks: RefCell<Vec<(u32, u32)>>,
    cursor: RefCell<u32>,
}

/// Prevents reuse of a segment during a read.
pub struct Pin {
    table: Rc<SegmentTable>,
    segment: SegmentId,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.table.edit(self.segment, |info| info.pins -= 1);
    }
}

impl SegmentTable {
    /// A table without segments.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            segments: RefCell::default(),
            free: RefCell::default(),
            data_blocks: RefCell::default(),
            cursor: RefCell::new(0),
        })
    }

    /// Adds `count` free segments of `data_blocks` blocks each, without the footer.
    pub fn add_group(&self, count: u32, data_blocks: u32) {
        let first = self.segments.borrow().len() as u32;
        let all = first + count;
        self.segments.borrow_mut().resize(all as usize, SegmentInfo::default());
        self.free.borrow_mut().extend(first..all);
        self.data_blocks.borrow_mut().push((all, data_blocks));
    }

    /// Number of segments.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.segments.borrow().len() as u32
    }

    /// Number of free segments.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.free.borrow().len() as u32
    }

    /// Number of segments that become free with the next commits.
    #[must_use]
    pub fn emptied_count(&self) -> u32 {
        let segments = self.segments.borrow();
        segments.iter().filter(|s| matches!(s.state, SegmentState::Emptied(_))).count() as u32
    }

    /// Least blocks of data in a full segment. The length of its footer depends on the data.
    #[must_use]
    pub fn data_blocks(&self, segment: SegmentId) -> u32 {
        let groups = self.data_blocks.borrow();
        groups.iter().find(|(end, _)| segment.0 < *end).map_or(0, |(_, blocks)| *blocks)
    }

    /// Blocks before the footer of `segment`; without a footer, [`SegmentTable::data_blocks`].
    #[must_use]
    pub fn capacity(&self, segment: SegmentId) -> u32 {
        match self.get(segment).blocks {
            0 => self.data_blocks(segment),
            blocks => blocks,
        }
    }

    /// The state of `segment`.
    #[must_use]
    pub fn get(&self, segment: SegmentId) -> SegmentInfo {
        self.segments.borrow()[segment.0 as usize]
    }

    /// Visits every segment.
    pub fn for_each(&self, mut visit: impl FnMut(SegmentId, &SegmentInfo)) {
        for (index, info) in self.segments.borrow().iter().enumerate() {
            visit(SegmentId(index as u32), info);
        }
    }

    pub(crate) fn edit<R>(
        &self,
        segment: SegmentId,
        change: impl FnOnce(&mut SegmentInfo) -> R,
    ) -> R {
        change(&mut self.segments.borrow_mut()[segment.0 as usize])
    }

    /// Allocates the next free segment after the last one allocated, so that writes stay sequential
    /// and wear is even. `None` when at most `keep` segments are free.
    pub fn allocate(
        &self,
        kind: SegmentKind,
        stream: u8,
        commit: CommitId,
        clock: u64,
        keep: u32,
    ) -> Option<SegmentId> {
        let mut free = self.free.borrow_mut();
        if free.len() as u32 <= keep {
            return None;
        }
        let mut cursor = self.cursor.borrow_mut();
        let next = free.range(*cursor..).next().or_else(|| free.iter().next()).copied()?;
        free.remove(&next);
        *cursor = next + 1;
        let segment = SegmentId(next);
        self.edit(segment, |info| {
            *info = SegmentInfo {
                state: SegmentState::Open,
                kind,
                stream,
                birth: commit.0,
                last: commit.0,
                clock,
                changed: true,
                ..SegmentInfo::default()
            };
        });
        Some(segment)
    }

    /// Records that rows were written.
    pub fn wrote(&self, segment: SegmentId, rows: u32, commit: CommitId) {
        self.edit(segment, |info| {
            info.rows = info.rows.max(rows);
            info.last = info.last.max(commit.0);
            info.changed = true;
        });
    }

    /// Marks a segment as full.
    pub fn close(&self, segment: SegmentId, footer: bool) {
        self.edit(segment, |info| {
            info.state = SegmentState::Full;
            info.footer = footer;
            info.changed = true;
        });
    }

    /// Records the number of blocks before a segment's footer.
    pub fn holds(&self, segment: SegmentId, blocks: u32) {
        self.edit(segment, |info| info.blocks = blocks);
    }

    /// Reopens a part-filled segment of the map journal.
    pub fn reopen(&self, segment: SegmentId) {
        self.free.borrow_mut().remove(&segment.0);
        self.edit(segment, |info| {
            info.state = SegmentState::Open;
            info.kind = SegmentKind::Map;
            info.changed = true;
        });
    }

    /// Adds live blocks.
    pub fn add_live(&self, addr: BlockAddr, blocks: u32) {
        self.edit(addr.segment(), |info| info.live += blocks);
    }

    /// Subtracts live blocks.
    pub fn sub_live(&self, addr: BlockAddr, blocks: u32) {
        self.edit(addr.segment(), |info| {
            info.live = info.live.checked_sub(blocks).expect("a block dies once");
        });
    }

    /// Adds blocks that the syncing group overwrites. They stay live until the group is applied to
    /// the map, but are not worth moving.
    pub fn add_dying(&self, addr: BlockAddr, blocks: u32) {
        self.edit(addr.segment(), |info| info.dying += blocks);
    }

    /// Clears the dying blocks, once the group is applied to the map and they are dead.
    pub fn clear_dying(&self) {
        self.segments.borrow_mut().iter_mut().for_each(|info| info.dying = 0);
    }

    /// Segments that are free or will be with the next roots: emptied ones, and full ones whose
    /// live blocks are all dying.
    #[must_use]
    pub fn free_soon(&self) -> u32 {
        let segments = self.segments.borrow();
        let soon = segments.iter().filter(|info| match info.state {
            SegmentState::Free | SegmentState::Emptied(_) => true,
            SegmentState::Full => info.kind == SegmentKind::Data && info.live <= info.dying,
            SegmentState::Open => false,
        });
        soon.count() as u32
    }

    /// The average age of live blocks at write clock `now`, and the share of them younger than
    /// `limit`. A block is as old as its segment.
    #[must_use]
    pub fn live_ages(&self, now: u64, limit: u64) -> (u64, f64) {
        let (mut blocks, mut young, mut ages) = (0u64, 0u64, 0u128);
        for info in self.segments.borrow().iter().filter(|info| info.kind == SegmentKind::Data) {
            let (live, age) = (u64::from(info.live), now.saturating_sub(info.clock));
            blocks += live;
            young += if age < limit { live } else { 0 };
            ages += u128::from(live) * u128::from(age);
        }
        let blocks = blocks.max(1);
        ((ages / u128::from(blocks)) as u64, young as f64 / blocks as f64)
    }

    /// Marks (or unmarks) a segment as being cleaned.
    pub fn set_cleaning(&self, segment: SegmentId, cleaning: bool) {
        self.edit(segment, |info| info.cleaning = cleaning);
    }

    /// Unmarks every segment, so that the cleaner may try all of them again.
    pub fn stop_cleaning(&self) {
        self.segments.borrow_mut().iter_mut().for_each(|info| info.cleaning = false);
    }

    /// Prevents reuse of `segment` until the pin drops.
    #[must_use]
    pub fn pin(self: &Rc<Self>, segment: SegmentId) -> Pin {
        self.edit(segment, |info| info.pins += 1);
        Pin { table: self.clone(), segment }
    }

    /// Marks data segments without live blocks as emptied by `commit`, and returns them.
    pub fn collect_empty(&self, commit: CommitId) -> Vec<SegmentInfo> {
        let mut found = Vec::new();
        for info in self.segments.borrow_mut().iter_mut() {
            let dead = info.live == 0 && info.kind == SegmentKind::Data;
            if dead && info.state == SegmentState::Full {
                found.push(*info);
                info.state = SegmentState::Emptied(commit);
                info.changed = true;
            }
        }
        found
    }

    /// Marks a segment of the map journal as emptied by `commit`.
    pub fn retire_map(&self, segment: SegmentId, commit: CommitId) {
        self.edit(segment, |info| {
            info.state = SegmentState::Emptied(commit);
            info.changed = true;
        });
    }

    /// Segments that root `commit` or an earlier one emptied, and that are not pinned. Roots from
    /// `commit` on do not need them: the caller may discard them and then [`SegmentTable::free`]
    /// them.
    #[must_use]
    pub fn reclaimable(&self, commit: CommitId) -> Vec<SegmentId> {
        let mut found = Vec::new();
        for (index, info) in self.segments.borrow().iter().enumerate() {
            if let SegmentState::Emptied(emptied) = info.state {
                if emptied <= commit && info.pins == 0 {
                    found.push(SegmentId(index as u32));
                }
            }
        }
        found
    }

    /// Makes an emptied segment free.
    pub fn free(&self, segment: SegmentId) {
        self.edit(segment, |info| {
            assert!(matches!(info.state, SegmentState::Emptied(_)) && info.pins == 0, "in use");
            *info = SegmentInfo { changed: true, ..SegmentInfo::default() };
        });
        self.free.borrow_mut().insert(segment.0);
    }

    /// Whether a segment can be allocated.
    #[must_use]
    pub fn is_free(&self, segment: SegmentId) -> bool {
        self.free.borrow().contains(&segment.0)
    }

    /// Prevents allocation of a free segment until [`SegmentTable::let_go`]. Returns false when the
    /// segment is not free or is held already.
    #[must_use]
    pub fn hold(&self, segment: SegmentId) -> bool {
        self.free.borrow_mut().remove(&segment.0)
    }

    /// Allows allocation of a held segment again.
    pub fn let_go(&self, segment: SegmentId) {
        assert!(self.get(segment).state == SegmentState::Free, "a held segment was allocated");
        self.free.borrow_mut().insert(segment.0);
    }

    /// Records of the segments that changed since the last call; with `all`, of every segment in
    /// use.
    #[must_use]
    pub fn take_records(&self, all: bool) -> Vec<SegmentRecord> {
        let mut records = Vec::new();
        for (index, info) in self.segments.borrow_mut().iter_mut().enumerate() {
            let in_use = !matches!(info.state, SegmentState::Free);
            if !(info.changed || (all && in_use)) {
                continue;
            }
            info.changed = false;
            let kind = match (info.state, info.kind) {
                (SegmentState::Free | SegmentState::Emptied(_), _) => SegmentUse::Free,
                (_, SegmentKind::Data) => SegmentUse::Data,
                (_, SegmentKind::Map) => SegmentUse::Map,
            };
            records.push(SegmentRecord {
                segment: SegmentId(index as u32),
                kind,
                stream: info.stream,
                footer: info.footer,
                rows: info.rows,
                blocks: info.blocks,
                birth: info.birth,
                last: info.last,
                clock: info.clock,
            });
        }
        records
    }

    /// Loads a record of the journal at import; the last record of each segment counts. Returns
    /// false when the table has no such segment.
    pub fn load_record(&self, record: &SegmentRecord) -> bool {
        if record.segment.0 >= self.count() {
            return false;
        }
        if record.kind == SegmentUse::Free {
            self.free.borrow_mut().insert(record.segment.0);
            // The rows of its last use are not those of the next, which may begin without a record.
            self.edit(record.segment, |info| *info = SegmentInfo::default());
            return true;
        }
        self.free.borrow_mut().remove(&record.segment.0);
        self.edit(record.segment, |info| {
            *info = SegmentInfo {
                state: SegmentState::Full,
                kind: match record.kind {
                    SegmentUse::Map => SegmentKind::Map,
                    SegmentUse::Data | SegmentUse::Free => SegmentKind::Data,
                },
                stream: record.stream,
                footer: record.footer,
                rows: record.rows,
                blocks: record.blocks,
                birth: record.birth,
                last: record.last,
                clock: record.clock,
                ..SegmentInfo::default()
            };
        });
        true
    }
}
