//! The queue of waiting records, and how it packs them into a frame.

use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_format::checksum::crc64;
use forebay_format::log_frame::{
    Fragment, FrameHeader, RecordEntry, RecordKind, frame_len_bytes, seal, table_end_bytes,
};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba, TxgId};

use crate::record::Record;
use crate::ticket::{Ticket, Waiter};

/// A record on its way into frames.
pub(crate) struct Queued {
    record: Record,
    ticket: Rc<Ticket>,
    /// Appends without records, which wait for everything up to here.
    barriers: Vec<Waiter>,
    /// Blocks that are in frames already.
    done_blocks: u32,
    /// Where the rest of the data begins: index of the buffer, and offset in it.
    buffer: usize,
    buffer_offset: usize,
}

impl Queued {
    pub(crate) fn new(record: Record, ticket: Rc<Ticket>) -> Self {
        Self { record, ticket, barriers: Vec::new(), done_blocks: 0, buffer: 0, buffer_offset: 0 }
    }

    fn left_bytes(&self) -> u64 {
        match self.record.kind {
            RecordKind::Write => u64::from(self.record.blocks - self.done_blocks) * BLOCK_BYTES,
            RecordKind::Zero => 0,
        }
    }

    /// Adds the next `len` bytes of the data to `parts`, without a copy.
    fn take(&mut self, mut len: usize, parts: &mut Vec<IoBytes>) {
        while len > 0 {
            let buffer: &IoBytes = &self.record.data[self.buffer];
            let part = (buffer.len() - self.buffer_offset).min(len);
            parts.push(buffer.slice(self.buffer_offset, part));
            len -= part;
            self.buffer_offset += part;
            if self.buffer_offset == buffer.len() {
                self.buffer += 1;
                self.buffer_offset = 0;
            }
        }
    }
}

/// Records in the order of their appends.
#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Queued>,
    bytes: u64,
}

/// The content of the next frame.
pub(crate) struct Packed {
    pub(crate) entries: Vec<RecordEntry>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) max_txg: TxgId,
    pub(crate) data_bytes: u64,
    /// Header and table.
    head: IoBuf,
    /// The data, where the records have it.
    data: Vec<IoBytes>,
}

