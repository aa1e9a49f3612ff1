//! The directory of a volume: finds leaves by number, and takes no memory for holes.
//!
//! A page of 64 leaves is an array when nearly all of them are in use. Otherwise its leaves lie in
//! a tree with those of other such pages. So a leaf costs 24 to 36 bytes wherever it lies.

use std::ops::Range;

use crate::leaf::Leaf;
use crate::pages::{PAGE_LEAVES, Page, Pages};
use crate::sparse::SparseLeaves;

/// A page becomes an array with this many leaves in use.
const MIN_FULL_LEAVES: usize = 56;
/// An array with fewer leaves in use goes back to the tree. The distance keeps a page from changing
/// its form with every change of a leaf.
const MIN_KEPT_LEAVES: u32 = 48;

/// The leaves of a volume.
#[derive(Default)]
pub(crate) struct Directory {
    pages: Pages,
    /// Leaves of pages that are not in `pages`.
    sparse: SparseLeaves,
}

/// The numbers of a page's leaves.
fn numbers(page: u32) -> Range<u64> {
    let first = u64::from(page) * u64::from(PAGE_LEAVES);
    first..first + u64::from(PAGE_LEAVES)
}

impl Directory {
    /// The leaf, unless it is empty.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Leaf> {
        match self.pages.leaf(number) {
            Some(leaf) => Some(leaf).filter(|leaf| !leaf.is_empty()),
            None => self.sparse.get(number),
        }
    }

    /// Applies `change` to a leaf, which may be empty before and after.
    #[inline]
    pub(crate) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let mut page = self.pages.get_mut(number / PAGE_LEAVES);
        let leaf = match &mut page {
            Some(page) => page.leaf_mut((number % PAGE_LEAVES) as usize),
            None => self.sparse.leaf_mut(number),
        };
        let was_empty = leaf.is_empty();
        let result = change(leaf);
        let is_empty = leaf.is_empty();
        match page {
            Some(page) => {
                page.used = page.used + u32::from(was_empty) - u32::from(is_empty);
                if page.used < MIN_KEPT_LEAVES {
                    self.spread(number / PAGE_LEAVES);
                }
            }
            None if is_empty => self.sparse.remove(number),
            None if was_empty => self.gather_if_full(number / PAGE_LEAVES),
            None => {}
        }
        result
    }

    #[inline(never)]
    fn gather_if_full(&mut self, page_no: u32) {
        if self.sparse.count(numbers(page_no)) >= MIN_FULL_LEAVES {
            self.gather(page_no);
        }
    }

    /// Makes an array of a page's leaves in the tree.
    fn gather(&mut self, page_no: u32) {
        let mut page = Box::new(Page::new());
        for (number, leaf) in self.sparse.take(numbers(page_no)) {
            *page.leaf_mut((number % PAGE_LEAVES) as usize) = leaf;
            page.used += 1;
        }
        self.pages.insert(page_no, page);
    }

    /// Moves the leaves of an array to the tree.
    #[inline(never)]
    fn spread(&mut self, page_no: u32) {
        let page = self.pages.remove(page_no).into_iter();
        for (slot, leaf) in page.flat_map(|page| page.into_leaves()) {
            *self.sparse.leaf_mut(page_no * PAGE_LEAVES + slot as u32) = leaf;
        }
    }

    /// The number of the first leaf from `from` on that is not empty.
    pub(crate) fn first_from(&self, from: u32) -> Option<u32> {
        self.iter_from(from).next().map(|(number, _)| number)
    }

    /// All leaves from `from` on that are not empty, in order.
    pub(crate) fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &Leaf)> {
        let mut pages = self.pages.iter_from(from).peekable();
        let mut sparse = self.sparse.iter_from(from).peekable();
        std::iter::from_fn(move || match (pages.peek(), sparse.peek()) {
            (Some((page, _)), Some((leaf, _))) if page > leaf => sparse.next(),
            (Some(_), _) => pages.next(),
            (None, _) => sparse.next(),
        })
    }

    /// Bytes of memory, without the heap memory of the leaves.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pages.memory_bytes() + self.sparse.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
