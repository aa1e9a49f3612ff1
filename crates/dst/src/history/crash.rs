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
        let seen = &*self.own_all(seen);
        let mut set = Prefix::new(&self.ops);
        let zeros = self.note_shown(seen, &mut set)?;
        self.explain(seen, &zeros, set)?;
        self.rebase(seen);
        Ok(())
    }

    /// When the newest change was issued that a prefix of the history must have to show `seen`.
    pub(super) fn newest_shown(&self, seen: &[Option<Seen>]) -> Judged<u64> {
        let seen = &*self.own_all(seen);
        let mut set = Prefix::new(&self.ops);
        let zeros = self.note_shown(seen, &mut set)?;
        self.add_zeroings(&zeros, &mut set)?;
        Ok(set.latest.map_or(0, |latest| self.ops[latest].issued))
    }

    /// Searches for a prefix that contains `set`, and for its order. `zeros` are the sectors whose
    /// zeros need an explanation.
    fn explain(&self, seen: &[Option<Seen>], zeros: &[usize], mut set: Prefix<'_>) -> Judged {
        self.add_zeroings(zeros, &mut set)?;
        let edges = self.order_edges(seen, &set.member)?;
        // Edges that follow the order of issue cannot close a cycle with completion-before-issue.
        if edges.iter().all(|e| self.ops[e.before].issued <= self.ops[e.after].issued) {
            return Ok(());
        }
        let Some(cycle) = self.find_cycle(&edges, &set.member) else { return Ok(()) };
        // Zeros that the last zeroing of the set does not explain may be those of a later one.
        for index in self.later_zeroings(&cycle, &edges, &set.member) {
            let mut larger = set.clone();
            larger.add(index);
            if self.explain(seen, zeros, larger).is_ok() {
                return Ok(());
            }
        }
        let member = cycle.iter().find(|node| **node < self.ops.len());
        let member = self.ops[*member.expect("a cycle has a change")].clone();
        Err(Objection::NoOrder { volume: self.name.clone(), member }.into())
    }

    /// Checks the whole volume when more is broken than the pool must survive, and makes it the new
    /// base. Each sector must show something that was once written there.
    pub fn check_honest(&mut self, seen: &[Option<Seen>]) -> Judged {
        let seen = &*self.own_all(seen);
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
        self.cut_off.clear();
        self.volatile.clear();
        self.reading.clear();
        self.writers.iter_mut().for_each(SmallList::clear);
    }

    /// Adds the durable changes and those that `seen` shows to the set. Returns the sectors whose
    /// zeros need an explanation.
    fn note_shown(&self, seen: &[Option<Seen>], set: &mut Prefix<'_>) -> Judged<Vec<usize>> {
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
        Ok(zeros)
    }

    /// Adds what completed before the issue of a member, and the zeroings that zeros need, until
    /// nothing is missing.
    fn add_zeroings(&self, zeros: &[usize], set: &mut Prefix<'_>) -> Judged {
        loop {
            set.close();
            let mut grown = false;
            for sector in zeros {
                if let Some(index) = self.zeroing_needed(*sector, set)? {
                    set.add(index);
                    grown = true;
                }
            }
            if !grown {
                return Ok(());
            }
        }
    }

    /// The next zeroing that the prefix needs to explain the zeros of a sector; `None` when it
    /// needs no more. Zeroings of a sector follow each other, so the first one that can come after
    /// all writes of the prefix is part of every explanation.
    fn zeroing_needed(&self, sector: usize, set: &Prefix<'_>) -> Judged<Option<usize>> {
        let list = &self.writers[sector];
        let binding = |i: &&u32| {
            let op = &self.ops[**i as usize];
            set.member[**i as usize] && op.answer != Answer::Failed
        };
        let writes = list.iter().filter(binding).map(|i| &self.ops[*i as usize]);
        let last_write = writes.filter(|op| op.change == Change::Write).map(|op| op.issued).max();
        if last_write.is_none() && matches!(self.base[sector], 0 | UNKNOWN) {
            return Ok(None);
        }
        let after = last_write.unwrap_or(0);
        let zeroing = list.iter().map(|i| *i as usize).find(|i| {
            let op = &self.ops[*i];
            op.change == Change::Zero && op.completed() >= after
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

    /// Adds what the zeros of a sector say about the order: the last zeroing of the prefix comes
    /// after all its writes. `zeroing_needed` has checked that it can.
    fn order_before_zeros(&self, sector: usize, prefix: &[bool], edges: &mut Vec<Edge>) {
        let list = self.writers[sector].iter().map(|i| *i as usize);
        let is_zeroing = |i: &usize| prefix[*i] && self.ops[*i].change == Change::Zero;
        let Some(last) = list.clone().rfind(is_zeroing) else { return };
        let is_failed_zeroing = |op: &Op| op.change == Change::Zero && op.answer == Answer::Failed;
        if list.clone().any(|i| is_failed_zeroing(&self.ops[i])) {
            return; // it may have taken effect at any time
        }
        for index in list.filter(|i| prefix[*i]) {
            let op = &self.ops[index];
            let is_binding = op.change == Change::Write && op.answer != Answer::Failed;
            if is_binding && op.completed() >= self.ops[last].issued {
                edges.push(Edge { before: index, after: last, zeros_at: Some(sector) });
            }
        }
    }

    /// What the sectors found say about the order of the prefix.
    fn order_edges(&self, seen: &[Option<Seen>], prefix: &[bool]) -> Judged<Vec<Edge>> {
        let mut edges = Vec::new();
        for (sector, found) in seen.iter().enumerate() {
            let Some(found) = *found else { continue };
            if self.writers[sector].is_empty() {
                continue; // `note_shown` has checked the base
            }
            if found == Seen::Zeros {
                self.order_before_zeros(sector, prefix, &mut edges);
                continue;
            }
            let shown = self.writer_of(sector as u64, found)?;
            for index in self.writers[sector].iter().map(|i| *i as usize) {
                let op = &self.ops[index];
                if !prefix[index] || Some(index) == shown || op.answer == Answer::Failed {
                    continue;
                }
                match shown {
                    Some(after) if self.ops[after].ended() >= op.issued => {
                        edges.push(Edge { before: index, after, zeros_at: None });
                    }
                    _ => return Err(self.missing(sector, shown, index, prefix).into()),
                }
            }
        }
        Ok(edges)
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

    /// A cycle of nodes, last to first, when no order of the prefix respects both `edges` and
    /// completion-before-issue.
    fn find_cycle(&self, edges: &[Edge], prefix: &[bool]) -> Option<Vec<usize>> {
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
        // Every node that is left has a predecessor that is left.
        let is_left = |node: &usize| waits[*node] > 0;
        let mut path = vec![(0..graph.len()).find(is_left)?];
        loop {
            let node = path[path.len() - 1];
            let leads_here = |from: &usize| is_left(from) && graph[*from].contains(&node);
            let before = (0..graph.len()).find(leads_here)?;
            if let Some(at) = path.iter().position(|node| *node == before) {
                return Some(path.split_off(at));
            }
            path.push(before);
        }
    }

    /// Zeroings outside of the prefix, each of which may take the place of one in the cycle. Every
    /// prefix with an order contains one of them.
    fn later_zeroings(&self, cycle: &[usize], edges: &[Edge], prefix: &[bool]) -> Vec<usize> {
        let mut out = Vec::new();
        for (at, after) in cycle.iter().enumerate() {
            let before = cycle[(at + 1) % cycle.len()];
            let mut same = edges.iter().filter(|e| (e.before, e.after) == (before, *after));
            let Some(sector) = same.clone().find_map(|edge| edge.zeros_at) else { continue };
            if same.any(|edge| edge.zeros_at.is_none()) {
                continue; // another sector shows that order itself
            }
            let list = self.writers[sector].iter().map(|i| *i as usize);
            let later = list.skip_while(|i| i != after).skip(1);
            out.extend(
                later.filter(|i| !prefix[*i] && self.ops[*i].change == Change::Zero).take(1),
            );
        }
        out
    }

    /// Successors of each node. Nodes are the changes, then a chain of instants: a change precedes
    /// its completion, which precedes the issue of a later change, which precedes that change.
    fn order_graph(&self, edges: &[Edge], prefix: &[bool]) -> Vec<Vec<usize>> {
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
        for edge in edges {
            out[edge.before].push(edge.after);
        }
        out
    }
}

/// One change must come before another.
struct Edge {
    before: usize,
    after: usize,
    /// The zeros of this sector say so, if `after` is the last zeroing there.
    zeros_at: Option<usize>,
}

/// A set of changes that grows until it contains, with each change, all that completed before its
/// issue.
#[derive(Clone)]
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
