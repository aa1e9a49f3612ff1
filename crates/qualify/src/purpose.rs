//! What the device is to be used for: the load of a log, and the limits that a verdict applies.

use serde::{Deserialize, Serialize};

use crate::Sync;

/// The software whose log the device would hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// ZFS: a separate log device (SLOG).
    Zil,
    /// A database's write-ahead log, as PostgreSQL writes it.
    Wal,
    /// etcd.
    Etcd,
    /// A Ceph OSD's journal, or its WAL.
    Ceph,
    /// The intent log of a Forebay pool.
    #[default]
    Forebay,
}

/// A figure that a verdict compares with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Median response of durable writes, in microseconds.
    P50Us,
    /// Their 99th percentile, in microseconds.
    P99Us,
    /// Their 99.9th percentile, in microseconds.
    P999Us,
    /// Durable writes a second.
    Iops,
}

impl Figure {
    /// As a reader knows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P50Us => "p50 of durable writes",
            Self::P99Us => "p99 of durable writes",
            Self::P999Us => "p99.9 of durable writes",
            Self::Iops => "durable writes a second",
        }
    }

    /// Its unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::P50Us | Self::P99Us | Self::P999Us => "µs",
            Self::Iops => "1/s",
        }
    }

    /// Whether more is better.
    #[must_use]
    pub fn wants_more(self) -> bool {
        self == Self::Iops
    }
}

/// A limit of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is compared.
    pub figure: Figure,
    /// Requests in flight.
    pub queue_depth: u32,
    /// The most, or for rates the least.
    pub limit: f64,
    /// Who set it.
    pub source: &'static str,
}

const OWN: &str = "a choice of this project";
const ETCD: &str = "etcd's documentation: p99 of fdatasync below 10 ms";

const fn limit(figure: Figure, queue_depth: u32, limit: f64, source: &'static str) -> Threshold {
    Threshold { figure, queue_depth, limit, source }
}

const ZIL: &[Threshold] = &[
    limit(Figure::P99Us, 1, 1_000.0, OWN),
    limit(Figure::P999Us, 1, 5_000.0, OWN),
    limit(Figure::Iops, 1, 2_000.0, OWN),
    limit(Figure::Iops, 16, 5_000.0, OWN),
];
const WAL: &[Threshold] =
    &[limit(Figure::P50Us, 1, 1_000.0, OWN), limit(Figure::P99Us, 1, 5_000.0, OWN)];
const ETCD_LIMITS: &[Threshold] = &[limit(Figure::P99Us, 1, 10_000.0, ETCD)];
const CEPH: &[Threshold] =
    &[limit(Figure::Iops, 1, 2_000.0, OWN), limit(Figure::P99Us, 1, 2_000.0, OWN)];
const FOREBAY: &[Threshold] = &[
    limit(Figure::P99Us, 1, 1_000.0, OWN),
    limit(Figure::P999Us, 4, 5_000.0, OWN),
    limit(Figure::Iops, 4, 5_000.0, OWN),
];

impl Purpose {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Zil, Self::Wal, Self::Etcd, Self::Ceph, Self::Forebay];

    /// The word that names it on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zil => "zil",
            Self::Wal => "wal",
            Self::Etcd => "etcd",
            Self::Ceph => "ceph",
            Self::Forebay => "forebay",
        }
    }

    /// Bytes of a write. Traces of ZFS show 7 to 35 KB; etcd's 2,300 bytes are rounded up.
    #[must_use]
    pub fn block_bytes(self) -> u32 {
        match self {
            Self::Zil => 16 << 10,
            Self::Wal => 8 << 10,
            Self::Etcd | Self::Ceph | Self::Forebay => 4 << 10,
        }
    }

    /// Percent of the writes that go to a random place: with five file systems ZFS's log is 39 %
    /// random, the others write one stream.
    #[must_use]
    pub fn random_percent(self) -> u8 {
        if self == Self::Zil { 39 } else { 0 }
    }

    /// How it makes a write durable.
    #[must_use]
    pub fn sync(self) -> Sync {
        match self {
            Self::Zil | Self::Wal | Self::Etcd => Sync::Flush,
            Self::Ceph | Self::Forebay => Sync::Fua,
        }
    }

    /// The limits of the verdict.
    #[must_use]
    pub fn thresholds(self) -> &'static [Threshold] {
        match self {
            Self::Zil => ZIL,
            Self::Wal => WAL,
            Self::Etcd => ETCD_LIMITS,
            Self::Ceph => CEPH,
            Self::Forebay => FOREBAY,
        }
    }
}
