//! Data disks in object stores: which pools have them, and which objects a store loses.

use forebay_sim::Rng;

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::TimedLoss;
use crate::subject::{LogShape, PoolSpec};

/// How many of a thousand scenarios with one data disk have it in an object store.
const OBJECTS_PER_MILLE: u64 = 500;
/// The same at level beyond, where the store loses objects.
const LOSSES_PER_MILLE: u64 = 300;
/// Most objects that a store loses in a boot.
const MAX_LOST: u64 = 3;

/// Puts the data disk of a pool into an object store. At level crash nothing but the power fails
/// then: a store has redundancy of its own. At level beyond it loses objects.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let per_mille = match level {
        Level::CrashOnly => OBJECTS_PER_MILLE,
        Level::Beyond => LOSSES_PER_MILLE,
        Level::Within | Level::Lies => return,
    };
    let is_alone = spec.data_disks == 1 && spec.spare_disks == 0;
    let is_usual = !matches!(aim, Aim::Suspension | Aim::Blocked | Aim::SlowReads);
    let is_drawn = aim == Aim::Objects || (is_usual && rng.chance(per_mille));
    if is_alone && is_drawn {
        spec.in_objects = true;
        // As the product has it for these: the log must not be in a store.
        if spec.log == LogShape::None {
            spec.log = LogShape::One;
        }
        spec.properties.insert("device_timeout".to_owned(), "3600".to_owned());
    }
}

/// Draws the objects that the store loses in a boot.
pub(super) fn draw_losses(plan: &BootPlan<'_>, commands: u64) -> Vec<TimedLoss> {
    if !plan.spec.in_objects || plan.fault_plan.is_survivable() {
        return Vec::new();
    }
    let rng = &mut plan.seed.derive("lost objects").rng();
    let loss = |rng: &mut Rng| {
        let at_command = if rng.chance(250) { 0 } else { rng.between(1, commands.min(1 << 12)) };
        TimedLoss { at_command, pick: rng.u64() }
    };
    (0..rng.between(0, MAX_LOST)).map(|_| loss(rng)).collect()
}
