//! Writes of batches, flushes, and discards.

use std::rc::Rc;
use std::sync::Arc;

use forebay_device::{DeviceError, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos, SegmentId};

use crate::batch::{RowBatch, WriteKind};
use crate::error::ArrayError;
use crate::group::Group;
use crate::kernel::ParityKernel;
use crate::member::Member;
use crate::{Array, Written};

/// Least bytes of a computation that runs on another thread.
pub(crate) const COMPUTE_BYTES: usize = 256 << 10;

/// Cost of a kernel under simulation: a nanosecond for 16 bytes.
pub(crate) fn kernel_cost(bytes: usize) -> Nanos {
    Nanos(bytes as u64 / 16)
}

/// Computes the parity of data columns, each in parts.
pub(crate) async fn encode(kernel: &Arc<dyn ParityKernel>, data: &[Vec<IoBytes>]) -> Vec<IoBytes> {
    let len = data[0].iter().map(|part| part.len()).sum();
    let (kernel, data) = (kernel.clone(), data.to_vec());
    let bytes = len * data.len();
    // Allocated on this thread, which also frees them and so can recycle them.
    let mut parity: Vec<IoBuf> =
        (0..kernel.parity_columns()).map(|_| IoBuf::recycled(len)).collect();
    let work = move || {
        encode_parts(&*kernel, &data, &mut parity);
        parity
    };
    let parity =
        if bytes >= COMPUTE_BYTES { rt::compute(kernel_cost(bytes), work).await } else { work() };
    parity.into_iter().map(IoBuf::freeze).collect()
}

/// Computes parity from parts that need not end at the same places.
fn encode_parts(kernel: &dyn ParityKernel, data: &[Vec<IoBytes>], parity: &mut [IoBuf]) {
    let mut parts: Vec<_> = data.iter().map(|column| column.iter()).collect();
    let mut rest: Vec<&[u8]> = vec![&[]; data.len()];
    let mut at = 0;
    while at < parity[0].len() {
        for (rest, parts) in rest.iter_mut().zip(&mut parts) {
            if rest.is_empty() {
                *rest = parts.next().expect("columns are as long as parity");
            }
        }
        let len = rest.iter().map(|rest| rest.len()).min().expect("a row has data columns");
        let pieces: Vec<&[u8]> = rest.iter().map(|rest| &rest[..len]).collect();
        let mut out: Vec<&mut [u8]> =
            parity.iter_mut().map(|column| &mut column[at..at + len]).collect();
        kernel.encode(&pieces, &mut out);
        rest.iter_mut().for_each(|rest| *rest = &rest[len..]);
        at += len;
    }
}

impl Array {
    /// Begins a batch of whole rows. A segment's rows are written once in its life, so a batch
    /// overwrites nothing live.
    pub fn begin_batch(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
        kind: WriteKind,
    ) -> Result<RowBatch, ArrayError> {
        let geometry = self.group_of(segment)?.geometry();
        self.check_rows(segment, first_row, rows)?;
        Ok(RowBatch::new(geometry, segment, first_row, rows, kind))
    }

    /// Writes a batch: one command per device.
    ///
    /// A member whose write fails stops taking writes at once. Its column of the segment becomes
    /// outdated, as do the columns of missing members. The batch succeeds when no more columns are
    /// outdated than the layout can miss.
    pub async fn write_batch(&self, batch: RowBatch) -> Result<Written, ArrayError> {
        let (segment, kind, is_copy) = (batch.segment, batch.kind, batch.is_copy);
        let group = self.group_of(segment)?;
        let geometry = group.geometry();
        let index = geometry.index_of(segment);
        let offset_bytes =
            geometry.column_start_bytes(index) + u64::from(batch.first_row) * geometry.unit_bytes;
        let column_bytes = u64::from(batch.rows) * geometry.unit_bytes;
        let need = geometry.data_columns();
        let refuse = |have| {
            let causes = group.failures();
            ArrayError::NotWritable { segment, have, need, causes }
        };

        let have = group.writable_columns(index);
        if have < need {
            return Err(refuse(have));
        }
        let mut columns = batch.into_columns();
        if let Some(kernel) = &group.kernel {
            let parity = encode(kernel, &columns).await;
            columns.extend(parity.into_iter().map(|column| vec![column]));
        }
        // Members may have come and gone while parity was computed.
        let have = group.writable_columns(index);
        if have < need {
            return Err(refuse(have));
        }
        let mut writes: Vec<(Rc<Member>, Vec<IoBytes>)> = Vec::new();
        let mut written = Written::default();
        let mut first_copies = vec![true; need];
        for (column, slot) in group.slots.borrow().iter().enumerate() {
            let role = group.role_of_column(index, column);
            let data = &columns[role];
            for member in slot {
                if member.is_writable() {
                    if !is_copy && first_copies.get_mut(role).is_some_and(std::mem::take) {
                        written.data_bytes += column_bytes;
                    } else {
                        written.redundancy_bytes += column_bytes;
                    }
                    writes.push((member.clone(), data.clone()));
                } else {
                    member.mark_stale(index);
                }
            }
        }
        let asked: Vec<DeviceId> = writes.iter().map(|(member, _)| member.id).collect();
        let failed = self.write_columns(&group, index, offset_bytes, writes).await;

        // A member that returned and was rebuilt meanwhile still lacks these rows.
        let has_failed = |id| failed.iter().any(|(device, _)| *device == id);
        for member in group.members() {
            if !asked.contains(&member.id) || has_failed(member.id) {
                member.mark_stale(index);
            }
        }
        self.account(kind, written);
        // Copies that were attached meanwhile lack these rows; others may have been detached.
        if group.missing_columns(index) > group.geometry().parity_columns() {
            let causes = group.with_failures(failed.into_iter().map(|(_, cause)| cause).collect());
            return Err(ArrayError::SegmentLost { segment, causes });
        }
        let seq = self.write_seq.get() + 1;
        self.write_seq.set(seq);
        self.unflushed.borrow_mut().insert(segment, seq);
        Ok(written)
    }

