//! The model: what clients know about the volumes and about every change that they issued.
//!
//! What enters: notes of clients and the administrator. What leaves: permission to issue a change,
//! and the first failure. What always holds: the model lives outside of any runtime, like the
//! memory of a client on another machine. Two zeroings in flight never overlap.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt::sync::Notify;

use crate::history::{Change, History, Judged, Ticket};
use crate::scenario::Demand;
use crate::subject::{Figures, Sync};
use crate::verdict::{Failure, Kind};

use names::Names;
pub(crate) use rival::NUMBERS_OF_EACH;
use rival::Rival;
use scrubs::Scrubs;
pub use snapshots::{Promotions, SnapshotModel, tag_name};

mod names;
mod rival;
mod scrubs;
mod snapshots;

/// Whether a volume must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its creation was requested and not answered.
    Creating,
    /// It must exist.
    Present,
    /// Its destruction was requested and not answered, or its state is unknown.
    Destroying,
    /// It must not exist.
    Gone,
}

/// What clients know about one volume.
#[derive(Clone)]
pub struct VolumeModel {
    /// Every change.
    pub history: History,
    /// What it is called.
    pub names: Names,
    /// Whether it must exist.
    pub presence: Presence,
    /// Sizes that were requested and not answered with success.
    pub resizing: Vec<u64>,
    /// Its `sync` property. `None` while it changes or is unknown; then no write need be durable.
    pub sync: Option<Sync>,
    /// The property was changed at least once.
    pub sync_varies: bool,
    /// Its writes may be refused for want of space.
    pub is_sparse: bool,
    /// Whether it reserves its space is being changed, or the answer never came.
    pub is_reserving: bool,
    /// Its space is reserved for writes that were issued since then, by the history's clock.
    pub thick_since: u64,
    /// Clients use it although its creation is not answered.
    pub is_visible: bool,
    /// Its upper half lies so many sectors higher than its sectors say.
    pub gap_sectors: u64,
    /// Clients start no operations on the volume.
    pub is_closed: bool,
    /// A rollback, or an increment, that was requested and not answered.
    pub rolling_back: Option<RollingBack>,
    /// Rollbacks and increments that have taken effect, or may have.
    pub rollbacks: u64,
    /// Disks are in an outage, or were since the pool was created: when the last one ended, by the
    /// history's clock.
    outage: (bool, u64),
    busy: Vec<(u32, Change, u64, u64)>,
}

/// What a volume holds once a rollback or an increment has taken effect.
#[derive(Clone, Debug)]
pub struct RollingBack {
    /// The snapshot.
    pub contents: Box<History>,
    /// Which changes of the volume were answered when the rollback was requested. `None`: the
    /// volume becomes the snapshot, with its history.
    pub answered: Option<Vec<bool>>,
}

impl RollingBack {
    /// The history of the volume, which was `before`, after it.
    #[must_use]
    pub fn after(&self, before: &History) -> History {
        match &self.answered {
            Some(answered) => before.rolled_back(&self.contents, answered),
            None => (*self.contents).clone(),
        }
    }
}

impl VolumeModel {
    /// True when a change is durable once it is answered.
    #[must_use]
    pub fn makes_durable(&self, fua: bool) -> bool {
        match self.sync {
            Some(Sync::Standard) => fua,
            Some(Sync::Always) => true,
            Some(Sync::Disabled) | None => false,
        }
    }

    /// True when an answered flush makes durable what was answered before its issue.
    #[must_use]
    pub fn heeds_flushes(&self) -> bool {
        matches!(self.sync, Some(Sync::Standard | Sync::Always))
    }

    /// Notes the error of a read up to sector `end`. True when the error is excused: the volume was
    /// being shrunk or destroyed, or too many disks did not answer.
    pub fn read_fails(&mut self, issued: u64, end: u64) -> bool {
        self.history.read_ends(issued);
        self.may_fail(issued, end) || self.was_in_outage(issued)
    }

