//! Reading compressed blocks: the packed blocks that hold them, and what they hold.

use std::collections::BTreeMap;
use std::fmt;

use forebay_cache::BlockKey;
use forebay_compress::decompress;
use forebay_device::{IoBuf, IoBytes};
use forebay_format::FormatError;
use forebay_format::packed::{Codec, UnitEntry, unit_in};
use forebay_map::{Located, PACKED_VOLUME, PackedRef};
use forebay_rt as rt;
use forebay_segment::{Bindings, Wanted};
use forebay_units::{BLOCK_LEN, BlockAddr, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::read_path::Fetch;

/// From so many units on they are decompressed on a compute thread.
const MIN_COMPUTE_UNITS: usize = 8;
/// What decompressing a block takes, for the simulation.
const DECOMPRESS_COST: Nanos = Nanos::from_micros(2);

/// Consecutive compressed blocks of a volume that is read.
#[derive(Clone, Copy)]
pub(crate) struct PackedPart {
    /// Where the first one belongs in the reader's buffer.
    pub at_bytes: usize,
    /// The first one in the volume that is read.
    pub lba: Lba,
    /// The volume that has them, and the first block there.
    pub home: VolumeId,
    pub bound: Lba,
    /// The reference to the first one.
    pub addr: BlockAddr,
    pub blocks: u64,
}

/// A compressed block.
#[derive(Clone, Copy)]
struct Piece {
    at_bytes: usize,
    home: VolumeId,
    bound: Lba,
    from: PackedRef,
}

impl Piece {
    fn is_of_unit_of(&self, other: &Self) -> bool {
        let unit = |piece: &Self| (piece.from.block, piece.from.slot, piece.home);
        unit(self) == unit(other)
    }
}

/// A packed block that is needed.
struct Needed {
    /// Where it goes in the buffer.
    at_bytes: usize,
    /// The first block of the reader's volume that needs it.
    lba: Lba,
}

/// Compressed blocks, and the packed blocks that they lie in.
pub(crate) struct PackedPlan {
    pieces: Vec<Piece>,
    needed: BTreeMap<u64, Needed>,
    end_bytes: usize,
    bindings: Bindings,
}

/// Why a compressed block cannot be read, though its packed blocks have the right checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PackedFault {
    /// A packed block is none.
    Format(FormatError),
    /// The unit is of another block.
    OtherUnit { volume: VolumeId, lba: Lba },
    /// The bytes are not those of the unit.
    NotAUnit,
}

impl fmt::Display for PackedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "{error}"),
            Self::OtherUnit { volume, lba } => {
                write!(f, "the compressed unit is of block {lba} of volume {volume}")
            }
            Self::NotAUnit => f.write_str("the compressed unit cannot be decompressed"),
        }
    }
}

impl std::error::Error for PackedFault {}

/// A unit as it is stored, all of whose blocks are read.
pub(crate) struct WholeUnit {
    /// Where its first block belongs in the reader's buffer.
    pub at_bytes: usize,
    /// Its blocks.
    pub blocks: u8,
    pub codec: Codec,
    /// The compressed bytes.
    pub bytes: Vec<u8>,
}

/// A fault, and where the block belongs in the reader's buffer.
pub(crate) type Unpacked = Result<Vec<(usize, Vec<u8>)>, (usize, PackedFault)>;

impl PackedPlan {
    /// What must be read for `parts`, into a buffer from `from_bytes` on.
    pub fn of(parts: &[PackedPart], from_bytes: usize, bindings: Bindings) -> Self {
        let (mut pieces, mut needed) = (Vec::new(), BTreeMap::new());
        for part in parts {
            for index in 0..part.blocks {
                let addr = BlockAddr::from_raw(part.addr.raw() + index);
                let Some(from) = PackedRef::of(addr) else { continue };
                let lba = Lba(part.lba.0 + index);
                for number in from.block.0..from.block.0 + from.span() {
                    needed.entry(number).or_insert(Needed { at_bytes: 0, lba });
                }
                let at_bytes = part.at_bytes + index as usize * BLOCK_LEN;
                let bound = Lba(part.bound.0 + index);
                pieces.push(Piece { at_bytes, home: part.home, bound, from });
            }
        }
        let mut end_bytes = from_bytes;
        for needed in needed.values_mut() {
            needed.at_bytes = end_bytes;
            end_bytes += BLOCK_LEN;
        }
        Self { pieces, needed, end_bytes, bindings }
    }

    /// Where the buffer ends.
    pub fn end_bytes(&self) -> usize {
        self.end_bytes
    }

    /// The unit that a block is in.
    fn unit_of(
        &self,
        piece: &Piece,
        packed: &[u8],
    ) -> Result<(UnitEntry, Vec<u8>), (usize, PackedFault)> {
        let from = piece.from;
        let span: Vec<&[u8]> = (from.block.0..from.block.0 + from.span())
            .filter_map(|number| self.needed.get(&number))
            .map(|needed| &packed[needed.at_bytes..needed.at_bytes + BLOCK_LEN])
            .collect();
        unit_in(&span, from.slot).map_err(|error| (piece.at_bytes, PackedFault::Format(error)))
    }

