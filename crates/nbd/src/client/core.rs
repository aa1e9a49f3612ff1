//! State that the client shares with its two tasks, and the wait for one reply.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_rt::sync::Notify;

use super::error::{ConnectionLoss, RequestError};
use super::negotiate::ExportInfo;
use super::pending::{Outcome, PendingRequests};
use crate::channel::Channel;
use crate::outbox::Outbox;

/// State that the client shares with its sending and its receiving task.
pub(super) struct Core {
    pub(super) name: String,
    pub(super) export: ExportInfo,
    pub(super) channel: Rc<Channel>,
    pub(super) outbox: Outbox,
    pub(super) pending: RefCell<PendingRequests>,
    pub(super) loss: RefCell<Option<Rc<ConnectionLoss>>>,
    pub(super) sender_is_done: Cell<bool>,
    pub(super) changed: Notify,
}

impl Core {
    /// Fails every request in flight, and every later one. The first loss is the one reported.
    pub(super) fn lose(&self, loss: ConnectionLoss) {
        self.loss.borrow_mut().get_or_insert_with(|| Rc::new(loss));
        self.channel.shutdown();
        let wakers = self.pending.borrow_mut().take_wakers();
        for waker in wakers {
            waker.wake();
        }
    }
}

/// Waits for one reply.
pub(crate) struct Wait {
    core: Rc<Core>,
    cookie: u64,
    is_over: bool,
}

impl Wait {
    pub(super) fn new(core: Rc<Core>, cookie: u64) -> Self {
        Self { core, cookie, is_over: false }
    }
}

impl Future for Wait {
    type Output = Result<Outcome, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let core = self.core.clone();
        let mut pending = core.pending.borrow_mut();
        if let Some(answer) = pending.take_answer(self.cookie) {
            self.is_over = true;
            return Poll::Ready(answer);
        }
        if let Some(loss) = &*core.loss.borrow() {
            pending.abandon(self.cookie, true);
            self.is_over = true;
            return Poll::Ready(Err(RequestError::Lost(loss.clone())));
        }
        pending.set_waker(self.cookie, cx.waker());
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if !self.is_over {
            let is_lost = self.core.loss.borrow().is_some();
            self.core.pending.borrow_mut().abandon(self.cookie, is_lost);
        }
    }
}
