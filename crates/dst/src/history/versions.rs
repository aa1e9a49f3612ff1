//! Versions of a volume: what a snapshot may hold, and how a volume begins as one.

use std::borrow::Cow;

use super::{Answer, History, Judged, UNKNOWN};
use crate::small_list::SmallList;
use crate::stamp::Seen;

impl History {
    /// What a snapshot may hold that was asked for at `asked` and whose instant has passed: a
    /// prefix with every change that had completed by then.
    #[must_use]
    pub fn frozen(&self, name: &str, asked: u64) -> Self {
        let mut frozen = Self { name: name.to_owned(), ..self.clone() };
        frozen.ops.iter_mut().for_each(|op| op.is_durable = op.completed() < asked);
        frozen.volatile.clear();
        frozen.reading.clear();
        frozen
    }

    /// Checks snapshots of several volumes that were taken at one instant, each with what was read
    /// of it, as after a crash: when one has a change, the others have all that completed before
    /// its issue.
    pub fn check_together(all: &mut [(&mut Self, &[Option<Seen>])]) -> Judged {
        let mut latest = 0;
        loop {
            let before = latest;
            for (history, seen) in &mut *all {
                latest = latest.max(history.newest_shown(seen)?);
            }
            if latest == before {
                break;
            }
            for op in all.iter_mut().flat_map(|(history, _)| &mut history.ops) {
                op.is_durable |= op.completed() < latest;
            }
        }
        all.iter_mut().try_for_each(|(history, seen)| history.check_crash(seen))
    }

    /// A volume that begins as this snapshot of volume `source`, whose contents are known.
    #[must_use]
    pub fn cloned(&self, name: &str, source: u32) -> Self {
        assert!(self.ops.is_empty(), "the contents of {} are not known", self.name);
        let last = u32::try_from(self.issued.len() - 1).expect("fewer changes than 2^32");
        let mut clone = Self { name: name.to_owned(), ..self.clone() };
        clone.ancestors.push((source, last));
        clone
    }

    /// Which changes are answered, by their index: what a rollback that is requested now undoes.
    #[must_use]
    pub fn answered(&self) -> Vec<bool> {
        self.ops.iter().map(|op| op.answer != Answer::Pending).collect()
    }

    /// True when a rollback to this snapshot may go on beside changes of the volume: it changes no
    /// size, and it is known what each sector of the snapshot is.
    #[must_use]
    pub fn may_go_back_in_use(&self, snapshot: &Self) -> bool {
        let is_as_long = self.sectors == snapshot.sectors && self.cut_off.is_empty();
        is_as_long && !snapshot.base.contains(&UNKNOWN)
    }

    /// The volume as a snapshot of it, whose contents are known, with those changes that were not
    /// answered when the rollback was requested: each of them came before it, or after it. What was
    /// issued stays in mind: numbers are used once.
    #[must_use]
    pub fn rolled_back(&self, snapshot: &Self, answered: &[bool]) -> Self {
        assert!(snapshot.ops.is_empty(), "the contents of {} are not known", snapshot.name);
        let mut volume = self.clone();
        volume.sectors = snapshot.sectors;
        volume.base.clone_from(&snapshot.base);
        volume.cut_off.clear();
        volume.volatile.clear();
        volume.writers = vec![SmallList::default(); volume.sectors as usize];
        for (index, op) in volume.ops.iter_mut().enumerate() {
            (op.is_durable, op.is_optional) = (false, true);
            if answered.get(index).copied().unwrap_or(false) {
                // It keeps its place: tickets name changes by index.
                op.count = 0;
            }
            if op.answer != Answer::Pending {
                op.answer = Answer::Failed;
            }
            for sector in op.first..op.first + op.count {
                volume.writers[sector as usize].push(index as u32);
            }
        }
        if volume.ops.iter().all(|op| op.count == 0) {
            volume.ops.clear();
        }
        // A read that was issued before may see what was there before.
        let now = volume.now();
        volume.cuts.push((now, 0));
        volume
    }

    /// True when it is known what each sector holds.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ops.is_empty()
    }

    /// Stamps of the volumes that this one began as count as its own.
    pub(super) fn own(&self, sector: u64, seen: Seen) -> Seen {
        match seen {
            Seen::Elsewhere { volume, sector: said, number }
                if said == sector && self.is_inherited(volume, number) =>
            {
                Seen::Write(number)
            }
            seen => seen,
        }
    }

    /// The same for a whole volume.
    pub(super) fn own_all<'a>(&self, seen: &'a [Option<Seen>]) -> Cow<'a, [Option<Seen>]> {
        if self.ancestors.is_empty() {
            return Cow::Borrowed(seen);
        }
        let own = |(sector, seen): (u64, &Option<Seen>)| seen.map(|seen| self.own(sector, seen));
        Cow::Owned((0..).zip(seen).map(own).collect())
    }

    /// True when this change was made in `volume` before this volume or one that it began as was
    /// cloned from there.
    fn is_inherited(&self, volume: u32, number: u32) -> bool {
        let mut first = 1;
        for (ancestor, last) in &self.ancestors {
            if *ancestor == volume && (first..=*last).contains(&number) {
                return true;
            }
            first = last + 1;
        }
        false
    }
}