    /// The units all of whose blocks are wanted, in order; `None` if one is not what it should be.
    fn whole_units(&self, packed: &[u8]) -> Option<Vec<WholeUnit>> {
        let mut units = Vec::new();
        for pieces in self.pieces.chunk_by(Piece::is_of_unit_of) {
            let (unit, bytes) = self.unit_of(&pieces[0], packed).ok()?;
            let first = &pieces[0];
            let in_order = pieces.iter().enumerate().all(|(index, piece)| {
                usize::from(piece.from.index) == index
                    && piece.at_bytes == first.at_bytes + index * BLOCK_LEN
            });
            if self.bindings.allow(first.home, unit.volume)
                && unit.lba == first.bound
                && pieces.len() == usize::from(unit.blocks)
                && in_order
            {
                let UnitEntry { blocks, codec, .. } = unit;
                units.push(WholeUnit { at_bytes: first.at_bytes, blocks, codec, bytes });
            }
        }
        Some(units)
    }

    /// Decompresses: what belongs where in the reader's buffer.
    fn unpack(&self, packed: &[u8]) -> Unpacked {
        let mut all = Vec::with_capacity(self.pieces.len());
        for pieces in self.pieces.chunk_by(Piece::is_of_unit_of) {
            let faulty = |fault| (pieces[0].at_bytes, fault);
            let (unit, bytes) = self.unit_of(&pieces[0], packed)?;
            let data = decompress(unit.codec, &bytes, usize::from(unit.blocks));
            let data = data.map_err(|_| faulty(PackedFault::NotAUnit))?;
            for piece in pieces {
                let index = piece.from.index;
                let is_mine = self.bindings.allow(piece.home, unit.volume)
                    && unit.lba.0 + u64::from(index) == piece.bound.0
                    && index < unit.blocks;
                if !is_mine {
                    let fault = PackedFault::OtherUnit { volume: unit.volume, lba: unit.lba };
                    return Err((piece.at_bytes, fault));
                }
                let at = usize::from(index) * BLOCK_LEN;
                all.push((piece.at_bytes, data[at..at + BLOCK_LEN].to_vec()));
            }
        }
        Ok(all)
    }

    /// Decompresses from the buffer that the packed blocks were read into.
    pub async fn unpack_from(self, packed: IoBytes) -> Unpacked {
        if self.pieces.len() < MIN_COMPUTE_UNITS {
            return self.unpack(&packed);
        }
        let cost = Nanos(DECOMPRESS_COST.0 * self.pieces.len() as u64);
        rt::compute(cost, move || self.unpack(&packed)).await
    }
}

impl Pool {
    /// The reads of the packed blocks of a plan, but for those for which `is_here` is true. It is
    /// called with a block's key and its place in the buffer.
    pub(crate) fn packed_fetches(
        &self,
        plan: &PackedPlan,
        mut is_here: impl FnMut(BlockKey, usize) -> bool,
    ) -> Vec<Fetch> {
        let map = self.store.map.borrow();
        let mut fetches = Vec::with_capacity(plan.needed.len());
        for (number, needed) in &plan.needed {
            // Without a place it stays zeros, which are no packed block.
            let Some(found) = map.lookup(PACKED_VOLUME, Lba(*number)) else { continue };
            let Located { home, bound, addr, sum } = found;
            let key = self.block_key(addr);
            if !is_here(key, needed.at_bytes) {
                let sums = vec![sum];
                let wanted = Wanted { addr, volume: home, lba: bound, blocks: 1, sums };
                let Needed { at_bytes, lba } = *needed;
                fetches.push(Fetch { at_bytes, lba, key, wanted });
            }
        }
        fetches
    }

    /// Reads compressed blocks without the cache; `None` if one cannot be read.
    pub(crate) async fn read_packed(&self, parts: &[PackedPart]) -> Option<Vec<(usize, Vec<u8>)>> {
        let plan = PackedPlan::of(parts, 0, self.store.reader.bindings());
        let packed = self.fetch_packed(&plan).await?;
        plan.unpack_from(packed.freeze()).await.ok()
    }

    /// Reads the units of compressed blocks, as far as all of their blocks are wanted; `None` if
    /// one cannot be read.
    pub(crate) async fn read_units(&self, parts: &[PackedPart]) -> Option<Vec<WholeUnit>> {
        let plan = PackedPlan::of(parts, 0, self.store.reader.bindings());
        let packed = self.fetch_packed(&plan).await?;
        plan.whole_units(&packed)
    }

    async fn fetch_packed(&self, plan: &PackedPlan) -> Option<IoBuf> {
        let mut packed = IoBuf::zeroed(plan.end_bytes());
        let fetches = self.packed_fetches(plan, |_, _| false);
        let reads = fetches.iter().map(|fetch| self.store.reader.read(&fetch.wanted));
        for (got, fetch) in rt::join_all(reads).await.into_iter().zip(&fetches) {
            packed[fetch.at_bytes..fetch.at_bytes + BLOCK_LEN].copy_from_slice(&got.ok()?);
        }
        Some(packed)
    }
}

#[cfg(test)]
mod tests;
