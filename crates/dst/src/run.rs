//! One scenario, from the first power-on to the last scrub.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::{CrashPoint, Seed, Step, World, WorldImage};
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::client::{MOVING, administrator, client, flush, read_all, write};
use crate::disks::Disks;
use crate::model::{Model, Presence, volume_name};
use crate::panics;
use crate::refusal;
use crate::scenario::{Admin, Boot, Crash, Demand, Scenario};
use crate::stamp::Fill;
use crate::subject::{Pool, Refusal, Scrubbed, Subject};
use crate::transport::{Transport, serve};
use crate::verdict::{Failure, Kind, Outcome, Tally};

/// Virtual time that one boot may take. What waits longer hangs.
const BOOT_LIMIT: Nanos = Nanos::from_secs(50_000);

/// A run between two boots.
pub struct Run<S: Subject> {
    subject: Rc<S>,
    scenario: Rc<Scenario>,
    disks: Rc<Disks>,
    model: Rc<Model>,
    tally: Tally,
    boot_commands: Vec<u64>,
    failure: Option<Failure>,
    created: bool,
    ended: bool,
    /// What is left only shows whether an export can be found again.
    brief: bool,
    /// [`Subject::memory`].
    memory: [u64; 3],
}

/// What one boot came to.
enum Ended {
    Crashed,
    Done,
    Refused,
}

/// Runs a scenario to its end, or to the first violation.
pub fn run<S: Subject>(subject: &Rc<S>, scenario: &Scenario) -> Outcome {
    play(Run::new(subject.clone(), scenario.clone()), scenario)
}

/// Runs a scenario and tells `watcher` everything that happens, line by line.
pub fn run_watched<S: Subject>(
    subject: &Rc<S>,
    scenario: &Scenario,
    watcher: impl Fn(&str) + 'static,
) -> Outcome {
    let run = Run::new(subject.clone(), scenario.clone());
    run.watch(watcher);
    play(run, scenario)
}

fn play<S: Subject>(mut run: Run<S>, scenario: &Scenario) -> Outcome {
    for index in 0..scenario.boots.len() {
        run.boot(&scenario.boots[index]);
        if run.over() {
            break;
        }
        run.power_off(scenario.boots[index].crash.as_ref());
    }
    run.epilogue(2);
    run.outcome()
}

impl<S: Subject> Run<S> {
    /// A run that has not begun.
    #[must_use]
    pub fn new(subject: Rc<S>, scenario: Scenario) -> Self {
        let atomic_sectors = (subject.atomic_bytes() / SECTOR_BYTES).max(1);
        let disks = Rc::new(Disks::new(&scenario));
        let model = Model::new(scenario.demand, atomic_sectors);
        Self {
            subject,
            scenario: Rc::new(scenario),
            disks,
            model,
            tally: Tally::default(),
            boot_commands: Vec::new(),
            failure: None,
            created: false,
            ended: false,
            brief: false,
            memory: [0; 3],
        }
    }

    /// Calls `watcher` with a line for everything that happens.
    pub fn watch(&self, watcher: impl Fn(&str) + 'static) {
        self.disks.world.watch(watcher);
    }

    /// Gives the commands of one boot that is not cut, submissions and completions, in their order.
    pub fn steps(&mut self, boot: &Boot) -> Vec<Step> {
        let steps: Rc<RefCell<Vec<Step>>> = Rc::default();
        let seen = steps.clone();
        self.disks.world.follow(move |step| seen.borrow_mut().push(step));
        self.boot(boot);
        let steps = steps.take();
        // Numbers start again when a new pool has been made.
        let from = steps.iter().rposition(|step| !step.completed && step.number == 1);
        steps[from.unwrap_or(0)..].to_vec()
    }

    /// Whether nothing more can be run.
    #[must_use]
    pub fn over(&self) -> bool {
        self.failure.is_some() || self.ended
    }

    /// This run between two boots, once more, for another way that it may go from here. Faults that
    /// were injected do not come along, and counts and the digest start anew.
    #[must_use]
    pub fn fork(&self) -> Self {
        let disks = Rc::new(Disks::new(&self.scenario));
        disks.world.restore(&self.disks.world.image());
        disks.struck.borrow_mut().clone_from(&self.disks.struck.borrow());
        Self {
            subject: self.subject.clone(),
            scenario: self.scenario.clone(),
            disks,
            model: self.model.fork(),
            tally: Tally::default(),
            boot_commands: self.boot_commands.clone(),
            failure: self.failure.clone(),
            created: self.created,
            ended: self.ended,
            brief: self.brief,
            memory: self.memory,
        }
    }

