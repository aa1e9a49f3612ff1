//! Each policy beside a model of it in plain lists, as its paper has it: what is in the cache, what
//! is remembered as a ghost, and what left.

use forebay_cache::Policy;
use proptest::prelude::*;

/// A policy in plain lists, the oldest entry first.
trait Model {
    /// Touches an entry. Returns whether it was in the cache, and what left cache or ghosts.
    fn access(&mut self, entry: u32) -> (bool, Vec<u32>);

    /// Takes an entry out. ARC's figure has no such case.
    fn remove(&mut self, entry: u32);

    fn resident(&self) -> Vec<u32>;

    fn ghosts(&self) -> Vec<u32> {
        Vec::new()
    }
}

fn take(list: &mut Vec<u32>, entry: u32) -> bool {
    let found = list.iter().position(|other| *other == entry);
    found.map(|at| list.remove(at)).is_some()
}

struct Queue {
    capacity: usize,
    is_lru: bool,
    list: Vec<u32>,
}

impl Model for Queue {
    fn access(&mut self, entry: u32) -> (bool, Vec<u32>) {
        if self.list.contains(&entry) {
            if self.is_lru {
                take(&mut self.list, entry);
                self.list.push(entry);
            }
            return (true, Vec::new());
        }
        let is_full = self.list.len() == self.capacity;
        let left = if is_full { vec![self.list.remove(0)] } else { Vec::new() };
        self.list.push(entry);
        (false, left)
    }

    fn remove(&mut self, entry: u32) {
        take(&mut self.list, entry);
    }

    fn resident(&self) -> Vec<u32> {
        self.list.clone()
    }
}

/// Figure 2 of the paper. The hand names an entry, or is at the end.
struct Sieve {
    capacity: usize,
    list: Vec<u32>,
    used: Vec<u32>,
    hand: Option<u32>,
}

impl Sieve {
    fn newer(&self, entry: u32) -> Option<u32> {
        let at = self.list.iter().position(|other| *other == entry)?;
        self.list.get(at + 1).copied()
    }
}

impl Model for Sieve {
    fn access(&mut self, entry: u32) -> (bool, Vec<u32>) {
        if self.list.contains(&entry) {
            self.used.push(entry);
            return (true, Vec::new());
        }
        let mut left = Vec::new();
        if self.list.len() == self.capacity {
            let mut victim = self.hand.unwrap_or(self.list[0]);
            while self.used.contains(&victim) {
                self.used.retain(|other| *other != victim);
                victim = self.newer(victim).unwrap_or(self.list[0]);
            }
            self.hand = self.newer(victim);
            take(&mut self.list, victim);
            left.push(victim);
        }
        self.list.push(entry);
        (false, left)
    }

    fn remove(&mut self, entry: u32) {
        if self.hand == Some(entry) {
            self.hand = self.newer(entry);
        }
        take(&mut self.list, entry);
        self.used.retain(|other| *other != entry);
    }

    fn resident(&self) -> Vec<u32> {
        self.list.clone()
    }
}

/// Figure 4 of the paper.
#[derive(Default)]
struct Arc {
    capacity: usize,
    target: f64,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl Arc {
    fn replace(&mut self, is_in_b2: bool) -> u32 {
        let recent = self.t1.len() as f64;
        let is_recent = recent > self.target || (is_in_b2 && recent == self.target);
        if !self.t1.is_empty() && (is_recent || self.t2.is_empty()) {
            self.b1.push(self.t1.remove(0));
            return self.b1[self.b1.len() - 1];
        }
        self.b2.push(self.t2.remove(0));
        self.b2[self.b2.len() - 1]
    }
}

impl Model for Arc {
    fn access(&mut self, entry: u32) -> (bool, Vec<u32>) {
        let (ghosts1, ghosts2) = (self.b1.len() as f64, self.b2.len() as f64);
        let mut left = Vec::new();
        if take(&mut self.t1, entry) || take(&mut self.t2, entry) {
            self.t2.push(entry);
            return (true, left);
        }
        if self.b1.contains(&entry) {
            let most = self.capacity as f64;
            self.target = (self.target + (ghosts2 / ghosts1).max(1.0)).min(most);
            left.push(self.replace(false));
            take(&mut self.b1, entry);
            self.t2.push(entry);
        } else if self.b2.contains(&entry) {
            self.target = (self.target - (ghosts1 / ghosts2).max(1.0)).max(0.0);
            left.push(self.replace(true));
            take(&mut self.b2, entry);
            self.t2.push(entry);
        } else {
            let seen_once = self.t1.len() + self.b1.len();
            let all = seen_once + self.t2.len() + self.b2.len();
            if seen_once == self.capacity {
                if self.t1.len() < self.capacity {
                    left.push(self.b1.remove(0));
                    left.push(self.replace(false));
                } else {
                    left.push(self.t1.remove(0));
                }
            } else if all >= self.capacity {
                if all == 2 * self.capacity {
                    left.push(self.b2.remove(0));
                }
                left.push(self.replace(false));
            }
            self.t1.push(entry);
        }
        (false, left)
    }

    fn remove(&mut self, _: u32) {
        unreachable!("the figure has no such case");
    }

