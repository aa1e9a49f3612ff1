//! Constraints: what the generator must not draw.

use super::aim::Aim;
use crate::fault_plan::Level;
use crate::subject::PoolSpec;

/// What is fixed of a scenario; what is `None` is drawn.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// The shape of the pool.
    pub spec: Option<PoolSpec>,
    /// How much may break.
    pub level: Option<Level>,
    /// How many boots.
    pub boots: Option<u64>,
    /// How many clients.
    pub clients: Option<u64>,
    /// How many acts each client performs in a boot.
    pub acts: Option<u64>,
    /// An administrator works beside the clients.
    pub admin: bool,
    /// The administrator also manages devices; the subject must support that.
    pub manage: bool,
    /// A nearly full pool that is overwritten until the cleaner must move blocks.
    pub full: Option<bool>,
    /// Power cuts strike recoveries while these commit. Afterwards struck disks lose some of the
    /// first writes of the next recovery, so that older data lies in their place.
    pub crash_in_recovery: Option<bool>,
    /// What the scenario exercises in particular.
    pub aim: Option<Aim>,
    /// How many of a thousand clients connect through NBD.
    pub remote: Option<u64>,
}
