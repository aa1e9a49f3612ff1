//! The leaves of a volume where few are in use: a tree of short sorted lists.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::leaf::Leaf;
use crate::memory::{btree_bytes, heap_bytes};

/// Most leaves of a list. A longer one is split in halves.
const MAX_LIST: usize = 128;
/// Fewest leaves of a list that has neighbors. A shorter one takes leaves from a neighbor.
const MIN_LIST: usize = 48;
/// Two neighbors of together so few leaves become one list.
const MAX_JOINED: usize = 112;

/// A sorted list of leaves that are not empty.
#[derive(Default)]
struct List {
    numbers: Vec<u32>,
    leaves: Vec<Leaf>,
}

/// Room that a list of `len` leaves gains when it grows: at most an eighth is unused.
fn step(len: usize) -> usize {
    (len / 8).max(4)
}

impl List {
    fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The index of the first leaf from `number` on.
    fn at(&self, number: u32) -> usize {
        self.numbers.partition_point(|have| *have < number)
    }

    fn indices(&self, range: &Range<u64>) -> Range<usize> {
        let at = |number: u64| u32::try_from(number).map_or(self.len(), |number| self.at(number));
        at(range.start)..at(range.end)
    }

    fn resize(&mut self, capacity: usize) {
        self.numbers.reserve_exact(capacity.saturating_sub(self.numbers.len()));
        self.leaves.reserve_exact(capacity.saturating_sub(self.leaves.len()));
        self.numbers.shrink_to(capacity);
        self.leaves.shrink_to(capacity);
    }

    fn insert(&mut self, at: usize, number: u32, leaf: Leaf) {
        if self.len() == self.numbers.capacity() {
            self.resize(self.len() + step(self.len()));
        }
        self.numbers.insert(at, number);
        self.leaves.insert(at, leaf);
    }

    /// Gives back room that a list of this length does not need.
    fn trim(&mut self) {
        if self.numbers.capacity() - self.len() > step(self.len()) {
            self.resize(self.len() + step(self.len()) / 2);
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let mut right =
            Self { numbers: self.numbers.split_off(at), leaves: self.leaves.split_off(at) };
        right.resize(right.len());
        self.resize(self.len());
        right
    }

    fn heap_bytes(&self) -> u64 {
        heap_bytes(size_of::<Self>())
            + heap_bytes(self.numbers.capacity() * size_of::<u32>())
            + heap_bytes(self.leaves.capacity() * size_of::<Leaf>())
    }
}

/// Leaves by number, in about 30 bytes each besides their own heap memory.
#[derive(Default)]
pub(crate) struct SparseLeaves {
    /// By a number that is not above the list's first, and above the last of the list before. The
    /// key of the first list is 0.
    lists: BTreeMap<u32, Box<List>>,
    list_bytes: u64,
}

impl SparseLeaves {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Leaf> {
        let (_, list) = self.lists.range(..=number).next_back()?;
        let at = list.numbers.binary_search(&number).ok()?;
        Some(&list.leaves[at])
    }

    /// A leaf, which is added if it is not there. The caller fills it, or removes it again.
    pub(crate) fn leaf_mut(&mut self, number: u32) -> &mut Leaf {
        let mut key = self.key_of(number);
        let at = self.lists.get(&key).map(|list| list.numbers.binary_search(&number));
        let at = match at {
            Some(Ok(at)) => at,
            Some(Err(at)) => self.insert(&mut key, at, number),
            None => {
                let list = Box::<List>::default();
                self.list_bytes += list.heap_bytes();
                self.lists.insert(key, list);
                self.insert(&mut key, 0, number)
            }
        };
        let list = self.lists.get_mut(&key).expect("it was found or made");
        &mut list.leaves[at]
    }

    /// The key of the list in which `number` is or would be.
    fn key_of(&self, number: u32) -> u32 {
        self.lists.range(..=number).next_back().map_or(0, |(key, _)| *key)
    }

