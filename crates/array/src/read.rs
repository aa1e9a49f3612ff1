//! Reads, and the columns that come back from parity when they must.

use std::rc::Rc;

use forebay_device::{DeviceError, IoBuf};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, SegmentId};

use crate::Array;
use crate::error::ArrayError;
use crate::event::ArrayEvent;
use crate::geometry::ColumnRange;
use crate::group::Group;
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

    /// The piece as a buffer of its own.
    pub(crate) fn into_buf(mut self) -> IoBuf {
        if self.start != 0 {
            return IoBuf::copy_of(self.bytes());
        }
        self.buf.truncate(self.len);
        self.buf
    }
}

/// Where in the array a column read takes place, and what has gone wrong so far.
pub(crate) struct ColumnReads<'a> {
    pub(crate) group: &'a Rc<Group>,
    pub(crate) index: u32,
    /// Members that are not to be asked.
    pub(crate) bad: &'a [DeviceId],
}

impl Array {
    /// Reads blocks of one segment. Columns that are missing, outdated or unreadable come back
    /// from the others; a device error on the way is counted and told as an [`ArrayEvent`].
    pub async fn read(&self, addr: BlockAddr, blocks: u32) -> Result<IoBuf, ArrayError> {
        self.read_reconstructed(addr, blocks, &[]).await
    }

    /// Reads blocks of one segment without asking the members in `bad`.
    pub async fn read_reconstructed(
        &self,
        addr: BlockAddr,
        blocks: u32,
        bad: &[DeviceId],
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
        let place = ColumnReads { group: &group, index: geometry.index_of(addr.segment()), bad };
        let ranges = geometry.column_ranges(addr.block(), blocks);
        let mut pieces = match self.load(&place, &ranges).await {
            Ok(pieces) => pieces,
            // Devices that fail in different places may leave every single block readable.
            Err(lost) if blocks > 1 && !lost.causes.is_empty() => {
                return self.read_by_block(&place, addr, blocks).await;
            }
            Err(lost) => return Err(lost.at(addr, blocks)),
        };
        if let [_] = pieces[..] {
            let piece = pieces.pop().expect("there is one");
            return Ok(piece.into_buf());
        }
        let mut out = IoBuf::recycled((u64::from(blocks) * BLOCK_BYTES) as usize);
        for run in geometry.runs(addr.block(), blocks) {
            let at = ranges.iter().position(|r| r.role == run.role).expect("runs and ranges agree");
            let from = (run.column_offset_bytes - ranges[at].start_bytes) as usize;
            let len = run.len_bytes as usize;
            out[run.logical_bytes as usize..][..len]
                .copy_from_slice(&pieces[at].bytes()[from..from + len]);
        }
        Ok(out)
    }

    async fn read_by_block(
        &self,
        place: &ColumnReads<'_>,
        addr: BlockAddr,
        blocks: u32,
    ) -> Result<IoBuf, ArrayError> {
        let mut out = IoBuf::recycled(blocks as usize * BLOCK_LEN);
        for (block, room) in (addr.block()..).zip(out.chunks_mut(BLOCK_LEN)) {
            let (role, start_bytes) = place.group.geometry().locate(block);
            let range = ColumnRange { role, start_bytes, end_bytes: start_bytes + BLOCK_BYTES };
            let pieces = self.load(place, &[range]).await;
            let pieces =
                pieces.map_err(|lost| lost.at(BlockAddr::new(addr.segment(), block), 1))?;
            room.copy_from_slice(pieces[0].bytes());
        }
        Ok(out)
    }

    /// Reads whole rows: for those who go through a segment from end to end.
    pub async fn read_segment_rows(
        &self,
        segment: SegmentId,
        first_row: u32,
        rows: u32,
    ) -> Result<IoBuf, ArrayError> {
        self.check_rows(segment, first_row, rows)?;
        let blocks = self.group_of(segment)?.geometry().blocks_per_row();
        self.read(BlockAddr::new(segment, first_row * blocks), rows * blocks).await
    }

    /// Parts of data columns, in the order asked for.
    pub(crate) async fn load(
        &self,
        place: &ColumnReads<'_>,
        ranges: &[ColumnRange],
    ) -> Result<Vec<ColumnPart>, Lost> {
        let mut causes = Vec::new();
        // Most reads are short ones: they need no list of what to wait for.
        if let [range] = ranges {
            return match self.read_role(place, *range).await {
                Ok(buf) => Ok(vec![ColumnPart { start: 0, len: buf.len(), buf }]),
                Err(causes) => self.recover(place, ranges, vec![None], causes).await,
            };
        }
        let reads = ranges.iter().map(|range| self.read_role(place, *range));
        let mut pieces: Vec<Option<IoBuf>> = Vec::new();
        for outcome in rt::join_all(reads).await {
            pieces.push(outcome.map_err(|mut said| causes.append(&mut said)).ok());
        }
        if pieces.iter().any(Option::is_none) {
            return self.recover(place, ranges, pieces, causes).await;
        }
        let whole = |buf: IoBuf| {
            let len = buf.len();
            ColumnPart { buf, start: 0, len }
        };
        Ok(pieces.into_iter().flatten().map(whole).collect())
    }

