//! Queues of blocks, linked through arrays: a block is in one queue at most.

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// The queue of blocks that are in none.
pub(super) const OUT: u8 = 0;

/// Up to four queues, numbered from 1. The newest block is at the head.
pub(super) struct Lists {
    newer: Vec<u32>,
    older: Vec<u32>,
    queue: Vec<u8>,
    newest: [u32; 5],
    oldest: [u32; 5],
    len: [u64; 5],
}

impl Lists {
    /// For blocks numbered below `blocks`.
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            newer: vec![NONE; blocks],
            older: vec![NONE; blocks],
            queue: vec![OUT; blocks],
            newest: [NONE; 5],
            oldest: [NONE; 5],
            len: [0; 5],
        }
    }

    /// The queue of `block`.
    pub(super) fn queue_of(&self, block: u32) -> u8 {
        self.queue[block as usize]
    }

    pub(super) fn len(&self, queue: u8) -> u64 {
        self.len[usize::from(queue)]
    }

    pub(super) fn oldest(&self, queue: u8) -> u32 {
        self.oldest[usize::from(queue)]
    }

    /// The block that came after `block`; [`NONE`] for the newest.
    pub(super) fn newer(&self, block: u32) -> u32 {
        self.newer[block as usize]
    }

    /// Puts `block`, which is in no queue, at the head of `queue`.
    pub(super) fn push(&mut self, queue: u8, block: u32) {
        let at = usize::from(queue);
        let head = self.newest[at];
        self.newer[block as usize] = NONE;
        self.older[block as usize] = head;
        match head {
            NONE => self.oldest[at] = block,
            _ => self.newer[head as usize] = block,
        }
        self.newest[at] = block;
        self.queue[block as usize] = queue;
        self.len[at] += 1;
    }

    /// Takes `block` out of its queue.
    pub(super) fn remove(&mut self, block: u32) {
        let at = usize::from(self.queue[block as usize]);
        let (newer, older) = (self.newer[block as usize], self.older[block as usize]);
        match newer {
            NONE => self.newest[at] = older,
            _ => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest[at] = newer,
            _ => self.newer[older as usize] = newer,
        }
        self.queue[block as usize] = OUT;
        self.len[at] -= 1;
    }

    /// Takes the oldest block out of `queue`.
    pub(super) fn pop(&mut self, queue: u8) -> Option<u32> {
        let block = self.oldest(queue);
        if block == NONE {
            return None;
        }
        self.remove(block);
        Some(block)
    }

    /// Puts `block` at the head of `queue`, wherever it was.
    pub(super) fn shift(&mut self, queue: u8, block: u32) {
        if self.queue_of(block) != OUT {
            self.remove(block);
        }
        self.push(queue, block);
    }
}
