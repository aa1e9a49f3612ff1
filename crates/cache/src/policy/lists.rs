//! Queues of entries, linked through arrays: an entry is in one queue at most.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;
/// The queue of entries that are in none.
pub(super) const OUT: u8 = 0;

/// Up to four queues, numbered from 1. The newest entry is at the head.
pub(super) struct Lists {
    newer: Vec<u32>,
    older: Vec<u32>,
    queue: Vec<u8>,
    newest: [u32; 5],
    oldest: [u32; 5],
    len: [u64; 5],
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            newer: Vec::new(),
            older: Vec::new(),
            queue: Vec::new(),
            newest: [NONE; 5],
            oldest: [NONE; 5],
            len: [0; 5],
        }
    }
}

impl Lists {
    /// Lets entries below `entries` occur.
    pub(super) fn reserve(&mut self, entries: usize) {
        let entries = entries.max(self.queue.len());
        self.newer.resize(entries, NONE);
        self.older.resize(entries, NONE);
        self.queue.resize(entries, OUT);
    }

    /// The queue of `entry`.
    pub(super) fn queue_of(&self, entry: u32) -> u8 {
        self.queue[entry as usize]
    }

    pub(super) fn len(&self, queue: u8) -> u64 {
        self.len[usize::from(queue)]
    }

    pub(super) fn oldest(&self, queue: u8) -> u32 {
        self.oldest[usize::from(queue)]
    }

    /// The entry that came after `entry`; [`NONE`] for the newest.
    pub(super) fn newer(&self, entry: u32) -> u32 {
        self.newer[entry as usize]
    }

    /// Puts `entry`, which is in no queue, at the head of `queue`.
    pub(super) fn push(&mut self, queue: u8, entry: u32) {
        let at = usize::from(queue);
        let head = self.newest[at];
        self.newer[entry as usize] = NONE;
        self.older[entry as usize] = head;
        match head {
            NONE => self.oldest[at] = entry,
            _ => self.newer[head as usize] = entry,
        }
        self.newest[at] = entry;
        self.queue[entry as usize] = queue;
        self.len[at] += 1;
    }

    /// Takes `entry` out of its queue.
    pub(super) fn take(&mut self, entry: u32) {
        let at = usize::from(self.queue[entry as usize]);
        let (newer, older) = (self.newer[entry as usize], self.older[entry as usize]);
        match newer {
            NONE => self.newest[at] = older,
            _ => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest[at] = newer,
            _ => self.newer[older as usize] = newer,
        }
        self.queue[entry as usize] = OUT;
        self.len[at] -= 1;
    }

    /// Takes the oldest entry out of `queue`.
    pub(super) fn pop(&mut self, queue: u8) -> Option<u32> {
        let entry = self.oldest(queue);
        if entry == NONE {
            return None;
        }
        self.take(entry);
        Some(entry)
    }

    /// Puts `entry` at the head of `queue`, wherever it was.
    pub(super) fn shift(&mut self, queue: u8, entry: u32) {
        if self.queue_of(entry) != OUT {
            self.take(entry);
        }
        self.push(queue, entry);
    }
}
