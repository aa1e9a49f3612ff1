//! One request: its check, its charge of memory, its work on the device, and its answer.

use std::rc::Rc;

use forebay_device::{Allocation, DeviceError, ErrorKind, IoBuf, IoBytes, ZeroOptions};

use super::state::Connection;
use crate::exports::{BitmapRun, usable_bytes};
use crate::handshake::Context;
use crate::limits::{BASE_CHARGE_BYTES, Limits};
use crate::message::{ErrorPayload, Extent, StatusPayload};
use crate::wire::{
    self, CHUNK_DONE, CHUNK_HEADER_BYTES, ChunkHeader, DIRTY, Request, SimpleReply, chunk, command,
    command_flag, errno, status_flag,
};

/// Prefetching reads, and zeroing may write, this many bytes at a time.
const STEP_BYTES: u64 = 1 << 20;

/// The answer to a request that is not performed.
pub(super) struct RequestRefusal {
    error: u32,
    text: &'static str,
}

pub(super) fn refuse(error: u32, text: &'static str) -> RequestRefusal {
    RequestRefusal { error, text }
}

/// Bytes that a request may hold in memory until its reply was sent. A block status reports so many
/// contexts.
pub(super) fn charge_bytes(request: &Request, limits: &Limits, contexts: usize) -> u64 {
    let len = u64::from(request.len_bytes);
    let most = match request.command {
        command::READ | command::WRITE => len,
        command::CACHE | command::WRITE_ZEROES => len.min(STEP_BYTES),
        command::BLOCK_STATUS => 24 * (limits.extents_max * contexts) as u64,
        _ => 0,
    };
    // A charge above a limit would wait without an end.
    (most + BASE_CHARGE_BYTES).min(limits.connection_bytes_max).min(limits.total_bytes_max)
}

/// Refuses a request that is invalid for this export.
#[inline]
pub(super) fn check(connection: &Connection, request: &Request) -> Result<(), RequestRefusal> {
    let invalid = |text| Err(refuse(errno::EINVAL, text));
    let allowed_flags = match request.command {
        command::READ => command_flag::DF,
        command::BLOCK_STATUS => command_flag::REQ_ONE,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
        _ => return invalid("unknown command"),
    };
    if request.flags & !(allowed_flags | command_flag::FUA) != 0 {
        return invalid("this command does not have these flags");
    }
    if request.flags & command_flag::DF != 0 && !connection.agreement.structured {
        return invalid("DF without structured replies");
    }
    if request.command == command::FLUSH {
        return Ok(());
    }
    let writes = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && connection.read_only {
        return Err(refuse(errno::EPERM, "the export is read-only"));
    }
    // The protocol does not define this request; libnbd's own clients expect an error.
    if request.len_bytes == 0 {
        return invalid("the length is 0");
    }
    if request.command == command::BLOCK_STATUS && connection.agreement.contexts.is_empty() {
        return invalid("the client chose no metadata context");
    }
    let block_bytes = connection.device.geometry().block_bytes.max(1);
    if request.offset_bytes % u64::from(block_bytes) != 0 || request.len_bytes % block_bytes != 0 {
        return invalid("offset or length is not a multiple of the minimum block size");
    }
    let size_bytes = usable_bytes(&*connection.device);
    if request.end_bytes().is_none_or(|end| end > size_bytes) {
        let needs_space = writes && request.command != command::TRIM;
        let error = if needs_space { errno::ENOSPC } else { errno::EINVAL };
        return Err(refuse(error, "the range ends past the export"));
    }
    let moves_data = matches!(request.command, command::READ | command::WRITE);
    if moves_data && request.len_bytes > connection.request_max_bytes() {
        return invalid("longer than the maximum block size");
    }
    Ok(())
}

/// Answers a request that is not performed.
pub(super) fn answer_refusal(
    connection: &Connection,
    request: &Request,
    refusal: &RequestRefusal,
    charge_bytes: u64,
) {
    send_error(connection, request, refusal.error, refusal.text, charge_bytes);
}

