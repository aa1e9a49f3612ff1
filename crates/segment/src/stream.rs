//! A stream: blocks that fill one segment after the other, written in whole rows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_array::{Array, ArrayError, GroupGeometry, RowBatch, WriteKind};
use forebay_device::IoBytes;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BlockAddr, CommitId, SegmentId};

use crate::error::SegmentError;
use crate::{SegmentKind, SegmentTable};

/// Rows of one write per device.
pub const BATCH_ROWS: u32 = 16;

/// Writes in flight to the array, over all streams of a pool: limited, and awaited together.
pub struct InFlight {
    limit_bytes: Cell<u64>,
    /// Bytes of the writes that are under way now, and most since they were last asked for.
    bytes: Cell<u64>,
    peak_bytes: Cell<u64>,
    /// Notified when the first write begins, when one ends, and when the limit rises.
    changed: Rc<Notify>,
    failed: RefCell<Option<ArrayError>>,
}

impl InFlight {
    /// A limit of `limit_bytes` of data in flight.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            limit_bytes: Cell::new(limit_bytes),
            bytes: Cell::new(0),
            peak_bytes: Cell::new(0),
            changed: Notify::new(),
            failed: RefCell::default(),
        })
    }

    /// Sets the limit for writes that have not begun.
    pub fn set_limit(&self, limit_bytes: u64) {
        let before = self.limit_bytes.replace(limit_bytes);
        if limit_bytes > before {
            self.changed.notify_all();
        }
    }

    /// Most bytes under way at a time since the last call.
    pub fn take_peak_bytes(&self) -> u64 {
        self.peak_bytes.replace(self.bytes.get())
    }

    /// Waits until a write is under way.
    pub async fn until_busy(&self) {
        self.changed.until(|| !self.is_empty()).await;
    }

    async fn start(self: &Rc<Self>, array: &Rc<Array>, batch: RowBatch, bytes: u64) {
        // A write longer than the limit goes alone.
        let has_room = || self.is_empty() || self.bytes.get() + bytes <= self.limit_bytes.get();
        self.changed.until(has_room).await;
        let was_idle = self.is_empty();
        self.bytes.set(self.bytes.get() + bytes);
        self.peak_bytes.set(self.peak_bytes.get().max(self.bytes.get()));
        if was_idle {
            self.changed.notify_all();
        }
        let (this, array) = (self.clone(), array.clone());
        rt::spawn(async move {
            let outcome = array.write_batch(batch).await;
            if let Err(error) = outcome {
                this.failed.borrow_mut().get_or_insert(error);
            }
            this.bytes.set(this.bytes.get() - bytes);
            this.changed.notify_all();
        });
    }

    /// Whether no write is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.get() == 0
    }

    /// Waits until every write has completed. Returns the first failure since the last call, if
    /// any.
    pub async fn drain(&self) -> Result<(), ArrayError> {
        self.changed.until(|| self.is_empty()).await;
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

struct OpenSegment {
    id: SegmentId,
    geometry: GroupGeometry,
    next_block: u32,
    /// Whether every block is written a second time, in the second half.
    doubled: bool,
    /// The batch being filled, and its first block.
    batch: Option<(RowBatch, u32)>,
}

impl OpenSegment {
    /// Rows for blocks of the stream, without their copies.
    fn rows(&self) -> u32 {
        if self.doubled { self.geometry.doubled_rows() } else { self.geometry.rows() }
    }

    fn blocks_left(&self) -> u32 {
        self.rows() * self.geometry.blocks_per_row() - self.next_block
    }
}

/// One open segment at a time, filled block by block.
pub(crate) struct RowStream {
    pub(crate) array: Rc<Array>,
    pub(crate) table: Rc<SegmentTable>,
    in_flight: Rc<InFlight>,
    kind: SegmentKind,
    stream: u8,
    open: Option<OpenSegment>,
}

impl RowStream {
    pub(crate) fn new(
        array: Rc<Array>,
        table: Rc<SegmentTable>,
        in_flight: Rc<InFlight>,
        kind: SegmentKind,
        stream: u8,
    ) -> Self {
        Self { array, table, in_flight, kind, stream, open: None }
    }

    pub(crate) fn segment(&self) -> Option<SegmentId> {
        self.open.as_ref().map(|open| open.id)
    }

    /// Allocates a new segment; the old one must be closed.
    pub(crate) fn open_segment(
        &mut self,
        commit: CommitId,
        clock: u64,
        keep: u32,
    ) -> Result<SegmentId, SegmentError> {
        let id = self.table.allocate(self.kind, self.stream, commit, clock, keep);
        let id = id.ok_or(SegmentError::NoSpace)?;
        self.adopt(id);
        Ok(id)
    }

    /// Continues in a segment that is allocated already.
    pub(crate) fn adopt(&mut self, id: SegmentId) {
        self.adopt_at(id, 0, None);
    }

    /// Continues in a segment from a block at a row's border. A segment stays doubled, or not, as
    /// it was begun.
    pub(crate) fn adopt_at(&mut self, id: SegmentId, next_block: u32, doubled: Option<bool>) {
        assert!(self.open.is_none(), "the last segment is still open");
        let geometry = self.array.geometry_of(id).expect("the table knows the array's segments");
        assert!(next_block % geometry.blocks_per_row() == 0, "not a row's border");
        // Without redundancy, one bad sector in the map journal would lose the pool.
        let doubled =
            doubled.unwrap_or(self.kind == SegmentKind::Map && !geometry.has_redundancy());
        let filled = geometry.doubled_rows();
        let doubled = doubled && filled > 0 && next_block <= filled * geometry.blocks_per_row();
        self.open = Some(OpenSegment { id, geometry, next_block, doubled, batch: None });
    }

    pub(crate) fn blocks_left(&self) -> u32 {
        self.open.as_ref().map_or(0, OpenSegment::blocks_left)
    }

    /// Whether every block is written a second time.
    pub(crate) fn is_doubled(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.doubled)
    }

    /// Blocks until the end of the current row; 0 at a row's border.
    pub(crate) fn blocks_to_row_end(&self) -> u32 {
        let Some(open) = &self.open else { return 0 };
        let per_row = open.geometry.blocks_per_row();
        (per_row - open.next_block % per_row) % per_row
    }

    /// The address of the next block.
    pub(crate) fn position(&self) -> Option<BlockAddr> {
        let open = self.open.as_ref()?;
        (open.blocks_left() > 0).then(|| BlockAddr::new(open.id, open.next_block))
    }

    /// Puts one block; `None` is zeros. The segment must have room.
    pub(crate) async fn put(&mut self, block: Option<IoBytes>, commit: CommitId) -> BlockAddr {
        let open = self.open.as_mut().expect("a segment is open");
        let per_row = open.geometry.blocks_per_row();
        if open.batch.is_none() {
            let row = open.next_block / per_row;
            let rows = BATCH_ROWS.min(open.rows() - row);
            let why = match (self.kind, crate::Classes::is_user(self.stream)) {
                (SegmentKind::Map, _) => WriteKind::Map,
                (SegmentKind::Data, true) => WriteKind::User,
                (SegmentKind::Data, false) => WriteKind::Cleaning,
            };
            let batch = self.array.begin_batch(open.id, row, rows, why);
            let batch = batch.expect("rows of an open segment are there");
            open.batch = Some((batch, open.next_block));
        }
        let (batch, first) = open.batch.as_mut().expect("just made");
        if let Some(block) = block {
            batch.put(open.next_block - *first, block);
        }
        let addr = BlockAddr::new(open.id, open.next_block);
        open.next_block += 1;
        let filled = open.next_block - *first;
        if filled == batch.blocks() {
            self.issue(commit).await;
        }
        addr
    }

    /// Issues the current batch, which must end at a row's border.
    pub(crate) async fn issue(&mut self, commit: CommitId) {
        let Some(open) = self.open.as_mut() else { return };
        let Some((mut batch, first)) = open.batch.take() else { return };
        let per_row = open.geometry.blocks_per_row();
        let blocks = open.next_block - first;
        assert!(blocks % per_row == 0, "a row is not full");
        batch.truncate_rows(blocks / per_row);
        let rows = open.next_block / per_row;
        let copied = if open.doubled { open.geometry.doubled_rows() } else { 0 };
        self.table.wrote(open.id, rows + copied, commit);
        let bytes = u64::from(blocks) * forebay_units::BLOCK_BYTES;
        if open.doubled {
            let copy = batch.copied().expect("rows of a doubled segment have copies");
            self.in_flight.start(&self.array, copy, bytes).await;
        }
        self.in_flight.start(&self.array, batch, bytes).await;
    }

    /// Closes the segment. Every row must be issued.
    pub(crate) fn close(&mut self, footer: bool) {
        if let Some(open) = self.open.take() {
            assert!(open.batch.is_none(), "rows were left behind");
            self.table.close(open.id, footer);
        }
    }
}
