//! Compression of a group: units of its blocks become smaller on a compute thread and are packed,
//! and packed blocks without references are freed.

use std::ops::Range;
use std::rc::Rc;

use forebay_compress::{Compression, compress};
use forebay_device::{IoBuf, IoBytes};
use forebay_format::map_record::Delta;
use forebay_format::packed::{Codec, MAX_UNIT_BLOCKS, PackedBlock, Unit};
use forebay_map::PACKED_VOLUME;
use forebay_rt as rt;
use forebay_units::{BLOCK_LEN, Lba, Nanos, VolumeId};

use super::group::{Places, Target};
use crate::Pool;
use crate::commit::error::CommitError;
use crate::state::Writers;

/// Extents of so many bytes are compressed on a compute thread, where that takes longer than the
/// way there and back.
const MIN_COMPUTE_BYTES: usize = 16 << 10;
/// What compressing a block takes, for the simulation.
const COMPRESS_COST: Nanos = Nanos::from_micros(8);

/// A block of an extent that is to be compressed.
#[derive(Clone, Copy)]
pub(super) struct Loose {
    /// The client's block, whose predecessor says how long it may live.
    pub at: (VolumeId, Lba),
    /// The block that it is written as.
    pub bound: (VolumeId, Lba),
    /// Which block of the extent.
    pub index: usize,
}

impl Loose {
    /// Whether `next` is in the same unit: units begin at multiples of their largest size.
    fn is_followed_by(&self, next: &Loose) -> bool {
        self.index + 1 == next.index
            && self.bound.0 == next.bound.0
            && self.bound.1.0 + 1 == next.bound.1.0
            && next.bound.1.0 % MAX_UNIT_BLOCKS as u64 != 0
    }
}

impl Pool {
    /// How a volume's blocks are compressed.
    pub(crate) fn compression(&self, volume: VolumeId) -> Compression {
        let volumes = self.volumes.borrow();
        volumes.get(&volume).map_or(Compression::Off, |volume| volume.compression.get())
    }

    /// Whether some volume is compressed.
    pub(crate) fn has_compression(&self) -> bool {
        let volumes = self.volumes.borrow();
        volumes.values().any(|volume| volume.compression.get() != Compression::Off)
    }

    /// Compresses the units of an extent. What does not become smaller is `None`.
    async fn compress(
        &self,
        how: Compression,
        data: &IoBytes,
        units: Vec<Range<usize>>,
    ) -> Vec<Option<(Codec, Vec<u8>)>> {
        let len: usize = units.iter().map(Range::len).sum();
        let data = data.clone();
        let all = move || -> Vec<_> {
            units.into_iter().map(|unit| compress(how, &data[unit])).collect()
        };
        if len < MIN_COMPUTE_BYTES {
            return all();
        }
        rt::compute(Nanos(COMPRESS_COST.0 * (len / BLOCK_LEN) as u64), all).await
    }

    /// Writes blocks of an extent: units that become smaller are packed, others are written as they
    /// are.
    pub(super) async fn write_packed(
        self: &Rc<Self>,
        writers: &mut Writers,
        (data, loose): (&IoBytes, &[Loose]),
        how: Compression,
        to: &Target,
        places: &mut Places,
    ) -> Result<(), CommitError> {
        let units: Vec<&[Loose]> = loose.chunk_by(Loose::is_followed_by).collect();
        let bytes_of = |unit: &&[Loose]| {
            let first = unit[0].index * BLOCK_LEN;
            first..first + unit.len() * BLOCK_LEN
        };
        let smaller = self.compress(how, data, units.iter().map(bytes_of).collect()).await;
        let mut slices = rt::Slices::new();
        for (unit, smaller) in units.into_iter().zip(smaller) {
            let (volume, lba) = unit[0].bound;
            let packed = match smaller {
                Some((codec, bytes)) => {
                    let unit = Unit { volume, lba, blocks: unit.len() as u8, codec, bytes };
                    self.pack(writers, &unit, places)
                }
                None => None,
            };
            self.packed.count_written(unit.len() as u64, packed.is_some());
            match packed {
                Some(full) => self.store_packed(writers, full, unit[0].at, to, places).await?,
                None => {
                    for Loose { at, bound, index } in unit {
                        let block = data.slice(index * BLOCK_LEN, BLOCK_LEN);
                        self.store_block(writers, (*at, *bound), block, to, places).await?;
                    }
                }
            }
            slices.step().await;
        }
        Ok(())
    }

    /// Packs a unit. Returns the packed blocks that are complete now; `None` when there is no
    /// number for another one.
    fn pack(
        &self,
        writers: &mut Writers,
        unit: &Unit,
        places: &mut Places,
    ) -> Option<Vec<PackedBlock>> {
        let map = self.store.map.borrow();
        let is_free = |number| self.packed.is_unused(number) && !map.has_packed(number);
        let at = writers.packer.push(unit, is_free, &mut writers.full)?;
        places.pack((unit.volume, unit.lba), at.addr(), unit.blocks.into());
        Some(std::mem::take(&mut writers.full))
    }

    /// Writes packed blocks into segments. `at` says how long they may live.
    async fn store_packed(
        self: &Rc<Self>,
        writers: &mut Writers,
        full: Vec<PackedBlock>,
        at: (VolumeId, Lba),
        to: &Target,
        places: &mut Places,
    ) -> Result<(), CommitError> {
        for PackedBlock { number, bytes } in full {
            self.note_density(number.0, Some(&bytes));
            let bound = (PACKED_VOLUME, number);
            let block = IoBuf::copy_of(&bytes).freeze();
            self.store_block(writers, (at, bound), block, to, places).await?;
        }
        Ok(())
    }

    /// Writes the packed block that is being filled.
    pub(super) async fn finish_packed(
        self: &Rc<Self>,
        writers: &mut Writers,
        to: &Target,
        places: &mut Places,
    ) -> Result<(), CommitError> {
        let mut full = std::mem::take(&mut writers.full);
        full.extend(writers.packer.flush());
        self.store_packed(writers, full, (PACKED_VOLUME, Lba(0)), to, places).await
    }

    /// Frees the packed blocks that lost their last reference.
    pub(crate) async fn free_unused_packed(&self, delta: &mut Delta) -> Result<(), CommitError> {
        let mut slices = rt::Slices::new();
        let unused = self.packed.take_unused();
        for run in unused.chunk_by(|a, b| a + 1 == *b) {
            let (first, blocks) = (Lba(run[0]), run.len() as u64);
            let mut freed = |addr, blocks| self.free_run(addr, blocks);
            self.store.map.borrow_mut().clear(PACKED_VOLUME, first, blocks, &mut freed)?;
            delta.clear(PACKED_VOLUME, first, blocks);
            slices.step().await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
