//! Administration of a pool as a whole: export, destroy, history and properties.

pub(crate) mod caches;
pub(crate) mod candidate;
pub(crate) mod create;
mod devices;
pub(crate) mod error;
mod online;
mod promote;
pub mod properties;
mod refusals;
mod signatures;
mod snapshots;
pub(crate) mod volumes;

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::BlockDevice;
use forebay_format::config::PoolConfig;
use forebay_rt as rt;
use forebay_rt::sync::MutexGuard;
use forebay_units::BLOCK_BYTES;

use crate::Pool;
use crate::admin::error::{AdminError, CloseError, UsableChange, VolumeError};
use crate::admin::properties::{POOL_PROPERTIES, check_property, effective};
use crate::admin::volumes::check_fits;
use crate::commit::error::CommitError;
use crate::status::{EventRecord, PoolEvent};

/// Most lines of history that the configuration keeps.
const HISTORY_LINES: usize = 200;

/// Why a pool is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Export,
    Destroy,
    Process,
}

impl Pool {
    /// Commits everything, marks the pool exported, and closes its devices. New operations are
    /// refused from here on; answered ones are committed.
    ///
    /// If the map journal is damaged and there is no room to write it anew, only memory has the
    /// map. Then the export fails, and the pool stays open ([`Pool::has_ended`]).
    pub async fn export(self: &Rc<Self>) -> Result<(), CloseError> {
        self.close(End::Export).await
    }

    /// The same for a process that ends in any case.
    pub async fn end(self: &Rc<Self>) -> Result<(), CloseError> {
        self.close(End::Process).await
    }

