//! The corridor of a write: admitted, absorbed into the open group, and (when it must be durable)
//! appended to the log before it is answered. `docs/write-path.md` walks the same steps.

use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_intent_log::Record;
use forebay_rt as rt;
use forebay_txg::Content;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba, TxgId};

use crate::volume::{VolumeState, record_bytes};
use crate::{Pool, SyncMode};

/// One change of a volume, in whole blocks.
struct Change {
    lba: Lba,
    blocks: u64,
    content: Content,
}

/// What a change without data is charged for: its place in lists and trees.
const RECORD_BYTES: u64 = 256;

/// Zeroing goes to the log in records of at most this many blocks.
const ZERO_RECORD_BLOCKS: u64 = 1 << 31;

impl Pool {
    pub(crate) async fn write(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let begun = rt::now();
        let len_bytes = data.len() as u64;
        self.check_running(name, Operation::Write, offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        // One that takes more of the dirty limit than this is taken in parts: a group has room for
        // the limit, and whoever waits for a large part of it may wait for a commit that nobody asks
        // for.
        let most = (self.throttle.limit_bytes() / 4 / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        let mut done = 0;
        while done < len_bytes {
            let at = offset_bytes + done;
            let left = len_bytes - done;
            let step = if left <= most { left } else { most - at % BLOCK_BYTES };
            let part = data.slice(done as usize, step as usize);
            self.write_part(volume, name, at, part).await?;
            done += step;
        }
        self.stats.count_write(len_bytes, fua);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::Write).await?;
            self.stats.fua_latency(rt::now().since(begun));
        }
        Ok(())
    }

    /// Takes a write, or a part of a long one, into the open group.
    async fn write_part(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: IoBytes,
    ) -> Result<(), DeviceError> {
        let len_bytes = data.len() as u64;
        let first = offset_bytes / BLOCK_BYTES;
        let end = (offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
        let permit = self.throttle.admit((end - first) * BLOCK_BYTES).await;
        let aligned =
            offset_bytes.is_multiple_of(BLOCK_BYTES) && len_bytes.is_multiple_of(BLOCK_BYTES);
        let merge = if aligned {
            self.wait_for_merges(volume, first, end).await;
            None
        } else {
            Some(self.merge(volume, name, offset_bytes, &data).await?)
        };
        let (data, locks) = match merge {
            Some((merged, locks)) => (merged, Some(locks)),
            None => (data, None),
        };
        let held = permit.forget();
        let blocks = end - first;
        let change = Change { lba: Lba(first), blocks, content: Content::Data(data) };
        let outcome = self.absorb(volume, name, Operation::Write, change, held);
        drop(locks);
        outcome
    }

    pub(crate) async fn trim(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.check_running(name, Operation::Discard, offset_bytes, len_bytes)?;
        // A trim is advice: parts of blocks are not worth a read and a merge.
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let end = (offset_bytes + len_bytes) / BLOCK_BYTES;
        if first < end {
            let permit = self.throttle.admit(RECORD_BYTES).await;
            self.wait_for_merges(volume, first, end).await;
            let change = Change { lba: Lba(first), blocks: end - first, content: Content::Zero };
            self.absorb(volume, name, Operation::Discard, change, permit.forget())?;
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
        // Parts of blocks at the edges are written; the whole blocks between are forgotten.
        for (from, to) in [(offset_bytes, inner_first), (inner_end, end_bytes)] {
            if from < to {
                let zeros = IoBuf::zeroed((to - from) as usize).freeze();
                self.write(volume, name, from, zeros, false).await?;
            }
        }
        if inner_first < inner_end {
            let (first, end) = (inner_first / BLOCK_BYTES, inner_end / BLOCK_BYTES);
            let permit = self.throttle.admit(RECORD_BYTES).await;
            self.wait_for_merges(volume, first, end).await;
            let change = Change { lba: Lba(first), blocks: end - first, content: Content::Zero };
            self.absorb(volume, name, Operation::WriteZeroes, change, permit.forget())?;
        }
        self.stats.count_trim(len_bytes);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::WriteZeroes).await?;
        }
        Ok(())
    }

    pub(crate) async fn flush(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
    ) -> Result<(), DeviceError> {
        let begun = rt::now();
        self.check_running(name, Operation::Flush, 0, 0)?;
        self.make_durable(volume, name, Operation::Flush).await?;
        self.stats.count_flush(rt::now().since(begun));
        Ok(())
    }

