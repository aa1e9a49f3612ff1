//! The write path: a write is admitted, absorbed into the open transaction group, and appended to
//! the log if it must be durable before its answer. `docs/write-path.md` walks the same steps.

use std::cell::Cell;
use std::rc::Rc;

use forebay_compress::Compression;
use forebay_device::{Cause, DeviceError, ErrorKind, IoBytes, Operation};
use forebay_format::checksum::crc64;
use forebay_intent_log::Record;
use forebay_rt as rt;
use forebay_rt::sync::Closed;
use forebay_txg::{Content, Held};
use forebay_units::{BLOCK_BYTES, Lba, TxgId};

use crate::commit::error::{CommitError, SuspendReason};
use crate::status::volume_times::Measured;
use crate::volume::{VolumeState, record_bytes};
use crate::{Pool, SyncMode};

/// One change of a volume, in whole blocks.
pub(crate) struct Change {
    pub lba: Lba,
    pub blocks: u64,
    pub content: Content,
}

/// A write up to this length is still in the cache of the processor that received it.
const HOT_BYTES: usize = 64 << 10;
/// Longest record of zeroes in the log, in blocks.
const MAX_ZERO_RECORD_BLOCKS: u64 = 1 << 31;

impl Pool {
    /// Writes. `absorbed` are the bytes that a pool before this one has taken: they are written no
    /// more, because later writes may lie over them, and only made durable.
    pub(crate) async fn write(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
        absorbed: &Cell<u64>,
    ) -> Result<(), DeviceError> {
        let begun = rt::now();
        let len_bytes = data.len() as u64;
        self.check_running(name, Operation::Write, offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        // A longer write is taken in parts: a writer that waits for a large part of the dirty limit
        // could wait for a commit that no task asks for.
        let max_part_bytes =
            (self.dirty.throttle.limit_bytes() / 4 / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        while absorbed.get() < len_bytes {
            let done = absorbed.get();
            let at = offset_bytes + done;
            let left = len_bytes - done;
            let step =
                if left <= max_part_bytes { left } else { max_part_bytes - at % BLOCK_BYTES };
            let part = data.slice(done as usize, step as usize);
            self.write_part(volume, name, at, part, fua).await?;
            absorbed.set(done + step);
        }
        self.stats.count_write(len_bytes, fua);
        if fua || volume.sync.get() == SyncMode::Always {
            self.make_durable(volume, name, Operation::Write).await?;
            let took = rt::now().since(begun);
            self.stats.fua_latency(took);
            volume.times.note(Measured::DurableWrite, took);
        }
        Ok(())
    }

    /// Takes a write, or a part of a long one, into the open group.
    pub(crate) async fn write_part(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let len_bytes = data.len() as u64;
        let first = offset_bytes / BLOCK_BYTES;
        let end = (offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
        let refused = |Closed| {
            DeviceError::new(name, Operation::Write, offset_bytes, len_bytes, ErrorKind::Gone)
        };
        let demand = volume.demand((end - first) * BLOCK_BYTES, fua);
        let mut permit = self.dirty.throttle.admit(demand).await.map_err(refused)?;
        if self.may_find_room(volume, Lba(first), end - first) {
            drop(permit);
            // If it fails, the pool takes no more writes, and the throttle says so.
            let _ = self.commit_all().await;
            permit = self.dirty.throttle.admit(demand).await.map_err(refused)?;
        }
        let aligned = offset_bytes % BLOCK_BYTES == 0 && len_bytes % BLOCK_BYTES == 0;
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

    pub(crate) async fn flush(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
    ) -> Result<(), DeviceError> {
        let begun = rt::now();
        self.check_running(name, Operation::Flush, 0, 0)?;
        volume.note_flush(begun);
        self.make_durable(volume, name, Operation::Flush).await?;
        let took = rt::now().since(begun);
        self.stats.count_flush(took);
        volume.times.note(Measured::Flush, took);
        Ok(())
    }

    /// Puts a change into the open group and onto the volume's list of pending writes.
    ///
    /// No await in here: a change is in a group and in the history whole, or not at all.
    pub(crate) fn absorb(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        operation: Operation,
        change: Change,
        held: Held,
    ) -> Result<(), DeviceError> {
        let Change { lba, blocks, content } = change;
        let refuse = |kind| {
            self.dirty.throttle.release(held);
            let (offset, len) = (lba.0 * BLOCK_BYTES, blocks * BLOCK_BYTES);
            Err(DeviceError::new(name, operation, offset, len, kind))
        };
        // The volume, its size and the pool may have changed while the write waited.
        if volume.gone.get() || self.is_stopped() || self.lifecycle.closing.get() {
            return refuse(ErrorKind::Gone);
        }
        if (lba.0 + blocks) * BLOCK_BYTES > volume.size_bytes.get().next_multiple_of(BLOCK_BYTES) {
            return refuse(ErrorKind::OutOfRange { size_bytes: volume.size_bytes.get() });
        }
        if !self.has_memory(volume, lba, blocks, &content)
            || !self.reserve_space(volume, lba, blocks, &content)
        {
            return refuse(ErrorKind::NoSpace);
        }
        sum_while_hot(volume, &content);
        let first = self.dirty.groups.borrow().open().is_empty();
        let txg =
            self.dirty.groups.borrow_mut().absorb(volume.id, lba, blocks, content.clone(), held);
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
                        let step = (blocks - at).min(MAX_ZERO_RECORD_BLOCKS);
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

    /// Makes everything durable that the volume absorbed before this call: in the log, or in a
    /// committed group when much is pending.
    pub(crate) async fn make_durable(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        operation: Operation,
    ) -> Result<(), DeviceError> {
        if volume.sync.get() == SyncMode::Disabled {
            return Ok(());
        }
        let fail = |error: CommitError| {
            let kind = ErrorKind::Layer(Cause::new(error));
            DeviceError::new(name, operation, 0, 0, kind)
        };
        let unlisted = self.sync.committed.get().next() < volume.log_from.get();
        if unlisted || self.commits_directly(volume.pending_bytes.get()) {
            let txg = self.dirty.groups.borrow().open_txg();
            return self.commit(txg).await.map_err(fail);
        }
        let records = volume.pending.take();
        volume.pending_bytes.set(0);
        if records.is_empty() {
            // Another flush may be carrying what this one must cover.
            let limit = volume.next_append.get();
            let done = || volume.appending.borrow().first().is_none_or(|first| *first >= limit);
            volume.appended.until(|| done() || self.is_stopped()).await;
            if self.is_stopped() {
                return Err(fail(self.why_ended()));
            }
            // If such an append was canceled, only the commit of its group makes it durable.
            if self.sync.committed.get().next() < volume.log_from.get() {
                let txg = TxgId(volume.log_from.get().0 - 1);
                return self.commit(txg).await.map_err(fail);
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
        outcome.map_err(|error| {
            // The writes of this append are on no list any more.
            self.stop(SuspendReason::Log(error.clone()));
            fail(error.into())
        })
    }
}

/// Computes the sums of a short write, whose data has just been copied into this processor's cache:
/// the log's frame and the main store need them. Compressed volumes store other bytes.
fn sum_while_hot(volume: &VolumeState, content: &Content) {
    let Content::Data(data) = content else { return };
    if data.len() <= HOT_BYTES && volume.compression.get() == Compression::Off {
        data.sum_blocks(crc64);
    }
}

/// Takes an append off the volume's list when it ends. If it was canceled before it was durable,
/// the next flush waits for its group instead.
struct AppendGuard<'a> {
    pool: &'a Pool,
    volume: &'a VolumeState,
    ticket: u64,
    durable: bool,
}

impl Drop for AppendGuard<'_> {
    fn drop(&mut self) {
        if !self.durable {
            let open = self.pool.dirty.groups.borrow().open_txg();
            self.volume.log_from.set(open.next().max(self.volume.log_from.get()));
        }
        self.volume.appending.borrow_mut().remove(&self.ticket);
        self.volume.appended.notify_all();
    }
}
