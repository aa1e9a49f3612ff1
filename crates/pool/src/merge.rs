//! Merging: a write of parts of blocks becomes a write of whole blocks.

use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba};

use crate::Pool;
use crate::volume::VolumeState;

impl Pool {
    /// Waits until no write merges one of these blocks.
    pub(crate) async fn wait_for_merges(&self, volume: &Rc<VolumeState>, first: u64, end: u64) {
        let clear = || volume.is_free_of_merges(first, end);
        if !clear() {
            volume.merged.until(clear).await;
        }
    }

    /// Lets no write read the rest of its blocks until the guard drops, and waits for those that
    /// have: they would bring back what the volume is about to lose.
    pub(crate) async fn stop_merges(&self, volume: &Rc<VolumeState>) -> MergeStop {
        volume.merge_stops.set(volume.merge_stops.get() + 1);
        let stop = MergeStop { volume: volume.clone() };
        self.wait_for_merges(volume, 0, u64::MAX).await;
        stop
    }

    /// Reads the blocks that `data` covers in part, and lays `data` over them. The blocks stay
    /// locked until the guard drops.
    pub(crate) async fn merge(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: &IoBytes,
    ) -> Result<(IoBytes, MergeLocks), DeviceError> {
        let end_bytes = offset_bytes + data.len() as u64;
        let first = offset_bytes / BLOCK_BYTES;
        let end = end_bytes.div_ceil(BLOCK_BYTES);
        let may_begin = || volume.merge_stops.get() == 0 && volume.is_free_of_merges(first, end);
        if !may_begin() {
            volume.merged.until(may_begin).await;
        }
        // A shrink waits for merges past the new end, so none may begin there.
        let size_bytes = volume.size_bytes.get();
        if end > Self::blocks_of(size_bytes) {
            let (len_bytes, kind) = (data.len() as u64, ErrorKind::OutOfRange { size_bytes });
            return Err(DeviceError::new(name, Operation::Write, offset_bytes, len_bytes, kind));
        }
        let mut edges = Vec::new();
        if offset_bytes % BLOCK_BYTES != 0 {
            edges.push(first);
        }
        if end_bytes % BLOCK_BYTES != 0 && edges.last() != Some(&(end - 1)) {
            edges.push(end - 1);
        }
        // The blocks between the edges are locked too: this write will replace them whole.
        volume.merging.borrow_mut().extend(first..end);
        let locks = MergeLocks { volume: volume.clone(), blocks: (first..end).collect() };
        let mut whole = IoBuf::zeroed((end - first) as usize * BLOCK_LEN);
        for block in edges {
            let old = IoBuf::zeroed(BLOCK_LEN);
            let old = self.read_blocks(volume, name, Lba(block), old).await?;
            let at = (block - first) as usize * BLOCK_LEN;
            whole[at..at + BLOCK_LEN].copy_from_slice(&old);
        }
        let skip = (offset_bytes - first * BLOCK_BYTES) as usize;
        whole[skip..skip + data.len()].copy_from_slice(data);
        Ok((whole.freeze(), locks))
    }
}

/// While it is there, no write of a volume reads the rest of its blocks.
pub(crate) struct MergeStop {
    volume: Rc<VolumeState>,
}

impl Drop for MergeStop {
    fn drop(&mut self) {
        self.volume.merge_stops.set(self.volume.merge_stops.get() - 1);
        self.volume.merged.notify_all();
    }
}

/// Blocks of a volume that a write is merging. They are free again when it drops.
pub(crate) struct MergeLocks {
    volume: Rc<VolumeState>,
    blocks: Vec<u64>,
}

impl Drop for MergeLocks {
    fn drop(&mut self) {
        let mut merging = self.volume.merging.borrow_mut();
        for block in &self.blocks {
            merging.remove(block);
        }
        drop(merging);
        self.volume.merged.notify_all();
    }
}
