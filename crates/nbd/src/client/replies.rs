//! The client's receiving task: takes replies off the stream and completes their requests.

use std::rc::Rc;

use super::core::Core;
use super::error::{ConnectionLoss, RequestError, WrongLength};
use super::pending::{PendingRequests, Slot};
use crate::inbox::Inbox;
use crate::message::{ErrorPayload, StatusPayload};
use crate::wire::{
    CHUNK_DONE, CHUNK_HEADER_BYTES, CHUNK_MAGIC, ChunkHeader, Fields, SIMPLE_REPLY_BYTES,
    SimpleReply, chunk, command,
};

/// Bytes of a chunk without read data.
const MAX_SMALL_CHUNK_BYTES: u32 = 128 << 10;

/// Receives until the stream ends; then every request in flight fails.
pub(super) async fn receive(core: Rc<Core>, mut inbox: Inbox) {
    let loss = loop {
        if let Err(loss) = receive_one(&core, &mut inbox).await {
            break loss;
        }
    };
    core.lose(loss);
}

async fn fill(inbox: &mut Inbox, len: usize) -> Result<(), ConnectionLoss> {
    if inbox.bytes().len() >= len {
        return Ok(());
    }
    match inbox.fill(len, false).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(ConnectionLoss::Closed),
        Err(e) => Err(ConnectionLoss::Receive(e)),
    }
}

async fn receive_one(core: &Core, inbox: &mut Inbox) -> Result<(), ConnectionLoss> {
    // Both kinds of replies are at least as long as the simple one.
    fill(inbox, SIMPLE_REPLY_BYTES).await?;
    if inbox.bytes()[..4] == CHUNK_MAGIC.to_be_bytes() {
        fill(inbox, CHUNK_HEADER_BYTES).await?;
        let header = ChunkHeader::decode(inbox.bytes())?;
        inbox.consume(CHUNK_HEADER_BYTES);
        return receive_chunk(core, inbox, header).await;
    }
    let reply = SimpleReply::decode(inbox.bytes())?;
    inbox.consume(SIMPLE_REPLY_BYTES);
    let buf = {
        let mut pending = core.pending.borrow_mut();
        let slot = find(&mut pending, reply.cookie)?;
        if reply.error != 0 {
            let (error, text) = (reply.error, String::new());
            slot.error = Some(RequestError::Server { error, text });
            None
        } else if slot.command == command::READ {
            if core.export.structured {
                return Err(ConnectionLoss::SimpleReplyToRead);
            }
            slot.outcome.buf.take()
        } else {
            None
        }
    };
    if let Some(buf) = buf {
        let whole = inbox.take(buf).await.map_err(ConnectionLoss::Receive)?;
        let whole = whole.ok_or(ConnectionLoss::Closed)?;
        if let Some(slot) = core.pending.borrow_mut().find(reply.cookie) {
            slot.outcome.buf = Some(whole);
        }
    }
    complete(core, reply.cookie);
    Ok(())
}

fn find(pending: &mut PendingRequests, cookie: u64) -> Result<&mut Slot, ConnectionLoss> {
    pending.find(cookie).ok_or(ConnectionLoss::UnknownCookie)
}

fn complete(core: &Core, cookie: u64) {
    let waker = core.pending.borrow_mut().complete(cookie);
    if let Some(waker) = waker {
        waker.wake();
    }
}

