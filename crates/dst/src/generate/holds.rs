//! Tags of snapshots: set, taken away, and in the way of what would destroy a snapshot.

use forebay_sim::Rng;

use super::renames::after_its_instant;
use crate::scenario::{Admin, Boot, SnapshotJob};

/// How many of a thousand boots of scenarios with snapshots have tags.
const BOOTS_PER_MILLE: u64 = 400;
/// Fewer than so many tags are set and taken away in a boot.
const MOST_JOBS: u64 = 8;
/// Tags of a snapshot.
const TAGS: u64 = 3;

/// Sets tags of the snapshots `taken` and takes them away, between the other jobs of a boot.
pub(super) fn apply(boot: &mut Boot, taken: &[(u32, u32)], may_roll_back: bool, rng: &mut Rng) {
    if taken.is_empty() || !rng.chance(BOOTS_PER_MILLE) {
        return;
    }
    let from = taken.len().saturating_sub(6) as u64;
    for _ in 0..rng.between(1, MOST_JOBS) {
        let (volume, number) = taken[rng.between(from, taken.len() as u64 - 1) as usize];
        let first = after_its_instant(&boot.admin, number);
        let at = first + rng.below((boot.admin.len() - first) as u64 + 1) as usize;
        let (tag, release) = (rng.below(TAGS) as u32, rng.chance(350));
        let hold = SnapshotJob::Hold { volume, number, tag, release };
        let pause = Admin::Pause { ns: 1 << rng.between(12, 22) };
        let mut jobs = vec![pause, Admin::Snapshot(hold)];
        if rng.chance(200) {
            // A rollback to an older one would take it along.
            let older = taken.iter().rfind(|other| other.0 == volume && other.1 < number);
            jobs.push(Admin::Snapshot(match !may_roll_back || rng.chance(500) {
                true => SnapshotJob::Destroy { volume, number },
                false => {
                    let number = older.map_or(number, |(_, number)| *number);
                    SnapshotJob::RollBack { volume, number, in_use: false }
                }
            }));
        }
        boot.admin.splice(at..at, jobs);
    }
}
