//! The oracle of one volume: every change that clients issued, and what they may find later.
//!
//! What enters: each change when it is issued and answered, each flush, each resize.
//! What leaves: a verdict on each read, and on the whole volume after a crash.
//! What always holds: a crash must leave a *prefix* of the history. A prefix is a set of changes
//! that contains every durable change. With each change it contains all that completed before its
//! issue. Some order consistent with completion-before-issue gives exactly the sectors found.
//! Who calls: [`Model`](crate::model::Model) and the clients.
//!
//! Writes in flight together may be ordered either way. A zero does not show which change wrote it,
//! so callers never let a zeroing overlap another change in flight. Then the smallest set of
//! changes that explains the zeros can be grown step by step (`crash.rs`).

use std::collections::BTreeSet;

pub use change::{Answer, Change, Op};
pub use objection::{Judged, Objection, Origin, Place};

use crate::small_list::SmallList;
use crate::stamp::Seen;

mod change;
mod crash;
mod objection;

/// A change that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    from: usize,
    parts: usize,
    /// Its number, for [`crate::stamp::stamp`].
    pub number: u32,
}

/// The history of one volume since its contents were last known exactly.
#[derive(Clone, Debug)]
pub struct History {
    name: String,
    sectors: u64,
    /// What each sector held after the last crash: 0 for zeros, else the number of a write.
    base: Vec<u32>,
    ops: Vec<Op>,
    /// Changes of each sector, in order of issue, without those that can never be seen again.
    writers: Vec<SmallList>,
    /// Changes that are not known to be durable.
    volatile: Vec<u32>,
    /// Range of every change ever issued, by number.
    issued: Vec<(u64, u64)>,
    /// When each unanswered read was issued.
    reading: BTreeSet<u64>,
    /// When the volume shrank, and to how many sectors.
    cuts: Vec<(u64, u64)>,
    clock: u64,
    atomic_sectors: u64,
}

/// The base of a sector that could not be read: it may show any write ever issued there.
const UNKNOWN: u32 = u32::MAX;

impl History {
    /// A volume of zeros. A change longer than `atomic_sectors` counts as several changes that are
    /// issued together.
    #[must_use]
    pub fn new(name: &str, sectors: u64, atomic_sectors: u64) -> Self {
        Self {
            name: name.to_owned(),
            sectors,
            base: vec![0; sectors as usize],
            ops: Vec::new(),
            writers: vec![SmallList::default(); sectors as usize],
            volatile: Vec::new(),
            issued: vec![(0, 0)],
            reading: BTreeSet::new(),
            cuts: Vec::new(),
            clock: 1,
            atomic_sectors,
        }
    }

    /// Size in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Changes the size: new sectors are zeros, removed sectors are forgotten.
    pub fn resize(&mut self, sectors: u64) {
        if sectors < self.sectors {
            let now = self.now();
            self.cuts.push((now, sectors));
        }
        self.base.resize(sectors as usize, 0);
        self.writers.resize(sectors as usize, SmallList::default());
        self.sectors = sectors;
        for op in &mut self.ops {
            op.count = op.count.min(sectors.saturating_sub(op.first));
        }
    }

    /// True when a sector was cut off after `issued`. A read issued then may see the old data
    /// although the sector is back and new.
    fn is_cut_since(&self, issued: u64, sector: u64) -> bool {
        self.cuts.iter().any(|(at, sectors)| *at > issued && sector >= *sectors)
    }

    /// Advances the clock and returns it, for [`History::flushed`].
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes the issue of a read and returns the time for [`History::check_read`]. Until
    /// [`History::read_ends`], changes that the read may see are kept.
    pub fn read_begins(&mut self) -> u64 {
        let issued = self.now();
        self.reading.insert(issued);
        issued
    }

    /// Notes that the read issued at `issued` was answered and checked.
    pub fn read_ends(&mut self, issued: u64) {
        self.reading.remove(&issued);
    }

    /// Notes the issue of a change.
    pub fn issue(&mut self, change: Change, first: u64, count: u64) -> Ticket {
        let issued = self.now();
        let number = u32::try_from(self.issued.len()).expect("fewer changes than 2^32");
        self.issued.push((first, count));
        let from = self.ops.len();
        let mut at = first;
        while at < first + count {
            let part = self.atomic_sectors.min(first + count - at);
            let index = self.ops.len() as u32;
            let op = Op {
                number,
                change,
                first: at,
                count: part,
                issued,
                answer: Answer::Pending,
                is_durable: false,
            };
            for sector in at..at + part {
                self.prune(sector);
                self.writers[sector as usize].push(index);
            }
            self.ops.push(op);
            self.volatile.push(index);
            at += part;
        }
        Ticket { from, parts: self.ops.len() - from, number }
    }

    /// Forgets changes of a sector that a durable change has replaced.
    fn prune(&mut self, sector: u64) {
        let ops = &self.ops;
        let list = &mut self.writers[sector as usize];
        if list.len() < 8 {
            return;
        }
        // A read that was issued earlier may still show what was replaced since.
        let oldest_read = self.reading.first().copied().unwrap_or(u64::MAX);
        let certain = |op: &&Op| op.is_durable && op.completed() < oldest_read;
        let floor = list.iter().map(|i| &ops[*i as usize]).filter(certain);
        let Some(floor) = floor.map(|op| op.issued).max() else { return };
        list.retain(|i| ops[i as usize].completed() >= floor);
    }

