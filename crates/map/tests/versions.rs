//! Snapshots and clones against a model that copies everything.

use std::collections::{BTreeMap, BTreeSet};

use forebay_map::{Delta, ExtentKind, LeafId, MAX_VOLUME_BLOCKS, Map, RESERVED_ADDR};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

/// Blocks that the volumes have, over the border of a segment's worth of markers.
const FIRST: u64 = (1 << 20) - 700;
const SPAN: u64 = 1500;

type Content = BTreeMap<u64, (BlockAddr, u64)>;

/// A volume of the model. Each snapshot has a copy of what it should hold.
#[derive(Clone, Default)]
struct Volume {
    content: Content,
    /// Oldest first: id, content, whether it is being destroyed.
    snapshots: Vec<(VolumeId, Content, bool)>,
    origin: Option<VolumeId>,
    /// Other volumes that wrote blocks which it may have.
    writers: BTreeSet<VolumeId>,
}

struct World {
    map: Map,
    /// The volume that the checksum of each block binds.
    written: BTreeMap<BlockAddr, VolumeId>,
    volumes: BTreeMap<VolumeId, Volume>,
    next_id: u32,
    next_addr: u64,
    alive: BTreeSet<BlockAddr>,
    journal: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Op {
    /// Volume, block, blocks, whether addresses go on from the last ones.
    Write(usize, u64, u64, bool),
    Clear(usize, u64, u64),
    Snapshot(usize),
    /// Volume, snapshot of it.
    Clone(usize, usize),
    /// Volume, snapshot of it.
    Destroy(usize, usize),
    /// Leaves of snapshots being destroyed that are let go.
    LetGo(usize),
    RollBack(usize),
    Promote(usize),
    /// Drops a volume without snapshots.
    Drop(usize),
    Seal,
    /// The cleaner moves a live block.
    Move(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let volume = 0..4usize;
    let blocks = prop_oneof![Just(1), 1..40u64, 1..700u64];
    let lba = FIRST..FIRST + SPAN;
    prop_oneof![
        8 => (volume.clone(), lba.clone(), blocks.clone(), any::<bool>())
            .prop_map(|(v, l, n, on)| Op::Write(v, l, n, on)),
        3 => (volume.clone(), lba, blocks).prop_map(|(v, l, n)| Op::Clear(v, l, n)),
        4 => volume.clone().prop_map(Op::Snapshot),
        2 => (volume.clone(), any::<usize>()).prop_map(|(v, s)| Op::Clone(v, s)),
        3 => (volume.clone(), any::<usize>()).prop_map(|(v, s)| Op::Destroy(v, s)),
        3 => (1..6usize).prop_map(Op::LetGo),
        2 => volume.clone().prop_map(Op::RollBack),
        3 => volume.clone().prop_map(Op::Promote),
        1 => volume.prop_map(Op::Drop),
        2 => Just(Op::Seal),
        2 => any::<usize>().prop_map(Op::Move),
    ]
}

impl World {
    fn new() -> Self {
        let mut map = Map::new();
        map.create_volume(VolumeId(1)).unwrap();
        let volumes = BTreeMap::from([(VolumeId(1), Volume::default())]);
        let (alive, journal, written) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        Self { map, written, volumes, next_id: 2, next_addr: 5 << 20, alive, journal }
    }

    fn pick(&self, index: usize) -> VolumeId {
        *self.volumes.keys().nth(index % self.volumes.len()).unwrap()
    }

    fn link(&mut self, id: VolumeId) {
        let volume = &self.volumes[&id];
        let snapshots: Vec<_> =
            volume.snapshots.iter().map(|(id, _, dying)| (*id, *dying)).collect();
        self.map.set_versions(id, &snapshots, volume.origin);
        self.map.set_writers(id, &volume.writers.iter().copied().collect::<Vec<_>>());
    }

    fn is_origin(&self, snapshot: VolumeId) -> bool {
        self.volumes.values().any(|volume| volume.origin == Some(snapshot))
    }

    fn id(&mut self) -> VolumeId {
        self.next_id += 1;
        VolumeId(self.next_id - 1)
    }

    fn step(&mut self, op: &Op) {
        let mut delta = Delta::new();
        let mut freed = BTreeSet::new();
        let mut free = |addr: BlockAddr, blocks: u32| {
            (0..blocks).for_each(|i| assert!(freed.insert(addr.plus(i)), "freed twice"));
        };
        match *op {
            Op::Write(volume, lba, blocks, goes_on) => {
                self.write((volume, lba, blocks), goes_on, &mut delta, &mut free);
            }
            Op::Clear(volume, lba, blocks) => {
                self.clear((volume, lba, blocks), &mut delta, &mut free);
            }
            Op::Snapshot(volume) => {
                let (id, new) = (self.pick(volume), self.id());
                let volume = self.volumes.get_mut(&id).unwrap();
                if volume.snapshots.len() < 5 {
                    volume.snapshots.push((new, volume.content.clone(), false));
                    self.link(id);
                }
            }
            Op::Clone(volume, snapshot) => {
                let (id, new) = (self.pick(volume), self.id());
                let snapshots = &self.volumes[&id].snapshots;
                let living: Vec<_> = snapshots.iter().filter(|(_, _, dying)| !dying).collect();
                if self.volumes.len() < 4 && !living.is_empty() {
                    let (origin, content, _) = living[snapshot % living.len()].clone();
                    let origin = Some(origin);
                    let clone = Volume { content, origin, ..Volume::default() };
                    self.volumes.insert(new, clone);
                    self.link(new);
                }
            }
            Op::Destroy(volume, snapshot) => {
                let id = self.pick(volume);
                let count = self.volumes[&id].snapshots.len().max(1);
                let victim = self.volumes[&id].snapshots.get(snapshot % count).map(|s| s.0);
                if victim.is_some_and(|victim| !self.is_origin(victim)) {
                    let volume = self.volumes.get_mut(&id).unwrap();
                    volume.snapshots[snapshot % count].2 = true;
                    self.link(id);
                }
            }
            Op::LetGo(leaves) => self.let_go(leaves, &mut delta, &mut free),
            Op::RollBack(volume) => self.roll_back(volume, &mut delta, &mut free),
            Op::Promote(volume) => self.promote(volume, &mut delta),
            Op::Drop(volume) => {
                let id = self.pick(volume);
                if self.volumes.len() > 1 && self.volumes[&id].snapshots.is_empty() {
                    self.volumes.remove(&id);
                    self.map.drop_volume(id, &mut free).unwrap();
                    delta.drop_volume(id);
                }
            }
            Op::Seal => {
                let leaves: Vec<LeafId> = self.map.leaves_from(LeafId::default()).collect();
                for leaf in leaves {
                    self.map.seal(leaf, &mut |segment| segment.0 % 2 == 0);
                }
            }
            Op::Move(index) => self.move_block(index, &mut delta),
        }
        for addr in freed {
            assert!(self.alive.remove(&addr), "freed, but not alive");
        }
        if !delta.is_empty() {
            self.journal.extend(delta.encode(1 << 16));
        }
    }

    fn write(
        &mut self,
        (volume, lba, blocks): (usize, u64, u64),
        goes_on: bool,
        delta: &mut Delta,
        free: &mut impl FnMut(BlockAddr, u32),
    ) {
        let id = self.pick(volume);
        let blocks = blocks.min(FIRST + SPAN - lba);
        self.next_addr += if goes_on { 0 } else { 1 };
        let left = (1 << 20) - self.next_addr % (1 << 20);
        self.next_addr += if left < blocks { left } else { 0 };
        let addr = BlockAddr::from_raw(self.next_addr);
        self.next_addr += blocks;
        let sums: Vec<u64> = (0..blocks).map(|i| (addr.raw() + i) * 7 % (1 << 40)).collect();
        self.map.keep_before_write(id, Lba(lba), blocks, &mut |kept| kept.note_in(delta));
        self.map.set_run(id, Lba(lba), addr, &sums, false, free).unwrap();
        delta.assign(id, Lba(lba), addr, &sums);
        let content = &mut self.volumes.get_mut(&id).unwrap().content;
        for (i, sum) in sums.iter().enumerate() {
            let at = addr.plus(i as u32);
            content.insert(lba + i as u64, (at, *sum));
            self.written.insert(at, id);
            self.alive.insert(at);
        }
    }

    fn clear(
        &mut self,
        (volume, lba, blocks): (usize, u64, u64),
        delta: &mut Delta,
        free: &mut impl FnMut(BlockAddr, u32),
    ) {
        let id = self.pick(volume);
        self.map.keep_before_clear(id, Lba(lba), blocks, &mut |kept| kept.note_in(delta));
        self.map.clear(id, Lba(lba), blocks, free).unwrap();
        delta.clear(id, Lba(lba), blocks);
        self.map.hide_origin(id, Lba(lba), blocks, &mut |kept| kept.note_in(delta));
        let content = &mut self.volumes.get_mut(&id).unwrap().content;
        content.retain(|at, _| *at < lba || *at >= lba + blocks);
    }

    fn let_go(&mut self, leaves: usize, delta: &mut Delta, free: &mut impl FnMut(BlockAddr, u32)) {
        for _ in 0..leaves {
            let dying = self.volumes.iter().find_map(|(id, volume)| {
                let found = volume.snapshots.iter().find(|(_, _, dying)| *dying)?;
                Some((*id, found.0))
            });
            let Some((id, victim)) = dying else { break };
            let gone = self.map.let_go(victim, free, &mut |kept| kept.note_in(delta));
            match gone {
                Some((lba, blocks)) => delta.clear(victim, lba, blocks),
                None => {
                    assert!(self.map.drop_empty(victim));
                    delta.drop_volume(victim);
                    let volume = self.volumes.get_mut(&id).unwrap();
                    volume.snapshots.retain(|(other, _, _)| *other != victim);
                    self.link(id);
                }
            }
        }
    }

    fn roll_back(
        &mut self,
        volume: usize,
        delta: &mut Delta,
        free: &mut impl FnMut(BlockAddr, u32),
    ) {
        let id = self.pick(volume);
        let newest = self.volumes[&id].snapshots.last().cloned();
        if let Some((snapshot, content, false)) = newest {
            while let Some((lba, blocks)) =
                self.map.roll_back(id, free, &mut |kept| kept.note_in(delta))
            {
                delta.clear(snapshot, lba, blocks);
            }
            self.volumes.get_mut(&id).unwrap().content = content;
        }
    }

    fn promote(&mut self, volume: usize, delta: &mut Delta) {
        let id = self.pick(volume);
        let Some(origin) = self.volumes[&id].origin else {
            assert!(self.map.begin_promotion(id).is_none());
            return;
        };
        let mut promotion = self.map.begin_promotion(id).expect("it is a clone");
        while self.map.promote_leaf(&mut promotion, &mut |kept| kept.note_in(delta)) {}
        let parent = promotion.parent();
        self.map.finish_promotion(promotion);
        let mut old = self.volumes.remove(&parent).expect("the parent is there");
        let clone = self.volumes.get_mut(&id).unwrap();
        let at = old.snapshots.iter().position(|s| s.0 == origin).expect("it has the origin");
        let newer = old.snapshots.split_off(at + 1);
        clone.snapshots.splice(0..0, std::mem::replace(&mut old.snapshots, newer));
        clone.origin = old.origin.replace(origin);
        clone.writers.extend(old.writers.iter().chain([&parent]));
        clone.writers.remove(&id);
        self.volumes.insert(parent, old);
        self.link(parent);
        self.link(id);
    }

    fn move_block(&mut self, index: usize, delta: &mut Delta) {
        let mut all = Vec::new();
        self.map.for_each(|home, lba, addr, blocks| {
            all.extend((0..blocks).map(|i| (home, Lba(lba.0 + u64::from(i)), addr.plus(i))));
        });
        if all.is_empty() {
            return;
        }
        let (home, lba, old) = all[index % all.len()];
        self.next_addr += 1;
        let new = BlockAddr::from_raw(self.next_addr);
        self.next_addr += 1;
        let entry = forebay_map::Entry { addr: new, sum: 99 };
        // As the cleaner finds it in a footer, or in the map.
        let writer = if index & 1 == 0 { self.written[&old] } else { home };
        let owner = self.map.replace_if(writer, lba, old, entry).expect("it is live");
        self.written.insert(new, writer);
        delta.assign(owner, lba, new, &[99]);
        self.alive.remove(&old);
        self.alive.insert(new);
        let contents = self.volumes.values_mut().flat_map(|volume| {
            volume.snapshots.iter_mut().map(|s| &mut s.1).chain([&mut volume.content])
        });
        for content in contents {
            if let Some(at) = content.get_mut(&lba.0).filter(|at| at.0 == old) {
                *at = (new, 99);
            }
        }
    }

    /// What a version holds by `lookup_range`, which must agree with `lookup`.
    fn content(&self, map: &Map, version: VolumeId) -> BTreeMap<u64, BlockAddr> {
        let mut found = BTreeMap::new();
        let mut end = 0;
        map.lookup_range(version, Lba(0), MAX_VOLUME_BLOCKS, |extent| {
            assert_eq!(extent.lba.0, end);
            end += extent.blocks;
            if let ExtentKind::Mapped { addr, home, .. } = extent.kind {
                for i in 0..extent.blocks {
                    let at = addr.plus(i as u32);
                    found.insert(extent.lba.0 + i, at);
                    let one = map.lookup(version, Lba(extent.lba.0 + i)).expect("mapped");
                    assert_eq!((one.addr, one.home), (at, home));
                    assert!(map.owner(home, Lba(extent.lba.0 + i), at).is_some());
                    let writer = self.written[&at];
                    assert!(map.owner(writer, Lba(extent.lba.0 + i), at).is_some());
                    let is_right = |volume: &Volume| volume.writers.contains(&writer);
                    assert!(writer == home || is_right(&self.volumes[&home]), "bound to {writer}");
                }
            }
        });
        assert_eq!(end, MAX_VOLUME_BLOCKS);
        found
    }

    fn check(&self, map: &Map) {
        let addrs = |content: &Content| -> BTreeMap<u64, BlockAddr> {
            content.iter().map(|(lba, (addr, _))| (*lba, *addr)).collect()
        };
        let mut seen = BTreeSet::new();
        let mut is_settled = true;
        for (id, volume) in &self.volumes {
            let right = addrs(&volume.content);
            assert_eq!(self.content(map, *id), right, "volume {id}");
            assert_eq!(map.visible_blocks(*id), right.len() as u64);
            assert_eq!(map.is_clone(*id), volume.origin.is_some());
            seen.extend(right.values().copied());
            for (snapshot, content, dying) in &volume.snapshots {
                is_settled &= !dying;
                if !dying {
                    let right = addrs(content);
                    assert_eq!(self.content(map, *snapshot), right, "snapshot {snapshot}");
                    seen.extend(right.values().copied());
                }
            }
            self.check_changes(map, *id);
            let mine = |addr: &BlockAddr| {
                let lba = right.iter().find(|(_, at)| *at == addr).map(|(lba, _)| Lba(*lba));
                map.owner(*id, lba.unwrap(), *addr).is_some_and(|(owner, _)| owner == *id)
            };
            let newest = volume.snapshots.iter().rev().find(|(_, _, dying)| !dying);
            let shared = newest.map_or(0, |(_, content, _)| {
                let held: BTreeSet<_> = content.values().map(|(addr, _)| *addr).collect();
                right.values().filter(|addr| held.contains(addr) && mine(addr)).count()
            });
            assert_eq!(map.shared_blocks(*id), shared as u64, "blocks shared by {id}");
            let own = map.mapped_blocks(*id);
            assert_eq!(map.unshared_within(*id, Lba(0), MAX_VOLUME_BLOCKS), own - shared as u64);
            let alone = right.keys().map(|lba| map.unshared_within(*id, Lba(*lba), 1));
            assert_eq!(alone.sum::<u64>(), own - shared as u64, "asked block by block, {id}");
        }
        if is_settled {
            assert_eq!(seen, self.alive, "what is alive is what some version has");
            for volume in self.volumes.values() {
                for (at, (snapshot, content, _)) in volume.snapshots.iter().enumerate() {
                    let older = at.checked_sub(1).map(|at| &volume.snapshots[at].1);
                    let newer = volume.snapshots.get(at + 1).map_or(&volume.content, |s| &s.1);
                    let clones: Vec<_> =
                        self.volumes.values().filter(|v| v.origin == Some(*snapshot)).collect();
                    if !clones.is_empty() || volume.origin.is_some() {
                        continue;
                    }
                    let others = |lba: &u64, at: &(BlockAddr, u64)| {
                        newer.get(lba) == Some(at) || older.is_some_and(|o| o.get(lba) == Some(at))
                    };
                    let unique = content.iter().filter(|(lba, at)| !others(lba, at)).count() as u64;
                    let (mut counted, mut from) = (0, Lba(0));
                    while let Some((blocks, next)) = map.unique_blocks(*snapshot, from) {
                        (counted, from) = (counted + blocks, next);
                    }
                    assert_eq!(counted, unique, "blocks that only {snapshot} has");
                }
            }
        }
        let mut live = BTreeSet::new();
        map.for_each(|_, _, addr, blocks| {
            assert!(addr.raw() < RESERVED_ADDR && addr.segment() < SegmentId(0xf_fffd));
            live.extend((0..blocks).map(|i| addr.plus(i)));
        });
        assert_eq!(live, self.alive, "each address is in one map");
    }

    /// What differs between two versions of a volume is reported as changed.
    fn check_changes(&self, map: &Map, id: VolumeId) {
        const FROM: u64 = FIRST - 100;
        const BLOCKS: u64 = SPAN + 1000;
        let volume = &self.volumes[&id];
        let living = volume.snapshots.iter().filter(|(_, _, dying)| !dying);
        let all: Vec<_> =
            living.map(|(id, content, _)| (*id, content)).chain([(id, &volume.content)]).collect();
        for (at, (since, before)) in all.iter().enumerate() {
            let same = (*since, *since);
            map.changes(same, Lba(FROM), BLOCKS, &mut |_, changed| assert!(!changed));
            for (until, after) in &all[at + 1..] {
                let mut lba = FROM;
                map.changes((*since, *until), Lba(FROM), BLOCKS, &mut |blocks, changed| {
                    let differs = |lba: &u64| before.get(lba) != after.get(lba);
                    let missed = (lba..lba + blocks).find(|lba| !changed && differs(lba));
                    assert_eq!(missed, None, "from {since} to {until}");
                    lba += blocks;
                });
                assert_eq!(lba, FROM + BLOCKS);
            }
        }
    }

    /// The map that an import makes of the journal.
    fn replayed(&self) -> Map {
        let mut map = Map::new();
        self.journal.iter().for_each(|payload| map.apply(&Delta::decode(payload).unwrap()));
        for (id, volume) in &self.volumes {
            let snapshots: Vec<_> =
                volume.snapshots.iter().map(|(id, _, dying)| (*id, *dying)).collect();
            map.set_versions(*id, &snapshots, volume.origin);
            map.set_writers(*id, &volume.writers.iter().copied().collect::<Vec<_>>());
        }
        map
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn versions_hold_what_they_held(ops in proptest::collection::vec(any_op(), 1..60)) {
        hold(&ops);
    }
}

fn hold(ops: &[Op]) {
    let mut world = World::new();
    for op in ops {
        world.step(op);
        world.check(&world.map);
    }
    world.check(&world.replayed());
}

#[test]
fn versions_hold_what_they_held_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let ops = proptest::collection::vec(any_op(), 30..60);
    TestRunner::new_with_rng(config, drawn)
        .run(&ops, |ops| {
            hold(&ops);
            Ok(())
        })
        .unwrap();
}
