//! A device in an object store: entries of its chain, checkpoints, and the names of objects.
//!
//! Entry `n` is the object `chain/n`, created only if it does not exist yet, so a store gives each
//! place in the chain to one writer. A checkpoint is what the entries up to a place come to.

use crate::checksum::crc64;
use crate::{Decoder, Encoder, FormatError, FormatFlaw, varint};

/// Bytes of a page: what a checkpoint or an entry has of a label area.
pub const PAGE_BYTES: usize = 4096;

const ENTRY: Kind =
    Kind { what: "entry of an object device", magic: u64::from_le_bytes(*b"FBAYOBJE") };
const CHECKPOINT: Kind =
    Kind { what: "checkpoint of an object device", magic: u64::from_le_bytes(*b"FBAYOBJC") };
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 24;

struct Kind {
    what: &'static str,
    magic: u64,
}

/// A data object: who wrote it, and which of the writer's objects it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Drawn anew whenever the device is opened.
    pub writer: u64,
    /// Counted from 0.
    pub number: u64,
}

impl ObjectId {
    /// The name of the object, below the device's prefix.
    #[must_use]
    pub fn name(&self) -> String {
        format!("data/{:016x}-{:08x}", self.writer, self.number)
    }

    /// From a name; `None` if it is not that of a data object.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (writer, number) = name.strip_prefix("data/")?.split_once('-')?;
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let id = Self { writer: hex(writer)?, number: hex(number)? };
        (id.name() == name).then_some(id)
    }
}

/// The name of the first object of a device, below its prefix: a checkpoint of the empty device. It
/// is never deleted, so a get of it tells whether there is a device.
pub const DEVICE_NAME: &str = "device";

/// The name of an entry, below the device's prefix.
#[must_use]
pub fn entry_name(position: u64) -> String {
    format!("chain/{position:016x}")
}

/// The name of a checkpoint, below the device's prefix.
#[must_use]
pub fn checkpoint_name(position: u64) -> String {
    format!("checkpoint/{position:016x}")
}

/// The place in the chain that the name of an entry or a checkpoint has.
#[must_use]
pub fn position_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("chain/").or_else(|| name.strip_prefix("checkpoint/"))?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// A change of the device. Blocks have 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks from `first_block` on are those of an object of the entry's writer.
    Add {
        /// The object's number.
        number: u64,
        /// The first block.
        first_block: u64,
        /// Blocks of the object.
        blocks: u32,
    },
    /// Blocks are not needed any more, and read as zeros.
    Discard {
        /// The first block.
        first_block: u64,
        /// How many.
        blocks: u64,
    },
    /// The content of a block.
    Page {
        /// The block.
        block: u64,
        /// [`PAGE_BYTES`] bytes.
        bytes: Vec<u8>,
    },
    /// The writer's machine registers for reservations, in place of the key that it had.
    Register {
        /// The new key.
        key: u64,
    },
    /// The writer's machine gives up its registration, and a reservation that it holds.
    Unregister,
    /// The writer's machine reserves the device.
    Reserve,
    /// Registrations with the key `victim` end, and a reservation of theirs passes to the writer's
    /// machine.
    Preempt {
        /// The key.
        victim: u64,
    },
    /// The reservation and all registrations end.
    Clear,
}

impl Record {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::Add { number, first_block, blocks } => {
                out.u8(1);
                varint::put(out, *number);
                varint::put(out, *first_block);
                varint::put(out, u64::from(*blocks));
            }
            Self::Discard { first_block, blocks } => {
                out.u8(2);
                varint::put(out, *first_block);
                varint::put(out, *blocks);
            }
            Self::Page { block, bytes } => {
                out.u8(3);
                varint::put(out, *block);
                out.bytes(bytes);
            }
            Self::Register { key } => {
                out.u8(4).u64(*key);
            }
            Self::Unregister => {
                out.u8(5);
            }
            Self::Reserve => {
                out.u8(6);
            }
            Self::Preempt { victim } => {
                out.u8(7).u64(*victim);
            }
            Self::Clear => {
                out.u8(8);
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, FormatError> {
        Ok(match from.u8()? {
            1 => Self::Add {
                number: varint::take(from)?,
                first_block: varint::take(from)?,
                blocks: narrow(from)?,
            },
            2 => Self::Discard { first_block: varint::take(from)?, blocks: varint::take(from)? },
            3 => {
                let block = varint::take(from)?;
                Self::Page { block, bytes: from.bytes(PAGE_BYTES)?.to_vec() }
            }
            4 => Self::Register { key: from.u64()? },
            5 => Self::Unregister,
            6 => Self::Reserve,
            7 => Self::Preempt { victim: from.u64()? },
            8 => Self::Clear,
            kind => return Err(from.error(FormatFlaw::UnknownKind { kind: u16::from(kind) })),
        })
    }
}

fn narrow(from: &mut Decoder<'_>) -> Result<u32, FormatError> {
    let wide = varint::take(from)?;
    u32::try_from(wide).map_err(|_| from.error(FormatFlaw::WideInteger))
}

/// An entry: changes that count together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the chain.
    pub position: u64,
    /// Who wrote it: drawn anew whenever the device is opened.
    pub writer: u64,
    /// The writer of the entry before. The first entry of a writer is never deleted: it keeps an
    /// earlier writer from going on as if nothing had come after its own.
    pub previous: u64,
    /// The writer's machine.
    pub host: u64,
    /// The changes, in order.
    pub records: Vec<Record>,
}

