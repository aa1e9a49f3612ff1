//! The administrator: performs the jobs of a scenario while clients work.
//!
//! What enters: a list of jobs. What leaves: notes in the model about volumes, counts by name, and
//! an objection for each refusal that is not excused.
//! Who calls: `run.rs`, as one task.

use std::rc::Rc;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, Nanos, SECTOR_BYTES};

use crate::coverage::Coverage;
use crate::disks::Disks;
use crate::leaks::check_promises;
use crate::model::{Model, Presence, volume_name};
use crate::scenario::{Admin, ImproperJob};
use crate::subject::{CLEANER_EVENT, Cause, Manage, Pool, Refusal, ScanJob, ScrubPhase, Sync};
use crate::verdict::Kind;

/// The administrator of one boot.
pub struct Administrator<P: Pool> {
    /// The pool.
    pub pool: Rc<P>,
    /// What clients know.
    pub model: Rc<Model>,
    /// All devices, by number.
    pub devices: Vec<Device>,
    /// Volumes change while requests are in flight.
    pub is_beside: bool,
    /// Total size of the volumes at creation, for which the pool has room.
    pub first_sectors: u64,
    /// What they have gone through.
    pub disks: Rc<Disks>,
    /// Where the job in progress is noted.
    pub coverage: Rc<Coverage>,
}

impl<P: Pool> Administrator<P> {
    /// Performs all jobs in order.
    pub async fn work(self, jobs: Vec<Admin>) {
        for job in jobs {
            if self.model.failed() {
                return;
            }
            if let Admin::Pause { ns } = job {
                rt::sleep(Nanos(ns)).await;
                continue;
            }
            let before = self.coverage.job.replace(job.name());
            let outages = self.model.outages.get();
            let outcome = self.perform(&job).await;
            self.coverage.job.set(before);
            check_promises(&self.model, &*self.pool);
            match outcome {
                Some(Err(_)) if !self.is_calm_since(outages) => {
                    self.model.count("suspension: jobs failed", 1)
                }
                Some(outcome) => self.note(&job, outcome),
                None => {}
            }
        }
    }

    /// Performs one job. `None` when its volume is not there.
    async fn perform(&self, job: &Admin) -> Option<Result<(), Refusal>> {
        let is_by_name =
            !matches!(job, Admin::Manage(_) | Admin::Scrub | Admin::Scan(_) | Admin::Set { .. });
        if is_by_name && self.model.has_unknown_names() {
            return None;
        }
        match job {
            Admin::Pause { .. } => None,
            Admin::Create { volume, sectors } => Some(self.create(*volume, *sectors).await),
            Admin::Destroy { volume } => {
                self.model.usable(*volume, 0, 1)?;
                Some(self.destroy(*volume).await)
            }
            Admin::Resize { volume, sectors } => {
                self.model.usable(*volume, 0, 1)?;
                Some(self.resize(*volume, *sectors).await)
            }
            Admin::Sync { volume, sync } => {
                self.model.usable(*volume, 0, 1)?;
                Some(self.set_sync(*volume, *sync).await)
            }
            Admin::Rename { volume, to } => {
                self.model.usable(*volume, 0, 1)?;
                self.rename(*volume, *to).await
            }
            Admin::Improper { volume, what } => {
                self.improper(*volume, *what).await;
                None
            }
            Admin::Set { property, value } => Some(self.pool.set(property, value).await),
            Admin::Service { volume, name, value } => {
                self.model.usable(*volume, 0, 1)?;
                self.set_service(*volume, name, value).await
            }
            Admin::Reserve { volume, is_thick } => {
                self.model.usable(*volume, 0, 1)?;
                self.reserve(*volume, *is_thick).await
            }
            Admin::Scrub => {
                if self.pool.scrub_phase() != Some(ScrubPhase::Paused) {
                    self.model.scrubs.forget();
                }
                Some(self.pool.scrub().await.map(drop))
            }
            Admin::Scan(job) => self.scan(*job).await,
            Admin::Manage(what) => Some(self.pool.manage(&self.devices, what).await),
            Admin::Snapshot(job) => self.snapshot_job(job).await,
        }
    }

    async fn create(&self, volume: u32, sectors: u64) -> Result<(), Refusal> {
        self.model.creating(volume, sectors);
        let name = volume_name(volume);
        let outcome = self.pool.create_volume(&name, sectors * SECTOR_BYTES, false).await;
        let presence = match outcome {
            Ok(()) => Presence::Present,
            Err(_) => Presence::Destroying,
        };
        self.model.update(volume, |v| v.presence = presence);
        self.model.judge_late_job(volume);
        outcome
    }

