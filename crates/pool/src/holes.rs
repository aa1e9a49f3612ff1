//! Trims and zeroes: changes that leave holes in a volume.

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

impl Pool {
    pub(crate) async fn trim(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.check_running(name, Operation::Discard, offset_bytes, len_bytes)?;
        // A trim is advice, so parts of blocks at its edges are left alone.
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let end = (offset_bytes + len_bytes) / BLOCK_BYTES;
        if first < end {
            self.absorb_hole(volume, name, Operation::Discard, first, end).await?;
        }
        self.stats.count_trim(len_bytes);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::Discard).await?;
        }
        Ok(())
    }

    pub(crate) async fn zero(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.check_running(name, Operation::WriteZeroes, offset_bytes, len_bytes)?;
        let end_bytes = offset_bytes + len_bytes;
        let inner_first = offset_bytes.next_multiple_of(BLOCK_BYTES).min(end_bytes);
        let inner_end = (end_bytes / BLOCK_BYTES * BLOCK_BYTES).max(inner_first);
        // Parts of blocks at the edges are written; whole blocks between them become holes.
        for (from, to) in [(offset_bytes, inner_first), (inner_end, end_bytes)] {
            if from < to {
                let zeros = IoBuf::zeroed((to - from) as usize).freeze();
                self.write(volume, name, from, zeros, false).await?;
            }
        }
        if inner_first < inner_end {
            let (first, end) = (inner_first / BLOCK_BYTES, inner_end / BLOCK_BYTES);
            self.absorb_hole(volume, name, Operation::WriteZeroes, first, end).await?;
        }
        self.stats.count_trim(len_bytes);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::WriteZeroes).await?;
        }
        Ok(())
    }

    /// Takes a hole over the blocks from `first` up to `end` into the open group.
    async fn absorb_hole(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        operation: Operation,
        first: u64,
        end: u64,
    ) -> Result<(), DeviceError> {
        let blocks = end - first;
        let refused = |Closed| {
            let (offset_bytes, len_bytes) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
            DeviceError::new(name, operation, offset_bytes, len_bytes, ErrorKind::Gone)
        };
        let permit = self.dirty.throttle.admit(HOLE_CHARGE_BYTES).await.map_err(refused)?;
        self.wait_for_merges(volume, first, end).await;
        let change = Change { lba: Lba(first), blocks, content: Content::Zero };
        self.absorb(volume, name, operation, change, permit.forget())
    }
}
