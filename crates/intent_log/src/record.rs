//! A record: one write or zeroing of a volume.

use forebay_device::IoBytes;
use forebay_format::log_frame::RecordKind;
use forebay_units::{BLOCK_BYTES, Lba, TxgId, VolumeId};

use crate::error::{LogError, RecordError};

/// One write or zeroing, as it is appended and as replay returns it.
#[derive(Clone, Debug)]
pub struct Record {
    /// The volume.
    pub volume: VolumeId,
    /// The group that takes it to the main store.
    pub txg: TxgId,
    /// Write or zeroing.
    pub kind: RecordKind,
    /// The first block.
    pub lba: Lba,
    /// Blocks, at least 1.
    pub blocks: u32,
    /// The data in any number of buffers, each of whole blocks: `blocks` times 4096 bytes in all
    /// for a write, none for zeros.
    pub data: Vec<IoBytes>,
}

impl Record {
    /// A write of `data`, whose length must be a multiple of 4096.
    #[must_use]
    pub fn write(volume: VolumeId, txg: TxgId, lba: Lba, data: IoBytes) -> Self {
        let blocks = (data.len() as u64 / BLOCK_BYTES) as u32;
        Self { volume, txg, kind: RecordKind::Write, lba, blocks, data: vec![data] }
    }

    /// Zeros, or a trim.
    #[must_use]
    pub fn zero(volume: VolumeId, txg: TxgId, lba: Lba, blocks: u32) -> Self {
        Self { volume, txg, kind: RecordKind::Zero, lba, blocks, data: Vec::new() }
    }

    /// Checks the record for an append; groups up to `released` take no more records.
    pub(crate) fn check(&self, released: TxgId) -> Result<(), LogError> {
        let Self { volume, lba, blocks, txg, .. } = *self;
        let refuse = |error| Err(LogError::BadRecord { volume, lba, blocks, error });
        let found_bytes: u64 = self.data.iter().map(|part| part.len() as u64).sum();
        let expected_bytes = match self.kind {
            RecordKind::Write => u64::from(blocks) * BLOCK_BYTES,
            RecordKind::Zero => 0,
        };
        if found_bytes != expected_bytes {
            return refuse(RecordError::DataLength { expected_bytes, found_bytes });
        }
        let mut parts = self.data.iter().map(|part| part.len() as u64);
        if let Some(part_bytes) = parts.find(|bytes| bytes % BLOCK_BYTES != 0) {
            return refuse(RecordError::PartLength { part_bytes });
        }
        let end = lba.0.checked_add(u64::from(blocks));
        if blocks == 0 || end.is_none_or(|end| end > u64::MAX / BLOCK_BYTES) {
            return refuse(RecordError::Range);
        }
        if txg <= released {
            return refuse(RecordError::Committed { txg });
        }
        Ok(())
    }
}