    /// Notes a successful answer to a change. A durable change must survive every later crash, and
    /// with it all changes that completed before its issue.
    pub fn complete(&mut self, ticket: Ticket, is_durable: bool) {
        let at = self.now();
        for op in &mut self.ops[ticket.from..ticket.from + ticket.parts] {
            op.answer = Answer::Done(at);
            op.is_durable |= is_durable;
        }
    }

    /// Notes an error as the answer to a change.
    pub fn fail(&mut self, ticket: Ticket) {
        for op in &mut self.ops[ticket.from..ticket.from + ticket.parts] {
            op.answer = Answer::Failed;
        }
    }

    /// Notes the success of a flush that was issued at `issued`.
    pub fn flushed(&mut self, issued: u64) {
        let ops = &mut self.ops;
        self.volatile.retain(|index| {
            let op = &mut ops[*index as usize];
            op.is_durable |= op.completed() < issued;
            !op.is_durable
        });
    }

    /// Notes that every completed change is durable, as after an export.
    pub fn mark_all_durable(&mut self) {
        let now = self.now();
        self.flushed(now);
    }

    fn place(&self, sector: u64) -> Place {
        Place { volume: self.name.clone(), sector }
    }

    fn origin_of_number(&self, number: u32) -> Origin {
        match self.ops.iter().find(|op| op.number == number) {
            Some(op) => Origin::Op(op.clone()),
            None if number == 0 => Origin::Zeros,
            None => Origin::BeforeCrash(number),
        }
    }

    /// True when a write from before the last crash covered this sector.
    fn is_old(&self, sector: u64, number: u32) -> bool {
        let is_current = self.ops.first().is_some_and(|op| op.number <= number);
        !is_current && self.was_issued_at(sector, number)
    }

    /// True when the change with this number covered this sector.
    fn was_issued_at(&self, sector: u64, number: u32) -> bool {
        let (first, count) = self.issued.get(number as usize).copied().unwrap_or((0, 0));
        (first..first + count).contains(&sector)
    }

    /// The index of the change that `seen` shows at `sector`; `None` is the base.
    fn writer_of(&self, sector: u64, seen: Seen) -> Judged<Option<usize>> {
        let base = self.base[sector as usize];
        match seen {
            Seen::Write(number) if number == base => Ok(None),
            Seen::Write(number) if base == UNKNOWN && self.is_old(sector, number) => Ok(None),
            Seen::Write(number) => {
                let list = &self.writers[sector as usize];
                let index = list.iter().find(|i| self.ops[**i as usize].number == number);
                index.map(|index| Some(*index as usize)).ok_or_else(|| {
                    let newest = list.last().map(|i| Origin::Op(self.ops[*i as usize].clone()));
                    Objection::Replaced {
                        place: self.place(sector),
                        found: self.origin_of_number(number),
                        newest: newest.unwrap_or_else(|| self.origin_of_number(base)),
                    }
                    .into()
                })
            }
            Seen::Zeros => Ok(None),
            Seen::Elsewhere { volume, sector: said, number } => {
                let place = self.place(sector);
                Err(Objection::Misplaced { place, volume, sector: said, number }.into())
            }
            Seen::Garbage => Err(Objection::Garbage { place: self.place(sector) }.into()),
        }
    }

    /// Checks one sector of a read that was issued at `issued` and has just completed. It must show
    /// a change that no other change had replaced for certain before the read was issued.
    pub fn check_read(&self, issued: u64, sector: u64, seen: Seen) -> Judged {
        if self.is_cut_since(issued, sector) {
            return Ok(());
        }
        let list = &self.writers[sector as usize];
        let ops = || list.iter().map(|i| &self.ops[*i as usize]);
        // A later change hides one that ended before its issue, once it completed before `issued`.
        let floor = ops().filter(|op| op.completed() < issued).map(|op| op.issued).max();
        let visible = |op: &Op| floor.is_none_or(|floor| op.completed() >= floor);
        let base = self.base[sector as usize];
        let fine = match seen {
            Seen::Zeros => {
                (floor.is_none() && (base == 0 || base == UNKNOWN))
                    || ops().any(|op| op.change == Change::Zero && visible(op))
            }
            _ => match self.writer_of(sector, seen)? {
                None => floor.is_none(),
                Some(index) => visible(&self.ops[index]),
            },
        };
        if fine {
            return Ok(());
        }
        let found = match seen {
            Seen::Write(number) => self.origin_of_number(number),
            _ => Origin::Zeros,
        };
        let newest = ops().rfind(|op| op.completed() < issued);
        let place = self.place(sector);
        let objection = match newest.cloned() {
            Some(newest) => Objection::StaleRead { place, issued, found, newest },
            // Zeros where the base, or a change in flight, has data.
            None => Objection::Replaced { place, found, newest: self.origin_of_number(base) },
        };
        Err(objection.into())
    }

    /// True when a call issued at `issued` may report a hole over `sector`.
    #[must_use]
    pub fn may_be_hole(&self, issued: u64, sector: u64) -> bool {
        self.check_read(issued, sector, Seen::Zeros).is_ok()
    }
}

#[cfg(test)]
mod tests;
