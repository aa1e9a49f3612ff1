//! Which object has which blocks of a device.

use std::collections::BTreeMap;

use forebay_format::objects::{Extent, ObjectId};

/// Extents by their first block; what objects hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    by_block: BTreeMap<u64, Extent>,
    objects: BTreeMap<ObjectId, Use>,
    /// Blocks of all objects.
    stored_blocks: u64,
    /// Objects of which nothing is needed any more.
    unused: Vec<ObjectId>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    blocks: u32,
    needed: u32,
}

impl Extents {
    /// From a checkpoint, whose extents lie in its objects and are in order.
    pub fn restored(objects: &[(ObjectId, u32)], extents: &[Extent]) -> Self {
        let mut found = Self::default();
        for extent in extents {
            let at = objects.partition_point(|(id, _)| *id < extent.object);
            let blocks = objects.get(at).map_or(extent.at + extent.blocks, |(_, blocks)| *blocks);
            let used = found.objects.entry(extent.object).or_insert(Use { blocks, needed: 0 });
            used.needed += extent.blocks;
            found.by_block.insert(extent.first_block, *extent);
        }
        found.count_stored();
        found
    }

    /// Puts a whole object, or a part more of one, in the place of what was there.
    pub fn insert(&mut self, extent: Extent) {
        self.remove(extent.first_block, u64::from(extent.blocks));
        let used = self.objects.entry(extent.object).or_insert(Use { blocks: 0, needed: 0 });
        let blocks = used.blocks.max(extent.at + extent.blocks);
        self.stored_blocks += u64::from(blocks - used.blocks);
        used.blocks = blocks;
        used.needed += extent.blocks;
        let before = self.by_block.range_mut(..extent.first_block).next_back();
        match before {
            Some((_, last)) if is_continued(last, &extent) => last.blocks += extent.blocks,
            _ => {
                self.by_block.insert(extent.first_block, extent);
            }
        }
    }

    /// Blocks from `first_block` on are not needed any more.
    pub fn remove(&mut self, first_block: u64, blocks: u64) {
        let end = first_block.saturating_add(blocks);
        while let Some((_, found)) = self.by_block.range(..end).next_back() {
            let found = *found;
            let found_end = found.first_block + u64::from(found.blocks);
            if found_end <= first_block {
                return;
            }
            self.by_block.remove(&found.first_block);
            let (cut_from, cut_to) = (found.first_block.max(first_block), found_end.min(end));
            if found.first_block < cut_from {
                self.by_block.insert(found.first_block, part(&found, found.first_block, cut_from));
            }
            if cut_to < found_end {
                self.by_block.insert(cut_to, part(&found, cut_to, found_end));
            }
            self.let_go(found.object, (cut_to - cut_from) as u32);
        }
    }

    fn let_go(&mut self, object: ObjectId, blocks: u32) {
        let used = self.objects.get_mut(&object).expect("extents lie in objects that are known");
        used.needed -= blocks;
        if used.needed == 0 {
            self.stored_blocks -= u64::from(used.blocks);
            self.objects.remove(&object);
            self.unused.push(object);
        }
    }

    /// The parts of a range that an object has, in order. An empty range has none.
    pub fn lookup(&self, first_block: u64, blocks: u64) -> Vec<Extent> {
        if blocks == 0 {
            return Vec::new();
        }
        let end = first_block + blocks;
        let before = self.by_block.range(..first_block).next_back();
        let before = before.filter(|(_, e)| e.first_block + u64::from(e.blocks) > first_block);
        let all = before.into_iter().chain(self.by_block.range(first_block..end));
        let cut = |extent: &Extent| {
            let extent_end = extent.first_block + u64::from(extent.blocks);
            part(extent, extent.first_block.max(first_block), extent_end.min(end))
        };
        all.map(|(_, extent)| cut(extent)).collect()
    }

    /// Objects of which nothing is needed any more, since the last call. One that was put in its
    /// own place is needed.
    pub fn take_unused(&mut self) -> Vec<ObjectId> {
        let mut unused = std::mem::take(&mut self.unused);
        unused.retain(|object| !self.objects.contains_key(object));
        unused
    }

