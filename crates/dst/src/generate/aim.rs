//! Aims: what a scenario exercises in particular, beside the usual mix.

use clap::ValueEnum;
use forebay_sim::Rng;

/// What a scenario aims at. Nearly full pools and crashes in recovery are drawn apart from this.
/// `forebay-prove --help` prints these lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Aim {
    /// Nothing in particular.
    Mixed,
    /// Trims, zeroes and writes of parts of blocks that meet in one place.
    Parts,
    /// Requests that must be refused, thousands of them, some for want of space.
    Refusals,
    /// Disks fail and return, and once the pool is whole, others fail (only with --level within).
    Redundancy,
    /// Long requests, offsets beyond 2^32 blocks, properties of the pool.
    Sizes,
    /// Volumes that change while requests are in flight.
    Beside,
    /// A log that holds more than a group when it is replayed.
    Replay,
    /// Imports from the root before the newest, with --level within on disks that lie.
    Rewind,
    /// Long writes that wait for memory while their volume is cut.
    Throttle,
    /// Slow reads in a nearly full pool while segments are reused.
    SlowReads,
    /// Rot in a nearly full pool before the cleaner moves it (only with --level within).
    MovedRot,
    /// Writes that land at the same place of another row or segment (only with --level within).
    Misaddressed,
    /// Roots torn in both label areas.
    Roots,
    /// A thread that stands still in a call that blocks.
    Blocked,
    /// Disks that return while commands are late and others slow (only with --level within).
    Returns,
    /// Pools that are suspended by failures of many disks, wait, and are cleared.
    Suspension,
    /// Snapshots, clones and rollbacks while clients overwrite what they share.
    Snapshots,
    /// A pool in an object store (only with --level crash).
    Objects,
    /// De-duplicated and compressed volumes whose blocks have contents in common.
    Sharing,
    /// Log devices in memory that are restored, armed and saved under durable writes.
    Memory,
    /// Another machine takes the pool over while its owner stands still, or is cut off (only with
    /// --level crash or within).
    Takeover,
    /// Clients that go away while their requests are in flight.
    Canceled,
    /// Scrubs that are paused, go on after an export or a crash, and are stopped, while disks rot.
    Scrubs,
    /// Halves of a pool that are imported apart from each other, and of which one is kept (only
    /// with --level crash).
    Halves,
}

impl Aim {
    /// Every aim, and how many of a thousand scenarios have it.
    const SHARES: [(Aim, u64); 23] = [
        (Aim::Parts, 60),
        (Aim::Refusals, 15),
        (Aim::Redundancy, 60),
        (Aim::Sizes, 6),
        (Aim::Beside, 60),
        (Aim::Replay, 20),
        (Aim::Rewind, 30),
        (Aim::Throttle, 10),
        (Aim::SlowReads, 4),
        (Aim::MovedRot, 4),
        (Aim::Misaddressed, 30),
        (Aim::Roots, 30),
        (Aim::Blocked, 30),
        (Aim::Suspension, 40),
        (Aim::Returns, 12),
        (Aim::Snapshots, 60),
        (Aim::Objects, 40),
        (Aim::Sharing, 40),
        (Aim::Memory, 20),
        (Aim::Takeover, 40),
        (Aim::Canceled, 30),
        (Aim::Scrubs, 30),
        (Aim::Halves, 20),
    ];

    /// Draws an aim.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let mut drawn = rng.below(1000);
        for (aim, share) in Self::SHARES {
            if drawn < share {
                return aim;
            }
            drawn -= share;
        }
        Self::Mixed
    }
}