    /// Puts a change into the open group and onto the volume's list of what is not durable. No
    /// await in here: a change is in a group, and in the history, whole or not at all.
    fn absorb(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        operation: Operation,
        change: Change,
        held_bytes: u64,
    ) -> Result<(), DeviceError> {
        let Change { lba, blocks, content } = change;
        let refuse = |kind| {
            self.throttle.release(held_bytes);
            let (offset, len) = (lba.0 * BLOCK_BYTES, blocks * BLOCK_BYTES);
            Err(DeviceError::new(name, operation, offset, len, kind))
        };
        // The wait for admission may have outlived the volume, its size, or the pool.
        if volume.gone.get() || self.is_stopped() || self.closing.get() {
            return refuse(ErrorKind::Gone);
        }
        if (lba.0 + blocks) * BLOCK_BYTES > volume.size_bytes.get().next_multiple_of(BLOCK_BYTES) {
            return refuse(ErrorKind::OutOfRange { size_bytes: volume.size_bytes.get() });
        }
        if !self.reserve_space(volume, lba, blocks, &content) {
            return refuse(ErrorKind::NoSpace);
        }
        let first = self.groups.borrow().open().is_empty();
        let txg =
            self.groups.borrow_mut().absorb(volume.id, lba, blocks, content.clone(), held_bytes);
        if volume.sync.get() != SyncMode::Disabled {
            let mut pending = volume.pending.borrow_mut();
            match content {
                Content::Data(data) => {
                    let record = Record::write(volume.id, txg, lba, data);
                    volume.pending_bytes.set(volume.pending_bytes.get() + record_bytes(&record));
                    pending.push(record);
                }
                Content::Zero => {
                    let mut at = 0;
                    while at < blocks {
                        let step = (blocks - at).min(ZERO_RECORD_BLOCKS);
                        let from = Lba(lba.0 + at);
                        pending.push(Record::zero(volume.id, txg, from, step as u32));
                        at += step;
                    }
                }
            }
        }
        self.note_dirty(first);
        Ok(())
    }

    /// Everything of the volume that was answered (or absorbed) before this call is durable when
    /// it returns: in the log, or, when there is much of it, in a committed group.
    pub(crate) async fn make_durable(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        operation: Operation,
    ) -> Result<(), DeviceError> {
        if volume.sync.get() == SyncMode::Disabled {
            return Ok(());
        }
        let fail = |detail: String| {
            Err(DeviceError::new(name, operation, 0, 0, ErrorKind::Other { detail }))
        };
        let unlisted = self.sync.committed.get().next() < volume.log_from.get();
        if unlisted || volume.pending_bytes.get() > self.direct_limit_bytes() {
            // Writing this much to the log first would only write it twice.
            let txg = self.groups.borrow().open_txg();
            return match self.commit(txg).await {
                Ok(()) => Ok(()),
                Err(error) => fail(error.message),
            };
        }
        let records = volume.pending.take();
        volume.pending_bytes.set(0);
        if records.is_empty() {
            // Somebody else's flush may be carrying what this one must cover.
            let limit = volume.next_append.get();
            let done = || volume.appending.borrow().first().is_none_or(|first| *first >= limit);
            volume.appended.until(|| done() || self.is_stopped()).await;
            if self.is_stopped() {
                return fail(self.stop_reason());
            }
            // One of them may have been given up meanwhile: then only its group makes it durable.
            if self.sync.committed.get().next() < volume.log_from.get() {
                let txg = TxgId(volume.log_from.get().0 - 1);
                return match self.commit(txg).await {
                    Ok(()) => Ok(()),
                    Err(error) => fail(error.message),
                };
            }
            return Ok(());
        }
        let ticket = volume.next_append.get();
        volume.next_append.set(ticket + 1);
        volume.appending.borrow_mut().insert(ticket);
        let mut guard = AppendGuard { pool: self, volume, ticket, durable: false };
        let outcome = self.log.append(records).await;
        guard.durable = outcome.is_ok();
        drop(guard);
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => {
                // What did not reach the log can only become durable with its group.
                self.stop(&error.to_string());
                volume.appended.notify_all();
                fail(error.to_string())
            }
        }
    }

    async fn wait_for_merges(&self, volume: &Rc<VolumeState>, first: u64, end: u64) {
        let clear = || volume.merging.borrow().range(first..end).next().is_none();
        if !clear() {
            volume.merged.until(clear).await;
        }
    }

    /// Reads the blocks that `data` covers in part, and lays `data` over them. The blocks stay
    /// locked until the guard drops.
    async fn merge(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: &IoBytes,
    ) -> Result<(IoBytes, MergeLocks), DeviceError> {
        let end_bytes = offset_bytes + data.len() as u64;
        let first = offset_bytes / BLOCK_BYTES;
        let end = end_bytes.div_ceil(BLOCK_BYTES);
        self.wait_for_merges(volume, first, end).await;
        let mut edges = Vec::new();
        if !offset_bytes.is_multiple_of(BLOCK_BYTES) {
            edges.push(first);
        }
        if !end_bytes.is_multiple_of(BLOCK_BYTES) && edges.last() != Some(&(end - 1)) {
            edges.push(end - 1);
        }
        // All blocks, not the edges alone: what lies between is as good as written from here on.
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

/// Takes an append off the volume's list when it is durable, or when its caller has gone: then the
/// next flush must not rely on it, and waits for the group.
struct AppendGuard<'a> {
    pool: &'a Pool,
    volume: &'a VolumeState,
    ticket: u64,
    durable: bool,
}

impl Drop for AppendGuard<'_> {
    fn drop(&mut self) {
        if !self.durable {
            let open = self.pool.groups.borrow().open_txg();
            self.volume.log_from.set(open.next().max(self.volume.log_from.get()));
        }
        self.volume.appending.borrow_mut().remove(&self.ticket);
        self.volume.appended.notify_all();
    }
}

struct MergeLocks {
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