    /// Forgets all objects but those that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(ObjectId) -> bool) {
        self.by_block.retain(|_, extent| keep(extent.object));
        self.objects.retain(|object, _| keep(*object));
        self.unused.clear();
        self.count_stored();
    }

    fn count_stored(&mut self) {
        self.stored_blocks = self.objects.values().map(|used| u64::from(used.blocks)).sum();
    }

    /// Blocks of all objects.
    pub fn stored_blocks(&self) -> u64 {
        self.stored_blocks
    }

    /// Whether something of the object is needed.
    pub fn holds(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }

    /// Objects, each with its blocks, by id.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = (ObjectId, u32)> + '_ {
        self.objects.iter().map(|(id, used)| (*id, used.blocks))
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.by_block.values()
    }
}

/// Blocks `from` to `to` of an extent that has them.
fn part(extent: &Extent, from: u64, to: u64) -> Extent {
    Extent {
        first_block: from,
        blocks: (to - from) as u32,
        object: extent.object,
        at: extent.at + (from - extent.first_block) as u32,
    }
}

fn is_continued(last: &Extent, next: &Extent) -> bool {
    last.object == next.object
        && last.first_block + u64::from(last.blocks) == next.first_block
        && last.at + last.blocks == next.at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: usize = 64;

    fn object(number: u64) -> ObjectId {
        ObjectId { writer: 1, number }
    }

    fn whole(first_block: u64, blocks: u32, number: u64) -> Extent {
        Extent { first_block, blocks, object: object(number), at: 0 }
    }

    #[test]
    fn an_empty_range_has_no_parts() {
        let mut extents = Extents::default();
        extents.insert(whole(3, 8, 1));
        for at in 2..12 {
            assert_eq!(extents.lookup(at, 0), [], "at {at}");
        }
    }

    #[test]
    fn an_object_in_its_own_place_is_needed() {
        let mut extents = Extents::default();
        extents.insert(whole(3, 8, 1));
        extents.insert(whole(3, 8, 1));
        assert_eq!(extents.take_unused(), []);
        assert!(extents.holds(object(1)));
    }

    proptest! {
        /// Against a model that has the object and the place of each block.
        #[test]
        fn blocks_are_where_they_were_put_last(
            changes in prop::collection::vec((0..BLOCKS as u64, 1u32..20, prop::bool::ANY), 1..60)
        ) {
            let mut extents = Extents::default();
            let mut model: Vec<Option<(u64, u32)>> = vec![None; BLOCKS + 20];
            let mut unused = Vec::new();
            for (number, (first, blocks, is_put)) in changes.iter().enumerate() {
                let number = number as u64;
                match is_put {
                    true => extents.insert(whole(*first, *blocks, number)),
                    false => extents.remove(*first, u64::from(*blocks)),
                }
                for at in 0..*blocks {
                    model[*first as usize + at as usize] = is_put.then_some((number, at));
                }
                unused.extend(extents.take_unused());
            }
            let stored: u64 = extents.objects().map(|(_, blocks)| u64::from(blocks)).sum();
            prop_assert_eq!(extents.stored_blocks(), stored);
            let found = extents.lookup(3, BLOCKS as u64);
            let mut seen = vec![None; BLOCKS + 20];
            for extent in &found {
                for at in 0..extent.blocks {
                    let block = extent.first_block as usize + at as usize;
                    prop_assert!((3..BLOCKS + 3).contains(&block));
                    seen[block] = Some((extent.object.number, extent.at + at));
                }
            }
            prop_assert_eq!(&seen[3..BLOCKS + 3], &model[3..BLOCKS + 3]);
            for number in 0..changes.len() as u64 {
                let is_needed = model.iter().flatten().any(|(other, _)| *other == number);
                prop_assert_eq!(extents.holds(object(number)), is_needed);
                let was_put = changes[number as usize].2;
                prop_assert_eq!(unused.contains(&object(number)), was_put && !is_needed);
            }
            // A checkpoint brings the same back.
            let objects: Vec<_> = extents.objects().collect();
            let all: Vec<_> = extents.iter().copied().collect();
            let mut again = Extents::restored(&objects, &all);
            prop_assert_eq!(again.iter().collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
            prop_assert_eq!(again.objects().collect::<Vec<_>>(), objects.clone());
            again.remove(0, u64::MAX);
            prop_assert_eq!(again.take_unused().len(), objects.len());
        }
    }
}
