//! A message on the socket: its length in four bytes, most significant first, then JSON.

use forebay_rt::net::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest request.
pub const REQUEST_MAX_BYTES: usize = 1 << 20;
/// The longest reply: several times the status of a large pool with its lost blocks.
pub const REPLY_MAX_BYTES: usize = 16 << 20;

/// Why a message was not sent or received.
#[derive(Debug)]
pub enum WireError {
    /// The peer ended the connection between two messages.
    Closed,
    /// The socket failed, or ended within a message.
    Io(std::io::Error),
    /// The length is 0 or above the limit.
    Length {
        /// The length that the peer announced, or that the message has.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The text is not the expected JSON.
    Json(serde_json::Error),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::Closed => write!(f, "the connection was closed"),
            WireError::Io(e) => write!(f, "{e}"),
            WireError::Length { len_bytes, max_bytes } => {
                write!(f, "a message of {len_bytes} bytes is not between 1 and {max_bytes}")
            }
            WireError::Json(e) => write!(f, "not understood: {e}"),
        }
    }
}

impl std::error::Error for WireError {}

/// Sends `message`. A message above `max_bytes` is refused before a byte is sent.
pub async fn send<T: Serialize>(
    stream: &Stream,
    message: &T,
    max_bytes: usize,
) -> Result<(), WireError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(WireError::Json)?;
    let len_bytes = bytes.len() - 4;
    let prefix = u32::try_from(len_bytes).ok().filter(|_| len_bytes <= max_bytes);
    let Some(prefix) = prefix else {
        return Err(WireError::Length { len_bytes, max_bytes });
    };
    bytes[..4].copy_from_slice(&prefix.to_be_bytes());
    stream.send_all(bytes).await.0.map_err(WireError::Io)
}

/// Receives a message of at most `max_bytes`.
pub async fn receive<T: DeserializeOwned>(
    stream: &Stream,
    max_bytes: usize,
) -> Result<T, WireError> {
    let (first, prefix) = stream.recv(vec![0u8; 4], 0).await;
    let got = first.map_err(WireError::Io)?;
    if got == 0 {
        return Err(WireError::Closed);
    }
    let (rest, prefix) = stream.recv_exact(prefix, got).await;
    rest.map_err(WireError::Io)?;
    let prefix: [u8; 4] = prefix.try_into().expect("four bytes were asked for");
    let len_bytes = u32::from_be_bytes(prefix) as usize;
    if len_bytes == 0 || len_bytes > max_bytes {
        return Err(WireError::Length { len_bytes, max_bytes });
    }
    let (all, body) = stream.recv_exact(vec![0u8; len_bytes], 0).await;
    all.map_err(WireError::Io)?;
    serde_json::from_slice(&body).map_err(WireError::Json)
}
