//! The task of one boot: creates or imports the pool, lets clients work, and ends in order.
//!
//! What enters: what outlives a boot, and one boot of the scenario. What leaves: how it ended.
//! What always holds: an import is judged before any client starts.
//! Who calls: [`Run::boot`](crate::Run::boot), inside a fresh runtime.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use forebay_device::Device;
use forebay_nbd::Server;
use forebay_rt as rt;
use forebay_sim::{CrashPoint, World};
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::administrator::Administrator;
use crate::apart::Importing;
use crate::boot_context::{BootContext, BootEnd};
use crate::client::client;
use crate::contest::Decision;
use crate::coverage::Activity;
use crate::figures;
use crate::judgement::{finish, judge};
use crate::leaks::{check_after_work, check_promises};
use crate::log_memory::BATTERY_SECS;
use crate::model::{Presence, volume_name};
use crate::operator::Operator;
use crate::panics;
use crate::refusal;
use crate::scenario::{Admin, Boot, Demand, TimedFault, has_takeovers};
use crate::subject::{Cause, ImportMode, Pool, Refusal, ScrubPhase, Subject};
use crate::succession::succeed;
use crate::transport::{Transport, serve};
use crate::verdict::Kind;

/// After this long no request of an earlier boot is on its way to a store.
const LATE_REQUESTS: Nanos = Nanos::from_secs(20);

impl<S: Subject> BootContext<S> {
    /// Runs the boot. Without `is_created` it creates the pool first.
    pub(crate) async fn run(self, boot: Boot, is_created: bool) -> BootEnd {
        let devices = self.open_devices(&boot, is_created).await;
        self.subject.connect(self.disks.networks.start(&self.disks.devices()));
        let phase = self.phase.clone();
        self.disks.coverage.observe(move || (phase.get(), Activity::default()));
        let coverage = self.disks.coverage.clone();
        self.disks.world.at_power_cut(move || coverage.note("power cut", false));
        let pool = match is_created {
            true => self.start_with_import(&boot, &devices).await,
            false => self.start_with_creation(&boot, &devices).await,
        };
        let Some(pool) = pool else { return BootEnd::Refused };
        let pool = Rc::new(pool);
        self.observe(&pool);
        if self.model.failed() {
            return BootEnd::Done;
        }
        if let Some(succession) = &boot.succession {
            succeed(&self, &*pool, &devices, succession, &boot.faults).await;
            if self.model.failed() {
                return BootEnd::Done;
            }
        }
        if boot.outage.is_some() {
            self.schedule_outage(&boot.faults);
        }
        self.phase.set("work");
        if let Some(crash) = boot.crash.as_ref().filter(|crash| is_created && crash.in_work) {
            self.disks.world.plan_crash(Some(counted_from_now(crash.point, &self.disks.world)));
        }
        if let (Some(contest), Some(plan)) = (&self.contest, &boot.takeover) {
            contest.begin_at(plan.at_command);
        }
        self.disks.schedule_map_loss(boot.lost_map);
        self.count_events_at_power_cut(&pool);
        let server = (!boot.remote.is_empty()).then(|| serve(&pool));
        let crashes = boot.crash.is_some();
        self.work(&pool, server.as_ref(), boot, devices).await;
        check_promises(&self.model, &*pool);
        for (name, count) in pool.events() {
            self.model.count(&name, count);
        }
        if self.is_replaced(&*pool).await {
            return BootEnd::Done;
        }
        if self.scenario.keeps_disks {
            self.check_disks_kept(&*pool);
        }
        if self.scenario.counts_leaks && !self.model.failed() {
            check_after_work(&self, &*pool, server.as_deref()).await;
        }
        if crashes && self.disks.machine.is_on_battery() {
            self.phase.set("battery");
            rt::sleep(Nanos::from_secs(BATTERY_SECS + 1)).await;
        }
        if crashes {
            self.tally.borrow_mut().event("power cut after the work");
            return BootEnd::Crashed;
        }
        if let Some(server) = server {
            let left = server.stop(Nanos::from_secs(60)).await;
            if left > 0 {
                self.model.object(Kind::Hang, format!("{left} NBD connections do not end"));
                return BootEnd::Done;
            }
        }
        let Ok(pool) = Rc::try_unwrap(pool) else { panic!("a client still holds the pool") };
        finish(&self, pool, self.scenario.demand).await;
        BootEnd::Done
    }

