//! The oracle of one volume: every write that clients issued, and what may be found afterwards.
//!
//! A crash must leave a *prefix* of the history: a set of writes that contains everything durable,
//! that contains with each write all writes completed before it was issued, and that some order
//! consistent with completion-before-issue turns into exactly the sectors found. Writes in flight
//! together may be ordered either way. Only zeroing needs care, because a zero does not say who
//! wrote it: callers never let a zeroing overlap another change in flight, so that the smallest
//! set that explains the zeros can be grown step by step.

use std::collections::{BTreeMap, BTreeSet};

use crate::small_list::SmallList;
use crate::stamp::Seen;

/// What a change puts into its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Stamps.
    Write,
    /// Zeros (a trim or a write-zeroes).
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not answered.
    Open,
    /// Succeeded at this time of the history's clock.
    Done(u64),
    /// Failed: each of its sectors may or may not have changed, then or later.
    Failed,
}

#[derive(Clone, Debug)]
struct Op {
    number: u32,
    change: Change,
    first: u64,
    count: u64,
    issued: u64,
    end: End,
    durable: bool,
}

impl Op {
    fn completed(&self) -> u64 {
        match self.end {
            End::Done(at) => at,
            End::Open | End::Failed => u64::MAX,
        }
    }
}

/// A change that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    from: usize,
    pieces: usize,
    /// Its number, for [`crate::stamp::stamp`].
    pub number: u32,
}

/// The history of one volume since it was last known exactly.
#[derive(Clone, Debug)]
pub struct History {
    name: String,
    sectors: u64,
    /// What each sector held at the last crash: 0 for zeros, else the number of a write.
    base: Vec<u32>,
    ops: Vec<Op>,
    /// Changes of each sector, in order of issue, without those that can never be seen again.
    writers: Vec<SmallList>,
    /// Changes that are not known to be durable.
    volatile: Vec<u32>,
    /// Range of every change ever issued, by number.
    issued: Vec<(u64, u64)>,
    /// When each read that is not answered yet was issued.
    reading: BTreeSet<u64>,
    /// When the volume became smaller, and how small.
    cuts: Vec<(u64, u64)>,
    clock: u64,
    atomic_sectors: u64,
}

/// A base that nobody could read: anything that was ever written there may show.
const UNKNOWN: u32 = u32::MAX;

/// What the oracle objects to, in words.
pub type Objection = String;

impl History {
    /// A volume of zeros. A change longer than `atomic_sectors` counts as several changes issued
    /// together.
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

    /// Its size in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The size has changed: new sectors are zeros, lost ones are forgotten.
    pub fn resize(&mut self, sectors: u64) {
        if sectors < self.sectors {
            let now = self.tick();
            self.cuts.push((now, sectors));
        }
        self.base.resize(sectors as usize, 0);
        self.writers.resize(sectors as usize, SmallList::default());
        self.sectors = sectors;
        for op in &mut self.ops {
            op.count = op.count.min(sectors.saturating_sub(op.first));
        }
    }

