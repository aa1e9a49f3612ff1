//! Hot spares and `autoreplace`: a device that failed is replaced without an operator.
//!
//! What always holds: a device is taken only if it is empty at that moment, and a member is
//! replaced by one device at a time. A spare carries no label: the pool holds it open instead.
//! The task never waits for a command's turn: the pool's end has that while it waits for tasks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_array::MemberState;
use forebay_format::config::{MemberConfig, SpareConfig};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::admin::candidate::{Candidate, open_candidate};
use crate::admin::error::AdminError;
use crate::status::{PoolEvent, SpareState, SpareStatus};

/// Between two looks at failed members and at spares.
const INTERVAL: Nanos = Nanos::from_secs(5);
/// How long a member may be missing, after an import that did without it, until a spare takes its
/// place: disks that spin up late are not replaced.
const MISSING_FOR: Nanos = Nanos::from_secs(60);

/// How long a status waits for the first look at spares.
const FIRST_LOOK_TIMEOUT: Nanos = Nanos::from_secs(3);

/// The spares of a pool, as this process sees them.
#[derive(Default)]
pub(crate) struct Spares {
    /// Spares that are open, by path.
    open: RefCell<BTreeMap<String, Candidate>>,
    /// They have been looked at since the import.
    is_looked_at: Cell<bool>,
    looked_at: Notify,
    /// Replacements that failed: they are not tried again before the next import.
    refused: RefCell<BTreeSet<(String, u32)>>,
    /// Since when members are missing.
    missing_since: RefCell<BTreeMap<u32, Nanos>>,
}

impl Pool {
    /// Runs until the pool is closed or stopped. What a crash has left of streams is settled first,
    /// and scheduled snapshots are taken in between: neither needs a task of its own.
    pub(crate) async fn spare_loop(self: Rc<Self>) {
        let is_over = || self.lifecycle.closing.get() || self.is_stopped();
        let mut without_snapshot = BTreeSet::new();
        self.settle_transfers().await;
        let for_command = self.lifecycle.for_command.get();
        loop {
            if !for_command {
                self.keep_schedules(&mut without_snapshot).await;
            }
            self.open_spares().await;
            self.spares.is_looked_at.set(true);
            self.spares.looked_at.notify_all();
            let failed = if for_command { Vec::new() } else { self.members_to_replace() };
            for member in failed {
                if is_over() {
                    break;
                }
                if !self.replace_in_place(&member).await {
                    self.take_spare(&member).await;
                }
            }
            let _ = rt::timeout(INTERVAL, Box::pin(self.sync.done.until(is_over))).await;
            if is_over() {
                // Another process may want them.
                self.spares.open.take();
                return;
            }
        }
    }

    /// Waits until the spares have been looked at since the import, so that the status says how
    /// they are. One that does not answer is waited for a few seconds.
    pub async fn look_at_spares(&self) {
        let known = || self.spares.is_looked_at.get();
        let _ = rt::timeout(FIRST_LOOK_TIMEOUT, Box::pin(self.spares.looked_at.until(known))).await;
    }

    /// Keeps spares open that have just been added.
    pub(crate) fn hold_spares(&self, spares: Vec<Candidate>) {
        let by_path = spares.into_iter().map(|spare| (spare.path.clone(), spare));
        self.spares.open.borrow_mut().extend(by_path);
    }

    /// Opens the spares of the configuration that can be opened, and closes others.
    async fn open_spares(&self) {
        let wanted: BTreeSet<String> =
            self.config.borrow().spares.iter().map(|spare| spare.path.clone()).collect();
        self.spares.open.borrow_mut().retain(|path, _| wanted.contains(path));
        for path in wanted {
            if self.spares.open.borrow().contains_key(&path) {
                continue;
            }
            // One that is missing, in use or not empty is UNAVAIL, and looked at again later.
            if let Ok(candidate) = open_candidate(&self.opener, &path, false).await {
                if self.config.borrow().spares.iter().any(|spare| spare.path == path) {
                    self.spares.open.borrow_mut().insert(path, candidate);
                }
            }
        }
    }