    /// True when an operation issued at `issued` up to sector `end` may fail: the volume was shrunk
    /// since, or is being shrunk, taken back to a smaller size, or destroyed.
    #[must_use]
    pub fn may_fail(&self, issued: u64, end: u64) -> bool {
        let goes_back_to = self.rolling_back.as_ref().map(|back| back.contents.sectors());
        let mut may_become = self.resizing.iter().copied().chain(goes_back_to);
        let smaller = self.history.sectors() < end || may_become.any(|to| to < end);
        smaller || self.history.was_shorter_since(issued, end) || !self.is_usable()
    }

    /// True when an outage of disks lay between `issued` and now.
    #[must_use]
    pub fn was_in_outage(&self, issued: u64) -> bool {
        self.outage.0 || self.outage.1 > issued
    }

    /// True when clients may use the volume.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        let is_seen = self.presence == Presence::Creating && self.is_visible;
        self.presence == Presence::Present || is_seen
    }

    /// True when a shrink or a rollback that is not answered yet may have changed this sector.
    #[must_use]
    pub fn may_be_cut(&self, sector: u64) -> bool {
        self.rolling_back.is_some() || self.resizing.iter().any(|to| sector >= *to)
    }

    /// Notes that something durable is in the volume, so that it must exist from now on.
    fn bind(&mut self) {
        if self.presence == Presence::Creating {
            self.presence = Presence::Present;
        }
    }

    /// The sector from which on the volume lies higher than its sectors say.
    #[must_use]
    pub fn split_sector(&self) -> u64 {
        if self.gap_sectors == 0 { u64::MAX } else { self.history.sectors() / 16 * 8 }
    }
}

/// A change that was issued, with its flags.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    /// The ticket of the history.
    pub ticket: Ticket,
    fua: bool,
    durable: bool,
}

/// How a change is made.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// It is durable when it is answered.
    pub fua: bool,
    /// Sectors that are changed in one step.
    pub step: u64,
}

impl Terms {
    /// A change in one step.
    #[must_use]
    pub fn whole(fua: bool) -> Self {
        Self { fua, step: u64::MAX }
    }
}

/// All volumes and snapshots, and the first failure.
pub struct Model {
    volumes: RefCell<BTreeMap<u32, VolumeModel>>,
    /// By volume and number.
    snapshots: RefCell<BTreeMap<(u32, u32), SnapshotModel>>,
    /// The promotions since the last import.
    pub promotions: RefCell<Promotions>,
    changed: Rc<Notify>,
    clock: Rc<Cell<u64>>,
    failure: RefCell<Option<Failure>>,
    demand: Demand,
    atomic_sectors: Cell<u64>,
    /// Groups that the administrator has had committed since the last import.
    pub commits: Cell<u64>,
    /// An import from an earlier root has begun and not ended.
    pub rewinds: Cell<bool>,
    /// The other machine may have written roots that the first machine's list of known pools was
    /// not told of.
    pub list_is_behind: Cell<bool>,
    /// Disks fail that the pool cannot do without.
    outage: Cell<bool>,
    /// This machine's link to its disks was cut.
    is_cut_off: Cell<bool>,
    /// Outages that have begun or ended.
    pub outages: Cell<u64>,
    /// Number of answered operations.
    pub acts: Cell<u64>,
    events: RefCell<BTreeMap<String, u64>>,
    /// Bytes that new volumes could take when the pool and its volumes had been created.
    pub available_at_first: Cell<Option<u64>>,
    /// What the pool said of itself before its export, until the next import.
    pub figures: RefCell<Option<Figures>>,
    /// An import was allowed to accept a loss, and its result is not judged yet.
    pub loss_accepted: Cell<bool>,
    /// The scrub that runs or is paused.
    pub scrubs: Scrubs,
    /// Another machine that wants the pool.
    rival: RefCell<Rival>,
}

