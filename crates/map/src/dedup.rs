//! References of volumes: to blocks of the dedup volume, which holds each content once, and into
//! packed blocks, which hold compressed ones.

use forebay_format::map_record::{DEDUP_VOLUME, dedup_block};
use forebay_format::packed::{PACKED_VOLUME, PackedRef};
use forebay_units::{BlockAddr, Lba, VolumeId};

use crate::change::Freed;
use crate::entry::{Located, Mapped};
use crate::map::Map;
use crate::volume::{ExtentKind, MapExtent, VolumeMap};

impl Map {
    /// Gives `blocks` blocks from `lba` on the references from `addr` on. Reports what the entries
    /// before gave up to `freed`. Panics when the references do not fit one segment of references.
    pub fn set_refs(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        addr: BlockAddr,
        blocks: u32,
        freed: &mut impl FnMut(BlockAddr, u32),
    ) {
        let Self { volumes, scratch, .. } = self;
        let Some(map) = volumes.get_mut(&volume) else { return };
        let mut freed = Freed::new(freed);
        map.set_sealed(lba.0, addr, blocks, &mut freed, scratch);
        freed.finish();
    }

    /// Gives `blocks` blocks from `lba` on, which volume `writer` wrote, the references from `new`
    /// on instead of those from `old` on. Each goes to the version that still has the old one.
    /// Calls `visit` for each run: its version, or `None` when no version has it; the first block,
    /// its new reference, and how many. The caller counts the references.
    pub fn replace_refs(
        &mut self,
        (writer, lba): (VolumeId, Lba),
        old: BlockAddr,
        new: BlockAddr,
        blocks: u32,
        mut visit: impl FnMut(Option<VolumeId>, Lba, BlockAddr, u32),
    ) {
        let owner = |map: &Self, index: u32| {
            let (lba, old) = (Lba(lba.0 + u64::from(index)), old.plus(index));
            map.owner(writer, lba, old).map(|(owner, _)| owner)
        };
        let mut from = 0;
        while from < blocks {
            let now = owner(self, from);
            let alike = (from + 1..blocks).take_while(|index| owner(self, *index) == now);
            let count = 1 + alike.count() as u32;
            let (lba, new) = (Lba(lba.0 + u64::from(from)), new.plus(from));
            let Self { volumes, scratch, .. } = self;
            if let Some(map) = now.and_then(|owner| volumes.get_mut(&owner)) {
                let mut ignored = |_, _| {};
                map.set_sealed(lba.0, new, count, &mut Freed::new(&mut ignored), scratch);
            }
            visit(now, lba, new, count);
            from += count;
        }
    }

    /// Where the block of the dedup volume lies that `addr` refers to.
    pub(crate) fn lookup_ref(&self, addr: BlockAddr) -> Option<Located> {
        let bound = dedup_block(addr)?;
        let Mapped { addr, sum } = self.volumes.get(&DEDUP_VOLUME)?.lookup(bound.0)?;
        Some(Located { home: DEDUP_VOLUME, bound, addr, sum })
    }

    /// Shows where the blocks lie that the blocks from `lba` on refer to.
    pub(crate) fn show_refs(
        &self,
        lba: Lba,
        addr: BlockAddr,
        blocks: u64,
        visit: &mut dyn FnMut(MapExtent<'_>),
    ) {
        let first = dedup_block(addr).expect("only references are shown");
        let Some(map) = self.volumes.get(&DEDUP_VOLUME) else {
            return visit(MapExtent { lba, blocks, kind: ExtentKind::Hole });
        };
        map.lookup_range(DEDUP_VOLUME, first.0, blocks, &mut |found| {
            let lba = Lba(lba.0 + (found.lba.0 - first.0));
            visit(MapExtent { lba, ..found }.with_packed());
        });
    }

    /// Calls `run` for every run of references of every version: the first block of the dedup
    /// volume, and how many.
    pub fn for_each_ref(&self, mut run: impl FnMut(Lba, u32)) {
        let others = self.volumes.iter().filter(|(volume, _)| **volume != DEDUP_VOLUME);
        for map in others.map(|(_, map)| map).filter(|map| map.has_refs()) {
            map.for_each(&mut |_, addr, blocks| {
                if let Some(block) = dedup_block(addr) {
                    run(block, blocks);
                }
            });
        }
    }

    /// Calls `run` for every run of references into packed blocks of every version: the address of
    /// the first, and how many.
    pub fn for_each_packed_ref(&self, mut run: impl FnMut(BlockAddr, u32)) {
        for map in self.volumes.values().filter(|map| map.has_refs()) {
            map.for_each(&mut |_, addr, blocks| {
                if PackedRef::of(addr).is_some() {
                    run(addr, blocks);
                }
            });
        }
    }

    /// Whether packed block `number` has a place.
    #[must_use]
    pub fn has_packed(&self, number: u64) -> bool {
        self.volumes.get(&PACKED_VOLUME).is_some_and(|map| map.lookup(number).is_some())
    }

    /// Whether a version has references.
    #[must_use]
    pub fn has_refs(&self, version: VolumeId) -> bool {
        self.volumes.get(&version).is_some_and(VolumeMap::has_refs)
    }

    /// Blocks of a version that take a place in the main store of their own; zero when it does not
    /// exist.
    #[must_use]
    pub fn placed_blocks(&self, version: VolumeId) -> u64 {
        self.volumes.get(&version).map_or(0, VolumeMap::placed_blocks)
    }
}
