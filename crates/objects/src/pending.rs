//! What was written to a device and is not in its chain yet.
//!
//! What enters: writes and discards. What leaves: runs to put as objects, and records in the order
//! of the writes. What always holds: of two writes to a block the later one counts, in memory and
//! in the chain.

use std::collections::BTreeMap;

use forebay_device::IoBytes;
use forebay_format::objects::{Extent, ObjectId, PAGE_BYTES, Record};
use forebay_units::BLOCK_BYTES;

use crate::extents::Extents;
use crate::store::StoreError;

/// Blocks of the largest object.
pub(crate) const MAX_OBJECT_BLOCKS: u32 = 4096;

/// Blocks that lie together, on their way to an object.
struct Run {
    first_block: u64,
    blocks: u32,
    /// Empty once the object is stored.
    parts: Vec<IoBytes>,
    phase: Phase,
    /// Its place among the records.
    record: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// More may follow.
    Open,
    /// Being stored.
    Closed,
    Stored,
}

/// A block of a label area that the chain does not have yet.
struct Page {
    /// Which write it was.
    seq: u64,
    bytes: Vec<u8>,
}

/// Changes that the chain does not have yet.
pub(crate) struct Pending {
    writer: u64,
    /// Of blocks, in order.
    records: Vec<Record>,
    pages: BTreeMap<u64, Page>,
    /// Where blocks are that were written since.
    overlay: Extents,
    runs: BTreeMap<u64, Run>,
    next_number: u64,
    /// Writes and discards so far.
    pub seq: u64,
    /// Of those, the last page and the last other one that the chain has.
    pub recorded: (u64, u64),
    /// Bytes that are in memory alone.
    pub memory_bytes: u64,
    /// Why the device takes no more writes.
    pub failure: Option<StoreError>,
}

/// An object that is to be stored.
pub(crate) struct Put {
    pub id: ObjectId,
    pub parts: Vec<IoBytes>,
    pub bytes: u64,
}

/// Changes that become an entry.
pub(crate) struct Batch {
    pub records: Vec<Record>,
    /// The write up to which it has everything.
    seq: u64,
    has_body: bool,
}

impl Pending {
    pub fn new(writer: u64) -> Self {
        Self {
            writer,
            records: Vec::new(),
            pages: BTreeMap::new(),
            overlay: Extents::default(),
            runs: BTreeMap::new(),
            next_number: 0,
            seq: 0,
            recorded: (0, 0),
            memory_bytes: 0,
            failure: None,
        }
    }

    /// A write of a block in a label area. Returns its number.
    pub fn write_page(&mut self, block: u64, bytes: &[u8]) -> u64 {
        debug_assert_eq!(bytes.len(), PAGE_BYTES);
        self.seq += 1;
        self.pages.insert(block, Page { seq: self.seq, bytes: bytes.to_vec() });
        self.seq
    }

    /// A block in a label area, if it was written since.
    pub fn page(&self, block: u64) -> Option<&[u8]> {
        self.pages.get(&block).map(|page| &page.bytes[..])
    }

    /// A write of whole blocks. Returns the object that is full now.
    pub fn write(&mut self, first_block: u64, data: IoBytes) -> Option<Put> {
        self.seq += 1;
        self.memory_bytes += data.len() as u64;
        let blocks = (data.len() as u64 / BLOCK_BYTES) as u32;
        let number = self.run_for(first_block, blocks);
        let run = self.runs.get_mut(&number).expect("just found or made");
        let object = ObjectId { writer: self.writer, number };
        self.overlay.insert(Extent { first_block, blocks, object, at: run.blocks });
        run.blocks += blocks;
        run.parts.push(data);
        if let Record::Add { blocks, .. } = &mut self.records[run.record] {
            *blocks = run.blocks;
        }
        (run.blocks >= MAX_OBJECT_BLOCKS).then(|| self.close(number)).flatten()
    }

    /// The run that goes on with these blocks, or a new one.
    fn run_for(&mut self, first_block: u64, blocks: u32) -> u64 {
        let goes_on = |run: &&Run| {
            run.phase == Phase::Open
                && run.first_block + u64::from(run.blocks) == first_block
                && run.blocks + blocks <= MAX_OBJECT_BLOCKS
        };
        let found = self.runs.iter().find(|(_, run)| goes_on(run));
        let range = (first_block, u64::from(blocks));
        // What came after the run's beginning comes after all of it.
        let is_last =
            |run: &Run| !self.records[run.record + 1..].iter().any(|record| touches(record, range));
        if let Some((number, _)) = found.filter(|(_, run)| is_last(run)) {
            return *number;
        }
        let number = self.next_number;
        self.next_number += 1;
        let record = self.records.len();
        self.records.push(Record::Add { number, first_block, blocks: 0 });
        let (parts, phase) = (Vec::new(), Phase::Open);
        self.runs.insert(number, Run { first_block, blocks: 0, parts, phase, record });
        number
    }

