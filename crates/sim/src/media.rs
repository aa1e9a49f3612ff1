//! The contents of a device: sparse, and copied on write.
//!
//! What always holds: a page that was never written takes no memory; a clone shares every page
//! until one side changes it.

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};

const PAGE_LEN: usize = 4096;
/// Pages that a clone shares by one pointer.
const CHUNK_PAGES: usize = 64;
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_LEN) as u64;

/// Pages of 4 KiB; `None` reads as zeros. A page is a slice of the immutable buffer that was
/// written.
type Chunk = [Option<IoBytes>; CHUNK_PAGES];

/// A sparse array of bytes. A clone costs one pointer per 256 KiB.
#[derive(Clone)]
pub struct Media {
    chunks: Vec<Option<Rc<Chunk>>>,
    size_bytes: u64,
}

impl Media {
    /// `size_bytes` zeros.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES) as usize;
        Self { chunks: vec![None; chunks], size_bytes }
    }

    /// Its size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of all written pages; shared pages count in full.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let pages = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter().flatten());
        (pages.count() * PAGE_LEN) as u64
    }

    /// True when no chunk of this range was ever written. Chunks are 256 KiB.
    #[must_use]
    pub fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.check(offset_bytes, len_bytes);
        let chunks = offset_bytes / CHUNK_BYTES..(offset_bytes + len_bytes).div_ceil(CHUNK_BYTES);
        self.chunks[chunks.start as usize..chunks.end as usize].iter().all(Option::is_none)
    }

    /// Copies bytes out. Like every call here it panics past the end: callers check ranges.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        self.check(offset_bytes, out.len() as u64);
        let (mut at, mut rest) = (offset_bytes, out);
        while !rest.is_empty() {
            let within = at % CHUNK_BYTES;
            let len = rest.len().min((CHUNK_BYTES - within) as usize);
            let (part, after) = rest.split_at_mut(len);
            match &self.chunks[(at / CHUNK_BYTES) as usize] {
                Some(chunk) => read_chunk(chunk, within as usize, part),
                None => part.fill(0),
            }
            (at, rest) = (at + len as u64, after);
        }
    }

    /// Copies bytes in.
    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        self.check(offset_bytes, data.len() as u64);
        let mut done = 0;
        for (page, start, len) in split_by_page(offset_bytes, data.len() as u64) {
            self.change_page(page, start, &data[done..done + len]);
            done += len;
        }
    }

    /// Writes without copying: whole pages keep a slice of `data`.
    pub fn write_shared(&mut self, offset_bytes: u64, data: &IoBytes) {
        self.check(offset_bytes, data.len() as u64);
        let mut done = 0;
        for (page, start, len) in split_by_page(offset_bytes, data.len() as u64) {
            if len == PAGE_LEN {
                *self.slot(page) = Some(data.slice(done, len));
            } else {
                self.change_page(page, start, &data[done..done + len]);
            }
            done += len;
        }
    }

    /// Sets every byte of a range to `byte`.
    pub fn fill(&mut self, offset_bytes: u64, len_bytes: u64, byte: u8) {
        self.check(offset_bytes, len_bytes);
        let mut whole = None;
        for (page, start, len) in split_by_page(offset_bytes, len_bytes) {
            if byte == 0 && (len == PAGE_LEN || self.page(page).is_none()) {
                if self.page(page).is_some() {
                    *self.slot(page) = None;
                }
            } else if len == PAGE_LEN {
                let filled = whole.get_or_insert_with(|| page_of(byte)).clone();
                *self.slot(page) = Some(filled);
            } else {
                self.change_page(page, start, &[byte; PAGE_LEN][..len]);
            }
        }
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) {
        let end = offset_bytes.checked_add(len_bytes).expect("range overflows");
        assert!(end <= self.size_bytes, "range past the end of the media");
    }

    fn page(&self, page: usize) -> Option<&IoBytes> {
        self.chunks[page / CHUNK_PAGES].as_ref()?[page % CHUNK_PAGES].as_ref()
    }

    fn slot(&mut self, page: usize) -> &mut Option<IoBytes> {
        let chunk = &mut self.chunks[page / CHUNK_PAGES];
        let chunk = chunk.get_or_insert_with(|| Rc::new([const { None }; CHUNK_PAGES]));
        &mut Rc::make_mut(chunk)[page % CHUNK_PAGES]
    }

    /// Changes a copy of the page: a clone or the writer may share the original.
    fn change_page(&mut self, page: usize, start: usize, part: &[u8]) {
        let slot = self.slot(page);
        let mut copy = match slot {
            _ if part.len() == PAGE_LEN => IoBuf::recycled(PAGE_LEN),
            Some(bytes) => IoBuf::copy_of(bytes),
            None => IoBuf::zeroed(PAGE_LEN),
        };
        copy[start..start + part.len()].copy_from_slice(part);
        *slot = Some(copy.freeze());
    }
}

fn page_of(byte: u8) -> IoBytes {
    let mut page = IoBuf::recycled(PAGE_LEN);
    page.fill(byte);
    page.freeze()
}

fn read_chunk(chunk: &Chunk, offset: usize, out: &mut [u8]) {
    let mut done = 0;
    for (page, start, len) in split_by_page(offset as u64, out.len() as u64) {
        let part = &mut out[done..done + len];
        match &chunk[page] {
            Some(bytes) => part.copy_from_slice(&bytes[start..start + len]),
            None => part.fill(0),
        }
        done += len;
    }
}

/// Splits a range by pages: page number, start within the page, length.
fn split_by_page(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = (at % PAGE_LEN as u64) as usize;
        let len = (end - at).min((PAGE_LEN - start) as u64) as usize;
        let page = (at / PAGE_LEN as u64) as usize;
        at += len as u64;
        Some((page, start, len))
    })
}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Media({} bytes, {} resident)", self.size_bytes, self.resident_bytes())
    }
}
