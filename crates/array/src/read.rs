//! Reads of blocks and columns, with absent columns computed from parity.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::{DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId};

use crate::Array;
use crate::error::ArrayError;
use crate::event::ArrayEvent;
use crate::geometry::ColumnRange;
use crate::group::Group;
use crate::kernel::ParityKernel;
use crate::member::Member;
use crate::write::{COMPUTE_BYTES, kernel_cost};

/// Part of a column, read or computed.
pub(crate) struct ColumnPart {
    buf: IoBuf,
    /// Where the range asked for starts in `buf`.
    start: usize,
    len: usize,
}

impl ColumnPart {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }

    /// The buffer of a part that was asked for alone, or with others of the same range.
    pub(crate) fn into_buf(mut self) -> IoBuf {
        assert_eq!(self.start, 0, "nothing before the range was read");
        self.buf.truncate(self.len);
        self.buf
    }
}

/// The segment that columns are read from, and the members to leave out.
pub(crate) struct SegmentSource<'a> {
    pub(crate) group: &'a Rc<Group>,
    pub(crate) index: u32,
    /// Members that are not read.
    pub(crate) excluded: &'a [DeviceId],
}

impl SegmentSource<'_> {
    /// The first block of a part of a column; of its row, when the column holds parity.
    pub(crate) fn addr_of(&self, range: &ColumnRange) -> BlockAddr {
        let geometry = self.group.geometry();
        let row = (range.start_bytes / geometry.unit_bytes) as u32;
        let block = if range.role < geometry.data_columns() {
            geometry.block_at(range.role, range.start_bytes)
        } else {
            row * geometry.blocks_per_row()
        };
        BlockAddr::new(geometry.segment_at(self.index), block)
    }
}

impl Array {
    /// Reads blocks of one segment. Missing, outdated and unreadable columns are computed from the
    /// others. A device error is counted and reported as an [`ArrayEvent`].
    pub async fn read(&self, addr: BlockAddr, blocks: u32) -> Result<IoBuf, ArrayError> {
        self.read_reconstructed(addr, blocks, &[]).await
    }

    /// Reads blocks of one segment without the members in `excluded`.
    pub async fn read_reconstructed(
        &self,
        addr: BlockAddr,
        blocks: u32,
        excluded: &[DeviceId],
    ) -> Result<IoBuf, ArrayError> {
        let group = self.group_of(addr.segment())?;
        let geometry = group.geometry();
        let limit = geometry.blocks_per_segment();
        if addr.block().checked_add(blocks).is_none_or(|end| end > limit) {
            let (segment, first) = (addr.segment(), addr.block());
            return Err(ArrayError::OutOfRange { segment, first, count: blocks, limit });
        }
        if blocks == 0 {
            return Ok(IoBuf::recycled(0));
        }
        let source =
            SegmentSource { group: &group, index: geometry.index_of(addr.segment()), excluded };
        let ranges = geometry.column_ranges(addr.block(), blocks);
        let mut parts = match self.load(&source, &ranges).await {
            Ok(parts) => parts,
            // Devices that fail in different places may leave every single block readable.
            Err(missing) if blocks > 1 && !missing.causes.is_empty() => {
                return self.read_by_block(&source, addr, blocks).await;
            }
            Err(missing) => return Err(missing.at(addr, blocks)),
        };
        if let [_] = parts[..] {
            let part = parts.pop().expect("there is one");
            return Ok(part.into_buf());
        }
        let mut out = IoBuf::recycled((u64::from(blocks) * BLOCK_BYTES) as usize);
        for run in geometry.runs(addr.block(), blocks) {
            let at = ranges.iter().position(|r| r.role == run.role).expect("runs and ranges agree");
            let from = (run.column_offset_bytes - ranges[at].start_bytes) as usize;
            let len = run.len_bytes as usize;
            out[run.logical_bytes as usize..][..len]
                .copy_from_slice(&parts[at].bytes()[from..from + len]);
        }
        Ok(out)
    }

