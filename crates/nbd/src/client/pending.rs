//! Table of the client's requests in flight, found by cookie.

use std::task::Waker;

use forebay_device::IoBuf;

use super::error::RequestError;
use crate::message::Extent;

/// The bits of a cookie that hold the index of its slot; the upper half holds the generation.
const INDEX_MASK: u64 = 0xffff_ffff;

/// The result of a request.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(super) buf: Option<IoBuf>,
    pub(super) extents: Vec<Extent>,
}

/// One request in flight.
#[derive(Default)]
pub(super) struct Slot {
    /// The upper half of the cookie: it tells the slot's requests apart.
    generation: u32,
    state: State,
    pub(super) command: u16,
    pub(super) offset_bytes: u64,
    /// Bytes of a read that have arrived.
    pub(super) received_bytes: u64,
    pub(super) error: Option<RequestError>,
    pub(super) outcome: Outcome,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Waiting,
    /// The caller has dropped the request; the slot stays taken until the reply comes.
    Abandoned,
    Answered,
}

/// The requests in flight.
#[derive(Default)]
pub(super) struct PendingRequests {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl PendingRequests {
    /// Takes a slot for a request; returns its cookie.
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
        slot.outcome = Outcome { buf, extents: Vec::new() };
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The slot that a reply belongs to; `None` when no request waits with this cookie.
    pub(super) fn find(&mut self, cookie: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((cookie & INDEX_MASK) as usize)?;
        let waits = matches!(slot.state, State::Waiting | State::Abandoned);
        (waits && u64::from(slot.generation) == cookie >> 32).then_some(slot)
    }

    /// Notes that the reply is complete; returns the waker of the waiting task.
    pub(super) fn complete(&mut self, cookie: u64) -> Option<Waker> {
        let slot = self.find(cookie)?;
        if slot.state == State::Abandoned {
            self.release(cookie);
            return None;
        }
        slot.state = State::Answered;
        slot.waker.take()
    }

    fn release(&mut self, cookie: u64) {
        let index = (cookie & INDEX_MASK) as u32;
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        slot.outcome = Outcome::default();
        slot.waker = None;
        self.free.push(index);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect()
    }

    /// The result of an answered request, whose slot becomes free; else `None`.
    pub(super) fn take_answer(&mut self, cookie: u64) -> Option<Result<Outcome, RequestError>> {
        let slot = &mut self.slots[(cookie & INDEX_MASK) as usize];
        if slot.state != State::Answered {
            return None;
        }
        let (outcome, error) = (std::mem::take(&mut slot.outcome), slot.error.take());
        self.release(cookie);
        Some(error.map_or(Ok(outcome), Err))
    }

    /// Sets the waker of a request that waits for its reply.
    pub(super) fn set_waker(&mut self, cookie: u64, waker: &Waker) {
        let slot = &mut self.slots[(cookie & INDEX_MASK) as usize];
        match &slot.waker {
            Some(known) if known.will_wake(waker) => {}
            _ => slot.waker = Some(waker.clone()),
        }
    }

    /// Gives up a request that nothing waits for. While the connection is up, its slot stays taken
    /// until the reply comes.
    pub(super) fn abandon(&mut self, cookie: u64, connection_is_lost: bool) {
        let slot = &mut self.slots[(cookie & INDEX_MASK) as usize];
        if connection_is_lost || slot.state == State::Answered {
            self.release(cookie);
        } else {
            slot.state = State::Abandoned;
            slot.waker = None;
        }
    }
}
