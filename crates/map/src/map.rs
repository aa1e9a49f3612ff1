//! The map of all volumes: lookups and changes.

use std::collections::BTreeMap;

use forebay_format::map_record::MAX_VOLUME_BLOCKS;
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

use crate::change::{Freed, is_place};
use crate::entry::{Entry, LeafId, Located, Mapped};
use crate::error::MapError;
use crate::line::Line;
use crate::memory;
use crate::runs::RunList;
use crate::volume::{ExtentKind, MapExtent, VolumeMap};

/// The map of all volumes.
#[derive(Default)]
pub struct Map {
    pub(crate) volumes: BTreeMap<VolumeId, VolumeMap>,
    /// Volumes with other versions.
    pub(crate) lines: BTreeMap<VolumeId, Line>,
    /// By volume that wrote blocks: other volumes whose versions may have some of these.
    pub(crate) heirs: BTreeMap<VolumeId, Vec<VolumeId>>,
    pub(crate) scratch: RunList,
}

impl Map {
    /// A map without volumes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an empty volume.
    pub fn create_volume(&mut self, volume: VolumeId) -> Result<(), MapError> {
        if self.volumes.contains_key(&volume) {
            return Err(MapError::VolumeExists(volume));
        }
        self.volumes.insert(volume, VolumeMap::default());
        Ok(())
    }