    /// A discard of blocks.
    pub fn discard(&mut self, first_block: u64, blocks: u64) {
        self.seq += 1;
        self.overlay.remove(first_block, blocks);
        self.records.push(Record::Discard { first_block, blocks });
    }

    /// Whether discards are not in the chain yet.
    pub fn has_discards(&self) -> bool {
        self.records.iter().any(|record| matches!(record, Record::Discard { .. }))
    }

    /// Ends a run.
    fn close(&mut self, number: u64) -> Option<Put> {
        let run = self.runs.get_mut(&number).filter(|run| run.phase == Phase::Open)?;
        run.phase = Phase::Closed;
        let id = ObjectId { writer: self.writer, number };
        let bytes = run.parts.iter().map(|part| part.len() as u64).sum();
        Some(Put { id, parts: run.parts.clone(), bytes })
    }

    /// Ends all runs.
    pub fn close_all(&mut self) -> Vec<Put> {
        let numbers: Vec<u64> = self.runs.keys().copied().collect();
        numbers.into_iter().filter_map(|number| self.close(number)).collect()
    }

    /// Whether objects are being stored.
    pub fn is_storing(&self) -> bool {
        self.runs.values().any(|run| run.phase == Phase::Closed)
    }

    /// Ends the longest run that more may follow.
    pub fn close_longest(&mut self) -> Option<Put> {
        let open = self.runs.iter().filter(|(_, run)| run.phase == Phase::Open);
        let (number, _) = open.max_by_key(|(_, run)| run.blocks)?;
        let number = *number;
        self.close(number)
    }

    /// An object is stored: its bytes need no memory any more.
    pub fn is_stored(&mut self, put: &Put) {
        self.memory_bytes -= put.bytes;
        if let Some(run) = self.runs.get_mut(&put.id.number) {
            run.phase = Phase::Stored;
            run.parts.clear();
        }
    }

    /// Takes what is to become an entry: pages, and with `body` all other changes, whose runs are
    /// closed.
    pub fn take(&mut self, body: bool) -> Batch {
        let mut records = match body {
            true => std::mem::take(&mut self.records),
            false => Vec::new(),
        };
        let pages = self.pages.iter();
        records
            .extend(pages.map(|(block, p)| Record::Page { block: *block, bytes: p.bytes.clone() }));
        Batch { records, seq: self.seq, has_body: body }
    }

    /// Whether all objects of a batch are stored.
    pub fn has_stored(&self, batch: &Batch) -> bool {
        let is_stored = |record: &Record| match record {
            Record::Add { number, .. } => {
                self.runs.get(number).is_none_or(|run| run.phase == Phase::Stored)
            }
            _ => true,
        };
        batch.records.iter().all(is_stored)
    }

    /// The chain has a batch.
    pub fn is_recorded(&mut self, batch: &Batch) {
        self.pages.retain(|_, page| page.seq > batch.seq);
        self.recorded.0 = self.recorded.0.max(batch.seq);
        if !batch.has_body {
            return;
        }
        self.recorded.1 = self.recorded.1.max(batch.seq);
        for record in &batch.records {
            if let Record::Add { number, .. } = record {
                self.runs.remove(number);
            }
        }
        let runs = &self.runs;
        self.overlay.retain(|object| runs.contains_key(&object.number));
    }

    /// The parts of a range that were written since, in order.
    pub fn lookup(&self, first_block: u64, blocks: u64) -> Vec<Extent> {
        self.overlay.lookup(first_block, blocks)
    }

    /// Copies an extent's blocks into `out`, if they are in memory.
    pub fn copy(&self, extent: &Extent, out: &mut [u8]) -> bool {
        let Some(run) = self.runs.get(&extent.object.number) else { return false };
        if run.parts.is_empty() {
            return false;
        }
        let mut skip = extent.at as usize * BLOCK_BYTES as usize;
        let mut done = 0;
        for part in &run.parts {
            let from = skip.min(part.len());
            skip -= from;
            let len = (part.len() - from).min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[from..from + len]);
            done += len;
        }
        done == out.len()
    }
}

/// Whether a record changes blocks of a range.
fn touches(record: &Record, (first, blocks): (u64, u64)) -> bool {
    let (other, len) = match record {
        Record::Add { first_block, blocks, .. } => (*first_block, u64::from(*blocks)),
        Record::Discard { first_block, blocks } => (*first_block, *blocks),
        _ => return false,
    };
    other < first + blocks && first < other.saturating_add(len)
}