    /// Writes to several members in parallel, to each its parts in a row. Fails the members whose
    /// write fails, and returns them with their errors.
    pub(crate) async fn write_columns(
        &self,
        group: &Group,
        index: u32,
        offset_bytes: u64,
        writes: Vec<(Rc<Member>, Vec<IoBytes>)>,
    ) -> Vec<(DeviceId, DeviceError)> {
        let writes = writes.into_iter().map(|(member, data)| async move {
            let device = member.device();
            let cause = member.write(index, offset_bytes, data).await.err()?;
            // Fails the member at once: the other writes may take long.
            self.fail_member(group, &member, device.as_ref(), &cause);
            Some((member.id, cause))
        });
        rt::join_all(writes).await.into_iter().flatten().collect()
    }

    /// Makes all data of successful batches durable.
    ///
    /// A member whose flush fails stops taking writes. Every segment written to it since its last
    /// successful flush becomes outdated there, and the member is not flushed again. If a segment
    /// then has too few columns, this and every later flush fails until the segment is reset.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        let seq = self.write_seq.get();
        let mut flushes = Vec::new();
        for group in self.groups.borrow().iter() {
            for member in group.members() {
                if member.is_writable() && member.needs_flush() {
                    let group = group.clone();
                    flushes.push(async move {
                        let device = member.device();
                        let cause = member.flush().await.err()?;
                        self.fail_member(&group, &member, device.as_ref(), &cause);
                        Some(cause)
                    });
                }
            }
        }
        let mut causes: Vec<DeviceError> =
            rt::join_all(flushes).await.into_iter().flatten().collect();

        let mut segments = Vec::new();
        self.unflushed.borrow_mut().retain(|segment, last| {
            let Ok(group) = self.group_of(*segment) else { return false };
            let geometry = group.geometry();
            if group.missing_columns(geometry.index_of(*segment)) > geometry.parity_columns() {
                segments.push(*segment);
                causes = group.with_failures(std::mem::take(&mut causes));
                return true;
            }
            *last > seq
        });
        if segments.is_empty() { Ok(()) } else { Err(ArrayError::FlushLost { segments, causes }) }
    }

    /// Declares that nothing in a segment is live: before the segment is reused, or when a rebuild
    /// reaches a free segment. Every column then counts as up to date, and flushes ignore the
    /// segment.
    pub fn reset_segment(&self, segment: SegmentId) -> Result<(), ArrayError> {
        let group = self.group_of(segment)?;
        for member in group.members() {
            member.reset_segment(group.geometry().index_of(segment));
        }
        self.unflushed.borrow_mut().remove(&segment);
        Ok(())
    }

    /// Resets a segment and discards its columns on the devices. Failed and unsupported discards
    /// are harmless. The segment may be written again after this completes, not before.
    pub async fn discard_segment(&self, segment: SegmentId) -> Result<(), ArrayError> {
        self.reset_segment(segment)?;
        let group = self.group_of(segment)?;
        let geometry = group.geometry();
        let offset_bytes = geometry.column_start_bytes(geometry.index_of(segment));
        let discards = group
            .members()
            .into_iter()
            .filter(|member| member.is_writable())
            .filter_map(|member| {
                let device = member.device()?;
                Some(async move {
                    if device.geometry().discard_bytes > 0 {
                        let _ = device.discard(offset_bytes, geometry.column_bytes, false).await;
                    }
                })
            });
        rt::join_all(discards).await;
        Ok(())
    }
}