/// The name with which volume `id` is created.
#[must_use]
pub fn volume_name(id: u32) -> String {
    format!("v{id}")
}

impl Model {
    /// A model without volumes.
    #[must_use]
    pub fn new(demand: Demand, atomic_sectors: u64) -> Rc<Self> {
        Rc::new(Self {
            volumes: RefCell::default(),
            snapshots: RefCell::default(),
            promotions: RefCell::default(),
            changed: Notify::new(),
            clock: Rc::new(Cell::new(1)),
            failure: RefCell::default(),
            demand,
            atomic_sectors: Cell::new(atomic_sectors),
            commits: Cell::new(0),
            rewinds: Cell::new(false),
            list_is_behind: Cell::new(false),
            outage: Cell::new(false),
            is_cut_off: Cell::new(false),
            outages: Cell::new(0),
            acts: Cell::new(0),
            events: RefCell::default(),
            available_at_first: Cell::new(None),
            figures: RefCell::default(),
            loss_accepted: Cell::new(false),
            scrubs: Scrubs::default(),
            rival: RefCell::default(),
        })
    }

    /// A copy for a forked run. Counts start at 0.
    #[must_use]
    pub fn fork(&self) -> Rc<Self> {
        self.fork_for(self.demand)
    }

    /// A copy for a forked run of which less is demanded.
    #[must_use]
    pub fn fork_for(&self, demand: Demand) -> Rc<Self> {
        let fork = Self::new(demand, self.atomic_sectors.get());
        fork.clock.set(self.clock.get());
        *fork.volumes.borrow_mut() = self.volumes.borrow().clone();
        let mut volumes = fork.volumes.borrow_mut();
        volumes.values_mut().for_each(|v| v.history.set_clock(fork.clock.clone()));
        drop(volumes);
        *fork.snapshots.borrow_mut() = self.snapshots.borrow().clone();
        let mut snapshots = fork.snapshots.borrow_mut();
        let contents = snapshots.values_mut().filter_map(|snapshot| snapshot.contents.as_mut());
        contents.for_each(|contents| contents.set_clock(fork.clock.clone()));
        drop(snapshots);
        fork.promotions.replace(self.promotions.borrow().clone());
        fork.available_at_first.set(self.available_at_first.get());
        fork.figures.replace(self.figures.borrow().clone());
        fork.commits.set(self.commits.get());
        fork.rewinds.set(self.rewinds.get());
        fork.list_is_behind.set(self.list_is_behind.get());
        fork.scrubs.set(&self.scrubs);
        fork
    }

    /// Leaves out so many numbers of each volume's changes.
    pub(crate) fn skip_numbers(&self, count: u32) {
        self.volumes.borrow_mut().values_mut().for_each(|v| v.history.skip_numbers(count));
    }

    /// Counts a named event.
    pub fn count(&self, event: &str, times: u64) {
        if times > 0 {
            *self.events.borrow_mut().entry(event.to_owned()).or_default() += times;
        }
    }

    /// Counts of events by name.
    #[must_use]
    pub fn events(&self) -> BTreeMap<String, u64> {
        self.events.borrow().clone()
    }

    /// Notes a failure. Only the first counts; later ones are its consequences. While another
    /// machine takes the pool, clients may see anything.
    pub fn object(&self, kind: Kind, message: impl Into<String>) {
        if let Some(failure) = self.contested(Failure { kind, message: message.into() }) {
            self.object_for_certain(failure.kind, failure.message);
        }
    }

