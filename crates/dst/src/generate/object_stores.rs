//! Data disks in object stores: which pools have them.

use forebay_sim::Rng;

use super::aim::Aim;
use crate::fault_plan::Level;
use crate::subject::{LogShape, PoolSpec};

/// How many of a thousand scenarios with one data disk have it in an object store.
const OBJECTS_PER_MILLE: u64 = 500;

/// Puts the data disk of a pool into an object store. Nothing but the power fails then: a store
/// has redundancy of its own.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let is_alone = spec.data_disks == 1 && spec.spare_disks == 0;
    let is_usual = !matches!(aim, Aim::Suspension | Aim::Blocked | Aim::SlowReads);
    let is_drawn = aim == Aim::Objects || (is_usual && rng.chance(OBJECTS_PER_MILLE));
    if level == Level::CrashOnly && is_alone && is_drawn {
        spec.in_objects = true;
        // As the product has it for these: the log must not be in a store.
        if spec.log == LogShape::None {
            spec.log = LogShape::One;
        }
        spec.properties.insert("device_timeout".to_owned(), "3600".to_owned());
    }
}
