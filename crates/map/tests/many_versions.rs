//! Volumes with hundreds of snapshots against a model that copies what each of them holds: the
//! index of snapshots by leaf must not hide any entry.

use std::collections::BTreeMap;

use forebay_map::{ExtentKind, Map};
use forebay_units::{BlockAddr, Lba, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

const VOLUME: VolumeId = VolumeId(1);
/// Few blocks in three leaves, so that most snapshots have entries in each.
const SPAN: u64 = 1536;
const SPOTS: [u64; 9] = [0, 1, 63, 64, 300, 511, 512, 1000, 1535];

type Content = BTreeMap<u64, BlockAddr>;

struct World {
    map: Map,
    content: Content,
    /// Oldest first: id, what it holds.
    snapshots: Vec<(VolumeId, Content)>,
    next_id: u32,
    next_addr: u64,
}

#[derive(Clone, Debug)]
enum Op {
    /// Spot, blocks.
    Write(usize, u64),
    Clear(usize, u64),
    Snapshot,
    /// A range of snapshots.
    Destroy(usize, usize),
    RollBack,
    /// Everything is linked anew, as at an import.
    Relink,
}

fn any_op() -> impl Strategy<Value = Op> {
    let (spot, blocks) = (0..SPOTS.len(), prop_oneof![4 => 1..3u64, 1 => 1..600u64]);
    prop_oneof![
        30 => (spot.clone(), blocks.clone()).prop_map(|(spot, n)| Op::Write(spot, n)),
        4 => (spot, blocks).prop_map(|(spot, n)| Op::Clear(spot, n)),
        40 => Just(Op::Snapshot),
        1 => (any::<usize>(), 1..60usize).prop_map(|(at, n)| Op::Destroy(at, n)),
        1 => Just(Op::RollBack),
        1 => Just(Op::Relink),
    ]
}

impl World {
    fn new() -> Self {
        let mut map = Map::new();
        map.create_volume(VOLUME).unwrap();
        let (content, snapshots) = (Content::new(), Vec::new());
        Self { map, content, snapshots, next_id: 2, next_addr: 5 << 20 }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Write(spot, blocks) => self.write(SPOTS[spot], blocks),
            Op::Clear(spot, blocks) => {
                let lba = SPOTS[spot];
                self.map.keep_before_clear(VOLUME, Lba(lba), blocks, &mut |_| {});
                self.map.clear(VOLUME, Lba(lba), blocks, &mut |_, _| {}).unwrap();
                self.content.retain(|at, _| *at < lba || *at >= lba + blocks);
            }
            Op::Snapshot => {
                let id = VolumeId(self.next_id);
                self.next_id += 1;
                self.map.add_snapshot(VOLUME, id);
                self.snapshots.push((id, self.content.clone()));
            }
            Op::Destroy(at, count) => self.destroy(at, count),
            Op::RollBack => {
                if let Some((_, content)) = self.snapshots.last() {
                    while self.map.roll_back(VOLUME, &mut |_, _| {}, &mut |_| {}).is_some() {}
                    self.content = content.clone();
                }
            }
            Op::Relink => {
                self.map.set_versions(VOLUME, &[], None);
                self.link(&[]);
            }
        }
    }

    fn write(&mut self, lba: u64, blocks: u64) {
        let addr = BlockAddr::from_raw(self.next_addr);
        let blocks = blocks.min(SPAN - lba);
        self.next_addr += blocks + 1;
        let sums = vec![7; blocks as usize];
        self.map.keep_before_write(VOLUME, Lba(lba), blocks, &mut |_| {});
        self.map.set_run(VOLUME, Lba(lba), addr, &sums, false, &mut |_, _| {}).unwrap();
        self.content.extend((0..blocks).map(|i| (lba + i, addr.plus(i as u32))));
    }

    fn link(&mut self, dying: &[VolumeId]) {
        let all: Vec<_> = self.snapshots.iter().map(|(id, _)| (*id, dying.contains(id))).collect();
        self.map.set_versions(VOLUME, &all, None);
    }

    fn destroy(&mut self, at: usize, count: usize) {
        if self.snapshots.is_empty() {
            return;
        }
        let from = at % self.snapshots.len();
        let to = (from + count).min(self.snapshots.len());
        let dying: Vec<VolumeId> = self.snapshots[from..to].iter().map(|(id, _)| *id).collect();
        self.link(&dying);
        for id in dying {
            while self.map.let_go(id, &mut |_, _| {}, &mut |_| {}).is_some() {}
            assert!(self.map.drop_empty(id));
        }
        self.snapshots.drain(from..to);
    }

    fn check(&self) {
        for (at, (id, right)) in self.snapshots.iter().enumerate() {
            let mut found = Content::new();
            self.map.lookup_range(*id, Lba(0), 2 * SPAN, |extent| {
                if let ExtentKind::Mapped { addr, .. } = extent.kind {
                    let blocks =
                        (0..extent.blocks).map(|i| (extent.lba.0 + i, addr.plus(i as u32)));
                    found.extend(blocks);
                }
            });
            assert_eq!(&found, right, "snapshot {at} of {}", self.snapshots.len());
            for spot in SPOTS {
                let one = self.map.lookup(*id, Lba(spot)).map(|found| found.addr);
                assert_eq!(one.as_ref(), right.get(&spot), "block {spot} of snapshot {at}");
                let owner = one.map(|addr| self.map.owner(VOLUME, Lba(spot), addr));
                assert!(owner != Some(None), "block {spot} of snapshot {at} has no owner");
            }
            assert_eq!(self.map.visible_blocks(*id), right.len() as u64);
            self.check_changes(*id, right);
        }
    }

    fn check_changes(&self, since: VolumeId, before: &Content) {
        let newest = self.snapshots.last().expect("it has the one that is checked");
        for (until, after) in [newest, &(VOLUME, self.content.clone())] {
            let mut lba = 0;
            self.map.changes((since, *until), Lba(0), SPAN, &mut |blocks, changed| {
                let differs = |lba: &u64| before.get(lba) != after.get(lba);
                let missed = (lba..lba + blocks).find(|lba| !changed && differs(lba));
                assert_eq!(missed, None, "from {since} to {until}");
                lba += blocks;
            });
            assert_eq!(lba, SPAN);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn each_of_hundreds_of_snapshots_holds_what_it_held(
        ops in proptest::collection::vec(any_op(), 100..900),
    ) {
        hold(&ops);
    }
}

fn hold(ops: &[Op]) {
    let mut world = World::new();
    for (at, op) in ops.iter().enumerate() {
        world.step(op);
        if at % 151 == 0 || matches!(op, Op::Destroy(..) | Op::Relink) {
            world.check();
        }
    }
    world.check();
}

#[test]
fn each_of_many_snapshots_holds_what_it_held_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let ops = proptest::collection::vec(any_op(), 200..300);
    TestRunner::new_with_rng(config, drawn)
        .run(&ops, |ops| {
            hold(&ops);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_block_that_one_of_many_newer_snapshots_has_is_found() {
    let mut world = World::new();
    world.write(0, 200);
    for lba in 0..200 {
        world.step(&Op::Snapshot);
        // Of this block only this snapshot has an entry.
        world.write(lba, 1);
    }
    let (oldest, content) = &world.snapshots[0];
    for lba in 0..200 {
        let found = world.map.lookup(*oldest, Lba(lba)).map(|found| found.addr);
        assert_eq!(found.as_ref(), content.get(&lba), "block {lba}");
    }
}
