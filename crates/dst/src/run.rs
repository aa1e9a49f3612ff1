//! One scenario, from the creation of the pool to the last scrub.
//!
//! What enters: a subject and a scenario. What leaves: an outcome with the first violation. What
//! always holds: a boot ends with a power cut, an export or a refused import. Disks and the
//! clients' knowledge outlive every boot; the runtime and the pool do not.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::{Fate, Seed, Step};
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::apart::Importing;
use crate::boot_context::{BootContext, BootEnd};
use crate::contest::{Contest, Unfinished, contend};
use crate::disks::Disks;
use crate::model::Model;
use crate::panics;
use crate::scenario::{Boot, Crash, Demand, Scenario};
use crate::subject::{CLEANER_EVENT, OTHER_HOSTS, Subject};
use crate::verdict::{Failure, Kind, Outcome, Tally};

/// Virtual time that one boot may take; a boot that takes longer hangs.
const BOOT_LIMIT: Nanos = Nanos::from_secs(50_000);

/// A run between two boots.
pub struct Run<S: Subject> {
    pub(crate) subject: Rc<S>,
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) disks: Rc<Disks>,
    pub(crate) model: Rc<Model>,
    tally: Tally,
    boot_commands: Vec<u64>,
    pub(crate) failure: Option<Failure>,
    pub(crate) is_created: bool,
    /// The subject refused an import, rightly.
    is_ended: bool,
    /// The rest of the run only shows that the exported pool can be imported.
    is_brief: bool,
    /// The next boot begins with disks that are well: an outage ends with its boot.
    is_repaired: bool,
    /// [`Subject::memory`].
    pub(crate) memory: [u64; 3],
    pub(crate) importing: Importing,
}

/// Runs a scenario to its end, or to the first violation.
pub fn run<S: Subject>(subject: &Rc<S>, scenario: &Scenario) -> Outcome {
    play(Run::new(subject.clone(), scenario.clone()), scenario)
}

/// Runs a scenario and passes a line of text for each event to `watcher`.
pub fn run_watched<S: Subject>(
    subject: &Rc<S>,
    scenario: &Scenario,
    watcher: impl Fn(&str) + 'static,
) -> Outcome {
    let run = Run::new(subject.clone(), scenario.clone());
    run.disks.world.watch(watcher);
    play(run, scenario)
}

fn play<S: Subject>(mut run: Run<S>, scenario: &Scenario) -> Outcome {
    for boot in &scenario.boots {
        run.look_back(boot);
        run.part(boot);
        if run.is_over() {
            break;
        }
        run.boot(boot);
        if run.is_over() {
            break;
        }
        run.power_off(boot.crash.as_ref());
    }
    run.epilogue(2);
    run.outcome()
}

/// A boot's task, which must end.
async fn limited(task: impl Future<Output = BootEnd>) -> Result<BootEnd, rt::Elapsed> {
    rt::timeout(BOOT_LIMIT, task).await
}

