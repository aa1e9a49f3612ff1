//! The race for a pool between the next owner and a third machine.
//!
//! What enters: the third machine's context, and the imports that it tries. What leaves: its pool,
//! when it is the first to have it. What always holds: only one machine gets the pool. Who calls:
//! `next_owner.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_rt as rt;

use crate::boot_context::BootContext;
use crate::contest::Contest;
use crate::model::Model;
use crate::scenario::Attempt;
use crate::subject::Subject;
use crate::verdict::Kind;

/// What the machines that want a pool share.
pub(crate) struct Race<P> {
    pub(crate) contest: Rc<Contest>,
    /// A third machine takes part.
    has_rival: bool,
    /// Imports under way.
    imports: Cell<u32>,
    /// A machine has imported the pool.
    is_won: Cell<bool>,
    /// The third machine's pool, until the next owner's task goes on with it.
    of_rival: RefCell<Option<P>>,
}

impl<P> Race<P> {
    pub(crate) fn new(contest: &Rc<Contest>, has_rival: bool) -> Rc<Self> {
        Rc::new(Self {
            contest: contest.clone(),
            has_rival,
            imports: Cell::new(0),
            is_won: Cell::new(false),
            of_rival: RefCell::new(None),
        })
    }

    /// True when a refusal may be the other machine's doing.
    pub(crate) fn has_rival(&self) -> bool {
        self.has_rival
    }

    /// True when one of the machines has the pool.
    pub(crate) fn is_won(&self) -> bool {
        self.is_won.get()
    }

    /// The third machine's pool, if it was the first to have it.
    pub(crate) fn take(&self) -> Option<P> {
        self.of_rival.take()
    }

    /// An import begins. Until the last one ends, errors that the owner's clients see do not count.
    pub(crate) fn import_starts(&self, owner: &Model) {
        if self.imports.replace(self.imports.get() + 1) == 0 && !self.is_won() {
            owner.rival_imports();
        }
        self.contest.import_starts();
    }

    /// An import was refused.
    pub(crate) fn import_is_refused(&self, owner: &Model) {
        self.imports.set(self.imports.get() - 1);
        if self.imports.get() == 0 && !self.is_won() {
            owner.rival_is_refused();
        }
    }

    /// An import has the pool: it must be the only one.
    pub(crate) fn import_succeeds(&self, owner: &Model) {
        if self.is_won.replace(true) {
            let text = "two machines have taken the pool";
            owner.object_for_certain(Kind::Owners, text);
        }
    }
}

impl<S: Subject> BootContext<S> {
    /// On the third machine: tries to import the pool.
    pub(crate) async fn compete(self, attempts: Vec<Attempt>, host: u64, race: Rc<Race<S::Pool>>) {
        let devices = self.disks.open_on(host, &self.scenario.spec, &[]).await;
        for attempt in attempts {
            let taken = self.attempt(&devices, &attempt, &race).await;
            if taken.is_some() {
                self.model.count("takeovers by a third machine", 1);
                race.of_rival.replace(taken);
                return;
            }
            if self.model.failed() {
                return;
            }
        }
    }
}

/// Starts the third machine, if there is one.
pub(crate) fn start<S: Subject>(
    rival: Option<BootContext<S>>,
    attempts: Vec<Attempt>,
    host: u64,
    race: &Rc<Race<S::Pool>>,
) -> Option<rt::JoinHandle<()>> {
    Some(rt::spawn(rival?.compete(attempts, host, race.clone())))
}