async fn receive_chunk(
    core: &Core,
    inbox: &mut Inbox,
    header: ChunkHeader,
) -> Result<(), ConnectionLoss> {
    if header.kind == chunk::OFFSET_DATA {
        receive_data(core, inbox, header).await?;
    } else {
        if header.len_bytes > MAX_SMALL_CHUNK_BYTES {
            return Err(ConnectionLoss::ChunkTooLong { len_bytes: header.len_bytes });
        }
        let len = header.len_bytes as usize;
        fill(inbox, len).await?;
        let outcome = note_chunk(core, header, &inbox.bytes()[..len]);
        inbox.consume(len);
        outcome?;
    }
    if header.flags & CHUNK_DONE == 0 {
        return Ok(());
    }
    {
        let mut pending = core.pending.borrow_mut();
        let slot = find(&mut pending, header.cookie)?;
        let expected_bytes = slot.outcome.buf.as_ref().map_or(0, |buf| buf.len() as u64);
        let found_bytes = slot.received_bytes;
        if slot.error.is_none() && found_bytes != expected_bytes {
            slot.error = Some(WrongLength { expected_bytes, found_bytes }.into());
        }
    }
    complete(core, header.cookie);
    Ok(())
}

/// The position of `len` bytes at `offset` in the buffer of a read at `read_offset`.
fn position_in_read(
    read_offset: u64,
    buf_len: usize,
    offset: u64,
    len: u64,
) -> Result<usize, ConnectionLoss> {
    let start = offset.checked_sub(read_offset);
    match start.and_then(|start| Some((start, start.checked_add(len)?))) {
        Some((start, end)) if end <= buf_len as u64 => Ok(start as usize),
        _ => Err(ConnectionLoss::DataOutsideRange),
    }
}

async fn receive_data(
    core: &Core,
    inbox: &mut Inbox,
    header: ChunkHeader,
) -> Result<(), ConnectionLoss> {
    if header.len_bytes <= 8 {
        return Err(ConnectionLoss::EmptyChunk);
    }
    fill(inbox, 8).await?;
    let offset = Fields::new("data chunk", inbox.bytes()).u64()?;
    inbox.consume(8);
    let len = header.len_bytes as usize - 8;
    let (buf, at) = {
        let mut pending = core.pending.borrow_mut();
        let slot = find(&mut pending, header.cookie)?;
        let read_offset = slot.offset_bytes;
        let buf = slot.outcome.buf.take().ok_or(ConnectionLoss::UnexpectedData)?;
        let at = position_in_read(read_offset, buf.len(), offset, len as u64)?;
        slot.received_bytes += len as u64;
        (buf, at)
    };
    let filled = inbox.take_at(buf, at, len).await.map_err(ConnectionLoss::Receive)?;
    let filled = filled.ok_or(ConnectionLoss::Closed)?;
    if let Some(slot) = core.pending.borrow_mut().find(header.cookie) {
        slot.outcome.buf = Some(filled);
    }
    Ok(())
}

/// Applies a chunk without read data to its request.
fn note_chunk(core: &Core, header: ChunkHeader, bytes: &[u8]) -> Result<(), ConnectionLoss> {
    let mut pending = core.pending.borrow_mut();
    let slot = find(&mut pending, header.cookie)?;
    match header.kind {
        chunk::NONE => {}
        chunk::OFFSET_HOLE => {
            let mut fields = Fields::new("hole chunk", bytes);
            let (offset, len) = (fields.u64()?, fields.u32()?);
            let read_offset = slot.offset_bytes;
            let buf = slot.outcome.buf.as_mut().ok_or(ConnectionLoss::UnexpectedData)?;
            let at = position_in_read(read_offset, buf.len(), offset, u64::from(len))?;
            buf[at..at + len as usize].fill(0);
            slot.received_bytes += u64::from(len);
        }
        chunk::BLOCK_STATUS => {
            let status = StatusPayload::decode(bytes)?;
            if Some(status.context) == core.export.allocation_id {
                slot.outcome.extents = status.extents;
            }
        }
        kind if kind & chunk::ERROR_BIT != 0 => {
            let with_offset = kind == chunk::ERROR_OFFSET;
            let error = ErrorPayload::decode(bytes, with_offset)?;
            let (error, text) = (error.error, error.text.to_owned());
            slot.error = Some(RequestError::Server { error, text });
        }
        kind => return Err(ConnectionLoss::UnknownChunk { kind }),
    }
    Ok(())
}
