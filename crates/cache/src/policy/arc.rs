//! ARC: seen once (`T1`) and seen again (`T2`), the ghosts of both (`B1`, `B2`), and a target for
//! the length of `T1` that ghosts move.

use super::Replacement;
use super::lists::{Lists, OUT};

pub(super) struct Arc {
    lists: Lists,
    capacity: u64,
    target: f64,
}

const T1: u8 = 1;
const T2: u8 = 2;
const B1: u8 = 3;
const B2: u8 = 4;

impl Arc {
    pub(super) fn new(capacity: u64) -> Self {
        Self { lists: Lists::default(), capacity, target: 0.0 }
    }

    fn replace(&mut self, is_in_b2: bool, left: &mut Vec<u32>) {
        let recent = self.lists.len(T1) as f64;
        let takes_recent = recent > self.target || (is_in_b2 && recent == self.target);
        let is_recent = recent > 0.0 && (takes_recent || self.lists.len(T2) == 0);
        let (from, ghosts) = if is_recent { (T1, B1) } else { (T2, B2) };
        if let Some(entry) = self.lists.pop(from) {
            self.lists.push(ghosts, entry);
            left.push(entry);
        }
    }

    fn admit_new(&mut self, left: &mut Vec<u32>) {
        let seen_once = self.lists.len(T1) + self.lists.len(B1);
        let all = seen_once + self.lists.len(T2) + self.lists.len(B2);
        if seen_once >= self.capacity {
            if self.lists.len(T1) < self.capacity {
                left.extend(self.lists.pop(B1));
                self.make_room(false, left);
            } else {
                left.extend(self.lists.pop(T1));
            }
        } else if all >= self.capacity {
            if all >= 2 * self.capacity {
                left.extend(self.lists.pop(B2));
            }
            self.make_room(false, left);
        }
    }

    /// Makes room for one entry. Entries that were removed have left room already.
    fn make_room(&mut self, is_in_b2: bool, left: &mut Vec<u32>) {
        if self.resident() >= self.capacity {
            self.replace(is_in_b2, left);
        }
    }
}

impl Replacement for Arc {
    fn reserve(&mut self, entries: usize) {
        self.lists.reserve(entries);
    }

    fn access(&mut self, entry: u32, left: &mut Vec<u32>) -> bool {
        let (ghosts1, ghosts2) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        match self.lists.queue_of(entry) {
            T1 | T2 => {
                self.lists.shift(T2, entry);
                return true;
            }
            B1 => {
                let step = (ghosts2 / ghosts1).max(1.0);
                self.target = (self.target + step).min(self.capacity as f64);
                self.make_room(false, left);
                self.lists.shift(T2, entry);
            }
            B2 => {
                let step = (ghosts1 / ghosts2).max(1.0);
                self.target = (self.target - step).max(0.0);
                self.make_room(true, left);
                self.lists.shift(T2, entry);
            }
            _ => {
                self.admit_new(left);
                self.lists.push(T1, entry);
            }
        }
        false
    }

    fn remove(&mut self, entry: u32) {
        if self.lists.queue_of(entry) != OUT {
            self.lists.take(entry);
        }
    }

    fn set_capacity(&mut self, capacity: u64, left: &mut Vec<u32>) {
        self.capacity = capacity.max(1);
        self.target = self.target.min(self.capacity as f64);
        while self.resident() > self.capacity {
            self.replace(false, left);
        }
        while self.lists.len(T1) + self.lists.len(B1) > self.capacity && self.lists.len(B1) > 0 {
            left.extend(self.lists.pop(B1));
        }
        let ghosts = |lists: &Lists| lists.len(B1) + lists.len(B2);
        while self.resident() + ghosts(&self.lists) > 2 * self.capacity && self.lists.len(B2) > 0 {
            left.extend(self.lists.pop(B2));
        }
    }

    fn is_resident(&self, entry: u32) -> bool {
        matches!(self.lists.queue_of(entry), T1 | T2)
    }

    fn is_ghost(&self, entry: u32) -> bool {
        matches!(self.lists.queue_of(entry), B1 | B2)
    }

    fn resident(&self) -> u64 {
        self.lists.len(T1) + self.lists.len(T2)
    }
}
