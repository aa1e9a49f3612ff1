//! Writer of the list of known pools: what pools report of their configurations.
//!
//! A folder that does not answer (a stopped process has its lock, or its file system hangs) delays
//! a pool once, for [`REPORT_TIMEOUT`] at most. When it answers again it gets the newest
//! generation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::spec::Told;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::state::{KnownPool, StateDir};

/// How long a root of a pool waits for the list of known pools.
const REPORT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Between two attempts on a folder that fails.
const RETRY_INTERVAL: Nanos = Nanos::from_secs(5);
/// How long a command waits for the folder: longer than for its lock.
const COMMAND_TIMEOUT: Nanos = Nanos::from_secs(5);

/// A state of a pool, and the paths of its devices.
type Report = (Told, Vec<String>);

/// Keeps the list of known pools.
pub struct StateWriter {
    state: StateDir,
    /// By pool, what is not yet in the list.
    pending: RefCell<BTreeMap<u64, Report>>,
    is_running: Cell<bool>,
    /// The folder has failed, or has exceeded [`REPORT_TIMEOUT`].
    is_late: Cell<bool>,
    changed: Rc<Notify>,
}

impl StateWriter {
    /// A writer for this folder.
    #[must_use]
    pub fn new(state: StateDir) -> Rc<Self> {
        Rc::new(Self {
            state,
            pending: RefCell::default(),
            is_running: Cell::new(false),
            is_late: Cell::new(false),
            changed: Notify::new(),
        })
    }

    /// Does `work` with the folder on another thread. Fails when the folder does not answer.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StateDir) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let state = self.state.clone();
        let working = Box::pin(rt::aside(move || work(&state)));
        rt::timeout(COMMAND_TIMEOUT, working).await.unwrap_or_else(|_| {
            let path = self.state.path().display();
            let message = format!("state folder {path} does not answer; see its file system");
            Err(Failure::new(ErrorCode::StateFolder, message))
        })
    }

    /// Keeps what `pool` reports. Waits until it is kept, unless the folder is late already.
    pub async fn report(self: &Rc<Self>, pool: u64, told: Told, devices: Vec<String>) {
        self.pending.borrow_mut().insert(pool, (told, devices));
        if !self.is_running.replace(true) {
            rt::spawn_detached(Box::pin(self.clone().write_pending()));
        }
        let done = || !self.pending.borrow().contains_key(&pool) || self.is_late.get();
        if rt::timeout(REPORT_TIMEOUT, Box::pin(self.changed.until(done))).await.is_err() {
            self.set_late(&format!("state folder {} does not answer", self.state.path().display()));
        }
    }

    /// Takes devices that have left a pool off the list. A folder that fails keeps them, which is
    /// no harm: the pool has changed, and has reported where its devices are.
    pub async fn forget_devices_that_left(&self, known: KnownPool) {
        match self.run(move |state| state.remember(known)).await {
            Err(failure) if !self.is_late.get() => log::warning(&failure.line()),
            _ => {}
        }
    }

    fn set_late(&self, why: &str) {
        // Pools go on. Meanwhile an import cannot tell an old half of a mirror from a new one.
        if !self.is_late.replace(true) {
            log::warning(&format!(
                "{why}; until the state folder answers, an import does not learn of changes that \
                 are newer than the devices it finds"
            ));
        }
        self.changed.notify_all();
    }

    async fn write_pending(self: Rc<Self>) {
        loop {
            let next =
                self.pending.borrow().first_key_value().map(|(id, last)| (*id, last.clone()));
            let Some((pool, report)) = next else { break };
            let (state, (told, devices)) = (self.state.clone(), report.clone());
            match rt::aside(move || state.witness(pool, told, &devices)).await {
                Ok(()) => {
                    // Unless the pool has reported something newer meanwhile.
                    if self.pending.borrow().get(&pool) == Some(&report) {
                        self.pending.borrow_mut().remove(&pool);
                    }
                    self.is_late.set(false);
                    self.changed.notify_all();
                }
                Err(failure) => {
                    self.set_late(&failure.line());
                    rt::sleep(RETRY_INTERVAL).await;
                }
            }
        }
        self.is_running.set(false);
    }
}

#[cfg(test)]
mod tests;