    /// Members that failed and that no other device replaces yet.
    fn members_to_replace(&self) -> Vec<MemberConfig> {
        let status = self.store.array.status();
        let config = self.config.borrow();
        let mut missing_since = self.spares.missing_since.borrow_mut();
        let state = |id: u32| status.iter().find(|m| m.id == DeviceId(id)).map(|m| m.state);
        let alone = config.groups.iter().flat_map(|g| &g.members);
        let failed = |member: &&MemberConfig| match state(member.device) {
            Some(MemberState::Faulted | MemberState::Removed) => true,
            Some(MemberState::Unavail) => {
                let since = *missing_since.entry(member.device).or_insert_with(rt::now);
                rt::now().since(since) >= MISSING_FOR
            }
            _ => {
                missing_since.remove(&member.device);
                false
            }
        };
        alone.filter(|m| m.replacement.is_none()).filter(failed).cloned().collect()
    }

    /// Whether a member is still one of them: while this task waited for its turn, a command may
    /// have replaced the member or brought it back.
    fn is_to_be_replaced(&self, member: &MemberConfig) -> bool {
        self.members_to_replace().iter().any(|other| other.device == member.device)
    }

    /// With `autoreplace`: takes an empty device that is now at the path of a member. Returns
    /// whether it did.
    async fn replace_in_place(&self, member: &MemberConfig) -> bool {
        if !self.settings.get().autoreplace || self.was_refused(&member.path, member) {
            return false;
        }
        // A device that is not empty may be the failed one, or hold what is another's.
        let is_empty =
            async || open_candidate(&self.opener, &member.path, false).await.map(drop).is_ok();
        if !is_empty().await {
            return false;
        }
        let Some(turn) = self.turn_of_task().await else { return false };
        // The turn may have come late: the replacement itself takes what is at its path.
        if !self.is_to_be_replaced(member) || !is_empty().await {
            return false;
        }
        let outcome = self.replace_in(turn, &member.path, None, false).await;
        self.note_replacement(&member.path, member, outcome)
    }

    /// Puts the smallest spare that is large enough in the place of `member`.
    async fn take_spare(&self, member: &MemberConfig) {
        let Some(turn) = self.turn_of_task().await else { return };
        if !self.is_to_be_replaced(member) {
            return;
        }
        let Ok(needed) = self.needed_bytes(member) else { return };
        let fits = |(path, spare): &(&String, &Candidate)| {
            spare.size_bytes >= needed && !self.was_refused(path, member)
        };
        let chosen = {
            let open = self.spares.open.borrow();
            let smallest = open.iter().filter(fits).min_by_key(|(_, spare)| spare.size_bytes);
            smallest.map(|(path, _)| path.clone())
        };
        let Some(path) = chosen else { return };
        // It leaves the spares with the configuration that makes it a member.
        let spare = self.leave_spares(&path);
        let outcome = self.replace_in(turn, &member.path, Some(&path), false).await;
        if !self.note_replacement(&path, member, outcome) {
            self.config.borrow_mut().spares.extend(spare);
            // A root may have a configuration without it by now.
            self.sync.config_dirty.set(true);
            self.sync.root_wanted.set(true);
            self.sync.wake.notify_all();
        }
    }

    fn was_refused(&self, path: &str, member: &MemberConfig) -> bool {
        self.spares.refused.borrow().contains(&(path.to_owned(), member.device))
    }

    fn note_replacement(
        &self,
        path: &str,
        member: &MemberConfig,
        outcome: Result<(), AdminError>,
    ) -> bool {
        let (device, by) = (member.path.clone(), path.to_owned());
        let is_done = outcome.is_ok();
        self.health.events.push(match outcome {
            Ok(()) => PoolEvent::SpareTaken { device, by },
            Err(error) => {
                let key = (by.clone(), member.device);
                self.spares.refused.borrow_mut().insert(key);
                PoolEvent::SpareNotTaken { device, by, error: Box::new(error) }
            }
        });
        is_done
    }

    /// Takes a spare out of the configuration in memory, and closes it.
    pub(crate) fn leave_spares(&self, path: &str) -> Option<SpareConfig> {
        self.spares.open.borrow_mut().remove(path);
        let mut config = self.config.borrow_mut();
        let at = config.spares.iter().position(|spare| spare.path == path)?;
        Some(config.spares.remove(at))
    }

    /// The spares, as `pool status` shows them.
    pub(crate) fn spare_status(&self) -> Vec<SpareStatus> {
        let open = self.spares.open.borrow();
        let status = |spare: &SpareConfig| SpareStatus {
            name: spare.path.clone(),
            size_bytes: spare.size_bytes,
            state: match open.contains_key(&spare.path) {
                true => SpareState::Avail,
                false => SpareState::Unavail,
            },
        };
        self.config.borrow().spares.iter().map(status).collect()
    }
}
