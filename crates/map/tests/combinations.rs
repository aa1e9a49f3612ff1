//! Every combination of what six times can be done to a block of a volume, its snapshots, and a
//! clone: it is left as it is, written or cleared. Each block of the volumes has a combination.

use std::collections::{BTreeMap, BTreeSet};

use forebay_map::{Delta, ExtentKind, Map};
use forebay_units::{BlockAddr, Lba, VolumeId};

/// The volume that another may be a clone of, and the snapshot of it.
const GRAND: VolumeId = VolumeId(1);
const ORIGIN: VolumeId = VolumeId(2);
const PARENT: VolumeId = VolumeId(3);
const CLONE: VolumeId = VolumeId(4);
/// Snapshots of the parent, oldest first. The clone is one of the second.
const OF_PARENT: [VolumeId; 3] = [VolumeId(11), VolumeId(12), VolumeId(13)];
const OF_CLONE: VolumeId = VolumeId(21);

/// The first block: so that there is a border between leaves, and one of a segment's markers.
const FIRST: u64 = (1 << 20) - 700;
const STEPS: u32 = 6;
/// For every combination a block that the volume of the origin has, and one that it has not.
const BLOCKS: u64 = 2 * 3u64.pow(STEPS);

type Content = BTreeMap<u64, BlockAddr>;

struct Volume {
    content: Content,
    /// Oldest first, each with whether it is being destroyed.
    snapshots: Vec<(VolumeId, Content, bool)>,
    origin: Option<VolumeId>,
    writers: Vec<VolumeId>,
}

struct World {
    map: Map,
    delta: Delta,
    volumes: BTreeMap<VolumeId, Volume>,
    alive: BTreeSet<BlockAddr>,
    next_addr: u64,
}

impl World {
    fn new(parent_is_clone: bool) -> Self {
        let mut world = Self {
            map: Map::new(),
            delta: Delta::new(),
            volumes: BTreeMap::new(),
            alive: BTreeSet::new(),
            next_addr: 7 << 20,
        };
        world.add(GRAND, None, Content::new());
        (0..BLOCKS).filter(|block| block % 2 == 0).for_each(|at| world.write(GRAND, FIRST + at));
        world.snapshot(GRAND, ORIGIN);
        match parent_is_clone {
            true => world.add(PARENT, Some(ORIGIN), world.volumes[&GRAND].content.clone()),
            false => world.add(PARENT, None, Content::new()),
        }
        for (step, snapshot) in OF_PARENT.into_iter().enumerate() {
            world.step(PARENT, step as u32);
            world.snapshot(PARENT, snapshot);
        }
        world.step(PARENT, 3);
        let content = world.volumes[&PARENT].snapshots[1].1.clone();
        world.add(CLONE, Some(OF_PARENT[1]), content);
        world.step(CLONE, 4);
        world.snapshot(CLONE, OF_CLONE);
        world.step(CLONE, 5);
        world
    }

    fn add(&mut self, id: VolumeId, origin: Option<VolumeId>, content: Content) {
        let volume = Volume { content, snapshots: Vec::new(), origin, writers: Vec::new() };
        self.volumes.insert(id, volume);
        self.link(id);
    }

    fn link(&mut self, id: VolumeId) {
        let volume = &self.volumes[&id];
        let snapshots: Vec<_> =
            volume.snapshots.iter().map(|(id, _, dying)| (*id, *dying)).collect();
        self.map.set_versions(id, &snapshots, volume.origin);
        self.map.set_writers(id, &volume.writers);
    }

    fn snapshot(&mut self, id: VolumeId, snapshot: VolumeId) {
        self.map.add_snapshot(id, snapshot);
        let volume = self.volumes.get_mut(&id).unwrap();
        volume.snapshots.push((snapshot, volume.content.clone(), false));
    }

    /// Does to each block of a volume what its combination says.
    fn step(&mut self, id: VolumeId, step: u32) {
        for block in 0..BLOCKS {
            match block / 2 / 3u64.pow(step) % 3 {
                0 => {}
                1 => self.write(id, FIRST + block),
                _ => self.clear(id, FIRST + block),
            }
        }
    }