    /// Whether a sector was cut off while something that was issued at `issued` was under way: it may
    /// see it as it was, though it is there again and new.
    fn is_cut_since(&self, issued: u64, sector: u64) -> bool {
        self.cuts.iter().any(|(at, sectors)| *at > issued && sector >= *sectors)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The time, for [`History::flushed`].
    pub fn now(&mut self) -> u64 {
        self.tick()
    }

    /// A read is about to be issued: the time, for [`History::check_read`]. What it may see is
    /// remembered until [`History::read_ends`].
    pub fn read_begins(&mut self) -> u64 {
        let issued = self.tick();
        self.reading.insert(issued);
        issued
    }

    /// The read that was issued at `issued` was answered and judged.
    pub fn read_ends(&mut self, issued: u64) {
        self.reading.remove(&issued);
    }

    /// A change is about to be issued.
    pub fn issue(&mut self, change: Change, first: u64, count: u64) -> Ticket {
        let issued = self.tick();
        let number = u32::try_from(self.issued.len()).expect("fewer changes than 2^32");
        self.issued.push((first, count));
        let from = self.ops.len();
        let mut at = first;
        while at < first + count {
            let piece = self.atomic_sectors.min(first + count - at);
            let index = self.ops.len() as u32;
            let op = Op {
                number,
                change,
                first: at,
                count: piece,
                issued,
                end: End::Open,
                durable: false,
            };
            for sector in at..at + piece {
                self.prune(sector);
                self.writers[sector as usize].push(index);
            }
            self.ops.push(op);
            self.volatile.push(index);
            at += piece;
        }
        Ticket { from, pieces: self.ops.len() - from, number }
    }

    /// Forgets changes of a sector that lie under a durable one.
    fn prune(&mut self, sector: u64) {
        let ops = &self.ops;
        let list = &mut self.writers[sector as usize];
        if list.len() < 8 {
            return;
        }
        // A read that was issued before may still show what was replaced since.
        let oldest_read = self.reading.first().copied().unwrap_or(u64::MAX);
        let certain = |op: &&Op| op.durable && op.completed() < oldest_read;
        let floor = list.iter().map(|i| &ops[*i as usize]).filter(certain);
        let Some(floor) = floor.map(|op| op.issued).max() else { return };
        list.retain(|i| ops[i as usize].completed() >= floor);
    }

    /// A change was answered. With `durable` it must survive from now on, and with it everything
    /// that had completed before it was issued.
    pub fn complete(&mut self, ticket: Ticket, durable: bool) {
        let at = self.tick();
        for op in &mut self.ops[ticket.from..ticket.from + ticket.pieces] {
            op.end = End::Done(at);
            op.durable |= durable;
        }
    }

    /// A change was answered with an error.
    pub fn fail(&mut self, ticket: Ticket) {
        for op in &mut self.ops[ticket.from..ticket.from + ticket.pieces] {
            op.end = End::Failed;
        }
    }

    /// A flush that was issued at `issued` has succeeded.
    pub fn flushed(&mut self, issued: u64) {
        let ops = &mut self.ops;
        self.volatile.retain(|index| {
            let op = &mut ops[*index as usize];
            op.durable |= op.completed() < issued;
            !op.durable
        });
    }

    /// Everything is durable (the pool was exported).
    pub fn mark_all_durable(&mut self) {
        let now = self.tick();
        self.flushed(now);
    }

    fn describe(&self, op: &Op) -> String {
        let what = if op.change == Change::Zero { "zeroing" } else { "write" };
        let end = match op.end {
            End::Open => "never answered".to_owned(),
            End::Failed => "failed".to_owned(),
            End::Done(at) => format!("completed at {at}"),
        };
        let durable = if op.durable { ", durable" } else { "" };
        format!(
            "{what} {} (sectors {}..{}, issued at {}, {end}{durable})",
            op.number,
            op.first,
            op.first + op.count,
            op.issued
        )
    }

    fn describe_number(&self, number: u32) -> String {
        match self.ops.iter().find(|op| op.number == number) {
            Some(op) => self.describe(op),
            None if number == 0 => "zeros".to_owned(),
            None => format!("write {number} (from before the last crash)"),
        }
    }

    /// Whether a write from before the last crash had this sector.
    fn is_old(&self, sector: u64, number: u32) -> bool {
        let range = self.issued.get(number as usize).copied().unwrap_or((0, 0));
        let current = self.ops.first().is_some_and(|op| op.number <= number);
        !current && (range.0..range.0 + range.1).contains(&sector)
    }

    /// The index of the change that `seen` shows at `sector`; `None` is the base.
    fn writer_of(&self, sector: u64, seen: Seen) -> Result<Option<usize>, Objection> {
        let name = &self.name;
        let base = self.base[sector as usize];
        match seen {
            Seen::Write(number) if number == base => Ok(None),
            Seen::Write(number) if base == UNKNOWN && self.is_old(sector, number) => Ok(None),
            Seen::Write(number) => {
                let list = &self.writers[sector as usize];
                match list.iter().find(|i| self.ops[**i as usize].number == number) {
                    Some(index) => Ok(Some(*index as usize)),
                    None => Err(format!(
                        "{name} sector {sector}: holds {}, which cannot be seen any more; the last known is {}",
                        self.describe_number(number),
                        list.last().map_or_else(
                            || self.describe_number(base),
                            |i| self.describe(&self.ops[*i as usize])
                        ),
                    )),
                }
            }
            Seen::Zeros => Ok(None),
            Seen::Elsewhere { volume, sector: said, number } => Err(format!(
                "{name} sector {sector}: holds write {number} of volume {volume} sector {said}"
            )),
            Seen::Garbage => Err(format!("{name} sector {sector}: holds garbage")),
        }
    }

    /// Judges one sector of a read that was issued at `issued` and has just completed: it must
    /// show a change that no other had replaced for certain.
    pub fn check_read(&self, issued: u64, sector: u64, seen: Seen) -> Result<(), Objection> {
        if self.is_cut_since(issued, sector) {
            return Ok(());
        }
        let list = &self.writers[sector as usize];
        let ops = || list.iter().map(|i| &self.ops[*i as usize]);
        // A change is out of sight when one that was issued after its end had ended already.
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
            Seen::Write(number) => self.describe_number(number),
            _ => "zeros".to_owned(),
        };
        let newest = ops().rfind(|op| op.completed() < issued).expect("something replaced it");
        Err(format!(
            "{} sector {sector}: a read issued at {issued} found {found}, but {} had been answered before",
            self.name,
            self.describe(newest)
        ))
    }

