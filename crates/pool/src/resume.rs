//! Resuming: a suspended pool is imported anew by the same process, and what was only in memory is
//! written again.
//!
//! What always holds: the suspended pool keeps its data in memory until the next one has committed
//! them. It is never followed by a pool that another owner has written to, or that lacks a root.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use forebay_format::config::PoolConfig;
use forebay_format::superblock::Superblock;
use forebay_rt as rt;
use forebay_txg::Held;
use forebay_units::{CommitId, Nanos, TxgId};

use crate::Pool;
use crate::commit::error::SuspendReason;
use crate::import::device_match::not_newest;
use crate::import::divergence::begin;
use crate::import::error::{ImportError, ImportErrorKind, Witness};
use crate::import::found::Found;
use crate::settings::FailMode;
use crate::spec::ImportOptions;

/// How long commands that are under way may take before a resume gives up, beyond their deadline.
const COMMANDS_END_WITHIN: Nanos = Nanos::from_secs(5);
/// Between two looks at commands that are under way.
const LOOK_AGAIN: Nanos = Nanos::from_millis(50);

/// Why a suspended pool could not go on. It stays as it is, and a later attempt may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// It is not suspended, or is about to be exported.
    NotSuspended {
        /// The pool.
        pool: String,
    },
    /// Another process has imported it.
    TakenOver {
        /// The pool.
        pool: String,
    },
    /// A device has commands that were given up and may still have their effect.
    CommandsUnderWay {
        /// The device.
        device: String,
        /// Their number.
        commands: u64,
    },
    /// It could not be imported.
    Import(Box<ImportError>),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSuspended { pool } => write!(f, "pool '{pool}' is not suspended"),
            Self::TakenOver { pool } => {
                write!(f, "pool '{pool}' cannot go on: another process has imported it")
            }
            Self::CommandsUnderWay { device, commands } => write!(
                f,
                "{device}: {commands} commands that were given up have not ended, and may still \
                 have their effect"
            ),
            Self::Import(error) => {
                write!(f, "pool '{}' cannot go on yet: {}", error.pool, error.kind)
            }
        }
    }
}

impl std::error::Error for ResumeError {}

/// The owners whose roots a resumed pool may go on from: the suspended pool, and earlier attempts
/// to resume it.
pub(crate) struct Continued<'a> {
    suspended: &'a Pool,
    /// The last group of the suspended pool that the root to go on from has.
    rooted: Cell<TxgId>,
}

impl<'a> Continued<'a> {
    fn new(suspended: &'a Pool) -> Self {
        Self { suspended, rooted: TxgId(0).into() }
    }

    /// Notes the newest root that the attempt `next` has written, and the one that it may have
    /// begun to write.
    pub fn note_roots(&self, next: &Pool) {
        let raise = |to: &Cell<CommitId>, by: CommitId| to.set(to.get().max(by));
        raise(&self.suspended.lifecycle.heirs_root, next.sync.rooted.get());
        raise(&self.suspended.lifecycle.heirs_tried, next.sync.commit.get().next());
    }

    /// The highest number of a root that the suspended pool or an attempt may have begun to write.
    /// A device that is missing now may have it.
    pub fn tried(&self) -> CommitId {
        let own = self.suspended.sync.commit.get().next();
        self.suspended.lifecycle.heirs_tried.get().max(own)
    }

    /// Records the owner `nonce` of an attempt, after earlier attempts that `config` does not list:
    /// a device that has a root of one did not diverge, because everything that they knew is in
    /// memory here. `highest` is the highest root on any device.
    pub fn begin(&self, config: &mut PoolConfig, nonce: u64, highest: CommitId) {
        let mut heirs = self.suspended.lifecycle.heirs.borrow_mut();
        heirs.push((nonce, self.rooted.get()));
        for (nonce, _) in heirs.iter().copied() {
            if config.lineage.owners.iter().all(|owner| owner.nonce != nonce) {
                begin(config, nonce, self.tried().max(highest));
            }
        }
    }

    /// Refuses a root that another owner has written since, and one that is older than what the
    /// suspended pool or an attempt has committed: memory holds only what came later. Notes which
    /// groups it has.
    pub fn check(
        &self,
        root: &Superblock,
        config: &PoolConfig,
        found: &[&Found],
    ) -> Result<(), ImportErrorKind> {
        let pool = self.suspended;
        let heirs = pool.lifecycle.heirs.borrow();
        let rooted = match heirs.iter().find(|(nonce, _)| *nonce == root.nonce) {
            _ if root.nonce == pool.nonce => root.txg,
            // The attempt went on from a root that has these.
            Some((_, rooted)) => *rooted,
            None => return Err(ImportErrorKind::OwnedMeanwhile),
        };
        if root.commit < pool.sync.rooted.get().max(pool.lifecycle.heirs_root.get()) {
            return Err(not_newest(Witness::KnownPools, config, found));
        }
        self.rooted.set(rooted);
        Ok(())
    }

    /// Gives `next` what was only in memory.
    pub fn hand_over(&self, next: &Pool) {
        next.take_uncommitted(self.suspended, self.rooted.get());
    }
}

