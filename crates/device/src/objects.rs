//! What a device in an object store shows of itself.

/// Requests and bytes of a device in an object store since it was opened, and what it has there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Objects that hold blocks of the device.
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
