//! Events that the array reports to the pool.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::DeviceError;
use forebay_rt::sync::Notify;
use forebay_units::{BlockAddr, DeviceId};

use crate::member::MemberState;

/// Something that the pool must act on or report to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayEvent {
    /// A member changed its state. Its set of outdated segments may have grown: the pool stores
    /// it.
    StateChanged {
        /// The member.
        device: DeviceId,
        /// Its state before.
        from: MemberState,
        /// Its state now.
        to: MemberState,
        /// The failure that caused the change, if any.
        cause: Option<DeviceError>,
    },
    /// A read failed. The pool checks and repairs the place.
    ReadFailed {
        /// The member.
        device: DeviceId,
        /// A block of the range; of the row, when the column holds parity.
        addr: BlockAddr,
        /// The device's error.
        cause: DeviceError,
    },
    /// A column was rewritten, because it held wrong data or could not be read.
    Repaired {
        /// The member.
        device: DeviceId,
        /// The first block; of the row, when the column holds parity.
        addr: BlockAddr,
        /// Bytes that were rewritten.
        len_bytes: u64,
        /// Whether the member was at fault. When parity does not fit blocks that are dead, any of
        /// their members may have changed, and none is.
        is_proved: bool,
    },
}

/// The queue of events. It keeps every state change, but only so many other events, because a bad
/// device can produce them without end.
#[derive(Default)]
pub struct ArrayEvents {
    queue: RefCell<VecDeque<ArrayEvent>>,
    changed: Rc<Notify>,
}

/// Most events in the queue before repairs and read errors are dropped.
const MAX_QUEUED_EVENTS: usize = 1024;

impl ArrayEvents {
    pub(crate) fn push(&self, event: ArrayEvent) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() >= MAX_QUEUED_EVENTS && !matches!(event, ArrayEvent::StateChanged { .. }) {
            return;
        }
        queue.push_back(event);
        drop(queue);
        self.changed.notify_all();
    }

    /// Takes all events out of the queue.
    #[must_use]
    pub fn take(&self) -> Vec<ArrayEvent> {
        self.queue.take().into()
    }

    /// Waits until there is an event.
    pub async fn wait(&self) {
        self.changed.until(|| !self.queue.borrow().is_empty()).await;
    }
}
