//! Bytes of a device, stored only where something was written, copied only when changed.

use std::rc::Rc;

const PAGE_LEN: usize = 4096;
type Page = [u8; PAGE_LEN];

/// A sparse array of bytes. A clone costs one pointer per 4 KiB and shares what neither changes.
#[derive(Clone)]
pub struct Media {
    pages: Vec<Option<Rc<Page>>>,
    size_bytes: u64,
}

impl Media {
    /// `size_bytes` zeros.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let pages = size_bytes.div_ceil(PAGE_LEN as u64) as usize;
        Self { pages: vec![None; pages], size_bytes }
    }

    /// Its size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Memory held for pages, shared ones counted in full.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.pages.iter().flatten().count() * PAGE_LEN) as u64
    }

    /// Copies out. Panics past the end, like every call here: callers check ranges.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        let mut done = 0;
        for (page, start, len) in self.pieces(offset_bytes, out.len() as u64) {
            let part = &mut out[done..done + len];
            match &self.pages[page] {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + len]),
                None => part.fill(0),
            }
            done += len;
        }
    }

    /// Copies in.
    pub fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        let mut done = 0;
        for (page, start, len) in self.pieces(offset_bytes, data.len() as u64) {
            let part = &data[done..done + len];
            match <&Page>::try_from(part) {
                // A whole page is not worth clearing first.
                Ok(whole) => self.put(page, whole),
                Err(_) => self.page(page)[start..start + len].copy_from_slice(part),
            }
            done += len;
        }
    }

    /// Sets every byte of a range.
    pub fn fill(&mut self, offset_bytes: u64, len_bytes: u64, byte: u8) {
        for (page, start, len) in self.pieces(offset_bytes, len_bytes) {
            if byte == 0 && (len == PAGE_LEN || self.pages[page].is_none()) {
                self.pages[page] = None;
            } else {
                self.page(page)[start..start + len].fill(byte);
            }
        }
    }

    fn put(&mut self, page: usize, bytes: &Page) {
        match self.pages[page].as_mut().and_then(Rc::get_mut) {
            Some(mine) => mine.copy_from_slice(bytes),
            None => {
                let copy: Rc<[u8]> = Rc::from(bytes.as_slice());
                self.pages[page] = Some(copy.try_into().expect("as long as a page"));
            }
        }
    }

    fn page(&mut self, page: usize) -> &mut Page {
        let slot = self.pages[page].get_or_insert_with(|| Rc::new([0; PAGE_LEN]));
        Rc::make_mut(slot)
    }

    /// Page, start within it and length of each piece of a range.
    fn pieces(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let end = offset_bytes.checked_add(len_bytes).expect("range overflows");
        assert!(end <= self.size_bytes, "range past the end of the media");
        let mut at = offset_bytes;
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
}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Media({} bytes, {} resident)", self.size_bytes, self.resident_bytes())
    }
}
