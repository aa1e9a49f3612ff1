//! The task of a machine that takes the pool from its owner: imports, judges, serves clients.
//!
//! What enters: what outlives a boot, and a takeover. What leaves: how the next owner ended, or an
//! objection to what two machines were told. Who calls: `run.rs`, through the contest.

use std::rc::Rc;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::boot_context::{BootContext, BootEnd};
use crate::contest::{Contest, Decision};
use crate::judgement::{finish, judge};
use crate::race::{self, Race};
use crate::scenario::{Attempt, Boot, Takeover, cuts_off};
use crate::subject::{ImportMode, OTHER_HOSTS, Pool, Subject};
use crate::verdict::Kind;

/// An owner that runs for so long has had its heartbeat read, and writes the next one.
const LIVES_AFTER: Nanos = Nanos::from_secs(2);
/// Nothing of an owner takes effect when it has stood still for so long.
const SILENT_AFTER: Nanos = Nanos::from_secs(12);

impl<S: Subject> BootContext<S> {
    /// Takes the pool over, as the plan says, unless a `rival` is the first to have it: then it
    /// goes on as that machine. `None` when the owner keeps it.
    pub(crate) async fn take_over(
        self,
        plan: Takeover,
        crashes: bool,
        contest: Rc<Contest>,
        rival: Option<Self>,
    ) -> Option<BootEnd> {
        let [host, third] = OTHER_HOSTS;
        let race = Race::new(&contest, rival.is_some());
        let mut rival = race::start(rival, plan.rival, third, &race);
        let devices = self.disks.open_on(host, &self.scenario.spec, &plan.misses).await;
        self.disks.struck.borrow_mut().extend(&plan.misses);
        if !plan.misses.is_empty() {
            self.model.count("takeovers by machines that miss disks", 1);
        }
        let mut taken = None;
        for attempt in &plan.attempts {
            taken = self.attempt(&devices, attempt, &race).await;
            if taken.is_some() || race.is_won() || self.model.failed() {
                break;
            }
        }
        if taken.is_none() {
            if let Some(rival) = rival.take() {
                rival.await;
            }
            taken = race.take();
        }
        let Some(pool) = taken else {
            contest.rest().await;
            return None;
        };
        let model = self.model.of_next_owner();
        contest.model.replace(Some(model.clone()));
        let before = self.model.clone();
        let next = Self { model, ..self };
        next.note_atomic(&pool);
        judge(&next, &pool, next.scenario.demand).await;
        before.is_replaced_by(&next.model);
        next.phase.set("work of the next owner");
        contest.clients_start();
        let pool = Rc::new(pool);
        let boot = Boot { clients: plan.clients, ..Boot::default() };
        next.work(&pool, None, boot, devices).await;
        if contest.rest().await != Decision::Replaced {
            return Some(BootEnd::Done);
        }
        for (name, count) in pool.events() {
            next.model.count(&name, count);
        }
        if next.scenario.keeps_disks {
            next.check_disks_kept(&*pool);
        }
        if crashes || next.model.failed() {
            next.tally.borrow_mut().event("power cut after the work");
            return Some(BootEnd::Crashed);
        }
        if let Some(rival) = rival {
            // It could import a pool that is exported.
            rival.await;
        }
        let Ok(pool) = Rc::try_unwrap(pool) else { panic!("a client still holds the pool") };
        finish(&next, pool, next.scenario.demand).await;
        Some(BootEnd::Done)
    }

    /// Tries one import, and judges whether it had to be refused.
    pub(crate) async fn attempt(
        &self,
        devices: &[Device],
        attempt: &Attempt,
        race: &Race<S::Pool>,
    ) -> Option<S::Pool> {
        let Self { subject, scenario, model, .. } = self;
        let contest = &race.contest;
        rt::sleep(Nanos(attempt.pause_ns)).await;
        self.phase.set("takeover");
        let (runs, stood) = (contest.owner_runs(), contest.owner_stood());
        // An owner whose disks are slow may have no heartbeat for a while.
        let may_be_silent = contest.was_cut_off() || self.disks.strikes.get() > 0;
        let lives = !may_be_silent && runs.is_some() && contest.owner_ran() >= LIVES_AFTER;
        let mode = if attempt.forces { ImportMode::Force } else { ImportMode::Plain };
        race.import_starts(model);
        let outcome = subject.import(devices, &scenario.spec, mode).await;
        let lives = lives && contest.owner_runs() == runs;
        match outcome {
            Ok(pool) => {
                model.count("takeovers", 1);
                race.import_succeeds(model);
                if lives {
                    let text = "a pool was taken over whose owner lives";
                    model.object_for_certain(Kind::Owners, text);
                } else if !attempt.forces {
                    let text = "a pool was taken over that another machine did not export";
                    model.object_for_certain(Kind::Owners, text);
                }
                Some(pool)
            }
            Err(refusal) => {
                model.count("takeovers refused", 1);
                self.disks.world.tell(|| format!("takeover refused: {}", refusal.message));
                let was_silent = attempt.forces && stood >= SILENT_AFTER && !race.has_rival();
                if !refusal.cause.is_other_machine()
                    || (was_silent && contest.owner_stood() > stood)
                {
                    let text = format!("a takeover was refused: {}", refusal.message);
                    model.object_for_certain(Kind::Import, text);
                }
                race.import_is_refused(model);
                None
            }
        }
    }

    /// On the machine that has lost the pool: it must have stopped, and blame no disk.
    pub(crate) fn check_replaced(&self, pool: &S::Pool) {
        self.model.count("owners replaced", 1);
        if !pool.is_suspended() {
            let text = "another machine has the pool, and its owner has not stopped";
            self.model.object_for_certain(Kind::Owners, text);
        }
        let struck = self.disks.struck.borrow();
        let devices = (0..).zip(self.disks.devices()).filter(|(disk, _)| !struck.contains(disk));
        let blamed = pool.blamed(&devices.map(|(_, device)| device).collect::<Vec<_>>());
        if !blamed.is_empty() && !cuts_off(&self.scenario.boots) {
            let text = format!("the owner before blames disks {blamed:?}");
            self.model.object_for_certain(Kind::Disks, text);
        }
    }
}