impl<S: Subject> Run<S> {
    /// A run before its first boot.
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
            is_created: false,
            is_ended: false,
            is_brief: false,
            is_repaired: false,
            memory: [0; 3],
            importing: Importing::Usual,
        }
    }

    /// Runs a boot without a power cut and returns its submissions and completions in order.
    pub fn steps(&mut self, boot: &Boot) -> Vec<Step> {
        let steps: Rc<RefCell<Vec<Step>>> = Rc::default();
        let seen = steps.clone();
        self.disks.world.follow(move |step| seen.borrow_mut().push(step));
        self.boot(boot);
        let steps = steps.take();
        // Command numbers restart when the creation of a pool has ended.
        let from = steps.iter().rposition(|step| !step.completed && step.number == 1);
        steps[from.unwrap_or(0)..].to_vec()
    }

    /// True when no more boots can be run.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.failure.is_some() || self.is_ended
    }

    /// A copy of this run between two boots, which may continue in another way. Injected faults are
    /// not copied; counts and the digest restart.
    #[must_use]
    pub fn fork(&self) -> Self {
        let disks = Rc::new(Disks::new(&self.scenario));
        disks.world.restore(&self.disks.world.image());
        for ((_, bucket), (_, other)) in disks.buckets.iter().zip(&self.disks.buckets) {
            bucket.restore(other);
        }
        disks.struck.borrow_mut().clone_from(&self.disks.struck.borrow());
        Self {
            subject: self.subject.clone(),
            scenario: self.scenario.clone(),
            disks,
            model: self.model.fork(),
            tally: Tally::default(),
            boot_commands: self.boot_commands.clone(),
            failure: self.failure.clone(),
            ..*self
        }
    }

    /// Imports copies of the disks from roots before the newest. Whatever faults did, the pool
    /// promises the first of them; from an older one an import may fail, and so may reads.
    fn look_back(&mut self, boot: &Boot) {
        for groups in 1..=boot.looks_back.min(self.model.commits.get()) {
            let mut copy = self.fork();
            if groups > 1 && self.scenario.demand == Demand::AllData {
                copy.scenario =
                    Rc::new(Scenario { demand: Demand::Detected, ..(*self.scenario).clone() });
                copy.model = self.model.fork_for(Demand::Detected);
            }
            copy.is_brief = true;
            let further_roots = groups - 1;
            let seed = boot.seed;
            copy.boot(&Boot { seed, rewinds: true, further_roots, ..Boot::default() });
            for (event, count) in copy.model.events() {
                self.model.count(&event, count);
            }
            if let Some(Failure { kind, message }) = copy.failure {
                let message = format!("{message} (of a copy, {groups} roots back)");
                self.failure.get_or_insert(Failure { kind, message });
            }
        }
    }

    /// How many writes are unflushed on the disks.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.disks.world.unflushed().len()
    }

    /// Runs one boot to its power cut or its end. Call [`Run::power_off`] after it.
    pub fn boot(&mut self, boot: &Boot) {
        let is_repaired = std::mem::replace(&mut self.is_repaired, boot.outage.is_some());
        if boot.succession.is_some() || is_repaired {
            self.disks.stacks.iter().for_each(|stack| stack.heal());
        }
        let is_created = std::mem::replace(&mut self.is_created, true);
        if boot.memory_lost {
            self.disks.lose_mirrored_memory(&self.scenario.spec);
            self.model.count("memory lost that a mirror protects", 1);
        }
        let world = self.disks.world.clone();
        let runtime = Runtime::simulated(boot.seed);
        let phase = Rc::new(Cell::new("boot"));
        let tally = Rc::new(RefCell::new(Tally::default()));
        if is_created {
            let early = boot.crash.as_ref().filter(|crash| !crash.in_work);
            world.plan_crash(early.map(|crash| crash.point));
        }
        let context = BootContext {
            subject: self.subject.clone(),
            scenario: self.scenario.clone(),
            disks: self.disks.clone(),
            model: self.model.clone(),
            tally: tally.clone(),
            phase: phase.clone(),
            is_brief: self.is_brief,
            leaves_scrub: boot.leaves_scrub,
            importing: self.importing,
            contest: None,
        };
        self.subject.remember(self.memory);
        // A machine that takes the pool over.
        let next = boot.takeover.as_ref().map(|plan| Runtime::simulated(plan.seed));
        let caught = panics::catch(AssertUnwindSafe(|| match &next {
            Some(next) => self.run_both(&runtime, next, context, (boot, is_created)),
            None => runtime.run(limited(context.run(boot.clone(), is_created))),
        }));
        self.boot_commands.push(world.submitted());
        self.tally.simulated_ns += runtime.now().0;
        let is_hang = runtime.is_deadlocked();
        // Dropping the tasks after a panic may panic again; the first panic is the one to report.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop((next, runtime))));
        self.memory = self.subject.memory();
        self.tally.add(&tally.borrow());
        self.failure = self.model.take_failure();
        match caught {
            Err(panic) => {
                let kind = if is_hang { Kind::Hang } else { Kind::Panic };
                self.fail(kind, &panic, phase.get());
            }
            Ok(None) => self.tally.event(&format!("power cut during {}", phase.get())),
            Ok(Some(Err(rt::Elapsed))) => {
                self.fail(Kind::Hang, "not done after 50000 s of virtual time", phase.get());
            }
            Ok(Some(Ok(BootEnd::Refused))) => self.is_ended = true,
            Ok(Some(Ok(BootEnd::Done | BootEnd::Crashed))) => {}
        }
        if dropped.is_err() {
            self.fail(Kind::Panic, "a task panicked while it was dropped", phase.get());
        }
    }

    /// Runs a boot in which the other machine `next` takes the pool over.
    fn run_both(
        &mut self,
        owner: &Runtime,
        next: &Runtime,
        context: BootContext<S>,
        (boot, is_created): (&Boot, bool),
    ) -> Option<Result<BootEnd, rt::Elapsed>> {
        let subjects = OTHER_HOSTS.map(|host| self.subject.other_machine(host));
        let (Some(plan), [Some(subject), Some(rival)]) = (&boot.takeover, subjects) else {
            return owner.run(limited(context.run(boot.clone(), is_created)));
        };
        let contest = Contest::new(&self.disks.world, &context.model);
        let (other, rival) = (context.on_other(subject), context.on_other(rival));
        let context = BootContext { contest: Some(contest.clone()), ..context };
        let rival = (!plan.rival.is_empty()).then_some(rival);
        let takes = other.take_over(plan.clone(), boot.crash.is_some(), contest.clone(), rival);
        let ended = contend(
            (owner, context.run(boot.clone(), is_created)),
            (next, takes),
            (plan, &contest, &self.disks),
        );
        if let Some(model) = contest.model.take() {
            let before = std::mem::replace(&mut self.model, model);
            self.model.absorb(&before);
            if let Some(Failure { kind, message }) = before.take_failure() {
                self.model.object(kind, message);
            }
        }
        match ended {
            Ok(end) => Some(Ok(end)),
            Err(Unfinished::NoPower) => None,
            Err(Unfinished::Hang) => Some(Err(rt::Elapsed)),
        }
    }

    /// Notes a failure, unless there was one before.
    fn fail(&mut self, kind: Kind, message: &str, phase: &str) {
        let message = format!("{message} (during {phase})");
        self.failure.get_or_insert(Failure { kind, message });
    }

    /// Ends a power cut, or the power-off after an export: decides what the disks kept.
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
            // Without a power cut the disks write their caches in the end.
            world.draw_crash_outcome(|_, _| Fate::Kept);
        }
        world.power_on();
        self.disks.machine.power_off();
        self.model.forget_callers();
        self.model.scrubs.power_off(cut);
        // The task that would have ended a disk's hang is gone, so the hang ends here.
        self.disks.stacks.iter().for_each(|stack| stack.calm());
    }

    /// Runs the boots after the scenario: heals the disks, imports, judges, writes, scrubs and
    /// exports. A second round only imports, judges and exports.
    pub fn epilogue(&mut self, rounds: u64) {
        for round in 0..rounds {
            if self.is_over() {
                return;
            }
            for stack in &self.disks.stacks {
                stack.heal();
            }
            self.is_brief = round > 0;
            // A process that draws what the one before drew would take its entries for its own.
            let seed = match Seed(self.scenario.seed).derive("epilogue") {
                seed if round > 0 => seed.derive("again").0,
                seed => seed.0,
            };
            self.boot(&Boot { seed, ..Boot::default() });
            if !self.is_over() {
                self.power_off(None);
            }
        }
    }

    /// The outcome of the run.
    #[must_use]
    pub fn outcome(mut self) -> Outcome {
        let stats = self.disks.world.stats();
        self.tally.commands =
            stats.reads + stats.writes + stats.fua_writes + stats.flushes + stats.discards;
        self.tally.acts = self.model.acts.get();
        self.tally.states = self.disks.coverage.states();
        for (name, count) in self.model.events() {
            self.tally.event_n(&name, count);
        }
        if self.tally.events.contains_key(CLEANER_EVENT) {
            self.tally.event("scenarios with cleaning");
        }
        for (name, count) in self.disks.fault_counts() {
            if count > 0 {
                *self.tally.faults.entry(name.to_owned()).or_default() += count;
            }
        }
        Outcome {
            failure: self.failure,
            digest: self.disks.world.digest(),
            tally: self.tally,
            boot_commands: self.boot_commands,
        }
    }
}
