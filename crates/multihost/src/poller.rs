//! Polling the heartbeat on devices that may hang, for the monitor.
//!
//! What enters: devices. What leaves: answers, each with the time when its read was issued. What
//! always holds: a device has few reads under way, an interval apart, and at most one heartbeat
//! write. A poll takes at most [`MAX_POLL_DURATION`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::heartbeat::{read_heartbeat, write_heartbeat};
use crate::timing::{ANSWER_TIMEOUT, HEARTBEAT_INTERVAL, MAX_POLL_DURATION, clock};

/// Reads of one device that may be under way: one for each second that an answer may be old.
const MAX_READS_IN_FLIGHT: usize = 3;

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
    /// How long the device took.
    took: Nanos,
}

impl Answer {
    pub fn key(&self) -> usize {
        device_key(&self.device)
    }
}

/// Reads that devices have not answered, their answers, and heartbeats that are being written.
pub(crate) struct Poller {
    /// By device: when each read was issued, oldest first.
    reads_in_flight: RefCell<BTreeMap<usize, Vec<Nanos>>>,
    answers: RefCell<Vec<Answer>>,
    /// Devices on which a look is under way ([`Poller::look`]).
    looks_in_flight: RefCell<BTreeSet<usize>>,
    /// Devices that have a heartbeat under way.
    writes_in_flight: RefCell<BTreeSet<usize>>,
    /// Heartbeats that failed, for [`Poller::take_failed_writes`].
    failed_writes: RefCell<Vec<(Device, DeviceError)>>,
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
            looks_in_flight: RefCell::default(),
            writes_in_flight: RefCell::default(),
            failed_writes: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Issues a read, unless one was issued on this device within the last interval and is under
    /// way. A device that answers later than an interval has several reads under way: if each one
    /// waited for the last, its answers would be too old to renew the fence in time. Returns
    /// whether it did.
    fn start_read(self: &Rc<Self>, device: &Device) -> bool {
        let asked_at = clock();
        {
            let mut in_flight = self.reads_in_flight.borrow_mut();
            let reads = in_flight.entry(device_key(device)).or_default();
            let is_recent = |at: &Nanos| asked_at.since(*at) < HEARTBEAT_INTERVAL;
            if reads.len() == MAX_READS_IN_FLIGHT || reads.last().is_some_and(is_recent) {
                return false;
            }
            reads.push(asked_at);
        }
        let (poller, device) = (self.clone(), device.clone());
        rt::spawn_detached(Box::pin(async move {
            let outcome = read_heartbeat(&device).await;
            poller.end_read(&device, asked_at);
            if let Ok(heartbeat) = outcome {
                let took = clock().since(asked_at);
                poller.answers.borrow_mut().push(Answer { device, heartbeat, asked_at, took });
            }
            poller.changed.notify_all();
        }));
        true
    }

    fn end_read(&self, device: &Device, asked_at: Nanos) {
        let (key, mut in_flight) = (device_key(device), self.reads_in_flight.borrow_mut());
        if let Some(reads) = in_flight.get_mut(&key) {
            let at = reads.iter().position(|at| *at == asked_at);
            at.map(|at| reads.remove(at));
            if reads.is_empty() {
                in_flight.remove(&key);
            }
        }
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
            // A poll never hears a device that takes longer, so its next read begins early.
            for answer in late.iter().filter(|answer| answer.took > MAX_POLL_DURATION) {
                self.start_read(&answer.device);
            }
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

    /// Begins to read a heartbeat of which only `see` is told, unless such a read of this device is
    /// under way.
    pub fn look(self: &Rc<Self>, device: &Device, see: impl FnOnce(Heartbeat) + 'static) {
        let key = device_key(device);
        if !self.looks_in_flight.borrow_mut().insert(key) {
            return;
        }
        let (poller, device) = (self.clone(), device.clone());
        rt::spawn_detached(Box::pin(async move {
            let outcome = read_heartbeat(&device).await;
            poller.looks_in_flight.borrow_mut().remove(&key);
            poller.changed.notify_all();
            if let Ok(Some(heartbeat)) = outcome {
                see(heartbeat);
            }
        }));
    }

    /// Writes a heartbeat to each of `devices` that has none under way, to one after the other: a
    /// delayed heartbeat may land over the next owner's, so there must be few. Waits for each at
    /// most [`ANSWER_TIMEOUT`]. Devices whose turn has not come after [`MAX_POLL_DURATION`] get
    /// none.
    pub async fn write_to_each(self: &Rc<Self>, devices: &[Device], heartbeat: Heartbeat) {
        let deadline = rt::now() + MAX_POLL_DURATION;
        for device in devices {
            let wait = deadline.since(rt::now()).min(ANSWER_TIMEOUT);
            if wait > Nanos::ZERO && !self.is_writing(device) {
                self.start_write(device.clone(), heartbeat);
                let written = Box::pin(self.changed.until(|| !self.is_writing(device)));
                let _ = rt::timeout(wait, written).await;
            }
        }
    }

    /// Whether a heartbeat is under way to this device.
    pub fn is_writing(&self, device: &Device) -> bool {
        self.writes_in_flight.borrow().contains(&device_key(device))
    }

    fn start_write(self: &Rc<Self>, device: Device, heartbeat: Heartbeat) {
        let key = device_key(&device);
        self.writes_in_flight.borrow_mut().insert(key);
        let poller = self.clone();
        rt::spawn_detached(Box::pin(async move {
            if let Err(error) = write_heartbeat(&device, &heartbeat).await {
                poller.failed_writes.borrow_mut().push((device, error));
            }
            poller.writes_in_flight.borrow_mut().remove(&key);
            poller.changed.notify_all();
        }));
    }

    /// Heartbeats that failed since the last call, with their devices.
    pub fn take_failed_writes(&self) -> Vec<(Device, DeviceError)> {
        self.failed_writes.take()
    }

    fn has_no_writes_in_flight(&self) -> bool {
        self.writes_in_flight.borrow().is_empty()
    }

    /// Waits until no read and no write is under way: the next owner may want to open the devices.
    pub async fn drain(&self) {
        let is_idle = || {
            self.has_no_reads_in_flight()
                && self.has_no_writes_in_flight()
                && self.looks_in_flight.borrow().is_empty()
        };
        self.changed.until(is_idle).await;
    }
}
