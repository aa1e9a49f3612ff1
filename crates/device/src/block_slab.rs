//! Memory for many blocks, which stay where they are.

use std::ptr::NonNull;

use forebay_units::BLOCK_LEN;

/// Bytes of a region: a large page of most machines.
const REGION_BYTES: usize = 2 << 20;
const BLOCKS_IN_REGION: u32 = (REGION_BYTES / BLOCK_LEN) as u32;

/// Memory of 2 MiB, aligned to its length.
struct Region(NonNull<u8>);

impl Region {
    /// A region of large or of small pages, as far as the system goes along; `None` when there is
    /// no memory.
    fn new(has_large_pages: bool) -> Option<Self> {
        const MAPPED_BYTES: usize = 2 * REGION_BYTES;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), MAPPED_BYTES, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let first = mapped as usize;
        let start = first.next_multiple_of(REGION_BYTES);
        unmap(first, start - first);
        unmap(start + REGION_BYTES, first + MAPPED_BYTES - start - REGION_BYTES);
        if has_large_pages {
            // SAFETY: the range lies in the mapping. This is advice: it may fail.
            unsafe { libc::madvise(start as *mut _, REGION_BYTES, libc::MADV_HUGEPAGE) };
        }
        NonNull::new(start as *mut u8).map(Self)
    }

    fn at(&self, block: u32) -> NonNull<u8> {
        debug_assert!(block < BLOCKS_IN_REGION);
        // SAFETY: the block lies in the region.
        unsafe { self.0.add(block as usize * BLOCK_LEN) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unmap(self.0.as_ptr() as usize, REGION_BYTES);
    }
}

fn unmap(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of a mapping that this file made, and is used no more.
        unsafe { libc::munmap(start as *mut _, len) };
    }
}

/// A block of a [`BlockSlab`]. It must be given back to the slab that it came from.
#[derive(Debug, PartialEq, Eq)]
pub struct SlabBlock(u32);

/// Blocks of 4096 bytes in regions of 2 MiB, which the kernel backs by large pages where it can.
/// Memory that is given back by [`BlockSlab::shrink`] goes to the system.
#[derive(Default)]
pub struct BlockSlab {
    regions: Vec<Region>,
    /// Blocks that are not in use, and whose memory is here.
    free: Vec<u32>,
    /// Blocks that are not in use, and whose memory the system has.
    returned: Vec<u32>,
}

impl BlockSlab {
    /// A block, with any content; `None` when there is no memory.
    pub fn take(&mut self) -> Option<SlabBlock> {
        if let Some(block) = self.free.pop().or_else(|| self.returned.pop()) {
            return Some(SlabBlock(block));
        }
        let first = self.regions.len() as u32 * BLOCKS_IN_REGION;
        // The first use of a small page costs more than to copy a block into it. A slab of few
        // blocks takes no more memory than these.
        let has_large_pages = !self.regions.is_empty();
        self.regions.push(Region::new(has_large_pages)?);
        self.free.extend((first + 1..first + BLOCKS_IN_REGION).rev());
        Some(SlabBlock(first))
    }

    /// Takes a block back.
    pub fn give_back(&mut self, block: SlabBlock) {
        self.free.push(block.0);
    }

    /// Returns the memory of all blocks that are not in use to the system.
    pub fn shrink(&mut self) {
        for block in self.free.drain(..) {
            let region = &self.regions[(block / BLOCKS_IN_REGION) as usize];
            let start = region.at(block % BLOCKS_IN_REGION);
            // SAFETY: the block lies in a region and is not in use: its content may go.
            unsafe { libc::madvise(start.as_ptr().cast(), BLOCK_LEN, libc::MADV_DONTNEED) };
            self.returned.push(block);
        }
    }

    /// The content of a block.
    #[must_use]
    pub fn bytes(&self, block: &SlabBlock) -> &[u8; BLOCK_LEN] {
        let region = &self.regions[(block.0 / BLOCKS_IN_REGION) as usize];
        // SAFETY: the block lies in the region, whose memory is initialized (with zeros by the
        // kernel), and nothing writes to it while the slab is borrowed.
        unsafe { region.at(block.0 % BLOCKS_IN_REGION).cast().as_ref() }
    }

    /// The content of a block, to be changed.
    pub fn bytes_mut(&mut self, block: &SlabBlock) -> &mut [u8; BLOCK_LEN] {
        let region = &self.regions[(block.0 / BLOCKS_IN_REGION) as usize];
        // SAFETY: as above, and the slab is borrowed for this alone.
        unsafe { region.at(block.0 % BLOCKS_IN_REGION).cast().as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes(slab: &BlockSlab) -> usize {
        let resident = |region: &Region| {
            let mut pages = [0u8; REGION_BYTES / 4096];
            // SAFETY: the region is mapped, and there is a byte for each of its pages.
            let failed = unsafe {
                libc::mincore(region.0.as_ptr().cast(), REGION_BYTES, pages.as_mut_ptr())
            };
            assert_eq!(failed, 0);
            pages.iter().filter(|page| **page & 1 == 1).count() * 4096
        };
        slab.regions.iter().map(resident).sum()
    }

    #[test]
    fn blocks_keep_what_was_written_to_them() {
        let mut slab = BlockSlab::default();
        let mut blocks: Vec<SlabBlock> = (0..1500).filter_map(|_| slab.take()).collect();
        assert_eq!(slab.regions.len(), 3);
        for (value, block) in blocks.iter().enumerate() {
            slab.bytes_mut(block).fill(value as u8);
        }
        for block in blocks.drain(500..1000) {
            slab.give_back(block);
        }
        slab.shrink();
        let again: Vec<SlabBlock> = (0..400).filter_map(|_| slab.take()).collect();
        for block in &again {
            slab.bytes_mut(block).fill(255);
        }
        let values = (0..500).chain(1000..1500);
        for (value, block) in values.zip(&blocks) {
            assert!(slab.bytes(block).iter().all(|byte| *byte == value as u8));
        }
        assert_eq!(slab.regions.len(), 3, "blocks that were given back are used again");
    }

    #[test]
    fn memory_that_is_given_back_goes_to_the_system() {
        let mut slab = BlockSlab::default();
        let blocks: Vec<SlabBlock> =
            (0..4 * BLOCKS_IN_REGION).filter_map(|_| slab.take()).collect();
        for block in &blocks {
            slab.bytes_mut(block).fill(1);
        }
        assert_eq!(resident_bytes(&slab), 4 * REGION_BYTES);
        for block in blocks.into_iter().skip(1) {
            slab.give_back(block);
        }
        slab.shrink();
        assert_eq!(resident_bytes(&slab), BLOCK_LEN);
    }
}
