//! How a connection of the server ended.

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client disconnected between two requests.
    Disconnected,
    /// The server stopped; the requests in flight were answered.
    Stopped,
    /// The client may not have what it asked for, or there is no such export; or one side refused
    /// the other's certificate.
    Denied,
    /// The client broke the protocol.
    ProtocolError,
    /// The client vanished within a message, or the stream failed.
    Lost,
    /// The client exceeded a deadline.
    TimedOut,
    /// The client worked too slowly on memory that other clients waited for.
    Evicted,
}