    /// Whether a hole may be reported over `sector`, by a call issued at `issued`.
    #[must_use]
    pub fn may_be_hole(&self, issued: u64, sector: u64) -> bool {
        self.check_read(issued, sector, Seen::Zeros).is_ok()
    }

    /// Judges the whole volume after a crash (`seen` has every sector, `None` those that could not
    /// be read) and, when it is a prefix, makes it the new base.
    pub fn check_crash(&mut self, seen: &[Option<Seen>]) -> Result<(), Objection> {
        assert_eq!(seen.len() as u64, self.sectors, "every sector is judged");
        let prefix = self.find_prefix(seen)?;
        self.check_order(seen, &prefix)?;
        self.rebase(seen);
        Ok(())
    }

    /// Judges sectors when more was broken than is promised to survive: each must show something
    /// that was once written there, never anything else. Makes it the new base.
    pub fn check_honest(&mut self, seen: &[Option<Seen>]) -> Result<(), Objection> {
        for (sector, seen) in seen.iter().enumerate() {
            let sector = sector as u64;
            match seen {
                Some(Seen::Write(number)) => {
                    let range = self.issued.get(*number as usize).copied().unwrap_or((0, 0));
                    if !(range.0..range.0 + range.1).contains(&sector) {
                        let name = &self.name;
                        return Err(format!(
                            "{name} sector {sector}: write {number} was never there"
                        ));
                    }
                }
                Some(Seen::Zeros) | None => {}
                Some(other) => {
                    self.writer_of(sector, *other)?;
                }
            }
        }
        self.rebase(seen);
        Ok(())
    }

    fn rebase(&mut self, seen: &[Option<Seen>]) {
        for (base, seen) in self.base.iter_mut().zip(seen) {
            *base = match seen {
                Some(Seen::Write(number)) => *number,
                Some(_) => 0,
                None => UNKNOWN,
            };
        }
        self.ops.clear();
        self.volatile.clear();
        self.reading.clear();
        self.writers.iter_mut().for_each(SmallList::clear);
    }

