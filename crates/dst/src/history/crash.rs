//! The check of a whole volume after a crash: the search for a prefix of its history.

use std::collections::BTreeMap;

use super::{Answer, Change, History, Judged, Objection, Op, Origin, UNKNOWN};
use crate::small_list::SmallList;
use crate::stamp::Seen;

impl History {
    /// Checks the whole volume after a crash and, when it is a prefix, makes it the new base.
    /// `seen` has an entry for each sector: `None` when it could not be read.
    pub fn check_crash(&mut self, seen: &[Option<Seen>]) -> Judged {
        assert_eq!(seen.len() as u64, self.sectors, "one entry for each sector");
        let prefix = self.find_prefix(seen)?;
        self.check_order(seen, &prefix)?;
        self.rebase(seen);
        Ok(())
    }

    /// Checks the whole volume when more is broken than the pool must survive, and makes it the new
    /// base. Each sector must show something that was once written there.
    pub fn check_honest(&mut self, seen: &[Option<Seen>]) -> Judged {
        for (sector, seen) in (0..).zip(seen) {
            match seen {
                Some(Seen::Write(number)) => {
                    if !self.was_issued_at(sector, *number) {
                        let (place, number) = (self.place(sector), *number);
                        return Err(Objection::NeverWritten { place, number }.into());
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
    fn find_prefix(&self, seen: &[Option<Seen>]) -> Judged<Vec<bool>> {
        let mut set = Prefix::new(&self.ops);
        for (index, op) in self.ops.iter().enumerate() {
            if op.is_durable {
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

    /// The next zeroing that the prefix needs to explain the zeros of a sector; `None` when it
    /// needs no more.
    fn zeroing_needed(&self, sector: usize, set: &Prefix<'_>) -> Judged<Option<usize>> {
        let list = &self.writers[sector];
        let binding = |i: &&u32| {
            let op = &self.ops[**i as usize];
            set.member[**i as usize] && op.answer != Answer::Failed
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
                let missing = list.iter().rev().find(|i| binding(i)).map_or_else(
                    || self.origin_of_number(self.base[sector]),
                    |i| Origin::Op(self.ops[*i as usize].clone()),
                );
                let because = set.latest.map(|latest| self.ops[latest].clone());
                let (place, found) = (self.place(sector as u64), Origin::Zeros);
                Err(Objection::Missing { place, found, missing, because }.into())
            }
        }
    }

    fn check_order(&self, seen: &[Option<Seen>], prefix: &[bool]) -> Judged {
        let mut edges: Vec<(usize, usize)> = Vec::new();
        for (sector, found) in seen.iter().enumerate() {
            let Some(found) = found.filter(|found| *found != Seen::Zeros) else {
                continue; // `zeroing_needed` has checked the zeros
            };
            if self.writers[sector].is_empty() {
                continue; // `find_prefix` has checked the base
            }
            let shown = self.writer_of(sector as u64, found)?;
            for index in self.writers[sector].iter().map(|i| *i as usize) {
                let op = &self.ops[index];
                if !prefix[index] || Some(index) == shown || op.answer == Answer::Failed {
                    continue;
                }
                match shown {
                    Some(shown) if self.ops[shown].completed() >= op.issued => {
                        edges.push((index, shown));
                    }
                    _ => return Err(self.missing(sector, shown, index, prefix).into()),
                }
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
    ) -> Objection {
        let op = &self.ops[index];
        let found = match shown {
            Some(shown) => Origin::Op(self.ops[shown].clone()),
            None => self.origin_of_number(self.base[sector]),
        };
        // The newest member of the prefix makes the absence of this change a gap.
        let members = self.ops.iter().zip(prefix).filter(|(_, member)| **member);
        let newest = members.map(|(op, _)| op).max_by_key(|op| op.issued);
        let because = newest.filter(|_| !op.is_durable).cloned();
        let missing = Origin::Op(op.clone());
        Objection::Missing { place: self.place(sector as u64), found, missing, because }
    }

    /// Searches for an order of the prefix that respects `edges` and completion-before-issue.
    fn check_cycles(&self, edges: &[(usize, usize)], prefix: &[bool]) -> Judged {
        let graph = self.order_graph(edges, prefix);
        let mut waits = vec![0u32; graph.len()];
        for target in graph.iter().flatten() {
            waits[*target] += 1;
        }
        let mut free: Vec<usize> = (0..graph.len()).filter(|node| waits[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for target in &graph[node] {
                waits[*target] -= 1;
                if waits[*target] == 0 {
                    free.push(*target);
                }
            }
        }
        match (0..self.ops.len()).find(|index| prefix[*index] && waits[*index] > 0) {
            None => Ok(()),
            Some(index) => {
                let (volume, member) = (self.name.clone(), self.ops[index].clone());
                Err(Objection::NoOrder { volume, member }.into())
            }
        }
    }

    /// Successors of each node. Nodes are the changes, then a chain of instants: a change precedes
    /// its completion, which precedes the issue of a later change, which precedes that change.
    fn order_graph(&self, edges: &[(usize, usize)], prefix: &[bool]) -> Vec<Vec<usize>> {
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
        out
    }
}

/// A set of changes that grows until it contains, with each change, all that completed before its
/// issue.
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

    /// Adds all changes that completed before the issue of the latest member.
    fn close(&mut self) {
        let Some(latest) = self.latest else { return };
        // The added changes cannot move `latest`: each was issued before it completed.
        let limit = self.ops[latest].issued;
        while let Some(index) = self.by_completion.get(self.closed) {
            if self.ops[*index].completed() >= limit {
                break;
            }
            self.member[*index] = true;
            self.closed += 1;
        }
    }
}
