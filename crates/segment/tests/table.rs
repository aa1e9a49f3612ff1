//! The table of segments against the plainest model there is: no segment is given away that a root
//! or a reader still needs, and the records of the journal give the table back.

use std::collections::BTreeMap;

use forebay_format::journal::SegmentRecord;
use forebay_segment::{Choice, Pin, SegmentKind, SegmentState, SegmentTable, Victims};
use forebay_units::{BlockAddr, CommitId, SegmentId};
use proptest::prelude::*;

const SMALL: u32 = 5;
const LARGE: u32 = 7;

#[derive(Clone, Debug)]
enum Step {
    /// Takes a segment, when more than so many are free.
    Allocate {
        map: bool,
        keep: u32,
    },
    /// Ends the n-th open one.
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
    /// A root; then what it and the one before it no longer need is freed.
    Commit {
        tight: bool,
    },
    /// A crash: the table comes back from the records.
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

fn table() -> std::rc::Rc<SegmentTable> {
    let table = SegmentTable::new();
    table.add_group(SMALL, 20);
    table.add_group(LARGE, 100);
    table
}

fn check(table: &SegmentTable, model: &[Plain]) -> Result<(), TestCaseError> {
    let mut seen = Vec::new();
    table.for_each(|segment, info| {
        let known = &model[segment.0 as usize];
        let same = info.state == known.state
            && (info.kind, info.footer) == (known.kind, known.footer)
            && (info.live, info.rows) == (known.live, known.rows)
            && (info.birth, info.last) == (known.birth, known.last)
            && info.is_pinned() == (known.pins > 0);
        seen.push((same, segment, *known));
    });
    for (same, segment, known) in seen {
        prop_assert!(same, "{segment}: {:?} is not {known:?}", table.get(segment));
    }
    let count = |state: fn(&SegmentState) -> bool| {
        model.iter().filter(|plain| state(&plain.state)).count() as u32
    };
    prop_assert_eq!(table.free_count(), count(|s| *s == SegmentState::Free));
    let emptied = count(|s| matches!(s, SegmentState::Emptied(_)));
    prop_assert_eq!(table.emptied_count(), emptied);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_segment_is_free_that_somebody_needs(steps in prop::collection::vec(step(), 1..120)) {
        let mut table = table();
        let mut model = vec![Plain::default(); (SMALL + LARGE) as usize];
        let mut journal: BTreeMap<SegmentId, SegmentRecord> = BTreeMap::new();
        let mut pins: Vec<(u32, Pin)> = Vec::new();
        let mut commit = CommitId(1);
        let mut cursor = 0u32;
        for step in steps {
            let pick = |nth: usize, fits: &dyn Fn(&Plain) -> bool| {
                let all: Vec<u32> = (0..SMALL + LARGE).filter(|s| fits(&model[*s as usize])).collect();
                (!all.is_empty()).then(|| all[nth % all.len()])
            };
            let in_use = |p: &Plain| matches!(p.state, SegmentState::Open | SegmentState::Full);
            match step {
                Step::Allocate { map, keep } => {
                    let kind = if map { SegmentKind::Map } else { SegmentKind::Data };
                    let free: Vec<u32> = (0..SMALL + LARGE)
                        .filter(|s| model[*s as usize].state == SegmentState::Free)
                        .collect();
                    let got = table.allocate(kind, 3, commit, 9, keep);
                    // The next one after the last, and round.
                    let next = free.iter().find(|s| **s >= cursor).or(free.first());
                    let next = next.filter(|_| free.len() as u32 > keep);
                    prop_assert_eq!(got.map(|s| s.0), next.copied());
                    if let Some(next) = next.copied() {
                        cursor = next + 1;
                        let (birth, last) = (commit.0, commit.0);
                        let state = SegmentState::Open;
                        model[next as usize] = Plain { state, kind, birth, last, ..Plain::default() };
                    }
                }
                Step::Close { nth, footer } => {
                    if let Some(at) = pick(nth, &|p| p.state == SegmentState::Open) {
                        table.close(SegmentId(at), footer);
                        model[at as usize].state = SegmentState::Full;
                        model[at as usize].footer = footer;
                    }
                }
                Step::Live { nth, blocks } => {
                    if let Some(at) = pick(nth, &|p| in_use(p) && p.kind == SegmentKind::Data) {
                        table.add_live(BlockAddr::new(SegmentId(at), 0), blocks);
                        model[at as usize].live += blocks;
                    }
                }
                Step::Die { nth, blocks } => {
                    if let Some(at) = pick(nth, &|p| in_use(p) && p.live > 0) {
                        let blocks = blocks.min(model[at as usize].live);
                        table.sub_live(BlockAddr::new(SegmentId(at), 0), blocks);
                        model[at as usize].live -= blocks;
                    }
                }
                Step::Wrote { nth, rows } => {
                    if let Some(at) = pick(nth, &|p| p.state == SegmentState::Open) {
                        table.wrote(SegmentId(at), rows, commit);
                        let plain = &mut model[at as usize];
                        plain.rows = plain.rows.max(rows);
                        plain.last = plain.last.max(commit.0);
                    }
                }
                Step::Pin { nth } => {
                    // Readers come by the map: it points at nothing that is empty.
                    if let Some(at) = pick(nth, &in_use) {
                        pins.push((at, table.pin(SegmentId(at))));
                        model[at as usize].pins += 1;
                    }
                }
                Step::Unpin { nth } => {
                    if !pins.is_empty() {
                        let (at, pin) = pins.swap_remove(nth % pins.len());
                        drop(pin);
                        model[at as usize].pins -= 1;
                    }
                }
                Step::RetireMap { nth } => {
                    let full = |p: &Plain| p.state == SegmentState::Full;
                    if let Some(at) = pick(nth, &|p| full(p) && p.kind == SegmentKind::Map) {
                        table.retire_map(SegmentId(at), commit);
                        model[at as usize].state = SegmentState::Emptied(commit);
                    }
                }
                Step::Commit { tight } => {
                    let worth = |s: &u32| {
                        let (p, blocks) = (&model[*s as usize], table.data_blocks(SegmentId(*s)));
                        let full = p.state == SegmentState::Full && p.kind == SegmentKind::Data;
                        full && p.last <= commit.0 && p.live > 0 && p.live < blocks
                    };
                    let share = |s: u32| {
                        let blocks = table.data_blocks(SegmentId(s));
                        f64::from(model[s as usize].live) / f64::from(blocks)
                    };
                    let mut least: Vec<f64> = (0..SMALL + LARGE).filter(worth).map(share).collect();
                    least.sort_by(f64::total_cmp);
                    let victims: Vec<f64> =
                        Victims::of(&table, commit, Choice::Emptiest).map(|v| share(v.segment.0)).collect();
                    prop_assert_eq!(victims, least, "the emptiest first");
                    let mut emptied = 0;
                    for plain in &mut model {
                        let dead = plain.live == 0 && plain.kind == SegmentKind::Data;
                        if plain.state == SegmentState::Full && dead {
                            plain.state = SegmentState::Emptied(commit);
                            emptied += 1;
                        }
                    }
                    prop_assert_eq!(table.collect_empty(commit).len(), emptied);
                    for record in table.take_records(false) {
                        journal.insert(record.segment, record);
                    }
                    // The root is there; the one before it stays readable unless space is short.
                    let oldest = if tight { commit } else { CommitId(commit.0 - 1) };
                    commit = commit.next();
                    let goes = |p: &Plain| {
                        matches!(p.state, SegmentState::Emptied(at) if at <= oldest) && p.pins == 0
                    };
                    let expected: Vec<SegmentId> = (0..SMALL + LARGE)
                        .filter(|s| goes(&model[*s as usize]))
                        .map(SegmentId)
                        .collect();
                    prop_assert_eq!(&table.reclaimable(oldest), &expected);
                    for segment in expected {
                        table.free(segment);
                        model[segment.0 as usize] = Plain::default();
                    }
                }
                Step::Reload => {
                    pins.clear();
                    for record in table.take_records(false) {
                        journal.insert(record.segment, record);
                    }
                    let all = table.take_records(true);
                    table = self::table();
                    for record in journal.values() {
                        prop_assert!(table.load_record(record));
                    }
                    for plain in &mut model {
                        plain.pins = 0;
                        match plain.state {
                            SegmentState::Free | SegmentState::Emptied(_) => {
                                // What a free one held before does not count.
                                *plain = Plain { state: SegmentState::Free, ..*plain };
                            }
                            SegmentState::Open | SegmentState::Full => {
                                plain.state = SegmentState::Full;
                            }
                        }
                    }
                    // Records of all that is in use say no less than those of each change.
                    for record in all.iter().filter(|record| record.kind != 0) {
                        prop_assert_eq!(&journal[&record.segment], record);
                    }
                    // What lives is counted from the map.
                    for (at, plain) in (0u32..).zip(&mut model) {
                        let info = table.get(SegmentId(at));
                        if plain.state == SegmentState::Free {
                            prop_assert_eq!(info.state, SegmentState::Free);
                            let (kind, footer) = (info.kind, info.footer);
                            let (rows, birth, last) = (info.rows, info.birth, info.last);
                            *plain = Plain { kind, footer, rows, birth, last, ..Plain::default() };
                        } else {
                            table.add_live(BlockAddr::new(SegmentId(at), 0), plain.live);
                        }
                    }
                    cursor = 0;
                }
            }
            check(&table, &model)?;
        }
    }
}
