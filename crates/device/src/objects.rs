//! What a device in an object store shows of itself.

use std::fmt;

use forebay_units::Nanos;

/// What is asked of an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreRequest {
    /// Store an object.
    Put,
    /// Read an object or a part of one.
    Get,
    /// List names.
    List,
    /// Delete objects.
    Delete,
}

impl fmt::Display for StoreRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

/// A request that fails again and again while the store answers others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingRequest {
    /// What is asked.
    pub request: StoreRequest,
    /// The object, or the first of several; the prefix of a listing.
    pub object: String,
    /// For how long it has failed.
    pub failing_for: Nanos,
    /// How often it was made.
    pub attempts: u64,
    /// The last failure.
    pub error: String,
}

/// Requests and bytes of a device in an object store since it was opened, and what it has there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// For how long the store has answered no request, if one waits for its answer.
    pub silent_for: Option<Nanos>,
    /// What the last of these requests failed with; none while they fail with nothing.
    pub silent_error: Option<String>,
    /// Requests that fail again and again while others are answered, oldest first.
    pub failing: Vec<FailingRequest>,
}
