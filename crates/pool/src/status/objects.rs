//! What a pool shows of a device in an object store.

use forebay_device::ObjectStats;
use serde::{Deserialize, Serialize};

/// A device in an object store. Requests and bytes are counted since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsStatus {
    /// Objects that hold blocks.
    pub objects: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Bytes that wait in memory for their objects to be stored.
    pub waiting_bytes: u64,
    /// Requests that store an object, repeated ones included.
    pub puts: u64,
    /// Bytes of these.
    pub put_bytes: u64,
    /// Requests for an object or a part of one.
    pub gets: u64,
    /// Bytes that they brought.
    pub got_bytes: u64,
    /// Requests for names.
    pub lists: u64,
    /// Objects that were deleted.
    pub deletes: u64,
    /// Requests that were made again because the store did not answer.
    pub retries: u64,
}

impl From<ObjectStats> for ObjectsStatus {
    fn from(stats: ObjectStats) -> Self {
        let ObjectStats { objects, stored_bytes, waiting_bytes, puts, put_bytes, gets, .. } = stats;
        let ObjectStats { got_bytes, lists, deletes, retries, .. } = stats;
        Self {
            objects,
            stored_bytes,
            waiting_bytes,
            puts,
            put_bytes,
            gets,
            got_bytes,
            lists,
            deletes,
            retries,
        }
    }
}
