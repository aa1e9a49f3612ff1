//! Model test of the segment table: no segment is allocated that a root or a reader needs, and the
//! records of the journal restore the table.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::journal::{SegmentRecord, SegmentUse};
use forebay_segment::{Choice, Pin, SegmentKind, SegmentState, SegmentTable, Victims};
use forebay_units::{BlockAddr, CommitId, SegmentId};
use proptest::prelude::*;

const SMALL: u32 = 5;
const LARGE: u32 = 7;

#[derive(Clone, Debug)]
enum Step {
    /// Allocates a segment when more than `keep` are free.
    Allocate {
        map: bool,
        keep: u32,
    },
    /// Closes the n-th open segment.
    Close {
        nth: usize,
        footer: bool,
    },
    /// Blocks of the n-th segment in use become live, or die.
    Live {
        nth: usize,
        blocks: u32,
    },
    Die {
        nth: usize,
        blocks: u32,
    },
    Wrote {
        nth: usize,
        rows: u32,
    },
    Pin {
        nth: usize,
    },
    Unpin {
        nth: usize,
    },
    RetireMap {
        nth: usize,
    },
    /// Commits a root, then frees the segments that no readable root needs.
    Commit {
        tight: bool,
    },
    /// A crash: the table is restored from the records.
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    let nth = 0usize..12;
    prop_oneof![
        6 => (any::<bool>(), 0u32..4).prop_map(|(map, keep)| Step::Allocate { map, keep }),
        4 => (nth.clone(), any::<bool>()).prop_map(|(nth, footer)| Step::Close { nth, footer }),
        4 => (nth.clone(), 1u32..9).prop_map(|(nth, blocks)| Step::Live { nth, blocks }),
        4 => (nth.clone(), 1u32..9).prop_map(|(nth, blocks)| Step::Die { nth, blocks }),
        2 => (nth.clone(), 1u32..16).prop_map(|(nth, rows)| Step::Wrote { nth, rows }),
        2 => nth.clone().prop_map(|nth| Step::Pin { nth }),
        2 => nth.clone().prop_map(|nth| Step::Unpin { nth }),
        1 => nth.prop_map(|nth| Step::RetireMap { nth }),
        5 => any::<bool>().prop_map(|tight| Step::Commit { tight }),
        1 => Just(Step::Reload),
    ]
}

/// The model's segment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Plain {
    state: SegmentState,
    kind: SegmentKind,
    footer: bool,
    live: u32,
    rows: u32,
    birth: u64,
    last: u64,
    pins: u32,
}

fn new_table() -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    table.add_group(SMALL, 20);
    table.add_group(LARGE, 100);
    table
}

fn is_in_use(plain: &Plain) -> bool {
    matches!(plain.state, SegmentState::Open | SegmentState::Full)
}

/// The table, its model, and the records in the journal.
struct Rig {
    table: Rc<SegmentTable>,
    model: Vec<Plain>,
    journal: Vec<SegmentRecord>,
    pins: Vec<(u32, Pin)>,
    commit: CommitId,
    /// The segment after the last one allocated.
    cursor: u32,
}

impl Rig {
    fn new() -> Self {
        Self {
            table: new_table(),
            model: vec![Plain::default(); (SMALL + LARGE) as usize],
            journal: Vec::new(),
            pins: Vec::new(),
            commit: CommitId(1),
            cursor: 0,
        }
    }

    /// The n-th segment, counted round, for which `fits` returns true.
    fn pick(&self, nth: usize, fits: impl Fn(&Plain) -> bool) -> Option<(SegmentId, usize)> {
        let all: Vec<usize> = (0..self.model.len()).filter(|at| fits(&self.model[*at])).collect();
        (!all.is_empty()).then(|| {
            let at = all[nth % all.len()];
            (SegmentId(at as u32), at)
        })
    }

    fn allocate(&mut self, map: bool, keep: u32) {
        let kind = if map { SegmentKind::Map } else { SegmentKind::Data };
        let is_free = |at: &u32| self.model[*at as usize].state == SegmentState::Free;
        let free: Vec<u32> = (0..SMALL + LARGE).filter(is_free).collect();
        let got = self.table.allocate(kind, 3, self.commit, 9, keep);
        // The next free segment after the last one allocated, or the first.
        let next = free.iter().find(|at| **at >= self.cursor).or(free.first());
        let next = next.filter(|_| free.len() as u32 > keep).copied();
        assert_eq!(got.map(|segment| segment.0), next);
        if let Some(next) = next {
            self.cursor = next + 1;
            let (birth, last) = (self.commit.0, self.commit.0);
            let state = SegmentState::Open;
            self.model[next as usize] = Plain { state, kind, birth, last, ..Plain::default() };
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Allocate { map, keep } => self.allocate(map, keep),
            Step::Close { nth, footer } => {
                if let Some((id, at)) = self.pick(nth, |p| p.state == SegmentState::Open) {
                    self.table.close(id, footer);
                    self.model[at].state = SegmentState::Full;
                    self.model[at].footer = footer;
                }
            }
            Step::Live { nth, blocks } => {
                let is_data = |p: &Plain| is_in_use(p) && p.kind == SegmentKind::Data;
                if let Some((id, at)) = self.pick(nth, is_data) {
                    self.table.add_live(BlockAddr::new(id, 0), blocks);
                    self.model[at].live += blocks;
                }
            }
            Step::Die { nth, blocks } => {
                if let Some((id, at)) = self.pick(nth, |p| is_in_use(p) && p.live > 0) {
                    let blocks = blocks.min(self.model[at].live);
                    self.table.sub_live(BlockAddr::new(id, 0), blocks);
                    self.model[at].live -= blocks;
                }
            }
            Step::Wrote { nth, rows } => {
                if let Some((id, at)) = self.pick(nth, |p| p.state == SegmentState::Open) {
                    self.table.wrote(id, rows, self.commit);
                    let plain = &mut self.model[at];
                    plain.rows = plain.rows.max(rows);
                    plain.last = plain.last.max(self.commit.0);
                }
            }
            Step::Pin { nth } => {
                // Readers follow the map, which refers to no empty segment.
                if let Some((id, at)) = self.pick(nth, is_in_use) {
                    self.pins.push((id.0, self.table.pin(id)));
                    self.model[at].pins += 1;
                }
            }
            Step::Unpin { nth } => {
                if !self.pins.is_empty() {
                    let (at, pin) = self.pins.swap_remove(nth % self.pins.len());
                    drop(pin);
                    self.model[at as usize].pins -= 1;
                }
            }
            Step::RetireMap { nth } => {
                let is_map =
                    |p: &Plain| p.state == SegmentState::Full && p.kind == SegmentKind::Map;
                if let Some((id, at)) = self.pick(nth, is_map) {
                    self.table.retire_map(id, self.commit);
                    self.model[at].state = SegmentState::Emptied(self.commit);
                }
            }
            Step::Commit { tight } => self.commit(tight),
            Step::Reload => self.reload(),
        }
    }

