//! The oracle of one volume: every change that clients issued, and what they may find later.
//!
//! What enters: each change when it is issued and answered, each flush, each resize. What leaves: a
//! verdict on each read, and on the whole volume after a crash. What always holds: a crash must
//! leave a *prefix* of the history, as the crate's README defines it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

pub use change::{Answer, Change, Op};
pub use objection::{Judged, Objection, Origin, Place};

use crate::client::BLOCK_SECTORS;
use crate::small_list::SmallList;
use crate::stamp::Seen;

mod change;
mod crash;
mod objection;
mod takeover;
mod versions;

/// A change that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    from: usize,
    parts: usize,
    /// Its number, for [`crate::stamp::stamp`].
    pub number: u32,
    /// When it was issued, by the history's clock.
    pub issued: u64,
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
    /// Parts of unanswered changes that a shrink cut off: index of the change, and its sectors. A
    /// change that takes effect after the volume has grown again may show there.
    cut_off: Vec<(u32, u64, u64)>,
    /// Volumes that it began as, oldest first, and the last change that it has of each.
    ancestors: Vec<(u32, u32)>,
    /// No change takes effect together on both sides of this sector.
    split: u64,
    /// No change is forgotten before the next crash.
    keeps_all: bool,
    /// The clock, which all histories of a model share.
    clock: Rc<Cell<u64>>,
    atomic_sectors: u64,
}

/// The base of a sector that could not be read: it may show any write ever issued there.
const UNKNOWN: u32 = u32::MAX;

