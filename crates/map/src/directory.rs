//! The directory of a volume: finds leaves by number, and takes no memory for holes.
//!
//! It has three levels: a B-tree of chapters (64 GiB of a volume each), the pages of a chapter, and
//! the leaves of a page.

use std::collections::BTreeMap;

use crate::leaf::Leaf;
use crate::memory::{btree_bytes, heap_bytes};

const PAGE_LEAVES: u32 = 64;
const CHAPTER_PAGES: u32 = 512;
const CHAPTER_LEAVES: u32 = PAGE_LEAVES * CHAPTER_PAGES;

struct Page {
    used: u32,
    leaves: [Leaf; PAGE_LEAVES as usize],
}

struct Chapter {
    used: u32,
    pages: [Option<Box<Page>>; CHAPTER_PAGES as usize],
}

/// The leaves of a volume.
#[derive(Default)]
pub(crate) struct Directory {
    chapters: BTreeMap<u32, Box<Chapter>>,
    pages: u64,
}

fn split(number: u32) -> (u32, usize, usize) {
    let page = number / PAGE_LEAVES % CHAPTER_PAGES;
    (number / CHAPTER_LEAVES, page as usize, (number % PAGE_LEAVES) as usize)
}

impl Directory {
    /// The leaf, unless it is empty.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Leaf> {
        let (chapter, page, slot) = split(number);
        let page = self.chapters.get(&chapter)?.pages[page].as_ref()?;
        Some(&page.leaves[slot]).filter(|leaf| !leaf.is_empty())
    }

    /// Applies `change` to a leaf, which may be empty before and after.
    #[inline]
    pub(crate) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let (chapter_no, page_no, slot) = split(number);
        let chapter = self.chapters.entry(chapter_no).or_insert_with(|| {
            Box::new(Chapter { used: 0, pages: [const { None }; CHAPTER_PAGES as usize] })
        });
        let page = chapter.pages[page_no].get_or_insert_with(|| {
            chapter.used += 1;
            self.pages += 1;
            Box::new(Page { used: 0, leaves: [const { Leaf::Empty }; PAGE_LEAVES as usize] })
        });
        let leaf = &mut page.leaves[slot];
        page.used -= u32::from(!leaf.is_empty());
        let result = change(leaf);
        page.used += u32::from(!leaf.is_empty());
        if page.used == 0 {
            chapter.pages[page_no] = None;
            chapter.used -= 1;
            self.pages -= 1;
            if chapter.used == 0 {
                self.chapters.remove(&chapter_no);
            }
        }
        result
    }

    /// The first leaf from `from` on that is not empty.
    pub(crate) fn first_from(&self, from: u32) -> Option<(u32, &Leaf)> {
        let (first_chapter, first_page, first_slot) = split(from);
        for (&chapter_no, chapter) in self.chapters.range(first_chapter..) {
            let at_start = chapter_no == first_chapter;
            let page_from = if at_start { first_page } else { 0 };
            for (page_no, page) in chapter.pages.iter().enumerate().skip(page_from) {
                let Some(page) = page else { continue };
                let slot_from = if at_start && page_no == first_page { first_slot } else { 0 };
                let mut slots = page.leaves.iter().enumerate().skip(slot_from);
                if let Some((slot, leaf)) = slots.find(|(_, leaf)| !leaf.is_empty()) {
                    let base = chapter_no * CHAPTER_LEAVES + page_no as u32 * PAGE_LEAVES;
                    return Some((base + slot as u32, leaf));
                }
            }
        }
        None
    }

    /// All leaves from `from` on that are not empty, in order.
    pub(crate) fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &Leaf)> {
        let mut next = self.first_from(from);
        std::iter::from_fn(move || {
            let (number, leaf) = next.take()?;
            next = number.checked_add(1).and_then(|from| self.first_from(from));
            Some((number, leaf))
        })
    }

    /// Bytes of memory, without the heap memory of the leaves.
    pub(crate) fn memory_bytes(&self) -> u64 {
        btree_bytes(self.chapters.len(), size_of::<(u32, Box<Chapter>)>())
            + self.chapters.len() as u64 * heap_bytes(size_of::<Chapter>())
            + self.pages * heap_bytes(size_of::<Page>())
    }
}
