//! The leaves of a volume where most are in use: arrays that are found by number.
//!
//! A *page* is an array of 64 leaves (128 MiB of a volume). A *chapter* has 512 pages (64 GiB): as
//! a sorted list while it has few of them, then as an array.

use std::collections::BTreeMap;

use crate::leaf::Leaf;
use crate::memory::{btree_bytes, heap_bytes};

pub(crate) const PAGE_LEAVES: u32 = 64;
const CHAPTER_PAGES: usize = 512;
/// A chapter becomes an array with this many pages, and a list again with fewer than half of them.
const MIN_TABLE_PAGES: usize = 64;

/// The leaves from `64 · number` on.
pub(crate) struct Page {
    /// Leaves that are not empty.
    pub(crate) used: u32,
    leaves: [Leaf; PAGE_LEAVES as usize],
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { used: 0, leaves: [const { Leaf::Empty }; PAGE_LEAVES as usize] }
    }

    /// A leaf. The caller keeps `used` right.
    #[inline]
    pub(crate) fn leaf_mut(&mut self, slot: usize) -> &mut Leaf {
        &mut self.leaves[slot]
    }

    /// The leaves that are not empty, by slot.
    pub(crate) fn into_leaves(self) -> impl Iterator<Item = (usize, Leaf)> {
        self.leaves.into_iter().enumerate().filter(|(_, leaf)| !leaf.is_empty())
    }
}

type Table = [Option<Box<Page>>; CHAPTER_PAGES];

enum Chapter {
    /// Few pages, in order of their numbers in the chapter.
    #[expect(clippy::box_collection, reason = "the tree of chapters is counted by its upper bound")]
    List(Box<Vec<(u16, Box<Page>)>>),
    Table(Box<Table>),
}

impl Chapter {
    #[inline]
    fn get(&self, page: usize) -> Option<&Page> {
        match self {
            Self::Table(pages) => pages[page].as_deref(),
            Self::List(pages) => {
                let at = pages.binary_search_by_key(&(page as u16), |(number, _)| *number).ok()?;
                Some(&pages[at].1)
            }
        }
    }

    #[inline]
    fn get_mut(&mut self, page: usize) -> Option<&mut Page> {
        match self {
            Self::Table(pages) => pages[page].as_deref_mut(),
            Self::List(pages) => {
                let at = pages.binary_search_by_key(&(page as u16), |(number, _)| *number).ok()?;
                Some(&mut pages[at].1)
            }
        }
    }

    fn insert(&mut self, number: usize, page: Box<Page>) {
        match self {
            Self::Table(pages) => pages[number] = Some(page),
            Self::List(pages) => {
                let at = pages.partition_point(|(have, _)| usize::from(*have) < number);
                pages.reserve_exact(1);
                pages.insert(at, (number as u16, page));
                if pages.len() == MIN_TABLE_PAGES {
                    let mut table = Box::new([const { None }; CHAPTER_PAGES]);
                    for (number, page) in pages.drain(..) {
                        table[usize::from(number)] = Some(page);
                    }
                    *self = Self::Table(table);
                }
            }
        }
    }

    fn remove(&mut self, number: usize) -> Option<Box<Page>> {
        match self {
            Self::Table(pages) => {
                let gone = pages[number].take();
                if pages.iter().flatten().count() < MIN_TABLE_PAGES / 2 {
                    let left = pages.iter_mut().enumerate();
                    let left = left.filter_map(|(at, page)| Some((at as u16, page.take()?)));
                    let mut list: Vec<_> = left.collect();
                    list.shrink_to_fit();
                    *self = Self::List(Box::new(list));
                }
                gone
            }
            Self::List(pages) => {
                let at = pages.partition_point(|(have, _)| usize::from(*have) < number);
                let gone = pages.get(at).is_some_and(|(have, _)| usize::from(*have) == number);
                let gone = gone.then(|| pages.remove(at).1);
                pages.shrink_to_fit();
                gone
            }
        }
    }

