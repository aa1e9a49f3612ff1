//! Conversion from and to the records of the map journal.

use forebay_format::map_record::{Change, Delta, LeafImage};
use forebay_units::VolumeId;

use crate::change::Freed;
use crate::entry::LeafId;
use crate::leaf::Leaf;
use crate::map::Map;
use crate::runs::RunList;
use crate::sums::{sum_bytes, wide};
use crate::volume::VolumeMap;

impl Map {
    /// Applies a decoded delta, and creates the volumes that it names. Freed addresses are not
    /// reported: import counts live blocks at the end of replay, with [`Map::for_each`].
    pub fn apply(&mut self, delta: &Delta) {
        let mut ignored = |_, _| {};
        let mut freed = Freed::new(&mut ignored);
        let Self { volumes, scratch, .. } = self;
        for (volume, group) in delta.volumes() {
            let mut sums = &group.sums[..];
            for change in &group.changes {
                if *change == Change::Drop {
                    volumes.remove(&volume);
                    continue;
                }
                let map = volumes.entry(volume).or_default();
                match *change {
                    Change::Assign { lba, blocks, addr } => {
                        let (mine, others) = sums.split_at(blocks as usize);
                        map.set_run(lba.0, addr, mine, false, &mut freed, scratch);
                        sums = others;
                    }
                    Change::AssignSealed { lba, blocks, addr } => {
                        map.set_sealed(lba.0, addr, blocks, &mut freed, scratch);
                    }
                    Change::Clear { lba, blocks } => {
                        map.clear(lba.0, blocks, &mut freed, scratch);
                    }
                    Change::Drop => unreachable!("handled above"),
                }
            }
        }
    }

    /// Replaces a leaf by a decoded image, and creates its volume.
    pub fn load_leaf(&mut self, image: &LeafImage) {
        let Self { volumes, scratch, .. } = self;
        scratch.clear();
        scratch.sums.extend(image.sums.iter().map(|sum| sum_bytes(*sum)));
        for run in &image.runs {
            scratch.push_run(*run);
        }
        let map: &mut VolumeMap = volumes.entry(image.volume).or_default();
        map.store_leaf(image.leaf, scratch);
    }

    /// The image of a leaf; it has no runs when the leaf is empty.
    #[must_use]
    pub fn leaf_image(&self, id: LeafId) -> LeafImage {
        let LeafId { volume, leaf } = id;
        let mut image = LeafImage { volume, leaf, runs: Vec::new(), sums: Vec::new() };
        if let Some(found) = self.leaf_of(volume, leaf) {
            let mut list = RunList::default();
            found.load(&mut list);
            image.runs = list.iter().collect();
            image.sums = list.sums.iter().map(|sum| wide(*sum)).collect();
        }
        image
    }

    fn leaf_of(&self, volume: VolumeId, leaf: u32) -> Option<&Leaf> {
        self.volumes.get(&volume)?.leaf(leaf)
    }
}
