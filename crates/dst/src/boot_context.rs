//! What the tasks of one boot share, and how a boot ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::apart::Importing;
use crate::contest::Contest;
use crate::disks::Disks;
use crate::model::Model;
use crate::scenario::Scenario;
use crate::subject::Subject;
use crate::verdict::Tally;

/// How a boot ended.
pub(crate) enum BootEnd {
    /// The work ended, and the power fails now.
    Crashed,
    /// The pool was exported, or there was an objection.
    Done,
    /// The subject refused to create or import the pool.
    Refused,
}

/// What the tasks of one boot share.
pub(crate) struct BootContext<S: Subject> {
    pub(crate) subject: Rc<S>,
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) disks: Rc<Disks>,
    pub(crate) model: Rc<Model>,
    pub(crate) tally: Rc<RefCell<Tally>>,
    /// What the boot is doing, for messages.
    pub(crate) phase: Rc<Cell<&'static str>>,
    /// No scrubs at the end.
    pub(crate) is_brief: bool,
    /// No scrub at the end, and one that runs or is paused stays.
    pub(crate) leaves_scrub: bool,
    pub(crate) importing: Importing,
    /// On the machine that has the pool: another one takes it.
    pub(crate) contest: Option<Rc<Contest>>,
}

impl<S: Subject> BootContext<S> {
    /// The same on another machine, which wants the pool.
    pub(crate) fn on_other(&self, subject: Rc<S>) -> Self {
        Self {
            subject,
            scenario: self.scenario.clone(),
            disks: self.disks.clone(),
            model: self.model.clone(),
            tally: self.tally.clone(),
            phase: self.phase.clone(),
            is_brief: self.is_brief,
            leaves_scrub: self.leaves_scrub,
            importing: self.importing,
            contest: None,
        }
    }
}