/// Performs a checked request and queues its answer.
pub(super) async fn perform(
    connection: &Rc<Connection>,
    request: &Request,
    payload: Option<IoBytes>,
    charge_bytes: u64,
) {
    let device = &connection.device;
    let (offset, len) = (request.offset_bytes, u64::from(request.len_bytes));
    let fua = request.flags & command_flag::FUA != 0 || connection.handle.write_through;
    let has = |flag| request.flags & flag != 0;
    let outcome = match request.command {
        command::FLUSH => device.flush().await,
        command::READ => {
            let read = device.read(offset, IoBuf::recycled(len as usize)).await;
            // From now on the outbox counts the reply.
            connection.reading_bytes.set(connection.reading_bytes.get() - charge_bytes);
            match read {
                Ok(data) => return send_data(connection, request, data, charge_bytes),
                Err(e) => Err(e),
            }
        }
        command::WRITE => {
            let data = payload.expect("a write has its payload");
            device.write(offset, data, fua).await
        }
        command::TRIM => device.discard(offset, len, fua).await,
        command::WRITE_ZEROES => {
            let options = ZeroOptions {
                fua,
                no_hole: has(command_flag::NO_HOLE),
                fast: has(command_flag::FAST_ZERO),
            };
            device.write_zeroes(offset, len, options).await
        }
        command::CACHE => prefetch(connection, offset, len).await,
        command::BLOCK_STATUS => match all_extents(connection, request).await {
            Ok(all) => return send_status(connection, request, all, charge_bytes),
            Err(StatusError::Device(e)) => Err(e),
            Err(StatusError::BitmapGone) => {
                let text = "the bitmap is gone: its snapshot was destroyed";
                return send_error(connection, request, errno::EINVAL, text, charge_bytes);
            }
        },
        _ => unreachable!("check() refuses other commands"),
    };
    match outcome {
        Ok(()) => {
            let reply = SimpleReply { error: 0, cookie: request.cookie };
            connection.outbox.push(&reply.encode(), None, charge_bytes);
        }
        // The next server gets the request again, and performs it.
        Err(_) if connection.is_kernel && connection.server.is_stopping.get() => {
            connection.give_back_memory(charge_bytes);
            connection.stream.shutdown();
        }
        Err(e) if e.kind == ErrorKind::Gone && connection.is_ending() => {
            let text = "the export is no longer served";
            send_error(connection, request, errno::ESHUTDOWN, text, charge_bytes);
        }
        Err(e) => {
            let error = wire::errno_on_wire(e.errno());
            send_error(connection, request, error, client_text(&e), charge_bytes);
        }
    }
}

/// CACHE: reads the range, so that the caches below hold it. The command is advice, so a range
/// longer than the longest read is cut: 28 bytes of request must not cause gigabytes of work.
async fn prefetch(connection: &Connection, offset: u64, len: u64) -> Result<(), DeviceError> {
    let end = offset + len.min(u64::from(connection.server.limits.request_max_bytes));
    let mut at = offset;
    while at < end {
        let step = (end - at).min(STEP_BYTES);
        connection.device.read(at, IoBuf::recycled(step as usize)).await?;
        at += step;
    }
    Ok(())
}

/// Why a block status failed.
enum StatusError {
    Device(DeviceError),
    BitmapGone,
}

