//! Map memory: which pages of the map are in memory, and which of those have changed.

use super::Ssd;
use crate::ftl::NONE;
use crate::link::ns;
use crate::model::Request;
use crate::spec::{FlashSpec, MapMemorySpec};

/// Bytes of an entry of the map.
const ENTRY_BYTES: u64 = 4;

/// A page of the map.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Neighbors in the list from the newest to the oldest.
    newer: u32,
    older: u32,
    is_here: bool,
    is_changed: bool,
    is_on_flash: bool,
}

/// What a look-up costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LookUp {
    /// A page of map is read from flash.
    pub reads: bool,
    /// A changed page leaves, and is programmed.
    pub programs: bool,
}

/// Pages of the map in memory; the one that was used longest ago leaves.
#[derive(Clone, Debug)]
pub(super) struct MapMemory {
    units_per_page: u32,
    most: u32,
    here: u32,
    newest: u32,
    oldest: u32,
    pages: Vec<Page>,
    pub look_up_ns: u64,
    flush_ns: u64,
    next_flush: u64,
}

impl MapMemory {
    pub(super) fn new(spec: &MapMemorySpec, flash: &FlashSpec, units: u32) -> Self {
        let units_per_page = (u64::from(flash.geometry.page_bytes) / ENTRY_BYTES).max(1) as u32;
        let count = units.div_ceil(units_per_page).max(1);
        let most = match spec.bytes / u64::from(flash.geometry.page_bytes) {
            _ if spec.bytes == 0 => count,
            pages => pages.clamp(1, u64::from(count)) as u32,
        };
        let nothing = Page {
            newer: NONE,
            older: NONE,
            is_here: false,
            is_changed: false,
            is_on_flash: false,
        };
        let flush_ns = ns(spec.flush_ms * 1e3);
        Self {
            units_per_page,
            most,
            here: 0,
            newest: NONE,
            oldest: NONE,
            pages: vec![nothing; count as usize],
            look_up_ns: ns(spec.look_up_us),
            flush_ns,
            next_flush: flush_ns,
        }
    }

    /// The page of a unit's entry.
    #[inline]
    pub(super) fn page_of(&self, unit: u32) -> u32 {
        unit / self.units_per_page
    }

    fn take_out(&mut self, page: u32) {
        let Page { newer, older, .. } = self.pages[page as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
    }

    fn put_first(&mut self, page: u32) {
        let newest = self.newest;
        let entry = &mut self.pages[page as usize];
        (entry.newer, entry.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = page,
            newest => self.pages[newest as usize].newer = page,
        }
        self.newest = page;
    }

    /// Looks `page` up, to change it or not.
    pub(super) fn look_up(&mut self, page: u32, changes: bool) -> LookUp {
        let mut cost = LookUp::default();
        let entry = self.pages[page as usize];
        if entry.is_here {
            if self.newest != page {
                self.take_out(page);
                self.put_first(page);
            }
        } else {
            cost.reads = entry.is_on_flash;
            if self.here == self.most {
                let oldest = self.oldest;
                self.take_out(oldest);
                let leaving = &mut self.pages[oldest as usize];
                leaving.is_here = false;
                cost.programs = std::mem::take(&mut leaving.is_changed);
                leaving.is_on_flash |= cost.programs;
                self.here -= 1;
            }
            self.put_first(page);
            self.pages[page as usize].is_here = true;
            self.here += 1;
        }
        self.pages[page as usize].is_changed |= changes;
        cost
    }

    /// The changed pages that are programmed at one moment up to `now`, and the moment.
    pub(super) fn take_flush(&mut self, now: u64) -> Option<(u64, u32)> {
        if self.flush_ns == 0 || now < self.next_flush {
            return None;
        }
        let at = now - (now - self.next_flush) % self.flush_ns;
        self.next_flush = at + self.flush_ns;
        let mut changed = 0;
        for page in self.pages.iter_mut().filter(|page| page.is_changed) {
            (page.is_changed, page.is_on_flash) = (false, true);
            changed += 1;
        }
        Some((at, changed))
    }
}

impl Ssd {
    /// Looks up the entries of a request that can be carried out from `ready` on. Returns when they
    /// are known.
    #[inline]
    pub(super) fn look_up(&mut self, request: &Request<'_>, changes: bool, ready: u64) -> u64 {
        let Some(map) = &mut self.map_memory else { return ready };
        let first = request.offset_bytes / self.unit_bytes;
        let last = (request.offset_bytes + request.len_bytes - 1) / self.unit_bytes;
        let mut known = ready;
        for page in map.page_of(first as u32)..=map.page_of(last as u32) {
            let cost = map.look_up(page, changes);
            if cost.programs {
                self.array.program_map(ready);
            }
            let read = if cost.reads { self.array.read_map(page, ready) } else { ready };
            known = known.max(read + map.look_up_ns);
        }
        known
    }

    /// Programs the changed pages of the map when it is time.
    pub(super) fn flush_map(&mut self, now: u64) {
        let Some((at, changed)) = self.map_memory.as_mut().and_then(|map| map.take_flush(now))
        else {
            return;
        };
        for _ in 0..changed {
            self.array.program_map(at);
        }
    }
}
