//! What the clients know: the volumes they made and every change they issued.
//!
//! Lives outside of any runtime, as the memory of a client on another machine would.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt::sync::Notify;

use crate::history::{Change, History, Objection, Ticket};
use crate::scenario::Demand;
use crate::subject::Sync;
use crate::verdict::{Failure, Kind};

/// Whether a volume should be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its creation was asked for and not answered.
    Creating,
    /// It exists.
    Present,
    /// Its destruction was asked for and not answered, or its state is not known.
    Destroying,
    /// It is gone.
    Gone,
}

/// One volume, as clients know it.
#[derive(Clone)]
pub struct VolumeModel {
    /// What was written.
    pub history: History,
    /// Whether it is there.
    pub presence: Presence,
    /// Sizes that were asked for and not answered, or with an error.
    pub resizing: Vec<u64>,
    /// When its writes are durable; `None` while that is being changed, or is not known: then none
    /// need be.
    pub sync: Option<Sync>,
    /// It was set to something else than the default once.
    pub sync_varies: bool,
    /// Nobody starts anything new on it.
    pub closed: bool,
    busy: Vec<(u32, Change, u64, u64)>,
}

impl VolumeModel {
    /// Whether a change that asks for it (or not) with `fua` is durable when it is answered.
    #[must_use]
    pub fn makes_durable(&self, fua: bool) -> bool {
        match self.sync {
            Some(Sync::Standard) => fua,
            Some(Sync::Always) => true,
            Some(Sync::Disabled) | None => false,
        }
    }

    /// Whether a flush that is answered makes durable what was answered before it.
    #[must_use]
    pub fn heeds_flushes(&self) -> bool {
        matches!(self.sync, Some(Sync::Standard | Sync::Always))
    }

    /// A read up to `end`, issued at `issued`, was answered with an error. Whether it may have been:
    /// somebody was making the volume smaller, or destroying it.
    pub fn read_fails(&mut self, issued: u64, end: u64) -> bool {
        self.history.read_ends(issued);
        let smaller = self.history.sectors() < end || self.resizing.iter().any(|to| *to < end);
        smaller || self.presence != Presence::Present
    }
}

/// A change that was issued, and what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    /// Its place in the history.
    pub ticket: Ticket,
    fua: bool,
    durable: bool,
}

/// All volumes, and the first thing that went wrong.
pub struct Model {
    volumes: RefCell<BTreeMap<u32, VolumeModel>>,
    changed: Rc<Notify>,
    failure: RefCell<Option<Failure>>,
    demand: Demand,
    atomic_sectors: u64,
    /// Things clients did that were answered.
    pub acts: Cell<u64>,
    events: RefCell<BTreeMap<String, u64>>,
    /// An import was told to accept a loss, and its result has not been judged yet.
    pub loss_accepted: Cell<bool>,
}

/// The name of volume `id`.
#[must_use]
pub fn volume_name(id: u32) -> String {
    format!("v{id}")
}

impl Model {
    /// Without volumes.
    #[must_use]
    pub fn new(demand: Demand, atomic_sectors: u64) -> Rc<Self> {
        Rc::new(Self {
            volumes: RefCell::default(),
            changed: Notify::new(),
            failure: RefCell::default(),
            demand,
            atomic_sectors,
            acts: Cell::new(0),
            events: RefCell::default(),
            loss_accepted: Cell::new(false),
        })
    }

    /// What is known now, for another way that things may go from here. Counts start at 0.
    #[must_use]
    pub fn fork(&self) -> Rc<Self> {
        let fork = Self::new(self.demand, self.atomic_sectors);
        *fork.volumes.borrow_mut() = self.volumes.borrow().clone();
        fork
    }

    /// Counts a named event.
    pub fn count(&self, event: &str, times: u64) {
        if times > 0 {
            *self.events.borrow_mut().entry(event.to_owned()).or_default() += times;
        }
    }

    /// The named events that were counted.
    #[must_use]
    pub fn events(&self) -> BTreeMap<String, u64> {
        self.events.borrow().clone()
    }

