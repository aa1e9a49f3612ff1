//! Power cuts: where they strike, and what becomes of unflushed writes.

use forebay_device::Operation;
use forebay_units::SECTOR_BYTES;
use serde::{Deserialize, Serialize};

use crate::Rng;

/// Where the power fails. Commands of all disks are counted together, from 1, since the last
/// [`World::power_on`](crate::World::power_on).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrashPoint {
    /// The n-th command never reaches its disk.
    BeforeSubmit(u64),
    /// The n-th command has reached its disk and is in flight.
    AfterSubmit(u64),
    /// The n-th command took effect, but the host never receives the completion.
    AfterComplete(u64),
    /// The n-th flush took effect, but the host never receives the completion. At this point a
    /// commit's data is mostly on media, and the root that makes it valid is not.
    AfterFlush(u64),
    /// So many commands have been submitted since the n-th flush took effect. After the last flush
    /// of a commit come the writes of its root to both label areas of every disk, all in flight.
    SinceFlush {
        /// The number of the flush.
        flush: u64,
        /// Submissions since then.
        commands: u64,
    },
    /// The first command event at or after this time of the runtime's clock, in nanoseconds.
    AtTime(u64),
}

/// What became of an unflushed write at a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// The whole write reached the media.
    Kept,
    /// None of the write reached the media.
    Lost,
    /// Only the first sectors reached the media.
    Prefix {
        /// How many sectors of 512 bytes.
        sectors: u64,
    },
    /// A random subset of the sectors reached the media.
    Scatter {
        /// The seed that selects the sectors.
        seed: u64,
    },
}

/// A write or discard that no flush had covered at a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// Number of the disk in the world.
    pub disk: usize,
    /// Kind of the command.
    pub operation: Operation,
    /// Start of its range.
    pub offset_bytes: u64,
    /// Length of its range.
    pub len_bytes: u64,
    /// The command had not completed.
    pub in_flight: bool,
    /// The command had the FUA flag.
    pub fua: bool,
}

/// Chooses fates as a power cut might: sometimes all lost or all kept, otherwise each write by
/// itself, some of them torn.
pub fn random_fates(rng: &mut Rng) -> impl FnMut(usize, &Unflushed) -> Fate + '_ {
    let mode = rng.below(10);
    let kept_per_mille = match mode {
        0 => 0,
        1 => 1000,
        _ => rng.between(50, 950),
    };
    let torn_per_mille = if mode < 3 { 0 } else { rng.below(400) };
    move |_, write| {
        let sectors = (write.len_bytes / SECTOR_BYTES).max(1);
        if rng.chance(torn_per_mille) {
            if rng.chance(500) {
                Fate::Prefix { sectors: rng.below(sectors + 1) }
            } else {
                Fate::Scatter { seed: rng.u64() }
            }
        } else if rng.chance(kept_per_mille) {
            Fate::Kept
        } else {
            Fate::Lost
        }
    }
}