    /// The devices for the pool, behind a link of this machine if there is another one.
    async fn open_devices(&self, boot: &Boot, is_created: bool) -> Vec<Device> {
        let spec = &self.scenario.spec;
        let link = self.contest.as_ref().map(|contest| &contest.link);
        let devices = self.disks.open_devices(spec, is_created, link).await;
        let Some(contest) = &self.contest else { return devices };
        // A fault may last longer than its disk outlasts when a machine stands still.
        self.disks.struck.borrow_mut().extend(boot.faults.iter().map(|timed| timed.disk));
        let loss = boot.takeover.as_ref().and_then(|takeover| takeover.loss.as_ref());
        let lost = loss.map_or(&[][..], |loss| &loss.disks);
        self.disks.struck.borrow_mut().extend(lost);
        let over = |(disk, device)| match spec.is_in_store(disk) {
            true => device,
            false if lost.contains(&disk) => contest.lost.over(contest.link.over(device)),
            false => contest.link.over(device),
        };
        devices.into_iter().enumerate().map(over).collect()
    }

    /// Arms faults that may suspend the pool, counted from now.
    fn schedule_outage(&self, faults: &[TimedFault]) {
        let begun = self.disks.world.submitted();
        let later =
            |fault: TimedFault| TimedFault { at_command: fault.at_command + begun, ..fault };
        let faults: Vec<_> = faults.iter().cloned().map(later).collect();
        self.disks.schedule(&faults, Some(&self.model));
    }

    /// Lets the other machine go on, if there is one. True when it has the pool.
    async fn is_replaced(&self, pool: &S::Pool) -> bool {
        let Some(contest) = &self.contest else { return false };
        contest.begin();
        let is_replaced = contest.decided().await == Decision::Replaced;
        if is_replaced {
            self.check_replaced(pool);
        }
        contest.owner_ends();
        is_replaced
    }

    /// Objects when the pool has put a disk out of use without a reason.
    pub(crate) fn check_disks_kept(&self, pool: &S::Pool) {
        let lacking = pool.lacking(&self.disks.devices()).unwrap_or_default();
        if !lacking.is_empty() {
            let text = format!("disks {lacking:?} are not in use, and nothing is wrong with them");
            self.model.object(Kind::Disks, text);
        }
    }

    async fn start_with_creation(&self, boot: &Boot, devices: &[Device]) -> Option<S::Pool> {
        self.phase.set("creation");
        match self.create(devices).await {
            Ok(pool) => {
                // Commands are counted from here, so that crash points are alike for all shapes.
                self.disks.world.power_on();
                self.disks.world.plan_crash(boot.crash.as_ref().map(|crash| crash.point));
                if boot.outage.is_none() {
                    self.disks.schedule(&boot.faults, None);
                }
                self.disks.machine.schedule(&self.disks.world, &boot.power);
                self.disks.schedule_networks(&boot.network);
                self.disks.schedule_losses(&boot.lost_objects);
                Some(pool)
            }
            Err(refusal) => {
                self.model.object(Kind::Error, format!("create: {}", refusal.message));
                None
            }
        }
    }

    async fn start_with_import(&self, boot: &Boot, devices: &[Device]) -> Option<S::Pool> {
        if let Some(rot) = &boot.map_rot {
            self.disks.rot_map(rot);
            self.model.count("rot in the map journal", 1);
        }
        if boot.succession.is_none() && boot.outage.is_none() {
            self.disks.schedule(&boot.faults, None);
        }
        self.disks.keep_map(&boot.stale_map);
        self.disks.machine.schedule(&self.disks.world, &boot.power);
        self.disks.schedule_networks(&boot.network);
        self.disks.schedule_losses(&boot.lost_objects);
        self.phase.set("import");
        let rewinds = boot.rewinds.then_some(1 + boot.further_roots);
        self.import(devices, rewinds).await
    }

