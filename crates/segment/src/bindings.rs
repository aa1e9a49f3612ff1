//! Whose blocks a volume may have: after a promotion also some that another volume wrote, whose
//! checksums bind that volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::checksum::{bound_sum, crc64};
use forebay_units::{Lba, VolumeId};

/// The volumes that wrote the blocks of each volume, beside the volume itself.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    others: Arc<BTreeMap<VolumeId, Vec<VolumeId>>>,
}

impl Bindings {
    /// Sets which other volumes may have written blocks that `volume` has.
    pub(crate) fn set(&mut self, volume: VolumeId, writers: &[VolumeId]) {
        if writers.is_empty() && !self.others.contains_key(&volume) {
            return;
        }
        let others = Arc::make_mut(&mut self.others);
        match writers.is_empty() {
            true => others.remove(&volume),
            false => others.insert(volume, writers.to_vec()),
        };
    }

    fn others(&self, volume: VolumeId) -> &[VolumeId] {
        self.others.get(&volume).map_or(&[], Vec::as_slice)
    }

    /// Whether `volume` may have blocks that `writer` wrote.
    #[must_use]
    pub fn allow(&self, volume: VolumeId, writer: VolumeId) -> bool {
        volume == writer || self.others(volume).contains(&writer)
    }

    /// Whether `block` is what `volume` has at `lba` with the checksum `sum`, written by one of its
    /// writers.
    #[must_use]
    pub(crate) fn fit(
        &self,
        pool: u64,
        (volume, lba): (VolumeId, Lba),
        block: &[u8],
        sum: u64,
    ) -> bool {
        let crc = crc64(block);
        bound_sum(crc, pool, volume, lba) == sum
            || self.others(volume).iter().any(|other| bound_sum(crc, pool, *other, lba) == sum)
    }
}
