//! Data disks in object stores: which pools have them.

use super::aim::Aim;
use crate::fault_plan::Level;
use crate::subject::{LogShape, PoolSpec};

/// Puts the data disk of a pool into an object store, for the aim that asks for it. Nothing but the
/// power fails then: a store has redundancy of its own.
pub(super) fn apply(spec: &mut PoolSpec, level: Level, aim: Aim) {
    if level == Level::CrashOnly && aim == Aim::Objects && spec.data_disks == 1 {
        spec.in_objects = true;
        // As the product has it for these: the log must not be in a store.
        if spec.log == LogShape::None {
            spec.log = LogShape::One;
        }
        spec.properties.insert("device_timeout".to_owned(), "3600".to_owned());
    }
}