    /// The smallest set of changes that must be in the prefix.
    fn find_prefix(&self, seen: &[Option<Seen>]) -> Result<Vec<bool>, Objection> {
        let mut set = Prefix::new(&self.ops);
        for (index, op) in self.ops.iter().enumerate() {
            if op.durable {
                set.add(index);
            }
        }
        let mut zeros = Vec::new();
        for (sector, found) in seen.iter().enumerate() {
            let Some(found) = found else { continue };
            if *found == Seen::Zeros {
                if self.base[sector] != 0 || !self.writers[sector].is_empty() {
                    zeros.push(sector);
                }
            } else if let Some(index) = self.writer_of(sector as u64, *found)? {
                set.add(index);
            }
        }
        loop {
            set.close();
            let mut grown = false;
            for sector in &zeros {
                if let Some(index) = self.zeroing_needed(*sector, &set)? {
                    set.add(index);
                    grown = true;
                }
            }
            if !grown {
                return Ok(set.member);
            }
        }
    }

    /// A sector shows zeros: the next zeroing that must be in the prefix for it, if one is missing.
    fn zeroing_needed(&self, sector: usize, set: &Prefix<'_>) -> Result<Option<usize>, Objection> {
        let list = &self.writers[sector];
        let binding = |i: &&u32| {
            let op = &self.ops[**i as usize];
            set.member[**i as usize] && op.end != End::Failed
        };
        let last_write = list
            .iter()
            .filter(binding)
            .filter(|i| self.ops[**i as usize].change == Change::Write)
            .map(|i| self.ops[*i as usize].issued)
            .max();
        if last_write.is_none() && matches!(self.base[sector], 0 | UNKNOWN) {
            return Ok(None);
        }
        let after = last_write.unwrap_or(0);
        let zeroing = list.iter().map(|i| *i as usize).find(|i| {
            let op = &self.ops[*i];
            op.change == Change::Zero && op.issued > after
        });
        match zeroing {
            Some(index) if set.member[index] => Ok(None),
            Some(index) => Ok(Some(index)),
            None => {
                let lost = list.iter().rev().find(|i| binding(i)).map_or_else(
                    || self.describe_number(self.base[sector]),
                    |i| self.describe(&self.ops[*i as usize]),
                );
                let why = set.why();
                Err(format!(
                    "{} sector {sector}: holds zeros, but {lost} must be there{why}",
                    self.name
                ))
            }
        }
    }

    fn check_order(&self, seen: &[Option<Seen>], prefix: &[bool]) -> Result<(), Objection> {
        let mut edges: Vec<(usize, usize)> = Vec::new();
        for (sector, found) in seen.iter().enumerate() {
            let Some(found) = found.filter(|found| *found != Seen::Zeros) else {
                continue; // zeros are mark_all_durable by `zeroing_needed`
            };
            if self.writers[sector].is_empty() {
                continue; // the base, as `find_prefix` has seen
            }
            let shown = self.writer_of(sector as u64, found)?;
            for index in self.writers[sector].iter().map(|i| *i as usize) {
                let op = &self.ops[index];
                if !prefix[index] || Some(index) == shown || op.end == End::Failed {
                    continue;
                }
                let replaced = match shown {
                    None => true,
                    Some(shown) => self.ops[shown].completed() < op.issued,
                };
                if replaced {
                    return Err(self.missing(sector, shown, index, prefix));
                }
                edges.push((index, shown.expect("the base was handled")));
            }
        }
        // Edges that follow the order of issue cannot close a cycle with completion-before-issue.
        if edges.iter().any(|(a, b)| self.ops[*a].issued > self.ops[*b].issued) {
            self.check_cycles(&edges, prefix)?;
        }
        Ok(())
    }

