//! Pool of dies: a group of dies that opens, cleans and erases superblocks on its own.

use std::collections::{BTreeSet, VecDeque};

use super::sorted::SortedBlocks;
use super::{FtlConfig, NONE, Origin};
use crate::spec::{CleaningPolicy, Frontiers};

/// A superblock being filled. `next` equal to the block's slots means it is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    pub block: u32,
    pub next: u32,
}

/// Erased blocks, in the order they are opened.
#[derive(Clone, Debug)]
pub(super) enum FreeBlocks {
    /// First erased, first opened.
    Queue(VecDeque<u32>),
    /// By erase count, then number: host data, which is the hotter, goes to the least worn, moved
    /// data to the most worn.
    ByWear(BTreeSet<(u32, u32)>),
}

impl FreeBlocks {
    pub(super) fn len(&self) -> usize {
        match self {
            FreeBlocks::Queue(queue) => queue.len(),
            FreeBlocks::ByWear(set) => set.len(),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            FreeBlocks::Queue(queue) => queue.clear(),
            FreeBlocks::ByWear(set) => set.clear(),
        }
    }

    pub(super) fn push(&mut self, block: u32, erase_count: u32) {
        match self {
            FreeBlocks::Queue(queue) => queue.push_back(block),
            FreeBlocks::ByWear(set) => {
                set.insert((erase_count, block));
            }
        }
    }

    pub(super) fn pop(&mut self, origin: Origin) -> Option<u32> {
        match self {
            FreeBlocks::Queue(queue) => queue.pop_front(),
            FreeBlocks::ByWear(set) if origin == Origin::Clean => {
                set.pop_last().map(|(_, block)| block)
            }
            FreeBlocks::ByWear(set) => set.pop_first().map(|(_, block)| block),
        }
    }
}

/// Closed blocks, kept the way the policy looks for its victim.
#[derive(Clone, Debug)]
pub(super) enum Candidates {
    /// By live slots, for greedy. Local block numbers.
    Sorted(SortedBlocks),
    /// In any order, for chance and for cost-benefit, with each local block's place.
    Listed { blocks: Vec<u32>, place: Vec<u32> },
    /// By time of closing, for FIFO. A block taken for wear leveling leaves from the middle.
    Queued(VecDeque<u32>),
}

/// A victim whose live units are being moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub block: u32,
    /// Words of the live bitmap already emptied.
    pub next_word: u32,
    /// Moves owed for each host slot, and moves owed now, in 1/65536.
    pub pace: u64,
    pub owed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub first_block: u32,
    /// Of the stream that the host writes to.
    pub host: OpenBlock,
    stream: usize,
    /// Open blocks of the other streams, by stream.
    pub parked: Vec<OpenBlock>,
    /// Unused when the frontier is shared.
    pub clean: OpenBlock,
    pub frontiers: Frontiers,
    pub free: FreeBlocks,
    pub candidates: Candidates,
    pub victim: Option<Victim>,
    pub live_slots: u64,
    pub bad_blocks: u32,
    pub erases_since_wear_check: u32,
}

impl Pool {
    pub(super) fn new(config: &FtlConfig, number: u32) -> Self {
        let blocks = config.blocks_per_pool;
        let first_block = number * blocks;
        // Nothing is open yet: a full block that does not exist.
        let nothing = OpenBlock { block: NONE, next: config.slots_per_block };
        let mut free = if config.dynamic_wear_leveling {
            FreeBlocks::ByWear(BTreeSet::new())
        } else {
            FreeBlocks::Queue(VecDeque::with_capacity(blocks as usize))
        };
        for local in 0..blocks {
            free.push(first_block + local, 0);
        }
        let candidates = match config.policy {
            CleaningPolicy::Greedy => {
                Candidates::Sorted(SortedBlocks::new(blocks, config.slots_per_block))
            }
            CleaningPolicy::Fifo => Candidates::Queued(VecDeque::with_capacity(blocks as usize)),
            CleaningPolicy::DChoices(_) | CleaningPolicy::CostBenefit | CleaningPolicy::Random => {
                Candidates::Listed { blocks: Vec::new(), place: vec![NONE; blocks as usize] }
            }
        };
        Self {
            first_block,
            host: nothing,
            stream: 0,
            parked: vec![nothing; config.streams as usize],
            clean: nothing,
            frontiers: config.frontiers,
            free,
            candidates,
            victim: None,
            live_slots: 0,
            bad_blocks: 0,
            erases_since_wear_check: 0,
        }
    }

    /// Host data goes to the open block of `stream` from now on.
    #[inline]
    pub(super) fn select_stream(&mut self, stream: usize) {
        if stream != self.stream {
            let nothing = OpenBlock { block: NONE, ..self.host };
            self.parked[self.stream] = self.host;
            self.host = std::mem::replace(&mut self.parked[stream], nothing);
            self.stream = stream;
        }
    }

    /// Where data of this origin is appended.
    #[inline]
    pub(super) fn open_mut(&mut self, origin: Origin) -> &mut OpenBlock {
        if origin == Origin::Clean && self.frontiers == Frontiers::Apart {
            &mut self.clean
        } else {
            &mut self.host
        }
    }

    pub(super) fn host_open(&self) -> Option<OpenBlock> {
        (self.host.block != NONE).then_some(self.host)
    }

    pub(super) fn add_candidate(&mut self, block: u32, live_slots: u32) {
        let local = block - self.first_block;
        match &mut self.candidates {
            Candidates::Sorted(sorted) => sorted.insert(local, live_slots),
            Candidates::Queued(queue) => queue.push_back(local),
            Candidates::Listed { blocks, place } => {
                place[local as usize] = blocks.len() as u32;
                blocks.push(local);
            }
        }
    }

    pub(super) fn remove_candidate(&mut self, block: u32, live_slots: u32) {
        let local = block - self.first_block;
        match &mut self.candidates {
            Candidates::Sorted(sorted) => sorted.take(local, live_slots),
            Candidates::Queued(queue) => queue.retain(|&queued| queued != local),
            Candidates::Listed { blocks, place } => {
                let here = std::mem::replace(&mut place[local as usize], NONE);
                blocks.swap_remove(here as usize);
                if let Some(&moved) = blocks.get(here as usize) {
                    place[moved as usize] = here;
                }
            }
        }
    }
}