    async fn read_by_block(
        &self,
        source: &SegmentSource<'_>,
        addr: BlockAddr,
        blocks: u32,
    ) -> Result<IoBuf, ArrayError> {
        let mut out = IoBuf::recycled(blocks as usize * BLOCK_LEN);
        for (block, room) in (addr.block()..).zip(out.chunks_mut(BLOCK_LEN)) {
            let (role, start_bytes) = source.group.geometry().locate(block);
            let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
            let parts = self.load(source, &[range]).await;
            let parts = parts.map_err(|e| e.at(BlockAddr::new(addr.segment(), block), 1))?;
            room.copy_from_slice(parts[0].bytes());
        }
        Ok(out)
    }

    /// Reads parts of data columns, in the order of `ranges`.
    pub(crate) async fn load(
        &self,
        source: &SegmentSource<'_>,
        ranges: &[ColumnRange],
    ) -> Result<Vec<ColumnPart>, MissingColumns> {
        let mut causes = Vec::new();
        // Most reads are short: they need no list of futures.
        if let [range] = ranges {
            return match self.read_role(source, *range).await {
                Ok(buf) => Ok(vec![ColumnPart { start: 0, len: buf.len(), buf }]),
                Err(causes) => self.recover(source, ranges, vec![None], causes).await,
            };
        }
        let reads = ranges.iter().map(|range| self.read_role(source, *range));
        let mut parts: Vec<Option<IoBuf>> = Vec::new();
        for outcome in rt::join_all(reads).await {
            parts.push(outcome.map_err(|mut errors| causes.append(&mut errors)).ok());
        }
        if parts.iter().any(Option::is_none) {
            return self.recover(source, ranges, parts, causes).await;
        }
        let whole = |buf: IoBuf| {
            let len = buf.len();
            ColumnPart { buf, start: 0, len }
        };
        Ok(parts.into_iter().flatten().map(whole).collect())
    }

    /// Computes the absent parts from other columns.
    async fn recover(
        &self,
        source: &SegmentSource<'_>,
        ranges: &[ColumnRange],
        mut parts: Vec<Option<IoBuf>>,
        causes: Vec<DeviceError>,
    ) -> Result<Vec<ColumnPart>, MissingColumns> {
        let geometry = source.group.geometry();
        let Some(kernel) = source.group.kernel.clone() else {
            let (have, need) = (parts.iter().flatten().count(), geometry.data_columns());
            return Err(MissingColumns { have, need, causes });
        };
        let absent = || ranges.iter().zip(&parts).filter(|(_, p)| p.is_none()).map(|(r, _)| r);
        let start_bytes = absent().map(|r| r.start_bytes).min().expect("a part is absent");
        let end_bytes = absent().map(|r| r.end_bytes).max().expect("a part is absent");
        let roles: Vec<usize> = absent().map(|r| r.role).collect();

        // Parts that were read and span the absent range serve as they are.
        let mut columns: Vec<Option<IoBuf>> = (0..geometry.members).map(|_| None).collect();
        for (range, part) in ranges.iter().zip(&mut parts) {
            if range.start_bytes == start_bytes && range.end_bytes == end_bytes {
                columns[range.role] = part.take();
            }
        }
        let span = start_bytes..end_bytes;
        self.read_enough_columns(source, &span, &roles, &mut columns, causes).await?;
        let len = (end_bytes - start_bytes) as usize;
        let mut columns = reconstruct(kernel, columns, roles, len).await;
        let assemble = |(range, part): (&ColumnRange, Option<IoBuf>)| {
            let len = (range.end_bytes - range.start_bytes) as usize;
            match part {
                Some(buf) => ColumnPart { buf, start: 0, len },
                None => ColumnPart {
                    buf: columns[range.role].take().expect("read or computed"),
                    start: (range.start_bytes - start_bytes) as usize,
                    len,
                },
            }
        };
        Ok(ranges.iter().zip(parts).map(assemble).collect())
    }

    /// Reads columns, except those in `absent`, until `columns` suffice to compute the absent ones.
    async fn read_enough_columns(
        &self,
        source: &SegmentSource<'_>,
        span_bytes: &Range<u64>,
        absent: &[usize],
        columns: &mut [Option<IoBuf>],
        mut causes: Vec<DeviceError>,
    ) -> Result<(), MissingColumns> {
        let (start_bytes, end_bytes) = (span_bytes.start, span_bytes.end);
        let need = source.group.geometry().data_columns();
        let mut untried: Vec<usize> = (0..columns.len())
            .filter(|role| columns[*role].is_none() && !absent.contains(role))
            .filter(|role| !self.choices(source, *role, start_bytes).is_empty())
            .collect();
        loop {
            let have = columns.iter().flatten().count();
            if have >= need {
                return Ok(());
            }
            if have + untried.len() < need {
                return Err(MissingColumns { have, need, causes });
            }
            let now: Vec<usize> = untried.drain(..need - have).collect();
            let reads = now.iter().map(|role| {
                self.read_role(source, ColumnRange { role: *role, start_bytes, end_bytes })
            });
            for (role, outcome) in now.iter().zip(rt::join_all(reads).await) {
                match outcome {
                    Ok(buf) => columns[*role] = Some(buf),
                    Err(mut errors) => causes.append(&mut errors),
                }
            }
        }
    }

