//! Read-ahead: sequential streams of a volume are found, and what they will ask for next is read
//! into the cache.
//!
//! A long piece of a volume that was written at random is read in few commands, because each
//! transaction group wrote its blocks of that piece next to each other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use forebay_cache::{BlockKey, Kept};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN};

use crate::Pool;
use crate::volume::VolumeState;

/// Streams of a volume that are told apart.
const STREAMS: usize = 16;
/// Blocks that a stream of several reads may go forth or back: its requests may overtake each
/// other.
const SLACK_BLOCKS: u64 = 64;
/// Reads in a row after which a stream has that slack.
const SETTLED_READS: u32 = 4;
/// Blocks read ahead of a new stream, and of one that goes on.
const FIRST_WINDOW_BLOCKS: u64 = 32;
const MOST_WINDOW_BLOCKS: u64 = 2048;
/// Share of the cache that one window may take.
const WINDOWS_IN_CACHE: u64 = 8;
/// Blocks that are read ahead in one go. A reader that catches up waits for no more than these.
const PART_BLOCKS: u64 = 256;
/// Parts that are read at a time, and that wait for it at most.
pub(crate) const READERS_AHEAD: usize = 4;
const MOST_WAITING: usize = 256;

/// A sequential reader.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where its next read is expected.
    next: u64,
    /// The end of what was read ahead.
    ahead_to: u64,
    window_blocks: u64,
    reads: u32,
    used_at: u64,
}

/// The streams of a volume, and the blocks that are being read ahead of them.
#[derive(Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    reads: u64,
    reading: Vec<Range<u64>>,
}

impl Streams {
    /// Notes a read of `blocks`. Returns what to read ahead: at most `limit_blocks` after the read.
    fn note(&mut self, blocks: &Range<u64>, limit_blocks: u64) -> Option<Range<u64>> {
        self.reads += 1;
        let continues = |stream: &Stream| {
            let slack = if stream.reads >= SETTLED_READS { SLACK_BLOCKS } else { 0 };
            blocks.start <= stream.next + slack && blocks.start + slack >= stream.next
        };
        let Some(stream) = self.streams.iter_mut().find(|stream| continues(stream)) else {
            let new =
                Stream { next: blocks.end, reads: 1, used_at: self.reads, ..Stream::default() };
            if self.streams.len() < STREAMS {
                self.streams.push(new);
            } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.used_at) {
                *oldest = new;
            }
            return None;
        };
        stream.reads = stream.reads.saturating_add(1);
        stream.used_at = self.reads;
        stream.next = stream.next.max(blocks.end);
        if stream.ahead_to >= stream.next + stream.window_blocks.div_ceil(2) {
            return None;
        }
        let first = FIRST_WINDOW_BLOCKS.max(2 * (blocks.end - blocks.start));
        stream.window_blocks = (2 * stream.window_blocks).max(first).min(limit_blocks);
        let from = stream.ahead_to.max(stream.next);
        stream.ahead_to = stream.next + stream.window_blocks;
        (from < stream.ahead_to).then_some(from..stream.ahead_to)
    }

    /// Whether some of these blocks are being read ahead.
    pub fn is_reading(&self, blocks: &Range<u64>) -> bool {
        self.reading.iter().any(|part| part.start < blocks.end && blocks.start < part.end)
    }
}

/// Blocks of a volume to read ahead.
struct Part {
    volume: Rc<VolumeState>,
    blocks: Range<u64>,
}

/// A part that is being read. While it exists, readers of its blocks wait for it.
struct Reading<'a>(&'a Part);

impl<'a> Reading<'a> {
    fn new(part: &'a Part) -> Self {
        part.volume.streams.borrow_mut().reading.push(part.blocks.clone());
        Self(part)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Part { volume, blocks } = self.0;
        let reading = &mut volume.streams.borrow_mut().reading;
        if let Some(at) = reading.iter().position(|part| part == blocks) {
            reading.swap_remove(at);
        }
        volume.part_was_read.notify_all();
    }
}

/// Parts that wait to be read ahead.
#[derive(Default)]
pub(crate) struct ReadAhead {
    waiting: RefCell<VecDeque<Part>>,
    wake: Rc<Notify>,
}

impl Pool {
    /// Notes a read, has what follows read ahead, and waits for what is being read ahead of it.
    pub(crate) async fn note_read(&self, volume: &Rc<VolumeState>, blocks: Range<u64>) {
        let cache_blocks = self.cache.limit_bytes() / BLOCK_BYTES;
        let limit_blocks = MOST_WINDOW_BLOCKS.min(cache_blocks / WINDOWS_IN_CACHE);
        let ahead = volume.streams.borrow_mut().note(&blocks, limit_blocks);
        if let Some(ahead) = ahead {
            self.read_ahead(volume, ahead);
        }
        if volume.streams.borrow().is_reading(&blocks) {
            let is_read = || !volume.streams.borrow().is_reading(&blocks);
            volume.part_was_read.until(is_read).await;
        }
    }

    fn read_ahead(&self, volume: &Rc<VolumeState>, blocks: Range<u64>) {
        if self.is_stopped() || self.lifecycle.closing.get() {
            return;
        }
        let end = blocks.end.min(Self::blocks_of(volume.size_bytes.get()));
        let mut from = blocks.start;
        let mut waiting = self.read_ahead.waiting.borrow_mut();
        while from < end && waiting.len() < MOST_WAITING {
            // Parts end at the same places whatever the reads were.
            let to = (from + 1).next_multiple_of(PART_BLOCKS).min(end);
            waiting.push_back(Part { volume: volume.clone(), blocks: from..to });
            from = to;
        }
        self.read_ahead.wake.notify_all();
    }