impl Entry {
    /// As an object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(self.position).u64(self.writer).u64(self.previous).u64(self.host);
        self.records.iter().for_each(|record| record.encode(&mut out));
        seal(&ENTRY, &out.finish())
    }

    /// From an object.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = unseal(&ENTRY, bytes)?;
        let (position, writer) = (from.u64()?, from.u64()?);
        let (previous, host) = (from.u64()?, from.u64()?);
        let mut records = Vec::new();
        while !from.rest().is_empty() {
            records.push(Record::decode(&mut from)?);
        }
        Ok(Self { position, writer, previous, host, records })
    }
}

/// Blocks of the device that lie together in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block.
    pub first_block: u64,
    /// How many.
    pub blocks: u32,
    /// The object.
    pub object: ObjectId,
    /// The first block's place in the object, in blocks.
    pub at: u32,
}

/// What the chain comes to at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The place of the last entry in it; 0 for none.
    pub position: u64,
    /// Who wrote that entry.
    pub writer: u64,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// The machine that holds the reservation.
    pub holder: Option<u64>,
    /// Registered machines, each with its key.
    pub registrants: Vec<(u64, u64)>,
    /// Blocks of label areas that are not zero.
    pub pages: Vec<(u64, Vec<u8>)>,
    /// Objects that hold something, each with its blocks, by id.
    pub objects: Vec<(ObjectId, u32)>,
    /// Where the device's blocks are, in order.
    pub extents: Vec<Extent>,
}

impl Checkpoint {
    /// As an object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(self.position).u64(self.writer).u64(self.size_bytes);
        out.u8(u8::from(self.holder.is_some())).u64(self.holder.unwrap_or(0));
        out.u32(self.registrants.len() as u32);
        for (host, key) in &self.registrants {
            out.u64(*host).u64(*key);
        }
        out.u32(self.pages.len() as u32);
        for (block, bytes) in &self.pages {
            out.u64(*block).bytes(bytes);
        }
        out.u64(self.objects.len() as u64);
        for (ObjectId { writer, number }, blocks) in &self.objects {
            out.u64(*writer).u64(*number).u32(*blocks);
        }
        out.u64(self.extents.len() as u64);
        let mut next_block = 0;
        for Extent { first_block, blocks, object, at } in &self.extents {
            // Extents are in order, and objects are by id, so that both are found again by numbers.
            let index = self.objects.partition_point(|(id, _)| id < object);
            varint::put(&mut out, first_block - next_block);
            varint::put(&mut out, u64::from(*blocks));
            varint::put(&mut out, index as u64);
            varint::put(&mut out, u64::from(*at));
            next_block = first_block + u64::from(*blocks);
        }
        seal(&CHECKPOINT, &out.finish())
    }

    /// From an object.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = unseal(&CHECKPOINT, bytes)?;
        let (position, writer, size_bytes) = (from.u64()?, from.u64()?, from.u64()?);
        let (has_holder, holder) = (from.u8()? > 0, from.u64()?);
        let mut found = Self { position, writer, size_bytes, ..Self::default() };
        found.holder = has_holder.then_some(holder);
        for _ in 0..from.u32()? {
            found.registrants.push((from.u64()?, from.u64()?));
        }
        for _ in 0..from.u32()? {
            found.pages.push((from.u64()?, from.bytes(PAGE_BYTES)?.to_vec()));
        }
        for _ in 0..from.u64()? {
            let id = ObjectId { writer: from.u64()?, number: from.u64()? };
            if found.objects.last().is_some_and(|(last, _)| *last >= id) {
                return Err(from.error(FormatFlaw::UnknownKind { kind: 0 }));
            }
            found.objects.push((id, from.u32()?));
        }
        let mut next_block = 0u64;
        for _ in 0..from.u64()? {
            found.extents.push(extent(&mut from, &found.objects, &mut next_block)?);
        }
        match from.rest() {
            [] => Ok(found),
            rest => Err(from.error(FormatFlaw::Length {
                expected_bytes: bytes.len() - rest.len(),
                found_bytes: bytes.len(),
            })),
        }
    }
}

