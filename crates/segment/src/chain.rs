//! Reader of the map journal: the chain of frames that a root names.
//!
//! It holds frames back until a frame of a later root follows them, or the end confirms them. When
//! the chain breaks, it backtracks and tries other versions of the held frames: copies, or versions
//! computed from parity. A second attempt holds all frames. The crate's README says why.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::IoBuf;
use forebay_format::journal::{FrameHeader, FrameKind, HEADER_BYTES};
use forebay_format::superblock::JournalPosition;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout, SegmentId};

use crate::copies::{copy_of, mixed_frame, repair_all};
use crate::error::{JournalFault, RowLocation, SegmentError};

/// A whole frame of the journal.
#[derive(Clone, Debug)]
pub struct Frame {
    header: FrameHeader,
    /// Its bytes from the header on; of padding, only the first block.
    bytes: Vec<u8>,
}

impl Frame {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FrameKind {
        self.header.kind
    }

    /// Its payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        // Of padding only the header is kept.
        let end = HEADER_BYTES + self.header.payload_bytes as usize;
        self.bytes.get(HEADER_BYTES..end).unwrap_or_default()
    }

    /// The position of the next frame, when this one is at `at`.
    fn follower(&self, at: JournalPosition) -> Result<JournalPosition, JournalFault> {
        let (seq, link) = (at.seq + 1, self.header.sum);
        if self.header.kind == FrameKind::Jump {
            let bytes: [u8; 4] = self.payload().try_into().map_err(|_| JournalFault::JumpLength)?;
            let segment = SegmentId(u32::from_le_bytes(bytes));
            if segment.0 >= BlockAddr::MAX_SEGMENTS {
                return Err(JournalFault::JumpTarget { segment });
            }
            return Ok(JournalPosition { addr: BlockAddr::new(segment, 0), seq, link });
        }
        // Only the journal's end may follow the last block of a segment.
        let block = (at.addr.block() + self.header.blocks()).min(BlockAddr::MAX_BLOCKS - 1);
        Ok(JournalPosition { addr: BlockAddr::new(at.addr.segment(), block), seq, link })
    }
}

/// A frame that is not confirmed: it may not be in the chain.
struct Held {
    at: JournalPosition,
    frame: Frame,
    /// Whether it is another version than the one read first.
    is_alternative: bool,
    /// Versions not tried yet; `None` before they are computed.
    untried: Option<Vec<Frame>>,
}

/// Reads the journal, at import and for a scrub.
pub struct JournalReader {
    array: Rc<Array>,
    pool: u64,
    /// Position of the first frame that is not confirmed.
    next: JournalPosition,
    end: JournalPosition,
    /// Whether only the end confirms frames.
    holds_all: bool,
    /// Unconfirmed frames from `next` on: of one root, or all.
    held: Vec<Held>,
    /// Confirmed frames that are not returned yet.
    ready: VecDeque<Frame>,
    /// Why the chain broke, since the last frame was confirmed.
    broken: Option<SegmentError>,
    /// Read ahead: the first block's address, and bytes.
    window: Option<(BlockAddr, IoBuf)>,
    segments: Vec<JournalPosition>,
    /// The segment of the last frame, and whether it has copies of its blocks.
    doubled: Option<(SegmentId, bool)>,
    /// A frame has neither redundancy nor a copy.
    lacks_copies: bool,
    bytes: u64,
    repairs: Vec<(BlockAddr, Vec<u8>)>,
    /// The blocks of all frames read, for [`JournalReader::all_blocks`].
    blocks: Option<BTreeMap<BlockAddr, Vec<u8>>>,
    /// Addresses in `blocks` that are copies of other blocks.
    copies: Vec<BlockAddr>,
}

/// The blocks of a part of the journal.
pub struct JournalBlocks {
    /// Each block of each frame, and its copy if it has one; of padding, only the first block.
    pub blocks: BTreeMap<BlockAddr, Vec<u8>>,
    /// Bytes that were wrong on a device and were rewritten.
    pub repaired_bytes: u64,
}

/// Blocks of one read ahead.
const WINDOW_BLOCKS: u32 = 1024;

impl JournalReader {
    /// Reads from `start` up to, not including, `end`.
    #[must_use]
    pub fn new(array: Rc<Array>, pool: u64, start: JournalPosition, end: JournalPosition) -> Self {
        Self {
            array,
            pool,
            next: start,
            end,
            holds_all: false,
            held: Vec::new(),
            ready: VecDeque::new(),
            broken: None,
            window: None,
            segments: vec![start],
            doubled: None,
            lacks_copies: false,
            bytes: 0,
            repairs: Vec::new(),
            blocks: None,
            copies: Vec::new(),
        }
    }

