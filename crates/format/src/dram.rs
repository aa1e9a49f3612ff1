//! Log devices in memory: the header on their backup device, and the header in memory.
//!
//! The backup device begins with two slots for its header, of which the one with the higher
//! sequence number counts; the image follows. The memory begins with a header that says which
//! image it is ahead of; a byte for each chunk that the image lacks, and the content, follow.

use forebay_units::{BLOCK_BYTES, BLOCK_LEN};

use crate::checksum::crc64;
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const BACKUP_MAGIC: u64 = u64::from_le_bytes(*b"FBAYDRAM");
const MEMORY_MAGIC: u64 = u64::from_le_bytes(*b"FBAYDMEM");
const VERSION: u32 = 1;

/// Bytes of the memory that one flag stands for.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Where the image begins on the backup device.
pub const IMAGE_START_BYTES: u64 = 64 << 10;

/// What keeps the content of a log device in memory when the power fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DramProtection {
    /// Nothing: the operator accepts the loss.
    None,
    /// An uninterruptible power supply, known to a server of Network UPS Tools.
    Ups {
        /// `NAME@HOST[:PORT]`, as upsc(8) takes it.
        name: String,
    },
    /// The memory is persistent.
    Persistent,
    /// Another side of the mirror that it is part of. It is not used without one.
    Mirror,
}

impl DramProtection {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::None => out.u8(0),
            Self::Ups { name } => out.u8(1).string(name),
            Self::Persistent => out.u8(2),
            Self::Mirror => out.u8(3),
        };
    }

    fn decode(input: &mut Decoder<'_>) -> Result<Self, FormatError> {
        match input.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Ups { name: input.string()? }),
            2 => Ok(Self::Persistent),
            3 => Ok(Self::Mirror),
            other => Err(input.error(FormatFlaw::UnknownKind { kind: u16::from(other) })),
        }
    }
}

/// Where the newest content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DramPlace {
    /// On the backup device: its image is whole, and each later write goes there first.
    Image,
    /// In the memory: the image is older.
    Memory,
}

/// The header of a backup device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupHeader {
    /// Of the log device, chosen when it was made.
    pub id: u64,
    /// Raised by each header that is written.
    pub sequence: u64,
    /// Raised each time the memory begins to be ahead of the image.
    pub generation: u64,
    /// Where the newest content is.
    pub place: DramPlace,
    /// The log device's size.
    pub size_bytes: u64,
    /// What the backup device took, measured.
    pub save_bytes_per_s: u64,
    /// Path of the memory.
    pub memory: String,
    /// What keeps the memory.
    pub protection: DramProtection,
}

impl BackupHeader {
    /// Which of the two slots it goes to.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.sequence % 2 * BLOCK_BYTES
    }

    /// A block of 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(BACKUP_MAGIC).u32(VERSION);
        out.u8(match self.place {
            DramPlace::Image => 0,
            DramPlace::Memory => 1,
        });
        out.u64(self.id).u64(self.sequence).u64(self.generation);
        out.u64(self.size_bytes).u64(self.save_bytes_per_s).string(&self.memory);
        self.protection.encode(&mut out);
        sealed(out)
    }

    /// From the two slots, 8192 bytes: the newer header of those that are whole. A slot that was
    /// torn leaves the one before it.
    pub fn decode(slots: &[u8]) -> Result<Self, FormatError> {
        let mut halves = slots.chunks(BLOCK_LEN).map(Self::decode_slot);
        let first = halves.next().unwrap_or_else(|| Self::decode_slot(&[]));
        let second = halves.next().unwrap_or_else(|| Self::decode_slot(&[]));
        match (first, second) {
            (Ok(a), Ok(b)) => Ok(if a.sequence > b.sequence { a } else { b }),
            (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(only),
            (Err(_), Err(error)) if has_magic(slots, BLOCK_LEN) => Err(error),
            (Err(error), Err(_)) => Err(error),
        }
    }

    fn decode_slot(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = opened("header of a backup device", bytes, BACKUP_MAGIC)?;
        let place = match input.u8()? {
            0 => DramPlace::Image,
            1 => DramPlace::Memory,
            other => return Err(input.error(FormatFlaw::UnknownKind { kind: u16::from(other) })),
        };
        let (id, sequence, generation) = (input.u64()?, input.u64()?, input.u64()?);
        let (size_bytes, save_bytes_per_s) = (input.u64()?, input.u64()?);
        check_size(&input, size_bytes)?;
        let memory = input.string()?;
        let protection = DramProtection::decode(&mut input)?;
        Ok(Self {
            id,
            sequence,
            generation,
            place,
            size_bytes,
            save_bytes_per_s,
            memory,
            protection,
        })
    }
}

