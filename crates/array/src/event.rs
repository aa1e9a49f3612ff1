//! What the array has to say without being asked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::DeviceError;
use forebay_rt::sync::Notify;
use forebay_units::{BlockAddr, DeviceId};

use crate::member::MemberState;

/// Something happened that the pool must act on or tell the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayEvent {
    /// A member changed its state. Its set of outdated segments may have grown: keep it.
    StateChanged {
        /// The member.
        device: DeviceId,
        /// Its state before.
        from: MemberState,
        /// Its state now.
        to: MemberState,
        /// The failure that caused it, when one did.
        cause: Option<DeviceError>,
    },
    /// A read failed and other columns answered: check and repair the place.
    ReadFailed {
        /// The member.
        device: DeviceId,
        /// A block of the range (of the row, when the column holds parity).
        addr: BlockAddr,
        /// What the device said.
        cause: DeviceError,
    },
    /// A column held wrong data and was rewritten.
    Repaired {
        /// The member.
        device: DeviceId,
        /// The block (of the row, when the column holds parity).
        addr: BlockAddr,
        /// How many bytes were rewritten.
        len_bytes: u64,
    },
}

/// Events that wait to be taken. State changes are always kept; of the others, which a bad device
/// can produce without end, only so many.
#[derive(Default)]
pub struct ArrayEvents {
    queue: RefCell<VecDeque<ArrayEvent>>,
    dropped: Cell<u64>,
    changed: Rc<Notify>,
}

/// Beyond this many, repairs and read errors are only counted.
const EVENT_LIMIT: usize = 1024;

impl ArrayEvents {
    pub(crate) fn push(&self, event: ArrayEvent) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() >= EVENT_LIMIT && !matches!(event, ArrayEvent::StateChanged { .. }) {
            self.dropped.set(self.dropped.get() + 1);
            return;
        }
        queue.push_back(event);
        drop(queue);
        self.changed.notify_all();
    }

    /// Takes the events so far.
    #[must_use]
    pub fn take(&self) -> Vec<ArrayEvent> {
        self.queue.take().into()
    }

    /// Waits until there is an event.
    pub async fn wait(&self) {
        self.changed.until(|| !self.queue.borrow().is_empty()).await;
    }

    /// Events that were counted only.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}