    /// Returns no frame before the end confirms all of them, and keeps them in memory until then:
    /// the second attempt, when the chain broke. After a rewind, a device that lost writes may have
    /// frames of several roots left behind, which confirm each other.
    #[must_use]
    pub fn holding_all(mut self) -> Self {
        self.holds_all = true;
        self
    }

    /// The positions of the first frames in the journal's segments.
    #[must_use]
    pub fn segments(&self) -> &[JournalPosition] {
        &self.segments
    }

    /// Whether the segment that holds the journal's end has copies of its blocks; `None` when
    /// nothing of the journal is in it yet.
    #[must_use]
    pub fn is_end_doubled(&self) -> Option<bool> {
        let (segment, doubled) = self.doubled?;
        (segment == self.end.addr.segment()).then_some(doubled)
    }

    /// Whether a frame that was read has neither redundancy nor a copy: it was written when its
    /// group had redundancy.
    #[must_use]
    pub fn lacks_copies(&self) -> bool {
        self.lacks_copies
    }

    fn may_have_copies(&self, segment: SegmentId) -> bool {
        let geometry = self.array.geometry_of(segment);
        geometry.is_ok_and(|g| !g.has_redundancy() && g.doubled_rows() > 0)
    }

    /// Bytes read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks that are wrong on some device. Reading repairs nothing: the caller decides when to
    /// write them.
    #[must_use]
    pub fn take_repairs(&mut self) -> Vec<(BlockAddr, Vec<u8>)> {
        std::mem::take(&mut self.repairs)
    }

    /// Reads the whole journal, repairs what it can, and returns each block of each frame; of
    /// padding, only the first block. Copies are blocks of their own.
    ///
    /// It returns blocks and not checksums: a block that ends with its own checksum, such as
    /// padding, has the same CRC as any other such block.
    pub async fn all_blocks(self) -> Result<JournalBlocks, SegmentError> {
        let again = Self::new(self.array.clone(), self.pool, self.next, self.end).holding_all();
        match self.blocks_of_chain().await {
            Err(SegmentError::Journal { .. }) => again.blocks_of_chain().await,
            found => found,
        }
    }

    async fn blocks_of_chain(mut self) -> Result<JournalBlocks, SegmentError> {
        self.blocks = Some(BTreeMap::new());
        while self.next().await?.is_some() {}
        let blocks = self.blocks.take().expect("put there above");
        // Copies are not read above, so nothing else would find a wrong copy.
        let repairs = self.take_repairs();
        let mut doubtful: Vec<(BlockAddr, &[u8])> =
            repairs.iter().map(|(addr, bytes)| (*addr, &bytes[..])).collect();
        doubtful.extend(self.copies.iter().map(|addr| (*addr, &blocks[addr][..])));
        let repaired_bytes = repair_all(&self.array, &doubtful).await * BLOCK_BYTES;
        Ok(JournalBlocks { blocks, repaired_bytes })
    }

    /// The next frame that is not padding or a jump; `None` at the end. An error names the frame
    /// where the chain broke, when no version of it or of the held frames repairs the chain.
    pub async fn next(&mut self) -> Result<Option<Frame>, SegmentError> {
        loop {
            match self.ready.pop_front() {
                Some(frame) if matches!(frame.kind(), FrameKind::Pad | FrameKind::Jump) => {}
                Some(frame) => return Ok(Some(frame)),
                None if self.next.seq == self.end.seq => return Ok(None),
                None => self.confirm_some().await?,
            }
        }
    }

    /// Reads on until frames are confirmed: those of one root, the last, or all.
    async fn confirm_some(&mut self) -> Result<(), SegmentError> {
        loop {
            let next = match self.reached() {
                Ok(at) if at.seq != self.end.seq => self.read_frame(at).await,
                Ok(at) if at.link == self.end.link => {
                    self.confirm();
                    return Ok(());
                }
                Ok(at) => Err(self.broken_at(at, JournalFault::WrongEnd)),
                Err(error) => Err(error),
            };
            match next {
                Ok(next) => {
                    let before = self.held.last().map(|held| held.frame.header.commit);
                    let is_later = |commit| commit < next.frame.header.commit;
                    let confirms = !self.holds_all && before.is_some_and(is_later);
                    if confirms {
                        self.confirm();
                    }
                    self.held.push(next);
                    if confirms {
                        return Ok(());
                    }
                }
                Err(error) => {
                    self.broken.get_or_insert(error);
                    self.backtrack().await?;
                }
            }
        }
    }