impl Pool {
    /// Whether the pool takes no writes, and could when its devices do ([`Pool::resume`]).
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        let reason = self.lifecycle.stopped.borrow();
        reason.as_ref().is_some_and(|reason| *reason != SuspendReason::TakenOver)
            && !self.lifecycle.closing.get()
            && !self.lifecycle.given_up.get()
    }

    /// Whether its devices are closed, so that nothing can be read. It may have a successor.
    pub(crate) fn has_closed_devices(&self) -> bool {
        self.lifecycle.devices_closed.get()
    }

    /// The pool that follows this one, if there is one already.
    pub(crate) fn next(&self) -> Option<Rc<Pool>> {
        self.lifecycle.successor.borrow().clone()
    }

    /// The pool that follows this one, for an operation that failed here. Waits for it while the
    /// pool is suspended, if the property `failmode` says so. `None`: the failure stands.
    pub(crate) async fn successor(&self) -> Option<Rc<Pool>> {
        let waits = || self.is_resumable() && self.settings.get().failmode == FailMode::Wait;
        self.sync.done.until(|| self.next().is_some() || !waits()).await;
        self.next()
    }

    /// Lets operations that wait for a suspended pool fail: the process is about to end.
    pub fn give_up(&self) {
        if self.is_stopped() {
            self.lifecycle.given_up.set(true);
            self.sync.done.notify_all();
        }
    }

    /// Goes on with a suspended pool whose devices are well again: closes them, imports the pool
    /// from `paths`, and writes again what was only in memory. Operations that wait go on with the
    /// pool that is returned; volumes that are open stay open.
    ///
    /// On an error the pool stays suspended, and keeps what it has in memory.
    pub async fn resume(self: &Rc<Self>, paths: &[String]) -> Result<Rc<Pool>, ResumeError> {
        let _turn = self.admin.lock().await;
        let pool = self.name();
        if *self.lifecycle.stopped.borrow() == Some(SuspendReason::TakenOver) {
            return Err(ResumeError::TakenOver { pool });
        }
        if !self.is_resumable() || self.next().is_some() {
            return Err(ResumeError::NotSuspended { pool });
        }
        self.close_devices().await?;
        let next = self.import_again(paths).await.map_err(|e| ResumeError::Import(Box::new(e)))?;
        next.health.events.go_on(&self.health.events);
        *self.lifecycle.successor.borrow_mut() = Some(next.clone());
        self.sync.done.notify_all();
        Ok(next)
    }

    /// Ends all tasks and closes the devices. Fails while a device may still execute a command of
    /// this pool: it could overwrite what the next pool writes.
    async fn close_devices(&self) -> Result<(), ResumeError> {
        self.sync.wake.notify_all();
        let tasks = self.lifecycle.tasks.take();
        rt::join_all(tasks).await;
        // The heartbeat ends when every write has ended, and the right to write ends with it.
        let heart = self.lifecycle.heartbeat_task.take();
        if let Some(heart) = heart {
            heart.await;
        }
        self.lifecycle.devices_closed.set(true);
        let last = rt::now() + COMMANDS_END_WITHIN;
        let devices: Vec<_> = self.devices.borrow().values().cloned().collect();
        for open in devices {
            while let Err(commands) = open.deadline.close() {
                if rt::now() >= last {
                    let device = open.path.clone();
                    return Err(ResumeError::CommandsUnderWay { device, commands });
                }
                rt::sleep(LOOK_AGAIN).await;
            }
        }
        Ok(())
    }

    async fn import_again(&self, paths: &[String]) -> Result<Rc<Pool>, ImportError> {
        let guid = self.guid.to_string();
        let for_command = self.lifecycle.for_command.get();
        let import = async |accept_log_loss: bool| {
            let options = ImportOptions { accept_log_loss, for_command, ..Default::default() };
            let opener = self.opener.source();
            let continued = Continued::new(self);
            Pool::import_as(opener, paths, &guid, &options, Some(&continued)).await
        };
        let outcome = match import(false).await {
            // Whatever a lost log had is in memory here.
            Err(ImportError {
                kind: ImportErrorKind::LogMissing { .. } | ImportErrorKind::LogLoss(_),
                ..
            }) => import(true).await,
            other => other,
        };
        // Where no label can be read, only the id is known to the import.
        outcome.map_err(|error| ImportError { pool: self.name(), ..error })
    }

    /// Takes what `suspended` had only in memory into the open group, oldest group first. It comes
    /// under one root: half of it would be no prefix of what was written. It is in memory already,
    /// so it is not charged again. A group whose root was not answered, and is there, may end with
    /// a rollback, which its own writes must not undo.
    fn take_uncommitted(&self, suspended: &Pool, rooted: TxgId) {
        let free = Held::default();
        let theirs = suspended.dirty.groups.borrow();
        let mut groups = self.dirty.groups.borrow_mut();
        for set in theirs.uncommitted(rooted) {
            for (volume, extents) in &set.volumes {
                // A volume that is not in the pool was being created or destroyed, without success.
                let Some(state) = self.volumes.borrow().get(volume).cloned() else { continue };
                let limit = Pool::blocks_of(state.size_bytes.get());
                for (lba, blocks, content) in extents.iter() {
                    let blocks = blocks.min(limit.saturating_sub(lba.0));
                    if blocks > 0 {
                        groups.absorb(*volume, lba, blocks, content.part(0, blocks), free);
                    }
                }
            }
        }
    }
}
