//! Two machines and one pool: a driver that lets the tasks of both take turns in virtual time.
//!
//! What enters: the runtimes of both machines, and a takeover. What leaves: how the boot ended.
//! What always holds: the clocks of the machines differ by at most one turn; a machine that stands
//! still runs no task. Who calls: `run.rs`.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Rng, Seed, World};
use forebay_units::Nanos;

use crate::disks::Disks;
use crate::link::Link;
use crate::model::Model;
use crate::scenario::{CutOff, Loss, Stand, StandEnd, Takeover};

/// The machine that has the pool, and the one that takes it.
const OWNER: u64 = 0;
const NEXT: u64 = 1;

/// How long both machines run at the end: the owner must have noticed by then that it has lost the
/// pool.
const NOTICE_SPAN: Nanos = Nanos::from_secs(20);
/// How long the owner's clients may take to end then.
const END_LIMIT: Nanos = Nanos::from_secs(400);
/// How long the next machine may take for its imports and its clients.
const WORK_LIMIT: Nanos = Nanos::from_secs(800);
/// How long disks hold, at most, what the owner has sent before a later stand: the next owner may
/// have claimed the pool by then, and reads the log soon.
const LATER_HELD: Nanos = Nanos::from_millis(900);
/// Longest stand until a command that does not come.
const STAND_LIMIT: Nanos = Nanos::from_secs(120);
/// Length of a turn while the owner is cut off from its disks.
const CUT_OFF_TURN: Nanos = Nanos::from_millis(8);
/// Length of a turn when nothing depends on the order any more.
const LONG_TURN: Nanos = Nanos::from_millis(50);

/// What became of the contest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It goes on.
    Open,
    /// The owner keeps the pool.
    Kept,
    /// The next owner has it.
    Replaced,
}

/// What the machines' tasks and the driver tell each other.
pub(crate) struct Contest {
    world: Rc<World>,
    /// The next machine has appeared.
    has_begun: Cell<bool>,
    /// The next machine has reached the command at which the owner goes on.
    is_reached: Cell<bool>,
    /// When the owner goes on, while it stands still.
    awaited: Cell<Option<StandEnd>>,
    /// Since when the owner stands still, and how often it has.
    stands_since: Cell<Option<Nanos>>,
    stands: Cell<u64>,
    /// It does not stand still then, and reaches its log.
    is_heard: Cell<bool>,
    /// Since when the owner runs, and whether its pool is there.
    runs_since: Cell<Nanos>,
    owner_ended: Cell<bool>,
    /// The next owner has imported the pool.
    is_taken: Cell<bool>,
    /// The next owner has nothing to do any more.
    is_idle: Cell<bool>,
    decision: Cell<Decision>,
    /// The owner's link to its disks.
    pub(crate) link: Rc<Link>,
    /// The owner's link to the disks that it loses.
    pub(crate) lost: Rc<Link>,
    /// The owner was cut off from its disks, and may have given them up.
    was_cut_off: Cell<bool>,
    /// What clients of the owner know.
    owner: Rc<Model>,
    /// What clients of the next owner know.
    pub(crate) model: RefCell<Option<Rc<Model>>>,
}