/// How much of the first record a frame takes.
enum Take {
    Nothing,
    Part(u64),
    Whole,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes of data that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, item: Queued) {
        self.bytes += item.left_bytes();
        self.items.push_back(item);
    }

    /// Makes `waiter` wait for the last record of the queue; returns it when the queue is empty.
    pub(crate) fn attach(&mut self, waiter: Waiter) -> Option<Waiter> {
        match self.items.back_mut() {
            Some(last) => last.barriers.push(waiter),
            None => return Some(waiter),
        }
        None
    }

    /// The frame length that the first record needs, in bytes. A long record is not cut into
    /// slivers because the log is nearly full.
    pub(crate) fn wanted_bytes(&self, limit_bytes: u64) -> u64 {
        let first = self.items.front().map_or(0, Queued::left_bytes);
        frame_len_bytes(1, first).min(limit_bytes)
    }

    fn take_of_first(&self, entries: usize, data_bytes: u64, limit: u64, whole_limit: u64) -> Take {
        let Some(first) = self.items.front() else { return Take::Nothing };
        let table_end = table_end_bytes(entries + 1) as u64;
        let Some(room) = limit.checked_sub(table_end + data_bytes) else { return Take::Nothing };
        let left = first.left_bytes();
        if left <= room {
            return Take::Whole;
        }
        let longer_than_a_frame = frame_len_bytes(1, left) > whole_limit;
        let room = room / BLOCK_BYTES * BLOCK_BYTES;
        if room > 0 && (first.done_blocks > 0 || longer_than_a_frame) {
            return Take::Part(room);
        }
        Take::Nothing
    }

    /// Takes the records that fit into a frame of `limit` bytes, in order. `whole_limit` is the
    /// longest frame in an empty ring: only a record longer than that is split.
    pub(crate) fn pack(&mut self, limit: u64, whole_limit: u64) -> Option<Packed> {
        let mut plan = Vec::new();
        let mut taken = Vec::new();
        let mut data_bytes = 0;
        let mut waiters = Vec::new();
        let mut max_txg = TxgId(0);
        while plan.len() < usize::from(u16::MAX) {
            let take = self.take_of_first(plan.len(), data_bytes, limit, whole_limit);
            let Some(first) = self.items.front_mut() else { break };
            let (len, fragment) = match take {
                Take::Nothing => break,
                Take::Part(len) => (len, Fragment::Continues),
                Take::Whole if first.done_blocks > 0 => (first.left_bytes(), Fragment::Last),
                Take::Whole => (first.left_bytes(), Fragment::Whole),
            };
            let record = &first.record;
            let blocks = match record.kind {
                RecordKind::Write => (len / BLOCK_BYTES) as u32,
                RecordKind::Zero => record.blocks,
            };
            plan.push(RecordEntry {
                kind: record.kind,
                fragment,
                volume: record.volume,
                lba: Lba(record.lba.0 + u64::from(first.done_blocks)),
                blocks,
                txg: record.txg,
            });
            max_txg = max_txg.max(record.txg);
            data_bytes += len;
            self.bytes -= len;
            first.done_blocks += blocks;
            if fragment == Fragment::Continues {
                break;
            }
            let mut item = self.items.pop_front().expect("looked at above");
            waiters.push((item.ticket.clone(), item.record.txg));
            waiters.append(&mut item.barriers);
            taken.push(item);
        }
        if plan.is_empty() {
            return None;
        }
        let mut data = Vec::with_capacity(plan.len());
        let mut sources = taken.iter_mut().chain(self.items.front_mut());
        for entry in &plan {
            let source = sources.next().expect("each entry came from a record");
            source.take(entry.data_bytes() as usize, &mut data);
        }
        let head = IoBuf::recycled(table_end_bytes(plan.len()));
        Some(Packed { entries: plan, waiters, max_txg, data_bytes, head, data })
    }

    /// Drops the records of groups up to `committed` and adds their waiters to `resolved`. Returns
    /// the number of dropped records, and the barriers that wait for nothing in the queue now.
    pub(crate) fn drop_committed(
        &mut self,
        committed: TxgId,
        resolved: &mut Vec<Rc<Ticket>>,
    ) -> (u64, Vec<Waiter>) {
        let mut dropped = 0;
        let mut loose = Vec::new();
        let mut kept: VecDeque<Queued> = VecDeque::with_capacity(self.items.len());
        for mut item in self.items.drain(..) {
            let mut still = Vec::new();
            for (ticket, txg) in item.barriers.drain(..) {
                if txg <= committed {
                    resolved.push(ticket);
                } else {
                    still.push((ticket, txg));
                }
            }
            if item.record.txg > committed {
                item.barriers = still;
                kept.push_back(item);
                continue;
            }
            dropped += 1;
            self.bytes -= item.left_bytes();
            resolved.push(item.ticket);
            match kept.back_mut() {
                Some(before) => before.barriers.append(&mut still),
                None => loose.append(&mut still),
            }
        }
        self.items = kept;
        (dropped, loose)
    }

    /// Empties the queue and returns its waiters.
    pub(crate) fn drain_waiters(&mut self) -> Vec<Rc<Ticket>> {
        self.bytes = 0;
        let items = self.items.drain(..);
        items
            .flat_map(|item| {
                std::iter::once(item.ticket).chain(item.barriers.into_iter().map(|(t, _)| t))
            })
            .collect()
    }
}

impl Packed {
    /// A frame without records.
    pub(crate) fn closing(committed: TxgId) -> Self {
        Self {
            entries: Vec::new(),
            waiters: Vec::new(),
            max_txg: committed,
            data_bytes: 0,
            head: IoBuf::recycled(table_end_bytes(0)),
            data: Vec::new(),
        }
    }

    /// Length of the frame in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        frame_len_bytes(self.entries.len(), self.data_bytes)
    }

    /// The finished frame, in parts.
    pub(crate) fn seal(mut self, header: &FrameHeader) -> Vec<IoBytes> {
        let blocks = |part: &IoBytes| part.len() / BLOCK_LEN;
        let sums = |part| (0..blocks(part)).map(|block| part.block_sum(block, crc64));
        seal(header, &self.entries, &mut self.head, self.data.iter().flat_map(sums));
        let mut parts = Vec::with_capacity(1 + self.data.len());
        parts.push(self.head.freeze());
        parts.append(&mut self.data);
        parts
    }
}
