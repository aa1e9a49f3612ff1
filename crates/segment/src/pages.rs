//! A cache of footer pages, so that the sums of frequently read data stay in memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_device::IoBytes;
use forebay_format::footer::FooterPlace;
use forebay_units::{BLOCK_LEN, FixedMap, SegmentId};

struct Kept {
    birth: u64,
    bytes: IoBytes,
    used: Cell<bool>,
}

/// Verified pages of footers, within a budget of memory. The clock algorithm (F. J. Corbató, 1968)
/// evicts the first page in turn that was not used since its last turn.
pub(crate) struct Pages {
    max_pages: usize,
    kept: RefCell<FixedMap<(SegmentId, u32), Kept>>,
    turn: RefCell<VecDeque<(SegmentId, u32)>>,
}

impl Pages {
    /// A cache of at most `budget_bytes`.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let max_pages = (budget_bytes / BLOCK_LEN as u64).max(1) as usize;
        Self { max_pages, kept: RefCell::default(), turn: RefCell::default() }
    }

    /// Page `page` of the footer at `place`.
    pub(crate) fn get(&self, place: &FooterPlace, page: u32) -> Option<IoBytes> {
        let kept = self.kept.borrow();
        let found = kept.get(&(place.segment, page))?;
        // A reused segment has another footer.
        (found.birth == place.birth).then(|| {
            found.used.set(true);
            found.bytes.clone()
        })
    }

    /// Adds a verified page.
    pub(crate) fn keep(&self, place: &FooterPlace, page: u32, bytes: IoBytes) {
        let key = (place.segment, page);
        let mut kept = self.kept.borrow_mut();
        let fresh = Kept { birth: place.birth, bytes, used: Cell::new(false) };
        if kept.insert(key, fresh).is_some() {
            return;
        }
        let mut turn = self.turn.borrow_mut();
        while kept.len() > self.max_pages {
            let first = turn.pop_front().expect("every page but the new one has a turn");
            if kept[&first].used.replace(false) {
                turn.push_back(first);
            } else {
                kept.remove(&first);
            }
        }
        turn.push_back(key);
    }

    /// Bytes in the cache.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.borrow().len() as u64 * BLOCK_LEN as u64
    }
}