    /// Adds an empty leaf to the list at `key`; returns its index, and in `key` its list.
    fn insert(&mut self, key: &mut u32, at: usize, number: u32) -> usize {
        let list = self.lists.get_mut(key).expect("the caller found it");
        self.list_bytes -= list.heap_bytes();
        list.insert(at, number, Leaf::Empty);
        let right = (list.len() > MAX_LIST).then(|| list.split_off(list.len() / 2));
        self.list_bytes += list.heap_bytes();
        let kept = list.len();
        self.add(right);
        if at < kept {
            return at;
        }
        *key = self.key_of(number);
        at - kept
    }

    /// Removes a leaf that is there.
    pub(crate) fn remove(&mut self, number: u32) {
        let key = self.key_of(number);
        let at = self.lists[&key].at(number);
        self.remove_of(key, at..at + 1);
    }

    fn add(&mut self, list: Option<List>) {
        if let Some(list) = list {
            self.list_bytes += list.heap_bytes();
            self.lists.insert(list.numbers[0], Box::new(list));
        }
    }

    /// Removes leaves of the list at `key`, and joins lists that become short.
    fn remove_of(&mut self, key: u32, indices: Range<usize>) -> Vec<Leaf> {
        let list = self.lists.get_mut(&key).expect("the caller found it");
        self.list_bytes -= list.heap_bytes();
        list.numbers.drain(indices.clone());
        let gone = list.leaves.drain(indices).collect();
        list.trim();
        self.list_bytes += list.heap_bytes();
        if list.len() < MIN_LIST {
            self.refill(key);
        }
        gone
    }

    /// Joins the list at `key` with a neighbor, or divides their leaves evenly.
    fn refill(&mut self, key: u32) {
        let after = self.lists.range(key..).nth(1).map(|(key, _)| *key);
        let before = self.lists.range(..key).next_back().map(|(key, _)| *key);
        let (left, right) = match (before, after) {
            (Some(before), _) => (before, key),
            (None, Some(after)) => (key, after),
            (None, None) => {
                if let Some(list) = self.lists.get(&key).filter(|list| list.len() == 0) {
                    self.list_bytes -= list.heap_bytes();
                    self.lists.remove(&key);
                }
                return;
            }
        };
        let mut moved = self.lists.remove(&right).expect("it is a neighbor");
        let list = self.lists.get_mut(&left).expect("it is a neighbor");
        self.list_bytes -= moved.heap_bytes() + list.heap_bytes();
        let len = list.len() + moved.len();
        list.resize(len);
        list.numbers.append(&mut moved.numbers);
        list.leaves.append(&mut moved.leaves);
        let right = (len > MAX_JOINED).then(|| list.split_off(len / 2));
        self.list_bytes += list.heap_bytes();
        self.add(right);
    }

    /// Leaves in a range of numbers.
    pub(crate) fn count(&self, range: Range<u64>) -> usize {
        self.overlapping(&range).map(|(_, list)| list.indices(&range).len()).sum()
    }

    /// Takes the leaves of a range out.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Vec<(u32, Leaf)> {
        let mut taken = Vec::with_capacity(self.count(range.clone()));
        loop {
            let found = self.overlapping(&range).map(|(key, list)| (key, list.indices(&range)));
            let found = found.filter(|(_, indices)| !indices.is_empty()).last();
            let Some((key, indices)) = found else { break };
            let numbers = self.lists[&key].numbers[indices.clone()].to_vec();
            let leaves = self.remove_of(key, indices);
            taken.extend(numbers.into_iter().zip(leaves));
        }
        taken
    }

    /// The lists that may have leaves in a range of numbers.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u32, &List)> {
        let first = u32::try_from(range.start).unwrap_or(u32::MAX);
        let key = self.key_of(first);
        let end = range.end;
        let lists = self.lists.range(key..).take_while(move |(key, _)| u64::from(**key) < end);
        lists.map(|(key, list)| (*key, &**list))
    }

    /// All leaves from `from` on, in order.
    pub(crate) fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &Leaf)> {
        let key = self.key_of(from);
        self.lists.range(key..).flat_map(move |(_, list)| {
            let first = list.at(from);
            list.numbers[first..].iter().copied().zip(&list.leaves[first..])
        })
    }

    /// Bytes of memory, without the heap memory of the leaves.
    pub(crate) fn memory_bytes(&self) -> u64 {
        btree_bytes(self.lists.len(), size_of::<(u32, Box<List>)>()) + self.list_bytes
    }
}