    /// The state of the disks, to come back to.
    #[must_use]
    pub fn image(&self) -> WorldImage {
        self.disks.world.image()
    }

    /// How many writes are unflushed on the disks.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.disks.world.unflushed().len()
    }

    /// Runs one boot, to its crash or its end. Call [`Run::power_off`] after it.
    pub fn boot(&mut self, boot: &Boot) {
        let created = std::mem::replace(&mut self.created, true);
        let world = self.disks.world.clone();
        let runtime = Runtime::simulated(boot.seed);
        let reached = Rc::new(Cell::new("boot"));
        let tally = Rc::new(RefCell::new(Tally::default()));
        if created {
            let early = boot.crash.as_ref().filter(|crash| !crash.in_work);
            world.plan_crash(early.map(|crash| crash.point));
        }
        let task = boot_task(
            Guest {
                subject: self.subject.clone(),
                scenario: self.scenario.clone(),
                disks: self.disks.clone(),
                model: self.model.clone(),
                tally: tally.clone(),
                reached: reached.clone(),
                brief: self.brief,
            },
            boot.clone(),
            created,
        );
        let limited = async move { rt::timeout(BOOT_LIMIT, task).await };
        self.subject.remember(self.memory);
        let caught = panics::catch(AssertUnwindSafe(|| runtime.run(limited)));
        self.boot_commands.push(world.submitted());
        self.tally.simulated_ns += runtime.now().0;
        // A task that panics while it is dropped would say more about the panic before it.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
        self.memory = self.subject.memory();
        self.tally.add(&tally.borrow());
        self.failure = self.model.take_failure();
        let at = reached.get();
        let fail = |kind, message: String| {
            Some(Failure { kind, message: format!("{message} (during {at})") })
        };
        match caught {
            Err(panic) if panic.contains("deadlock: no task is ready") => {
                self.failure = self.failure.take().or(fail(Kind::Hang, panic));
            }
            Err(panic) => self.failure = self.failure.take().or(fail(Kind::Panic, panic)),
            Ok(None) => {
                self.tally.event(&format!("power cut during {at}"));
            }
            Ok(Some(Err(rt::Elapsed))) => {
                let text = "no end in 50000 s of virtual time".to_owned();
                self.failure = self.failure.take().or(fail(Kind::Hang, text));
            }
            Ok(Some(Ok(Ended::Refused))) => self.ended = true,
            Ok(Some(Ok(Ended::Done | Ended::Crashed))) => {}
        }
        if dropped.is_err() {
            let text = "a task panicked while it was dropped".to_owned();
            self.failure = self.failure.take().or(fail(Kind::Panic, text));
        }
    }

    /// Ends a power cut (or a power-off after an export): decides what the disks kept.
    pub fn power_off(&mut self, crash: Option<&Crash>) {
        let world = &self.disks.world;
        world.plan_crash(None);
        let writes = world.unflushed();
        let cut = crash.is_some();
        world.tell(|| format!("power off (cut: {cut}), {} unflushed writes", writes.len()));
        if let Some(crash) = crash {
            self.tally.crashes += 1;
            self.tally.unflushed += writes.len() as u64;
            if !writes.is_empty() {
                self.tally.event("power cut with unflushed writes");
            }
            if writes.iter().any(|write| write.in_flight) {
                self.tally.event("power cut with commands in flight");
            }
            let fates = crash.fates.decide(&writes);
            world.draw_crash_outcome(|index, _| fates[index]);
        } else {
            // In order or not: without a power cut caches are written in the end.
            world.draw_crash_outcome(|_, _| forebay_sim::Fate::Kept);
        }
        world.power_on();
        self.model.forget_callers();
        // What would have let a hanging disk go went with the power; so does the hang.
        self.disks.stacks.iter().for_each(|stack| stack.calm());
    }

    /// After the last boot: everything is healed, imported, judged, written to, scrubbed and
    /// exported. With a second round it is imported, judged and exported once more.
    pub fn epilogue(&mut self, rounds: u64) {
        for round in 0..rounds {
            if self.over() {
                return;
            }
            for stack in &self.disks.stacks {
                stack.heal();
            }
            self.brief = round > 0;
            let seed = Seed(self.scenario.seed).derive("epilogue").0;
            self.boot(&Boot { seed, ..Boot::default() });
            if !self.over() {
                self.power_off(None);
            }
        }
    }

    /// What it came to.
    #[must_use]
    pub fn outcome(mut self) -> Outcome {
        let stats = self.disks.world.stats();
        self.tally.commands =
            stats.reads + stats.writes + stats.fua_writes + stats.flushes + stats.discards;
        self.tally.acts = self.model.acts.get();
        for (name, count) in self.model.events() {
            self.tally.event_n(&name, count);
        }
        if self.tally.events.contains_key(MOVING) {
            self.tally.event("scenarios with cleaning");
        }
        for stack in &self.disks.stacks {
            let c = stack.counts();
            for (name, count) in [
                ("torn", c.torn),
                ("lost", c.lost),
                ("misdirected", c.misdirected),
                ("rot (bytes)", c.rot_bytes),
                ("rot (reads that saw it)", c.rot_reads),
                ("error", c.errors),
                ("flush error", c.flush_errors),
                ("lying flush", c.lies),
                ("slow", c.slow),
                ("hung", c.hung),
                ("no space", c.no_space),
                ("gone", c.gone),
                ("read-only", c.read_only),
            ] {
                if count > 0 {
                    *self.tally.faults.entry(name.to_owned()).or_default() += count;
                }
            }
        }
        debug_assert_eq!(self.disks.sims.len(), self.disks.stacks.len());
        Outcome {
            failure: self.failure,
            digest: self.disks.world.digest(),
            tally: self.tally,
            boot_commands: self.boot_commands,
        }
    }
}

