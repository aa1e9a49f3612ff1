//! Resuming: a suspended pool is imported anew by the same process, and what was only in memory is
//! written again.
//!
//! What always holds: the suspended pool keeps its data in memory until the next one has committed
//! them, and is never followed by a pool that another owner has written to.

use std::fmt;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_txg::Content;
use forebay_units::{BLOCK_BYTES, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::commit::error::{CommitError, SuspendReason};
use crate::import::error::{ImportError, ImportErrorKind};
use crate::settings::FailMode;
use crate::spec::ImportOptions;

/// Longest piece of data that is taken into a group at once.
const PIECE_BLOCKS: u64 = 256;
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
    /// It was imported, and failed again while data from memory were written.
    Again {
        /// The pool.
        pool: String,
        /// Why.
        error: Box<CommitError>,
    },
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
            Self::Again { pool, error } => {
                write!(f, "pool '{pool}' was suspended again: {error}")
            }
        }
    }
}

impl std::error::Error for ResumeError {}

/// The owners whose roots a resumed pool may go on from: the suspended pool, and earlier attempts
/// to resume it.
pub(crate) struct Continued<'a> {
    suspended: &'a Pool,
}

impl Continued<'_> {
    /// Notes the owner that an attempt is about to make.
    pub fn note_owner(&self, nonce: u64) {
        self.suspended.lifecycle.heirs.borrow_mut().push(nonce);
    }

    /// Refuses a root that another owner has written since.
    pub fn check(&self, root_nonce: u64) -> Result<(), ImportErrorKind> {
        let pool = self.suspended;
        if root_nonce == pool.nonce || pool.lifecycle.heirs.borrow().contains(&root_nonce) {
            return Ok(());
        }
        Err(ImportErrorKind::OwnedMeanwhile)
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

    /// The pool that follows this one, for an operation that failed here. Waits for it while the
    /// pool is suspended, if the property `failmode` says so. `None`: the failure stands.
    pub(crate) async fn successor(&self) -> Option<Rc<Pool>> {
        let next = || self.lifecycle.successor.borrow().clone();
        let waits = || self.is_resumable() && self.settings.get().failmode == FailMode::Wait;
        self.sync.done.until(|| next().is_some() || !waits()).await;
        next()
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
        if !self.is_resumable() || self.lifecycle.successor.borrow().is_some() {
            return Err(ResumeError::NotSuspended { pool });
        }
        self.close_devices().await?;
        let next = self.import_again(paths).await.map_err(|e| ResumeError::Import(Box::new(e)))?;
        if let Err(error) = next.take_uncommitted(self).await {
            // It ends with its error; what it has in memory is here too.
            let _ = next.end().await;
            let error = Box::new(error);
            return Err(ResumeError::Again { pool, error });
        }
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
        let import = async |options: ImportOptions| {
            let opener = self.opener.source();
            let continued = Continued { suspended: self };
            Pool::import_as(opener, paths, &guid, &options, Some(&continued)).await
        };
        let outcome = match import(ImportOptions::default()).await {
            // Whatever a lost log had is in memory here.
            Err(ImportError {
                kind: ImportErrorKind::LogMissing { .. } | ImportErrorKind::LogLoss(_),
                ..
            }) => import(ImportOptions { accept_log_loss: true, ..Default::default() }).await,
            other => other,
        };
        // Where no label can be read, only the id is known to the import.
        outcome.map_err(|error| ImportError { pool: self.name(), ..error })
    }

    /// Writes what `suspended` had only in memory, oldest group first, and commits it.
    async fn take_uncommitted(self: &Rc<Self>, suspended: &Pool) -> Result<(), CommitError> {
        let mut changes: Vec<(VolumeId, Lba, u64, Content)> = Vec::new();
        for set in suspended.dirty.groups.borrow().uncommitted() {
            for (volume, extents) in &set.volumes {
                changes.extend(
                    extents.iter().map(|(lba, n, content)| (*volume, lba, n, content.clone())),
                );
            }
        }
        for (volume, lba, blocks, content) in changes {
            self.take_change(volume, lba, blocks, &content).await?;
        }
        self.commit_all().await
    }

    async fn take_change(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        content: &Content,
    ) -> Result<(), CommitError> {
        // A volume that is not in the pool was being created or destroyed, without success.
        let found = self.volumes.borrow().get(&volume).cloned();
        let Some(state) = found else { return Ok(()) };
        let end = Pool::blocks_of(state.size_bytes.get()).min(lba.0 + blocks);
        let mut at = lba.0;
        while at < end {
            let step = match content {
                Content::Zero => end - at,
                Content::Data(_) => PIECE_BLOCKS.min(end - at),
            };
            let held = match content {
                Content::Zero => 0,
                Content::Data(_) => {
                    let permit = self.dirty.throttle.admit(step * BLOCK_BYTES).await;
                    permit.map_err(|_| self.why_ended())?.forget()
                }
            };
            let piece = content.part(at - lba.0, step);
            let first = self.dirty.groups.borrow().open().is_empty();
            self.dirty.groups.borrow_mut().absorb(volume, Lba(at), step, piece, held);
            self.note_dirty(first);
            at += step;
        }
        Ok(())
    }
}