impl Contest {
    pub(crate) fn new(world: &Rc<World>, owner: &Rc<Model>) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            has_begun: Cell::new(false),
            is_reached: Cell::new(false),
            awaited: Cell::new(None),
            stands_since: Cell::new(None),
            stands: Cell::new(0),
            is_heard: Cell::new(false),
            runs_since: Cell::new(Nanos::ZERO),
            owner_ended: Cell::new(false),
            is_taken: Cell::new(false),
            is_idle: Cell::new(false),
            decision: Cell::new(Decision::Open),
            link: Link::new(),
            lost: Link::new(),
            was_cut_off: Cell::new(false),
            owner: owner.clone(),
            model: RefCell::default(),
        })
    }

    /// On the owner: the next machine appears at the `number`-th command from now.
    pub(crate) fn begin_at(self: &Rc<Self>, number: u64) {
        let contest = self.clone();
        let at = self.world.submitted().saturating_add(number);
        self.world.at_command(at, move || contest.begin());
    }

    /// On the owner: the next machine appears, if it has not.
    pub(crate) fn begin(&self) {
        if !self.has_begun.replace(true) {
            rt::halt();
        }
    }

    /// On the owner: waits until the contest is decided.
    pub(crate) async fn decided(&self) -> Decision {
        while self.decision.get() == Decision::Open {
            rt::sleep(Nanos::from_millis(50)).await;
        }
        self.decision.get()
    }

    /// On the owner: its pool has ended.
    pub(crate) fn owner_ends(&self) {
        self.owner_ended.set(true);
    }

    /// On the next machine: the owner was cut off from its disks, and may not come back to them.
    pub(crate) fn was_cut_off(&self) -> bool {
        self.was_cut_off.get()
    }

    /// On the next machine: how often the owner has stood still; `None` while it does.
    pub(crate) fn owner_runs(&self) -> Option<u64> {
        let stands = self.stands_since.get().is_some() && !self.is_heard.get();
        let is_running = !stands && !self.owner_ended.get();
        is_running.then(|| self.stands.get())
    }

    /// On the next machine: for how long the owner has stood still.
    pub(crate) fn owner_stood(&self) -> Nanos {
        let since = self.stands_since.get().filter(|_| !self.is_heard.get());
        since.map_or(Nanos::ZERO, |since| rt::now().since(since))
    }

    /// On the next machine: for how long the owner has run without a stand.
    pub(crate) fn owner_ran(&self) -> Nanos {
        rt::now().since(self.runs_since.get())
    }

    /// On the next machine, which begins an import.
    pub(crate) fn import_starts(self: &Rc<Self>) {
        if let Some(StandEnd::InImport(number)) = self.awaited.get() {
            self.go_on_at(number);
        }
    }

    /// On the next machine, which has imported the pool and starts its clients.
    pub(crate) fn clients_start(self: &Rc<Self>) {
        self.is_taken.set(true);
        if let Some(StandEnd::AtCommand(number)) = self.awaited.get() {
            self.go_on_at(number);
        }
    }

    /// The owner goes on at the `number`-th command from now.
    fn go_on_at(self: &Rc<Self>, number: u64) {
        let (contest, stands) = (self.clone(), self.stands.get());
        self.world.at_command(self.world.submitted() + number.max(1), move || {
            if contest.stands.get() == stands && contest.stands_since.get().is_some() {
                contest.is_reached.set(true);
                rt::halt();
            }
        });
    }

    /// True when the owner goes on that stands still, or is cut off, until `end`.
    fn is_stand_over(&self, end: StandEnd) -> bool {
        match end {
            StandEnd::AfterNs(_) => false,
            StandEnd::InImport(_) => {
                self.is_reached.get() || self.is_taken.get() || self.is_idle.get()
            }
            StandEnd::AtCommand(_) => self.is_reached.get() || self.is_idle.get(),
        }
    }

    /// On the next machine: its clients have ended, or it was refused. Waits for the decision.
    pub(crate) async fn rest(&self) -> Decision {
        self.is_idle.set(true);
        self.decided().await
    }
}

/// How long a stand takes at most.
fn longest(end: StandEnd) -> Nanos {
    match end {
        StandEnd::AfterNs(span) => Nanos(span),
        StandEnd::InImport(_) | StandEnd::AtCommand(_) => STAND_LIMIT,
    }
}

/// The end of a machine's task.
type End<T> = Rc<RefCell<Option<T>>>;

fn noting<T: 'static>(
    task: impl Future<Output = T> + 'static,
) -> (End<T>, impl Future<Output = ()>) {
    let end = End::default();
    let noted = end.clone();
    (end, async move {
        let out = task.await;
        noted.replace(Some(out));
    })
}

/// Both machines, from the next one's appearance on.
struct Turns<'a> {
    owner: &'a Runtime,
    next: &'a Runtime,
    contest: Rc<Contest>,
    disks: Rc<Disks>,
    rng: Rng,
    /// The time of both machines.
    now: Nanos,
    /// How far the owner's clock is behind, because its machine was suspended.
    behind: Nanos,
    is_suspended: bool,
    lands_after: Nanos,
}

/// Why the tasks of a boot did not end.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The power has failed.
    NoPower,
    /// The task of a machine does not end.
    Hang,
}

