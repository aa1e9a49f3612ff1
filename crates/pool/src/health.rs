//! Health: failures of devices and of the log, and what the pool does about them by itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_array::{ArrayEvent, MemberState};
use forebay_device::{Cause, Device, DeviceError, ErrorKind, Operation};
use forebay_format::config::{LostConfig, MemberUse};
use forebay_intent_log::{LogEvent, LogState};
use forebay_rt as rt;
use forebay_rt::Either;
use forebay_rt::sync::Notify;
use forebay_units::DeviceId;

use crate::Pool;
use crate::commit::error::SuspendReason;
use crate::heartbeat::Heartbeats;
use crate::labels::LabelError;
use crate::scrub::error_log::Lost;
use crate::status::PoolEvent;
use crate::status::events::EventLog;
use crate::store_watch::StoreWatch;

pub(crate) struct HealthState {
    pub lost: RefCell<Lost>,
    /// The log of the last run, while it is being replayed.
    pub replaying: RefCell<Option<LogState>>,
    /// All of it has been read, so the next group may start a new log.
    pub replayed: Cell<bool>,
    /// The state of a log that could not be started: the last root calls it empty.
    pub log_void: RefCell<Option<LogState>>,
    /// The log has stopped because a side failed or its devices change. The next group's root
    /// starts it anew on the devices of the configuration.
    log_wanted: Cell<u64>,
    log_done: Cell<u64>,
    /// The group that is being committed was closed after the log had stopped.
    log_quiet: Cell<Option<u64>>,
    /// Devices that the log uses now.
    pub log_sides: RefCell<BTreeSet<DeviceId>>,
    pub log_changed: Rc<Notify>,
    pub log_errors: RefCell<std::collections::BTreeMap<DeviceId, u64>>,
    pub diagnosis: crate::diagnosis::Diagnosis,
    pub stores: StoreWatch,
    pub heartbeats: Heartbeats,
    pub events: EventLog,
}

impl HealthState {
    /// A state that starts with the error log of the configuration.
    pub fn restored(lost: &LostConfig) -> Self {
        Self {
            lost: Lost::restored(lost).into(),
            replaying: RefCell::default(),
            replayed: Cell::new(false),
            log_void: RefCell::default(),
            log_wanted: Cell::new(0),
            log_done: Cell::new(0),
            log_quiet: Cell::new(None),
            log_sides: RefCell::default(),
            log_changed: Notify::new(),
            log_errors: RefCell::default(),
            diagnosis: Default::default(),
            stores: StoreWatch::default(),
            heartbeats: Heartbeats::default(),
            events: EventLog::default(),
        }
    }
}

impl Pool {
    pub(crate) fn log_pressure(&self) -> bool {
        self.health.log_wanted.get() > self.health.log_done.get()
    }

    /// Asks for the log to be started anew on the devices of the configuration. Returns the number
    /// of the request.
    pub(crate) fn restart_log_wanted(&self) -> u64 {
        let number = self.health.log_wanted.get() + 1;
        self.health.log_wanted.set(number);
        number
    }

    /// Whether request `number` has been met.
    pub(crate) fn log_restarted(&self, number: u64) -> bool {
        self.health.log_done.get() >= number
    }

    /// Called just before a group is closed. If the log is to start anew, this stops it first, so
    /// that it holds nothing that the group does not hold.
    pub(crate) async fn quiet_log(&self) {
        self.health.log_quiet.set(None);
        let reading = self.health.replaying.borrow().is_some() && !self.health.replayed.get();
        if self.log_pressure() && !reading {
            self.log.pause().await;
            self.take_log_events();
            self.take_array_events();
            self.health.log_quiet.set(Some(self.health.log_wanted.get()));
        }
    }

    /// The requests that the group being committed may meet.
    pub(crate) fn quiet_request(&self) -> Option<u64> {
        self.health.log_quiet.get()
    }

    /// The log runs again, as of these requests.
    pub(crate) fn log_is_restarted(&self, number: u64) {
        self.health.log_quiet.set(None);
        self.health.log_done.set(number);
        self.health.replaying.borrow_mut().take();
        self.health.log_void.borrow_mut().take();
        self.health.log_changed.notify_all();
    }

    /// Handles the array's events. A member that changed state changes the configuration, which is
    /// written before the next root.
    pub(crate) fn take_array_events(&self) {
        for event in self.store.array.events().take() {
            match event {
                ArrayEvent::StateChanged { device, from, to, cause } => {
                    self.sync.config_dirty.set(true);
                    let path = self.device_path(device);
                    let changed = PoolEvent::StateChanged { device: path.clone(), from, to, cause };
                    self.health.events.push(changed);
                    let in_log = self.health.log_sides.borrow().contains(&device);
                    if in_log && to != MemberState::Online {
                        // The log lies on data devices and must not rely on this one.
                        let kind = ErrorKind::Gone;
                        let error = DeviceError::new(&path, Operation::Write, 0, 0, kind);
                        self.log.fail_side(device, error);
                    }
                }
                ArrayEvent::ReadFailed { device, cause, .. } => {
                    use ErrorKind::{Gone, LostObject, TimedOut};
                    // A store that lost an object has all others. A device that is gone or does not
                    // answer is out of use already.
                    let counts = !matches!(cause.kind, LostObject { .. } | Gone | TimedOut { .. });
                    self.health.events.push(PoolEvent::ReadFailed(cause));
                    if counts {
                        self.diagnose_read(device);
                    }
                }
                ArrayEvent::Repaired { device, addr, len_bytes, is_proved } => {
                    self.stats.repaired(len_bytes);
                    let path = self.device_path(device);
                    let repaired = PoolEvent::Repaired { device: path, addr, len_bytes };
                    self.health.events.push(repaired);
                    if is_proved {
                        self.diagnose_repair(device);
                    }
                }
            }
        }
    }

