//! The transmission phase of a connection: takes requests off the stream and starts them.

use std::rc::Rc;
use std::task::{Context, Waker};

use forebay_device::{IoBuf, IoBytes};
use forebay_rt as rt;

use super::ending::Ending;
use super::perform;
use super::state::Connection;
use crate::inbox::Inbox;
use crate::limits::BASE_CHARGE_BYTES;
use crate::wire::{REQUEST_BYTES, Request, command, errno};

/// Takes requests until the client disconnects or breaks the protocol.
pub(super) async fn receive(connection: &Rc<Connection>, inbox: &mut Inbox) -> Ending {
    loop {
        let outcome = receive_one(connection, inbox).await;
        if let Err(ending) = outcome {
            return ending;
        }
    }
}

/// Takes one request off the stream, and starts it or answers with an error.
#[inline]
async fn receive_one(connection: &Rc<Connection>, inbox: &mut Inbox) -> Result<(), Ending> {
    inbox.begin_message();
    if inbox.bytes().len() < REQUEST_BYTES {
        match inbox.fill(REQUEST_BYTES, false).await {
            Ok(true) => {}
            Ok(false) if connection.server.is_stopping.get() => return Err(Ending::Stopped),
            Ok(false) if inbox.bytes().is_empty() => return Err(Ending::Disconnected),
            Ok(false) | Err(_) => return Err(Ending::Lost),
        }
    }
    let request = Request::decode(inbox.bytes()).map_err(|_| Ending::ProtocolError)?;
    inbox.consume(REQUEST_BYTES);
    if request.command == command::DISC {
        return Err(Ending::Disconnected);
    }
    if connection.is_kernel && connection.server.is_stopping.get() {
        // An answer would be final; the next server gets the request again.
        return Err(Ending::Stopped);
    }
    let limits = &connection.server.limits;
    let is_write = request.command == command::WRITE;
    let payload_bytes = if is_write { u64::from(request.len_bytes) } else { 0 };
    // A payload slightly above the limit is skipped and gets an error. One far above the limit is
    // not read at all.
    if payload_bytes > 2 * u64::from(connection.request_max_bytes()) {
        return Err(Ending::ProtocolError);
    }
    let verdict = if connection.server.is_stopping.get() {
        Err(perform::refuse(errno::ESHUTDOWN, "the server is shutting down"))
    } else {
        perform::check(connection, &request)
    };
    let charge_bytes = match verdict {
        Ok(()) => perform::charge_bytes(&request, limits, connection.agreement.contexts.len()),
        Err(_) => BASE_CHARGE_BYTES,
    };
    let is_read = verdict.is_ok() && request.command == command::READ;
    if is_read {
        connection.admit_read(charge_bytes).await;
    }
    connection.take_memory(charge_bytes).await?;
    if let Err(refusal) = verdict {
        // Some clients fail when the answer comes before they have sent the whole payload.
        let skipped = inbox.skip(payload_bytes).await;
        perform::answer_refusal(connection, &request, &refusal, charge_bytes);
        return if matches!(skipped, Ok(true)) { Ok(()) } else { Err(Ending::Lost) };
    }
    let mut payload = None;
    if is_write {
        connection.receiving_bytes.set(charge_bytes);
        let received = inbox.take(IoBuf::recycled(request.len_bytes as usize)).await;
        connection.receiving_bytes.set(0);
        match received {
            Ok(Some(whole)) => payload = Some(whole.freeze()),
            Ok(None) | Err(_) => {
                connection.give_back_memory(charge_bytes);
                return Err(Ending::Lost);
            }
        }
    }
    if connection.is_kernel && changes_data(request.command) && connection.stream.has_hung_up() {
        // The kernel has given this connection up, and has sent the request again over another one.
        // It may have been answered there, and its blocks may have been written anew.
        connection.give_back_memory(charge_bytes);
        return Err(Ending::Lost);
    }
    start(connection, request, payload, charge_bytes);
    Ok(())
}

fn changes_data(command: u16) -> bool {
    matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES)
}

/// Starts a request. The first poll happens here, so that a request without a wait needs no task.
#[inline]
fn start(
    connection: &Rc<Connection>,
    request: Request,
    payload: Option<IoBytes>,
    charge_bytes: u64,
) {
    connection.in_flight.set(connection.in_flight.get() + 1);
    let running = connection.clone();
    let mut future = Box::pin(async move {
        perform::perform(&running, &request, payload, charge_bytes).await;
        let left = running.in_flight.get() - 1;
        running.in_flight.set(left);
        if left == 0 {
            running.became_idle.notify_all();
        }
    });
    if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        rt::spawn_detached(future);
    }
}
