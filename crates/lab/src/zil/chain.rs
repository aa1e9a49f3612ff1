//! The log chain of one ZFS dataset, and the space that all chains take their blocks from.
//!
//! A log block names the next one, which is allocated, with a guessed size, when the present one is
//! sent. Sizes and rules are those of OpenZFS 2.1 (`module/zfs/zil.c`, `metaslab.c`). No number is
//! fitted; a trace of one file system decided between four readings of the rules.

use super::ChainRules;

/// The smallest log block, and the step that written lengths are rounded up to.
const MIN_BLOCK_BYTES: u64 = 4 << 10;
/// The largest log block.
const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// Header of a log block.
const BLOCK_HEADER_BYTES: u64 = 192;
/// Header of the record of a write.
const RECORD_HEADER_BYTES: u64 = 192;
/// The most data that one block can hold beside the headers.
const MAX_DATA_BYTES: u64 = MAX_BLOCK_BYTES - BLOCK_HEADER_BYTES - RECORD_HEADER_BYTES;
/// Space at the end of a block that may stay unused so that a record is not split.
const MAX_WASTE_BYTES: u64 = MAX_DATA_BYTES / 8;
/// A record with more data than this may be split over blocks.
const MAX_WHOLE_BYTES: u64 = MAX_DATA_BYTES / 2;
/// Bytes of a commit up to which a next block has the size beside it.
const BLOCK_SIZES: [(u64, u64); 7] = [
    (4 << 10, 4 << 10),
    (12 << 10, 12 << 10),
    (36 << 10, 36 << 10),
    (68 << 10, 68 << 10),
    (128 << 10, 128 << 10),
    (132 << 10, 68 << 10),
    (u64::MAX, MAX_BLOCK_BYTES),
];
/// The next block is as large as the largest that the last so many asked for.
const HISTORY: usize = 16;
/// A write is recorded in pieces that end where the file's records end.
const FILE_RECORD_BYTES: u64 = 128 << 10;

/// One block of a chain.
#[derive(Clone, Copy, Debug)]
struct Block {
    offset_bytes: u64,
    size_bytes: u64,
    used_bytes: u64,
}

/// The chain of one dataset.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    rules: ChainRules,
    allocator: usize,
    block: Block,
    history: [u64; HISTORY],
    turn: usize,
    /// Bytes of the commit so far.
    commit_bytes: u64,
    /// Where the client's file is written next.
    file_bytes: u64,
}

/// A write of the chain to the device: offset and length.
pub(super) type ChainWrite = (u64, u64);

impl Chain {
    pub(super) fn new(rules: ChainRules, allocator: usize, space: &mut LogSpace) -> Self {
        let allocator = allocator % rules.allocators();
        let mut chain = Self {
            rules,
            allocator,
            block: Block { offset_bytes: 0, size_bytes: 0, used_bytes: 0 },
            history: [0; HISTORY],
            turn: 0,
            commit_bytes: 0,
            file_bytes: 0,
        };
        chain.open(MIN_BLOCK_BYTES, space);
        chain
    }

    fn open(&mut self, size_bytes: u64, space: &mut LogSpace) {
        let offset_bytes = space.take(self.allocator, size_bytes);
        self.block = Block { offset_bytes, size_bytes, used_bytes: BLOCK_HEADER_BYTES };
    }

    /// The writes that make one write of the client durable.
    pub(super) fn commit(&mut self, len_bytes: u64, space: &mut LogSpace) -> Vec<ChainWrite> {
        let (mut writes, mut left) = (Vec::new(), len_bytes);
        self.commit_bytes = 0;
        while left > 0 {
            let to_edge = FILE_RECORD_BYTES - self.file_bytes % FILE_RECORD_BYTES;
            let piece = left.min(to_edge);
            self.record(piece, space, &mut writes);
            self.file_bytes += piece;
            left -= piece;
        }
        self.send(space, &mut writes);
        writes
    }

