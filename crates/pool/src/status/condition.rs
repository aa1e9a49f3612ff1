//! What is wrong with a pool.

use super::{FailingRequestStatus, OutageReserve, PoolEvent};
use crate::commit::error::SuspendReason;

/// What is wrong with a pool; the first that applies, the gravest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolCondition {
    /// It takes no more writes.
    Suspended(SuspendReason),
    /// Some data cannot be read.
    DataLost,
    /// All devices are there, and some are being rebuilt.
    Rebuilding,
    /// The operator took devices offline.
    DevicesOffline,
    /// Devices are missing or have failed.
    DevicesFailed {
        /// The last that happened.
        last: Option<PoolEvent>,
    },
    /// The object store answers no request.
    StoreSilent {
        /// The device in it.
        device: String,
        /// Since when, in seconds.
        secs: u64,
        /// What the last request failed with; none if none did.
        error: Option<String>,
        /// How long durable writes go on.
        reserve: Option<OutageReserve>,
    },
    /// A request to the object store fails again and again while others are answered.
    StoreRequestFails {
        /// The device in the store.
        device: String,
        /// The oldest such request.
        failing: FailingRequestStatus,
    },
    /// Operations on a device failed or gave wrong data, and the others made it good.
    DeviceErrors,
    /// Nothing.
    Well,
}