/// What the tasks of one boot share.
struct Guest<S: Subject> {
    subject: Rc<S>,
    scenario: Rc<Scenario>,
    disks: Rc<Disks>,
    model: Rc<Model>,
    tally: Rc<RefCell<Tally>>,
    reached: Rc<Cell<&'static str>>,
    brief: bool,
}

async fn boot_task<S: Subject>(guest: Guest<S>, boot: Boot, created: bool) -> Ended {
    let Guest { scenario, disks, model, tally, reached, .. } = &guest;
    let devices = disks.devices();
    let pool = if created {
        if let Some(rot) = &boot.map_rot {
            disks.rot_map(rot);
            model.count("rot in the map journal", 1);
        }
        disks.schedule(&boot.faults);
        disks.keep_map(&boot.stale_map);
        reached.set("import");
        let Some(pool) = import(&guest, &devices).await else { return Ended::Refused };
        reached.set("judgement");
        pool
    } else {
        reached.set("creation");
        match create(&guest, &devices).await {
            Ok(pool) => {
                // The count starts when the pool exists, so that a crash point means the same for
                // every shape.
                disks.world.power_on();
                disks.world.plan_crash(boot.crash.as_ref().map(|crash| crash.point));
                disks.schedule(&boot.faults);
                pool
            }
            Err(refusal) => {
                model.object(Kind::Error, format!("create: {}", refusal.message));
                return Ended::Refused;
            }
        }
    };
    if model.failed() {
        return Ended::Done;
    }
    reached.set("work");
    if let Some(crash) = boot.crash.as_ref().filter(|crash| created && crash.in_work) {
        disks.world.plan_crash(Some(counted_on(crash.point, &disks.world)));
    }
    let pool = Rc::new(pool);
    let last = (Rc::downgrade(&pool), model.clone());
    disks.world.at_power_cut(move || {
        // The cut may come while the pool is looking at its own figures.
        let look = || last.0.upgrade().map_or_else(Vec::new, |pool| pool.events());
        let events = panics::catch(AssertUnwindSafe(look)).unwrap_or_default();
        events.into_iter().for_each(|(name, count)| last.1.count(&name, count));
    });
    let server = (!boot.remote.is_empty()).then(|| serve(&pool));
    let mut tasks = Vec::new();
    for (number, acts) in boot.clients.into_iter().enumerate() {
        let transport = match &server {
            Some(server) if boot.remote.contains(&number) => Transport::remote(server.clone()),
            _ => Transport::Direct(pool.clone()),
        };
        tasks.push(rt::spawn(client(transport, model.clone(), acts)));
    }
    let at_first = scenario.volumes.iter().sum();
    // What is in no use, or is being filled, may be said to be.
    let managed = boot.admin.iter().flat_map(Admin::taken);
    disks.struck.borrow_mut().extend(managed);
    tasks.push(rt::spawn(administrator(
        pool.clone(),
        model.clone(),
        devices,
        boot.admin,
        at_first,
    )));
    rt::join_all(tasks).await;
    for (name, count) in pool.events() {
        model.count(&name, count);
    }
    if boot.crash.is_some() {
        tally.borrow_mut().event("power cut after the work");
        return Ended::Crashed;
    }
    if let Some(server) = server {
        let left = server.stop(Nanos::from_secs(60)).await;
        if left > 0 {
            model.object(Kind::Hang, format!("{left} NBD connections do not end"));
            return Ended::Done;
        }
    }
    let Ok(pool) = Rc::try_unwrap(pool) else { panic!("a client still holds the pool") };
    finish(&guest, pool, scenario.demand).await;
    Ended::Done
}

