//! The side of a transfer that has standard input or output, when a server has the pool.

use std::pin::Pin;
use std::rc::Rc;

use forebay_rt::{Either, select};

use super::frames;
use crate::control::{Link, ReceivedStream, Reply, Request, Response, WireError};
use crate::failure::{ErrorCode, Failure};

/// A stream that a server makes.
pub struct RemoteSend(Rc<Link>);

/// A stream that a server takes.
pub struct RemoteReceive {
    link: Rc<Link>,
    /// What the server says of the whole, at any time.
    answer: Pin<Box<dyn Future<Output = Result<Response, WireError>>>>,
}

impl RemoteSend {
    /// Has the server begin.
    pub async fn begin(link: Rc<Link>, request: &Request) -> Result<Self, Failure> {
        link.ask(request).await?;
        Ok(Self(link))
    }

    /// The next bytes; `None` at the end of a whole stream.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let lost = |error| self.0.ended(&error);
        if let Some(bytes) = frames::take(self.0.stream()).await.map_err(lost)? {
            return Ok(Some(bytes));
        }
        match self.0.answer().await.map_err(lost)? {
            Response::Ok(_) => Ok(None),
            Response::Error(failure) => Err(failure),
        }
    }
}

impl RemoteReceive {
    /// Has the server begin.
    pub async fn begin(link: Rc<Link>, request: &Request) -> Result<Self, Failure> {
        link.ask(request).await?;
        let answering = link.clone();
        let answer = Box::pin(async move { answering.answer().await });
        Ok(Self { link, answer })
    }

    /// What `work` gives, unless the server ends the stream before.
    pub async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        match select(self.answer.as_mut(), std::pin::pin!(work)).await {
            Either::Left((answer, _)) => Err(self.why(answer)),
            Either::Right((out, _)) => Ok(out),
        }
    }

    fn why(&self, answer: Result<Response, WireError>) -> Failure {
        match answer {
            Ok(Response::Error(failure)) => failure,
            Ok(Response::Ok(_)) => Failure::new(ErrorCode::Protocol, "the server ended the stream"),
            Err(error) => self.link.ended(&error),
        }
    }

    /// Hands on the next bytes.
    pub async fn feed(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        let link = self.link.clone();
        let put = self.unless_ended(async move { frames::put(link.stream(), bytes).await }).await?;
        match put {
            Ok(()) => Ok(()),
            // The reason may be there.
            Err(error) => match self.answer.as_mut().await {
                Ok(answer) => Err(self.why(Ok(answer))),
                Err(_) => Err(self.link.ended(&error)),
            },
        }
    }

    /// At the end of the input.
    pub async fn finish(mut self) -> Result<ReceivedStream, Failure> {
        self.feed(Vec::new()).await?;
        match self.answer.as_mut().await {
            Ok(Response::Ok(Reply::Received(received))) => Ok(received),
            other => Err(self.why(other)),
        }
    }
}