    /// Reads one part after the other as long as the pool runs.
    pub(crate) async fn read_ahead_loop(self: Rc<Self>) {
        let over = || self.is_stopped() || self.lifecycle.closing.get();
        let waiting = &self.read_ahead.waiting;
        loop {
            let has_part = || over() || !waiting.borrow().is_empty();
            let ended = Box::pin(self.sync.done.until(over));
            rt::select(Box::pin(self.read_ahead.wake.until(has_part)), ended).await;
            if over() {
                waiting.borrow_mut().clear();
                return;
            }
            let part = waiting.borrow_mut().pop_front();
            if let Some(part) = part {
                // A reader that came first reads for itself: it does not wait for other streams.
                let _reading = Reading::new(&part);
                self.read_part(&part).await;
            }
        }
    }

    /// Reads what is not in the cache. An error is no one's: the client that asks for the block
    /// meets it again.
    async fn read_part(&self, part: &Part) {
        if part.volume.gone.get() || !self.caches(&part.volume) {
            return;
        }
        let reads = self.uncached_reads(part.volume.id, part.blocks.clone());
        let calls = reads.iter().map(|read| self.read_gathered(read));
        let mut slices = rt::Slices::new();
        for (got, read) in rt::join_all(calls).await.into_iter().zip(&reads) {
            for (piece, fetch) in got.pieces().zip(read) {
                let blocks = piece.into_iter().flat_map(|data| data.chunks(BLOCK_LEN));
                for (index, block) in (0..).zip(blocks) {
                    let key = BlockKey { addr: fetch.key.addr.plus(index), ..fetch.key };
                    self.keep_in_memory(key, block, Kept::Ahead);
                    slices.step().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_read_in_a_row_begins_a_stream() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(&(100..101), 2048), None);
        assert_eq!(streams.note(&(101..102), 2048), Some(102..134));
        assert_eq!(streams.note(&(102..103), 2048), None, "enough is ahead");
        // Half of the window is used: the next one is twice as long.
        assert_eq!(streams.note(&(103..120), 2048), Some(134..184));
    }

    #[test]
    fn a_window_grows_to_its_limit() {
        let mut streams = Streams::default();
        let mut most_ahead = 0;
        for at in (0..100_000).step_by(32) {
            let read = at..at + 32;
            if let Some(ahead) = streams.note(&read, 2048) {
                assert!(ahead.start >= read.end);
                most_ahead = most_ahead.max(ahead.end - read.end);
            }
        }
        assert_eq!(most_ahead, 2048);
        assert_eq!(streams.note(&(200_000..200_256), 64), None);
        assert_eq!(streams.note(&(200_256..200_512), 64), Some(200_512..200_576));
    }

    #[test]
    fn streams_are_told_apart_and_the_oldest_is_forgotten() {
        let mut streams = Streams::default();
        for base in 0..STREAMS as u64 + 1 {
            assert_eq!(streams.note(&(base * 1000..base * 1000 + 1), 2048), None);
        }
        assert_eq!(streams.note(&(1001..1002), 2048), Some(1002..1034));
        assert_eq!(streams.note(&(1..2), 2048), None, "forgotten");
        assert_eq!(streams.streams.len(), STREAMS);
    }

    #[test]
    fn requests_of_a_settled_stream_may_overtake_each_other() {
        let mut streams = Streams::default();
        for at in [0, 1, 2, 3, 4, 6, 5, 8, 7, 9] {
            streams.note(&(at..at + 1), 2048);
        }
        assert_eq!(streams.streams.len(), 1);
        // A new one may not: random reads often come near each other.
        streams.note(&(5000..5001), 2048);
        streams.note(&(5002..5003), 2048);
        assert_eq!(streams.streams.len(), 3);
    }

    #[test]
    fn a_window_begins_with_twice_the_read() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(&(0..40), 2048), None);
        assert_eq!(streams.note(&(40..80), 2048), Some(80..160));
        assert_eq!(streams.note(&(80..120), 2048), None, "half of it is left");
        assert_eq!(streams.note(&(120..121), 2048), Some(160..281));
    }

    #[test]
    fn the_stream_that_went_on_last_is_forgotten_last() {
        let mut streams = Streams::default();
        for base in 0..STREAMS as u64 {
            streams.note(&(base * 1000..base * 1000 + 1), 2048);
        }
        for base in 2..STREAMS as u64 {
            assert!(streams.note(&(base * 1000 + 1..base * 1000 + 2), 2048).is_some());
        }
        assert!(streams.note(&(1..2), 2048).is_some());
        streams.note(&(90_000..90_001), 2048);
        assert_eq!(streams.note(&(1001..1002), 2048), None, "forgotten");
        assert!(streams.note(&(2..3), 2048).is_none() && streams.note(&(3..40), 2048).is_some());
    }

    #[test]
    fn blocks_are_being_read_when_they_overlap_a_part() {
        let streams = Streams { reading: vec![10..20, 30..40], ..Streams::default() };
        for blocks in [0..10, 20..30, 25..30, 40..50, 5..6] {
            assert!(!streams.is_reading(&blocks), "{blocks:?}");
        }
        for blocks in [0..11, 10..11, 19..20, 19..25, 12..13, 0..50, 29..31, 39..60] {
            assert!(streams.is_reading(&blocks), "{blocks:?}");
        }
    }
}