/// The extents of a range in each context that the client chose.
async fn all_extents(
    connection: &Connection,
    request: &Request,
) -> Result<Vec<Vec<Extent>>, StatusError> {
    let (offset, len) = (request.offset_bytes, u64::from(request.len_bytes));
    let mut all = Vec::new();
    for context in &connection.agreement.contexts {
        let runs: Vec<(u64, u32)> = match context {
            Context::Allocation => {
                let runs = connection.device.allocation(offset, len).await;
                let hole = status_flag::HOLE | status_flag::ZERO;
                let flags = |run: Allocation| (run.len_bytes, if run.hole { hole } else { 0 });
                runs.map_err(StatusError::Device)?.into_iter().map(flags).collect()
            }
            Context::Bitmap(name) => {
                let bitmaps = connection.handle.bitmaps.as_ref();
                let runs = bitmaps.and_then(|bitmaps| bitmaps.runs(name, offset, len));
                let flags = |run: BitmapRun| (run.len_bytes, if run.dirty { DIRTY } else { 0 });
                runs.ok_or(StatusError::BitmapGone)?.into_iter().map(flags).collect()
            }
        };
        // Without runs: "allocated" is always a correct answer, and so is "may have changed".
        let unknown = if *context == Context::Allocation { 0 } else { DIRTY };
        let one = request.flags & command_flag::REQ_ONE != 0;
        all.push(extents(&runs, unknown, len, one, connection.server.limits.extents_max));
    }
    Ok(all)
}

/// Runs as extents of a reply: equal neighbors are merged, and the last extent ends within the
/// request.
fn extents(
    runs: &[(u64, u32)],
    unknown: u32,
    len_bytes: u64,
    only_one: bool,
    extents_max: usize,
) -> Vec<Extent> {
    let max = if only_one { 1 } else { extents_max };
    let mut out: Vec<Extent> = Vec::new();
    let mut left = len_bytes;
    for (run_bytes, flags) in runs.iter().copied() {
        let here = run_bytes.min(left);
        if here == 0 {
            continue;
        }
        // The request's length has 32 bits, so every part of it fits.
        let len = here as u32;
        let is_full = out.len() == max;
        match out.last_mut() {
            Some(last) if last.flags == flags => last.len_bytes += len,
            _ if is_full => break,
            _ => out.push(Extent { len_bytes: len, flags }),
        }
        left -= here;
    }
    if out.is_empty() {
        out.push(Extent { len_bytes: len_bytes as u32, flags: unknown });
    }
    out
}

/// The text of an error for clients, which must not learn the names of devices.
fn client_text(e: &DeviceError) -> &'static str {
    match e.kind {
        ErrorKind::NoSpace => "no space left",
        ErrorKind::OutOfRange { .. } => "the range ends past the export",
        ErrorKind::Misaligned { .. } => "not a multiple of the minimum block size",
        ErrorKind::ReadOnly => "the export is read-only",
        ErrorKind::Unsupported => "not supported by this export",
        ErrorKind::Corrupt { .. } => "the data fails its checksum and could not be repaired",
        ErrorKind::Gone => "the device is gone",
        ErrorKind::Overtaken => "another client has written to the export since this one connected",
        _ => "the device failed",
    }
}

fn send_error(
    connection: &Connection,
    request: &Request,
    error: u32,
    text: &str,
    charge_bytes: u64,
) {
    if !connection.agreement.structured {
        let reply = SimpleReply { error, cookie: request.cookie };
        return connection.outbox.push(&reply.encode(), None, charge_bytes);
    }
    let mut payload = Vec::with_capacity(64);
    ErrorPayload { error, text, offset_bytes: None }.encode(&mut payload);
    let header = ChunkHeader {
        flags: CHUNK_DONE,
        kind: chunk::ERROR,
        cookie: request.cookie,
        len_bytes: payload.len() as u32,
    };
    connection.outbox.push(&header.encode(), Some(&payload), charge_bytes);
}

#[inline]
fn send_data(connection: &Connection, request: &Request, data: IoBuf, charge_bytes: u64) {
    let mut head = [0u8; CHUNK_HEADER_BYTES + 8];
    let head = if !connection.agreement.structured {
        let reply = SimpleReply { error: 0, cookie: request.cookie };
        head[..wire::SIMPLE_REPLY_BYTES].copy_from_slice(&reply.encode());
        &head[..wire::SIMPLE_REPLY_BYTES]
    } else {
        let header = ChunkHeader {
            flags: CHUNK_DONE,
            kind: chunk::OFFSET_DATA,
            cookie: request.cookie,
            len_bytes: request.len_bytes + 8,
        };
        head[..CHUNK_HEADER_BYTES].copy_from_slice(&header.encode());
        head[CHUNK_HEADER_BYTES..].copy_from_slice(&request.offset_bytes.to_be_bytes());
        &head[..]
    };
    if crate::outbox::Outbox::copies_payload(data.len()) {
        connection.outbox.push(head, Some(&data), charge_bytes);
    } else {
        connection.outbox.push_large(head, data.freeze(), charge_bytes);
    }
}