/// Runs the owner's task until the other machine appears, and then both. Returns how the owner's
/// task ended, or that of the next owner if it has the pool.
pub(crate) fn contend<T: 'static>(
    (owner, owner_task): (&Runtime, impl Future<Output = T> + 'static),
    (next, next_task): (&Runtime, impl Future<Output = Option<T>> + 'static),
    (plan, contest, disks): (&Takeover, &Rc<Contest>, &Rc<Disks>),
) -> Result<T, Unfinished> {
    let (owner_end, task) = noting(owner_task);
    disks.world.set_machine(OWNER);
    owner.run(task);
    if !contest.has_begun.get() || !disks.world.is_powered() || owner_end.borrow().is_some() {
        return owner_end.take().ok_or(Unfinished::NoPower);
    }
    let mut turns = Turns {
        owner,
        next,
        contest: contest.clone(),
        disks: disks.clone(),
        rng: Seed(plan.seed).derive("turns").rng(),
        now: owner.now(),
        behind: Nanos::ZERO,
        is_suspended: plan.is_suspended,
        lands_after: Nanos(plan.lands_after_ns),
    };
    let (next_end, task) = noting(next_task);
    let outcome =
        turns.play(plan, task, (&|| owner_end.borrow().is_some(), &|| next_end.borrow().is_some()));
    disks.world.set_machine(OWNER);
    outcome?;
    let end = next_end.take().flatten().or_else(|| owner_end.take());
    Ok(end.expect("both tasks have ended"))
}

/// A machine that stood still goes on: its clocks show that before any of its tasks runs. A task
/// that ran before, by the old time, would send what its fence holds back now.
fn pass_time(machine: &Runtime, stood: Nanos, is_suspended: bool) {
    machine.enter(|| match is_suspended {
        true => rt::suspend(stood),
        false => rt::stand_still(stood),
    });
}

/// Whether the owner's task has ended, and that of the next machine.
type Ends<'a> = (&'a dyn Fn() -> bool, &'a dyn Fn() -> bool);

impl Turns<'_> {
    fn play(
        &mut self,
        plan: &Takeover,
        task: impl Future<Output = ()> + 'static,
        (owner_ended, next_ended): Ends<'_>,
    ) -> Result<(), Unfinished> {
        let now = self.now;
        self.contest.runs_since.set(now);
        self.disks.world.set_machine(NEXT);
        self.next.run(async move {
            rt::stand_still(now);
            rt::spawn(task);
        });
        if let Some(loss) = &plan.loss {
            self.lose(loss);
        }
        for stand in &plan.stands {
            self.take_turns(self.now + Nanos(stand.after_ns), None, &|| false)?;
            match stand.cut_off {
                Some(how) => self.cut_off(how, stand)?,
                None => self.stand(stand.end)?,
            }
        }
        // The owner has until then to notice, and its clients to end or to go on.
        let contest = self.contest.clone();
        self.take_turns(self.now + WORK_LIMIT, None, &|| contest.is_idle.get())?;
        let decision = match self.contest.is_taken.get() {
            true => Decision::Replaced,
            false => Decision::Kept,
        };
        if decision == Decision::Replaced {
            self.take_turns(self.now + NOTICE_SPAN, Some(LONG_TURN), &|| false)?;
        }
        self.contest.decision.set(decision);
        self.disks.world.tell(|| format!("the contest is decided: {decision:?}"));
        if decision == Decision::Kept && self.contest.was_cut_off() {
            // What it gave up meanwhile is out of use: the power fails.
            let world = self.disks.world.clone();
            self.owner.run(async move { world.power_cut() });
            return Err(Unfinished::NoPower);
        }
        self.finish(OWNER, owner_ended)?;
        self.finish(NEXT, next_ended)
    }

    /// Lets both machines run until a time, or until `is_over`.
    fn take_turns(
        &mut self,
        until: Nanos,
        turn: Option<Nanos>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Unfinished> {
        while self.now < until && !is_over() {
            let usual = Nanos(1 << self.rng.between(10, 24));
            let to = until.min(self.now + turn.unwrap_or(usual));
            let first = self.rng.below(2);
            for machine in [first, 1 - first] {
                self.turn(machine, to)?;
            }
            self.now = to;
        }
        Ok(())
    }

    fn turn(&self, machine: u64, to: Nanos) -> Result<(), Unfinished> {
        self.disks.world.set_machine(machine);
        let (runtime, to) = match machine {
            OWNER => (self.owner, Nanos(to.0 - self.behind.0)),
            _ => (self.next, to),
        };
        runtime.run(rt::sleep_until(to));
        if self.disks.world.is_powered() { Ok(()) } else { Err(Unfinished::NoPower) }
    }

    /// The owner stands still, and the next machine goes on alone.
    fn stand(&mut self, end: StandEnd) -> Result<(), Unfinished> {
        let (contest, begun) = (self.contest.clone(), self.now);
        self.disks.world.tell(|| format!("the owner stands still, until {end:?}"));
        contest.stands_since.set(Some(begun));
        contest.stands.set(contest.stands.get() + 1);
        self.land_held();
        let limit = begun + longest(end);
        contest.awaited.set(Some(end));
        while self.now < limit && !contest.is_stand_over(end) {
            let to = limit.min(self.now + LONG_TURN);
            self.turn(NEXT, to)?;
            self.now = if contest.is_stand_over(end) { to.min(self.next.now()) } else { to };
        }
        contest.awaited.set(None);
        contest.is_reached.set(false);
        self.wake(self.now.since(begun));
        Ok(())
    }

    /// The owner runs on without its disks, or its stores, beside the next machine.
    fn cut_off(&mut self, how: CutOff, stand: &Stand) -> Result<(), Unfinished> {
        let (contest, begun, end) = (self.contest.clone(), self.now, stand.end);
        let has_log = stand.has_log;
        self.disks.world.tell(|| {
            format!("the owner is cut off ({how:?}, has its log: {has_log}), until {end:?}")
        });
        contest.stands_since.set(Some(begun));
        contest.stands.set(contest.stands.get() + 1);
        contest.is_heard.set(has_log);
        if has_log {
            contest.owner.count("owners cut off from their object store", 1);
        } else {
            contest.was_cut_off.set(true);
            contest.owner.cut_off();
            contest.owner.count("owners cut off from their disks", 1);
        }
        let delivers_after = self.lands_after;
        self.lands_after = self.lands_after.min(LATER_HELD);
        self.on_owner(move |link| link.cut(how, delivers_after, has_log));
        contest.awaited.set(Some(end));
        let over = contest.clone();
        self.take_turns(begun + longest(end), Some(CUT_OFF_TURN), &|| over.is_stand_over(end))?;
        contest.awaited.set(None);
        contest.is_reached.set(false);
        self.disks.world.tell(|| "the owner reaches its disks again".to_owned());
        self.on_owner(Link::restore);
        contest.stands_since.set(None);
        if !contest.is_heard.take() {
            contest.runs_since.set(self.now);
        }
        Ok(())
    }

    /// The owner loses its link to some disks, a while from now and for good.
    fn lose(&self, loss: &Loss) {
        self.disks.world.tell(|| format!("the owner loses its link to disks: {loss:?}"));
        self.contest.owner.count("owners that lose disks", 1);
        self.disks.world.set_machine(OWNER);
        let (lost, how, after) = (self.contest.lost.clone(), loss.how, Nanos(loss.after_ns));
        self.owner.run(async move {
            rt::spawn_detached(Box::pin(async move {
                rt::sleep(after).await;
                lost.cut(how, Nanos(u64::MAX), false);
            }));
        });
    }

    fn on_owner(&self, change: impl FnOnce(&Link) + 'static) {
        self.disks.world.set_machine(OWNER);
        let link = self.contest.link.clone();
        self.owner.run(async move { change(&link) });
    }

    /// What disks have of the owner's commands takes effect: some at once, the rest a while later.
    fn land_held(&mut self) {
        let world = self.disks.world.clone();
        world.set_machine(NEXT);
        let mut late = Vec::new();
        for held in world.held_changes(OWNER) {
            match self.rng.chance(500) {
                true => world.land(held),
                false => late.push(held),
            }
        }
        let (at, buckets) = (self.now + self.lands_after, self.disks.buckets.clone());
        self.lands_after = self.lands_after.min(LATER_HELD);
        self.next.run(async move {
            buckets.iter().for_each(|(_, bucket)| bucket.overtake());
            rt::spawn(async move {
                rt::sleep_until(at).await;
                late.into_iter().for_each(|held| world.land(held));
            });
        });
    }

    fn wake(&mut self, stood: Nanos) {
        self.disks.world.tell(|| format!("the owner goes on after {} us", stood.0 / 1000));
        self.disks.world.set_machine(OWNER);
        let is_suspended = self.is_suspended;
        if is_suspended {
            self.behind = self.behind + stood;
        }
        pass_time(self.owner, stood, is_suspended);
        self.contest.stands_since.set(None);
        self.contest.runs_since.set(self.now);
    }

    /// Lets a machine run to the end of its task.
    fn finish(&mut self, machine: u64, has_ended: &dyn Fn() -> bool) -> Result<(), Unfinished> {
        let is_kept = self.contest.decision.get() == Decision::Kept;
        let limit = if is_kept || machine == NEXT { Nanos::from_secs(50_000) } else { END_LIMIT };
        let until = self.now + limit;
        while self.now < until && !has_ended() {
            let to = self.now + Nanos::from_secs(1);
            self.turn(machine, to)?;
            self.now = to;
        }
        if has_ended() { Ok(()) } else { Err(Unfinished::Hang) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_that_goes_on_sees_the_time_before_its_tasks_run() {
        for is_suspended in [false, true] {
            let machine = Runtime::simulated(1);
            let seen = Rc::new(RefCell::new(Vec::new()));
            let of_tasks = seen.clone();
            machine.run(async move {
                for _ in 0..64 {
                    let seen = of_tasks.clone();
                    rt::spawn_detached(Box::pin(async move {
                        rt::yield_now().await;
                        seen.borrow_mut().push(rt::now_with_suspension());
                    }));
                }
                rt::halt();
            });
            seen.borrow_mut().clear();
            pass_time(&machine, Nanos::from_secs(60), is_suspended);
            machine.run(async {});
            assert!(seen.borrow().len() > 1);
            assert!(seen.borrow().iter().all(|now| *now == Nanos::from_secs(60)));
        }
    }
}
