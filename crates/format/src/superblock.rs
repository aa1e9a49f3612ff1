//! The root of a pool: one block, written whole, in rotating slots of every device.

use forebay_units::{BlockAddr, CommitId, TxgId};

use crate::checksum::crc64;
use crate::label::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const MAGIC: u64 = u64::from_le_bytes(*b"FBAYROOT");
/// The version of new pools, and the newest that this program reads and writes. Version 6 has
/// snapshots, version 7 de-duplication, version 8 compression, version 9 promotion of clones.
pub const VERSION: u32 = 9;
/// The oldest version that this program reads and writes.
pub const OLDEST_VERSION: u32 = 5;
/// Counters for the life of the pool; the pool defines their meaning.
pub const COUNTERS: usize = 32;
/// Largest log state that fits.
pub const LOG_STATE_MAX_BYTES: usize = 3072;

/// A position in the map journal's chain of frames: that of a frame, or behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPosition {
    /// The frame's first block.
    pub addr: BlockAddr,
    /// Its sequence number.
    pub seq: u64,
    /// Checksum of the frame before it.
    pub link: u64,
}

/// The root. The pool is everything that can be reached from it, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The version of the pool's format, from [`OLDEST_VERSION`] to [`VERSION`].
    pub version: u32,
    /// The pool.
    pub pool: u64,
    /// The number of this root: the highest one counts.
    pub commit: CommitId,
    /// The root before this one. Numbers are not dense: an import leaves a gap, so that a root that
    /// a crash left behind never has the number of a later root.
    pub previous: CommitId,
    /// The last transaction group that this root contains.
    pub txg: TxgId,
    /// Generation of the configuration that belongs to it.
    pub config_generation: u64,
    /// CRC-64 of that configuration's body.
    pub config_sum: u64,
    /// First frame of the map journal; `None` when there is none yet.
    pub journal_start: Option<JournalPosition>,
    /// Position and sequence number of the next frame.
    pub journal_end: Option<JournalPosition>,
    /// Whether the pool was exported: then the log is empty.
    pub exported: bool,
    /// Seconds since 1970.
    pub written_at: u64,
    /// Chosen anew at each import.
    pub nonce: u64,
    /// Hash of the machine that has it imported.
    pub host: u64,
    /// Counters since the pool was made.
    pub counters: [u64; COUNTERS],
    /// The log's own state, as the log encodes it.
    pub log_state: Vec<u8>,
}

impl Superblock {
    /// The slot of this root in the ring of a label area.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.commit.0 % SUPERBLOCK_SLOTS
    }

    /// One slot's bytes. Panics when the log's state is too long (a bug).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.log_state.len() <= LOG_STATE_MAX_BYTES, "log state is too long");
        let mut out = Encoder::new();
        out.u64(MAGIC).u32(self.version).u32(u32::from(self.exported));
        out.u64(self.pool)
            .u64(self.commit.0)
            .u64(self.previous.0)
            .u64(self.txg.0)
            .u64(self.config_generation)
            .u64(self.config_sum);
        for position in [self.journal_start, self.journal_end] {
            let (raw, seq, link) =
                position.map_or((u64::MAX, 0, 0), |p| (p.addr.raw(), p.seq, p.link));
            out.u64(raw).u64(seq).u64(link);
        }
        out.u64(self.written_at).u64(self.nonce).u64(self.host);
        for counter in self.counters {
            out.u64(counter);
        }
        out.u32(self.log_state.len() as u32).bytes(&self.log_state);
        let mut bytes = out.finish();
        bytes.resize(SUPERBLOCK_BYTES as usize - 8, 0);
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The version of the superblock in a slot, also of one that this program cannot read; `None`
    /// when the slot holds no superblock, or a damaged one. All versions have magic, version and
    /// checksum in the same places.
    #[must_use]
    pub fn version(bytes: &[u8]) -> Option<u32> {
        let (body, sum) = bytes.split_at_checked(SUPERBLOCK_BYTES as usize - 8)?;
        let mut input = Decoder::new("superblock", body);
        let magic = input.u64().ok()?;
        (magic == MAGIC && crc64(body).to_le_bytes() == sum).then(|| input.u32().ok())?
    }

    /// From a slot's bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("superblock", bytes);
        if bytes.len() != SUPERBLOCK_BYTES as usize {
            let (expected_bytes, found_bytes) = (SUPERBLOCK_BYTES as usize, bytes.len());
            return Err(input.error(FormatFlaw::Length { expected_bytes, found_bytes }));
        }
        if input.u64()? != MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let (body, sum) = bytes.split_at(bytes.len() - 8);
        input.check_sum(Decoder::new("superblock", sum).u64()?, crc64(body))?;
        let version = input.u32()?;
        if !(OLDEST_VERSION..VERSION).contains(&version) {
            input.check_version(version, VERSION)?;
        }
        let exported = input.u32()? & 1 == 1;
        let (pool, commit) = (input.u64()?, CommitId(input.u64()?));
        let (previous, txg) = (CommitId(input.u64()?), TxgId(input.u64()?));
        let (config_generation, config_sum) = (input.u64()?, input.u64()?);
        let mut positions = [None; 2];
        for position in &mut positions {
            let (raw, seq, link) = (input.u64()?, input.u64()?, input.u64()?);
            if raw != u64::MAX {
                if raw >> BlockAddr::BITS != 0 {
                    return Err(input.error(FormatFlaw::WideAddress { raw }));
                }
                *position = Some(JournalPosition { addr: BlockAddr::from_raw(raw), seq, link });
            }
        }
        let (written_at, nonce, host) = (input.u64()?, input.u64()?, input.u64()?);
        let mut counters = [0; COUNTERS];
        for counter in &mut counters {
            *counter = input.u64()?;
        }
        let len = input.u32()? as usize;
        if len > LOG_STATE_MAX_BYTES {
            return Err(input.error(FormatFlaw::LogStateTooLong { len_bytes: len }));
        }
        let log_state = input.bytes(len)?.to_vec();
        Ok(Self {
            version,
            pool,
            commit,
            previous,
            txg,
            config_generation,
            config_sum,
            journal_start: positions[0],
            journal_end: positions[1],
            exported,
            written_at,
            nonce,
            host,
            counters,
            log_state,
        })
    }
}
