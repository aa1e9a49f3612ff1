//! What a sequence of device writes looks like by the rules of `iopattern` and `seeksize`.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Seeks from a power of two of sectors up to twice as far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeks {
    /// Lower end of the distance, in sectors of 512 bytes.
    pub sectors: u64,
    /// Towards higher addresses.
    pub ahead: u64,
    /// Towards lower addresses.
    pub back: u64,
}

/// Counts over a sequence of writes, in the order in which they were sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Writes that do not start where the write before ended; the first is not counted.
    pub random: u64,
    /// Seeks that are not zero, by distance.
    pub seeks: Vec<Seeks>,
    /// Writes by size in sectors of 512 bytes.
    pub sizes: Vec<(u64, u64)>,
}

impl Pattern {
    /// Random writes in percent of all that have one before them.
    #[must_use]
    pub fn random_percent(&self) -> f64 {
        percent(self.random, self.writes.saturating_sub(1))
    }

    /// Mean size of a write in bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.writes.max(1) as f64
    }

    /// Writes without any seek.
    #[must_use]
    pub fn zero_seeks(&self) -> u64 {
        self.writes.saturating_sub(1) - self.random
    }

    /// Seeks ahead by less than 128 KiB, ahead by more, and back, in percent of all writes that
    /// have one before them.
    #[must_use]
    pub fn directions_percent(&self) -> [f64; 3] {
        const NEAR_SECTORS: u64 = (128 << 10) / 512;
        let count = |of: &dyn Fn(&Seeks) -> u64| self.seeks.iter().map(of).sum::<u64>();
        let near = count(&|s| if s.sectors < NEAR_SECTORS { s.ahead } else { 0 });
        let far = count(&|s| if s.sectors < NEAR_SECTORS { 0 } else { s.ahead });
        let back = count(&|s| s.back);
        [near, far, back].map(|n| percent(n, self.writes.saturating_sub(1)))
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}

/// Takes writes one after another.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternCounter {
    end: Option<u64>,
    writes: u64,
    bytes: u64,
    random: u64,
    ahead: BTreeMap<u64, u64>,
    back: BTreeMap<u64, u64>,
    sizes: BTreeMap<u64, u64>,
}

impl PatternCounter {
    pub(super) fn note(&mut self, offset_bytes: u64, len_bytes: u64) {
        self.writes += 1;
        self.bytes += len_bytes;
        *self.sizes.entry(len_bytes / 512).or_default() += 1;
        if let Some(end) = self.end.filter(|end| *end != offset_bytes) {
            self.random += 1;
            let sectors = offset_bytes.abs_diff(end) / 512;
            let bucket = 1 << sectors.max(1).ilog2();
            let side = if offset_bytes > end { &mut self.ahead } else { &mut self.back };
            *side.entry(bucket).or_default() += 1;
        }
        self.end = Some(offset_bytes + len_bytes);
    }

    pub(super) fn pattern(self) -> Pattern {
        let buckets: BTreeSet<u64> = self.ahead.keys().chain(self.back.keys()).copied().collect();
        let count = |side: &BTreeMap<u64, u64>, b: u64| side.get(&b).copied().unwrap_or_default();
        let seeks = buckets.into_iter().map(|sectors| {
            let (ahead, back) = (count(&self.ahead, sectors), count(&self.back, sectors));
            Seeks { sectors, ahead, back }
        });
        Pattern {
            writes: self.writes,
            bytes: self.bytes,
            random: self.random,
            seeks: seeks.collect(),
            sizes: self.sizes.into_iter().collect(),
        }
    }
}
