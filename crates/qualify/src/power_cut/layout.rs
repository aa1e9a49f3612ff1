//! Layout of the records of one cycle: which writer writes what, where, in which order.
//!
//! What enters: a plan. What leaves: the place of each record. What always holds: a place belongs
//! to one writer, which writes one record after the other. So the history of a place is a sequence.

use forebay_device::Geometry;
use serde::{Deserialize, Serialize};

use crate::Sync;
use crate::content::Numbers;

/// How records are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutSync {
    /// Half of the writers by flushes, half by FUA.
    #[default]
    Both,
    /// By flushes.
    Flush,
    /// By FUA, or O_DSYNC to a device without it.
    Fua,
}

impl CutSync {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Both, Self::Flush, Self::Fua];

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Flush => "flush",
            Self::Fua => "fua",
        }
    }
}

/// One cycle: everything that says what a place holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutPlan {
    /// A random number that no other cycle has.
    pub id: u64,
    /// Bytes from the start of the device that are used.
    pub span_bytes: u64,
    /// Bytes of a record: one write.
    pub record_bytes: u32,
    /// The device's logical block, which no power cut may tear.
    pub block_bytes: u32,
    /// Writers, each with one request in flight.
    pub writers: u16,
    /// Records between two flushes of a writer.
    pub batch: u32,
    /// How records are made durable.
    pub sync: CutSync,
}

impl CutPlan {
    /// Bytes of a record.
    pub const RECORD_BYTES: u32 = 16 << 10;
    /// Writers.
    pub const WRITERS: u16 = 8;
    /// Records between two flushes.
    pub const BATCH: u32 = 16;

    /// The usual plan for a device of this geometry, of which at most `max_span_bytes` are used;
    /// `None` when it is too small.
    #[must_use]
    pub fn new(id: u64, geometry: &Geometry, max_span_bytes: u64, sync: CutSync) -> Option<Self> {
        let record_bytes = Self::RECORD_BYTES.max(geometry.block_bytes);
        let row_bytes = u64::from(record_bytes) * u64::from(Self::WRITERS);
        let span_bytes = geometry.size_bytes.min(max_span_bytes) / row_bytes * row_bytes;
        (span_bytes > 0).then_some(Self {
            id,
            span_bytes,
            record_bytes,
            block_bytes: geometry.block_bytes,
            writers: Self::WRITERS,
            batch: Self::BATCH,
            sync,
        })
    }

    /// How a writer makes its records durable.
    #[must_use]
    pub fn sync_of(&self, writer: u16) -> Sync {
        match self.sync {
            CutSync::Flush => Sync::Flush,
            CutSync::Fua => Sync::Fua,
            CutSync::Both if writer % 2 == 0 => Sync::Fua,
            CutSync::Both => Sync::Flush,
        }
    }

    /// Places.
    pub(crate) fn slots(&self) -> u64 {
        self.span_bytes / u64::from(self.record_bytes)
    }

    /// Places of each writer.
    #[must_use]
    pub fn slots_of_writer(&self) -> u64 {
        self.slots() / u64::from(self.writers)
    }

    /// The place of a writer's record of this sequence number, which counts from 1: each place in
    /// order first, then places at random.
    pub(crate) fn slot(&self, writer: u16, sequence: u64) -> u64 {
        let own = self.slots_of_writer();
        let index = if sequence <= own {
            sequence - 1
        } else {
            let mixed = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Numbers::new(self.id ^ u64::from(writer) << 48 ^ mixed).below(own)
        };
        index * u64::from(self.writers) + u64::from(writer)
    }

    /// Where a place begins, in bytes.
    pub(crate) fn offset_bytes(&self, slot: u64) -> u64 {
        slot * u64::from(self.record_bytes)
    }

    /// The writer that owns a place.
    pub(crate) fn owner(&self, slot: u64) -> u16 {
        (slot % u64::from(self.writers)) as u16
    }
}
