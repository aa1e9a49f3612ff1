//! De-duplication: which contents the main store has, and who refers to them.
//!
//! Blocks of volumes with `dedup` are blocks of a hidden volume, each content once, and the volumes
//! refer to them. References are counted from the map at import, so no count has to survive a
//! crash. See `docs/rfcs/0014-deduplication.md`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_dedup::{Fingerprint, FingerprintKey, Index, References};
use forebay_device::IoBytes;
use forebay_format::fingerprints::Fingerprints;
use forebay_map::{DEDUP_VOLUME, Map};
use forebay_units::{BLOCK_BYTES, FixedMap, Lba};

use crate::Pool;
use crate::status::DedupStats;

/// Most fingerprints of neighbors that are kept for the next lookups.
const MAX_NEIGHBORS: usize = 1 << 16;

/// Whether and how the blocks of a volume are de-duplicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DedupMode {
    /// Each block is stored for itself.
    #[default]
    Off,
    /// A block whose content is there already refers to it.
    On,
    /// The same, after both were compared.
    Verify,
}

impl DedupMode {
    /// From the property's value.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "off" => Some(Self::Off),
            "on" => Some(Self::On),
            "verify" => Some(Self::Verify),
            _ => None,
        }
    }
}

/// The contents that are stored once.
pub(crate) struct Dedup {
    key: FingerprintKey,
    references: RefCell<References>,
    index: RefCell<Index>,
    /// The number that the next new content gets.
    next: Cell<u64>,
    /// The first number that the group being written gave.
    first_fresh: Cell<u64>,
    /// New contents of the group that is being written.
    fresh: RefCell<FixedMap<Fingerprint, (u64, IoBytes)>>,
    /// Contents near ones that were found, when the index has only a sample.
    neighbors: RefCell<Neighbors>,
    /// Numbers that lost their last reference in this group.
    unused: RefCell<Vec<u64>>,
    /// What the journal does not know yet.
    unwritten: RefCell<Fingerprints>,
    /// Blocks since the import: whose content was there, and whose was not.
    found: Cell<u64>,
    stored: Cell<u64>,
}

/// Fingerprints of blocks beside those that were found, the oldest first to go.
#[derive(Default)]
struct Neighbors {
    blocks: FixedMap<Fingerprint, u64>,
    order: VecDeque<Fingerprint>,
}

impl Neighbors {
    fn insert(&mut self, fingerprint: Fingerprint, block: u64) {
        if self.blocks.insert(fingerprint, block).is_none() {
            self.order.push_back(fingerprint);
        }
        if self.order.len() > MAX_NEIGHBORS {
            if let Some(oldest) = self.order.pop_front() {
                self.blocks.remove(&oldest);
            }
        }
    }
}

impl Dedup {
    /// From the map and what the journal says of fingerprints.
    pub fn restored(guid: u64, map: &Map, kept: &Fingerprints, index_bytes: u64) -> Self {
        let mut references = References::default();
        map.for_each_ref(|first, blocks| references.add(first.0, u64::from(blocks)));
        let (mut next, mut unused) = (kept.next, Vec::new());
        map.for_each(|volume, lba, _, blocks| {
            if volume == DEDUP_VOLUME {
                next = next.max(lba.0 + u64::from(blocks));
                let all = lba.0..lba.0 + u64::from(blocks);
                unused.extend(all.filter(|block| references.count(*block) == 0));
            }
        });
        let mut index = Index::new(index_bytes);
        let is_there = |block: u64| references.count(block) > 0;
        for (fingerprint, block) in kept.records.iter().filter(|(_, block)| is_there(*block)) {
            index.insert(&Fingerprint(*fingerprint), *block, is_there);
        }
        Self {
            key: FingerprintKey::of_pool(guid),
            references: references.into(),
            index: index.into(),
            next: next.into(),
            first_fresh: next.into(),
            fresh: RefCell::default(),
            neighbors: RefCell::default(),
            unused: unused.into(),
            unwritten: RefCell::default(),
            found: Cell::new(0),
            stored: Cell::new(0),
        }
    }

    /// The key of fingerprints.
    pub fn key(&self) -> FingerprintKey {
        self.key
    }

    /// Whether any content was ever stored once.
    pub fn is_used(&self) -> bool {
        self.next.get() > 0
    }

    /// The number under which a content may be stored, and the content itself if the group that is
    /// being written brings it.
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<(u64, Option<IoBytes>)> {
        if let Some((block, data)) = self.fresh.borrow().get(fingerprint) {
            return Some((*block, Some(data.clone())));
        }
        let near = self.neighbors.borrow().blocks.get(fingerprint).copied();
        let block = near.or_else(|| self.index.borrow().get(fingerprint))?;
        (self.references.borrow().count(block) > 0).then_some((block, None))
    }