/// `point`, counted from now on.
fn counted_on(point: CrashPoint, world: &World) -> CrashPoint {
    match point {
        CrashPoint::BeforeSubmit(n) => {
            CrashPoint::BeforeSubmit(n.saturating_add(world.submitted()))
        }
        CrashPoint::AfterSubmit(n) => CrashPoint::AfterSubmit(n.saturating_add(world.submitted())),
        CrashPoint::AfterComplete(n) => {
            CrashPoint::AfterComplete(n.saturating_add(world.completed()))
        }
        CrashPoint::AfterFlush(n) => CrashPoint::AfterFlush(n.saturating_add(world.flushed())),
        at @ CrashPoint::AtTime(_) => at,
    }
}

async fn create<S: Subject>(guest: &Guest<S>, disks: &[Device]) -> Result<S::Pool, Refusal> {
    let Guest { scenario, model, .. } = guest;
    let pool = guest.subject.create(disks, &scenario.spec).await?;
    for (id, sectors) in scenario.volumes.iter().enumerate() {
        let id = id as u32;
        model.creating(id, *sectors);
        let sparse = scenario.sparse.contains(&id);
        pool.create_volume(&volume_name(id), sectors * SECTOR_BYTES, sparse).await?;
        let sync = scenario.sync.iter().find(|(volume, _)| *volume == id).map(|(_, sync)| *sync);
        if let Some(sync) = sync {
            pool.set_sync(&volume_name(id), sync).await?;
            model.update(id, |v| (v.sync, v.sync_varies) = (Some(sync), true));
        }
        model.update(id, |volume| volume.presence = Presence::Present);
    }
    Ok(pool)
}

/// Imports and judges. `None` when the subject rightly refuses.
async fn import<S: Subject>(guest: &Guest<S>, disks: &[Device]) -> Option<S::Pool> {
    let Guest { subject, scenario, model, tally, reached, .. } = guest;
    let mut demand = scenario.demand;
    if model.loss_accepted.get() {
        demand = Demand::NeverWrong;
    }
    let pool = match subject.import(disks, &scenario.spec, false).await {
        Ok(pool) => pool,
        Err(refusal) => {
            if demand == Demand::AllData || refusal.message.is_empty() {
                model.object(Kind::Import, format!("import: {}", refusal.message));
                return None;
            }
            tally.borrow_mut().event("import refused");
            if !names_what_lacks(guest, &refusal) {
                return None;
            }
            demand = Demand::NeverWrong;
            // The loss may be under a root before this import has ended.
            model.loss_accepted.set(true);
            match subject.import(disks, &scenario.spec, true).await {
                Ok(pool) => {
                    tally.borrow_mut().event("import with accepted loss");
                    pool
                }
                Err(refusal) => {
                    tally.borrow_mut().event("import refused, with loss accepted");
                    names_what_lacks(guest, &refusal);
                    return None;
                }
            }
        }
    };
    reached.set("judgement");
    judge(guest, &pool, demand).await;
    model.loss_accepted.set(false);
    Some(pool)
}

/// Whether a refused import names what lacks, and nothing else.
fn names_what_lacks<S: Subject>(guest: &Guest<S>, refusal: &Refusal) -> bool {
    let judged = refusal::judge(&refusal.message, &guest.disks.suspects());
    if let Err(wrong) = &judged {
        let text = format!("an import was refused and {wrong}: {}", refusal.message);
        guest.model.object(Kind::Import, text);
    }
    judged.is_ok()
}