    /// Lets the coverage ask what this pool does.
    fn observe(&self, pool: &Rc<S::Pool>) {
        let (pool, phase) = (Rc::downgrade(pool), self.phase.clone());
        self.disks.coverage.observe(move || {
            // A fault may strike while the pool has its own state borrowed.
            let read = || pool.upgrade().map_or_else(Activity::default, |pool| pool.activity());
            (phase.get(), panics::catch(AssertUnwindSafe(read)).unwrap_or_default())
        });
    }

    /// Counts the pool's events when the power is cut, while the pool still exists.
    fn count_events_at_power_cut(&self, pool: &Rc<S::Pool>) {
        let (pool, model) = (Rc::downgrade(pool), self.model.clone());
        let (coverage, struck) = (self.disks.coverage.clone(), self.disks.struck.clone());
        self.disks.world.at_power_cut(move || {
            coverage.note("power cut", !struck.borrow().is_empty());
            // The power may fail while the pool has its own statistics borrowed.
            let read = || {
                pool.upgrade().map(|pool| {
                    check_promises(&model, &*pool);
                    pool.events()
                })
            };
            let events = panics::catch(AssertUnwindSafe(read)).ok().flatten().unwrap_or_default();
            events.into_iter().for_each(|(name, count)| model.count(&name, count));
        });
    }

    /// Runs all clients and the administrator to their ends.
    pub(crate) async fn work(
        &self,
        pool: &Rc<S::Pool>,
        server: Option<&Rc<Server>>,
        boot: Boot,
        devices: Vec<Device>,
    ) {
        let Boot { clients, remote, admin, is_beside, outage, .. } = boot;
        let operator = outage.map(|outage| Operator::start(self, pool, &devices, outage));
        let mut tasks = Vec::new();
        for (number, acts) in clients.into_iter().enumerate() {
            let transport = match server {
                Some(server) if remote.contains(&number) => Transport::remote(server.clone()),
                _ => Transport::Direct(pool.clone()),
            };
            tasks.push(rt::spawn(client(transport, self.model.clone(), acts)));
        }
        // A refused import may name a disk that is out of the pool or being filled.
        let managed = admin.iter().flat_map(Admin::taken);
        self.disks.struck.borrow_mut().extend(managed);
        let administrator = Administrator {
            pool: pool.clone(),
            model: self.model.clone(),
            devices,
            is_beside,
            disks: self.disks.clone(),
            first_sectors: self.scenario.volumes.iter().sum(),
            coverage: self.disks.coverage.clone(),
        };
        tasks.push(rt::spawn(administrator.work(admin)));
        rt::join_all(tasks).await;
        if let Some(operator) = operator {
            operator.end().await;
        }
    }

    async fn create(&self, devices: &[Device]) -> Result<S::Pool, Refusal> {
        let Self { scenario, model, .. } = self;
        let pool = self.subject.create(devices, &scenario.spec).await?;
        self.note_atomic(&pool);
        for (id, sectors) in (0..).zip(&scenario.volumes) {
            model.creating(id, *sectors);
            let is_sparse = scenario.sparse.contains(&id);
            let gap = scenario.gaps.iter().find(|(volume, _)| *volume == id).map_or(0, |g| g.1);
            model.update(id, |v| {
                v.gap_sectors = gap;
                v.history.set_split(v.split_sector());
                if scenario.boots.iter().any(|boot| boot.rewinds || boot.looks_back > 0) {
                    v.history.keep_all();
                }
            });
            let size_bytes = (sectors + gap) * SECTOR_BYTES;
            pool.create_volume(&volume_name(id), size_bytes, is_sparse).await?;
            if let Some((_, sync)) = scenario.sync.iter().find(|(volume, _)| *volume == id) {
                pool.set_sync(&volume_name(id), *sync).await?;
                model.update(id, |v| (v.sync, v.sync_varies) = (Some(*sync), true));
            }
            model.update(id, |volume| {
                (volume.presence, volume.is_sparse) = (Presence::Present, is_sparse);
            });
        }
        model.available_at_first.set(pool.held().map(|held| held.available_bytes));
        Ok(pool)
    }