    /// The position after the held frames.
    fn reached(&self) -> Result<JournalPosition, SegmentError> {
        match self.held.last() {
            None => Ok(self.next),
            Some(held) => {
                held.frame.follower(held.at).map_err(|fault| self.broken_at(held.at, fault))
            }
        }
    }

    /// Confirms the held frames: they are in the chain.
    fn confirm(&mut self) {
        self.broken = None;
        for held in std::mem::take(&mut self.held) {
            let Held { at, frame, is_alternative, .. } = held;
            self.next = frame.follower(at).expect("it was followed");
            if frame.kind() == FrameKind::Jump {
                self.segments.push(self.next);
            }
            let copied = frame.header.copied;
            self.doubled = Some((at.addr.segment(), copied));
            self.lacks_copies |= !copied && self.may_have_copies(at.addr.segment());
            for (index, block) in frame.bytes.chunks(BLOCK_LEN).enumerate() {
                let addr = at.addr.plus(index as u32);
                let copy = if copied { copy_of(&self.array, addr) } else { None };
                if let Some(blocks) = &mut self.blocks {
                    blocks.extend(copy.iter().chain([&addr]).map(|at| (*at, block.to_vec())));
                    self.copies.extend(copy);
                }
                if is_alternative {
                    let wrong = copy.iter().chain([&addr]).map(|at| (*at, block.to_vec()));
                    self.repairs.extend(wrong);
                }
            }
            self.ready.push_back(frame);
        }
    }

    /// After a break of the chain, takes another version of the last held frame that has one.
    async fn backtrack(&mut self) -> Result<(), SegmentError> {
        self.window = None;
        while let Some(mut held) = self.held.pop() {
            let mut untried = match held.untried.take() {
                Some(untried) => untried,
                None => {
                    let mut others = self.versions(held.at).await;
                    others.retain(|other| other.header.sum != held.frame.header.sum);
                    others
                }
            };
            if let Some(frame) = untried.pop() {
                let untried = Some(untried);
                self.held.push(Held { at: held.at, frame, is_alternative: true, untried });
                return Ok(());
            }
        }
        Err(self.broken.take().expect("the caller has noted the break"))
    }

    /// The frame at a position: as it is read, else the first version that fits.
    async fn read_frame(&mut self, at: JournalPosition) -> Result<Held, SegmentError> {
        let fault = match self.as_read(at).await {
            Ok(frame) => {
                return Ok(Held { at, frame, is_alternative: false, untried: None });
            }
            Err(fault) => fault,
        };
        self.window = None;
        let mut versions = self.versions(at).await;
        match versions.pop() {
            Some(frame) => Ok(Held { at, frame, is_alternative: true, untried: Some(versions) }),
            None => Err(self.broken_at(at, JournalFault::Unrepairable(Box::new(fault)))),
        }
    }

    async fn as_read(&mut self, at: JournalPosition) -> Result<Frame, JournalFault> {
        let first = self.read_blocks(at.addr, 1).await?;
        let header = self.check_header(at, &first)?;
        let bytes = self.read_blocks(at.addr, blocks_to_read(&header)).await?;
        header.check(&bytes)?;
        Ok(Frame { header, bytes })
    }

