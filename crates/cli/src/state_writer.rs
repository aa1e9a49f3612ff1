//! What pools tell of their configurations, on its way to the state folder.
//!
//! What enters: what configurations are called, as they are written. What leaves: the newest of each pool,
//! in the list of known pools. What always holds: a folder that does not answer (a process that stands still
//! with its lock, a file system that hangs) keeps no pool waiting for longer than [`PATIENCE`], and only
//! once; whoever is late is told the latest. Who calls me: the set of open pools.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::spec::Told;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::failure::{Failure, report};
use crate::state::StateDir;

/// How long a root waits for the list of known pools.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// When a folder that failed is tried again.
const AGAIN: Nanos = Nanos::from_secs(5);
/// How long a command waits for the folder: more than for its lock.
const COMMAND: Nanos = Nanos::from_secs(5);

/// Keeps the list of known pools.
pub struct StateWriter {
    state: StateDir,
    /// By pool, what is still to be told.
    wanted: RefCell<BTreeMap<u64, Told>>,
    works: Cell<bool>,
    /// The folder has failed, or kept somebody waiting.
    late: Cell<bool>,
    changed: Rc<Notify>,
}

impl StateWriter {
    /// One for this folder.
    #[must_use]
    pub fn new(state: StateDir) -> Rc<Self> {
        Rc::new(Self {
            state,
            wanted: RefCell::default(),
            works: Cell::new(false),
            late: Cell::new(false),
            changed: Notify::new(),
        })
    }

    /// Does `work` with the folder, while others run. Fails when the folder does not answer.
    pub async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StateDir) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let state = self.state.clone();
        let working = Box::pin(rt::aside(move || work(&state)));
        rt::timeout(COMMAND, working).await.unwrap_or_else(|_| {
            let path = self.state.path().display();
            Err(Failure::new(format!("state folder {path} does not answer; see its file system")))
        })
    }

    /// Has what is told of a pool kept, and waits for that unless the folder is known to be late.
    pub async fn tell(self: &Rc<Self>, pool: u64, told: Told) {
        self.wanted.borrow_mut().insert(pool, told);
        if !self.works.replace(true) {
            rt::spawn_detached(Box::pin(self.clone().work()));
        }
        let done = || !self.wanted.borrow().contains_key(&pool) || self.late.get();
        if rt::timeout(PATIENCE, Box::pin(self.changed.until(done))).await.is_err() {
            self.is_late("does not answer");
        }
    }

    fn is_late(&self, why: &str) {
        // The pool goes on without it: an old half of a mirror is not told from a new one meanwhile.
        if !self.late.replace(true) {
            report(&format!(
                "warning: state folder {}: {why}; until it answers, imports are not told of newer \
                 changes than they find",
                self.state.path().display()
            ));
        }
        self.changed.notify_all();
    }

    async fn work(self: Rc<Self>) {
        loop {
            let next = self.wanted.borrow().first_key_value().map(|(pool, told)| (*pool, *told));
            let Some((pool, told)) = next else { break };
            let state = self.state.clone();
            match rt::aside(move || state.witness(pool, told)).await {
                Ok(()) => {
                    // Unless there is something newer to tell by now.
                    if self.wanted.borrow().get(&pool) == Some(&told) {
                        self.wanted.borrow_mut().remove(&pool);
                    }
                    self.late.set(false);
                    self.changed.notify_all();
                }
                Err(failure) => {
                    self.is_late(&failure.message);
                    rt::sleep(AGAIN).await;
                }
            }
        }
        self.works.set(false);
    }
}
