//! Seek distances: how far a request begins from the end of the one before, in sectors.
//!
//! The buckets are those of DTrace's `quantize()`: 0, and for each power of two the values from it
//! up to the next one; negative values mirror them.

use forebay_units::{FixedMap, SECTOR_BYTES};

use crate::event::{DeviceIndex, Event, Op, Stage};

/// Positions that are kept; pairs of thread and device beyond that have none.
const MAX_POSITIONS: usize = 1 << 20;

/// Whose last position a request is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKey {
    /// The same thread's on the same device: `seeksize.d`, with its treatment of position 0 and of
    /// distances beyond 31 bits.
    ThreadAndDevice,
    /// Any thread's on the same device.
    Device,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub struct SeekOptions {
    /// Whose last position.
    pub key: SeekKey,
    /// Whether a seek backwards has a negative distance. The original has none.
    pub is_signed: bool,
    /// The stage at which a request counts. Events of [`Stage::Request`] always count.
    pub stage: Stage,
    /// Only these; `None` for all.
    pub only: Option<Op>,
    /// Whether flushes and empty requests count as requests at sector 0.
    pub counts_empty: bool,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The value next to zero, in sectors: 0, or a power of two with either sign.
    pub sectors: i64,
    /// How many.
    pub count: u64,
}

/// Buckets on either side of zero.
const SIDE: usize = 64;

#[derive(Clone)]
struct Histogram {
    counts: Box<[u64; 2 * SIDE + 1]>,
    /// Sum of bucket times count, by which DTrace sorts.
    weight: i128,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; 2 * SIDE + 1]), weight: 0 }
    }
}

/// The value next to zero of the bucket at `at`.
fn value_of(at: usize) -> i64 {
    match at.cmp(&SIDE) {
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Greater => 1i64.checked_shl((at - SIDE - 1) as u32).unwrap_or(i64::MAX),
        std::cmp::Ordering::Less => -1i64.checked_shl((SIDE - at - 1) as u32).unwrap_or(i64::MAX),
    }
}

impl Histogram {
    fn add(&mut self, distance: i64) {
        let magnitude = distance.unsigned_abs();
        let step = magnitude.checked_ilog2().map_or(0, |log| log as usize + 1);
        let at = if distance < 0 { SIDE - step } else { SIDE + step };
        self.counts[at] += 1;
        self.weight += i128::from(value_of(at));
    }

    fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.weight += other.weight;
    }

    /// From the first bucket that has something to the last.
    fn buckets(&self) -> Vec<Bucket> {
        let first = self.counts.iter().position(|count| *count > 0);
        let last = self.counts.iter().rposition(|count| *count > 0);
        let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
        let bucket = |at: usize| Bucket { sectors: value_of(at), count: self.counts[at] };
        (first..=last).map(bucket).collect()
    }
}

/// The distances of one thread, or of one device.
#[derive(Clone, Debug)]
pub struct SeekGroup {
    /// The thread, when the key is the thread.
    pub pid: Option<u32>,
    /// The device, when the key is the device.
    pub device: Option<DeviceIndex>,
    /// From the first bucket with something to the last.
    pub buckets: Vec<Bucket>,
}

/// The seek distances of a stream of events.
pub struct Seeks {
    options: SeekOptions,
    /// First sector behind the latest request.
    ends: FixedMap<(u32, u32), u64>,
    groups: FixedMap<u32, Histogram>,
}

impl Seeks {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(options: SeekOptions) -> Self {
        Self { options, ends: FixedMap::default(), groups: FixedMap::default() }
    }

    /// Counts an event.
    pub fn event(&mut self, event: &Event) {
        let is_at_stage = event.stage == self.options.stage || event.stage == Stage::Request;
        let is_wanted = self.options.only.is_none_or(|only| only == event.op);
        let has_place = event.has_position() || self.options.counts_empty;
        if !is_at_stage || !is_wanted || !has_place {
            return;
        }
        let is_by_thread = self.options.key == SeekKey::ThreadAndDevice;
        let pid = if is_by_thread { event.pid } else { 0 };
        let (start, sectors) = (event.offset_bytes / SECTOR_BYTES, event.len_bytes / SECTOR_BYTES);
        let key = (pid, event.device.0);
        let before = match self.ends.get_mut(&key) {
            Some(end) => Some(std::mem::replace(end, start + sectors)),
            None => {
                if self.ends.len() < MAX_POSITIONS {
                    self.ends.insert(key, start + sectors);
                }
                None
            }
        };
        // To the original, a position of 0 is none.
        let before = before.filter(|end| !is_by_thread || *end != 0);
        if let Some(end) = before {
            let group = if is_by_thread { event.pid } else { event.device.0 };
            let distance = self.distance(end, start);
            self.groups.entry(group).or_default().add(distance);
        }
    }

    fn distance(&self, end: u64, start: u64) -> i64 {
        let difference = start.wrapping_sub(end) as i64;
        let is_forward = match self.options.key {
            // The original casts the difference to an int before it looks at its sign.
            SeekKey::ThreadAndDevice if !self.options.is_signed => difference as i32 > 0,
            _ => difference > 0,
        };
        let keeps_sign = self.options.is_signed || is_forward;
        if keeps_sign { difference } else { difference.wrapping_neg() }
    }

    /// All distances together.
    #[must_use]
    pub fn total(&self) -> Vec<Bucket> {
        let mut all = Histogram::default();
        for group in self.groups.values() {
            all.merge(group);
        }
        all.buckets()
    }

    /// Each thread or device, in the order in which DTrace prints an aggregation: the sum of its
    /// buckets upwards.
    #[must_use]
    pub fn groups(&self) -> Vec<SeekGroup> {
        let mut sorted: Vec<(&u32, &Histogram)> = self.groups.iter().collect();
        sorted.sort_by_key(|(group, histogram)| (histogram.weight, **group));
        let is_by_thread = self.options.key == SeekKey::ThreadAndDevice;
        let group = |(number, histogram): (&u32, &Histogram)| SeekGroup {
            pid: is_by_thread.then_some(*number),
            device: (!is_by_thread).then_some(DeviceIndex(*number)),
            buckets: histogram.buckets(),
        };
        sorted.into_iter().map(group).collect()
    }
}

#[cfg(test)]
mod tests;