    async fn destroy(&self, volume: u32) -> Result<(), Refusal> {
        let (snapshots, clones) = self.snapshots_after(volume, None);
        if !self.is_beside {
            self.model.close(volume).await;
        }
        self.model.update(volume, |v| v.presence = Presence::Destroying);
        self.set_presence(&snapshots, Presence::Destroying);
        let name = self.model.name_of(volume);
        let outcome = self.pool.destroy_volume(&name).await;
        match (&outcome, clones) {
            (Ok(()), _) => self.model.update(volume, |v| v.presence = Presence::Gone),
            (Err(_), Presence::Present) => self.model.update(volume, |v| {
                (v.presence, v.is_closed) = (Presence::Present, false);
            }),
            (Err(_), _) => None,
        };
        self.model.judge_late_job(volume);
        self.after_destruction(&snapshots, clones, &name, outcome)
    }

    async fn resize(&self, volume: u32, sectors: u64) -> Result<(), Refusal> {
        if !self.is_beside {
            self.model.close(volume).await;
        }
        self.model.update(volume, |v| v.resizing.push(sectors));
        let size_bytes = sectors * SECTOR_BYTES;
        let outages = self.model.outages.get();
        let outcome = self.pool.resize_volume(&self.model.name_of(volume), size_bytes).await;
        if outcome.is_ok() {
            self.model.update(volume, |v| {
                v.history.resize(sectors);
                v.resizing.clear();
            });
            self.model.judge_late_job(volume);
        } else if !self.is_calm_since(outages) && !self.model.is_cut_off() {
            self.settle_size(volume, sectors).await;
        }
        self.model.update(volume, |v| v.is_closed = false);
        outcome
    }

    /// Gives a volume another name while its clients go on. `None` when it has that one.
    async fn rename(&self, volume: u32, to: u32) -> Option<Result<(), Refusal>> {
        let (name, new) = self.model.renaming(volume, to)?;
        let outcome = self.pool.rename_volume(&name, &new).await;
        if outcome.is_ok() {
            self.model.renamed(volume);
            self.model.judge_late_job(volume);
        }
        Some(outcome)
    }

    /// True when no disk has failed since there were so many outages that the pool may need.
    fn is_calm_since(&self, outages: u64) -> bool {
        !self.model.is_in_outage() && self.model.outages.get() == outages
    }

    /// After an outage in which a change of a size failed: the size is the old one or the new one,
    /// and stays.
    async fn settle_size(&self, volume: u32, wanted: u64) {
        self.model.calm().await;
        let device = self.pool.volume(&self.model.name_of(volume));
        let found = device.map(|device| device.geometry().size_bytes / SECTOR_BYTES);
        if self.pool.is_suspended() || found.is_none() {
            return;
        }
        self.model.update(volume, |v| {
            v.resizing.clear();
            if found == Some(wanted) {
                v.history.resize(wanted);
            }
        });
        let sectors = self.model.update(volume, |v| v.history.sectors());
        if sectors != found {
            let name = self.model.name_of(volume);
            let text = format!("{name} has {found:?} sectors after an outage, not {sectors:?}");
            self.model.object(Kind::Volumes, text);
        }
        self.model.count("suspension: sizes that were settled", 1);
    }

    /// Asks for a job that must be refused.
    async fn improper(&self, volume: u32, what: ImproperJob) {
        let (name, other) = (self.model.name_of(volume), "none");
        let huge = 1 << 45;
        let outcome = match what {
            ImproperJob::CreateTwice => self.pool.create_volume(&name, BLOCK_BYTES, false).await,
            ImproperJob::CreateLarge => self.pool.create_volume(other, huge, false).await,
            ImproperJob::CreateUneven => self.pool.create_volume(other, 1000, true).await,
            ImproperJob::Grow => self.pool.resize_volume(&name, huge).await,
            ImproperJob::DestroyNone => self.pool.destroy_volume(other).await,
        };
        match outcome {
            Err(_) => self.model.count(&format!("jobs refused: {what:?}"), 1),
            Ok(()) => self.model.object(Kind::Error, format!("the pool performed {what:?}")),
        }
    }

    /// Has a volume reserve its space, or not. `None` when there is not enough, or blocks of the
    /// volume are shared or compressed.
    async fn reserve(&self, volume: u32, is_thick: bool) -> Option<Result<(), Refusal>> {
        let was_sparse = self.model.update(volume, |v| {
            v.is_reserving = true;
            v.is_sparse
        })?;
        if !is_thick {
            self.model.update(volume, |v| v.is_sparse = true);
        }
        let value = if is_thick { "auto" } else { "none" };
        let name = self.model.name_of(volume);
        let outcome = self.pool.set_service(&name, "reservation", value).await;
        if is_thick && outcome.is_ok() {
            self.model.reserved(volume);
        }
        let is_excused = is_thick && was_sparse && outcome.is_err();
        self.model.count("reservations refused", u64::from(is_excused));
        let is_certain = outcome.is_ok() || is_excused;
        self.model.update(volume, |v| v.is_reserving = !is_certain);
        (!is_excused).then_some(outcome)
    }