    /// The victims must be the segments worth cleaning, the emptiest first.
    fn check_victims(&self) {
        let worth = |at: &u32| {
            let (p, blocks) = (&self.model[*at as usize], self.table.data_blocks(SegmentId(*at)));
            let is_full = p.state == SegmentState::Full && p.kind == SegmentKind::Data;
            is_full && p.last <= self.commit.0 && p.live > 0 && p.live < blocks
        };
        let share = |at: u32| {
            let blocks = self.table.data_blocks(SegmentId(at));
            f64::from(self.model[at as usize].live) / f64::from(blocks)
        };
        let mut expected: Vec<f64> = (0..SMALL + LARGE).filter(worth).map(share).collect();
        expected.sort_by(f64::total_cmp);
        let victims = Victims::of(&self.table, self.commit, Choice::Emptiest);
        let victims: Vec<f64> = victims.map(|victim| share(victim.segment.0)).collect();
        assert_eq!(victims, expected, "the emptiest first");
    }

    fn take_records(&mut self) {
        self.journal.extend(self.table.take_records(false));
    }

    fn commit(&mut self, tight: bool) {
        self.check_victims();
        let mut emptied = 0;
        for plain in &mut self.model {
            let is_dead = plain.live == 0 && plain.kind == SegmentKind::Data;
            if plain.state == SegmentState::Full && is_dead {
                plain.state = SegmentState::Emptied(self.commit);
                emptied += 1;
            }
        }
        assert_eq!(self.table.collect_empty(self.commit).len(), emptied);
        self.take_records();
        // The root before the new one stays readable unless space is short.
        let oldest = if tight { self.commit } else { CommitId(self.commit.0 - 1) };
        self.commit = self.commit.next();
        let is_unneeded = |at: &u32| {
            let plain = &self.model[*at as usize];
            matches!(plain.state, SegmentState::Emptied(at) if at <= oldest) && plain.pins == 0
        };
        let expected: Vec<SegmentId> =
            (0..SMALL + LARGE).filter(is_unneeded).map(SegmentId).collect();
        assert_eq!(self.table.reclaimable(oldest), expected);
        for segment in expected {
            self.table.free(segment);
            self.model[segment.0 as usize] = Plain::default();
        }
    }

    fn reload(&mut self) {
        self.pins.clear();
        self.take_records();
        let all = self.table.take_records(true);
        self.table = new_table();
        assert!(self.journal.iter().all(|record| self.table.load_record(record)));
        let last: BTreeMap<_, _> =
            self.journal.iter().map(|record| (record.segment, record)).collect();
        // Records of all segments in use equal those of the last change.
        for record in all.iter().filter(|record| record.kind != SegmentUse::Free) {
            assert_eq!(last[&record.segment], record);
        }
        for (at, plain) in (0u32..).zip(&mut self.model) {
            plain.pins = 0;
            plain.state = match plain.state {
                SegmentState::Free | SegmentState::Emptied(_) => SegmentState::Free,
                SegmentState::Open | SegmentState::Full => SegmentState::Full,
            };
            // Live blocks are counted from the map. The journal may reopen a free segment, whose
            // rows of an earlier use must not count then.
            if plain.state == SegmentState::Free {
                *plain = Plain::default();
            } else {
                self.table.add_live(BlockAddr::new(SegmentId(at), 0), plain.live);
            }
        }
        self.cursor = 0;
    }

    fn check(&self) {
        self.table.for_each(|segment, info| {
            let known = &self.model[segment.0 as usize];
            let is_equal = info.state == known.state
                && (info.kind, info.footer) == (known.kind, known.footer)
                && (info.live, info.rows) == (known.live, known.rows)
                && (info.birth, info.last) == (known.birth, known.last);
            assert!(is_equal, "{segment}: {info:?} is not {known:?}");
        });
        let count = |state: fn(&SegmentState) -> bool| {
            self.model.iter().filter(|plain| state(&plain.state)).count() as u32
        };
        assert_eq!(self.table.free_count(), count(|s| *s == SegmentState::Free));
        let emptied = count(|s| matches!(s, SegmentState::Emptied(_)));
        assert_eq!(self.table.emptied_count(), emptied);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_segment_is_free_that_a_root_or_a_reader_needs(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut rig = Rig::new();
        for step in steps {
            rig.step(step);
            rig.check();
        }
    }
}