    pub(crate) fn device_path(&self, id: DeviceId) -> String {
        if let Some(open) = self.devices.borrow().get(&id) {
            return open.path.clone();
        }
        // A device that was closed is still known by its path, unless it has just left the pool.
        let config = self.config.try_borrow().ok();
        let member = config.as_ref().and_then(|c| crate::layout::member_of(c, id.0));
        member.map_or_else(|| format!("device {id}"), |member| member.path.clone())
    }

    /// A device failed a write beside the commits that was to be durable at once: a heartbeat or a
    /// log mark. No later command fails if the device lost other writes with it.
    pub(crate) fn durable_write_failed(&self, id: DeviceId, device: &Device, error: DeviceError) {
        // Behind a lost fence the device is well.
        if self.is_stopped() || matches!(error.kind, ErrorKind::FenceLost(_)) {
            return;
        }
        match self.store.array.durable_write_failed(id, device, &error) {
            Ok(()) => {
                self.take_array_events();
                self.sync.root_wanted.set(true);
                self.sync.wake.notify_all();
            }
            Err(_) => self.fail_log_side(id, &error.into()),
        }
    }

    /// Takes a log device out of use, unless the fence refused its write.
    pub(crate) fn fail_log_side(&self, device: DeviceId, error: &LabelError) {
        if error.is_fence_lost() {
            return;
        }
        let mut config = self.config.borrow_mut();
        for side in config.logs.iter_mut().flat_map(|ring| &mut ring.sides) {
            if side.device == device.0 && side.state == MemberUse::Online {
                side.state = MemberUse::Faulted;
                *self.health.log_errors.borrow_mut().entry(device).or_default() += 1;
                let (device, error) = (side.path.clone(), error.clone());
                self.health.events.push(PoolEvent::LogDeviceFailed { device, error });
            }
        }
        drop(config);
        if self.health.log_sides.borrow_mut().remove(&device) {
            // The device may have failed a label and no frame. The log must not rely on it either
            // way.
            let kind = ErrorKind::Layer(Cause::new(error.clone()));
            let path = self.device_path(device);
            self.log.fail_side(device, DeviceError::new(&path, Operation::Write, 0, 0, kind));
        }
        self.sync.config_dirty.set(true);
        self.restart_log_wanted();
        self.sync.wake.notify_all();
    }

    /// A device that holds a part of the log failed a write. A data device (the log is in the pool)
    /// is faulted.
    fn log_side_failed(&self, device: DeviceId, error: LabelError) {
        let online =
            |m: &forebay_array::MemberStatus| m.id == device && m.state == MemberState::Online;
        if self.store.array.status().iter().any(online) {
            let (path, failure) = (self.device_path(device), error.clone());
            let failed = PoolEvent::LogMemberFailed { device: path, error: failure };
            self.health.events.push(failed);
            if let Err(needed) = self.store.array.fault(device, error.device_error()) {
                let (error, needed) = (Box::new(error), Box::new(needed));
                self.stop(SuspendReason::LogDevice { error, needed });
                return;
            }
            self.take_array_events();
        }
        self.fail_log_side(device, &error);
    }

    /// The task that handles events of the log and of the array.
    pub(crate) async fn health_loop(self: Rc<Self>) {
        loop {
            if self.is_stopped() || self.lifecycle.closing.get() {
                return;
            }
            let log = Box::pin(self.log.next_event());
            let array = Box::pin(self.store.array.events().wait());
            let quit = Box::pin(
                self.sync.done.until(|| self.lifecycle.closing.get() || self.is_stopped()),
            );
            match rt::select(rt::select(log, array), quit).await {
                Either::Left((Either::Left((event, _)), _)) => self.log_event(event),
                Either::Left((Either::Right(((), _)), _)) => {
                    self.take_array_events();
                    if self.sync.config_dirty.get() {
                        self.sync.root_wanted.set(true);
                        self.sync.wake.notify_all();
                    }
                }
                Either::Right(_) => return,
            }
        }
    }

    /// Handles the log's events.
    pub(crate) fn take_log_events(&self) {
        while let Some(event) = self.log.take_event() {
            self.log_event(event);
        }
    }

    fn log_event(&self, event: LogEvent) {
        match event {
            // The device is well. The pool belongs to another owner, or has stopped.
            LogEvent::SideFailed { error, .. } if matches!(error.kind, ErrorKind::FenceLost(_)) => {
            }
            LogEvent::SideFailed { device, error } => {
                self.log_side_failed(device, error.into());
            }
            LogEvent::Paused => {
                // Writers wait for their group, so it is committed at once.
                self.restart_log_wanted();
                self.sync.root_wanted.set(true);
                self.sync.wake.notify_all();
            }
            LogEvent::Pressure => {
                self.sync.root_wanted.set(true);
                self.sync.wake.notify_all();
            }
        }
    }
}
