//! Bytes of a device, stored only where something was written, copied only when changed.

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};

const PAGE_LEN: usize = 4096;
/// Pages that a clone shares by one pointer.
const CHUNK_PAGES: usize = 64;
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_LEN) as u64;

/// Pages of 4 KiB; `None` reads as zeros. A page is a part of the very buffer that was written:
/// nobody can change it any more.
type Chunk = [Option<IoBytes>; CHUNK_PAGES];

/// A sparse array of bytes. A clone costs one pointer per 256 KiB and shares what neither changes.
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

    /// Bytes of the pages that were written, shared ones counted in full.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let pages = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter().flatten());
        (pages.count() * PAGE_LEN) as u64
    }

    /// Whether nothing was ever written to this range, as far as whole chunks tell.
    #[must_use]
    pub fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.check(offset_bytes, len_bytes);
        let chunks = offset_bytes / CHUNK_BYTES..(offset_bytes + len_bytes).div_ceil(CHUNK_BYTES);
        self.chunks[chunks.start as usize..chunks.end as usize].iter().all(Option::is_none)
    }

    /// Copies out. Panics past the end, like every call here: callers check ranges.
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

    /// Copies in.
    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        self.check(offset_bytes, data.len() as u64);
        let mut done = 0;
        for (page, start, len) in pieces(offset_bytes, data.len() as u64) {
            self.change_page(page, start, &data[done..done + len]);
            done += len;
        }
    }

    /// Takes in without a copy: whole pages keep a part of `data`.
    pub fn write_shared(&mut self, offset_bytes: u64, data: &IoBytes) {
        self.check(offset_bytes, data.len() as u64);
        let mut done = 0;
        for (page, start, len) in pieces(offset_bytes, data.len() as u64) {
            if len == PAGE_LEN {
                *self.slot(page) = Some(data.slice(done, len));
            } else {
                self.change_page(page, start, &data[done..done + len]);
            }
            done += len;
        }
    }

    /// Sets every byte of a range.
    pub fn fill(&mut self, offset_bytes: u64, len_bytes: u64, byte: u8) {
        self.check(offset_bytes, len_bytes);
        let mut whole = None;
        for (page, start, len) in pieces(offset_bytes, len_bytes) {
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

    /// Others may hold the page as it is: the change goes into a copy.
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
    for (page, start, len) in pieces(offset as u64, out.len() as u64) {
        let part = &mut out[done..done + len];
        match &chunk[page] {
            Some(bytes) => part.copy_from_slice(&bytes[start..start + len]),
            None => part.fill(0),
        }
        done += len;
    }
}

/// Page, start within it and length of each piece of a range.
fn pieces(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = (usize, usize, usize)> {
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