    fn resident(&self) -> Vec<u32> {
        [&self.t1[..], &self.t2].concat()
    }

    fn ghosts(&self) -> Vec<u32> {
        [&self.b1[..], &self.b2].concat()
    }
}

/// Algorithm 1 of the paper. An entry in the main queue begins without uses.
struct S3Fifo {
    capacity: usize,
    uses_for_main: u32,
    small: Vec<(u32, u32)>,
    main: Vec<(u32, u32)>,
    ghosts: Vec<u32>,
}

impl S3Fifo {
    fn small_capacity(&self) -> usize {
        (self.capacity / 10).max(1)
    }

    fn main_capacity(&self) -> usize {
        (self.capacity - self.small_capacity().min(self.capacity)).max(1)
    }

    fn evict_main(&mut self, left: &mut Vec<u32>) {
        while !self.main.is_empty() {
            let (entry, uses) = self.main.remove(0);
            if uses == 0 {
                return left.push(entry);
            }
            self.main.push((entry, uses - 1));
        }
    }

    fn evict_small(&mut self, left: &mut Vec<u32>) {
        while !self.small.is_empty() {
            let (entry, uses) = self.small.remove(0);
            if uses < self.uses_for_main {
                self.ghosts.push(entry);
                left.push(entry);
                if self.ghosts.len() > self.main_capacity() {
                    left.push(self.ghosts.remove(0));
                }
                return;
            }
            if self.main.len() == self.main_capacity() {
                self.evict_main(left);
            }
            self.main.push((entry, 0));
        }
    }
}

impl Model for S3Fifo {
    fn access(&mut self, entry: u32) -> (bool, Vec<u32>) {
        let mut left = Vec::new();
        let found = self.small.iter_mut().chain(&mut self.main).find(|(other, _)| *other == entry);
        if let Some((_, uses)) = found {
            *uses = (*uses + 1).min(3);
            return (true, left);
        }
        while self.small.len() + self.main.len() == self.capacity {
            let has_small = self.small.len() >= self.small_capacity();
            match has_small || self.main.is_empty() {
                true => self.evict_small(&mut left),
                false => self.evict_main(&mut left),
            }
        }
        match take(&mut self.ghosts, entry) {
            true => self.main.push((entry, 0)),
            false => self.small.push((entry, 0)),
        }
        (false, left)
    }

    fn remove(&mut self, entry: u32) {
        self.small.retain(|(other, _)| *other != entry);
        self.main.retain(|(other, _)| *other != entry);
        take(&mut self.ghosts, entry);
    }

    fn resident(&self) -> Vec<u32> {
        self.small.iter().chain(&self.main).map(|(entry, _)| *entry).collect()
    }

    fn ghosts(&self) -> Vec<u32> {
        self.ghosts.clone()
    }
}

fn model(policy: Policy, capacity: usize) -> Box<dyn Model> {
    let s3_fifo = |uses_for_main| {
        let (small, main, ghosts) = (Vec::new(), Vec::new(), Vec::new());
        Box::new(S3Fifo { capacity, uses_for_main, small, main, ghosts })
    };
    match policy {
        Policy::Lru => Box::new(Queue { capacity, is_lru: true, list: Vec::new() }),
        Policy::Fifo => Box::new(Queue { capacity, is_lru: false, list: Vec::new() }),
        Policy::Sieve => {
            Box::new(Sieve { capacity, list: Vec::new(), used: Vec::new(), hand: None })
        }
        Policy::Arc => Box::new(Arc { capacity, ..Arc::default() }),
        Policy::S3Fifo => s3_fifo(2),
        Policy::S3FifoOne => s3_fifo(1),
    }
}

fn sorted(mut list: Vec<u32>) -> Vec<u32> {
    list.sort_unstable();
    list
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_policy_keeps_what_its_paper_keeps(
        // Entries that are used again soon, and others; one in ten is taken out.
        acts in prop::collection::vec((prop_oneof![0..12u32, 0..64u32], 0..10u32), 1..500),
        capacity in prop_oneof![1..4usize, 4..40usize],
    ) {
        for policy in Policy::ALL {
            let mut cache = policy.replacement(capacity as u64);
            cache.reserve(64);
            let mut model = model(policy, capacity);
            for (step, (entry, kind)) in acts.iter().enumerate() {
                let is_known = cache.is_resident(*entry) || cache.is_ghost(*entry);
                if *kind == 0 && policy != Policy::Arc {
                    if is_known {
                        cache.remove(*entry);
                        model.remove(*entry);
                    }
                } else {
                    let mut left = Vec::new();
                    let was_there = cache.access(*entry, &mut left);
                    prop_assert_eq!((was_there, left), model.access(*entry), "{} {}", policy, step);
                }
                let of = |is: &dyn Fn(u32) -> bool| (0..64).filter(|entry| is(*entry)).collect();
                let resident: Vec<u32> = of(&|entry| cache.is_resident(entry));
                let ghosts: Vec<u32> = of(&|entry| cache.is_ghost(entry));
                prop_assert_eq!(resident, sorted(model.resident()), "{} {}", policy, step);
                prop_assert_eq!(ghosts, sorted(model.ghosts()), "{} {}", policy, step);
            }
        }
    }
}