    /// Removes a volume. Reports all its addresses to `freed`.
    pub fn drop_volume(
        &mut self,
        volume: VolumeId,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        self.unlink(volume);
        self.set_writers(volume, &[]);
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

    /// Where block `lba` of a volume or snapshot lies; `None` for holes and for volumes that do not
    /// exist.
    #[inline]
    #[must_use]
    pub fn lookup(&self, volume: VolumeId, lba: Lba) -> Option<Located> {
        let map = self.volumes.get(&volume)?;
        match map.lookup(lba.0) {
            Some(Mapped { addr, sum }) if is_place(addr) => {
                let home = map.link.home.unwrap_or(volume);
                Some(Located { home, bound: lba, addr, sum })
            }
            None if !map.link.takes_from_others() => None,
            _ => self.lookup_versions(volume, lba),
        }
    }

    /// Calls `visit` with the extents of `blocks` blocks from `lba` on, in order, without gaps.
    /// Holes are joined, and so are consecutive addresses of a segment, up to 65536 blocks.
    pub fn lookup_range(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        mut visit: impl FnMut(MapExtent<'_>),
    ) {
        match self.volumes.get(&volume) {
            Some(map) if map.link.takes_from_others() || !map.has_places_only() => {
                self.lookup_range_of_versions(volume, lba, blocks, &mut visit);
            }
            Some(map) => {
                let home = map.link.home.unwrap_or(volume);
                map.lookup_range(home, lba.0, blocks, &mut visit);
            }
            None if blocks > 0 => visit(MapExtent { lba, blocks, kind: ExtentKind::Hole }),
            None => {}
        }
    }

    /// Maps the blocks from `lba` on to the addresses from `addr` on, one per sum. Reports their
    /// old addresses to `freed`; a block that keeps its address frees nothing.
    ///
    /// With `sums_on_media`, the footer of the address's segment is on media. Leaves that become
    /// fully mapped by this call then drop the sums of their blocks in that segment.
    ///
    /// Panics when the run leaves its segment, reaches [`crate::RESERVED_ADDR`], or has a sum of
    /// more than 40 bits.
    pub fn set_run(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        addr: BlockAddr,
        sums: &[u64],
        sums_on_media: bool,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        let Self { volumes, scratch, .. } = self;
        let map = volume_mut(volumes, volume, lba, sums.len() as u64)?;
        let mut freed = Freed::new(freed);
        map.set_run(lba.0, addr, sums, sums_on_media, &mut freed, scratch);
        freed.finish();
        Ok(())
    }

    /// Moves block `lba` to `new` if some version is still at `old` that may have a block of volume
    /// `writer`; returns that version. The caller accounts for the old address.
    pub fn replace_if(
        &mut self,
        writer: VolumeId,
        lba: Lba,
        old: BlockAddr,
        new: Entry,
    ) -> Option<VolumeId> {
        let (owner, _) = self.owner(writer, lba, old)?;
        let Self { volumes, scratch, .. } = self;
        let map = volumes.get_mut(&owner)?;
        let mut ignored = |_, _| {};
        map.set_run(lba.0, new.addr, &[new.sum], false, &mut Freed::new(&mut ignored), scratch);
        Some(owner)
    }

    /// Unmaps `blocks` blocks from `lba` on, and reports their addresses to `freed`. The range may
    /// end past the largest volume.
    pub fn clear(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        let Self { volumes, scratch, .. } = self;
        let map = volumes.get_mut(&volume).ok_or(MapError::NoVolume(volume))?;
        let mut freed = Freed::new(freed);
        map.clear(lba.0, blocks, &mut freed, scratch);
        freed.finish();
        self.has_lost(volume, lba.0, blocks);
        Ok(())
    }

    /// Unmaps every block from `blocks` on, and reports their addresses to `freed`.
    pub fn truncate(
        &mut self,
        volume: VolumeId,
        blocks: u64,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) -> Result<(), MapError> {
        self.clear(volume, Lba(blocks), u64::MAX - blocks, freed)
    }

    /// Drops the sums of a leaf's long runs in segments for which `on_media` returns true: their
    /// footers are on media. A full leaf of one or two runs then takes no heap memory. Also chooses
    /// the smallest form of the leaf. Returns whether the leaf has sealed runs now.
    pub fn seal(&mut self, id: LeafId, on_media: &mut impl FnMut(SegmentId) -> bool) -> bool {
        let Self { volumes, scratch, .. } = self;
        volumes.get_mut(&id.volume).is_some_and(|map| map.seal(id.leaf, on_media, scratch))
    }

    /// Calls `run` for every run in the main store of every version, with the volume whose version
    /// that is. Consecutive addresses within a leaf are joined.
    pub fn for_each(&self, mut run: impl FnMut(VolumeId, Lba, BlockAddr, u32)) {
        for (volume, map) in &self.volumes {
            let home = map.link.home.unwrap_or(*volume);
            map.for_each(&mut |lba, addr, blocks| {
                if is_place(addr) {
                    run(home, Lba(lba), addr, blocks);
                }
            });
        }
    }

    /// Blocks that a volume or snapshot has an address of its own for; zero when it does not
    /// exist.
    #[must_use]
    pub fn mapped_blocks(&self, volume: VolumeId) -> u64 {
        self.volumes.get(&volume).map_or(0, VolumeMap::mapped_blocks)
    }

    /// As [`Map::mapped_blocks`], among `blocks` blocks from `lba` on.
    #[must_use]
    pub fn mapped_within(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        self.volumes.get(&volume).map_or(0, |map| map.mapped_within(lba.0, blocks))
    }

    /// Bytes of memory of the map, including allocator and containers.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let containers =
            memory::btree_bytes(self.volumes.len(), size_of::<(VolumeId, VolumeMap)>());
        let volumes: u64 = self.volumes.values().map(VolumeMap::memory_bytes).sum();
        let lines = memory::used_btree_bytes(self.lines.len(), size_of::<(VolumeId, Line)>())
            + self.lines.values().map(Line::memory_bytes).sum::<u64>()
            + memory::used_btree_bytes(self.heirs.len(), size_of::<(VolumeId, Vec<VolumeId>)>());
        let heir_bytes =
            |heirs: &Vec<VolumeId>| memory::heap_bytes(heirs.capacity() * size_of::<VolumeId>());
        let lines = lines + self.heirs.values().map(heir_bytes).sum::<u64>();
        containers + lines + volumes + self.scratch.memory_bytes() + size_of::<Self>() as u64
    }

    /// The volume whose part of the map takes the most memory, and how many bytes that is.
    #[must_use]
    pub fn largest_volume(&self) -> Option<(VolumeId, u64)> {
        let parts = self.volumes.iter().map(|(volume, map)| (*volume, map.memory_bytes()));
        parts.max_by_key(|(_, bytes)| *bytes)
    }

    /// The leaves with mapped blocks from `cursor` on, in order. The map may change between calls:
    /// continue from [`LeafId::next`] of the last leaf.
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