    fn write(&mut self, id: VolumeId, lba: u64) {
        let Self { map, delta, alive, .. } = self;
        let addr = BlockAddr::from_raw(self.next_addr);
        // Some follow each other.
        self.next_addr += 1 + lba % 5 / 4;
        alive.insert(addr);
        map.keep_before_write(id, Lba(lba), 1, &mut |kept| kept.note_in(delta));
        let free = &mut |addr, blocks| free(alive, addr, blocks);
        map.set_run(id, Lba(lba), addr, &[addr.raw()], false, free).unwrap();
        delta.assign(id, Lba(lba), addr, &[addr.raw()]);
        self.volumes.get_mut(&id).unwrap().content.insert(lba, addr);
    }

    fn clear(&mut self, id: VolumeId, lba: u64) {
        let Self { map, delta, alive, .. } = self;
        map.keep_before_clear(id, Lba(lba), 1, &mut |kept| kept.note_in(delta));
        let free = &mut |addr, blocks| free(alive, addr, blocks);
        map.clear(id, Lba(lba), 1, free).unwrap();
        delta.clear(id, Lba(lba), 1);
        map.hide_origin(id, Lba(lba), 1, &mut |kept| kept.note_in(delta));
        self.volumes.get_mut(&id).unwrap().content.remove(&lba);
    }

    /// A clone and its parent change places.
    fn promote(&mut self, clone: VolumeId) {
        let mut promotion = self.map.begin_promotion(clone).expect("it is a clone");
        let parent = promotion.parent();
        while self.map.promote_leaf(&mut promotion, &mut |kept| kept.note_in(&mut self.delta)) {}
        self.map.finish_promotion(promotion);
        let mut old = self.volumes.remove(&parent).unwrap();
        let new = self.volumes.get_mut(&clone).unwrap();
        let origin = new.origin.unwrap();
        let at = old.snapshots.iter().position(|s| s.0 == origin).unwrap();
        let newer = old.snapshots.split_off(at + 1);
        new.snapshots.splice(0..0, std::mem::replace(&mut old.snapshots, newer));
        new.origin = old.origin.replace(origin);
        new.writers = vec![parent];
        self.volumes.insert(parent, old);
        self.link(parent);
        self.link(clone);
    }

    fn destroy(&mut self, id: VolumeId, at: usize) {
        self.volumes.get_mut(&id).unwrap().snapshots[at].2 = true;
        self.link(id);
        self.check(&self.map);
        let Self { map, delta, alive, .. } = self;
        let victim = self.volumes[&id].snapshots[at].0;
        let free = &mut |addr, blocks| free(alive, addr, blocks);
        while let Some((lba, blocks)) = map.let_go(victim, free, &mut |kept| kept.note_in(delta)) {
            delta.clear(victim, lba, blocks);
        }
        assert!(map.drop_empty(victim));
        self.volumes.get_mut(&id).unwrap().snapshots.remove(at);
        self.link(id);
    }

    fn roll_back(&mut self, id: VolumeId) {
        let Self { map, delta, alive, .. } = self;
        let (snapshot, content, _) = self.volumes[&id].snapshots.last().unwrap().clone();
        let free = &mut |addr, blocks| free(alive, addr, blocks);
        while let Some((lba, blocks)) = map.roll_back(id, free, &mut |kept| kept.note_in(delta)) {
            delta.clear(snapshot, lba, blocks);
        }
        self.volumes.get_mut(&id).unwrap().content = content;
    }

    /// Every living version has what it should have, and nothing else is alive.
    fn check(&self, map: &Map) {
        let (mut seen, mut is_settled) = (BTreeSet::new(), true);
        for (id, volume) in &self.volumes {
            let living = volume.snapshots.iter().filter(|(_, _, dying)| !dying);
            is_settled &= volume.snapshots.iter().all(|(_, _, dying)| !dying);
            let all = living.map(|(id, content, _)| (id, content)).chain([(id, &volume.content)]);
            for (version, content) in all.clone() {
                check_version(map, *version, content);
                seen.extend(content.values().copied());
            }
            let newest = all.rev().nth(1).map(|(_, content)| content);
            let is_own = |lba: u64, addr: BlockAddr| {
                map.owner(*id, Lba(lba), addr).is_some_and(|(owner, _)| owner == *id)
            };
            let own = || volume.content.iter().filter(|(lba, addr)| is_own(**lba, **addr));
            let shared =
                own().filter(|(lba, addr)| newest.is_some_and(|n| n.get(lba) == Some(addr)));
            let shared = shared.count() as u64;
            assert_eq!(map.shared_blocks(*id), shared, "blocks shared by {id}");
            assert_eq!(map.mapped_blocks(*id), own().count() as u64, "blocks of {id}");
            let unshared = map.unshared_within(*id, Lba(0), FIRST * 2);
            assert_eq!(unshared, own().count() as u64 - shared, "{id}");
            let alone = volume.content.keys().map(|lba| map.unshared_within(*id, Lba(*lba), 1));
            assert_eq!(alone.sum::<u64>(), unshared, "{id}, block by block");
        }
        let mut live = Vec::new();
        map.for_each(|home, lba, addr, blocks| {
            for at in 0..blocks {
                let (lba, addr) = (Lba(lba.0 + u64::from(at)), addr.plus(at));
                assert!(map.owner(home, lba, addr).is_some());
                live.push(addr);
            }
        });
        let count = live.len();
        let live = BTreeSet::from_iter(live);
        assert_eq!(live.len(), count, "an address is in one map");
        assert!(live.is_superset(&seen));
        if is_settled {
            assert!(live == seen && live == self.alive, "what is alive is what some version has");
        }
    }

