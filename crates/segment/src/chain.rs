//! The map journal, read back: the chain of frames that a root holds, and nothing else.
//!
//! After a crash rows that no root knew are written again. A device that loses such a write still
//! holds what the crashed run had put there: a whole frame, at the right place, with the right
//! number. Only the next frame, or the root, tells that it is not in the chain. So frames are held
//! back until a frame of a later root follows them (which is written only once theirs counts) or
//! the end confirms them; when the chain breaks, the reader goes back through what it holds and
//! tries other versions: other copies, or what parity makes of the other columns.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_array::{Array, Layout};
use forebay_device::{DeviceError, ErrorKind, IoBuf, Operation};
use forebay_format::journal::{FrameHeader, FrameKind, HEADER_BYTES};
use forebay_format::superblock::JournalPosition;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, SegmentId};

use crate::copies::{copy_of, mixed_frame, repair_all};

/// A frame, whole and in its place in the chain.
#[derive(Clone, Debug)]
pub struct Frame {
    header: FrameHeader,
    /// From the header on; of padding the first block only.
    bytes: Vec<u8>,
}

impl Frame {
    /// What it holds.
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

    fn follower(&self, at: JournalPosition) -> Result<JournalPosition, String> {
        let (seq, link) = (at.seq + 1, self.header.sum);
        if self.header.kind == FrameKind::Jump {
            let bytes: [u8; 4] =
                self.payload().try_into().map_err(|_| "a jump of a wrong length".to_owned())?;
            let segment = SegmentId(u32::from_le_bytes(bytes));
            if segment.0 >= BlockAddr::MAX_SEGMENTS {
                return Err("jumps out of the pool".to_owned());
            }
            return Ok(JournalPosition { addr: BlockAddr::new(segment, 0), seq, link });
        }
        // Behind the last block of a segment there is nothing but the end.
        let block = (at.addr.block() + self.header.blocks()).min(BlockAddr::MAX_BLOCKS - 1);
        Ok(JournalPosition { addr: BlockAddr::new(at.addr.segment(), block), seq, link })
    }
}

/// A frame that may still turn out not to be in the chain.
struct Held {
    at: JournalPosition,
    frame: Frame,
    /// Whether it is not what was read at first.
    other: bool,
    /// Versions not tried yet; `None` when nobody asked for them.
    untried: Option<Vec<Frame>>,
}

/// Reads the journal at import, and for a scrub.
pub struct JournalReader {
    array: Rc<Array>,
    pool: u64,
    /// Where the first frame lies that is not confirmed.
    next: JournalPosition,
    end: JournalPosition,
    /// Frames of one root behind `next`.
    held: Vec<Held>,
    /// Frames confirmed and not given yet.
    ready: VecDeque<Frame>,
    /// Why the chain broke, since the last frame was confirmed.
    broken: Option<DeviceError>,
    /// Read ahead: the first block's address, and bytes.
    window: Option<(BlockAddr, IoBuf)>,
    segments: Vec<JournalPosition>,
    /// Whether the last segment from which a frame came has copies of its blocks.
    doubled: Option<(SegmentId, bool)>,
    bytes: u64,
    repairs: Vec<(BlockAddr, Vec<u8>)>,
    /// The blocks of all frames read, when they are wanted.
    blocks: Option<BTreeMap<BlockAddr, Vec<u8>>>,
    /// Which of them are copies of others.
    copies: Vec<BlockAddr>,
}

