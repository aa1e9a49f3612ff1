//! Packed blocks: compressed units of volumes, one after the other in blocks of a hidden volume.
//!
//! A *unit* is one to four consecutive blocks of a volume, compressed together. Units fill packed
//! blocks without regard to borders: the last unit that begins in a packed block may go on in the
//! next ones. Each packed block says which units begin in it, whose they are, and how long.

use forebay_units::{BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use crate::{Decoder, Encoder, FormatError, FormatFlaw};

mod packer;

pub use packer::{PackedBlock, Packer};

/// The hidden volume of packed blocks. Since version 8 of the superblock.
pub const PACKED_VOLUME: VolumeId = VolumeId(u32::MAX - 2);
/// Addresses in segments from this one up to [`PACKED_REF_END`] are references into packed blocks,
/// and no places on media.
pub const PACKED_REF_SEGMENT: SegmentId = SegmentId(0xe_0000);
/// The first segment after those of references.
pub const PACKED_REF_END: SegmentId = SegmentId(0xf_fff0);
/// Packed blocks that a pool can have at a time: 8 TiB.
pub const MAX_PACKED_BLOCKS: u64 = ((PACKED_REF_END.0 - PACKED_REF_SEGMENT.0) as u64)
    * BlockAddr::MAX_BLOCKS as u64
    / REFS_OF_A_BLOCK;

/// Most blocks of a unit.
pub const MAX_UNIT_BLOCKS: usize = 4;
/// Most bytes of a compressed unit.
pub const MAX_UNIT_BYTES: usize = MAX_UNIT_BLOCKS * BLOCK_LEN * 7 / 8;

/// References into one packed block: sixteen slots of four blocks.
const REFS_OF_A_BLOCK: u64 = 64;
/// Slots of units that lie in one packed block. A unit in a slot from here on is the last that
/// begins in its block, and goes on in 1, 2 or 3 further ones.
const WHOLE_SLOTS: u8 = 13;
/// Most further blocks that a unit goes on in.
const MAX_FURTHER: u64 = PackedRef::MAX_FURTHER;

const WHAT: &str = "packed block";
/// First byte of a packed block.
const VERSION: u8 = 1;
/// Bytes before the table of units.
const HEAD_BYTES: usize = 4;
/// Bytes of a unit in the table.
const ENTRY_BYTES: usize = 12;
/// Bytes of a packed block for units and their entries in the table.
pub const PACKED_ROOM_BYTES: usize = BLOCK_LEN - HEAD_BYTES;

/// How a unit is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// A block of LZ4.
    Lz4,
    /// A frame of Zstandard.
    Zstd,
}

impl Codec {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A reference to one block of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedRef {
    /// The packed block in which the unit begins.
    pub block: Lba,
    /// The unit's slot.
    pub slot: u8,
    /// Which block of the unit.
    pub index: u8,
}

impl PackedRef {
    /// Packed blocks that a unit may go on in, after the one that it begins in.
    pub const MAX_FURTHER: u64 = 3;

    /// The reference as an address. Panics from [`MAX_PACKED_BLOCKS`] on.
    #[must_use]
    pub fn addr(self) -> BlockAddr {
        assert!(self.block.0 < MAX_PACKED_BLOCKS, "packed block {} is out of range", self.block);
        let place = u64::from(self.slot) * MAX_UNIT_BLOCKS as u64 + u64::from(self.index);
        let first = BlockAddr::new(PACKED_REF_SEGMENT, 0).raw();
        BlockAddr::from_raw(first + self.block.0 * REFS_OF_A_BLOCK + place)
    }

    /// What an address refers to, if it is a reference into a packed block.
    #[must_use]
    pub fn of(addr: BlockAddr) -> Option<Self> {
        if !(PACKED_REF_SEGMENT..PACKED_REF_END).contains(&addr.segment()) {
            return None;
        }
        let place = addr.raw() - BlockAddr::new(PACKED_REF_SEGMENT, 0).raw();
        let (block, place) = (Lba(place / REFS_OF_A_BLOCK), place % REFS_OF_A_BLOCK);
        let units = MAX_UNIT_BLOCKS as u64;
        Some(Self { block, slot: (place / units) as u8, index: (place % units) as u8 })
    }

    /// Packed blocks that the unit lies in, from `self.block` on.
    #[must_use]
    pub fn span(self) -> u64 {
        1 + u64::from((self.slot + 1).saturating_sub(WHOLE_SLOTS))
    }
}

/// A compressed unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The volume that wrote it.
    pub volume: VolumeId,
    /// Its first block there.
    pub lba: Lba,
    /// Its blocks, 1 to 4.
    pub blocks: u8,
    /// How it is compressed.
    pub codec: Codec,
    /// The compressed bytes.
    pub bytes: Vec<u8>,
}

/// A unit in the table of the packed block that it begins in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitEntry {
    /// The volume that wrote it.
    pub volume: VolumeId,
    /// Its first block there.
    pub lba: Lba,
    /// Its blocks, 1 to 4.
    pub blocks: u8,
    /// How it is compressed.
    pub codec: Codec,
    /// Its slot.
    pub slot: u8,
    /// Its compressed bytes, those in further blocks included.
    len_bytes: usize,
    /// Where it begins in the block.
    start: usize,
}

