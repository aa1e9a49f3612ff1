//! The administrator's jobs on snapshots and clones.
//!
//! What enters: a job. What leaves: its outcome, and in the model what is known of the snapshots.
//! What always holds: a snapshot is read before its contents are built upon.
//! Who calls: the administrator.

use forebay_units::SECTOR_BYTES;

use crate::administrator::Administrator;
use crate::client::read_all_or_fail;
use crate::history::History;
use crate::model::{Presence, RollingBack, tag_name, volume_name};
use crate::scenario::SnapshotJob;
use crate::subject::{Cause, Pool, Refusal};
use crate::verdict::Kind;

impl<P: Pool> Administrator<P> {
    /// Performs one job. `None` when what it is about is not there.
    pub(crate) async fn snapshot_job(&self, job: &SnapshotJob) -> Option<Result<(), Refusal>> {
        if self.model.promotions.borrow().asked.is_some() {
            // Whether it took effect, and so what snapshots are called, is not known.
            return None;
        }
        let key = match *job {
            SnapshotJob::Promote { clone } => return self.promote(clone).await,
            SnapshotJob::Take { ref volumes, number } => return self.take(volumes, number).await,
            SnapshotJob::ReadAll { number } => return self.read_instant(number).await,
            SnapshotJob::Read { volume, number }
            | SnapshotJob::Destroy { volume, number }
            | SnapshotJob::Hold { volume, number, .. }
            | SnapshotJob::Rename { volume, number, .. }
            | SnapshotJob::RollBack { volume, number, .. }
            | SnapshotJob::Clone { volume, number, .. }
            | SnapshotJob::Copy { volume, number, .. } => (volume, number),
        };
        if !self.model.has_snapshot(key) {
            return None;
        }
        match *job {
            SnapshotJob::Take { .. } | SnapshotJob::ReadAll { .. } => None,
            SnapshotJob::Promote { .. } => None,
            SnapshotJob::Read { .. } => Some(self.read_snapshot(key).await),
            SnapshotJob::Destroy { .. } => Some(self.destroy_snapshot(key).await),
            SnapshotJob::Hold { tag, release, .. } => self.hold(key, tag, release).await,
            SnapshotJob::Rename { to, .. } => self.rename_snapshot(key, to).await,
            SnapshotJob::RollBack { in_use, .. } => {
                let owner = self.model.update_snapshot(key, |snapshot| snapshot.owner)?;
                self.model.usable(owner, 0, 1)?;
                Some(self.roll_back(key, owner, in_use).await)
            }
            SnapshotJob::Clone { clone, .. } => Some(self.clone_snapshot(key, clone).await),
            SnapshotJob::Copy { copy, how, .. } => self.copy_snapshot(key, copy, how).await,
        }
    }

    async fn take(&self, volumes: &[u32], number: u32) -> Option<Result<(), Refusal>> {
        let model = &self.model;
        let is_steady = |volume: &u32| {
            let is_resizing = model.update(*volume, |v| !v.resizing.is_empty());
            model.must_be_there(*volume) && is_resizing == Some(false)
        };
        let keys: Vec<(u32, u32)> =
            volumes.iter().copied().filter(is_steady).map(|volume| (volume, number)).collect();
        if keys.is_empty() {
            return None;
        }
        keys.iter().for_each(|key| model.snapshot_asked(*key));
        let names: Vec<String> = keys.iter().map(|key| model.snapshot_name(*key)).collect();
        let outcome = self.pool.take_snapshots(&names).await;
        for key in keys {
            // One that was refused may be there all the same, if disks failed meanwhile.
            model.freeze_snapshot(key);
            let presence = if outcome.is_ok() { Presence::Present } else { Presence::Destroying };
            model.update_snapshot(key, |snapshot| snapshot.presence = presence);
            model.judge_late_snapshot(key);
        }
        Some(outcome)
    }

    /// Reads a snapshot as a whole and checks it.
    pub(crate) async fn read_snapshot(&self, key: (u32, u32)) -> Result<(), Refusal> {
        self.read_together(&[key]).await
    }

    /// Reads what was taken at one instant. `None` when none of it is there.
    async fn read_instant(&self, number: u32) -> Option<Result<(), Refusal>> {
        let mut keys = self.model.snapshots();
        keys.retain(|key| key.1 == number && self.model.has_snapshot(*key));
        if keys.is_empty() {
            return None;
        }
        Some(self.read_together(&keys).await)
    }

