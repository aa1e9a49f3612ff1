//! The side of a transfer that has the pool.

use std::rc::Rc;

use forebay_pool::{LeftBy, Received, Receiver, Sender, TransferError};
use forebay_rt::net::Stream;

use super::frames;
use super::open::Ticket;
use crate::control::{
    Action, REPLY_MAX_BYTES, ReceivedStream, Reply, Request, Response, WireError, send,
};
use crate::failure::{ErrorCode, Failure};
use crate::pools::PoolSet;

/// A stream that a pool of this process makes.
pub struct Outgoing {
    sender: Sender,
    ticket: Ticket,
}

/// A stream that a pool of this process takes.
pub struct Incoming {
    receiver: Receiver,
    ticket: Ticket,
    /// `POOL/VOL`.
    name: String,
}

impl Outgoing {
    /// A stream of `sender`.
    #[must_use]
    pub fn new(sender: Sender, ticket: Ticket) -> Self {
        Self { sender, ticket }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let next = self.ticket.unless_revoked(self.sender.next()).await;
        Ok(next.ok_or_else(taken_back)??)
    }

    /// Lets go of the pool.
    pub async fn end(self) {
        self.sender.end().await;
    }
}

impl Incoming {
    /// A stream for `receiver`.
    #[must_use]
    pub fn new(receiver: Receiver, ticket: Ticket, name: String) -> Self {
        Self { receiver, ticket, name }
    }

    /// Takes the next bytes.
    pub async fn feed(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let fed = self.ticket.unless_revoked(self.receiver.feed(bytes)).await;
        self.explained(fed.unwrap_or(Ok(())))?;
        Ok(())
    }

    /// At the end of the input.
    pub async fn finish(&mut self) -> Result<ReceivedStream, Failure> {
        let finished = self.receiver.finish().await;
        let Received { name, data_bytes, hole_bytes } = self.explained(finished)?;
        Ok(ReceivedStream { name, data_bytes, hole_bytes })
    }

    fn explained<T>(&self, outcome: Result<T, TransferError>) -> Result<T, Failure> {
        outcome.map_err(Failure::from)
    }

    /// Ends a stream that has failed with `why`, which then also says what is left.
    pub async fn give_up(self, why: Failure) -> Failure {
        let name = &self.name;
        match self.receiver.give_up().await {
            LeftBy::Nothing => {
                Failure { message: format!("{}; {name} is as before", why.message), ..why }
            }
            LeftBy::Token(token) => {
                let message = format!("{}; what was received of {name} is kept", why.message);
                let hint = format!(
                    "'forebay volume send -t {token}' goes on, 'forebay volume receive -A {name}' \
                     gives it up"
                );
                Failure { message, hint, ..why }
            }
            LeftBy::Part => {
                let message = format!(
                    "{}; what was received of {name} is undone or kept when the pool is imported",
                    why.message
                );
                Failure { message, ..why }
            }
        }
    }
}

fn taken_back() -> Failure {
    Failure::new(ErrorCode::ServerStopping, "the pool is being taken back from its clients")
}

async fn answer(stream: &Stream, response: Result<Reply, Failure>) {
    let response = match response {
        Ok(reply) => Response::Ok(reply),
        Err(failure) => Response::Error(failure),
    };
    // A client that went away needs no answer.
    let _ = send(stream, &response, REPLY_MAX_BYTES).await;
}

/// Answers a request to send: a reply, the frames of the stream, and how it ended.
pub async fn serve_send(set: Rc<PoolSet>, request: &Request, stream: &Stream) {
    let Action::Send { options } = &request.action else { return };
    let mut outgoing = match set.begin_send(&request.pool, options) {
        Ok(outgoing) => outgoing,
        Err(failure) => return answer(stream, Err(failure)).await,
    };
    answer(stream, Ok(Reply::Done)).await;
    let outcome = loop {
        let bytes = match outgoing.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break Some(Ok(Reply::Done)),
            Err(failure) => break Some(Err(failure)),
        };
        // The pool may be taken back while the client takes its time.
        match outgoing.ticket.unless_revoked(frames::put(stream, bytes)).await {
            Some(Ok(())) => {}
            Some(Err(_)) => break None,
            None => {
                // The client has a part of a frame: the connection is of no use any more.
                stream.shutdown();
                break None;
            }
        }
    };
    outgoing.end().await;
    if let Some(outcome) = outcome {
        if frames::put(stream, Vec::new()).await.is_ok() {
            answer(stream, outcome).await;
        }
    }
}

/// Answers a request to receive: a reply, then takes the frames of the stream, and says what became
/// of it.
pub async fn serve_receive(set: Rc<PoolSet>, request: &Request, stream: &Stream) {
    let mut incoming = match set.begin_receive(request).await {
        Ok(incoming) => incoming,
        Err(failure) => return answer(stream, Err(failure)).await,
    };
    answer(stream, Ok(Reply::Done)).await;
    let failed = loop {
        let next = incoming.ticket.unless_revoked(frames::take(stream)).await;
        let outcome = match next {
            None => Err(taken_back()),
            Some(Ok(Some(bytes))) => incoming.feed(&bytes).await,
            Some(Ok(None)) => match incoming.finish().await {
                Ok(received) => {
                    return answer(stream, Ok(Reply::Received(received))).await;
                }
                Err(failure) => Err(failure),
            },
            Some(Err(error)) => Err(lost(&error)),
        };
        if let Err(failure) = outcome {
            break failure;
        }
    };
    let failure = incoming.give_up(failed).await;
    answer(stream, Err(failure)).await;
}

fn lost(error: &WireError) -> Failure {
    Failure::new(ErrorCode::Protocol, format!("the stream was interrupted: {error}"))
}
