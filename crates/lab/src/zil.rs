//! Synchronous clients of many datasets on one log device.
//!
//! The log is a chain of blocks for each dataset, as the ZFS intent log writes them, or one stream
//! of frames for all datasets. Both are imitations: neither ZFS nor Forebay's log runs here.

use crate::bench::Bench;
use crate::{LabError, shrink};
use forebay_flash::{Chance, DeviceSpec, Request};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// How the log lays out what is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLayout {
    /// Each dataset writes its own chain. A block names the next one, which is therefore allocated
    /// before anybody knows who will write next.
    Chains,
    /// All datasets write one sequence of frames; a frame takes all records that wait.
    Stream,
}

/// One load on one log device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zil {
    /// The log device at full size.
    pub device: DeviceSpec,
    /// How many times smaller its model is; 0: as small as stays faithful.
    #[serde(default)]
    pub scale: u32,
    /// Seed of device and clients.
    #[serde(default)]
    pub seed: u64,
    /// Datasets, one synchronous client each.
    pub datasets: u32,
    /// How the log lays it out.
    pub layout: LogLayout,
    /// Bytes of a log block of a chain.
    pub block_bytes: u32,
    /// Mean blocks of a commit (at least 1, geometric).
    pub mean_blocks: f64,
    /// Mean time a client thinks between commits, in microseconds.
    pub think_us: f64,
    /// Commits that are counted.
    pub commits: u64,
    /// Frames in flight at most ([`LogLayout::Stream`]).
    pub frames_in_flight: u32,
}

/// What the clients and the device saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ZilOutcome {
    /// Commits a second, over all datasets.
    pub commits_s: f64,
    /// Mean time from commit to its completion, in milliseconds.
    pub mean_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// Device writes that did not start where the one before ended, in percent.
    pub random_percent: f64,
    /// Mean size of a device write in bytes.
    pub mean_bytes: f64,
    /// Bytes written to the device for each byte committed.
    pub overhead: f64,
    /// Media bytes for each byte written to the device.
    pub amplification: f64,
    /// Distances of the seeks that were not zero, in sectors: lower end of each power of two,
    /// count ahead, count back.
    pub seeks: Vec<(u64, u64, u64)>,
    /// Writes without any seek.
    pub zero_seeks: u64,
}

const FRAME_HEADER_BYTES: u64 = 64;
const RECORD_HEADER_BYTES: u64 = 32;
/// Bytes of one frame.
const MAX_FRAME_BYTES: u64 = 1 << 20;
/// Datasets of one run.
const MAX_DATASETS: u32 = 100_000;
const BLOCK_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Commit {
    dataset: u32,
    asked_ns: u64,
    bytes: u64,
}

/// What the trace of device writes says, by the rules of `iopattern` and `seeksize`.
#[derive(Clone, Debug, Default)]
struct Pattern {
    end: Option<u64>,
    writes: u64,
    bytes: u64,
    random: u64,
    ahead: BTreeMap<u64, u64>,
    back: BTreeMap<u64, u64>,
}

impl Pattern {
    fn note(&mut self, offset: u64, len: u64) {
        self.writes += 1;
        self.bytes += len;
        if let Some(end) = self.end.filter(|end| *end != offset) {
            self.random += 1;
            let sectors = offset.abs_diff(end) / 512;
            let bucket = 1 << sectors.max(1).ilog2();
            let side = if offset > end { &mut self.ahead } else { &mut self.back };
            *side.entry(bucket).or_default() += 1;
        }
        self.end = Some(offset + len);
    }
}

/// Hands out log space in order and starts again at the front, as a log's space is freed in order.
#[derive(Clone, Debug)]
struct Space {
    next: u64,
    capacity: u64,
}

impl Space {
    fn take(&mut self, len: u64) -> u64 {
        if self.next + len > self.capacity {
            self.next = 0;
        }
        let at = self.next;
        self.next += len;
        at
    }
}