    /// Puts the record of one piece into blocks.
    fn record(&mut self, data_bytes: u64, space: &mut LogSpace, writes: &mut Vec<ChainWrite>) {
        // What must stand in one block, and what may be split.
        let (mut whole, mut split) = if data_bytes <= MAX_WHOLE_BYTES {
            (RECORD_HEADER_BYTES + data_bytes, 0)
        } else {
            (RECORD_HEADER_BYTES, data_bytes)
        };
        self.commit_bytes += whole + split;
        loop {
            let mut room = self.block.size_bytes - self.block.used_bytes;
            let rest = split % MAX_DATA_BYTES;
            let wasteful = room < MAX_WASTE_BYTES && (rest == 0 || room < whole + rest);
            if whole > room || (whole + split > room && wasteful) {
                self.send(space, writes);
                room = self.block.size_bytes - self.block.used_bytes;
                if whole > room {
                    (whole, split) = (RECORD_HEADER_BYTES, split + whole - RECORD_HEADER_BYTES);
                }
            }
            let now = split.min(room - whole);
            self.block.used_bytes += whole + now;
            split -= now;
            if split == 0 {
                return;
            }
            self.commit_bytes += whole;
        }
    }

    /// Sends the present block and opens the next.
    fn send(&mut self, space: &mut LogSpace, writes: &mut Vec<ChainWrite>) {
        let wanted = self.commit_bytes + BLOCK_HEADER_BYTES;
        let fitting = BLOCK_SIZES.iter().find(|(limit, _)| wanted <= *limit);
        let size_bytes = fitting.map_or(MAX_BLOCK_BYTES, |(_, size)| *size);
        self.history[self.turn] = size_bytes;
        self.turn = (self.turn + 1) % HISTORY;
        let largest = self.history.iter().copied().max().unwrap_or(size_bytes);
        let written = match self.rules {
            ChainRules::OpenZfs21 => self.block.used_bytes.next_multiple_of(MIN_BLOCK_BYTES),
            ChainRules::WholeBlocks => self.block.size_bytes,
        };
        writes.push((self.block.offset_bytes, written));
        self.open(largest, space);
    }
}

/// The log device's space: metaslabs, each filled from front to end. Freed space comes back in the
/// order in which it was taken.
#[derive(Clone, Debug)]
pub(super) struct LogSpace {
    metaslab_bytes: u64,
    metaslabs: u64,
    /// For each allocator its metaslab and the next free byte in it.
    active: Vec<(u64, u64)>,
    /// The metaslab that was opened last.
    newest: u64,
}

/// Metaslabs that a small device is divided into.
const MIN_METASLABS: u64 = 16;
/// Metaslabs are not made larger than this before there are [`MAX_METASLABS`] of them.
const METASLAB_BYTES: u64 = 512 << 20;
const MAX_METASLABS: u64 = 200;

impl LogSpace {
    pub(super) fn new(rules: ChainRules, capacity_bytes: u64) -> Self {
        let power_above = |bytes: u64| 1u64 << (bytes.max(1).ilog2() + 1);
        let metaslab_bytes = if capacity_bytes < MIN_METASLABS * METASLAB_BYTES {
            power_above(capacity_bytes / MIN_METASLABS)
        } else if capacity_bytes <= MAX_METASLABS * METASLAB_BYTES {
            METASLAB_BYTES
        } else {
            power_above(capacity_bytes / MAX_METASLABS)
        };
        let allocators = rules.allocators();
        let active: Vec<(u64, u64)> = (0..allocators as u64).map(|i| (i, 0)).collect();
        let newest = active.len() as u64 - 1;
        Self { metaslab_bytes, metaslabs: capacity_bytes / metaslab_bytes, active, newest }
    }

    /// Whether each allocator can have a metaslab, and another to go on to.
    pub(super) fn is_enough(&self) -> bool {
        self.metaslabs > self.active.len() as u64 && self.metaslab_bytes >= MAX_BLOCK_BYTES
    }

    fn take(&mut self, allocator: usize, len_bytes: u64) -> u64 {
        let (_, used) = self.active[allocator];
        if used + len_bytes > self.metaslab_bytes {
            let mut next = (self.newest + 1) % self.metaslabs;
            while self.active.iter().any(|(metaslab, _)| *metaslab == next) {
                next = (next + 1) % self.metaslabs;
            }
            self.newest = next;
            self.active[allocator] = (next, 0);
        }
        let (metaslab, used) = &mut self.active[allocator];
        let at = *metaslab * self.metaslab_bytes + *used;
        *used += len_bytes;
        at
    }
}
