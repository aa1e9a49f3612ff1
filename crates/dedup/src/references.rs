//! Counts of references to virtual blocks: a byte a block, and a table of those with more.

use std::collections::BTreeMap;

use forebay_units::FixedMap;

/// Blocks whose counts lie together.
const PAGE_BLOCKS: u64 = 4096;
/// A count of this or more is in the table of large counts.
const LARGE: u8 = u8::MAX;

/// How many map entries refer to each virtual block.
#[derive(Default)]
pub struct References {
    pages: BTreeMap<u64, Page>,
    /// Counts from [`LARGE`] on, by block.
    large: FixedMap<u64, u64>,
    /// All references.
    total: u64,
}

struct Page {
    counts: Box<[u8; PAGE_BLOCKS as usize]>,
    /// Counts that are not zero.
    used: u32,
}

impl References {
    /// References to `block`.
    #[must_use]
    pub fn count(&self, block: u64) -> u64 {
        let page = self.pages.get(&(block / PAGE_BLOCKS));
        match page.map_or(0, |page| page.counts[(block % PAGE_BLOCKS) as usize]) {
            LARGE => self.large.get(&block).copied().unwrap_or(u64::from(LARGE)),
            count => u64::from(count),
        }
    }

    /// All references to all blocks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The blocks from `first` on that have references, in order, with how many.
    pub fn used_from(&self, first: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let pages = self.pages.range(first / PAGE_BLOCKS..);
        let used = pages.flat_map(|(number, page)| {
            let blocks = number * PAGE_BLOCKS..(number + 1) * PAGE_BLOCKS;
            blocks.zip(page.counts.iter()).filter(|(_, count)| **count > 0)
        });
        used.skip_while(move |(block, _)| *block < first)
            .map(|(block, _)| (block, self.count(block)))
    }

    /// Adds a reference to each of `blocks` blocks from `first` on.
    pub fn add(&mut self, first: u64, blocks: u64) {
        for block in first..first + blocks {
            self.set(block, self.count(block) + 1);
        }
        self.total += blocks;
    }

    /// Takes a reference from each of `blocks` blocks from `first` on, and reports each block that
    /// has none left. Panics when one has none (a bug: its data may be gone).
    pub fn remove(&mut self, first: u64, blocks: u64, mut unused: impl FnMut(u64)) {
        for block in first..first + blocks {
            let count = self.count(block).checked_sub(1);
            let count = count.unwrap_or_else(|| panic!("virtual block {block} has no reference"));
            self.set(block, count);
            if count == 0 {
                unused(block);
            }
        }
        self.total -= blocks;
    }

    fn set(&mut self, block: u64, count: u64) {
        let number = block / PAGE_BLOCKS;
        let page = self
            .pages
            .entry(number)
            .or_insert_with(|| Page { counts: Box::new([0; PAGE_BLOCKS as usize]), used: 0 });
        let at = &mut page.counts[(block % PAGE_BLOCKS) as usize];
        let before = std::mem::replace(at, count.min(u64::from(LARGE)) as u8);
        page.used = page.used + u32::from(count > 0) - u32::from(before > 0);
        if page.used == 0 {
            self.pages.remove(&number);
        }
        if count >= u64::from(LARGE) {
            self.large.insert(block, count);
        } else if before == LARGE {
            self.large.remove(&block);
        }
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        const PAGE_BYTES: u64 = PAGE_BLOCKS + 48;
        const LARGE_BYTES: u64 = 32;
        self.pages.len() as u64 * PAGE_BYTES + self.large.capacity() as u64 * LARGE_BYTES
    }
}

#[cfg(test)]
mod tests;
