//! Where each block of each volume lies, and its checksum, in about ten bytes or fewer.
//!
//! What enters: runs of blocks with their addresses and sums, clears, dropped volumes; or the
//! journal's deltas and leaf images. What leaves: lookups, the addresses that each change freed,
//! leaf images for checkpoints. What always holds: a block has one address or none; every address
//! that stops being used is reported once; runs never cross a segment; memory is counted to the
//! byte. No I/O, no time, no threads. Who calls me: the pool's read, sync, cleaning and import
//! corridors.
//!
//! A volume is cut into leaves of 512 blocks. A leaf takes the form that is smallest for what it
//! holds: a list of runs, a bitmap with entries, or a plain array. Sums of long runs may be
//! *sealed*: dropped from memory, because the footers of their segments hold them.

mod array;
mod directory;
mod leaf;
mod memory;
mod replay;
mod runs;
mod volume;

use std::collections::BTreeMap;
use std::fmt;

use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

pub use forebay_format::map_record::{
    Change, Delta, LEAF_BLOCKS, LeafImage, LeafRun, MAX_VOLUME_BLOCKS, RESERVED_ADDR,
};
use runs::{Freed, RunList};
use volume::VolumeMap;
pub use volume::{ExtentKind, MapExtent, Sums};

/// Where a block lies and what it should sum up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the main store.
    pub addr: BlockAddr,
    /// Its 40-bit checksum.
    pub sum: u64,
}

/// What the map knows of a mapped block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its place in the main store.
    pub addr: BlockAddr,
    /// Its 40-bit checksum; `None` when only the footer of its segment has it.
    pub sum: Option<u64>,
}

/// A leaf of a volume; also the cursor of [`Map::leaves_from`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafId {
    /// The volume.
    pub volume: VolumeId,
    /// The leaf: the blocks from 512 times this on.
    pub leaf: u32,
}

impl LeafId {
    /// The leaf that holds a block. Panics past [`MAX_VOLUME_BLOCKS`].
    #[must_use]
    pub fn of(volume: VolumeId, lba: Lba) -> Self {
        let leaf = u32::try_from(lba.0 / u64::from(LEAF_BLOCKS)).expect("LBA past any volume");
        Self { volume, leaf }
    }

    /// The least leaf after this one; `None` after the very last.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self.leaf.checked_add(1) {
            Some(leaf) => Some(Self { leaf, ..self }),
            None => Some(Self { volume: VolumeId(self.volume.0.checked_add(1)?), leaf: 0 }),
        }
    }
}

/// A change that the map refuses; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The volume does not exist, or does not any more.
    NoVolume(VolumeId),
    /// The volume exists already.
    VolumeExists(VolumeId),
    /// The range reaches past what any volume can have.
    PastEnd {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        lba: Lba,
        /// Blocks.
        blocks: u64,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume(volume) => {
                write!(f, "map: volume {volume} does not exist; create it, or it was dropped")
            }
            Self::VolumeExists(volume) => {
                write!(f, "map: volume {volume} exists already; volume ids are never used again")
            }
            Self::PastEnd { volume, lba, blocks } => write!(
                f,
                "map: {blocks} blocks at {lba} of volume {volume} reach past block \
                 {MAX_VOLUME_BLOCKS}, the most a volume can have"
            ),
        }
    }
}

impl std::error::Error for MapError {}

/// The map of all volumes.
#[derive(Default)]
pub struct Map {
    volumes: BTreeMap<VolumeId, VolumeMap>,
    scratch: RunList,
}

impl Map {
    /// No volumes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a volume that is all holes.
    pub fn create_volume(&mut self, volume: VolumeId) -> Result<(), MapError> {
        if self.volumes.contains_key(&volume) {
            return Err(MapError::VolumeExists(volume));
        }
        self.volumes.insert(volume, VolumeMap::default());
        Ok(())
    }