    /// Sets how blocks of a volume are stored, or a limit. `None` when it is refused and may be:
    /// the volume reserves its space, or the power failed while that was being changed.
    async fn set_service(
        &self,
        volume: u32,
        name: &str,
        value: &str,
    ) -> Option<Result<(), Refusal>> {
        let outcome = self.pool.set_service(&self.model.name_of(volume), name, value).await;
        let may_be_thick = self.model.update(volume, |v| v.is_reserving || !v.is_sparse)?;
        // Limits, and storing blocks as they are, are no matter of what is reserved.
        let needs_sparse = matches!(name, "compression" | "dedup") && value != "off";
        let is_excused = outcome.is_err() && may_be_thick && needs_sparse;
        self.model.count("services refused beside a reservation", u64::from(is_excused));
        (!is_excused).then_some(outcome)
    }

    /// Begins, pauses or stops a scrub. `None` when it is rightly refused.
    async fn scan(&self, job: ScanJob) -> Option<Result<(), Refusal>> {
        let before = self.pool.scrub_phase()?;
        let damage = self.disks.damage();
        let outcome = self.pool.scan(job).await;
        let after = self.pool.scrub_phase()?;
        if self.pool.is_suspended() {
            return None;
        }
        if job == ScanJob::Begin && outcome.is_ok() && before != ScrubPhase::Paused {
            self.model.scrubs.begin(damage);
        }
        if job == ScanJob::Stop && outcome.is_ok() {
            self.model.scrubs.forget();
        }
        let is_right = match (job, before, &outcome) {
            (ScanJob::Begin, ScrubPhase::Running | ScrubPhase::Resilver, outcome) => {
                outcome.is_err()
            }
            (ScanJob::Begin, _, outcome) => outcome.is_ok() && after == ScrubPhase::Running,
            (_, ScrubPhase::Stopped | ScrubPhase::Completed, outcome) => outcome.is_err(),
            (ScanJob::Pause, ScrubPhase::Paused, outcome) => outcome.is_err(),
            (ScanJob::Pause, ScrubPhase::Running, outcome) => {
                outcome.is_ok() && after == ScrubPhase::Paused
            }
            (ScanJob::Stop, ScrubPhase::Running | ScrubPhase::Paused, outcome) => {
                outcome.is_ok() && after == ScrubPhase::Stopped
            }
            // A scrub may wait for a resilver.
            _ => true,
        };
        if !is_right {
            let text = format!("{job:?} when the scrub was {before:?}: {outcome:?}, now {after:?}");
            self.model.object(Kind::Scrub, text);
        }
        self.model.count("scrubs: jobs refused", u64::from(outcome.is_err()));
        outcome.is_ok().then_some(outcome)
    }

    async fn set_sync(&self, volume: u32, sync: Sync) -> Result<(), Refusal> {
        // While the property changes, neither setting is promised for writes in flight.
        self.model.update(volume, |v| (v.sync, v.sync_varies) = (None, true));
        let outcome = self.pool.set_sync(&self.model.name_of(volume), sync).await;
        if outcome.is_ok() {
            self.model.update(volume, |v| v.sync = Some(sync));
        }
        outcome
    }

    /// True when the job asks for more space than the volumes had at creation.
    fn grows(&self, job: &Admin) -> bool {
        let present = self.model.sectors_present();
        match job {
            Admin::Create { sectors, .. } => present + sectors > self.first_sectors,
            Admin::Resize { volume, sectors } => {
                let now = self.model.update(*volume, |v| v.history.sectors()).unwrap_or(0);
                present + sectors > self.first_sectors + now
            }
            _ => false,
        }
    }

    /// Counts the outcome of a job by name, or objects to a refusal.
    fn note(&self, job: &Admin, outcome: Result<(), Refusal>) {
        let model = &self.model;
        model.acts.set(model.acts.get() + 1);
        let name = job.name();
        let grows = self.grows(job);
        match outcome {
            Ok(()) => {
                model.count(&format!("admin: {name}"), 1);
                if *job == Admin::Manage(Manage::Commit) {
                    model.commits.set(model.commits.get() + 1);
                }
                let cleaned = |(event, count): &(String, u64)| event == CLEANER_EVENT && *count > 0;
                if self.pool.events().iter().any(cleaned) {
                    model.count(&format!("admin: {name}, while the cleaner is at work"), 1);
                }
            }
            // What snapshots hold is missing elsewhere.
            Err(refusal)
                if (grows || !model.snapshots().is_empty()) && refusal.cause == Cause::NoSpace =>
            {
                model.count(&format!("admin: {name} refused for want of space"), 1);
            }
            // For example the last good side, or a device that is busy or gone.
            Err(_) if job.may_be_refused() => model.count(&format!("admin: {name} refused"), 1),
            Err(refusal) => model.error_seen(&format!("{job:?}"), &refusal.message),
        }
    }
}