/// The header at the begin of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHeader {
    /// Of the log device.
    pub id: u64,
    /// That of the backup device's header while the memory is ahead of the image.
    pub generation: u64,
    /// The log device's size.
    pub size_bytes: u64,
    /// What keeps the memory, when there is no backup device whose header says it.
    pub alone: Option<DramProtection>,
}

impl MemoryHeader {
    /// A block of 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(MEMORY_MAGIC).u32(VERSION);
        out.u64(self.id).u64(self.generation).u64(self.size_bytes);
        match &self.alone {
            None => {
                out.u8(0);
            }
            Some(protection) => {
                out.u8(1);
                protection.encode(&mut out);
            }
        }
        sealed(out)
    }

    /// From a block of 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = opened("header of a log device's memory", bytes, MEMORY_MAGIC)?;
        let (id, generation, size_bytes) = (input.u64()?, input.u64()?, input.u64()?);
        check_size(&input, size_bytes)?;
        let alone = match input.u8()? {
            0 => None,
            1 => Some(DramProtection::decode(&mut input)?),
            other => return Err(input.error(FormatFlaw::UnknownKind { kind: u16::from(other) })),
        };
        Ok(Self { id, generation, size_bytes, alone })
    }
}

/// Chunks of a log device of `size_bytes`.
#[must_use]
pub fn chunks_of(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(CHUNK_BYTES)
}

/// Where the content begins in the memory of a log device of `size_bytes`: after the header and a
/// byte for each chunk.
#[must_use]
pub fn content_start_bytes(size_bytes: u64) -> u64 {
    BLOCK_BYTES + chunks_of(size_bytes).next_multiple_of(BLOCK_BYTES)
}

/// What the first block of a device says of a log device in memory, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DramKind {
    /// It is the backup device of one.
    Backup,
    /// It is the memory of one.
    Memory,
}

impl DramKind {
    /// By the magic numbers of the two slots of a header.
    #[must_use]
    pub fn of(slots: &[u8]) -> Option<Self> {
        if has_magic(slots, 0) || has_magic(slots, BLOCK_LEN) {
            return Some(Self::Backup);
        }
        (slots.get(..8) == Some(&MEMORY_MAGIC.to_le_bytes())).then_some(Self::Memory)
    }
}

fn has_magic(slots: &[u8], at: usize) -> bool {
    slots.get(at..at + 8) == Some(&BACKUP_MAGIC.to_le_bytes())
}

fn sealed(out: Encoder) -> Vec<u8> {
    let mut bytes = out.finish();
    bytes.resize(BLOCK_LEN - 8, 0);
    let sum = crc64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks magic number, sum and version.
fn opened<'a>(what: &'static str, bytes: &'a [u8], magic: u64) -> Result<Decoder<'a>, FormatError> {
    let mut input = Decoder::new(what, bytes);
    if input.u64()? != magic {
        return Err(input.error(FormatFlaw::NoMagic));
    }
    if bytes.len() != BLOCK_LEN {
        let (expected_bytes, found_bytes) = (BLOCK_LEN, bytes.len());
        return Err(input.error(FormatFlaw::Length { expected_bytes, found_bytes }));
    }
    let (body, sum) = bytes.split_at(BLOCK_LEN - 8);
    let stored = u64::from_le_bytes(sum.try_into().expect("eight bytes"));
    input.check_sum(stored, crc64(body))?;
    let found = input.u32()?;
    if found != VERSION {
        return Err(input.error(FormatFlaw::Version { expected: VERSION, found }));
    }
    Ok(input)
}

/// A size is a whole number of blocks, and leaves room to count with.
fn check_size(input: &Decoder<'_>, size_bytes: u64) -> Result<(), FormatError> {
    const SIZE_MAX_BYTES: u64 = 1 << 48;
    if size_bytes == 0 || size_bytes % BLOCK_BYTES != 0 || size_bytes > SIZE_MAX_BYTES {
        return Err(input.error(FormatFlaw::Reserved { found: size_bytes as u32 }));
    }
    Ok(())
}