fn extent(
    from: &mut Decoder<'_>,
    objects: &[(ObjectId, u32)],
    next_block: &mut u64,
) -> Result<Extent, FormatError> {
    let too_wide = from.error(FormatFlaw::WideInteger);
    let first_block = next_block.checked_add(varint::take(from)?).ok_or(too_wide.clone())?;
    let blocks = narrow(from)?;
    *next_block = first_block.checked_add(u64::from(blocks)).ok_or(too_wide)?;
    let index = usize::try_from(varint::take(from)?).unwrap_or(usize::MAX);
    let at = narrow(from)?;
    let (object, len_blocks) = *objects.get(index).ok_or_else(|| {
        from.error(FormatFlaw::Length { expected_bytes: index, found_bytes: objects.len() })
    })?;
    if at.checked_add(blocks).is_none_or(|end| end > len_blocks) {
        let (expected_bytes, found_bytes) = (len_blocks as usize, at as usize);
        return Err(from.error(FormatFlaw::Length { expected_bytes, found_bytes }));
    }
    Ok(Extent { first_block, blocks, object, at })
}

/// Puts magic, version, length and checksum before a body.
fn seal(kind: &Kind, body: &[u8]) -> Vec<u8> {
    let mut out = Encoder::new();
    out.u64(kind.magic).u32(VERSION).u32(body.len() as u32).u64(crc64(body)).bytes(body);
    out.finish()
}

/// The body, if all before it is right.
fn unseal<'a>(kind: &Kind, bytes: &'a [u8]) -> Result<Decoder<'a>, FormatError> {
    let mut from = Decoder::new(kind.what, bytes);
    if from.u64()? != kind.magic {
        return Err(from.error(FormatFlaw::NoMagic));
    }
    let version = from.u32()?;
    from.check_version(version, VERSION)?;
    let len = from.u32()? as usize;
    let sum = from.u64()?;
    if bytes.len() != HEAD_BYTES + len {
        let (expected_bytes, found_bytes) = (HEAD_BYTES + len, bytes.len());
        return Err(from.error(FormatFlaw::Length { expected_bytes, found_bytes }));
    }
    from.check_sum(sum, crc64(from.rest()))?;
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let records = vec![
            Record::Add { number: 3, first_block: 1 << 34, blocks: 4096 },
            Record::Discard { first_block: 7, blocks: 1 << 33 },
            Record::Page { block: 208, bytes: vec![9; PAGE_BYTES] },
            Record::Register { key: u64::MAX },
            Record::Unregister,
            Record::Reserve,
            Record::Preempt { victim: 1 },
            Record::Clear,
        ];
        Entry { position: 12, writer: 77, previous: 76, host: 5, records }
    }

    fn checkpoint() -> Checkpoint {
        let id = |writer, number| ObjectId { writer, number };
        let extent = |first_block, blocks, object, at| Extent { first_block, blocks, object, at };
        Checkpoint {
            position: 12,
            writer: 77,
            size_bytes: 1 << 40,
            holder: Some(5),
            registrants: vec![(5, 50), (6, 60)],
            pages: vec![(208, vec![9; PAGE_BYTES])],
            objects: vec![(id(1, 9), 10), (id(77, 0), 4096)],
            extents: vec![extent(500, 7, id(77, 0), 0), extent(507, 10, id(1, 9), 0)],
        }
    }

    #[test]
    fn entries_and_checkpoints_are_read_as_they_were_written() {
        let bytes = entry().encode();
        assert_eq!(Entry::decode(&bytes).unwrap(), entry());
        let bytes = checkpoint().encode();
        assert_eq!(Checkpoint::decode(&bytes).unwrap(), checkpoint());
        let empty = Checkpoint::default();
        assert_eq!(Checkpoint::decode(&empty.encode()).unwrap(), empty);
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let (entry, checkpoint) = (entry().encode(), checkpoint().encode());
        for at in (0..entry.len() * 8).step_by(7) {
            let mut other = entry.clone();
            other[at / 8] ^= 1 << (at % 8);
            Entry::decode(&other).unwrap_err();
        }
        for at in (0..checkpoint.len() * 8).step_by(7) {
            let mut other = checkpoint.clone();
            other[at / 8] ^= 1 << (at % 8);
            Checkpoint::decode(&other).unwrap_err();
        }
        for len in [0, 7, 23, 24, 40, entry.len() - 1] {
            Entry::decode(&entry[..len]).unwrap_err();
        }
        for len in [0, 7, 23, 24, 40, checkpoint.len() - 1] {
            Checkpoint::decode(&checkpoint[..len]).unwrap_err();
        }
    }

    #[test]
    fn an_extent_lies_in_its_object() {
        let mut wrong = checkpoint();
        wrong.extents[1].blocks = 11;
        Checkpoint::decode(&wrong.encode()).unwrap_err();
        let mut unordered = checkpoint();
        unordered.objects.swap(0, 1);
        Checkpoint::decode(&unordered.encode()).unwrap_err();
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let id = ObjectId { writer: u64::MAX, number: 1 << 33 };
        assert_eq!(ObjectId::parse(&id.name()), Some(id));
        for other in ["data/1-2", "data/", "chain/0000000000000001", "data/x-y"] {
            assert_eq!(ObjectId::parse(other), None, "{other}");
        }
        assert_eq!(position_of(&entry_name(17)), Some(17));
        assert_eq!(position_of(&checkpoint_name(1 << 40)), Some(1 << 40));
        assert_eq!(position_of("chain/12"), None);
    }
}