    /// What is demanded.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.demand
    }

    /// Notes the first failure; later ones are its consequences.
    pub fn object(&self, kind: Kind, message: impl Into<String>) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            *failure = Some(Failure { kind, message: message.into() });
        }
    }

    /// The first failure, taken.
    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.borrow_mut().take()
    }

    /// Whether something went wrong already.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// An error that a client saw: an objection when everything must work.
    pub fn error_seen(&self, what: &str, error: &dyn std::fmt::Display) {
        if self.demand == Demand::AllData {
            self.object(Kind::Error, format!("{what}: {error}"));
        }
    }

    /// A volume is about to be created.
    pub fn creating(&self, id: u32, sectors: u64) {
        let history = History::new(&volume_name(id), sectors, self.atomic_sectors);
        let volume = VolumeModel {
            history,
            presence: Presence::Creating,
            resizing: Vec::new(),
            sync: Some(Sync::Standard),
            sync_varies: false,
            closed: false,
            busy: Vec::new(),
        };
        self.volumes.borrow_mut().insert(id, volume);
    }

    /// Changes what is known of a volume.
    pub fn update<R>(&self, id: u32, change: impl FnOnce(&mut VolumeModel) -> R) -> Option<R> {
        let out = self.volumes.borrow_mut().get_mut(&id).map(change);
        self.changed.notify_all();
        out
    }

    /// Sectors of all volumes that are there, as far as is known.
    #[must_use]
    pub fn sectors_present(&self) -> u64 {
        let volumes = self.volumes.borrow();
        let present = volumes.values().filter(|volume| volume.presence == Presence::Present);
        present.map(|volume| volume.history.sectors()).sum()
    }

    /// Ids of all volumes ever made.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.volumes.borrow().keys().copied().collect()
    }

    /// The range that a client may use of a range it wants, if any: inside the volume, which must
    /// be there and open.
    #[must_use]
    pub fn usable(&self, id: u32, first: u64, count: u64) -> Option<(u64, u64)> {
        let volumes = self.volumes.borrow();
        let volume = volumes.get(&id)?;
        let open = volume.presence == Presence::Present && !volume.closed;
        let sectors = volume.history.sectors();
        (open && first < sectors && count > 0).then(|| (first, count.min(sectors - first)))
    }

    /// Waits until `change` may be issued, then issues it: a zeroing never overlaps another change.
    pub async fn issue(
        &self,
        id: u32,
        change: Change,
        (first, count): (u64, u64),
        fua: bool,
    ) -> Option<Issued> {
        let clashes = |volume: &VolumeModel| {
            volume.busy.iter().any(|(_, other, at, len)| {
                (change == Change::Zero || *other == Change::Zero)
                    && first < at + len
                    && *at < first + count
            })
        };
        loop {
            {
                let mut volumes = self.volumes.borrow_mut();
                let volume = volumes.get_mut(&id)?;
                let open = volume.presence == Presence::Present && !volume.closed;
                if !open || first + count > volume.history.sectors() {
                    return None;
                }
                if !clashes(volume) {
                    let ticket = volume.history.issue(change, first, count);
                    volume.busy.push((ticket.number, change, first, count));
                    return Some(Issued { ticket, fua, durable: volume.makes_durable(fua) });
                }
            }
            self.changed.notified().await;
        }
    }

    /// A change was answered.
    pub fn answered<E>(&self, id: u32, issued: Issued, outcome: &Result<(), E>) {
        self.acts.set(self.acts.get() + 1);
        let Issued { ticket, fua, durable } = issued;
        self.update(id, |volume| {
            volume.busy.retain(|(number, ..)| *number != ticket.number);
            match outcome {
                // When the volume was set to something else meanwhile, the weaker of the two counts.
                Ok(()) => volume.history.complete(ticket, durable && volume.makes_durable(fua)),
                Err(_) => volume.history.fail(ticket),
            }
        });
    }

    /// Lets nobody start anything on a volume any more, and waits for what runs.
    pub async fn close(&self, id: u32) {
        self.update(id, |volume| volume.closed = true);
        loop {
            if self.volumes.borrow().get(&id).is_none_or(|volume| volume.busy.is_empty()) {
                return;
            }
            self.changed.notified().await;
        }
    }

    /// Waits while nobody may start anything on a volume that is there.
    pub async fn opened(&self, id: u32) {
        let closed = |volume: &VolumeModel| volume.closed && volume.presence == Presence::Present;
        while !self.failed() && self.volumes.borrow().get(&id).is_some_and(closed) {
            self.changed.notified().await;
        }
    }

    /// The power went: nobody waits for an answer any more.
    pub fn forget_callers(&self) {
        for volume in self.volumes.borrow_mut().values_mut() {
            volume.busy.clear();
            volume.closed = false;
        }
    }

    /// Notes an objection of a history.
    pub fn judge(&self, kind: Kind, judged: Result<(), Objection>) {
        if let Err(objection) = judged {
            self.object(kind, objection);
        }
    }
}