    /// All versions of the frame at a position, from devices, parity and copies, that fit the chain
    /// before it.
    async fn versions(&mut self, at: JournalPosition) -> Vec<Frame> {
        // A torn first block may have the same header as the whole one.
        let mut firsts: Vec<(FrameHeader, IoBuf)> = Vec::new();
        let copy = copy_of(&self.array, at.addr);
        let places = [(Some(at.addr), false), (copy, true)];
        for (addr, is_copy) in places.into_iter().filter_map(|(addr, copy)| Some((addr?, copy))) {
            for first in self.array.alternatives(addr).await.into_iter().flatten() {
                if let Ok(header) = self.check_header(at, &first) {
                    if (header.copied || !is_copy)
                        && firsts.iter().all(|(_, known)| known[..] != first[..])
                    {
                        firsts.push((header, first));
                    }
                }
            }
        }
        let mut found = Vec::new();
        'firsts: for (header, first) in firsts {
            let blocks = blocks_to_read(&header);
            // Damage is usually in one device's column: read the frame without each in turn.
            for excluded in excluded_sets(&self.array, at.addr.segment()) {
                let Ok(read) = self.array.read_reconstructed(at.addr, blocks, &excluded).await
                else {
                    continue;
                };
                let mut bytes = read.to_vec();
                bytes[..BLOCK_LEN].copy_from_slice(&first);
                if header.check(&bytes).is_ok() {
                    found.push(Frame { header, bytes });
                    continue 'firsts;
                }
            }
            if header.copied {
                let right = |bytes: &[u8]| header.check(bytes).is_ok();
                let mixed = mixed_frame(&self.array, at.addr, blocks, &first, right).await;
                found.extend(mixed.map(|bytes| Frame { header, bytes }));
            }
        }
        found
    }

    fn check_header(&self, at: JournalPosition, first: &[u8]) -> Result<FrameHeader, JournalFault> {
        let header = FrameHeader::decode(first)?;
        if header.pool != self.pool || header.seq != at.seq {
            return Err(JournalFault::OtherFrame { seq: header.seq, pool: header.pool });
        }
        if header.link != at.link {
            return Err(JournalFault::NotLinked);
        }
        Ok(header)
    }

    fn broken_at(&self, at: JournalPosition, fault: JournalFault) -> SegmentError {
        let location = self.row_location(at.addr);
        SegmentError::Journal { seq: at.seq, addr: at.addr, location, fault }
    }

    /// The location of a block's row on the devices that are present.
    fn row_location(&self, addr: BlockAddr) -> Option<RowLocation> {
        let segment = addr.segment();
        let geometry = self.array.geometry_of(segment).ok()?;
        let groups = self.array.groups();
        let number = groups.iter().position(|group| group.owns(segment));
        let members = self.array.status().into_iter();
        let members = members.filter(|member| Some(member.group) == number && !member.replacement);
        let device_names: Vec<String> = members.filter_map(|member| member.name).collect();
        let row = u64::from(addr.block() / geometry.blocks_per_row());
        let offset_bytes =
            geometry.column_start_bytes(geometry.index_of(segment)) + row * geometry.unit_bytes;
        (!device_names.is_empty()).then_some(RowLocation { device_names, offset_bytes })
    }

    async fn read_blocks(&mut self, addr: BlockAddr, blocks: u32) -> Result<Vec<u8>, JournalFault> {
        let inside = |(at, buf): &(BlockAddr, IoBuf)| {
            let have = (buf.len() / BLOCK_LEN) as u32;
            at.segment() == addr.segment()
                && addr.block() >= at.block()
                && addr.block() + blocks <= at.block() + have
        };
        if !self.window.as_ref().is_some_and(inside) {
            let geometry = self.array.geometry_of(addr.segment())?;
            let left = geometry.blocks_per_segment().saturating_sub(addr.block());
            if blocks > left {
                return Err(JournalFault::PastSegment);
            }
            let ahead = WINDOW_BLOCKS.max(blocks).min(left);
            // Blocks ahead may never have been written, and need not be readable.
            let buf = match self.array.read(addr, ahead).await {
                Ok(buf) => buf,
                Err(_) => self.array.read(addr, blocks).await?,
            };
            self.bytes += buf.len() as u64;
            self.window = Some((addr, buf));
        }
        let (at, buf) = self.window.as_ref().expect("just read");
        let start = (addr.block() - at.block()) as usize * BLOCK_LEN;
        Ok(buf[start..start + blocks as usize * BLOCK_LEN].to_vec())
    }
}

/// Blocks of a frame that are read. Of padding, only the first block matters.
fn blocks_to_read(header: &FrameHeader) -> u32 {
    if header.kind == FrameKind::Pad { 1 } else { header.blocks() }
}

/// Sets of members to exclude when a run of blocks with one checksum is wrong: none, each member
/// alone, then (where parity allows) each pair. Of a mirror, all members but each one.
fn excluded_sets(array: &Array, segment: SegmentId) -> Vec<Vec<DeviceId>> {
    let mut sets: Vec<Vec<DeviceId>> = vec![Vec::new()];
    let Ok(geometry) = array.geometry_of(segment) else { return sets };
    let number = array.groups().iter().position(|g| g.owns(segment));
    let members: Vec<DeviceId> = array
        .status()
        .into_iter()
        .filter(|member| Some(member.group) == number)
        .map(|member| member.id)
        .collect();
    if geometry.layout == Layout::Mirror {
        let but = |one: &DeviceId| members.iter().copied().filter(|id| id != one).collect();
        sets.extend(members.iter().map(but));
        return sets;
    }
    if geometry.parity_columns() >= 1 {
        sets.extend(members.iter().map(|id| vec![*id]));
    }
    if geometry.parity_columns() >= 2 {
        for (at, first) in members.iter().enumerate() {
            sets.extend(members[at + 1..].iter().map(|second| vec![*first, *second]));
        }
    }
    sets
}

#[cfg(test)]
mod tests;