    /// Imports and judges. `None` when the subject refuses.
    async fn import(&self, devices: &[Device], rewinds: Option<u64>) -> Option<S::Pool> {
        let Self { scenario, model, tally, phase, .. } = self;
        let mut demand = scenario.demand;
        let noted = model.figures.take();
        if model.loss_accepted.get() {
            demand = Demand::NeverWrong;
        }
        let pool = match self.import_once(devices, rewinds).await {
            Ok(pool) => pool,
            Err(refusal) => {
                if demand == Demand::AllData || refusal.message.is_empty() {
                    model.object(Kind::Import, format!("import: {}", refusal.message));
                    return None;
                }
                tally.borrow_mut().event("import refused");
                if !self.explains(&refusal) {
                    return None;
                }
                demand = Demand::NeverWrong;
                // A root may record the accepted loss before this import ends.
                model.loss_accepted.set(true);
                self.import_with_loss(devices).await?
            }
        };
        phase.set("judgement");
        self.note_atomic(&pool);
        judge(self, &pool, demand).await;
        let is_exact = demand == Demand::AllData && rewinds.is_none() && !model.failed();
        if is_exact {
            figures::check_sync(model, &pool);
        }
        let was_paused = model.scrubs.take_paused();
        if is_exact && was_paused && pool.scrub_phase() != Some(ScrubPhase::Paused) {
            let text =
                format!("a scrub was paused, and is {:?} after the import", pool.scrub_phase());
            model.object(Kind::Scrub, text);
        }
        if let Some(noted) = noted.filter(|_| is_exact) {
            figures::compare(self, &pool, &noted).await;
        }
        model.loss_accepted.set(false);
        model.list_is_behind.set(false);
        Some(pool)
    }

