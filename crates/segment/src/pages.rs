//! Footer pages in memory: the sums of what is read often need not be read again.

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

/// Checked pages of footers, at most as many as fit the budget. Which one leaves is chosen by the
/// clock algorithm (F. J. Corbató, 1968): the first one in turn that was not used since its last.
pub(crate) struct Pages {
    most: usize,
    kept: RefCell<FixedMap<(SegmentId, u32), Kept>>,
    turn: RefCell<VecDeque<(SegmentId, u32)>>,
}

impl Pages {
    /// At most `budget_bytes` of pages.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let most = (budget_bytes / BLOCK_LEN as u64).max(1) as usize;
        Self { most, kept: RefCell::default(), turn: RefCell::default() }
    }

    /// Page `page` of the footer that belongs to `place`.
    pub(crate) fn get(&self, place: &FooterPlace, page: u32) -> Option<IoBytes> {
        let kept = self.kept.borrow();
        let found = kept.get(&(place.segment, page))?;
        // A segment that was freed and filled anew has another footer.
        (found.birth == place.birth).then(|| {
            found.used.set(true);
            found.bytes.clone()
        })
    }

    /// Keeps a page that was checked.
    pub(crate) fn keep(&self, place: &FooterPlace, page: u32, bytes: IoBytes) {
        let key = (place.segment, page);
        let mut kept = self.kept.borrow_mut();
        let fresh = Kept { birth: place.birth, bytes, used: Cell::new(false) };
        if kept.insert(key, fresh).is_some() {
            return;
        }
        let mut turn = self.turn.borrow_mut();
        while kept.len() > self.most {
            let first = turn.pop_front().expect("every page but the new one has a turn");
            if kept[&first].used.replace(false) {
                turn.push_back(first);
            } else {
                kept.remove(&first);
            }
        }
        turn.push_back(key);
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.borrow().len() as u64 * BLOCK_LEN as u64
    }
}
