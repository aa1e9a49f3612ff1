//! The server's side of the control socket.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_rt::net::{Listener, Stream};
use forebay_rt::sync::Semaphore;
use forebay_units::Nanos;

use super::message::{PROTOCOL_VERSION, Request, Response};
use super::wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};
use crate::failure::{ErrorCode, Failure};
use crate::log;

/// Connections that are answered at a time; more wait to be accepted.
const CONNECTIONS_MAX: u64 = 64;

/// What performs requests.
pub trait Handler {
    /// Performs `request`.
    fn handle(self: Rc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response>>>;
}

/// Accepts connections for ever. Only processes of `own_uid` and root are answered.
pub async fn serve_control<H: Handler + 'static>(listener: Listener, handler: Rc<H>, own_uid: u32) {
    let places = Semaphore::new(CONNECTIONS_MAX);
    loop {
        let place = places.acquire(1).await.expect("never closed");
        match listener.accept().await {
            Ok(stream) => {
                let handler = handler.clone();
                forebay_rt::spawn(async move {
                    let uid = stream.peer_uid();
                    if uid == Some(0) || uid == Some(own_uid) {
                        answer_connection(&stream, handler).await;
                    }
                    drop(place);
                });
            }
            Err(e) => {
                // Mostly for want of descriptors: the end of a connection frees one.
                log::warning(&format!("{}: cannot accept: {e}", listener.address()));
                forebay_rt::sleep(Nanos::from_millis(200)).await;
            }
        }
    }
}

/// Answers the requests of one connection until it ends or breaks the protocol.
pub async fn answer_connection<H: Handler>(stream: &Stream, handler: Rc<H>) {
    loop {
        let response = match receive::<Request>(stream, REQUEST_MAX_BYTES).await {
            Ok(request) if request.version == PROTOCOL_VERSION => {
                handler.clone().handle(request).await
            }
            Ok(request) => refusal(format!(
                "the server has version {PROTOCOL_VERSION} of the control protocol, not {}",
                request.version
            )),
            Err(WireError::Closed | WireError::Io(_)) => return,
            Err(e @ WireError::Json(_)) => refusal(format!("the request was {e}")),
            Err(e @ WireError::Length { .. }) => {
                // Where the next request begins is unknown: the connection ends with the reason.
                let _ = send(stream, &refusal(e.to_string()), REPLY_MAX_BYTES).await;
                stream.shutdown();
                return;
            }
        };
        let sent = match send(stream, &response, REPLY_MAX_BYTES).await {
            Err(e @ WireError::Length { .. }) => {
                send(stream, &refusal(e.to_string()), REPLY_MAX_BYTES).await
            }
            other => other,
        };
        if sent.is_err() {
            return;
        }
    }
}

fn refusal(message: String) -> Response {
    let failure = Failure::new(ErrorCode::Protocol, message);
    Response::Error(
        failure.with_hint("use the same forebay as the server's, or restart the server"),
    )
}
