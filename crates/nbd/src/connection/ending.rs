//! How a connection of the server ended.

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client disconnected between two requests.
    Disconnected,
    /// The server stopped; the requests in flight were answered.
    Stopped,
    /// The client was not served, and broke no protocol.
    Denied(Denial),
    /// The client broke the protocol.
    ProtocolError,
    /// The client vanished within a message, or the stream failed.
    Lost,
    /// The client exceeded a deadline.
    TimedOut,
    /// The client worked too slowly on memory that other clients waited for.
    Evicted,
}

/// Why a client that broke no protocol was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    /// There is no export of the name that it asked for, or it may not open it.
    Export,
    /// It did not start TLS.
    NotEncrypted,
    /// Its certificate has expired, or is not valid yet.
    CertificateOutOfTime,
    /// It showed no certificate, or one that is not accepted.
    Certificate,
    /// It has no version or cipher of TLS that the server has.
    TlsVersion,
    /// It ended TLS, mostly because it does not trust the server's certificate.
    ByClient,
}