impl Zil {
    fn check(&self) -> Result<(), LabError> {
        self.device.check()?;
        let bad =
            |field, found: String, allowed| Err(LabError::field("zil", field, found, allowed));
        if !(1..=MAX_DATASETS).contains(&self.datasets) {
            return bad("datasets", self.datasets.to_string(), "from 1 to 100,000");
        }
        if self.commits == 0 {
            return bad("commits", self.commits.to_string(), "at least 1");
        }
        if self.frames_in_flight == 0 {
            return bad("frames_in_flight", self.frames_in_flight.to_string(), "at least 1");
        }
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(4096) {
            return bad("block_bytes", self.block_bytes.to_string(), "a multiple of 4096 above 0");
        }
        if !(1.0..=1000.0).contains(&self.mean_blocks) {
            return bad("mean_blocks", self.mean_blocks.to_string(), "from 1 to 1000");
        }
        if !(0.0..=1e9).contains(&self.think_us) {
            return bad("think_us", self.think_us.to_string(), "from 0 to 1e9");
        }
        Ok(())
    }

    /// Runs it on a device that has been filled once.
    pub fn run(&self) -> Result<ZilOutcome, LabError> {
        self.check()?;
        let (device, scale) = shrink::shrink(&self.device, self.scale)?;
        let mut bench = Bench::new(&device, scale, self.seed)?;
        if matches!(device.media, forebay_flash::MediaSpec::Flash(_)) {
            bench.fill(1 << 20, 8)?;
        }
        Clients::new(self, bench).run()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ZilEvent {
    /// A client commits.
    Asked(u32),
    /// One device write of a commit is done.
    Block(u32),
    /// A frame is done.
    Frame(u64),
}

struct Clients<'a> {
    zil: &'a Zil,
    bench: Bench,
    chance: Chance,
    space: Space,
    pattern: Pattern,
    events: BinaryHeap<Reverse<(u64, ZilEvent)>>,
    /// Chains: where each dataset's next block is.
    next_block: Vec<u64>,
    /// Chains: blocks of each dataset's commit that are not done, and when it was asked.
    left: Vec<(u32, u64)>,
    /// Stream: records that wait for a frame.
    waiting: VecDeque<Commit>,
    /// Stream: commits of each frame in flight, oldest first, and whether it is done.
    frames: VecDeque<(u64, bool, Vec<Commit>)>,
    next_frame: u64,
    done: u64,
    sum_ns: u128,
    longest_ns: u64,
    committed_bytes: u64,
}

impl<'a> Clients<'a> {
    fn new(zil: &'a Zil, bench: Bench) -> Self {
        let capacity = bench.capacity_bytes() / BLOCK_BYTES * BLOCK_BYTES;
        let mut clients = Self {
            zil,
            chance: Chance::derive(zil.seed, "clients"),
            space: Space { next: 0, capacity },
            pattern: Pattern::default(),
            events: BinaryHeap::new(),
            next_block: Vec::new(),
            left: vec![(0, 0); zil.datasets as usize],
            waiting: VecDeque::new(),
            frames: VecDeque::new(),
            next_frame: 0,
            done: 0,
            sum_ns: 0,
            longest_ns: 0,
            committed_bytes: 0,
            bench,
        };
        for dataset in 0..zil.datasets {
            let first = clients.space.take(u64::from(zil.block_bytes));
            clients.next_block.push(first);
            clients.think(dataset);
        }
        clients
    }

    /// Schedules the next commit of a dataset, after a time from 0 to twice the mean.
    fn think(&mut self, dataset: u32) {
        let ns = (self.chance.unit() * 2.0 * self.zil.think_us * 1e3) as u64;
        self.events.push(Reverse((self.bench.now + ns, ZilEvent::Asked(dataset))));
    }

    /// Blocks of a commit: geometric with the mean asked for.
    fn blocks(&mut self) -> u32 {
        let go_on = 1.0 - 1.0 / self.zil.mean_blocks;
        let mut blocks = 1;
        while blocks < 1000 && self.chance.unit() < go_on {
            blocks += 1;
        }
        blocks
    }

    fn write(&mut self, offset: u64, len: u64) -> Result<u64, LabError> {
        self.pattern.note(offset, len);
        Ok(self.bench.submit(&Request::write(offset, len).fua())?.at.0)
    }