    /// Whether the pool was exported or destroyed, with or without an error.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lifecycle.closing.get()
    }

    async fn close(self: &Rc<Self>, end: End) -> Result<(), CloseError> {
        let _turn = self.admin.lock().await;
        if !self.lifecycle.closing.get() && end == End::Export {
            self.check_can_be_left().await?;
        }
        if self.lifecycle.closing.replace(true) {
            return Err(CloseError::Closing { pool: self.name() });
        }
        // What waits for its turn would keep the devices open.
        self.volumes.borrow().values().for_each(|volume| volume.lift_limits());
        self.snapshots.opened().iter().for_each(|snapshot| snapshot.lift_limits());
        let destroy = end == End::Destroy;
        self.cache_devices.are_abandoned.set(destroy);
        self.sync.wake.notify_all();
        self.sync.done.notify_all();
        let tasks = self.lifecycle.tasks.take();
        rt::join_all(tasks).await;
        if !self.is_stopped() {
            self.keep_running_scan();
            // The changes that were absorbed before the pool began to close.
            let mut synced = self.sync_group().await;
            // A destroyed pool needs no map.
            if synced.is_ok() && !destroy && !self.renew_damaged_journal().await {
                synced = Err(CommitError::JournalDamaged);
            }
            let last = match synced {
                Ok(()) => {
                    if !destroy {
                        self.trim_at_the_end().await;
                    }
                    let mut writers = self.writers.lock().await;
                    match self.write_last_root(&mut writers).await {
                        Ok(()) if destroy => self.write_destroyed_root(&mut writers).await,
                        other => other,
                    }
                }
                Err(error) => Err(error),
            };
            // From here on the devices may belong to another machine, so reads repair nothing.
            self.store.array.freeze();
            if let Err(error) = last {
                self.stop(error.into());
            }
        }
        // An importer finds an exported pool from here on, and its claim is no reason to stop.
        let failed = self.lifecycle.stopped.borrow().clone();
        // The log's workers end before the heartbeat does. They would keep the devices open, and
        // the caller may import the pool at once.
        self.log.close();
        self.save_log_memory().await;
        // Until now other machines had to see the pool in use, and each write needed a valid
        // heartbeat.
        self.lifecycle.closed.set(true);
        self.sync.done.notify_all();
        let heart = self.lifecycle.heartbeat_task.take();
        if let Some(heart) = heart {
            heart.await;
        }
        if let Some(reason) = failed {
            return Err(CloseError::Suspended { pool: self.name(), reason });
        }
        if end != End::Process {
            // Otherwise this machine still has the pool: it is only closed.
            self.release_devices().await;
        }
        Ok(())
    }

    /// Destroys the pool and frees its devices. A crash on the way leaves an exported pool or a
    /// destroyed one.
    pub async fn destroy(self: &Rc<Self>) -> Result<(), CloseError> {
        self.close(End::Destroy).await
    }

    /// The devices that are open. They are closed when the last owner of the pool lets go of it.
    #[must_use]
    pub fn open_devices(&self) -> Vec<Weak<dyn BlockDevice>> {
        self.devices.borrow().values().map(|open| Rc::downgrade(&open.device())).collect()
    }

    /// The last commands, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<String> {
        self.config.borrow().history.clone()
    }

    /// Adds a line of history with its time. The next change of the configuration writes it, at the
    /// latest the export.
    pub fn log_history(&self, line: &str) {
        const LONGEST: usize = 500;
        let mut short = line.to_owned();
        let mut end = LONGEST.min(short.len());
        while !short.is_char_boundary(end) {
            end -= 1;
        }
        short.truncate(end);
        let mut config = self.config.borrow_mut();
        config.history.push(format!("{} {short}", rt::wall_clock()));
        let extra = config.history.len().saturating_sub(HISTORY_LINES);
        config.history.drain(..extra);
        drop(config);
        self.sync.config_dirty.set(true);
    }

    /// The turn of a command that changes what the pool is made of. Refused before anything is
    /// touched if nothing could be committed any more.
    pub(crate) async fn turn(&self) -> Result<MutexGuard<'_, ()>, AdminError> {
        let turn = self.admin.lock().await;
        if let Some(reason) = self.lifecycle.stopped.borrow().clone() {
            return Err(AdminError::Suspended { pool: self.name(), reason });
        }
        if self.lifecycle.closing.get() {
            return Err(AdminError::Closing { pool: self.name() });
        }
        Ok(turn)
    }

    /// The turn of a command on volumes or snapshots, which is refused in the same way.
    pub(crate) async fn volume_turn(&self) -> Result<MutexGuard<'_, ()>, VolumeError> {
        let turn = self.admin.lock().await;
        self.check_not_suspended()?;
        Ok(turn)
    }

    /// All properties.
    #[must_use]
    pub fn get(&self) -> BTreeMap<String, String> {
        let config = self.config.borrow();
        let mut all = effective(POOL_PROPERTIES, &config.properties);
        let summary = self.summary();
        all.insert("guid".into(), self.guid.to_string());
        all.insert("version".into(), self.sync.version.get().to_string());
        all.insert("size".into(), summary.raw_size_bytes.to_string());
        all.insert("allocated".into(), summary.raw_alloc_bytes.to_string());
        all.insert("free".into(), summary.raw_free_bytes.to_string());
        all.insert("usable".into(), summary.size_bytes.to_string());
        all.insert("available".into(), summary.available_bytes.to_string());
        all.insert("health".into(), summary.health.as_str().into());
        all
    }

    /// Sets a property.
    pub async fn set(&self, property: &str, value: &str) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        check_property(POOL_PROPERTIES, property, value)?;
        let (name, value) = (property.to_owned(), value.to_owned());
        let mut config = self.config.borrow().clone();
        config.properties.insert(name, value);
        check_fits(&config)?;
        self.check_usable(&config, UsableChange::DirtyLimit)?;
        self.config.borrow_mut().properties = config.properties;
        self.apply_properties();
        self.commit_config().await
    }

    /// Refuses a change after which volumes have more space than there would be. The reserve must
    /// hold a group, which may be as large as the dirty limit, and the journal, which is kept twice
    /// without redundancy. A smaller usable space counts at once, because what is promised until
    /// the next import must be there after it.
    fn check_usable(&self, config: &PoolConfig, change: UsableChange) -> Result<(), AdminError> {
        let (_, _, usable) = crate::layout::limits_for(config);
        let now = self.dirty.space.usable_blocks.get();
        let taken = now - self.free_blocks().min(now);
        if usable < now && usable < taken {
            return Err(AdminError::TooLittleUsable {
                change,
                usable_bytes: usable * BLOCK_BYTES,
                taken_bytes: taken * BLOCK_BYTES,
            });
        }
        self.dirty.space.usable_blocks.set(usable.min(now));
        Ok(())
    }

    /// Writes the configuration to the devices.
    pub(crate) async fn commit_config(&self) -> Result<(), AdminError> {
        self.check_config_fits()?;
        self.sync.config_dirty.set(true);
        Ok(self.commit_all().await?)
    }

    /// Commits. With `anew`, the log starts anew on the devices of the configuration.
    pub(crate) async fn restart_log(&self, anew: bool) -> Result<(), AdminError> {
        let request = anew.then(|| self.restart_log_wanted());
        self.commit_config().await?;
        if let Some(request) = request {
            let over = || self.is_stopped() || self.sync.ended.get();
            let done = || self.log_restarted(request) || over();
            self.health.log_changed.until(done).await;
        }
        if self.is_stopped() {
            return Err(self.why_ended().into());
        }
        Ok(())
    }

    /// Waits until the log runs without its failed sides. It accepts no side that has failed since
    /// it was last started, and would ask for a new start again and again.
    pub(crate) async fn log_without_failed(&self) -> Result<(), CommitError> {
        let over = || self.is_stopped() || self.sync.ended.get();
        while !over() {
            self.take_log_events();
            if !self.log.is_failed() && !self.log_pressure() {
                return Ok(());
            }
            let request = self.restart_log_wanted();
            self.sync.wake.notify_all();
            self.health.log_changed.until(|| self.log_restarted(request) || over()).await;
        }
        Err(self.why_ended())
    }

    /// Whether the log lies on data devices now.
    pub(crate) fn log_in_pool(&self) -> bool {
        let config = self.config.borrow();
        config.log_rings.iter().any(|ring| ring.ring >= crate::layout::POOL_RINGS_FROM)
    }

    /// The last events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<PoolEvent> {
        self.health.events.all()
    }

    /// Those of the last events whose numbers are above `sequence`: 0 for all that are kept.
    #[must_use]
    pub fn events_after(&self, sequence: u64) -> Vec<EventRecord> {
        self.health.events.after(sequence, &self.name(), self.guid)
    }

    /// Commits everything absorbed so far.
    pub async fn sync(&self) -> Result<(), CommitError> {
        self.commit_all().await
    }
}