    /// Whether the index has only some of the fingerprints, so that the neighbors of what it finds
    /// are worth reading.
    pub fn is_sampled(&self) -> bool {
        self.index.borrow().one_in() > 1
    }

    /// Whether the content is known without the index.
    pub fn is_near(&self, fingerprint: &Fingerprint) -> bool {
        self.neighbors.borrow().blocks.contains_key(fingerprint)
    }

    /// Keeps the fingerprint of a block that lies beside one that was found.
    pub fn note_neighbor(&self, fingerprint: Fingerprint, block: u64) {
        self.neighbors.borrow_mut().insert(fingerprint, block);
    }

    /// Counts a block whose content was there.
    pub fn count_found(&self) {
        self.found.set(self.found.get() + 1);
    }

    /// Gives a new content its number. `None` when there is none left.
    pub fn give_number(&self, fingerprint: Fingerprint, data: IoBytes) -> Option<u64> {
        let block = self.next.get();
        if block >= forebay_format::map_record::MAX_DEDUP_BLOCKS {
            return None;
        }
        self.next.set(block + 1);
        self.stored.set(self.stored.get() + 1);
        self.fresh.borrow_mut().insert(fingerprint, (block, data));
        let references = self.references.borrow();
        // What this group brings is referred to once it is applied.
        let first_fresh = self.first_fresh.get();
        let is_alive = |block: u64| block >= first_fresh || references.count(block) > 0;
        let mut unwritten = self.unwritten.borrow_mut();
        unwritten.next = block + 1;
        if self.index.borrow_mut().insert(&fingerprint, block, is_alive) {
            unwritten.records.push((fingerprint.0, block));
        }
        Some(block)
    }

    /// The group's new contents are in the map.
    pub fn group_is_applied(&self) {
        self.fresh.borrow_mut().clear();
        self.first_fresh.set(self.next.get());
    }

    /// Counts references that were made.
    pub fn refer(&self, first: Lba, blocks: u32) {
        self.references.borrow_mut().add(first.0, u64::from(blocks));
    }

    /// Counts references that went.
    pub fn release(&self, first: Lba, blocks: u32) {
        let mut unused = self.unused.borrow_mut();
        let mut references = self.references.borrow_mut();
        references.remove(first.0, u64::from(blocks), |block| unused.push(block));
    }

    /// The numbers without references since the last call, in order.
    pub fn take_unused(&self) -> Vec<u64> {
        let mut unused = self.unused.take();
        unused.sort_unstable();
        unused.dedup();
        let references = self.references.borrow();
        unused.retain(|block| references.count(*block) == 0);
        unused
    }

    /// What the journal does not know yet; `None` if it knows all.
    pub fn take_unwritten(&self) -> Option<Fingerprints> {
        let unwritten = self.unwritten.take();
        (unwritten.next > 0).then_some(unwritten)
    }

    /// Part `number` of the index, as the journal keeps it; `None` after the last.
    pub fn part(&self, number: usize) -> Option<Fingerprints> {
        let index = self.index.borrow();
        let references = self.references.borrow();
        let is_alive = |block: u64| references.count(block) > 0;
        let alive = index.part(number).filter(|(_, block)| is_alive(*block));
        let records = alive.map(|(fingerprint, block)| (fingerprint.0, block)).collect();
        (number < index.parts()).then(|| Fingerprints { next: self.next.get(), records })
    }

    /// Upper bound for the whole index in the journal, in bytes.
    pub fn journal_bytes(&self) -> u64 {
        self.index.borrow().len() * forebay_format::fingerprints::RECORD_BYTES as u64
    }

    /// Changes how much memory the index may take.
    pub fn set_index_bytes(&self, bytes: u64) {
        self.index.borrow_mut().set_limit(bytes);
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        self.index.borrow().memory_bytes() + self.references.borrow().memory_bytes()
    }
}

impl Pool {
    /// What de-duplication saves and costs.
    pub(crate) fn dedup_stats(&self) -> DedupStats {
        let dedup = &self.dedup;
        let index = dedup.index.borrow();
        DedupStats {
            referenced_bytes: dedup.references.borrow().total() * BLOCK_BYTES,
            stored_bytes: self.store.map.borrow().placed_blocks(DEDUP_VOLUME) * BLOCK_BYTES,
            found_blocks: dedup.found.get(),
            new_blocks: dedup.stored.get(),
            index_entries: index.len(),
            index_one_in: index.one_in(),
            memory_bytes: dedup.memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
