//! The shape of a pool: its disks, how data is spread over them, and where its log lives.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How data is spread over the data disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Raid {
    /// No redundancy.
    Raid0,
    /// Each disk has a full copy.
    Mirror,
    /// One parity column.
    Z1,
    /// Two parity columns.
    Z2,
    /// Three parity columns.
    Z3,
}

impl Raid {
    /// How many of `disks` data disks may fail.
    #[must_use]
    pub fn parity(self, disks: usize) -> usize {
        match self {
            Raid::Raid0 => 0,
            Raid::Mirror => disks - 1,
            Raid::Z1 => 1,
            Raid::Z2 => 2,
            Raid::Z3 => 3,
        }
    }
}

/// Where the intent log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogShape {
    /// On the data disks.
    None,
    /// On one log disk.
    One,
    /// On two mirrored log disks.
    Mirror,
    /// On two log disks: two rings.
    Two,
    /// On two mirrors of log disks: two rings.
    TwoMirrors,
}

impl LogShape {
    /// Number of log disks.
    #[must_use]
    pub fn disks(self) -> usize {
        match self {
            LogShape::None => 0,
            LogShape::One => 1,
            LogShape::Mirror | LogShape::Two => 2,
            LogShape::TwoMirrors => 4,
        }
    }

    /// Number of disks of each ring: they have equal contents.
    #[must_use]
    pub fn sides(self) -> usize {
        match self {
            LogShape::Mirror | LogShape::TwoMirrors => 2,
            LogShape::None | LogShape::One | LogShape::Two => 1,
        }
    }
}

/// The shape of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// How data is spread over the data disks.
    pub raid: Raid,
    /// Where the intent log lives.
    pub log: LogShape,
    /// Number of data disks.
    pub data_disks: usize,
    /// Number of groups that the data disks form, with as many disks each.
    #[serde(default = "one")]
    pub groups: usize,
    /// How the last group spreads data, where it does so in another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_group: Option<Raid>,
    /// Number of disks that are outside the pool at first.
    pub spare_disks: usize,
    /// How many of these, the first ones, the pool may take when one of its own fails.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hot_spares: usize,
    /// Number of cache devices; they are the last disks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_disks: usize,
    /// How many log disks, the first ones, are backup devices of log devices in memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_logs: usize,
    /// How many log disks, the last ones, are on other hosts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remote_logs: usize,
    /// How many log mirrors, the first ones, have memory for their first side, which nothing but
    /// the other side protects.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mirrored_memory: usize,
    /// Data disks are in object stores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_objects: bool,
    /// Data disks and spares that are in object stores as well, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<usize>,
    /// Size of a data disk, spare or cache device.
    pub data_bytes: u64,
    /// Size of a log disk.
    pub log_bytes: u64,
    /// Segment size; a hint.
    pub segment_bytes: u64,
    /// Properties of the pool that are not the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// Seed for what the subject draws when it creates a pool, such as its id.
    pub seed: u64,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn one() -> usize {
    1
}

impl PoolSpec {
    /// How many disks of every group may fail.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.groups_with_parity().map(|(_, parity)| parity).min().unwrap_or(0)
    }

    /// Numbers of the disks of each group, and how many of them may fail.
    pub fn groups_with_parity(&self) -> impl Iterator<Item = (Range<usize>, usize)> + use<> {
        self.groups_with_raid().map(|(disks, raid)| {
            let parity = raid.parity(disks.len());
            (disks, parity)
        })
    }

    /// Numbers of the disks of each group, and how it spreads data.
    pub fn groups_with_raid(&self) -> impl Iterator<Item = (Range<usize>, Raid)> + use<> {
        let (raid, last, count) = (self.raid, self.last_group, self.groups);
        let of = move |group| last.filter(|_| group + 1 == count).unwrap_or(raid);
        self.group_ranges().enumerate().map(move |(group, disks)| (disks, of(group)))
    }

    /// Numbers of the disks of each group.
    pub fn group_ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let width = self.data_disks / self.groups;
        (0..self.groups).map(move |group| group * width..(group + 1) * width)
    }

    /// Numbers of the disks of each log ring.
    pub fn ring_ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (log, sides) = (self.log_range(), self.log.sides());
        log.step_by(sides).map(move |first| first..first + sides)
    }

    /// True when a disk is in an object store.
    #[must_use]
    pub fn is_in_store(&self, disk: usize) -> bool {
        (self.in_objects && disk < self.data_disks) || self.stores.contains(&disk)
    }

    /// True when some disks are in object stores.
    #[must_use]
    pub fn has_stores(&self) -> bool {
        self.in_objects || !self.stores.is_empty()
    }

    /// Number of all disks: data, then log, then spares, then cache devices.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.data_disks + self.log.disks() + self.spare_disks + self.cache_disks
    }

    /// Numbers of the cache devices.
    #[must_use]
    pub fn cache_range(&self) -> Range<usize> {
        self.disks() - self.cache_disks..self.disks()
    }

    /// Numbers of the disks that the pool may take when one of its own fails.
    #[must_use]
    pub fn hot_spare_range(&self) -> Range<usize> {
        let first = self.data_disks + self.log.disks();
        first..first + self.hot_spares
    }

    /// Numbers of the log disks that are backup devices of log devices in memory.
    #[must_use]
    pub fn memory_log_range(&self) -> Range<usize> {
        let first = self.log_range().start;
        first..first + self.memory_logs
    }

    /// Numbers of the log disks that are memory, which the other side of their mirror protects.
    pub fn mirrored_memory_disks(&self) -> impl Iterator<Item = usize> + use<> {
        self.ring_ranges().take(self.mirrored_memory).map(|ring| ring.start)
    }

    /// Numbers of the log disks on other hosts.
    #[must_use]
    pub fn remote_log_range(&self) -> Range<usize> {
        let end = self.log_range().end;
        end - self.remote_logs..end
    }

    /// Numbers of the log disks.
    #[must_use]
    pub fn log_range(&self) -> Range<usize> {
        self.data_disks..self.data_disks + self.log.disks()
    }
}
