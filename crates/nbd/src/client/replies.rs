//! Takes replies off the stream and puts them where they belong.

use std::rc::Rc;

use super::Core;
use crate::inbox::Inbox;
use crate::message::{ErrorPayload, StatusPayload};
use crate::wire::{
    CHUNK_DONE, CHUNK_HEADER_BYTES, CHUNK_MAGIC, ChunkHeader, Fields, SIMPLE_REPLY_BYTES,
    SimpleReply, chunk, command, errno,
};

/// Longest chunk without read data that is believed.
const MAX_SMALL_CHUNK_BYTES: u32 = 128 << 10;

/// Receives until the stream ends; then every request in flight fails.
pub(super) async fn receive(core: Rc<Core>, mut inbox: Inbox) {
    let why = loop {
        match receive_one(&core, &mut inbox).await {
            Ok(()) => {}
            Err(why) => break why,
        }
    };
    core.lose(&why);
}

async fn need(inbox: &mut Inbox, len: usize) -> Result<(), String> {
    if inbox.bytes().len() >= len {
        return Ok(());
    }
    match inbox.fill(len, false).await {
        Ok(true) => Ok(()),
        Ok(false) => Err("the server closed the connection".into()),
        Err(e) => Err(e.to_string()),
    }
}

async fn receive_one(core: &Core, inbox: &mut Inbox) -> Result<(), String> {
    // Both kinds of replies are at least as long as the simple one.
    need(inbox, SIMPLE_REPLY_BYTES).await?;
    if inbox.bytes()[..4] == CHUNK_MAGIC.to_be_bytes() {
        need(inbox, CHUNK_HEADER_BYTES).await?;
        let header = ChunkHeader::decode(inbox.bytes()).map_err(|e| e.to_string())?;
        inbox.consume(CHUNK_HEADER_BYTES);
        return receive_chunk(core, inbox, header).await;
    }
    let reply = SimpleReply::decode(inbox.bytes()).map_err(|e| e.to_string())?;
    inbox.consume(SIMPLE_REPLY_BYTES);
    let buf = {
        let mut pending = core.pending.borrow_mut();
        let slot = pending.find(reply.cookie).ok_or("an answer to nothing")?;
        if reply.error != 0 {
            slot.error = Some((reply.error, String::new()));
            None
        } else if slot.command == command::READ {
            if core.facts.structured {
                return Err("an unstructured answer to a read".into());
            }
            slot.done.buf.take()
        } else {
            None
        }
    };
    if let Some(buf) = buf {
        let whole = inbox.take(buf).await.map_err(|e| e.to_string())?;
        let whole = whole.ok_or("the server closed the connection")?;
        if let Some(slot) = core.pending.borrow_mut().find(reply.cookie) {
            slot.done.buf = Some(whole);
        }
    }
    finish(core, reply.cookie);
    Ok(())
}

fn finish(core: &Core, cookie: u64) {
    let waker = core.pending.borrow_mut().finish(cookie);
    if let Some(waker) = waker {
        waker.wake();
    }
}

async fn receive_chunk(core: &Core, inbox: &mut Inbox, header: ChunkHeader) -> Result<(), String> {
    if header.kind == chunk::OFFSET_DATA {
        receive_data(core, inbox, header).await?;
    } else {
        if header.len_bytes > MAX_SMALL_CHUNK_BYTES {
            return Err(format!("a chunk of {} bytes", header.len_bytes));
        }
        let len = header.len_bytes as usize;
        need(inbox, len).await?;
        let outcome = note_small(core, header, &inbox.bytes()[..len]);
        inbox.consume(len);
        outcome?;
    }
    if header.flags & CHUNK_DONE == 0 {
        return Ok(());
    }
    {
        let mut pending = core.pending.borrow_mut();
        let slot = pending.find(header.cookie).ok_or("an answer to nothing")?;
        let wanted = slot.done.buf.as_ref().map_or(0, |buf| buf.len() as u64);
        if slot.error.is_none() && slot.received_bytes != wanted {
            slot.error = Some((errno::EIO, "the server left out a part of the data".into()));
        }
    }
    finish(core, header.cookie);
    Ok(())
}

/// The place of `len` bytes at `offset` in the buffer of a read.
fn place(slot_offset: u64, buf_len: usize, offset: u64, len: u64) -> Result<usize, String> {
    let start = offset.checked_sub(slot_offset).ok_or("data before what was asked for")?;
    let end = start.checked_add(len).ok_or("data past what was asked for")?;
    if end > buf_len as u64 {
        return Err("data past what was asked for".into());
    }
    Ok(start as usize)
}

async fn receive_data(core: &Core, inbox: &mut Inbox, header: ChunkHeader) -> Result<(), String> {
    if header.len_bytes <= 8 {
        return Err("a data chunk without data".into());
    }
    need(inbox, 8).await?;
    let offset = Fields::new("data chunk", inbox.bytes()).u64().map_err(|e| e.to_string())?;
    inbox.consume(8);
    let len = header.len_bytes as usize - 8;
    let (buf, at) = {
        let mut pending = core.pending.borrow_mut();
        let slot = pending.find(header.cookie).ok_or("an answer to nothing")?;
        let slot_offset = slot.offset_bytes;
        let buf = slot.done.buf.take().ok_or("data that nobody asked for")?;
        let at = place(slot_offset, buf.len(), offset, len as u64)?;
        slot.received_bytes += len as u64;
        (buf, at)
    };
    let filled = inbox.take_at(buf, at, len).await.map_err(|e| e.to_string())?;
    let filled = filled.ok_or("the server closed the connection")?;
    if let Some(slot) = core.pending.borrow_mut().find(header.cookie) {
        slot.done.buf = Some(filled);
    }
    Ok(())
}

fn note_small(core: &Core, header: ChunkHeader, bytes: &[u8]) -> Result<(), String> {
    let mut pending = core.pending.borrow_mut();
    let slot = pending.find(header.cookie).ok_or("an answer to nothing")?;
    let told = |e: crate::wire::WireError| e.to_string();
    match header.kind {
        chunk::NONE => {}
        chunk::OFFSET_HOLE => {
            let mut fields = Fields::new("hole chunk", bytes);
            let (offset, len) = (fields.u64().map_err(told)?, fields.u32().map_err(told)?);
            let slot_offset = slot.offset_bytes;
            let buf = slot.done.buf.as_mut().ok_or("a hole that nobody asked for")?;
            let at = place(slot_offset, buf.len(), offset, u64::from(len))?;
            buf[at..at + len as usize].fill(0);
            slot.received_bytes += u64::from(len);
        }
        chunk::BLOCK_STATUS => {
            let status = StatusPayload::decode(bytes).map_err(told)?;
            if Some(status.context) == core.facts.allocation_id {
                slot.done.extents = status.extents;
            }
        }
        kind if kind & chunk::ERROR_BIT != 0 => {
            let with_offset = kind == chunk::ERROR_OFFSET;
            let error = ErrorPayload::decode(bytes, with_offset).map_err(told)?;
            slot.error = Some((error.error, error.text.to_owned()));
        }
        other => return Err(format!("a chunk of unknown kind {other}")),
    }
    Ok(())
}