    /// The first page from `from` on.
    fn first_from(&self, from: usize) -> Option<(usize, &Page)> {
        match self {
            Self::Table(pages) => {
                let mut pages = pages.iter().enumerate().skip(from);
                pages.find_map(|(number, page)| Some((number, page.as_deref()?)))
            }
            Self::List(pages) => {
                let at = pages.partition_point(|(have, _)| usize::from(*have) < from);
                pages.get(at).map(|(number, page)| (usize::from(*number), &**page))
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::List(pages) if pages.is_empty())
    }

    fn heap_bytes(&self) -> u64 {
        match self {
            Self::Table(_) => heap_bytes(size_of::<Table>()),
            Self::List(pages) => {
                heap_bytes(size_of::<Vec<(u16, Box<Page>)>>())
                    + heap_bytes(pages.capacity() * size_of::<(u16, Box<Page>)>())
            }
        }
    }
}

/// Pages by number.
#[derive(Default)]
pub(crate) struct Pages {
    chapters: BTreeMap<u32, Chapter>,
    chapter_bytes: u64,
    pages: u64,
}

fn split(page: u32) -> (u32, usize) {
    (page / CHAPTER_PAGES as u32, page as usize % CHAPTER_PAGES)
}

impl Pages {
    /// Leaf `number`, which may be empty, if its page is here.
    #[inline]
    pub(crate) fn leaf(&self, number: u32) -> Option<&Leaf> {
        let (chapter, page) = split(number / PAGE_LEAVES);
        let page = self.chapters.get(&chapter)?.get(page)?;
        Some(&page.leaves[(number % PAGE_LEAVES) as usize])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, page: u32) -> Option<&mut Page> {
        let (chapter, page) = split(page);
        self.chapters.get_mut(&chapter)?.get_mut(page)
    }

    /// Adds a page that is not here yet.
    pub(crate) fn insert(&mut self, number: u32, page: Box<Page>) {
        let (chapter_no, page_no) = split(number);
        let empty = || Chapter::List(Box::default());
        let chapter = self.chapters.entry(chapter_no).or_insert_with(empty);
        self.chapter_bytes -= if chapter.is_empty() { 0 } else { chapter.heap_bytes() };
        chapter.insert(page_no, page);
        self.chapter_bytes += chapter.heap_bytes();
        self.pages += 1;
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Box<Page>> {
        let (chapter_no, page_no) = split(number);
        let chapter = self.chapters.get_mut(&chapter_no)?;
        self.chapter_bytes -= chapter.heap_bytes();
        let gone = chapter.remove(page_no);
        self.pages -= u64::from(gone.is_some());
        if chapter.is_empty() {
            self.chapters.remove(&chapter_no);
        } else {
            self.chapter_bytes += chapter.heap_bytes();
        }
        gone
    }

    /// The first leaf from `from` on that is not empty.
    fn first_from(&self, from: u32) -> Option<(u32, &Leaf)> {
        let (first_chapter, first_page) = split(from / PAGE_LEAVES);
        for (&chapter_no, chapter) in self.chapters.range(first_chapter..) {
            let at_start = chapter_no == first_chapter;
            let mut page_from = if at_start { first_page } else { 0 };
            while let Some((page_no, page)) = chapter.first_from(page_from) {
                let at_first = at_start && page_no == first_page;
                let slot_from = if at_first { from % PAGE_LEAVES } else { 0 };
                let mut slots = page.leaves.iter().enumerate().skip(slot_from as usize);
                if let Some((slot, leaf)) = slots.find(|(_, leaf)| !leaf.is_empty()) {
                    let number = chapter_no * CHAPTER_PAGES as u32 + page_no as u32;
                    return Some((number * PAGE_LEAVES + slot as u32, leaf));
                }
                page_from = page_no + 1;
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
        btree_bytes(self.chapters.len(), size_of::<u32>() + size_of::<Chapter>())
            + self.chapter_bytes
            + self.pages * heap_bytes(size_of::<Page>())
    }
}