    /// Computes the pieces that are not there from other columns.
    async fn recover(
        &self,
        place: &ColumnReads<'_>,
        ranges: &[ColumnRange],
        mut pieces: Vec<Option<IoBuf>>,
        mut causes: Vec<DeviceError>,
    ) -> Result<Vec<ColumnPart>, Lost> {
        let geometry = place.group.geometry();
        let need = geometry.data_columns();
        let Some(kernel) = place.group.kernel.clone() else {
            return Err(Lost { have: pieces.iter().flatten().count(), need, causes });
        };
        let absent = || ranges.iter().zip(&pieces).filter(|(_, p)| p.is_none()).map(|(r, _)| r);
        let start_bytes = absent().map(|r| r.start_bytes).min().expect("something is absent");
        let end_bytes = absent().map(|r| r.end_bytes).max().expect("something is absent");
        let roles: Vec<usize> = absent().map(|r| r.role).collect();

        // Pieces that were read and span what is absent serve as they are.
        let mut columns: Vec<Option<IoBuf>> = (0..geometry.members).map(|_| None).collect();
        for (range, piece) in ranges.iter().zip(&mut pieces) {
            if range.start_bytes == start_bytes && range.end_bytes == end_bytes {
                columns[range.role] = piece.take();
            }
        }
        let mut untried: Vec<usize> = (0..geometry.members)
            .filter(|role| columns[*role].is_none() && !roles.contains(role))
            .filter(|role| !self.choices(place, *role, start_bytes).is_empty())
            .collect();
        loop {
            let have = columns.iter().flatten().count();
            if have >= need {
                break;
            }
            if have + untried.len() < need {
                return Err(Lost { have, need, causes });
            }
            let now: Vec<usize> = untried.drain(..need - have).collect();
            let reads = now.iter().map(|role| {
                self.read_role(place, ColumnRange { role: *role, start_bytes, end_bytes })
            });
            for (role, outcome) in now.iter().zip(rt::join_all(reads).await) {
                match outcome {
                    Ok(buf) => columns[*role] = Some(buf),
                    Err(mut said) => causes.append(&mut said),
                }
            }
        }

        let len = (end_bytes - start_bytes) as usize;
        let wanted = roles.clone();
        let mut out: Vec<IoBuf> = wanted.iter().map(|_| IoBuf::recycled(len)).collect();
        let work = move || {
            let given: Vec<Option<&[u8]>> = columns.iter().map(|c| c.as_deref()).collect();
            let mut slices: Vec<&mut [u8]> = out.iter_mut().map(|column| &mut **column).collect();
            kernel.reconstruct(&given, &wanted, &mut slices).expect("enough columns were read");
            drop(given);
            (out, columns)
        };
        let bytes = len * need;
        let (out, mut columns) = if bytes >= COMPUTE_BYTES {
            rt::compute(kernel_cost(bytes), work).await
        } else {
            work()
        };
        for (role, buf) in roles.into_iter().zip(out) {
            columns[role] = Some(buf);
        }
        let assemble = |(range, piece): (&ColumnRange, Option<IoBuf>)| {
            let len = (range.end_bytes - range.start_bytes) as usize;
            match piece {
                Some(buf) => ColumnPart { buf, start: 0, len },
                None => ColumnPart {
                    buf: columns[range.role].take().expect("read or computed"),
                    start: (range.start_bytes - start_bytes) as usize,
                    len,
                },
            }
        };
        Ok(ranges.iter().zip(pieces).map(assemble).collect())
    }

    /// Members that may answer for a role, best first.
    fn choices(&self, place: &ColumnReads<'_>, role: usize, offset_bytes: u64) -> Vec<Rc<Member>> {
        let start_bytes = place.group.geometry().column_start_bytes(place.index);
        let mut members = place.group.sources(place.index, role);
        members.retain(|member| !place.bad.contains(&member.id));
        members.sort_by_key(|member| member.read_cost(start_bytes + offset_bytes));
        members
    }

    /// Reads part of one column, from one member after the other until one answers. The errors
    /// of those that did not are events; all of them together are the error.
    pub(crate) async fn read_role(
        &self,
        place: &ColumnReads<'_>,
        range: ColumnRange,
    ) -> Result<IoBuf, Vec<DeviceError>> {
        let mut causes = Vec::new();
        for member in self.choices(place, range.role, range.start_bytes) {
            if !member.is_current(place.index) {
                continue;
            }
            match self.read_member(place, &member, range).await {
                Ok(buf) => return Ok(buf),
                Err(cause) => causes.push(cause),
            }
        }
        Err(causes)
    }

    /// Reads part of a column from one member.
    pub(crate) async fn read_member(
        &self,
        place: &ColumnReads<'_>,
        member: &Rc<Member>,
        range: ColumnRange,
    ) -> Result<IoBuf, DeviceError> {
        let geometry = place.group.geometry();
        let start_bytes = geometry.column_start_bytes(place.index) + range.start_bytes;
        let len_bytes = range.end_bytes - range.start_bytes;
        let outcome = member.read(start_bytes, len_bytes).await;
        if let Err(cause) = &outcome {
            let row = (range.start_bytes / geometry.unit_bytes) as u32;
            let block = if range.role < geometry.data_columns() {
                geometry.block_at(range.role, range.start_bytes)
            } else {
                row * geometry.blocks_per_row()
            };
            let addr = BlockAddr::new(geometry.segment_at(place.index), block);
            self.events.push(ArrayEvent::ReadFailed {
                device: member.id,
                addr,
                cause: cause.clone(),
            });
            self.lose_if_gone(member, cause);
        }
        outcome
    }
}

/// Too few columns.
pub(crate) struct Lost {
    pub(crate) have: usize,
    pub(crate) need: usize,
    pub(crate) causes: Vec<DeviceError>,
}

impl Lost {
    pub(crate) fn at(self, addr: BlockAddr, blocks: u32) -> ArrayError {
        let Self { have, need, causes } = self;
        ArrayError::Unreadable { addr, blocks, have, need, causes }
    }
}
