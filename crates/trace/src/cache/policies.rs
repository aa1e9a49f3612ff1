//! The policies, each as the paper that introduced it has it.

use super::Policy;
use super::lists::{Lists, NONE, OUT};

/// A cache of one policy.
pub(super) trait Simulator {
    /// Touches a block; whether it was in the cache. A miss admits it.
    fn access(&mut self, block: u32) -> bool;
}

/// An empty cache of `capacity` blocks for blocks numbered below `blocks`.
pub(super) fn simulator(policy: Policy, capacity: u64, blocks: usize) -> Box<dyn Simulator> {
    let lists = Lists::new(blocks);
    match policy {
        Policy::Lru => Box::new(Fifo { lists, capacity, moves_on_hit: true }),
        Policy::Fifo => Box::new(Fifo { lists, capacity, moves_on_hit: false }),
        Policy::Sieve => {
            Box::new(Sieve { lists, capacity, was_used: vec![false; blocks], hand: NONE })
        }
        Policy::Arc => Box::new(Arc { lists, capacity, target: 0.0 }),
        Policy::S3Fifo => Box::new(S3Fifo::new(lists, capacity, blocks, 2)),
        Policy::S3FifoOne => Box::new(S3Fifo::new(lists, capacity, blocks, 1)),
    }
}

/// FIFO, and LRU when a hit makes a block the newest.
struct Fifo {
    lists: Lists,
    capacity: u64,
    moves_on_hit: bool,
}

const QUEUE: u8 = 1;

impl Simulator for Fifo {
    fn access(&mut self, block: u32) -> bool {
        if self.lists.queue_of(block) == QUEUE {
            if self.moves_on_hit {
                self.lists.shift(QUEUE, block);
            }
            return true;
        }
        if self.lists.len(QUEUE) >= self.capacity {
            self.lists.pop(QUEUE);
        }
        self.lists.push(QUEUE, block);
        false
    }
}

/// SIEVE: a hand goes from the oldest to the newest and takes the first block that was not used.
struct Sieve {
    lists: Lists,
    capacity: u64,
    was_used: Vec<bool>,
    hand: u32,
}

impl Sieve {
    fn evict(&mut self) {
        let mut block = if self.hand == NONE { self.lists.oldest(QUEUE) } else { self.hand };
        while std::mem::take(&mut self.was_used[block as usize]) {
            block = match self.lists.newer(block) {
                NONE => self.lists.oldest(QUEUE),
                newer => newer,
            };
        }
        self.hand = self.lists.newer(block);
        self.lists.remove(block);
    }
}

impl Simulator for Sieve {
    fn access(&mut self, block: u32) -> bool {
        if self.lists.queue_of(block) == QUEUE {
            self.was_used[block as usize] = true;
            return true;
        }
        if self.lists.len(QUEUE) >= self.capacity {
            self.evict();
        }
        self.lists.push(QUEUE, block);
        self.was_used[block as usize] = false;
        false
    }
}

/// ARC: seen once (`T1`) and seen again (`T2`), the ghosts of both (`B1`, `B2`), and a target for
/// the length of `T1` that ghosts move.
struct Arc {
    lists: Lists,
    capacity: u64,
    target: f64,
}

const T1: u8 = 1;
const T2: u8 = 2;
const B1: u8 = 3;
const B2: u8 = 4;

impl Arc {
    fn replace(&mut self, is_in_b2: bool) {
        let recent = self.lists.len(T1) as f64;
        let takes_recent = recent > self.target || (is_in_b2 && recent == self.target);
        let (from, ghosts) = if recent > 0.0 && takes_recent { (T1, B1) } else { (T2, B2) };
        if let Some(block) = self.lists.pop(from) {
            self.lists.push(ghosts, block);
        }
    }

    fn admit_new(&mut self) {
        let seen_once = self.lists.len(T1) + self.lists.len(B1);
        let all = seen_once + self.lists.len(T2) + self.lists.len(B2);
        if seen_once == self.capacity {
            if self.lists.len(T1) < self.capacity {
                self.lists.pop(B1);
                self.replace(false);
            } else {
                self.lists.pop(T1);
            }
        } else if all >= self.capacity {
            if all == 2 * self.capacity {
                self.lists.pop(B2);
            }
            self.replace(false);
        }
    }
}

impl Simulator for Arc {
    fn access(&mut self, block: u32) -> bool {
        let (ghosts1, ghosts2) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        match self.lists.queue_of(block) {
            T1 | T2 => {
                self.lists.shift(T2, block);
                return true;
            }
            B1 => {
                let step = (ghosts2 / ghosts1).max(1.0);
                self.target = (self.target + step).min(self.capacity as f64);
                self.replace(false);
                self.lists.shift(T2, block);
            }
            B2 => {
                let step = (ghosts1 / ghosts2).max(1.0);
                self.target = (self.target - step).max(0.0);
                self.replace(true);
                self.lists.shift(T2, block);
            }
            _ => {
                self.admit_new();
                self.lists.push(T1, block);
            }
        }
        false
    }
}

/// S3-FIFO: what is new waits in a small queue, and reaches the main one when it is used there, or
/// when it comes back while its ghost is remembered.
struct S3Fifo {
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
    fn new(lists: Lists, capacity: u64, blocks: usize, uses_for_main: u8) -> Self {
        let small_capacity = (capacity / 10).max(1);
        let main_capacity = capacity.saturating_sub(small_capacity).max(1);
        let uses = vec![0; blocks];
        Self { lists, capacity, small_capacity, main_capacity, uses, uses_for_main }
    }

    /// Evicts from the main queue; a block that was used goes round once more for each use.
    fn evict_main(&mut self) {
        while let Some(block) = self.lists.pop(MAIN) {
            let uses = &mut self.uses[block as usize];
            if *uses == 0 {
                return;
            }
            *uses -= 1;
            self.lists.push(MAIN, block);
        }
    }

    /// Evicts from the small queue; a block that was used moves to the main one instead.
    fn evict_small(&mut self) {
        while let Some(block) = self.lists.pop(SMALL) {
            if self.uses[block as usize] < self.uses_for_main {
                self.lists.push(GHOST, block);
                if self.lists.len(GHOST) > self.main_capacity {
                    self.lists.pop(GHOST);
                }
                return;
            }
            if self.lists.len(MAIN) >= self.main_capacity {
                self.evict_main();
            }
            self.uses[block as usize] = 0;
            self.lists.push(MAIN, block);
        }
    }
}

impl Simulator for S3Fifo {
    fn access(&mut self, block: u32) -> bool {
        if matches!(self.lists.queue_of(block), SMALL | MAIN) {
            let uses = &mut self.uses[block as usize];
            *uses = (*uses + 1).min(MAX_USES);
            return true;
        }
        while self.lists.len(SMALL) + self.lists.len(MAIN) >= self.capacity {
            if self.lists.len(SMALL) >= self.small_capacity || self.lists.len(MAIN) == 0 {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
        // An eviction may have dropped this block's ghost.
        self.uses[block as usize] = 0;
        let queue = if self.lists.queue_of(block) == OUT { SMALL } else { MAIN };
        self.lists.shift(queue, block);
        false
    }
}
