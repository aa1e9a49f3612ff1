//! What one client may ask of the server, and what all of them together may.

use forebay_units::Nanos;

/// Bounds on clients. A client that runs into one that is a matter of pace waits; one that breaks
/// a rule loses its connection, and nothing else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// Options before transmission must begin.
    pub options_max: u32,
    /// Time for the whole handshake.
    pub handshake_deadline: Nanos,
    /// Time for one request to arrive whole once its first byte came, and for one batch of
    /// replies to be taken. A connection that is idle between requests may stay so for ever.
    pub stall_deadline: Nanos,
    /// Longest read or write, in bytes.
    pub request_max_bytes: u32,
    /// Bytes of requests and replies in memory for one connection; at least one longest request
    /// always fits.
    pub connection_bytes_max: u64,
    /// The same for all connections together.
    pub total_bytes_max: u64,
    /// Bytes of the receive buffer of a connection: what one system call can bring.
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
            receive_buffer_bytes: 256 << 10,
            extents_max: 8192,
        }
    }
}

impl Limits {
    /// The same with every bound at least as large as correctness asks.
    #[must_use]
    pub fn sane(mut self) -> Self {
        self.request_max_bytes = self.request_max_bytes.max(4096);
        let one = u64::from(self.request_max_bytes);
        self.connection_bytes_max = self.connection_bytes_max.max(one);
        self.total_bytes_max = self.total_bytes_max.max(one);
        // The longest option must fit, and small writes are assembled here.
        self.receive_buffer_bytes = self.receive_buffer_bytes.max(64 << 10);
        self.extents_max = self.extents_max.max(1);
        self
    }
}