    /// Reads snapshots of one instant, each as a whole, and checks them.
    async fn read_together(&self, keys: &[(u32, u32)]) -> Result<(), Refusal> {
        let model = &self.model;
        let mut found = Vec::new();
        for key in keys {
            let name = model.snapshot_name(*key);
            let Some(device) = self.pool.snapshot(&name) else {
                return Err(Refusal::new(format!("{name} is not there")));
            };
            let sectors = device.geometry().size_bytes / SECTOR_BYTES;
            found.push((*key, read_all_or_fail(&device, model, key.0, sectors).await?));
        }
        let mut read = Vec::new();
        for (key, seen) in found {
            let Some(Some(contents)) = model.update_snapshot(key, |s| s.contents.take()) else {
                continue;
            };
            if contents.sectors() != seen.len() as u64 {
                let (name, sectors) = (model.snapshot_name(key), seen.len());
                model.object(Kind::Volumes, format!("{name} has {sectors} sectors"));
            }
            read.push((key, contents, seen));
        }
        if !model.failed() {
            let mut all: Vec<_> =
                read.iter_mut().map(|(_, contents, seen)| (&mut **contents, &**seen)).collect();
            model.judge(Kind::Read, History::check_together(&mut all));
        }
        for (key, contents, _) in read {
            model.update_snapshot(key, |snapshot| snapshot.contents = Some(contents));
        }
        Ok(())
    }

    /// Adds a tag or takes it away. `None` when that is so already.
    async fn hold(&self, key: (u32, u32), tag: u32, release: bool) -> Option<Result<(), Refusal>> {
        let model = &self.model;
        let may_ask = model.update_snapshot(key, |snapshot| {
            let may_ask = snapshot.hold_asked.is_none() && snapshot.holds.contains(&tag) == release;
            snapshot.hold_asked = snapshot.hold_asked.or(may_ask.then_some(tag));
            snapshot.was_tagged = true;
            may_ask
        });
        may_ask.filter(|may_ask| *may_ask)?;
        let name = model.snapshot_name(key);
        let outcome = self.pool.hold_snapshot(&name, &tag_name(tag), release).await;
        if outcome.is_ok() {
            model.update_snapshot(key, |snapshot| {
                snapshot.hold_asked = None;
                match release {
                    true => snapshot.holds.remove(&tag),
                    false => snapshot.holds.insert(tag),
                }
            });
            model.judge_late_snapshot(key);
        }
        Some(outcome)
    }

    /// Gives a snapshot another name. `None` when it has that one.
    async fn rename_snapshot(&self, key: (u32, u32), to: u32) -> Option<Result<(), Refusal>> {
        let (name, new) = self.model.renaming_snapshot(key, to)?;
        let outcome = self.pool.rename_snapshot(&name, &new).await;
        if outcome.is_ok() {
            self.model.snapshot_renamed(key);
            self.model.judge_late_snapshot(key);
        }
        Some(outcome)
    }

    async fn destroy_snapshot(&self, key: (u32, u32)) -> Result<(), Refusal> {
        let model = &self.model;
        let clones = model.keepers_of(key);
        let name = model.snapshot_name(key);
        self.set_presence(&[key], Presence::Destroying);
        let outcome = self.pool.destroy_snapshots(std::slice::from_ref(&name)).await;
        self.after_destruction(&[key], clones, &name, outcome)
    }

    pub(crate) fn set_presence(&self, keys: &[(u32, u32)], presence: Presence) {
        for key in keys {
            self.model.update_snapshot(*key, |snapshot| {
                (snapshot.presence, snapshot.is_recent) = (presence, true);
            });
        }
    }

    /// Notes the outcome of what destroys snapshots. It must be refused while one has a clone.
    pub(crate) fn after_destruction(
        &self,
        keys: &[(u32, u32)],
        clones: Presence,
        what: &str,
        outcome: Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match (clones, &outcome) {
            (Presence::Present, Ok(())) => {
                let text = format!("{what} was destroyed although it has clones or tags");
                self.model.object(Kind::Volumes, text);
            }
            (_, Ok(())) => {
                self.set_presence(keys, Presence::Gone);
                keys.iter().for_each(|key| self.model.judge_late_snapshot(*key));
            }
            (Presence::Present, Err(_)) => {
                self.set_presence(keys, Presence::Present);
                self.model.count("jobs refused: snapshots with clones or tags", 1);
                return Ok(());
            }
            (Presence::Gone, Err(_)) => {}
            // Whether there is a clone, and so why it failed, is not known.
            (_, Err(_)) => return Ok(()),
        }
        outcome
    }

