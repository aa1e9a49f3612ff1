//! Labels: the fixed structures on a device: the configuration's envelope, heartbeat and log mark.
//!
//! A label area is at the front and one at the end of a device: two slots for the configuration, a
//! heartbeat block, two log mark blocks, and a ring of superblock slots. Slots and marks are
//! written alternately; heartbeat and log marks are at the front only.

use forebay_units::FrameSeq;

use crate::checksum::crc64;
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

/// Size of a label area.
pub const LABEL_BYTES: u64 = 1 << 20;
/// Size of one of the two configuration slots, at the start of the area.
pub const CONFIG_SLOT_BYTES: u64 = 384 << 10;
/// Offset of the heartbeat block in the area.
pub const HEARTBEAT_OFFSET_BYTES: u64 = 768 << 10;
/// Offset of the first of two log mark blocks in the area; the second follows it.
pub const LOG_MARK_OFFSET_BYTES: u64 = 772 << 10;
/// Size of a log mark block.
pub const LOG_MARK_BYTES: u64 = 4096;
/// Offset of the superblock ring in the area.
pub const SUPERBLOCK_OFFSET_BYTES: u64 = 832 << 10;
/// Slots in the superblock ring.
pub const SUPERBLOCK_SLOTS: u64 = 32;
/// Size of a superblock slot.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// The smallest device that a pool takes.
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;

/// First byte of the label areas of a device of `size_bytes`: front and end.
#[must_use]
pub fn label_offsets(size_bytes: u64) -> [u64; 2] {
    [0, size_bytes / LABEL_BYTES * LABEL_BYTES - LABEL_BYTES]
}

/// Bytes between the two label areas: first and past the last.
#[must_use]
pub fn body_range(size_bytes: u64) -> (u64, u64) {
    (LABEL_BYTES, label_offsets(size_bytes)[1])
}

const CONFIG_MAGIC: u64 = u64::from_le_bytes(*b"FBAYCONF");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;

/// The envelope of a configuration: its pool, its generation, and the device that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEnvelope {
    /// The pool.
    pub pool: u64,
    /// The device that this copy was written to.
    pub device: u32,
    /// Generation of the configuration; the superblock names the one that counts.
    pub generation: u64,
    /// The configuration itself, JSON ([`crate::config::PoolConfig`]).
    pub body: Vec<u8>,
}

impl ConfigEnvelope {
    /// The slot that this generation goes to, as an offset in a label area.
    #[must_use]
    pub fn slot_offset_bytes(generation: u64) -> u64 {
        generation % 2 * CONFIG_SLOT_BYTES
    }

    /// Bytes for the slot, a multiple of 4096. Fails when the body does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let total = HEADER_BYTES + self.body.len();
        if total as u64 > CONFIG_SLOT_BYTES {
            let (len_bytes, slot_bytes) = (total, CONFIG_SLOT_BYTES);
            let flaw = FormatFlaw::ConfigTooLong { len_bytes, slot_bytes };
            return Err(FormatError::new("configuration", flaw));
        }
        let mut out = Encoder::new();
        out.u64(CONFIG_MAGIC).u32(VERSION).u32(self.device).u64(self.pool).u64(self.generation);
        out.u32(self.body.len() as u32).u32(0).u64(0).bytes(&self.body);
        let mut bytes = out.finish();
        let sum = crc64(&bytes);
        bytes[40..48].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        Ok(bytes)
    }

    /// From the bytes of a slot.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("configuration", bytes);
        if input.u64()? != CONFIG_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let version = input.u32()?;
        input.check_version(version, VERSION)?;
        let (device, pool, generation) = (input.u32()?, input.u64()?, input.u64()?);
        let len = input.u32()? as usize;
        let _ = input.u32()?;
        let sum = input.u64()?;
        let body = input.bytes(len)?.to_vec();
        let mut check = bytes[..HEADER_BYTES + len].to_vec();
        check[40..48].fill(0);
        input.check_sum(sum, crc64(&check))?;
        Ok(Self { pool, device, generation, body })
    }
}

/// The progress of the log, as a data device knows it. The log is on other devices, which may come
/// back without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogMark {
    /// The epoch of its frames; 0 when there is no mark.
    pub epoch: u32,
    /// Every frame up to this one was durable.
    pub watermark: FrameSeq,
}

const LOG_MARK_MAGIC: u64 = u64::from_le_bytes(*b"FBAYMARK");

impl LogMark {
    /// A block of [`LOG_MARK_BYTES`], for pool `pool`.
    #[must_use]
    pub fn encode(&self, pool: u64) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(LOG_MARK_MAGIC).u64(pool).u32(self.epoch).u32(0).u64(self.watermark.0);
        let mut bytes = out.finish();
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(LOG_MARK_BYTES as usize, 0);
        bytes
    }

    /// From a block; with the pool that it belongs to.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), FormatError> {
        let mut input = Decoder::new("log mark", bytes);
        if input.u64()? != LOG_MARK_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let (pool, epoch, _) = (input.u64()?, input.u32()?, input.u32()?);
        let mark = Self { epoch, watermark: FrameSeq(input.u64()?) };
        let sum = input.u64()?;
        input.check_sum(sum, crc64(&bytes[..32]))?;
        Ok((pool, mark))
    }
}

/// The heartbeat of the process that has the pool imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The pool.
    pub pool: u64,
    /// Chosen anew at each import.
    pub nonce: u64,
    /// Hash of the machine's identity.
    pub host: u64,
    /// Counts up while the pool is imported; 0 after an export.
    pub beat: u64,
}

const HEARTBEAT_MAGIC: u64 = u64::from_le_bytes(*b"FBAYBEAT");

impl Heartbeat {
    /// A block of 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(HEARTBEAT_MAGIC).u64(self.pool).u64(self.nonce).u64(self.host).u64(self.beat);
        let mut bytes = out.finish();
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(4096, 0);
        bytes
    }

    /// From a block.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("heartbeat", bytes);
        if input.u64()? != HEARTBEAT_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let (pool, nonce, host, beat) = (input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        let sum = input.u64()?;
        input.check_sum(sum, crc64(&bytes[..40]))?;
        Ok(Self { pool, nonce, host, beat })
    }
}
