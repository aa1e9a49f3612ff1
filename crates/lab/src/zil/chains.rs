//! Synchronous clients of many ZFS datasets: each commit is the writes of its chain, then a flush.

use super::chain::{Chain, LogSpace};
use super::pattern::PatternCounter;
use super::{ChainRules, Client, Zil, ZilOutcome};
use crate::bench::Bench;
use crate::responses::Times;
use crate::{LabError, hash, shrink};
use forebay_flash::{MediaSpec, Request};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client commits.
    Asked(u32),
    /// All writes of a commit are done.
    Written(u32),
    /// The flush behind them is done.
    Flushed(u32),
}

struct Datasets<'a> {
    zil: &'a Zil,
    bench: Bench,
    space: LogSpace,
    pattern: PatternCounter,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    chains: Vec<Chain>,
    clients: Vec<Client>,
    /// When each dataset's commit was asked for.
    asked_ns: Vec<u64>,
    times: Times,
    done: u64,
    sum_ns: u128,
    committed_bytes: u64,
}

/// Runs `zil` over chains on a device that has been filled once.
pub(super) fn run(zil: &Zil, rules: ChainRules) -> Result<ZilOutcome, LabError> {
    let (device, scale) = shrink::shrink(&zil.device, zil.scale)?;
    let mut bench = Bench::new(&device, scale, zil.seed)?;
    let mut space = LogSpace::new(rules, bench.capacity_bytes());
    if !space.is_enough() {
        let allowed = "a device of at least 128 MiB";
        return Err(LabError::field("zil", "device", bench.capacity_bytes(), allowed));
    }
    if matches!(device.media, MediaSpec::Flash(_)) {
        bench.fill(1 << 20, 8)?;
    }
    let chain = |dataset: u32| {
        let spread = hash::mix(zil.seed ^ u64::from(dataset)) as usize % 64;
        Chain::new(rules, spread, &mut space)
    };
    let chains = (0..zil.datasets).map(chain).collect();
    let mut datasets = Datasets {
        zil,
        bench,
        space,
        pattern: PatternCounter::default(),
        events: BinaryHeap::new(),
        chains,
        clients: (0..zil.datasets).map(|dataset| Client::new(zil, dataset)).collect(),
        asked_ns: vec![0; zil.datasets as usize],
        times: Times::default(),
        done: 0,
        sum_ns: 0,
        committed_bytes: 0,
    };
    (0..zil.datasets).for_each(|dataset| datasets.think(dataset));
    datasets.run()
}

impl Datasets<'_> {
    fn think(&mut self, dataset: u32) {
        let ns = self.clients[dataset as usize].think_ns();
        self.events.push(Reverse((self.bench.now + ns, Event::Asked(dataset))));
    }

    fn commit(&mut self, dataset: u32) -> Result<(), LabError> {
        let len = self.clients[dataset as usize].len_bytes();
        self.asked_ns[dataset as usize] = self.bench.now;
        self.committed_bytes += len;
        let mut last = self.bench.now;
        for (offset, len) in self.chains[dataset as usize].commit(len, &mut self.space) {
            self.pattern.note(offset, len);
            last = last.max(self.bench.submit(&Request::write(offset, len))?.at.0);
        }
        self.events.push(Reverse((last, Event::Written(dataset))));
        Ok(())
    }

    fn step(&mut self, event: Event) -> Result<(), LabError> {
        match event {
            Event::Asked(dataset) => self.commit(dataset)?,
            Event::Written(dataset) => {
                let at = self.bench.submit(&Request::flush())?.at.0;
                self.events.push(Reverse((at, Event::Flushed(dataset))));
            }
            Event::Flushed(dataset) => {
                let took = self.bench.now - self.asked_ns[dataset as usize];
                self.done += 1;
                self.sum_ns += u128::from(took);
                self.times.note(took);
                self.think(dataset);
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<ZilOutcome, LabError> {
        let (begin, first) = (self.bench.now, self.bench.stats());
        while self.done < self.zil.commits {
            let Reverse((at, event)) = self.events.pop().expect("clients never stop");
            self.bench.now = self.bench.now.max(at);
            self.step(event)?;
        }
        let stats = self.bench.stats().since(&first);
        let pattern = self.pattern.pattern();
        let seconds = (self.bench.now - begin).max(1) as f64 / 1e9;
        Ok(ZilOutcome {
            commits_s: self.done as f64 / seconds,
            mean_ms: self.sum_ns as f64 / self.done.max(1) as f64 / 1e6,
            commits: self.times.percentiles(),
            overhead: pattern.bytes as f64 / self.committed_bytes.max(1) as f64,
            amplification: stats.write_amplification(),
            pattern,
        })
    }
}