async fn judge<S: Subject>(guest: &Guest<S>, pool: &S::Pool, demand: Demand) {
    let Guest { model, tally, .. } = guest;
    let names = pool.volumes();
    let known: Vec<String> = model.ids().into_iter().map(volume_name).collect();
    if let Some(stranger) = names.iter().find(|name| !known.contains(name)) {
        return model.object(Kind::Volumes, format!("volume {stranger} was never made"));
    }
    for id in model.ids() {
        let name = volume_name(id);
        let there = names.contains(&name);
        let presence = model.update(id, |v| v.presence).unwrap_or(Presence::Gone);
        match (presence, there) {
            (Presence::Present, false) if demand == Demand::NeverWrong => {}
            (Presence::Present, false) => {
                return model.object(Kind::Volumes, format!("{name} is lost"));
            }
            (Presence::Gone, true) if demand == Demand::NeverWrong => {}
            (Presence::Gone, true) => {
                return model.object(Kind::Volumes, format!("{name} is back"));
            }
            _ => {}
        }
        let now = if there { Presence::Present } else { Presence::Gone };
        model.update(id, |v| {
            v.presence = now;
            // A configuration from before may count again.
            if demand == Demand::NeverWrong && v.sync_varies {
                v.sync = None;
            }
        });
        if !there {
            continue;
        }
        let Some(device) = pool.volume(&name) else {
            return model.object(Kind::Volumes, format!("{name} is listed and cannot be opened"));
        };
        let sectors = device.geometry().size_bytes / SECTOR_BYTES;
        let sized = model.update(id, |v| {
            let pending = std::mem::take(&mut v.resizing);
            // When what was committed may be gone, so may be a size.
            if pending.contains(&sectors) || demand == Demand::NeverWrong {
                v.history.resize(sectors);
            }
            v.history.sectors() == sectors
        });
        if sized != Some(true) {
            return model.object(Kind::Volumes, format!("{name} has {sectors} sectors"));
        }
        let seen = read_all(&device, model, id, sectors).await;
        tally.borrow_mut().judged_sectors += sectors;
        model.update(id, |v| {
            let judged = match demand {
                Demand::NeverWrong => v.history.check_honest(&seen),
                Demand::AllData | Demand::Detected => v.history.check_crash(&seen),
            };
            model.judge(Kind::Prefix, judged);
        });
        if model.failed() {
            return;
        }
    }
}

/// A good end: everything still works, a scrub repairs what there is and a second one finds
/// nothing, and the export succeeds.
async fn finish<S: Subject>(guest: &Guest<S>, pool: S::Pool, demand: Demand) {
    let Guest { model, reached, .. } = guest;
    reached.set("last writes");
    for id in model.ids() {
        let Some((first, count)) = model.usable(id, 0, 8) else { continue };
        let Some(device) = pool.volume(&volume_name(id)) else { continue };
        write(&device, model, (id, first, count), true, Fill::Noise).await;
        flush(&device, model, id).await;
    }
    reached.set("scrub");
    // A disk that still loses writes may lose those of a scrub too, and one that cannot be read is
    // repaired: the next scrub must be clean only when nothing was struck during both.
    let spec = &guest.scenario.spec;
    let copies = spec.parity() > 0;
    let mut must_be_clean = false;
    for round in 0..if guest.brief { 0 } else { 8 } {
        let before = guest.disks.damage();
        let mut clean = false;
        match pool.scrub().await {
            Ok(found) if demand == Demand::AllData => {
                let calm = guest.disks.damage() == before;
                if found.unrepaired > 0 || (must_be_clean && calm && found.repaired > 0) {
                    model.object(Kind::Scrub, format!("scrub {round} found {found:?}"));
                }
                clean = found == Scrubbed::default();
            }
            Ok(_) => {}
            Err(refusal) => model.error_seen("scrub", &refusal.message),
        }
        let calm = guest.disks.damage() == before;
        // Without a copy a scrub that found nothing has written nothing: the next one would read
        // what the last judgement reads anyway.
        if calm && (must_be_clean || (clean && !copies)) {
            break;
        }
        must_be_clean = calm;
    }
    reached.set("export");
    match pool.export().await {
        Ok(()) => {
            for id in model.ids() {
                model.update(id, |v| v.history.mark_all_durable());
            }
        }
        Err(refusal) => model.error_seen("export", &refusal.message),
    }
}
