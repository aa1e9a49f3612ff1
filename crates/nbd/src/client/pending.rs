//! Requests that wait for their answers, found by cookie.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_device::IoBuf;

use super::{Core, RequestError};
use crate::message::Extent;

/// What came back.
#[derive(Default)]
pub(super) struct Done {
    pub(super) buf: Option<IoBuf>,
    pub(super) extents: Vec<Extent>,
}

#[derive(Default)]
pub(super) struct Slot {
    /// The upper half of the cookie: an answer to a slot's earlier tenant is not for this one.
    generation: u32,
    state: State,
    pub(super) command: u16,
    pub(super) offset_bytes: u64,
    /// Bytes of a read that have arrived; the whole length when it is complete.
    pub(super) received_bytes: u64,
    pub(super) error: Option<(u32, String)>,
    pub(super) done: Done,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Waiting,
    /// Whoever asked has gone; the slot stays taken until the answer comes.
    Orphaned,
    Answered,
}

#[derive(Default)]
pub(super) struct Pending {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Pending {
    pub(super) fn begin(&mut self, command: u16, offset_bytes: u64, buf: Option<IoBuf>) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Waiting;
        slot.command = command;
        slot.offset_bytes = offset_bytes;
        slot.received_bytes = 0;
        slot.error = None;
        slot.done = Done { buf, extents: Vec::new() };
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The slot that an answer is for; `None` when nobody asked.
    pub(super) fn find(&mut self, cookie: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((cookie & 0xffff_ffff) as usize)?;
        let waits = matches!(slot.state, State::Waiting | State::Orphaned);
        (waits && u64::from(slot.generation) == cookie >> 32).then_some(slot)
    }

    /// The answer is complete.
    pub(super) fn finish(&mut self, cookie: u64) -> Option<Waker> {
        let slot = self.find(cookie)?;
        if slot.state == State::Orphaned {
            self.release(cookie);
            return None;
        }
        slot.state = State::Answered;
        slot.waker.take()
    }

    fn release(&mut self, cookie: u64) {
        let index = (cookie & 0xffff_ffff) as u32;
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.done = Done::default();
        slot.waker = None;
        self.free.push(index);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect()
    }
}

/// Waits for one answer.
pub(super) struct Wait {
    core: Rc<Core>,
    cookie: u64,
    over: bool,
}

impl Wait {
    pub(super) fn new(core: Rc<Core>, cookie: u64) -> Self {
        Self { core, cookie, over: false }
    }
}

impl Future for Wait {
    type Output = Result<Done, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let cookie = self.cookie;
        let core = self.core.clone();
        let mut pending = core.pending.borrow_mut();
        let slot = &mut pending.slots[(cookie & 0xffff_ffff) as usize];
        if slot.state == State::Answered {
            let done = std::mem::take(&mut slot.done);
            let error = slot.error.take();
            pending.release(cookie);
            self.over = true;
            return Poll::Ready(match error {
                None => Ok(done),
                Some((error, text)) => Err(RequestError::Server { error, text }),
            });
        }
        if let Some(why) = &*core.lost.borrow() {
            pending.release(cookie);
            self.over = true;
            return Poll::Ready(Err(RequestError::Lost(why.clone())));
        }
        match &slot.waker {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => slot.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut pending = self.core.pending.borrow_mut();
        let lost = self.core.lost.borrow().is_some();
        let slot = &mut pending.slots[(self.cookie & 0xffff_ffff) as usize];
        if lost || slot.state == State::Answered {
            pending.release(self.cookie);
        } else {
            slot.state = State::Orphaned;
            slot.waker = None;
        }
    }
}