    /// The snapshots of a volume that must exist, from the one after `number` on, and whether one
    /// that may exist has clones.
    pub(crate) fn snapshots_after(
        &self,
        volume: u32,
        number: Option<u32>,
    ) -> (Vec<(u32, u32)>, Presence) {
        let model = &self.model;
        let mut all = model.snapshots();
        let is_of = |key: &(u32, u32)| {
            model.update_snapshot(*key, |snapshot| snapshot.owner) == Some(volume)
        };
        all.retain(|key| is_of(key) && number.is_none_or(|number| key.1 > number));
        let mut clones = Presence::Gone;
        for key in &all {
            let presence = model.update_snapshot(*key, |snapshot| snapshot.presence);
            clones = match (presence, model.keepers_of(*key)) {
                (Some(Presence::Gone) | None, _) | (_, Presence::Gone) => clones,
                (Some(Presence::Present), Presence::Present) => Presence::Present,
                _ if clones == Presence::Present => clones,
                _ => Presence::Creating,
            };
        }
        all.retain(|key| model.has_snapshot(*key));
        (all, clones)
    }

    /// Rolls a volume back: `in_use`, beside its clients, if the oracle can follow that.
    async fn roll_back(&self, key: (u32, u32), volume: u32, in_use: bool) -> Result<(), Refusal> {
        let (model, number) = (&self.model, key.1);
        self.read_snapshot(key).await?;
        let (newer, clones) = self.snapshots_after(volume, Some(number));
        let contents = model.update_snapshot(key, |snapshot| snapshot.contents.clone()).flatten();
        let Some(contents) = contents.filter(|contents| contents.is_known()) else {
            return Ok(());
        };
        let may_stay = model.update(volume, |v| v.history.may_go_back_in_use(&contents));
        if in_use && may_stay == Some(true) {
            model.count("rollbacks of volumes in use", 1);
        } else {
            model.close(volume).await;
        }
        model.update(volume, |v| {
            let answered = Some(v.history.answered());
            v.rolling_back = Some(RollingBack { contents, answered });
        });
        self.set_presence(&newer, Presence::Destroying);
        let name = model.snapshot_name(key);
        let outcome = self.pool.roll_back(&name).await;
        let is_done = outcome.is_ok();
        let lacks_space = |refusal: &Refusal| refusal.cause == Cause::NoSpace;
        let is_refused = clones == Presence::Present || outcome.as_ref().is_err_and(lacks_space);
        model.update(volume, |v| {
            let done = if is_done { v.rolling_back.take() } else { None };
            if let Some(done) = done {
                v.history = done.after(&v.history);
                v.rollbacks += 1;
            } else if is_refused {
                v.rolling_back = None;
            } else {
                // What it holds is not known until the next import.
                v.presence = Presence::Destroying;
            }
            v.is_closed = false;
        });
        model.judge_late_job(volume);
        if is_refused && !is_done {
            self.set_presence(&newer, Presence::Present);
        }
        self.after_destruction(&newer, clones, &name, outcome)
    }

    /// Promotes a clone. `None` when it is none.
    async fn promote(&self, clone: u32) -> Option<Result<(), Refusal>> {
        let model = &self.model;
        let asked = model.origin_of(clone)?;
        if !model.must_be_there(clone) || !model.must_be_there(asked.parent) {
            return None;
        }
        model.promotions.borrow_mut().asked = Some(asked);
        let outcome = self.pool.promote(&model.name_of(clone)).await;
        let is_refused = outcome.as_ref().is_err_and(|refusal| refusal.cause == Cause::NoSpace);
        if outcome.is_ok() || is_refused {
            let asked = model.promotions.borrow_mut().asked.take();
            if let Some(asked) = asked.filter(|_| outcome.is_ok()) {
                model.promoted(&asked);
                model.promotions.borrow_mut().answered.push(asked);
                model.snapshots().into_iter().for_each(|key| model.judge_late_snapshot(key));
            }
        }
        Some(outcome)
    }

    async fn clone_snapshot(&self, key: (u32, u32), clone: u32) -> Result<(), Refusal> {
        let model = &self.model;
        self.read_snapshot(key).await?;
        let contents = model.update_snapshot(key, |snapshot| snapshot.contents.clone()).flatten();
        let Some(contents) = contents.filter(|contents| contents.is_known()) else { return Ok(()) };
        model.creating(clone, contents.sectors());
        model.update(clone, |v| {
            v.history = contents.cloned(&volume_name(clone), key.0);
            v.is_sparse = true;
        });
        model.update_snapshot(key, |snapshot| snapshot.clones.push(clone));
        let outcome =
            self.pool.clone_snapshot(&model.snapshot_name(key), &volume_name(clone)).await;
        let presence = match outcome {
            Ok(()) => Presence::Present,
            Err(_) => Presence::Destroying,
        };
        model.update(clone, |v| v.presence = presence);
        model.judge_late_job(clone);
        outcome
    }
}
