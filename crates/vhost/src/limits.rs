//! Limits on one guest, and on all guests together.

use forebay_units::Nanos;

/// Most segments of one request.
pub(crate) const SEGMENTS_MAX: u32 = 126;
/// The longest segment. With [`SEGMENTS_MAX`] it keeps requests within
/// [`Limits::request_max_bytes`].
pub(crate) const SEGMENT_MAX_BYTES: u32 = 256 << 10;
/// What a request is charged beside its data.
pub(crate) const BASE_CHARGE_BYTES: u64 = 4096;
/// Queues that a guest may have.
pub(crate) const QUEUES_MAX: u16 = 64;
/// Entries that a queue may have.
pub(crate) const QUEUE_SIZE_MAX: u16 = 1024;
/// Ranges that one discard, or one request for zeros, may have.
pub(crate) const RANGES_MAX: u32 = 64;
/// The longest range of a discard or of zeros, in sectors of 512 bytes.
pub(crate) const RANGE_MAX_SECTORS: u32 = 1 << 22;
/// Pieces of memory that a guest may share.
pub(crate) const MEMORY_SLOTS_MAX: usize = 32;
/// Memory that a guest may share, in bytes: address space of this process.
pub(crate) const GUEST_MAX_BYTES: u64 = 1 << 44;

/// Limits on one guest, and on all guests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest request.
    pub request_max_bytes: u32,
    /// Requests of one connection in memory.
    pub connection_bytes_max: u64,
    /// Requests of all connections in memory.
    pub total_bytes_max: u64,
    /// How long a message may take to arrive as a whole.
    pub message_deadline: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_max_bytes: 32 << 20,
            connection_bytes_max: 64 << 20,
            total_bytes_max: 512 << 20,
            message_deadline: Nanos::from_secs(10),
        }
    }
}