/// What the blocks of a part of the journal hold.
pub struct JournalBlocks {
    /// Each block of each frame, and its copy where there is one; of padding the first.
    pub blocks: BTreeMap<BlockAddr, Vec<u8>>,
    /// Bytes that were wrong on some device, and were rewritten.
    pub repaired_bytes: u64,
}

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
            held: Vec::new(),
            ready: VecDeque::new(),
            broken: None,
            window: None,
            segments: vec![start],
            doubled: None,
            bytes: 0,
            repairs: Vec::new(),
            blocks: None,
            copies: Vec::new(),
        }
    }

    /// Segments that hold the journal: where the first frames in them are.
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

    /// Bytes read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks that some device holds otherwise than they should be. Reading changes nothing: who
    /// reads decides when they are written.
    #[must_use]
    pub fn take_repairs(&mut self) -> Vec<(BlockAddr, Vec<u8>)> {
        std::mem::take(&mut self.repairs)
    }

    /// Reads everything, repairs what it can, and gives each block of each frame (of padding the
    /// first). Not their checksums: a block that ends with its own checksum, and padding is one,
    /// has the same CRC as any other such block. Where there are copies, they are blocks of their own.
    pub async fn all_blocks(mut self) -> Result<JournalBlocks, DeviceError> {
        self.blocks = Some(BTreeMap::new());
        while self.next().await?.is_some() {}
        let blocks = self.blocks.take().expect("put there above");
        // Nobody has looked at the copies, and nothing else would show that they are wrong.
        let repairs = self.take_repairs();
        let mut doubtful: Vec<(BlockAddr, &[u8])> =
            repairs.iter().map(|(addr, bytes)| (*addr, &bytes[..])).collect();
        doubtful.extend(self.copies.iter().map(|addr| (*addr, &blocks[addr][..])));
        let repaired_bytes = repair_all(&self.array, &doubtful).await * BLOCK_BYTES;
        Ok(JournalBlocks { blocks, repaired_bytes })
    }

    /// The next frame that says something; `None` at the end. An error names the frame at which
    /// the chain broke, when no version of it, or of those before it, mends it.
    pub async fn next(&mut self) -> Result<Option<Frame>, DeviceError> {
        loop {
            match self.ready.pop_front() {
                Some(frame) if matches!(frame.kind(), FrameKind::Pad | FrameKind::Jump) => {}
                Some(frame) => return Ok(Some(frame)),
                None if self.next.seq == self.end.seq => return Ok(None),
                None => self.confirm_some().await?,
            }
        }
    }

    /// Reads on until frames are confirmed: those of one root, or the last.
    async fn confirm_some(&mut self) -> Result<(), DeviceError> {
        loop {
            let next = match self.reached() {
                Ok(at) if at.seq != self.end.seq => self.read_frame(at).await,
                Ok(at) if at.link == self.end.link => {
                    self.confirm();
                    return Ok(());
                }
                Ok(at) => Err(self.corrupt(at, "the frame before is not the one the root names")),
                Err(why) => Err(why),
            };
            match next {
                Ok(next) => {
                    let before = self.held.last().map(|held| held.frame.header.commit);
                    let confirms = before.is_some_and(|commit| commit < next.frame.header.commit);
                    if confirms {
                        self.confirm();
                    }
                    self.held.push(next);
                    if confirms {
                        return Ok(());
                    }
                }
                Err(why) => {
                    self.broken.get_or_insert(why);
                    self.go_back().await?;
                }
            }
        }
    }

    /// Where the chain goes on behind what is held.
    fn reached(&self) -> Result<JournalPosition, DeviceError> {
        match self.held.last() {
            None => Ok(self.next),
            Some(held) => {
                held.frame.follower(held.at).map_err(|detail| self.corrupt(held.at, &detail))
            }
        }
    }

    /// What is held is in the chain.
    fn confirm(&mut self) {
        self.broken = None;
        for held in std::mem::take(&mut self.held) {
            let Held { at, frame, other, .. } = held;
            self.next = frame.follower(at).expect("it was followed");
            if frame.kind() == FrameKind::Jump {
                self.segments.push(self.next);
            }
            let copied = frame.header.copied;
            self.doubled = Some((at.addr.segment(), copied));
            for (index, block) in frame.bytes.chunks(BLOCK_LEN).enumerate() {
                let addr = at.addr.plus(index as u32);
                let copy = if copied { copy_of(&self.array, addr) } else { None };
                if let Some(blocks) = &mut self.blocks {
                    blocks.extend(copy.iter().chain([&addr]).map(|at| (*at, block.to_vec())));
                    self.copies.extend(copy);
                }
                if other {
                    let wrong = copy.iter().chain([&addr]).map(|at| (*at, block.to_vec()));
                    self.repairs.extend(wrong);
                }
            }
            self.ready.push_back(frame);
        }
    }

    /// The chain broke: takes another version of the last frame that has one.
    async fn go_back(&mut self) -> Result<(), DeviceError> {
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
                self.held.push(Held { at: held.at, frame, other: true, untried });
                return Ok(());
            }
        }
        Err(self.broken.take().expect("who goes back says why"))
    }

    /// The frame at a place: as it is read, else the first version that fits.
    async fn read_frame(&mut self, at: JournalPosition) -> Result<Held, DeviceError> {
        let detail = match self.as_read(at).await {
            Ok(frame) => return Ok(Held { at, frame, other: false, untried: None }),
            Err(detail) => detail,
        };
        self.window = None;
        let mut versions = self.versions(at).await;
        match versions.pop() {
            Some(frame) => Ok(Held { at, frame, other: true, untried: Some(versions) }),
            None => Err(self.corrupt(at, &format!("{detail}; no copy or parity repairs it"))),
        }
    }

    async fn as_read(&mut self, at: JournalPosition) -> Result<Frame, String> {
        let first = self.read_blocks(at.addr, 1).await?;
        let header = self.judge(at, &first)?;
        let bytes = self.read_blocks(at.addr, blocks_to_read(&header)).await?;
        header.check(&bytes).map_err(|e| e.to_string())?;
        Ok(Frame { header, bytes })
    }

    /// All frames that devices, parity and copies can make of a place and that fit the chain before it.
    async fn versions(&mut self, at: JournalPosition) -> Vec<Frame> {
        // A torn first block may have the same header as the whole one.
        let mut firsts: Vec<(FrameHeader, IoBuf)> = Vec::new();
        let copy = copy_of(&self.array, at.addr);
        let places = [(Some(at.addr), false), (copy, true)];
        for (addr, is_copy) in places.into_iter().filter_map(|(addr, copy)| Some((addr?, copy))) {
            for first in self.array.alternatives(addr).await.into_iter().flatten() {
                if let Ok(header) = self.judge(at, &first)
                    && (header.copied || !is_copy)
                    && firsts.iter().all(|(_, known)| known[..] != first[..])
                {
                    firsts.push((header, first));
                }
            }
        }
        let mut found = Vec::new();
        'firsts: for (header, first) in firsts {
            let blocks = blocks_to_read(&header);
            // The damage is in one device's column mostly: the whole frame without each in turn.
            for skip in doubted_sets(&self.array, at.addr.segment()) {
                let Ok(read) = self.array.read_reconstructed(at.addr, blocks, &skip).await else {
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

    fn judge(&self, at: JournalPosition, first: &[u8]) -> Result<FrameHeader, String> {
        let header = FrameHeader::decode(first).map_err(|e| e.to_string())?;
        if header.pool != self.pool || header.seq != at.seq {
            return Err(format!("found frame {} of pool {:x}", header.seq, header.pool));
        }
        if header.link != at.link {
            return Err("it does not follow the frame before it".to_owned());
        }
        Ok(header)
    }

    fn corrupt(&self, at: JournalPosition, detail: &str) -> DeviceError {
        let places = self.places(at.addr);
        let detail = format!("map journal frame {} at {}{places}: {detail}", at.seq, at.addr);
        DeviceError::new("pool", Operation::Read, 0, 0, ErrorKind::Corrupt { detail })
    }

    /// Where the row of a block lies on the devices that are here, in words.
    fn places(&self, addr: BlockAddr) -> String {
        let segment = addr.segment();
        let Ok(geometry) = self.array.geometry_of(segment) else { return String::new() };
        let groups = self.array.groups();
        let number = groups.iter().position(|group| group.owns(segment));
        let members = self.array.status().into_iter();
        let members = members.filter(|member| Some(member.group) == number && !member.replacement);
        let names: Vec<String> = members.filter_map(|member| member.name).collect();
        let row = u64::from(addr.block() / geometry.blocks_per_row());
        let offset_bytes =
            geometry.column_start_bytes(geometry.index_of(segment)) + row * geometry.unit_bytes;
        match names[..] {
            [] => String::new(),
            _ => format!(" (offset {offset_bytes} of {})", names.join(", ")),
        }
    }

    async fn read_blocks(&mut self, addr: BlockAddr, blocks: u32) -> Result<Vec<u8>, String> {
        let inside = |(at, buf): &(BlockAddr, IoBuf)| {
            let have = (buf.len() / BLOCK_LEN) as u32;
            at.segment() == addr.segment()
                && addr.block() >= at.block()
                && addr.block() + blocks <= at.block() + have
        };
        if !self.window.as_ref().is_some_and(inside) {
            let geometry = self.array.geometry_of(addr.segment()).map_err(|e| e.to_string())?;
            let left = geometry.blocks_per_segment().saturating_sub(addr.block());
            if blocks > left {
                return Err("reaches past its segment".to_owned());
            }
            let ahead = WINDOW_BLOCKS.max(blocks).min(left);
            // What lies ahead may never have been written, and need not be readable.
            let buf = match self.array.read(addr, ahead).await {
                Ok(buf) => buf,
                Err(_) => self.array.read(addr, blocks).await.map_err(|e| e.to_string())?,
            };
            self.bytes += buf.len() as u64;
            self.window = Some((addr, buf));
        }
        let (at, buf) = self.window.as_ref().expect("just read");
        let start = (addr.block() - at.block()) as usize * BLOCK_LEN;
        Ok(buf[start..start + blocks as usize * BLOCK_LEN].to_vec())
    }
}

/// Padding says nothing behind its first block.
fn blocks_to_read(header: &FrameHeader) -> u32 {
    if header.kind == FrameKind::Pad { 1 } else { header.blocks() }
}

/// Sets of members to leave out when a run of blocks that is checked as a whole is wrong: none,
/// each one alone, then (where parity allows) each pair; of a mirror, all but each one.
fn doubted_sets(array: &Array, segment: SegmentId) -> Vec<Vec<DeviceId>> {
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
