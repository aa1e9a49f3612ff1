//! Events that the log reports to the pool.

use forebay_device::DeviceError;
use forebay_units::DeviceId;

/// Something that the pool must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A device failed a write. It must not be used again before it is resilvered.
    SideFailed {
        /// The device.
        device: DeviceId,
        /// Its error.
        error: DeviceError,
    },
    /// The log stopped because a side failed: commit, release, then resume without that side.
    Paused,
    /// Space runs low, or records wait for space: commit a group soon.
    Pressure,
}
