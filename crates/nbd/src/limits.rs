//! Limits on one client, and on all clients together.

use forebay_units::Nanos;

/// The charge of every request, beside its data.
pub(crate) const BASE_CHARGE_BYTES: u64 = 4096;

/// Bounds on clients. A client that reaches a memory bound waits. A client that exceeds another
/// bound loses its connection; other connections are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; the server closes further connections at once. An account other than
    /// the owner gets two thirds of what is free, and an eighth is for the owner alone.
    pub connections_max: usize,
    /// Options that a client may send before transmission begins, and eight more for each export
    /// once it has listed them.
    pub options_max: u32,
    /// Time for the whole handshake.
    pub handshake_deadline: Nanos,
    /// Time for the rest of a request after its first byte, and for the client to take one batch
    /// of replies. A connection may be idle between requests without a bound.
    pub stall_deadline: Nanos,
    /// Longest read or write, in bytes.
    pub request_max_bytes: u32,
    /// Bytes of requests and replies in memory for one connection. At least one request of the
    /// maximum length always fits.
    pub connection_bytes_max: u64,
    /// The same for all connections together, each of which has a share. At least three requests
    /// of the maximum length fit.
    pub total_bytes_max: u64,
    /// Bytes of reads of a connection that are under way or whose replies its client has not taken.
    /// A client that takes more than this gets as much again, up to `connection_bytes_max`. One
    /// read is always under way, whatever its length.
    pub reply_window_bytes: u64,
    /// A connection is slow when its client would take longer than this for what it holds in
    /// memory: replies to take, and a write whose data are on their way. A slow connection is
    /// disconnected when others wait for memory.
    pub slow_drain: Nanos,
    /// Bytes of the receive buffer of a connection: one receive brings at most this much.
    pub receive_buffer_bytes: usize,
    /// Extents in one block status reply.
    pub extents_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            options_max: 32,
            handshake_deadline: Nanos::from_secs(10),
            stall_deadline: Nanos::from_secs(60),
            request_max_bytes: 32 << 20,
            connection_bytes_max: 64 << 20,
            total_bytes_max: 1 << 30,
            reply_window_bytes: 8 << 20,
            slow_drain: Nanos::from_secs(10),
            receive_buffer_bytes: 256 << 10,
            extents_max: 8192,
        }
    }
}

impl Limits {
    /// The same limits, with every bound raised to the minimum that correctness needs.
    #[must_use]
    pub fn with_minimums(mut self) -> Self {
        self.request_max_bytes = self.request_max_bytes.max(4096);
        let one = u64::from(self.request_max_bytes);
        self.connection_bytes_max = self.connection_bytes_max.max(one);
        // The longest request must fit into what is shared and not reserved.
        self.total_bytes_max = self.total_bytes_max.max(3 * (one + BASE_CHARGE_BYTES));
        // The buffer holds the longest option, and the payloads of small writes.
        self.receive_buffer_bytes = self.receive_buffer_bytes.max(64 << 10);
        self.extents_max = self.extents_max.max(1);
        self
    }
}