    fn commit(&mut self, dataset: u32) -> Result<(), LabError> {
        let blocks = self.blocks();
        let block_bytes = u64::from(self.zil.block_bytes);
        let bytes = u64::from(blocks) * block_bytes;
        match self.zil.layout {
            LogLayout::Chains => {
                self.committed_bytes += bytes;
                self.left[dataset as usize] = (blocks, self.bench.now);
                for _ in 0..blocks {
                    let here = self.next_block[dataset as usize];
                    // A block holds the address of the next: that one is taken now.
                    self.next_block[dataset as usize] = self.space.take(block_bytes);
                    let at = self.write(here, block_bytes)?;
                    self.events.push(Reverse((at, ZilEvent::Block(dataset))));
                }
            }
            LogLayout::Stream => {
                self.waiting.push_back(Commit { dataset, asked_ns: self.bench.now, bytes });
                self.send_frames()?;
            }
        }
        Ok(())
    }

    /// Sends frames while a slot is free and records wait; a frame takes all that fit.
    fn send_frames(&mut self) -> Result<(), LabError> {
        while self.frames.len() < self.zil.frames_in_flight as usize && !self.waiting.is_empty() {
            let (mut bytes, mut commits) = (FRAME_HEADER_BYTES, Vec::new());
            while let Some(commit) = self.waiting.front() {
                let more = commit.bytes + RECORD_HEADER_BYTES;
                if !commits.is_empty() && bytes + more > MAX_FRAME_BYTES {
                    break;
                }
                bytes += more;
                self.committed_bytes += commit.bytes;
                commits.extend(self.waiting.pop_front());
            }
            let len = bytes.next_multiple_of(BLOCK_BYTES);
            let offset = self.space.take(len);
            let at = self.write(offset, len)?;
            self.frames.push_back((self.next_frame, false, commits));
            self.events.push(Reverse((at, ZilEvent::Frame(self.next_frame))));
            self.next_frame += 1;
        }
        Ok(())
    }

    fn finish(&mut self, dataset: u32, asked_ns: u64) {
        let took = self.bench.now - asked_ns;
        self.done += 1;
        self.sum_ns += u128::from(took);
        self.longest_ns = self.longest_ns.max(took);
        self.think(dataset);
    }

    fn run(mut self) -> Result<ZilOutcome, LabError> {
        let (begin, first) = (self.bench.now, self.bench.stats());
        while self.done < self.zil.commits {
            let Reverse((at, event)) = self.events.pop().expect("clients never stop");
            self.bench.now = self.bench.now.max(at);
            match event {
                ZilEvent::Asked(dataset) => self.commit(dataset)?,
                ZilEvent::Block(dataset) => {
                    let (left, asked_ns) = &mut self.left[dataset as usize];
                    *left -= 1;
                    if *left == 0 {
                        let asked_ns = *asked_ns;
                        self.finish(dataset, asked_ns);
                    }
                }
                ZilEvent::Frame(number) => {
                    if let Some(frame) = self.frames.iter_mut().find(|f| f.0 == number) {
                        frame.1 = true;
                    }
                    // Acknowledged in order of sequence, whatever order the device answers in.
                    while self.frames.front().is_some_and(|f| f.1) {
                        let (_, _, commits) = self.frames.pop_front().expect("it is there");
                        for commit in commits {
                            self.finish(commit.dataset, commit.asked_ns);
                        }
                    }
                    self.send_frames()?;
                }
            }
        }
        let stats = self.bench.stats().since(&first);
        let p = &self.pattern;
        let seconds = (self.bench.now - begin).max(1) as f64 / 1e9;
        let buckets: BTreeSet<u64> = p.ahead.keys().chain(p.back.keys()).copied().collect();
        let count = |side: &BTreeMap<u64, u64>, b: u64| side.get(&b).copied().unwrap_or_default();
        Ok(ZilOutcome {
            commits_s: self.done as f64 / seconds,
            mean_ms: self.sum_ns as f64 / self.done.max(1) as f64 / 1e6,
            max_ms: self.longest_ns as f64 / 1e6,
            random_percent: p.random as f64 / p.writes.max(1) as f64 * 100.0,
            mean_bytes: p.bytes as f64 / p.writes.max(1) as f64,
            overhead: p.bytes as f64 / self.committed_bytes.max(1) as f64,
            amplification: stats.write_amplification(),
            seeks: buckets
                .into_iter()
                .map(|b| (b, count(&p.ahead, b), count(&p.back, b)))
                .collect(),
            zero_seeks: p.writes - p.random,
        })
    }
}

#[cfg(test)]
mod tests;
