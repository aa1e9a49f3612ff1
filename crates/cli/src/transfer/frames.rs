//! Frames: the bytes of a stream on the control socket, each piece after its length in four bytes,
//! most significant first. A length of 0 is the end of the stream.

use forebay_rt::net::Stream;

use crate::control::WireError;

/// Most bytes in a frame.
const FRAME_MAX_BYTES: usize = 2 << 20;

/// Sends a piece of a stream.
pub async fn put(stream: &Stream, bytes: Vec<u8>) -> Result<(), WireError> {
    let prefix = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= FRAME_MAX_BYTES);
    let Some(prefix) = prefix else {
        return Err(WireError::Length { len_bytes: bytes.len(), max_bytes: FRAME_MAX_BYTES });
    };
    stream.send_all(prefix.to_be_bytes().to_vec()).await.0.map_err(WireError::Io)?;
    if bytes.is_empty() {
        return Ok(());
    }
    stream.send_all(bytes).await.0.map_err(WireError::Io)
}

/// Receives a piece of a stream; `None` at its end.
pub async fn take(stream: &Stream) -> Result<Option<Vec<u8>>, WireError> {
    let (outcome, prefix) = stream.recv_exact(vec![0u8; 4], 0).await;
    outcome.map_err(WireError::Io)?;
    let prefix: [u8; 4] = prefix.try_into().expect("four bytes were asked for");
    let len_bytes = u32::from_be_bytes(prefix) as usize;
    if len_bytes == 0 {
        return Ok(None);
    }
    if len_bytes > FRAME_MAX_BYTES {
        return Err(WireError::Length { len_bytes, max_bytes: FRAME_MAX_BYTES });
    }
    let (outcome, bytes) = stream.recv_exact(vec![0u8; len_bytes], 0).await;
    outcome.map_err(WireError::Io)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