    /// Members that a role's column can be read from, best first.
    fn choices(
        &self,
        source: &SegmentSource<'_>,
        role: usize,
        offset_bytes: u64,
    ) -> Vec<Rc<Member>> {
        let start_bytes = source.group.geometry().column_start_bytes(source.index);
        let mut members = source.group.sources(source.index, role);
        members.retain(|member| !source.excluded.contains(&member.id));
        members.sort_by_key(|member| member.read_cost(start_bytes + offset_bytes));
        members
    }

    /// Reads part of one column, from one member after the other until a read succeeds. Each
    /// failed read is an event; the error holds all of them.
    pub(crate) async fn read_role(
        &self,
        source: &SegmentSource<'_>,
        range: ColumnRange,
    ) -> Result<IoBuf, Vec<DeviceError>> {
        let mut causes = Vec::new();
        for member in self.choices(source, range.role, range.start_bytes) {
            if !member.is_current(source.index) {
                continue;
            }
            match self.read_member(source, &member, range).await {
                Ok(buf) => return Ok(buf),
                Err(cause) => causes.push(cause),
            }
        }
        Err(causes)
    }

    /// Reads part of a column from one member.
    pub(crate) async fn read_member(
        &self,
        source: &SegmentSource<'_>,
        member: &Rc<Member>,
        range: ColumnRange,
    ) -> Result<IoBuf, DeviceError> {
        let geometry = source.group.geometry();
        let start_bytes = geometry.column_start_bytes(source.index) + range.start_bytes;
        let len_bytes = range.end_bytes - range.start_bytes;
        let device = member.device();
        let outcome = member.read(start_bytes, len_bytes).await;
        // Where the device was closed or replaced meanwhile, nothing is said of the one there now.
        if let (Err(cause), true) = (&outcome, member.has_device(device.as_ref())) {
            let (device, addr) = (member.id, source.addr_of(&range));
            self.events.push(ArrayEvent::ReadFailed { device, addr, cause: cause.clone() });
            self.lose_if_gone(member, cause);
        }
        outcome
    }
}

/// Computes the columns of `roles`, each `len` bytes, and adds them to `columns`.
async fn reconstruct(
    kernel: Arc<dyn ParityKernel>,
    columns: Vec<Option<IoBuf>>,
    roles: Vec<usize>,
    len: usize,
) -> Vec<Option<IoBuf>> {
    let wanted = roles.clone();
    let mut out: Vec<IoBuf> = wanted.iter().map(|_| IoBuf::recycled(len)).collect();
    let bytes = len * kernel.data_columns();
    let work = move || {
        let given: Vec<Option<&[u8]>> = columns.iter().map(|c| c.as_deref()).collect();
        let mut slices: Vec<&mut [u8]> = out.iter_mut().map(|column| &mut **column).collect();
        kernel.reconstruct(&given, &wanted, &mut slices).expect("enough columns were read");
        drop(given);
        (out, columns)
    };
    let (out, mut columns) =
        if bytes >= COMPUTE_BYTES { rt::compute(kernel_cost(bytes), work).await } else { work() };
    for (role, buf) in roles.into_iter().zip(out) {
        columns[role] = Some(buf);
    }
    columns
}

/// Too few columns are readable.
pub(crate) struct MissingColumns {
    pub(crate) have: usize,
    pub(crate) need: usize,
    pub(crate) causes: Vec<DeviceError>,
}

impl MissingColumns {
    pub(crate) fn at(self, addr: BlockAddr, blocks: u32) -> ArrayError {
        let Self { have, need, causes } = self;
        ArrayError::Unreadable { addr, blocks, have, need, causes }
    }
}
