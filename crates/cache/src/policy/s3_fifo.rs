//! S3-FIFO: what is new waits in a small queue, and reaches the main one when it is used there, or
//! when it comes back while its ghost is remembered.

use super::Replacement;
use super::lists::{Lists, OUT};

pub(super) struct S3Fifo {
    lists: Lists,
    capacity: u64,
    small_capacity: u64,
    main_capacity: u64,
    uses: Vec<u8>,
    uses_for_main: u8,
}

const SMALL: u8 = 1;
const MAIN: u8 = 2;
const GHOST: u8 = 3;
/// Uses are counted in two bits.
const MAX_USES: u8 = 3;

impl S3Fifo {
    pub(super) fn new(capacity: u64, uses_for_main: u8) -> Self {
        let mut new = Self {
            lists: Lists::default(),
            capacity: 0,
            small_capacity: 0,
            main_capacity: 0,
            uses: Vec::new(),
            uses_for_main,
        };
        new.divide(capacity);
        new
    }

    fn divide(&mut self, capacity: u64) {
        self.capacity = capacity.max(1);
        self.small_capacity = (self.capacity / 10).max(1);
        self.main_capacity = self.capacity.saturating_sub(self.small_capacity).max(1);
    }

    /// Evicts from the main queue; an entry that was used goes round once more for each use.
    fn evict_main(&mut self, left: &mut Vec<u32>) {
        while let Some(entry) = self.lists.pop(MAIN) {
            let uses = &mut self.uses[entry as usize];
            if *uses == 0 {
                left.push(entry);
                return;
            }
            *uses -= 1;
            self.lists.push(MAIN, entry);
        }
    }

    /// Evicts from the small queue; an entry that was used moves to the main one instead.
    fn evict_small(&mut self, left: &mut Vec<u32>) {
        while let Some(entry) = self.lists.pop(SMALL) {
            if self.uses[entry as usize] < self.uses_for_main {
                self.lists.push(GHOST, entry);
                left.push(entry);
                if self.lists.len(GHOST) > self.main_capacity {
                    left.extend(self.lists.pop(GHOST));
                }
                return;
            }
            if self.lists.len(MAIN) >= self.main_capacity {
                self.evict_main(left);
            }
            self.uses[entry as usize] = 0;
            self.lists.push(MAIN, entry);
        }
    }

    fn evict(&mut self, left: &mut Vec<u32>) {
        if self.lists.len(SMALL) >= self.small_capacity || self.lists.len(MAIN) == 0 {
            self.evict_small(left);
        } else {
            self.evict_main(left);
        }
    }
}

impl Replacement for S3Fifo {
    fn reserve(&mut self, entries: usize) {
        self.lists.reserve(entries);
        self.uses.resize(entries.max(self.uses.len()), 0);
    }

    fn access(&mut self, entry: u32, left: &mut Vec<u32>) -> bool {
        if self.is_resident(entry) {
            let uses = &mut self.uses[entry as usize];
            *uses = (*uses + 1).min(MAX_USES);
            return true;
        }
        while self.resident() >= self.capacity {
            self.evict(left);
        }
        // An eviction may have dropped this entry's ghost.
        self.uses[entry as usize] = 0;
        let queue = if self.lists.queue_of(entry) == OUT { SMALL } else { MAIN };
        self.lists.shift(queue, entry);
        false
    }

    fn remove(&mut self, entry: u32) {
        if self.lists.queue_of(entry) != OUT {
            self.lists.take(entry);
        }
    }

    fn set_capacity(&mut self, capacity: u64, left: &mut Vec<u32>) {
        self.divide(capacity);
        while self.resident() > self.capacity {
            self.evict(left);
        }
        while self.lists.len(GHOST) > self.main_capacity {
            left.extend(self.lists.pop(GHOST));
        }
    }

    fn is_resident(&self, entry: u32) -> bool {
        matches!(self.lists.queue_of(entry), SMALL | MAIN)
    }

    fn is_ghost(&self, entry: u32) -> bool {
        self.lists.queue_of(entry) == GHOST
    }

    fn resident(&self) -> u64 {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
