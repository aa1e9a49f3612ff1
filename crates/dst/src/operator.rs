//! The operator of a suspended pool: repairs its disks, and clears it until it goes on.
//!
//! What enters: an outage of the scenario. What leaves: a pool that is in use again when the work
//! ends, counts by name, and an objection when the pool does not go on or lacks what was answered.
//! Who calls: `boot.rs`, as one task beside the clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::boot::counted_from_now;
use crate::boot_context::BootContext;
use crate::client::{SectorRange, read};
use crate::disks::Disks;
use crate::model::Model;
use crate::scenario::{Demand, Outage};
use crate::subject::{Manage, Pool, Subject};
use crate::verdict::Kind;

/// How often the operator looks whether the pool is suspended.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// Faults that have not suspended the pool after so long do not count as an outage any more.
const SUSPENDS_WITHIN: Nanos = Nanos::from_secs(45);
/// A pool must go on so soon after the repair of its disks.
const RESUMES_WITHIN: Nanos = Nanos::from_secs(300);
/// And after so many attempts.
const MAX_REFUSALS: u64 = 20;
/// Shortest pause before attempts beyond the scenario's list.
const MIN_PAUSE: Nanos = Nanos::from_secs(1);
/// A pool must be whole so soon after its disks are well.
const WHOLE_WITHIN: Nanos = Nanos::from_secs(600);
/// Sectors that the operator reads at once.
const CHUNK_SECTORS: u64 = 256;

/// The operator of one boot.
pub(crate) struct Operator {
    task: rt::JoinHandle<()>,
    work_is_over: Rc<Cell<bool>>,
}

impl Operator {
    /// Starts the operator.
    pub(crate) fn start<S: Subject>(
        context: &BootContext<S>,
        pool: &Rc<S::Pool>,
        devices: &[Device],
        outage: Outage,
    ) -> Self {
        let work_is_over = Rc::new(Cell::new(false));
        let watch = Watch {
            pool: pool.clone(),
            devices: devices.to_vec(),
            disks: context.disks.clone(),
            model: context.model.clone(),
            phase: context.phase.clone(),
            demand: context.scenario.demand,
            outage,
            clears: Cell::new(0),
            work_is_over: work_is_over.clone(),
            is_given_up: Cell::new(false),
            readers: RefCell::default(),
        };
        Self { task: rt::spawn(watch.run()), work_is_over }
    }

    /// Ends all faults. Returns when the pool works.
    pub(crate) async fn end(self) {
        self.work_is_over.set(true);
        self.task.await;
    }
}

/// The task of an operator.
struct Watch<P: Pool> {
    pool: Rc<P>,
    devices: Vec<Device>,
    disks: Rc<Disks>,
    model: Rc<Model>,
    phase: Rc<Cell<&'static str>>,
    demand: Demand,
    outage: Outage,
    /// Attempts to clear the pool so far.
    clears: Cell<u64>,
    work_is_over: Rc<Cell<bool>>,
    /// The pool stays suspended, and requests fail.
    is_given_up: Cell<bool>,
    /// Tasks that read everything after a suspension.
    readers: RefCell<Vec<rt::JoinHandle<()>>>,
}

impl<P: Pool> Watch<P> {
    async fn run(self) {
        while !self.model.failed() && !self.is_given_up.get() {
            let is_over = self.work_is_over.get();
            if is_over {
                self.disks.end_faults();
            }
            if self.model.is_in_outage() || self.pool.is_suspended() {
                self.endure().await;
            } else if is_over {
                rt::join_all(self.readers.take()).await;
                return;
            }
            rt::sleep(POLL_INTERVAL).await;
        }
        self.disks.end_faults();
        self.model.set_outage(false);
        self.pool.give_up();
    }

    /// Sees an outage through to its end.
    async fn endure(&self) {
        let begun = rt::now();
        while !self.pool.is_suspended()
            && rt::now().since(begun) < SUSPENDS_WITHIN
            && !self.work_is_over.get()
        {
            rt::sleep(POLL_INTERVAL).await;
        }
        let is_suspended = self.pool.is_suspended();
        if is_suspended {
            self.model.count("suspension: pools suspended", 1);
            self.phase.set("suspension");
        } else {
            self.model.count("suspension: outages survived without one", 1);
        }
        let repair_at = rt::now() + Nanos(self.outage.lasts_ns);
        let mut refusals = 0;
        while !self.model.failed() {
            if self.pool.is_suspended() {
                self.pause().await;
                let is_repaired = rt::now() >= repair_at;
                if is_repaired {
                    self.repair();
                }
                if self.clear().await || !is_repaired {
                    continue;
                }
                refusals += 1;
                if refusals > MAX_REFUSALS && rt::now().since(repair_at) > RESUMES_WITHIN {
                    self.give_up();
                    break;
                }
            } else if is_suspended && rt::now() < repair_at && !self.work_is_over.get() {
                // The pool goes on without some disks.
                rt::sleep(POLL_INTERVAL).await;
            } else {
                let strikes = self.repair();
                if self.works(is_suspended, strikes).await {
                    self.model.set_outage(false);
                    self.start_reader();
                    break;
                }
            }
        }
        self.phase.set("work");
    }

