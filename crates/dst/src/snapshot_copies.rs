//! Snapshots that are sent and received as volumes of the same pool.
//!
//! What enters: a job. What leaves: its outcome, and in the model the copy and its snapshot. What
//! always holds: clients leave copies alone, so each is as its newest snapshot, or as the stream
//! that was being received would make it. Who calls: the administrator.

use crate::administrator::Administrator;
use crate::history::History;
use crate::model::{Presence, RollingBack, volume_name};
use crate::scenario::Copying;
use crate::subject::{Cause, Pool, Refusal};

/// The number of the first copy: no client uses it, nor those after it.
pub(crate) const FIRST_COPY: u32 = 2000;

impl<P: Pool> Administrator<P> {
    /// Sends snapshot `key` and receives it as volume `copy`. `None` when there is nothing to send,
    /// or nowhere to receive it.
    pub(crate) async fn copy_snapshot(
        &self,
        key: (u32, u32),
        copy: u32,
        how: Copying,
    ) -> Option<Result<(), Refusal>> {
        let model = &self.model;
        let new = (copy, key.1);
        let owner = |key: (u32, u32)| model.update_snapshot(key, |snapshot| snapshot.owner);
        // What an increment that failed has left is not known until the next import.
        let is_doubtful = model.update(copy, |v| v.rolling_back.is_some()) == Some(true);
        let is_there = match how.base {
            _ if is_doubtful => false,
            // A promotion may have parted the two.
            Some(base) if owner((key.0, base)) != owner(key) => false,
            Some(base) => model.has_snapshot((key.0, base)) && model.has_snapshot((copy, base)),
            None => model.update(copy, |v| v.presence).is_none_or(|p| p == Presence::Gone),
        };
        // A snapshot of this number that failed may still come to be with the next import.
        let was_asked = model.update_snapshot(new, |s| s.presence != Presence::Gone);
        // What came of a stream that was cut has the name that the snapshot had then.
        let is_renamed = was_asked == Some(false) && !model.are_called_alike(key, new);
        if !is_there || was_asked == Some(true) || is_renamed {
            return None;
        }
        if let Err(refusal) = self.read_snapshot(key).await {
            return Some(Err(refusal));
        }
        let contents = model.update_snapshot(key, |snapshot| snapshot.contents.clone()).flatten();
        let contents = contents.filter(|contents| contents.is_known())?;
        self.expect_copy(&contents, key, copy, how);
        let (name, to) = (model.snapshot_name(key), volume_name(copy));
        let base = how.base.map(|base| model.short_name((key.0, base)));
        let outcome = self.pool.copy_snapshot(&name, base.as_deref(), &to, &how).await;
        let is_whole = matches!(outcome, Ok(true));
        let lacks_space = |refusal: &Refusal| refusal.cause == Cause::NoSpace;
        let may_come = outcome.as_ref().is_err_and(|refusal| !lacks_space(refusal));
        let presence = match outcome {
            Ok(true) => Presence::Present,
            // A part of a stream is not seen.
            Ok(false) => Presence::Gone,
            Err(_) => Presence::Destroying,
        };
        self.set_presence(&[new], presence);
        model.update(copy, |v| match how.base {
            None => v.presence = presence,
            Some(_) if is_whole => {
                v.history = *v.rolling_back.take().expect("set above").contents;
                v.rollbacks += 1;
            }
            Some(_) if !may_come => v.rolling_back = None,
            Some(_) => {}
        });
        if is_whole {
            model.judge_late_job(copy);
            model.judge_late_snapshot(new);
        }
        match outcome {
            Ok(true) => Some(Ok(())),
            Ok(false) => {
                model.count("streams cut", 1);
                None
            }
            Err(refusal) if refusal.cause == Cause::NoSpace => {
                model.count("streams refused for want of space", 1);
                None
            }
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Notes what the copy and its snapshot may be from now on.
    fn expect_copy(&self, contents: &History, key: (u32, u32), copy: u32, how: Copying) {
        let (model, new) = (&self.model, (copy, key.1));
        if how.base.is_none() {
            model.creating(copy, contents.sectors());
        }
        model.snapshot_asked(new);
        model.names_copy(new, key);
        let (as_volume, as_snapshot) = (volume_name(copy), model.snapshot_name(new));
        model.update(copy, |v| {
            let history = contents.cloned(&as_volume, key.0);
            match how.base {
                None => (v.history, v.is_sparse) = (history, true),
                Some(_) => {
                    let contents = Box::new(history);
                    v.rolling_back = Some(RollingBack { contents, answered: None });
                }
            }
        });
        model.update_snapshot(new, |snapshot| {
            snapshot.contents = Some(Box::new(contents.cloned(&as_snapshot, key.0)));
        });
    }
}
