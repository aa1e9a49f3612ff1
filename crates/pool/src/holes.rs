//! Trims and zeroes: changes that leave holes in a volume.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, IoBuf, Operation};
use forebay_rt::sync::Closed;
use forebay_txg::Content;
use forebay_units::{BLOCK_BYTES, Lba};

use crate::volume::VolumeState;
use crate::write_path::Change;
use crate::{Pool, SyncMode};

/// Dirty bytes that a change without data is charged: its place in lists and trees.
const HOLE_CHARGE_BYTES: u64 = 256;

/// Dirty bytes that a hole is charged for each block that a snapshot may have to keep. The journal
/// has its own reserve for each block of a group, and this is as much as that reserve is for.
const SHARED_CHARGE_BYTES: u64 = 1 << 10;

/// What is taken of a zeroing: of its two edges, and the blocks between them up to one.
#[derive(Default)]
pub(crate) struct Zeroed {
    edges: Cell<u8>,
    blocks: Cell<u64>,
}

impl Pool {
    /// Trims. `absorbed`: the blocks up to there a pool before this one has taken, as in
    /// [`Pool::write`].
    pub(crate) async fn trim(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
        absorbed: &Cell<u64>,
    ) -> Result<(), DeviceError> {
        self.check_running(name, Operation::Discard, offset_bytes, len_bytes)?;
        // A trim is advice, so parts of blocks at its edges are left alone.
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let end = (offset_bytes + len_bytes) / BLOCK_BYTES;
        self.absorb_hole(volume, name, (Operation::Discard, fua), first..end, absorbed).await?;
        self.stats.count_trim(len_bytes);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::Discard).await?;
        }
        Ok(())
    }

    /// Zeroes. `absorbed`: what a pool before this one has taken.
    pub(crate) async fn zero(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
        absorbed: &Zeroed,
    ) -> Result<(), DeviceError> {
        self.check_running(name, Operation::WriteZeroes, offset_bytes, len_bytes)?;
        let end_bytes = offset_bytes + len_bytes;
        let inner_first = offset_bytes.next_multiple_of(BLOCK_BYTES).min(end_bytes);
        let inner_end = (end_bytes / BLOCK_BYTES * BLOCK_BYTES).max(inner_first);
        // Parts of blocks at the edges are written; whole blocks between them become holes.
        let edges = [(offset_bytes, inner_first), (inner_end, end_bytes)];
        for (part, (from, to)) in (0..).zip(edges) {
            if from < to && absorbed.edges.get() <= part {
                let zeros = IoBuf::zeroed((to - from) as usize).freeze();
                self.write_part(volume, name, from, zeros, fua).await?;
                absorbed.edges.set(part + 1);
            }
        }
        let (inner, how) =
            (inner_first / BLOCK_BYTES..inner_end / BLOCK_BYTES, Operation::WriteZeroes);
        self.absorb_hole(volume, name, (how, fua), inner, &absorbed.blocks).await?;
        self.stats.count_trim(len_bytes);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::WriteZeroes).await?;
        }
        Ok(())
    }

    /// Takes a hole over some blocks into the open group: those that are not `absorbed` already.
    pub(crate) async fn absorb_hole(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        (operation, fua): (Operation, bool),
        Range { start: first, end }: Range<u64>,
        absorbed: &Cell<u64>,
    ) -> Result<(), DeviceError> {
        let refused = |Closed| {
            let (offset_bytes, len_bytes) = (first * BLOCK_BYTES, (end - first) * BLOCK_BYTES);
            DeviceError::new(name, operation, offset_bytes, len_bytes, ErrorKind::Gone)
        };
        let mut at = first.max(absorbed.get());
        while at < end {
            let (blocks, charge_bytes) = self.hole_step(volume, at, end);
            let demand = volume.demand(charge_bytes, fua);
            let permit = self.dirty.throttle.admit(demand).await.map_err(refused)?;
            self.wait_for_merges(volume, at, at + blocks).await;
            // A snapshot that was taken meanwhile keeps more than was charged.
            let (most_blocks, due_bytes) = self.hole_step(volume, at, end);
            if most_blocks < blocks || due_bytes > charge_bytes {
                continue;
            }
            let change = Change { lba: Lba(at), blocks, content: Content::Zero };
            self.absorb(volume, name, operation, change, permit.forget())?;
            at += blocks;
            absorbed.set(at);
        }
        Ok(())
    }

    /// How many blocks of a hole from `at` to `end` are taken at a time, and the dirty bytes that
    /// they are charged. What a group hands over to snapshots is bounded as its data is.
    fn hole_step(&self, volume: &VolumeState, at: u64, end: u64) -> (u64, u64) {
        if !self.has_versions(volume.id) {
            return (end - at, HOLE_CHARGE_BYTES);
        }
        let most_blocks = (self.dirty.throttle.limit_bytes() / 4 / SHARED_CHARGE_BYTES).max(1);
        let blocks = (end - at).min(most_blocks);
        let shared = self.store.map.borrow().visible_within(volume.id, Lba(at), blocks);
        (blocks, HOLE_CHARGE_BYTES + shared * SHARED_CHARGE_BYTES)
    }
}