    /// Imports what is left: without lost log records (`-m`), or with `-f` as well. `None` when the
    /// subject refuses both.
    async fn import_with_loss(&self, devices: &[Device]) -> Option<S::Pool> {
        for (mode, name) in [
            (ImportMode::AcceptLoss, "with loss accepted"),
            (ImportMode::GiveUp, "with -f as well"),
        ] {
            match self.subject.import(devices, &self.scenario.spec, mode).await {
                Ok(pool) => {
                    self.tally.borrow_mut().event(&format!("import {name}"));
                    return Some(pool);
                }
                Err(refusal) => {
                    self.tally.borrow_mut().event(&format!("import refused, {name}"));
                    if !self.explains(&refusal) {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Imports, perhaps from the root before the newest.
    async fn import_once(
        &self,
        devices: &[Device],
        rewinds: Option<u64>,
    ) -> Result<S::Pool, Refusal> {
        let Self { subject, scenario, model, .. } = self;
        let commits = model.commits.take();
        match self.importing {
            Importing::Usual => {}
            Importing::Half => {
                return subject.import(devices, &scenario.spec, ImportMode::Force).await;
            }
            Importing::Undecided(disk) => return self.import_kept(devices, disk, true).await,
            Importing::Cut(disk) => return self.import_kept(devices, disk, false).await,
            Importing::Kept(disk) => {
                return subject.import(devices, &scenario.spec, ImportMode::Keep(disk)).await;
            }
        }
        if let Some(groups) = rewinds.filter(|groups| *groups <= commits) {
            if let Some(pool) = self.rewind(devices, groups).await {
                return Ok(pool);
            }
        }
        let mut imported = subject.import(devices, &scenario.spec, ImportMode::Plain).await;
        let is_elsewhere = |refusal: &Refusal| refusal.cause.is_other_machine();
        if scenario.spec.has_stores() && imported.as_ref().err().is_some_and(is_elsewhere) {
            // A heartbeat of the machine before was on its way to the store.
            rt::sleep(LATE_REQUESTS).await;
            imported = subject.import(devices, &scenario.spec, ImportMode::Plain).await;
        }
        let cause = imported.as_ref().err().map(|refusal| refusal.cause);
        // The power failed between the reservation and the heartbeat of a takeover: its key is that
        // of no known owner, and only the operator can tell that its machine is gone. Or another
        // machine had the pool last, so this one's list of known pools does not tell that a disk
        // which has failed since is no newer than the one that is left.
        let wants_operator = match cause {
            Some(Cause::UnknownReservation) => has_takeovers(&scenario.boots),
            Some(Cause::HalfMissing) => model.list_is_behind.get(),
            _ => false,
        };
        if wants_operator {
            model.count("imports with -f after a takeover", 1);
            imported = subject.import(devices, &scenario.spec, ImportMode::Force).await;
        }
        if imported.is_err() && model.rewinds.get() {
            // A rewind was cut short, and its first root is the newest.
            let forced = subject.import(devices, &scenario.spec, ImportMode::Force).await;
            let has_liars = !self.disks.struck.borrow().is_empty();
            return match forced {
                // What one of these lost may be in the journal of any root.
                Err(_) if has_liars => self.rewind(devices, 1).await.map_or(imported, Ok),
                forced => forced,
            };
        }
        imported
    }

    /// Imports from the root that is so many before the newest. `None` when the subject refuses:
    /// the configuration of that root may have been replaced when the power failed.
    async fn rewind(&self, devices: &[Device], groups: u64) -> Option<S::Pool> {
        for id in self.model.ids() {
            self.model.update(id, |v| v.history.forget_durability());
        }
        self.model.doubt_names();
        self.model.doubt_recent_snapshots();
        self.model.rewinds.set(true);
        let mode = ImportMode::Rewind(groups);
        let outcome = self.subject.import(devices, &self.scenario.spec, mode).await;
        self.model.rewinds.set(false);
        let name = match groups {
            1 => "imports from the root before the newest",
            _ => "imports from an older root",
        };
        match outcome {
            Ok(pool) => {
                self.model.count(name, 1);
                Some(pool)
            }
            Err(refusal) => {
                self.disks.world.tell(|| format!("rewind refused: {}", refusal.message));
                self.model.count(&format!("{name}, refused"), 1);
                None
            }
        }
    }

    pub(crate) fn note_atomic(&self, pool: &S::Pool) {
        if let Some(bytes) = pool.atomic_bytes() {
            self.model.set_atomic((bytes / SECTOR_BYTES).max(1));
        }
    }

    /// True when a refused import names the devices at fault and no others.
    fn explains(&self, refusal: &Refusal) -> bool {
        let judged = refusal::judge(refusal, &self.disks.suspects());
        if let Err(wrong) = &judged {
            let text = format!("an import was refused and {wrong}: {}", refusal.message);
            self.model.object(Kind::Import, text);
        }
        judged.is_ok()
    }
}

/// The same crash point with its number counted from now.
pub(crate) fn counted_from_now(point: CrashPoint, world: &World) -> CrashPoint {
    match point {
        CrashPoint::BeforeSubmit(n) => {
            CrashPoint::BeforeSubmit(n.saturating_add(world.submitted()))
        }
        CrashPoint::AfterSubmit(n) => CrashPoint::AfterSubmit(n.saturating_add(world.submitted())),
        CrashPoint::AfterComplete(n) => {
            CrashPoint::AfterComplete(n.saturating_add(world.completed()))
        }
        CrashPoint::AfterFlush(n) => CrashPoint::AfterFlush(n.saturating_add(world.flushed())),
        CrashPoint::SinceFlush { flush, commands } => {
            CrashPoint::SinceFlush { flush: flush.saturating_add(world.flushed()), commands }
        }
        at @ CrashPoint::AtTime(_) => at,
    }
}