    fn missing(
        &self,
        sector: usize,
        shown: Option<usize>,
        index: usize,
        prefix: &[bool],
    ) -> String {
        let op = &self.ops[index];
        let found = match shown {
            Some(shown) => self.describe(&self.ops[shown]),
            None => self.describe_number(self.base[sector]),
        };
        let why = if op.durable {
            String::new()
        } else {
            // Somebody later is there: that is what makes this one's absence a hole.
            let later = self.ops.iter().zip(prefix).filter(|(_, member)| **member);
            let witness = later.map(|(op, _)| op).max_by_key(|op| op.issued);
            witness.map_or_else(String::new, |w| format!(" because of {}", self.describe(w)))
        };
        format!(
            "{} sector {sector}: holds {found}, but {} must be there{why}",
            self.name,
            self.describe(op)
        )
    }

    /// Looks for an order of the prefix that respects `edges` and completion-before-issue.
    fn check_cycles(&self, edges: &[(usize, usize)], prefix: &[bool]) -> Result<(), Objection> {
        // Nodes: the changes, and instants of time in a chain: op → its completion → … → the issue
        // of a later op → that op.
        let mut instants = BTreeMap::new();
        for (op, _) in self.ops.iter().zip(prefix).filter(|(_, member)| **member) {
            instants.insert(op.issued, 0);
            if op.completed() != u64::MAX {
                instants.insert(op.completed(), 0);
            }
        }
        let ops = self.ops.len();
        for (rank, node) in instants.values_mut().enumerate() {
            *node = ops + rank;
        }
        let nodes = ops + instants.len();
        let mut out: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        for (node, next) in out.iter_mut().enumerate().skip(ops) {
            if node + 1 < nodes {
                next.push(node + 1);
            }
        }
        for (index, op) in self.ops.iter().enumerate().filter(|(index, _)| prefix[*index]) {
            out[instants[&op.issued]].push(index);
            if let Some(node) = instants.get(&op.completed()) {
                out[index].push(*node);
            }
        }
        for (before, after) in edges {
            out[*before].push(*after);
        }
        let mut waits = vec![0u32; nodes];
        for target in out.iter().flatten() {
            waits[*target] += 1;
        }
        let mut free: Vec<usize> = (0..nodes).filter(|node| waits[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for target in &out[node] {
                waits[*target] -= 1;
                if waits[*target] == 0 {
                    free.push(*target);
                }
            }
        }
        match (0..ops).find(|index| prefix[*index] && waits[*index] > 0) {
            None => Ok(()),
            Some(index) => Err(format!(
                "{}: no order of the writes gives these sectors; {} is part of a circle",
                self.name,
                self.describe(&self.ops[index])
            )),
        }
    }
}

/// A set of changes that grows to contain with each all that completed before its issue.
struct Prefix<'a> {
    ops: &'a [Op],
    member: Vec<bool>,
    by_completion: Vec<usize>,
    closed: usize,
    latest: Option<usize>,
}

impl<'a> Prefix<'a> {
    fn new(ops: &'a [Op]) -> Self {
        let mut by_completion: Vec<usize> = (0..ops.len()).collect();
        by_completion.sort_by_key(|index| ops[*index].completed());
        Self { ops, member: vec![false; ops.len()], by_completion, closed: 0, latest: None }
    }

    fn add(&mut self, index: usize) {
        self.member[index] = true;
        if self.latest.is_none_or(|latest| self.ops[latest].issued < self.ops[index].issued) {
            self.latest = Some(index);
        }
    }

    fn close(&mut self) {
        let Some(latest) = self.latest else { return };
        // Adding these cannot move `latest`: each was issued before it completed.
        let limit = self.ops[latest].issued;
        while let Some(index) = self.by_completion.get(self.closed) {
            if self.ops[*index].completed() >= limit {
                break;
            }
            self.member[*index] = true;
            self.closed += 1;
        }
    }

    fn why(&self) -> String {
        match self.latest {
            Some(latest) => {
                let op = &self.ops[latest];
                format!(" because of write {} (issued at {})", op.number, op.issued)
            }
            None => String::new(),
        }
    }
}