impl History {
    /// A volume of zeros. A write longer than `atomic_sectors` counts as several changes that are
    /// issued together; so does a zeroing that begins or ends within a block.
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
            cut_off: Vec::new(),
            ancestors: Vec::new(),
            split: u64::MAX,
            keeps_all: false,
            clock: Rc::new(Cell::new(1)),
            atomic_sectors,
        }
    }

    /// Sets the clock, before anything is issued.
    pub fn set_clock(&mut self, clock: Rc<Cell<u64>>) {
        self.clock = clock;
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
        let before = std::mem::replace(&mut self.sectors, sectors);
        self.base.resize(sectors as usize, 0);
        self.writers.resize(sectors as usize, SmallList::default());
        for (index, op) in (0..).zip(&mut self.ops) {
            let left = op.count.min(sectors.saturating_sub(op.first));
            if op.answer == Answer::Pending && left < op.count {
                self.cut_off.push((index, op.first + left, op.count - left));
            }
            op.count = left;
        }
        if sectors > before {
            self.show_again(before);
        }
    }

    /// Notes that changes which were in flight during a shrink may show past the end that the
    /// volume had then, now that it has grown.
    fn show_again(&mut self, before: u64) {
        for (index, first, count) in self.cut_off.clone() {
            let op = &self.ops[index as usize];
            let (from, to) = (first.max(before), (first + count).min(self.sectors));
            if op.answer != Answer::Pending || from >= to {
                continue;
            }
            let shadow = Op { first: from, count: to - from, answer: Answer::Failed, ..op.clone() };
            let index = self.ops.len() as u32;
            (from..to).for_each(|sector| self.writers[sector as usize].push(index));
            self.ops.push(shadow);
        }
    }

    /// Sets how many sectors of a write take effect together.
    pub fn set_atomic(&mut self, sectors: u64) {
        self.atomic_sectors = sectors;
    }

    /// Sets a sector at which every change is divided.
    pub fn set_split(&mut self, sector: u64) {
        self.split = sector;
    }

    /// Keeps changes that durable ones have replaced: an import may go back to an earlier root.
    pub fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// Forgets which changes are durable: an import goes back to an earlier root.
    pub fn forget_durability(&mut self) {
        self.ops.iter_mut().for_each(|op| op.is_durable = false);
    }

    /// True when a sector was cut off after `issued`. A read issued then may see the old data
    /// although the sector is back and new.
    fn is_cut_since(&self, issued: u64, sector: u64) -> bool {
        self.cuts.iter().any(|(at, sectors)| *at > issued && sector >= *sectors)
    }

    /// True when the volume was shorter than `end` sectors at some time since `issued`.
    #[must_use]
    pub fn was_shorter_since(&self, issued: u64, end: u64) -> bool {
        self.cuts.iter().any(|(at, sectors)| *at > issued && end > *sectors)
    }

    /// Advances the clock and returns it, for [`History::flushed`].
    pub fn now(&mut self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
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

    /// How many sectors of a change that has `left` sectors from `at` on take effect together. Of a
    /// zeroing, the whole blocks do, and each part of a block by itself.
    fn part_sectors(&self, change: Change, at: u64, left: u64) -> u64 {
        let within_block = at % BLOCK_SECTORS;
        if change == Change::Zero {
            let whole = left / BLOCK_SECTORS * BLOCK_SECTORS;
            return match (within_block, whole) {
                (0, 0) => left,
                (0, _) => whole,
                _ => left.min(BLOCK_SECTORS - within_block),
            };
        }
        let most = self.atomic_sectors;
        if left <= most { left } else { most.saturating_sub(within_block).max(1) }
    }

    /// Notes the issue of a change that is made in steps of at most `step` sectors.
    pub fn issue(&mut self, change: Change, first: u64, count: u64, step: u64) -> Ticket {
        let issued = self.now();
        let number = u32::try_from(self.issued.len()).expect("fewer changes than 2^32");
        self.issued.push((first, count));
        let from = self.ops.len();
        let mut at = first;
        while at < first + count {
            let end = if at < self.split { self.split.min(first + count) } else { first + count };
            let part = self.part_sectors(change, at, end - at).min(step - (at - first) % step);
            let index = self.ops.len() as u32;
            let op = Op {
                number,
                change,
                first: at,
                count: part,
                issued,
                answer: Answer::Pending,
                is_durable: false,
                is_optional: false,
            };
            for sector in at..at + part {
                self.prune(sector);
                self.writers[sector as usize].push(index);
            }
            self.ops.push(op);
            self.volatile.push(index);
            at += part;
        }
        Ticket { from, parts: self.ops.len() - from, number, issued }
    }

    /// Forgets changes of a sector that a durable change has replaced.
    fn prune(&mut self, sector: u64) {
        let ops = &self.ops;
        let list = &mut self.writers[sector as usize];
        if list.len() < 8 || self.keeps_all {
            return;
        }
        // A read that was issued earlier may still show what was replaced since.
        let oldest_read = self.reading.first().copied().unwrap_or(u64::MAX);
        let certain = |op: &&Op| op.is_durable && op.completed() < oldest_read;
        let floor = list.iter().map(|i| &ops[*i as usize]).filter(certain);
        let Some(floor) = floor.map(|op| op.issued).max() else { return };
        list.retain(|i| ops[i as usize].ended() >= floor);
    }

    /// Notes a successful answer to a change. A durable change must survive every later crash, and
    /// with it all changes that completed before its issue.
    pub fn complete(&mut self, ticket: Ticket, is_durable: bool) {
        let at = self.now();
        for op in &mut self.ops[ticket.from..ticket.from + ticket.parts] {
            op.answer = if op.is_optional { Answer::Failed } else { Answer::Done(at) };
            op.is_durable |= is_durable && !op.is_optional;
        }
    }

    /// Notes an error as the answer to a change.
    pub fn fail(&mut self, ticket: Ticket) {
        for op in &mut self.ops[ticket.from..ticket.from + ticket.parts] {
            op.answer = Answer::Failed;
        }
    }

    /// Notes that a client gave a change up. With `may_follow` it may still take effect.
    pub fn give_up(&mut self, ticket: Ticket, may_follow: bool) {
        let at = self.now();
        for op in &mut self.ops[ticket.from..ticket.from + ticket.parts] {
            op.answer = match op.change {
                // Zeros do not show which change wrote them.
                Change::Zero => Answer::Failed,
                Change::Write if op.is_optional => Answer::Failed,
                Change::Write if may_follow => Answer::Pending,
                Change::Write => Answer::GivenUp(at),
            };
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
                let is_it = |op: &Op| op.change == Change::Write && op.number == number;
                let index = list.iter().find(|i| is_it(&self.ops[**i as usize]));
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
        let seen = self.own(sector, seen);
        let list = &self.writers[sector as usize];
        let ops = || list.iter().map(|i| &self.ops[*i as usize]);
        // A later change hides one that ended before its issue, once it completed before `issued`.
        let floor = ops().filter(|op| op.completed() < issued).map(|op| op.issued).max();
        let visible = |op: &Op| floor.is_none_or(|floor| op.ended() >= floor);
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