impl UnitEntry {
    /// The reference to one of its blocks, where the unit begins in packed block `block`.
    #[must_use]
    pub fn reference(&self, block: Lba, index: u8) -> PackedRef {
        PackedRef { block, slot: self.slot, index }
    }

    /// The room that it takes in packed blocks.
    #[must_use]
    pub fn room_bytes(&self) -> usize {
        room_of(self.len_bytes)
    }
}

/// The room that a unit of `len_bytes` takes in packed blocks. Its slot is a part of a block too,
/// however short the unit is.
#[must_use]
pub fn room_of(len_bytes: usize) -> usize {
    (ENTRY_BYTES + len_bytes).max(PACKED_ROOM_BYTES / usize::from(WHOLE_SLOTS))
}

/// The table of a packed block.
#[derive(Clone, Debug)]
pub struct PackedTable {
    /// The units that begin in the block.
    pub units: Vec<UnitEntry>,
    /// Where the end of the last unit of the blocks before lies.
    continued: std::ops::Range<usize>,
}

fn flawed(expected_bytes: usize, found_bytes: usize) -> FormatError {
    FormatError::new(WHAT, FormatFlaw::Length { expected_bytes, found_bytes })
}

impl PackedTable {
    /// Reads the table of a packed block.
    pub fn read(block: &[u8]) -> Result<Self, FormatError> {
        if block.len() != BLOCK_LEN {
            return Err(flawed(BLOCK_LEN, block.len()));
        }
        let mut input = Decoder::new(WHAT, block);
        let version = input.u8()?;
        input.check_version(version.into(), VERSION.into())?;
        let count = usize::from(input.u8()?);
        let continued = usize::from(input.u16()?);
        let mut start = HEAD_BYTES + count * ENTRY_BYTES;
        let continued = start..start + continued;
        if continued.end > BLOCK_LEN {
            return Err(flawed(BLOCK_LEN, continued.end));
        }
        start = continued.end;
        let mut units: Vec<UnitEntry> = Vec::with_capacity(count);
        for index in 0..count {
            let (volume, lba) = (VolumeId(input.u32()?), Lba(input.u40()?));
            let kind = input.u8()?;
            let len_bytes = usize::from(input.u16()?);
            let (blocks, codec) = (kind & 15, Codec::from_number(kind >> 4));
            let flaw = FormatFlaw::UnknownKind { kind: kind.into() };
            let is_right = (1..=MAX_UNIT_BLOCKS as u8).contains(&blocks);
            let Some(codec) = codec.filter(|_| is_right) else {
                return Err(input.error(flaw));
            };
            let here = BLOCK_LEN - start;
            let further = len_bytes.saturating_sub(here).div_ceil(BLOCK_LEN - HEAD_BYTES);
            let slot = match further {
                0 => index as u8,
                _ => WHOLE_SLOTS - 1 + further.min(usize::from(u8::MAX - WHOLE_SLOTS)) as u8,
            };
            let is_last = index + 1 == count;
            let fits = if further == 0 { slot < WHOLE_SLOTS } else { is_last };
            if !fits || further as u64 > MAX_FURTHER || len_bytes > MAX_UNIT_BYTES {
                return Err(flawed(here, len_bytes));
            }
            units.push(UnitEntry { volume, lba, blocks, codec, slot, len_bytes, start });
            start += len_bytes;
        }
        Ok(Self { units, continued })
    }

    /// Whether a unit of the blocks before goes on in this one.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        !self.continued.is_empty()
    }

    /// Blocks of volumes that would lie in the block if units like its own filled it, those of
    /// units that lie there in part included.
    #[must_use]
    pub fn fitting_blocks(&self) -> u64 {
        let here = |unit: &UnitEntry| room_of(unit.len_bytes.min(BLOCK_LEN - unit.start)) as u64;
        let (mut room, begun) = (self.continued.len() as u64, self.units.len() as u64);
        let mut blocks: u64 = self.units.iter().map(|unit| u64::from(unit.blocks)).sum();
        if self.is_continued() {
            // How many blocks that unit has is not said here: as many as the others.
            blocks += blocks.checked_div(begun).unwrap_or(MAX_UNIT_BLOCKS as u64);
        }
        room += self.units.iter().map(here).sum::<u64>();
        (blocks * PACKED_ROOM_BYTES as u64).checked_div(room).unwrap_or(0)
    }
}

/// The unit in slot `slot` of the first of `blocks`, which are the packed blocks that it lies in.
pub fn unit_in(blocks: &[&[u8]], slot: u8) -> Result<(UnitEntry, Vec<u8>), FormatError> {
    let first = blocks.first().copied().unwrap_or_default();
    let units = PackedTable::read(first)?.units;
    let missing = FormatFlaw::UnknownKind { kind: slot.into() };
    let found = units.into_iter().find(|unit| unit.slot == slot);
    let unit = found.ok_or_else(|| FormatError::new(WHAT, missing))?;
    let here = unit.len_bytes.min(BLOCK_LEN - unit.start);
    let mut bytes = first[unit.start..unit.start + here].to_vec();
    for block in &blocks[1..] {
        let part = PackedTable::read(block)?.continued;
        bytes.extend_from_slice(&block[part]);
    }
    if bytes.len() != unit.len_bytes {
        return Err(flawed(unit.len_bytes, bytes.len()));
    }
    Ok((unit, bytes))
}

#[cfg(test)]
mod tests;
