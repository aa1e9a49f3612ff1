//! The server's side of the control socket.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_rt::net::{Listener, Stream};
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use super::message::{Action, PROTOCOL_VERSION, Reply, Request, Response};
use super::wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};
use crate::failure::{ErrorCode, Failure};
use crate::log;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// What performs requests.
pub trait Handler {
    /// Performs `request`.
    fn handle(self: Rc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response>>>;

    /// Performs a request with a stream, on whose connection nothing else follows.
    fn transfer<'a>(
        self: Rc<Self>,
        _request: Request,
        stream: &'a Stream,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(async move {
            let refused = Failure::new(ErrorCode::PoolNotServed, "no volumes are served here");
            let _ = send(stream, &Response::Error(refused), REPLY_MAX_BYTES).await;
        })
    }

    /// What takes a connection for [`Action::Nbd`].
    fn kernel_front(&self) -> Result<KernelFront, Failure> {
        Err(Failure::new(ErrorCode::PoolNotServed, "no volumes are served here"))
    }
}

/// Serves the kernel's NBD client on a stream.
pub type KernelFront = Box<dyn FnOnce(Stream)>;

/// Accepts connections for ever. Only processes of `own_uid` and root are answered. When there are
/// [`CONNECTIONS_MAX`], the one that has waited longest for a request ends: a command that was
/// stopped, or that does not speak the protocol, keeps no other command out.
pub async fn serve_control<H: Handler + 'static>(listener: Listener, handler: Rc<H>, own_uid: u32) {
    let connections = Rc::new(Connections::default());
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let uid = stream.peer_uid();
                if uid == Some(0) || uid == Some(own_uid) {
                    connections.answer(stream, handler.clone()).await;
                }
            }
            Err(e) => {
                // Mostly for want of descriptors: the end of a connection frees one.
                log::warning(&format!("{}: cannot accept: {e}", listener.address()));
                forebay_rt::sleep(Nanos::from_millis(200)).await;
            }
        }
    }
}

/// The open connections of a control socket.
#[derive(Default)]
pub struct Connections {
    open: RefCell<BTreeMap<u64, Rc<Open>>>,
    next: Cell<u64>,
    changed: Rc<Notify>,
}

struct Open {
    stream: Stream,
    /// Since when it has waited for a request; `None` while a request is performed.
    idle_since: Cell<Option<Nanos>>,
}

impl Connections {
    /// Answers the requests of `stream` in a task of its own, once there is a place for it.
    pub async fn answer<H: Handler + 'static>(self: &Rc<Self>, stream: Stream, handler: Rc<H>) {
        while self.open.borrow().len() >= CONNECTIONS_MAX {
            let ended = self.changed.notified();
            self.end_longest_idle();
            ended.await;
        }
        let id = self.next.get();
        self.next.set(id + 1);
        let open = Rc::new(Open { stream, idle_since: Cell::new(Some(forebay_rt::now())) });
        self.open.borrow_mut().insert(id, open.clone());
        let connections = self.clone();
        forebay_rt::spawn(async move {
            open.answer_all(handler).await;
            connections.open.borrow_mut().remove(&id);
            connections.changed.notify_all();
        });
    }

    /// Ends the connection that has waited longest for a request. When a request of each is being
    /// performed, the next one has to wait.
    fn end_longest_idle(&self) {
        let open = self.open.borrow();
        let idle = open.values().filter_map(|open| Some((open.idle_since.get()?, open)));
        if let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) {
            longest.stream.shutdown();
        }
    }
}

impl Open {
    /// Answers requests until the connection ends or breaks the protocol.
    async fn answer_all<H: Handler>(&self, handler: Rc<H>) {
        let stream = &self.stream;
        loop {
            self.idle_since.set(Some(forebay_rt::now()));
            let request = receive::<Request>(stream, REQUEST_MAX_BYTES).await;
            self.idle_since.set(None);
            let response = match request {
                Ok(Request { action: Action::Nbd, version: PROTOCOL_VERSION, .. }) => {
                    match handler.kernel_front() {
                        Ok(front) => return self.hand_over(front).await,
                        Err(failure) => Response::Error(failure),
                    }
                }
                Ok(request)
                    if request.version == PROTOCOL_VERSION && request.action.is_transfer() =>
                {
                    return handler.transfer(request, stream).await;
                }
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
                    // Where the next request begins is unknown: the connection ends.
                    let _ = send(stream, &refusal(e.to_string()), REPLY_MAX_BYTES).await;
                    stream.shutdown();
                    return;
                }
            };
            // A client that does not take its reply is idle too.
            self.idle_since.set(Some(forebay_rt::now()));
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
}

impl Open {
    /// Ends this connection as one of commands: `front` goes on with its socket.
    async fn hand_over(&self, front: KernelFront) {
        let Ok(second) = self.stream.second() else { return };
        if send(&self.stream, &Response::Ok(Reply::Done), REPLY_MAX_BYTES).await.is_ok() {
            front(second);
        }
    }
}

fn refusal(message: String) -> Response {
    let failure = Failure::new(ErrorCode::Protocol, message);
    Response::Error(
        failure.with_hint("use the same forebay as the server's, or restart the server"),
    )
}
