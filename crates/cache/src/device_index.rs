//! The index of a cache device: which blocks of the main store it has, and where.

use forebay_units::BlockAddr;

use crate::memory::BlockKey;

/// A block on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// What the block is called.
    pub key: BlockKey,
    /// Its checksum.
    pub sum: u64,
}

/// An entry in memory: address (5 bytes), birth with [`USED`] (6), checksum (5), and the next
/// entry with the same hash, one up (4). All zeros when the position is empty.
type Slot = [u8; 20];

const USED: u64 = 1 << 47;
const SUM_BITS: u32 = 40;

/// Bytes that a block takes in memory: its entry, and its share of the table of hashes.
pub const INDEX_ENTRY_BYTES: u64 = (size_of::<Slot>() + size_of::<u32>() / 2) as u64;

/// Blocks by position on the device, and the position of each block. An address is at one position
/// at most.
#[derive(Clone, Debug)]
pub struct DeviceIndex {
    slots: Vec<Slot>,
    heads: Vec<u32>,
    len: u32,
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

fn next_of(slot: &Slot) -> u32 {
    number(&slot[16..]) as u32
}

fn addr_of(slot: &Slot) -> u64 {
    number(&slot[..5])
}

/// Mixes the bits of an address (the finalizer of splitmix64).
fn mixed(addr: u64) -> u64 {
    let addr = (addr ^ (addr >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let addr = (addr ^ (addr >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    addr ^ (addr >> 31)
}

impl DeviceIndex {
    /// An empty index of a device with room for `capacity` blocks. Memory is used as it fills.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let heads = (capacity / 2).max(1) as usize;
        Self { slots: vec![[0; 20]; capacity as usize], heads: vec![0; heads], len: 0 }
    }

    /// Blocks that are in it.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Blocks that the device has room for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Bytes of memory when it is full.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.slots.len() * size_of::<Slot>() + self.heads.len() * size_of::<u32>()) as u64
    }

    fn bucket(&self, addr: u64) -> usize {
        let wide = u128::from(mixed(addr)) * self.heads.len() as u128;
        (wide >> 64) as usize
    }

    /// The position that has `addr`, of whatever birth.
    fn find(&self, addr: u64) -> Option<u32> {
        let mut next = self.heads[self.bucket(addr)];
        while next != 0 {
            let slot = &self.slots[next as usize - 1];
            if addr_of(slot) == addr {
                return Some(next - 1);
            }
            next = next_of(slot);
        }
        None
    }

    /// Where a block is, and its checksum.
    #[must_use]
    pub fn get(&self, key: BlockKey) -> Option<(u32, u64)> {
        let position = self.find(key.addr.raw())?;
        let found = self.at(position).filter(|found| found.key == key)?;
        Some((position, found.sum))
    }

    /// What is at a position.
    #[must_use]
    pub fn at(&self, position: u32) -> Option<Indexed> {
        let slot = self.slots.get(position as usize)?;
        let birth = number(&slot[5..11]);
        if birth & USED == 0 {
            return None;
        }
        let key = BlockKey { addr: BlockAddr::from_raw(addr_of(slot)), birth: birth & !USED };
        Some(Indexed { key, sum: number(&slot[11..16]) })
    }

    /// Notes that a block is at `position` now, and nowhere else. Whatever was there is forgotten.
    /// A birth of 47 bits or more is not noted: that many commits are beyond any pool's life.
    pub fn put(&mut self, position: u32, block: Indexed) {
        self.forget(position);
        let Indexed { key, sum } = block;
        if key.birth >= USED || sum >> SUM_BITS != 0 {
            return;
        }
        let addr = key.addr.raw();
        if let Some(before) = self.find(addr) {
            self.forget(before);
        }
        let bucket = self.bucket(addr);
        let slot = &mut self.slots[position as usize];
        slot[..5].copy_from_slice(&addr.to_le_bytes()[..5]);
        slot[5..11].copy_from_slice(&(key.birth | USED).to_le_bytes()[..6]);
        slot[11..16].copy_from_slice(&sum.to_le_bytes()[..5]);
        slot[16..].copy_from_slice(&self.heads[bucket].to_le_bytes());
        self.heads[bucket] = position + 1;
        self.len += 1;
    }

    /// Forgets what is at a position.
    pub fn forget(&mut self, position: u32) {
        let Some(found) = self.at(position) else { return };
        let after = next_of(&self.slots[position as usize]);
        let bucket = self.bucket(found.key.addr.raw());
        let mut next = self.heads[bucket];
        if next == position + 1 {
            self.heads[bucket] = after;
        }
        while next != 0 && next != position + 1 {
            let slot = &mut self.slots[next as usize - 1];
            next = next_of(slot);
            if next == position + 1 {
                slot[16..].copy_from_slice(&after.to_le_bytes());
            }
        }
        self.slots[position as usize] = [0; 20];
        self.len -= 1;
    }

    /// A block has a new place in the main store, with the same content.
    pub fn rename(&mut self, old: BlockKey, new: BlockKey) {
        if let Some((position, sum)) = self.get(old) {
            self.put(position, Indexed { key: new, sum });
        }
    }
}

/// Blocks that have left the cache in memory, by one byte of their hash each. A block that is read
/// again while it is remembered is worth a write to a cache device.
#[derive(Clone, Debug)]
pub struct Ghosts {
    marks: Vec<u8>,
}

impl Ghosts {
    /// Remembers about `capacity` blocks. A new one displaces one that was there before.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { marks: vec![0; capacity] }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.marks.len() as u64
    }

    fn place(&self, key: BlockKey) -> (usize, u8) {
        let hash = mixed(key.addr.raw() ^ key.birth.rotate_left(40));
        let at = (u128::from(hash) * self.marks.len() as u128) >> 64;
        (at as usize, (hash % 255) as u8 + 1)
    }

    /// Remembers a block.
    pub fn remember(&mut self, key: BlockKey) {
        let (at, mark) = self.place(key);
        if let Some(place) = self.marks.get_mut(at) {
            *place = mark;
        }
    }

    /// Whether a block is remembered, and forgets it. One in 255 blocks is mistaken for another.
    pub fn take(&mut self, key: BlockKey) -> bool {
        let (at, mark) = self.place(key);
        let Some(place) = self.marks.get_mut(at).filter(|place| **place == mark) else {
            return false;
        };
        *place = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use forebay_units::SegmentId;
    use proptest::prelude::*;

    fn key(number: u32, birth: u64) -> BlockKey {
        BlockKey { addr: BlockAddr::new(SegmentId(number / 8), number % 8), birth }
    }

    #[test]
    fn an_entry_takes_less_than_24_bytes() {
        assert_eq!(INDEX_ENTRY_BYTES, 22);
        let index = DeviceIndex::new(1000);
        assert_eq!(index.memory_bytes(), 1000 * INDEX_ENTRY_BYTES);
    }

    #[test]
    fn all_bits_of_an_entry_are_kept() {
        let addr =
            BlockAddr::new(SegmentId(BlockAddr::MAX_SEGMENTS - 1), BlockAddr::MAX_BLOCKS - 1);
        let block = Indexed { key: BlockKey { addr, birth: USED - 1 }, sum: (1 << 40) - 1 };
        let mut index = DeviceIndex::new(4);
        index.put(3, block);
        assert_eq!((index.at(3), index.get(block.key)), (Some(block), Some((3, block.sum))));
        let too_late = BlockKey { addr, birth: USED };
        index.put(2, Indexed { key: too_late, sum: 1 });
        assert_eq!((index.at(2), index.get(too_late), index.len()), (None, None, 1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u32, u32, u64, u64),
        Forget(u32),
        Rename(u32, u64, u32, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let block = || (0u32..24, 1u64..4);
        let step = prop_oneof![
            4 => (0u32..16, block(), 0u64..1 << 40)
                .prop_map(|(at, (number, birth), sum)| Step::Put(at, number, birth, sum)),
            1 => (0u32..16).prop_map(Step::Forget),
            2 => (block(), block()).prop_map(|(a, b)| Step::Rename(a.0, a.1, b.0, b.1)),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Against a list of positions that is searched from end to end.
        #[test]
        fn it_agrees_with_a_list(steps in steps()) {
            let mut index = DeviceIndex::new(16);
            let mut model: BTreeMap<u32, Indexed> = BTreeMap::new();
            let put = |model: &mut BTreeMap<u32, Indexed>, at: u32, block: Indexed| {
                model.retain(|_, other| other.key.addr != block.key.addr);
                model.insert(at, block);
            };
            for step in steps {
                match step {
                    Step::Put(at, number, birth, sum) => {
                        let block = Indexed { key: key(number, birth), sum };
                        index.put(at, block);
                        put(&mut model, at, block);
                    }
                    Step::Forget(at) => {
                        index.forget(at);
                        model.remove(&at);
                    }
                    Step::Rename(number, birth, to, to_birth) => {
                        let (old, new) = (key(number, birth), key(to, to_birth));
                        index.rename(old, new);
                        let found = model.iter().find(|(_, block)| block.key == old);
                        if let Some((at, block)) = found.map(|(at, block)| (*at, *block)) {
                            put(&mut model, at, Indexed { key: new, ..block });
                        }
                    }
                }
                prop_assert_eq!(index.len() as usize, model.len());
                for number in 0..24 {
                    for birth in 1..4 {
                        let found = model.iter().find(|(_, block)| block.key == key(number, birth));
                        let found = found.map(|(at, block)| (*at, block.sum));
                        prop_assert_eq!(index.get(key(number, birth)), found);
                    }
                }
                for at in 0..16 {
                    prop_assert_eq!(index.at(at), model.get(&at).copied());
                }
            }
        }
    }

    #[test]
    fn a_ghost_is_remembered_once_and_told_from_others() {
        let mut ghosts = Ghosts::new(1 << 16);
        for number in 0..1000 {
            ghosts.remember(key(number, 7));
        }
        let other_birth = (0..1000).filter(|number| ghosts.take(key(*number, 8))).count();
        let others = (1000..2000).filter(|number| ghosts.take(key(*number, 7))).count();
        assert!(other_birth + others < 10, "{other_birth} {others}");
        let found = (0..1000).filter(|number| ghosts.take(key(*number, 7))).count();
        assert!(found > 950, "{found}");
        let again = (0..1000).filter(|number| ghosts.take(key(*number, 7))).count();
        assert_eq!(again, 0);
        assert!(!Ghosts::new(0).take(key(1, 1)));
    }
}
