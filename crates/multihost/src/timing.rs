//! Time limits of multihost protection, and the clock that they use.

use forebay_rt as rt;
use forebay_units::Nanos;

/// Interval between two heartbeats of an owner.
pub const HEARTBEAT_INTERVAL: Nanos = Nanos::from_secs(1);
/// Interval between two polls while the owner cannot prove ownership.
pub const RETRY_INTERVAL: Nanos = Nanos::from_millis(100);
/// How long a read of the heartbeat permits writes.
pub const HEARTBEAT_VALID_FOR: Nanos = Nanos::from_secs(3);
/// How long an import watches the heartbeats of another owner. After a takeover it waits as long
/// again for an old owner that resumes: that owner reads the new heartbeat and stops.
pub const ACTIVITY_CHECK_DURATION: Nanos = Nanos::from_secs(4);
/// Interval between two heartbeats of an owner on a device in an object store, where each is a
/// request that costs money.
pub const STORE_HEARTBEAT_INTERVAL: Nanos = Nanos::from_secs(5);
/// How long an import watches the heartbeats when one of them is in an object store.
pub const STORE_ACTIVITY_CHECK_DURATION: Nanos = Nanos::from_secs(10);
/// Age of a gap from which one device confirms ownership: another owner has renewed its heartbeat
/// by then.
pub(crate) const ONE_DEVICE_CONFIRMS_AFTER: Nanos = Nanos::from_millis(1500);
/// How long a poll waits for one device before it asks the next one.
pub(crate) const ANSWER_TIMEOUT: Nanos = Nanos::from_millis(300);
/// Upper bound of one poll: its first answer must stay valid until the next poll ends.
pub(crate) const MAX_POLL_DURATION: Nanos = Nanos::from_millis(900);

// The old owner has stopped writing before the new one begins.
const _: () = assert!(HEARTBEAT_VALID_FOR.0 < ACTIVITY_CHECK_DURATION.0);
// An owner that looks a second late, at a store that answers slowly, is still seen.
const _: () = assert!(
    STORE_HEARTBEAT_INTERVAL.0 + 3 * HEARTBEAT_INTERVAL.0 < STORE_ACTIVITY_CHECK_DURATION.0
);
const _: () = assert!(ONE_DEVICE_CONFIRMS_AFTER.0 > HEARTBEAT_INTERVAL.0);

/// The clock that heartbeats age by. It includes the time for which the machine was suspended.
/// Device deadlines must not use it: all of them would have passed when the machine wakes up.
pub(crate) fn clock() -> Nanos {
    rt::now_with_suspension()
}
