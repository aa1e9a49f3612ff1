//! SIEVE: a hand goes from the oldest to the newest and takes the first entry that was not used.

use super::Replacement;
use super::lists::{Lists, NONE};

const QUEUE: u8 = 1;

pub(super) struct Sieve {
    lists: Lists,
    capacity: u64,
    was_used: Vec<bool>,
    hand: u32,
}

impl Sieve {
    pub(super) fn new(capacity: u64) -> Self {
        Self { lists: Lists::default(), capacity, was_used: Vec::new(), hand: NONE }
    }

    fn evict(&mut self, left: &mut Vec<u32>) {
        let mut entry = if self.hand == NONE { self.lists.oldest(QUEUE) } else { self.hand };
        while std::mem::take(&mut self.was_used[entry as usize]) {
            entry = match self.lists.newer(entry) {
                NONE => self.lists.oldest(QUEUE),
                newer => newer,
            };
        }
        self.hand = self.lists.newer(entry);
        self.lists.take(entry);
        left.push(entry);
    }
}

impl Replacement for Sieve {
    fn reserve(&mut self, entries: usize) {
        self.lists.reserve(entries);
        self.was_used.resize(entries.max(self.was_used.len()), false);
    }

    fn access(&mut self, entry: u32, left: &mut Vec<u32>) -> bool {
        if self.is_resident(entry) {
            self.was_used[entry as usize] = true;
            return true;
        }
        if self.lists.len(QUEUE) >= self.capacity {
            self.evict(left);
        }
        self.lists.push(QUEUE, entry);
        self.was_used[entry as usize] = false;
        false
    }

    fn remove(&mut self, entry: u32) {
        // The hand goes on where the entry was.
        if self.hand == entry {
            self.hand = self.lists.newer(entry);
        }
        self.lists.take(entry);
    }

    fn set_capacity(&mut self, capacity: u64, left: &mut Vec<u32>) {
        self.capacity = capacity.max(1);
        while self.lists.len(QUEUE) > self.capacity {
            self.evict(left);
        }
    }

    fn is_resident(&self, entry: u32) -> bool {
        self.lists.queue_of(entry) == QUEUE
    }

    fn is_ghost(&self, _: u32) -> bool {
        false
    }

    fn resident(&self) -> u64 {
        self.lists.len(QUEUE)
    }
}