    /// Notes a failure, whatever another machine does.
    pub fn object_for_certain(&self, kind: Kind, message: impl Into<String>) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            *failure = Some(Failure { kind, message: message.into() });
        }
    }

    /// Takes the first failure.
    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.borrow_mut().take()
    }

    /// True after the first failure.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Notes an error that a client saw. It is a failure when everything must work.
    pub fn error_seen(&self, what: &str, error: &dyn std::fmt::Display) {
        if self.is_cut_off.get() {
            self.count("errors of a machine that is cut off", 1);
        } else if self.demand == Demand::AllData {
            self.object(Kind::Error, format!("{what}: {error}"));
        }
    }

    /// Notes that disks fail which the pool may need, or that all of them are well and in use.
    pub fn set_outage(&self, is_on: bool) {
        if self.outage.replace(is_on) == is_on {
            return;
        }
        self.outages.set(self.outages.get() + 1);
        for volume in self.volumes.borrow_mut().values_mut() {
            volume.outage = (is_on, volume.history.now());
        }
        self.changed.notify_all();
    }

    /// Notes that this machine reaches its disks no more: its clients may see any error.
    pub fn cut_off(&self) {
        self.is_cut_off.set(true);
        self.set_outage(true);
    }

    /// True when this machine reaches its disks no more.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off.get()
    }

    /// True while disks fail that the pool may need.
    #[must_use]
    pub fn is_in_outage(&self) -> bool {
        self.outage.get()
    }

    /// Waits until no disk fails that the pool may need.
    pub async fn calm(&self) {
        while !self.failed() && self.is_in_outage() {
            self.changed.notified().await;
        }
    }

    /// Notes that all of the volume's space is reserved from now on.
    pub fn reserved(&self, id: u32) {
        let now = self.clock.get();
        self.update(id, |v| (v.is_sparse, v.thick_since) = (false, now));
    }

    /// Notes the request to create a volume.
    pub fn creating(&self, id: u32, sectors: u64) {
        let mut history = History::new(&volume_name(id), sectors, self.atomic_sectors.get());
        history.set_clock(self.clock.clone());
        let volume = VolumeModel {
            history,
            names: Names::default(),
            presence: Presence::Creating,
            resizing: Vec::new(),
            sync: Some(Sync::Standard),
            sync_varies: false,
            is_sparse: false,
            is_reserving: false,
            thick_since: 0,
            is_visible: false,
            gap_sectors: 0,
            is_closed: false,
            rolling_back: None,
            rollbacks: 0,
            outage: (self.outage.get(), 0),
            busy: Vec::new(),
        };
        self.volumes.borrow_mut().insert(id, volume);
    }

    /// Changes what is known about a volume.
    pub fn update<R>(&self, id: u32, change: impl FnOnce(&mut VolumeModel) -> R) -> Option<R> {
        let out = self.volumes.borrow_mut().get_mut(&id).map(change);
        self.changed.notify_all();
        out
    }

    /// Sets how many sectors of a write take effect together.
    pub fn set_atomic(&self, sectors: u64) {
        self.atomic_sectors.set(sectors);
        self.volumes.borrow_mut().values_mut().for_each(|v| v.history.set_atomic(sectors));
    }

    /// Notes that a volume shows a size to which it is being grown: clients use it at once.
    pub fn size_seen(&self, id: u32, sectors: u64) {
        self.update(id, |v| {
            if sectors > v.history.sectors() && v.resizing.contains(&sectors) {
                v.history.resize(sectors);
            }
        });
    }

    /// Notes that a volume is there whose creation is not answered.
    pub fn seen(&self, id: u32) {
        self.update(id, |v| v.is_visible = v.presence == Presence::Creating);
    }

    /// Total size of the volumes that must exist.
    #[must_use]
    pub fn sectors_present(&self) -> u64 {
        let volumes = self.volumes.borrow();
        let present = volumes.values().filter(|volume| volume.presence == Presence::Present);
        present.map(|volume| volume.history.sectors()).sum()
    }

    /// True when a volume must exist.
    #[must_use]
    pub fn must_be_there(&self, id: u32) -> bool {
        self.volumes.borrow().get(&id).is_some_and(|v| v.presence == Presence::Present)
    }

    /// Ids of all volumes ever created.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.volumes.borrow().keys().copied().collect()
    }

    /// Clips a range to the volume. `None` when the volume is absent, closed or too small.
    #[must_use]
    pub fn usable(&self, id: u32, first: u64, count: u64) -> Option<(u64, u64)> {
        let volumes = self.volumes.borrow();
        let volume = volumes.get(&id)?;
        let open = volume.is_usable() && !volume.is_closed;
        let sectors = volume.history.sectors();
        (open && first < sectors && count > 0).then(|| (first, count.min(sectors - first)))
    }

    /// Waits until a zeroing overlaps no other zeroing in flight. Then notes the issue.
    pub async fn issue(
        &self,
        id: u32,
        change: Change,
        (first, count): (u64, u64),
        Terms { fua, step }: Terms,
    ) -> Option<Issued> {
        let clashes = |volume: &VolumeModel| {
            volume.busy.iter().any(|(_, other, at, len)| {
                change == Change::Zero
                    && *other == Change::Zero
                    && first < at + len
                    && *at < first + count
            })
        };
        loop {
            {
                let mut volumes = self.volumes.borrow_mut();
                let volume = volumes.get_mut(&id)?;
                let open = volume.is_usable() && !volume.is_closed;
                if !open || first + count > volume.history.sectors() {
                    return None;
                }
                if !clashes(volume) {
                    let ticket = volume.history.issue(change, first, count, step);
                    volume.busy.push((ticket.number, change, first, count));
                    return Some(Issued { ticket, fua, durable: volume.makes_durable(fua) });
                }
            }
            self.changed.notified().await;
        }
    }

    /// Notes the answer to a change.
    pub fn answered<E>(&self, id: u32, issued: Issued, outcome: &Result<(), E>) {
        self.acts.set(self.acts.get() + 1);
        let Issued { ticket, fua, durable } = issued;
        if durable && outcome.is_ok() {
            self.judge_late_answer(id, &issued);
        }
        self.update(id, |volume| {
            volume.busy.retain(|(number, ..)| *number != ticket.number);
            match outcome {
                // When `sync` changed meanwhile, the weaker setting counts.
                Ok(()) => {
                    let is_durable = durable && volume.makes_durable(fua);
                    volume.history.complete(ticket, is_durable);
                    if is_durable {
                        volume.bind();
                    }
                }
                Err(_) => volume.history.fail(ticket),
            }
        });
    }

    /// Notes that the client of a change gave it up. With `may_follow` it may still take effect.
    pub fn give_up(&self, id: u32, issued: Issued, may_follow: bool) {
        let ticket = issued.ticket;
        self.update(id, |volume| {
            volume.busy.retain(|(number, ..)| *number != ticket.number);
            volume.history.give_up(ticket, may_follow);
        });
    }

    /// Closes a volume to new operations and waits for those in flight.
    pub async fn close(&self, id: u32) {
        self.update(id, |volume| volume.is_closed = true);
        loop {
            if self.volumes.borrow().get(&id).is_none_or(|volume| volume.busy.is_empty()) {
                return;
            }
            self.changed.notified().await;
        }
    }

    /// Waits until a volume is open or absent.
    pub async fn opened(&self, id: u32) {
        let closed =
            |volume: &VolumeModel| volume.is_closed && volume.presence == Presence::Present;
        while !self.failed() && self.volumes.borrow().get(&id).is_some_and(closed) {
            self.changed.notified().await;
        }
    }

    /// Forgets operations in flight: after a power cut no answer comes.
    pub fn forget_callers(&self) {
        for volume in self.volumes.borrow_mut().values_mut() {
            volume.busy.clear();
            volume.is_closed = false;
            volume.outage = (false, 0);
        }
        self.outage.set(false);
        self.is_cut_off.set(false);
        self.rival.take();
    }

    /// Notes the objection of a history.
    pub fn judge(&self, kind: Kind, judged: Judged) {
        if let Err(objection) = judged {
            self.object(kind, objection.to_string());
        }
    }
}
