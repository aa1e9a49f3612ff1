//! Polling the heartbeat on devices that may hang.
//!
//! What enters: devices. What leaves: answers, each with the time when its read was issued.
//! What always holds: one device has at most one read under way; a poll takes at most
//! [`MAX_POLL_DURATION`]; at most one heartbeat write is under way. Called by the monitor.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::Device;
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::heartbeat::{read_heartbeat, write_heartbeat};
use crate::timing::{ANSWER_TIMEOUT, MAX_POLL_DURATION, clock};

/// How many answers a poll asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollMode {
    /// Ask one device after the other until one of them has a heartbeat.
    FirstHeartbeat,
    /// Ask all devices at once.
    AllDevices,
}

/// The answer of a device that could be read.
pub(crate) struct Answer {
    pub device: Device,
    /// `None`: no owner has left a heartbeat there. An import writes one to every device.
    pub heartbeat: Option<Heartbeat>,
    /// When the read was issued: the answer says nothing about later owners.
    pub asked_at: Nanos,
}

impl Answer {
    pub fn key(&self) -> usize {
        device_key(&self.device)
    }
}

/// Reads that devices have not answered, their answers, and heartbeats that are being written.
pub(crate) struct Poller {
    reads_in_flight: RefCell<BTreeSet<usize>>,
    answers: RefCell<Vec<Answer>>,
    writes_in_flight: Cell<usize>,
    changed: Rc<Notify>,
}

/// Identifies a device as long as it is open.
fn device_key(device: &Device) -> usize {
    Rc::as_ptr(device).cast::<()>() as usize
}

impl Poller {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            reads_in_flight: RefCell::default(),
            answers: RefCell::default(),
            writes_in_flight: Cell::new(0),
            changed: Notify::new(),
        })
    }

    /// Issues a read, unless one is under way on this device. Returns whether it did.
    fn start_read(self: &Rc<Self>, device: &Device) -> bool {
        if !self.reads_in_flight.borrow_mut().insert(device_key(device)) {
            return false;
        }
        let (poller, device, asked_at) = (self.clone(), device.clone(), clock());
        rt::spawn_detached(Box::pin(async move {
            let outcome = read_heartbeat(&device).await;
            poller.reads_in_flight.borrow_mut().remove(&device_key(&device));
            if let Ok(heartbeat) = outcome {
                poller.answers.borrow_mut().push(Answer { device, heartbeat, asked_at });
            }
            poller.changed.notify_all();
        }));
        true
    }

    fn has_heartbeat(&self) -> bool {
        self.answers.borrow().iter().any(|answer| answer.heartbeat.is_some())
    }

    /// Whether every device that was asked has answered, or has failed.
    pub fn has_no_reads_in_flight(&self) -> bool {
        self.reads_in_flight.borrow().is_empty()
    }

    /// Polls `devices` and returns the answers that came in time. Answers that came too late for
    /// the last poll are returned first: a device that is always slower than a poll would never be
    /// heard.
    pub async fn poll(self: &Rc<Self>, devices: &[Device], mode: PollMode) -> Vec<Answer> {
        let all = mode == PollMode::AllDevices;
        let late = self.answers.take();
        if !late.is_empty() && (all || late.iter().any(|answer| answer.heartbeat.is_some())) {
            return late;
        }
        let deadline = rt::now() + MAX_POLL_DURATION;
        let is_done = || self.has_no_reads_in_flight() || (!all && self.has_heartbeat());
        for device in devices {
            if self.start_read(device) && !all {
                let wait = ANSWER_TIMEOUT.min(deadline.since(rt::now()));
                let _ = rt::timeout(wait, Box::pin(self.changed.until(is_done))).await;
                if self.has_heartbeat() {
                    break;
                }
            }
        }
        let left = deadline.since(rt::now());
        let _ = rt::timeout(left, Box::pin(self.changed.until(is_done))).await;
        self.answers.take()
    }

    /// Writes a heartbeat, and waits for it at most [`ANSWER_TIMEOUT`]. Does nothing while an
    /// earlier one is under way: a delayed heartbeat may land over the next owner's, so there must
    /// be few.
    pub async fn write(self: &Rc<Self>, device: Device, heartbeat: Heartbeat) {
        if self.has_no_writes_in_flight() {
            self.start_write(device, heartbeat);
            let written = Box::pin(self.changed.until(|| self.has_no_writes_in_flight()));
            let _ = rt::timeout(ANSWER_TIMEOUT, written).await;
        }
    }

    fn start_write(self: &Rc<Self>, device: Device, heartbeat: Heartbeat) {
        self.writes_in_flight.set(self.writes_in_flight.get() + 1);
        let poller = self.clone();
        rt::spawn_detached(Box::pin(async move {
            // An error is not reported: the next root fails on the same device and handles it.
            let _ = write_heartbeat(&device, &heartbeat).await;
            poller.writes_in_flight.set(poller.writes_in_flight.get() - 1);
            poller.changed.notify_all();
        }));
    }

    fn has_no_writes_in_flight(&self) -> bool {
        self.writes_in_flight.get() == 0
    }

    /// Waits until no read and no write is under way: the next owner may want to open the devices.
    pub async fn drain(&self) {
        let is_idle = || self.has_no_reads_in_flight() && self.has_no_writes_in_flight();
        self.changed.until(is_idle).await;
    }
}
