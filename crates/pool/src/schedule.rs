//! Snapshots by a schedule: the property `snapshot_every` of volumes.
//!
//! What always holds: a snapshot is destroyed by the schedule only if its name is one that the
//! schedule gives, and only when newer ones of its kind are as many as are to be kept. Volumes for
//! which snapshots are due at the same time get them at one instant.

mod calendar;

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_format::snapshot::Snapshot;
use forebay_rt as rt;
use forebay_units::VolumeId;

use crate::Pool;
use crate::admin::error::VolumeError;
use crate::status::PoolEvent;
use crate::volume::{Arrival, VolumeState};

use calendar::{Kind, period_of, stamp_of};

/// The property.
pub(crate) const SNAPSHOT_EVERY: &str = "snapshot_every";
/// What names of scheduled snapshots begin with.
const PREFIX: &str = "auto";
/// Most snapshots of one kind.
const MAX_KEPT: usize = 10_000;

/// How many snapshots of each kind are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule(Vec<(Kind, usize)>);

impl Schedule {
    /// From the property's value: `off`, or `KIND=COUNT,…`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::default());
        }
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        for part in text.split(',') {
            let (kind, kept) = part.split_once('=')?;
            let kind = Kind::parse(kind)?;
            let is_plain = !kept.is_empty() && kept.bytes().all(|byte| byte.is_ascii_digit());
            let kept =
                kept.parse().ok().filter(|kept| is_plain && (1..=MAX_KEPT).contains(kept))?;
            if kinds.iter().any(|(other, _)| *other == kind) {
                return None;
            }
            kinds.push((kind, kept));
        }
        Some(Self(kinds))
    }
}

/// The name of a snapshot that is taken at `secs` since 1970.
fn name_of(kind: Kind, secs: u64) -> String {
    format!("{PREFIX}-{}-{}", kind.as_str(), stamp_of(secs))
}

/// The kind of a snapshot that the schedule has taken, from its name.
fn kind_of(name: &str) -> Option<Kind> {
    let (kind, stamp) = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
    let kind = Kind::parse(kind)?;
    calendar::is_stamp(stamp).then_some(kind)
}

impl Pool {
    /// Takes the snapshots that are due, and destroys those that are too many. `reported` are the
    /// volumes whose last snapshot could not be taken.
    pub(crate) async fn keep_schedules(&self, reported: &mut BTreeSet<VolumeId>) {
        let now = rt::wall_clock();
        if !self.due_snapshots(now).is_empty() {
            if let Some(_turn) = self.turn_of_task().await {
                self.take_due(now, reported).await;
                self.destroy_surplus().await;
            }
        }
    }

    /// The whole volumes with a schedule.
    fn scheduled(&self) -> Vec<(Rc<VolumeState>, Schedule)> {
        let volumes = self.volumes.borrow();
        let whole = volumes.values().filter(|v| v.arrival.get() == Arrival::Whole && !v.gone.get());
        let schedule_of = |volume: &Rc<VolumeState>| {
            let text = volume.properties.borrow().get(SNAPSHOT_EVERY).cloned()?;
            Some((volume.clone(), Schedule::parse(&text)?))
        };
        whole.filter_map(schedule_of).collect()
    }

    /// The snapshots of a kind that the schedule has taken, oldest first.
    fn scheduled_of(&self, volume: VolumeId, kind: Kind) -> Vec<Snapshot> {
        let all = self.snapshots.of(volume).into_iter();
        all.filter(|s| !s.is_dying && kind_of(&s.name) == Some(kind)).collect()
    }

    /// The snapshots that are due at `now`, by volume: in no period is there more than one of its
    /// kind.
    fn due_snapshots(&self, now: u64) -> Vec<(VolumeId, Vec<String>)> {
        let mut due = Vec::new();
        for (volume, Schedule(kinds)) in self.scheduled() {
            let is_due = |kind: Kind| {
                let newest = self.scheduled_of(volume.id, kind).pop();
                let is_new = |s: &Snapshot| period_of(kind, s.created_at) >= period_of(kind, now);
                let is_free = self.snapshots.named(volume.id, &name_of(kind, now)).is_none();
                !newest.as_ref().is_some_and(is_new) && is_free
            };
            let kinds = kinds.into_iter().filter(|(kind, _)| is_due(*kind));
            let full = |kind| format!("{}@{}", volume.name.borrow(), name_of(kind, now));
            let names: Vec<String> = kinds.map(|(kind, _)| full(kind)).collect();
            if !names.is_empty() {
                due.push((volume.id, names));
            }
        }
        due
    }

    /// Takes what is due: all of it at one instant, or each volume for itself when some volume
    /// cannot have a snapshot. A failure is reported once for each volume, until it has one again.
    async fn take_due(&self, now: u64, reported: &mut BTreeSet<VolumeId>) {
        let due = self.due_snapshots(now);
        let all: Vec<String> = due.iter().flat_map(|(_, names)| names.clone()).collect();
        if all.is_empty() || self.snapshot_all(&all).await.is_ok() {
            due.iter().for_each(|(volume, _)| {
                reported.remove(volume);
            });
            return;
        }
        for (volume, names) in due {
            match self.snapshot_all(&names).await {
                Ok(()) => {
                    reported.remove(&volume);
                }
                Err(error) if reported.insert(volume) => {
                    let volume = self.name_of(volume).unwrap_or_default();
                    let volume = format!("{}/{volume}", self.name());
                    self.health.events.push(PoolEvent::SnapshotNotTaken { volume, error });
                }
                Err(_) => {}
            }
        }
    }

    /// Destroys scheduled snapshots of which there are more than are to be kept. Those with holds,
    /// clones or clients stay.
    async fn destroy_surplus(&self) {
        let mut surplus = Vec::new();
        for (volume, Schedule(kinds)) in self.scheduled() {
            for (kind, kept) in kinds {
                let all = self.scheduled_of(volume.id, kind);
                let many = all.len().saturating_sub(kept);
                for snapshot in all.into_iter().take(many) {
                    let name = format!("{}@{}", volume.name.borrow(), snapshot.name);
                    let may_go: Result<(), VolumeError> = self.check_may_go(&name, &snapshot);
                    if may_go.is_ok() && !self.snapshots.is_used(snapshot.id) {
                        surplus.push(name);
                    }
                }
            }
        }
        if !surplus.is_empty() {
            // The next look tries what fails here again.
            let _ = self.destroy_all(&surplus).await;
        }
    }
}

#[cfg(test)]
mod tests;