    /// Ends the faults that have struck, and returns their number. Others may strike later.
    fn repair(&self) -> u64 {
        self.disks.world.tell(|| "the disks are repaired".to_owned());
        self.disks.stacks.iter().for_each(|stack| stack.heal());
        self.disks.strikes.get()
    }

    /// Waits until the next attempt.
    async fn pause(&self) {
        let pauses = &self.outage.pauses_ns;
        let first = pauses.get(self.clears.get() as usize).copied();
        let later = || pauses.last().copied().unwrap_or(0).max(MIN_PAUSE.0);
        rt::sleep(Nanos(first.unwrap_or_else(later))).await;
    }

    /// Tries to clear the pool. True when it goes on, with everything that was answered.
    async fn clear(&self) -> bool {
        let number = self.clears.replace(self.clears.get() + 1);
        if let Some((at, point)) = self.outage.cut {
            if at == number {
                let world = &self.disks.world;
                world.plan_crash(Some(counted_from_now(point, world)));
            }
        }
        self.phase.set("clear");
        let outcome = self.pool.clear(&self.devices).await;
        self.phase.set(if outcome.is_ok() { "work" } else { "suspension" });
        match outcome {
            Ok(()) => {
                self.model.count("suspension: pools cleared", 1);
                self.start_reader();
                true
            }
            Err(refusal) => {
                self.disks.world.tell(|| format!("clear refused: {}", refusal.message));
                self.model.count("suspension: clears refused", 1);
                false
            }
        }
    }

    /// Ends a suspension that does not end. Only a pool that lost more than it may can have one.
    fn give_up(&self) {
        if self.demand == Demand::AllData {
            let text = "the pool does not go on, although its disks are well";
            return self.model.object(Kind::Hang, text);
        }
        self.model.count("suspension: given up", 1);
        self.is_given_up.set(true);
    }

    /// True when the pool commits, and has all its disks again if the scenario says so or it was
    /// not imported anew. False when more than so many faults have struck.
    async fn works(&self, is_cleared: bool, strikes: u64) -> bool {
        if self.pool.manage(&self.devices, &Manage::Commit).await.is_err() {
            rt::sleep(Nanos::from_secs(1)).await;
            return false;
        }
        let is_enough = is_cleared && !self.outage.brings_online;
        (is_enough || self.make_whole(strikes).await) && self.disks.strikes.get() == strikes
    }

    /// Brings every disk online and waits until each holds everything. False when the pool is
    /// suspended meanwhile, or more than so many faults have struck.
    async fn make_whole(&self, strikes: u64) -> bool {
        let begun = rt::now();
        let mut refused = String::new();
        while !self.pool.is_suspended() && self.disks.strikes.get() == strikes {
            let lacking = self.pool.lacking(&self.devices);
            if lacking.as_ref().is_some_and(Vec::is_empty) {
                return true;
            }
            for disk in lacking.iter().flatten() {
                // Refused while the disk is online and only waits for its turn.
                let online = self.pool.manage(&self.devices, &Manage::Online(*disk)).await;
                refused = online.err().map_or(refused, |refusal| refusal.message);
            }
            if rt::now().since(begun) > WHOLE_WITHIN {
                if self.demand == Demand::AllData {
                    let text = format!("disks {lacking:?} are well and stay incomplete: {refused}");
                    self.model.object(Kind::Hang, text);
                }
                return true;
            }
            rt::sleep(Nanos::from_secs(1)).await;
        }
        false
    }

    /// Starts a task that reads everything. Its requests may have to wait for the operator.
    fn start_reader(&self) {
        let (pool, model) = (self.pool.clone(), self.model.clone());
        self.readers.borrow_mut().push(rt::spawn(read_everything(pool, model)));
    }
}

/// Reads every volume: clients must find what was answered before.
async fn read_everything<P: Pool>(pool: Rc<P>, model: Rc<Model>) {
    for id in model.ids() {
        if !model.must_be_there(id) {
            continue;
        }
        let Some(device) = model.open_by(id, |name| pool.volume(name)) else {
            let text = format!("{} is not there after a suspension", model.name_of(id));
            return model.object(Kind::Volumes, text);
        };
        let sectors = model.update(id, |v| v.history.sectors()).unwrap_or(0);
        let mut at = 0;
        while at < sectors && !model.failed() {
            let chunk = SectorRange::of(&model, id, at, CHUNK_SECTORS.min(sectors - at));
            at += chunk.count;
            read(&device, &model, chunk).await;
        }
    }
}
