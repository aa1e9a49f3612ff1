//! The side of the serving process.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_rt::net::{Listener, Stream};
use forebay_rt::sync::Semaphore;
use forebay_units::Nanos;

use super::message::{PROTOCOL_VERSION, Request, Response};
use super::wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};
use crate::failure::report;

/// How many commands may be connected; more wait to be accepted.
const CONNECTIONS_MAX: u64 = 64;

/// Answers requests.
pub trait Handler {
    /// Does what is asked. The response says what came of it.
    fn handle(self: Rc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response>>>;
}

/// Accepts commands for ever. Only `own_uid` and root are answered.
pub async fn serve_control<H: Handler + 'static>(listener: Listener, handler: Rc<H>, own_uid: u32) {
    let places = Semaphore::new(CONNECTIONS_MAX);
    loop {
        let place = places.acquire(1).await;
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
                // Out of descriptors, mostly: it passes when a connection ends.
                report(&format!("{}: cannot accept: {e}", listener.address()));
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
            Ok(request) => Response::Error(format!(
                "the server speaks version {PROTOCOL_VERSION} of the control protocol, not {}; \
                 use the same forebay for both, or restart the server",
                request.version
            )),
            Err(WireError::Closed | WireError::Io(_)) => return,
            Err(e @ WireError::Json(_)) => Response::Error(format!(
                "the request was {e}; use the same forebay as the server, or restart the server"
            )),
            Err(e @ WireError::Length { .. }) => {
                // Nothing that follows can be told apart from the body: say why, and end.
                let _ = send(stream, &Response::Error(e.to_string()), REPLY_MAX_BYTES).await;
                stream.shutdown();
                return;
            }
        };
        let sent = match send(stream, &response, REPLY_MAX_BYTES).await {
            Err(e @ WireError::Length { .. }) => {
                send(stream, &Response::Error(e.to_string()), REPLY_MAX_BYTES).await
            }
            other => other,
        };
        if sent.is_err() {
            return;
        }
    }
}
