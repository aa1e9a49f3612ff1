//! Disks on which roots and configurations take long to write, while all else is fast: what happens
//! between two steps of a commit, between the labels of two disks, or between an answer to one
//! command and the next.

use forebay_sim::Latency;
use forebay_sim::faults::Fault;

use super::aim::Aim;
use super::boot::BootPlan;
use crate::scenario::{Boot, TimedFault};

/// How many of a thousand boots have such disks.
const BOOTS_PER_MILLE: u64 = 150;
/// The label areas are at both ends of a disk.
const LABELS_BYTES: u64 = 1 << 20;

/// Makes the labels of some disks slow, in some boots.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("slow labels").rng();
    // There a fault begins an outage, a heartbeat must be in time, or no disk may be slow.
    let is_apart = matches!(plan.aim, Aim::Suspension | Aim::Takeover | Aim::Blocked);
    if is_apart || plan.spec.has_stores() || !rng.chance(BOOTS_PER_MILLE) {
        return;
    }
    let max_ns = 1 << rng.between(20, 28);
    let at_command = rng.between(1, 40);
    let spec = plan.spec;
    let sizes = std::iter::repeat_n(spec.data_bytes, spec.data_disks)
        .chain(std::iter::repeat_n(spec.log_bytes, spec.log.disks()));
    let are_all_slow = rng.chance(500);
    for (disk, size_bytes) in sizes.enumerate() {
        if !are_all_slow && rng.chance(500) {
            continue;
        }
        let latency = Latency::Uniform { min_ns: max_ns / 16, max_ns };
        for first_bytes in [0, size_bytes - LABELS_BYTES] {
            let end_bytes = first_bytes + LABELS_BYTES;
            let fault = Fault::SlowArea { first_bytes, end_bytes, latency };
            boot.faults.push(TimedFault { at_command, disk, fault });
        }
    }
}
