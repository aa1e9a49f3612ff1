//! Looks at the heartbeats of devices of which some may not answer. Each is asked once at a time, nobody
//! waits long for one of them, and what it says counts from when it was asked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::Device;
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use super::clock;
use crate::labels::{look_for_beat, write_beat};

/// A device that does not answer within this is left to its thoughts, and the next is asked.
const PATIENCE: Nanos = Nanos::from_millis(300);
/// How long a look takes at most: what it has heard at its beginning must count until the next one has ended.
const LOOK: Nanos = Nanos::from_millis(900);

/// What a device said that could be read.
pub(super) struct Answer {
    pub device: Device,
    /// `None` when there is none: nobody has left a mark there, for an import does on every device.
    pub held: Option<Heartbeat>,
    pub asked_at: Nanos,
}

impl Answer {
    /// Of which device, as long as that is open.
    pub fn key(&self) -> usize {
        key(&self.device)
    }
}

/// Questions that are open, and beats on their way.
pub(super) struct Looks {
    open: RefCell<BTreeSet<usize>>,
    answers: RefCell<Vec<Answer>>,
    beating: Cell<usize>,
    changed: Rc<Notify>,
}

fn key(device: &Device) -> usize {
    Rc::as_ptr(device).cast::<()>() as usize
}

impl Looks {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            open: RefCell::default(),
            answers: RefCell::default(),
            beating: Cell::new(0),
            changed: Notify::new(),
        })
    }

    /// Says whether it is asked now, and was not before.
    fn ask(self: &Rc<Self>, device: &Device) -> bool {
        if !self.open.borrow_mut().insert(key(device)) {
            return false;
        }
        let (looks, device, asked_at) = (self.clone(), device.clone(), clock());
        rt::spawn_detached(Box::pin(async move {
            let held = look_for_beat(&device).await;
            looks.open.borrow_mut().remove(&key(&device));
            if let Ok(held) = held {
                looks.answers.borrow_mut().push(Answer { device, held, asked_at });
            }
            looks.changed.notify_all();
        }));
        true
    }

    fn has_beat(&self) -> bool {
        self.answers.borrow().iter().any(|answer| answer.held.is_some())
    }

    /// Whether every device that was asked has answered.
    pub fn is_answered(&self) -> bool {
        self.open.borrow().is_empty()
    }

    /// What devices say until one has a heartbeat, or all of them that answer in time. One that was late the
    /// last time is heard now: devices that always take longer than a look would never be.
    pub async fn look(self: &Rc<Self>, devices: &[Device], all: bool) -> Vec<Answer> {
        let late = self.answers.take();
        if !late.is_empty() && (all || late.iter().any(|answer| answer.held.is_some())) {
            return late;
        }
        let over = rt::now() + LOOK;
        let ready = || self.is_answered() || (!all && self.has_beat());
        for device in devices {
            if self.ask(device) && !all {
                let patience = PATIENCE.min(over.since(rt::now()));
                let _ = rt::timeout(patience, Box::pin(self.changed.until(ready))).await;
                if self.has_beat() {
                    break;
                }
            }
        }
        let _ = rt::timeout(over.since(rt::now()), Box::pin(self.changed.until(ready))).await;
        self.answers.take()
    }

    /// Leaves a mark on a device, unless one is on its way still: of those that are, one may land late,
    /// over the mark of who came next, and there shall not be many.
    pub async fn beat(self: &Rc<Self>, device: Device, mark: Heartbeat) {
        if self.beating.get() == 0 {
            self.send(device, mark);
            let _ = rt::timeout(PATIENCE, Box::pin(self.changed.until(|| self.beating.get() == 0)))
                .await;
        }
    }

    fn send(self: &Rc<Self>, device: Device, mark: Heartbeat) {
        self.beating.set(self.beating.get() + 1);
        let looks = self.clone();
        rt::spawn_detached(Box::pin(async move {
            // A device that fails here fails the next root too, which deals with it.
            let _ = write_beat(&device, &mark).await;
            looks.beating.set(looks.beating.get() - 1);
            looks.changed.notify_all();
        }));
    }

    /// Waits until nothing is under way: whoever comes next may want the devices.
    pub async fn rest(&self) {
        self.changed.until(|| self.is_answered() && self.beating.get() == 0).await;
    }
}