/// Answers a block status: a chunk for each context.
fn send_status(
    connection: &Connection,
    request: &Request,
    all: Vec<Vec<Extent>>,
    charge_bytes: u64,
) {
    let mut reply = Vec::new();
    let last = all.len();
    for (context, extents) in (1..).zip(all) {
        let mut payload = Vec::with_capacity(4 + 8 * extents.len());
        StatusPayload { context, extents }.encode(&mut payload);
        let header = ChunkHeader {
            flags: if context as usize == last { CHUNK_DONE } else { 0 },
            kind: chunk::BLOCK_STATUS,
            cookie: request.cookie,
            len_bytes: payload.len() as u32,
        };
        reply.extend_from_slice(&header.encode());
        reply.extend_from_slice(&payload);
    }
    connection.outbox.push(&reply, None, charge_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_charged_for_what_they_hold() {
        const MIB: u64 = 1 << 20;
        let limits = Limits::default();
        let charged = |command, len_bytes, contexts, limits: &Limits| {
            let request = Request { flags: 0, command, cookie: 1, offset_bytes: 0, len_bytes };
            charge_bytes(&request, limits, contexts) - BASE_CHARGE_BYTES
        };
        let long = 32 << 20;
        for (command, contexts, expected) in [
            (command::READ, 0, 32 * MIB),
            (command::WRITE, 0, 32 * MIB),
            (command::CACHE, 0, MIB),
            (command::WRITE_ZEROES, 0, MIB),
            (command::BLOCK_STATUS, 1, 24 * 8192),
            (command::BLOCK_STATUS, 3, 24 * 8192 * 3),
            (command::TRIM, 0, 0),
            (command::FLUSH, 0, 0),
        ] {
            assert_eq!(charged(command, long, contexts, &limits), expected, "command {command}");
        }
        // No charge is above a limit: it would wait without an end.
        let small = Limits { connection_bytes_max: 2 * MIB, ..limits };
        assert_eq!(charged(command::READ, long, 0, &small), 2 * MIB - BASE_CHARGE_BYTES);
        let small = Limits { total_bytes_max: 3 * MIB, ..limits };
        assert_eq!(charged(command::READ, long, 0, &small), 3 * MIB - BASE_CHARGE_BYTES);
    }

    #[test]
    fn extents_merge_equal_runs_and_end_within_the_request() {
        let found = |runs: &[(u64, u32)], len_bytes, only_one, most| {
            let all = extents(runs, 9, len_bytes, only_one, most);
            all.iter().map(|extent| (extent.len_bytes, extent.flags)).collect::<Vec<_>>()
        };
        let runs = [(10, 0), (5, 0), (0, 7), (20, 3), (7, 0)];
        assert_eq!(found(&runs, 42, false, 8), [(15, 0), (20, 3), (7, 0)]);
        assert_eq!(found(&runs, 38, false, 8), [(15, 0), (20, 3), (3, 0)]);
        assert_eq!(found(&runs, 35, false, 8), [(15, 0), (20, 3)]);
        assert_eq!(found(&runs, 12, false, 8), [(12, 0)]);
        assert_eq!(found(&runs, 42, false, 2), [(15, 0), (20, 3)]);
        assert_eq!(found(&runs, 42, true, 8), [(15, 0)]);
        assert_eq!(found(&[], 42, false, 8), [(42, 9)], "nothing is known");
    }
}
