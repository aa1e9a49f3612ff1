//! Service manager: sockets that it hands over, and what it is told (sd_notify).
//!
//! What enters: the environment that systemd sets. What leaves: listeners, messages. What always
//! holds: WATCHDOG is sent only after a request went through socket, runtime and pools of this
//! process; without a manager nothing is sent. Who calls: `serving`.

use std::cell::{Cell, RefCell};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use forebay_rt::net::Listener;
use forebay_units::Nanos;
use sd_notify::NotifyState;

use crate::control::Link;
use crate::failure::{ErrorCode, Failure};
use crate::log;

/// Between two messages that the start or the end goes on.
const EXTENSION_INTERVAL: Nanos = Nanos::from_secs(10);
/// By how much each of them moves the manager's deadline.
const EXTENSION: Nanos = Nanos::from_secs(60);

/// What the process does, as far as the manager's deadlines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Stopping,
}

/// The manager that started this process, if there is one.
pub struct ServiceManager {
    phase: Cell<Phase>,
    status: RefCell<String>,
    watchdog_interval: Option<Nanos>,
}

impl ServiceManager {
    /// The manager that the environment names. It is told that `control`, the control socket of
    /// this process, answers, as often as it wants to hear that.
    #[must_use]
    pub fn watched_at(control: PathBuf) -> Rc<Self> {
        let watchdog = sd_notify::watchdog_enabled()
            .and_then(|limit| u64::try_from(limit.as_nanos()).ok())
            .map(|limit| Nanos((limit / 3).max(1)));
        let manager = Rc::new(Self {
            phase: Cell::new(Phase::Starting),
            status: RefCell::default(),
            watchdog_interval: watchdog,
        });
        if std::env::var_os("NOTIFY_SOCKET").is_some() {
            forebay_rt::spawn(manager.clone().report_life(control));
        }
        manager
    }

    /// Clients are served from now on.
    pub fn ready(&self, status: &str) {
        self.phase.set(Phase::Serving);
        *self.status.borrow_mut() = status.to_owned();
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// What `systemctl status` shows. It is sent when it changes.
    pub fn status(&self, status: &str) {
        if *self.status.borrow() != status {
            *self.status.borrow_mut() = status.to_owned();
            tell(&[NotifyState::Status(status)]);
        }
    }

    /// The end has begun.
    pub fn stopping(&self, status: &str) {
        self.phase.set(Phase::Stopping);
        *self.status.borrow_mut() = status.to_owned();
        tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Tells the manager for ever that this process answers at `control`. A process that does not
    /// answer sends nothing more, and the manager ends it.
    async fn report_life(self: Rc<Self>, control: PathBuf) {
        let interval = self.watchdog_interval.unwrap_or(EXTENSION_INTERVAL).min(EXTENSION_INTERVAL);
        let extension = u32::try_from(EXTENSION.0 / 1000).expect("a minute in microseconds");
        loop {
            // A link that fails, or none, is no life.
            let answers = matches!(Link::connect(&control).await, Ok(Some(_)));
            let mut states = Vec::new();
            if answers && self.watchdog_interval.is_some() {
                states.push(NotifyState::Watchdog);
            }
            if answers && self.phase.get() != Phase::Serving {
                states.push(NotifyState::ExtendTimeoutUsec(extension));
            }
            if !states.is_empty() {
                tell(&states);
            }
            forebay_rt::sleep(interval).await;
        }
    }
}

/// Sends `states`. A message that is lost is followed by others.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        log::warning(&format!("the service manager cannot be told of the state: {e}"));
    }
}

/// The listeners that the manager hands over to this process. To be called once, before the
/// process opens files of its own.
pub fn inherited_listeners() -> Result<Vec<Listener>, Failure> {
    let failed = |what: String| {
        Failure::new(ErrorCode::CannotListen, what)
            .with_hint("each socket of the socket unit must be a ListenStream= with Accept=no")
    };
    let given = sd_notify::listen_fds()
        .map_err(|e| failed(format!("the sockets of the service manager (LISTEN_FDS): {e}")))?;
    let mut listeners = Vec::new();
    for number in given {
        // SAFETY: the manager opened it for this process (LISTEN_PID), which takes it once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        listeners.push(Listener::inherited(fd).map_err(|e| {
            failed(format!("descriptor {number} of the service manager (LISTEN_FDS): {e}"))
        })?);
    }
    Ok(listeners)
}
