//! FIFO, and LRU, where a hit makes an entry the newest.

use super::Replacement;
use super::lists::Lists;

const QUEUE: u8 = 1;

pub(super) struct Fifo {
    lists: Lists,
    capacity: u64,
    moves_on_hit: bool,
}

impl Fifo {
    pub(super) fn new(capacity: u64, moves_on_hit: bool) -> Self {
        Self { lists: Lists::default(), capacity, moves_on_hit }
    }
}

impl Replacement for Fifo {
    fn reserve(&mut self, entries: usize) {
        self.lists.reserve(entries);
    }

    fn access(&mut self, entry: u32, left: &mut Vec<u32>) -> bool {
        if self.is_resident(entry) {
            if self.moves_on_hit {
                self.lists.shift(QUEUE, entry);
            }
            return true;
        }
        if self.lists.len(QUEUE) >= self.capacity {
            left.extend(self.lists.pop(QUEUE));
        }
        self.lists.push(QUEUE, entry);
        false
    }

    fn remove(&mut self, entry: u32) {
        self.lists.take(entry);
    }

    fn set_capacity(&mut self, capacity: u64, left: &mut Vec<u32>) {
        self.capacity = capacity.max(1);
        while self.lists.len(QUEUE) > self.capacity {
            left.extend(self.lists.pop(QUEUE));
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