    /// Forgets a volume; `freed` hears of all its addresses.
    pub fn drop_volume(
        &mut self,
        volume: VolumeId,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        let gone = self.volumes.remove(&volume).ok_or(MapError::NoVolume(volume))?;
        let mut freed = Freed::new(freed);
        gone.for_each(&mut |_, addr, blocks| freed.add(addr, blocks));
        freed.finish();
        Ok(())
    }

    /// The volumes, in order of their ids.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.volumes.keys().copied()
    }

    /// What block `lba` points at; `None` for holes and for volumes that do not exist.
    #[inline]
    #[must_use]
    pub fn lookup(&self, volume: VolumeId, lba: Lba) -> Option<Mapped> {
        self.volumes.get(&volume)?.lookup(lba.0)
    }

    /// Tells `piece` what `blocks` blocks from `lba` on point at: in order, without gaps, holes
    /// and consecutive addresses of a segment joined (mapped pieces up to 65536 blocks).
    pub fn lookup_range(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        mut piece: impl FnMut(MapExtent<'_>),
    ) {
        match self.volumes.get(&volume) {
            Some(map) => map.lookup_range(lba.0, blocks, &mut piece),
            None if blocks > 0 => piece(MapExtent { lba, blocks, kind: ExtentKind::Hole }),
            None => {}
        }
    }

    /// Blocks from `lba` on now lie at `addr` and after it, one per sum. `freed` hears of the
    /// addresses that they had before; a block that keeps its address frees nothing.
    ///
    /// `sums_on_media` says that the footer of the address's segment is on media: leaves that this
    /// completes then drop the sums of their blocks in that segment.
    ///
    /// Panics when the run leaves its segment, reaches [`RESERVED_ADDR`], or a sum has over 40 bits.
    pub fn set_run(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        addr: BlockAddr,
        sums: &[u64],
        sums_on_media: bool,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        let Self { volumes, scratch } = self;
        let map = volume_mut(volumes, volume, lba, sums.len() as u64)?;
        let mut freed = Freed::new(freed);
        map.set_run(lba.0, addr, sums, sums_on_media, &mut freed, scratch);
        freed.finish();
        Ok(())
    }

    /// Moves block `lba` to `new` if it still lies at `old`; says whether it did. The old address
    /// is the caller's to account for.
    pub fn replace_if(&mut self, volume: VolumeId, lba: Lba, old: BlockAddr, new: Entry) -> bool {
        let Self { volumes, scratch } = self;
        let Some(map) = volumes.get_mut(&volume) else { return false };
        if map.lookup(lba.0).is_none_or(|now| now.addr != old) {
            return false;
        }
        let mut ignored = |_, _| {};
        map.set_run(lba.0, new.addr, &[new.sum], false, &mut Freed::new(&mut ignored), scratch);
        true
    }

    /// Moves the blocks from `lba` on that still lie at `old` and after it to `new` and after it,
    /// one per sum. `stale` hears of the new addresses whose blocks had changed meanwhile: they
    /// hold nothing that lives. Returns the number of blocks moved.
    ///
    /// Panics when the new run leaves its segment.
    pub fn replace_run_if(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        old: BlockAddr,
        new: BlockAddr,
        sums: &[u64],
        stale: &mut impl FnMut(BlockAddr, u32),
    ) -> u64 {
        let mut stale = Freed::new(stale);
        let mut ignored = |_, _| {};
        let (mut moved, mut at) = (0, 0);
        while at < sums.len() {
            let still = |i: usize| {
                let now = self.lookup(volume, Lba(lba.0 + i as u64));
                now.is_some_and(|now| {
                    now.addr.segment() == old.segment() && now.addr.raw() == old.raw() + i as u64
                })
            };
            let lives = still(at);
            let end = (at + 1..sums.len()).find(|&i| still(i) != lives).unwrap_or(sums.len());
            let to = new.plus(at as u32);
            if lives {
                let Self { volumes, scratch } = self;
                let map = volumes.get_mut(&volume).expect("looked up above");
                let mut freed = Freed::new(&mut ignored);
                map.set_run(lba.0 + at as u64, to, &sums[at..end], false, &mut freed, scratch);
                moved += (end - at) as u64;
            } else {
                stale.add(to, (end - at) as u32);
            }
            at = end;
        }
        stale.finish();
        moved
    }

    /// Makes `blocks` blocks from `lba` on holes; `freed` hears of their addresses. Ranges past
    /// the end of any volume are holes already.
    pub fn clear(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        let Self { volumes, scratch } = self;
        let map = volumes.get_mut(&volume).ok_or(MapError::NoVolume(volume))?;
        let mut freed = Freed::new(freed);
        map.clear(lba.0, blocks, &mut freed, scratch);
        freed.finish();
        Ok(())
    }

    /// Makes every block from `blocks` on a hole; `freed` hears of their addresses.
    pub fn truncate(
        &mut self,
        volume: VolumeId,
        blocks: u64,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        self.clear(volume, Lba(blocks), u64::MAX - blocks, freed)
    }

    /// Drops the sums of a leaf's long runs whose segments' footers are on media, as `on_media`
    /// says; a full leaf of one or two runs then costs nothing but its place. Also finds the
    /// smallest form of the leaf. Returns whether the leaf has sealed runs now.
    pub fn seal(&mut self, id: LeafId, on_media: &mut impl FnMut(SegmentId) -> bool) -> bool {
        let Self { volumes, scratch } = self;
        volumes.get_mut(&id.volume).is_some_and(|map| map.seal(id.leaf, on_media, scratch))
    }

    /// Tells `run` of everything mapped, in order, consecutive addresses within a leaf joined.
    pub fn for_each(&self, mut run: impl FnMut(VolumeId, Lba, BlockAddr, u32)) {
        for (volume, map) in &self.volumes {
            map.for_each(&mut |lba, addr, blocks| run(*volume, Lba(lba), addr, blocks));
        }
    }

    /// Blocks of a volume that are mapped; zero when it does not exist.
    #[must_use]
    pub fn mapped_blocks(&self, volume: VolumeId) -> u64 {
        self.volumes.get(&volume).map_or(0, VolumeMap::mapped_blocks)
    }

    /// How many of `blocks` blocks from `lba` on are mapped.
    #[must_use]
    pub fn mapped_within(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        self.volumes.get(&volume).map_or(0, |map| map.mapped_within(lba.0, blocks))
    }

    /// Bytes of memory that the map takes, allocator and containers included.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let containers =
            memory::btree_bytes(self.volumes.len(), size_of::<(VolumeId, VolumeMap)>());
        let volumes: u64 = self.volumes.values().map(VolumeMap::memory_bytes).sum();
        containers + volumes + self.scratch.memory_bytes() + size_of::<Self>() as u64
    }

    /// The first leaf from `cursor` on that holds something.
    #[must_use]
    pub fn leaf_from(&self, cursor: LeafId) -> Option<LeafId> {
        self.leaves_from(cursor).next()
    }

    /// The leaves that hold something, from `cursor` on, in order. The cursor is only a place:
    /// stop, change the map, and go on from [`LeafId::next`] of the last leaf seen.
    pub fn leaves_from(&self, cursor: LeafId) -> impl Iterator<Item = LeafId> {
        self.volumes.range(cursor.volume..).flat_map(move |(volume, map)| {
            let first = if *volume == cursor.volume { cursor.leaf } else { 0 };
            map.leaves_from(first).map(|leaf| LeafId { volume: *volume, leaf })
        })
    }
}

fn volume_mut(
    volumes: &mut BTreeMap<VolumeId, VolumeMap>,
    volume: VolumeId,
    lba: Lba,
    blocks: u64,
) -> Result<&mut VolumeMap, MapError> {
    if lba.0.checked_add(blocks).is_none_or(|end| end > MAX_VOLUME_BLOCKS) {
        return Err(MapError::PastEnd { volume, lba, blocks });
    }
    volumes.get_mut(&volume).ok_or(MapError::NoVolume(volume))
}

#[cfg(test)]
mod tests;
