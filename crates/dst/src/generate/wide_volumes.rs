//! Wide volumes: their snapshots have blocks in more leaves of the map than one group lets go of.
//!
//! A snapshot that is destroyed is partly there then, for as long as several groups take, and the
//! power fails meanwhile.

use forebay_sim::{CrashPoint, Rng};

use super::aim::Aim;
use super::boot::BootPlan;
use crate::scenario::{Act, Admin, Boot, Crash, Fates, SnapshotJob};
use crate::stamp::Fill;
use crate::subject::Manage;

/// How many of a thousand pools that aim at snapshots have such a volume.
const WIDE_PER_MILLE: u64 = 60;
/// Sectors of a leaf of the map.
const LEAF_SECTORS: u64 = 512 * 8;
/// A group lets go of 256 leaves.
const MIN_LEAVES: u64 = 260;
const MAX_LEAVES: u64 = 320;
/// Sectors of the writes that fill leaves.
const WRITE_SECTORS: u64 = 512;

/// The volumes of a pool that has a wide one; `None` leaves the usual ones.
pub(super) fn draw(rng: &mut Rng) -> Option<Vec<u64>> {
    rng.chance(WIDE_PER_MILLE).then(|| vec![rng.between(MIN_LEAVES, MAX_LEAVES) * LEAF_SECTORS])
}

/// True when the volumes of the pool are those of [`draw`].
pub(super) fn are_wide(plan: &BootPlan<'_>) -> bool {
    plan.aim == Aim::Snapshots && !plan.is_full && plan.volumes[0] >= MIN_LEAVES * LEAF_SECTORS
}

/// Takes the snapshot `number` between two sweeps over the volume, and destroys all there are.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, number: u32) {
    let rng = &mut plan.seed.derive("wide volumes").rng();
    // Few leaves are full: their blocks are all that is in some segments.
    let full = rng.between(2, 5);
    let first_full = rng.below(200);
    let sector = rng.below(LEAF_SECTORS / 8) * 8;
    let mut acts = Vec::new();
    for sweep in 0..2 {
        for leaf in 0..plan.volumes[0] / LEAF_SECTORS {
            let start = leaf * LEAF_SECTORS;
            let (first, end, count) = match (first_full..first_full + full).contains(&leaf) {
                true => (start, start + LEAF_SECTORS, WRITE_SECTORS),
                false => (start + sector, start + sector + 1, 8),
            };
            let write =
                |first| Act::Write { volume: 0, first, count, fua: false, fill: Fill::Noise };
            acts.extend((first..end).step_by(count as usize).map(write));
        }
        if sweep == 0 {
            acts.push(Act::Pause { ns: 1 << rng.between(26, 28) });
        }
    }
    boot.clients = vec![acts];
    boot.remote.retain(|client| *client == 0);
    let take = SnapshotJob::Take { volumes: vec![0], number };
    boot.admin = vec![
        Admin::Pause { ns: 1 << rng.between(24, 26) },
        Admin::Snapshot(take),
        Admin::Pause { ns: 1 << rng.between(28, 30) },
        Admin::Manage(Manage::Commit),
    ];
    let destroy = |number| Admin::Snapshot(SnapshotJob::Destroy { volume: 0, number });
    boot.admin.extend((0..=number).map(destroy));
    if rng.chance(700) {
        let point = CrashPoint::AfterSubmit(u64::MAX);
        let fates = Fates::Random(rng.u64());
        boot.crash = Some(Crash { in_work: true, ..Crash::at(point, fates) });
    }
}
