//! The aim "rewind": what an older root needs is given up by the newest, and the power fails while
//! an import leaves that one behind.

use forebay_sim::{CrashPoint, Rng};

use super::Aim;
use super::boot::{BootPlan, commits};
use crate::fault_plan::Level;
use crate::scenario::{Act, Boot, Crash, Fates};
use crate::stamp::Fill;

/// How many of a thousand boots overwrite all volumes between commits.
const SWEEPS_PER_MILLE: u64 = 500;
/// How many of a thousand boots that rewind are cut in that import.
const CUTS_PER_MILLE: u64 = 500;

/// Changes some boots of the aim at level crash.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, level: Level) {
    if plan.aim != Aim::Rewind || level != Level::CrashOnly {
        return;
    }
    let rng = &mut plan.seed.derive("rewinds").rng();
    let sweeps = !plan.is_full && rng.chance(SWEEPS_PER_MILLE);
    if sweeps {
        sweep(boot, plan, rng);
    }
    let is_cut = boot.rewinds && rng.chance(CUTS_PER_MILLE);
    let after_flush = CrashPoint::AfterFlush(rng.between(1, 4 * plan.disks));
    let (point, in_work) = match rng.below(3) {
        0 if is_cut => (CrashPoint::AfterSubmit(rng.between(20, 160)), false),
        _ if is_cut => (after_flush, false),
        0 if sweeps => (after_flush, true),
        _ => return,
    };
    boot.crash = Some(Crash { in_work, ..Crash::at(point, Fates::Random(rng.u64())) });
}

/// Overwrites all volumes from their beginnings to their ends several times while others write:
/// whole segments are empty, and free once no root needs them.
fn sweep(boot: &mut Boot, plan: &BootPlan<'_>, rng: &mut Rng) {
    let step: u64 = 1 << rng.between(8, 10);
    let fua = *rng.pick(&[0, 100, 300]);
    let mut acts = Vec::new();
    for _ in 0..rng.between(3, 8) {
        for (volume, sectors) in (0..).zip(plan.volumes.iter().copied()) {
            for first in (0..sectors).step_by(step as usize) {
                let count = (sectors - first).min(step);
                let (fua, fill) = (rng.chance(fua), Fill::Noise);
                acts.push(Act::Write { volume, first, count, fua, fill });
            }
        }
        acts.push(Act::Pause { ns: 1 << rng.between(18, 23) });
    }
    boot.clients.push(acts);
    boot.admin = commits(24, 22, rng);
}