    /// The map that an import makes of the journal.
    fn check_replayed(&self) {
        let mut map = Map::new();
        for payload in self.delta.encode(1 << 16) {
            map.apply(&Delta::decode(&payload).unwrap());
        }
        for (id, volume) in &self.volumes {
            let snapshots: Vec<_> = volume.snapshots.iter().map(|(id, _, d)| (*id, *d)).collect();
            map.set_versions(*id, &snapshots, volume.origin);
            map.set_writers(*id, &volume.writers);
        }
        self.check(&map);
    }
}

fn free(alive: &mut BTreeSet<BlockAddr>, addr: BlockAddr, blocks: u32) {
    (0..blocks).for_each(|at| assert!(alive.remove(&addr.plus(at)), "{addr} is freed twice"));
}

fn check_version(map: &Map, version: VolumeId, content: &Content) {
    let mut found = Content::new();
    let mut end = FIRST - 5;
    map.lookup_range(version, Lba(FIRST - 5), BLOCKS + 2000, |extent| {
        assert_eq!(extent.lba.0, end);
        end += extent.blocks;
        if let ExtentKind::Mapped { addr, sums, .. } = extent.kind {
            for (at, sum) in sums.iter().enumerate() {
                let addr = addr.plus(at as u32);
                assert_eq!(sum, Some(addr.raw()));
                found.insert(extent.lba.0 + at as u64, addr);
            }
        }
    });
    assert_eq!(end, FIRST + BLOCKS + 1995);
    assert!(found == *content, "what {version} holds");
    for lba in FIRST..FIRST + BLOCKS {
        let one = map.lookup(version, Lba(lba)).map(|found| found.addr);
        assert_eq!(one.as_ref(), content.get(&lba), "block {lba} of {version}");
    }
    assert_eq!(map.visible_blocks(version), content.len() as u64);
}

fn promote_and_destroy(mut world: World) {
    world.check(&world.map);
    world.check_replayed();
    // There, and back again.
    for clone in [CLONE, PARENT] {
        world.promote(clone);
        world.check(&world.map);
    }
    world.check_replayed();
    world.roll_back(PARENT);
    for (volume, at) in [(PARENT, 2), (CLONE, 0), (PARENT, 0)] {
        world.destroy(volume, at);
        world.check(&world.map);
    }
    world.check_replayed();
}

#[test]
fn versions_hold_what_they_held_whatever_was_done_to_a_block() {
    promote_and_destroy(World::new(false));
}

#[test]
fn versions_of_a_clones_clone_hold_what_they_held_whatever_was_done_to_a_block() {
    promote_and_destroy(World::new(true));
}

#[test]
fn snapshots_go_in_any_order() {
    for at in [0, 1, 2] {
        let mut world = World::new(true);
        // The clone holds the second snapshot no more.
        world.map.drop_volume(CLONE, &mut |addr, n| free(&mut world.alive, addr, n)).unwrap();
        let gone = world.volumes.remove(&CLONE).unwrap();
        world.map.drop_volume(OF_CLONE, &mut |addr, n| free(&mut world.alive, addr, n)).unwrap();
        assert_eq!(gone.snapshots.len(), 1);
        for snapshot in [CLONE, OF_CLONE] {
            world.delta.drop_volume(snapshot);
        }
        world.check(&world.map);
        world.destroy(PARENT, at);
        world.check(&world.map);
        world.roll_back(PARENT);
        world.check(&world.map);
        world.destroy(PARENT, at / 2);
        world.check(&world.map);
        world.destroy(PARENT, 0);
        world.check(&world.map);
        world.check_replayed();
    }
}
