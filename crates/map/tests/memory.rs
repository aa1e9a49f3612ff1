//! The map's count of its memory against the allocator's count, and the design's bounds on it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_map::{LEAF_BLOCKS, LeafId, Map};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

struct Counted;

thread_local! {
    /// What this thread has taken. Each test has a thread of its own.
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that a common allocator takes: one more word, in multiples of 16, at least 32.
fn taken(len: usize) -> u64 {
    (len as u64 + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get().wrapping_add(taken(layout.size())));
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(taken(layout.size())));
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const VOLUME: VolumeId = VolumeId(3);
/// Blocks of 8 GiB: enough leaves that fixed costs do not matter.
const BLOCKS: u64 = 1 << 21;
const TIB_BLOCKS: u64 = 1 << 28;
/// Segments of 64 MiB, so that a TiB has 2¹⁴ segments.
const SEGMENT_BLOCKS: u64 = 1 << 14;

fn addr(index: u64) -> BlockAddr {
    BlockAddr::new(SegmentId((index / SEGMENT_BLOCKS) as u32), (index % SEGMENT_BLOCKS) as u32)
}

struct World {
    map: Map,
    before: u64,
    written: u64,
}

impl World {
    fn new() -> Self {
        let before = BYTES.get();
        let mut map = Map::new();
        map.create_volume(VOLUME).unwrap();
        Self { map, before, written: 0 }
    }

    fn set(&mut self, lba: u64, sums: &[u64], on_media: bool) {
        let to = addr(self.written);
        self.map.set_run(VOLUME, Lba(lba), to, sums, on_media, &mut |_, _| {}).unwrap();
        self.written += sums.len() as u64;
    }

    /// The map's count, after a comparison with the allocator's.
    fn memory_bytes(&self) -> u64 {
        let counted = self.map.memory_bytes();
        let real = BYTES.get().wrapping_sub(self.before);
        assert!(counted >= real, "{counted} bytes counted, {real} taken");
        let limit = real as f64 * 1.02 + 2000.0;
        assert!(counted as f64 <= limit, "{counted} bytes counted, {real} taken");
        counted
    }

    /// All block numbers below [`BLOCKS`], once each, shuffled.
    fn shuffled(round: u64) -> impl Iterator<Item = u64> {
        (0..BLOCKS).map(move |i| {
            let mixed = (i + round).wrapping_mul(0x9e37_79b1) % BLOCKS;
            (mixed ^ mixed >> 11).wrapping_mul(0x85eb_ca6b) % BLOCKS
        })
    }
}

/// A map of few leaves, whose trees have one node each: then the count is exact but for the unused
/// items of these nodes.
struct Small {
    map: Map,
    before: u64,
}

impl Small {
    fn check(&self, what: &str) {
        let (real, counted) = (BYTES.get().wrapping_sub(self.before), self.map.memory_bytes());
        let exact = real..real + 400 * self.map.volumes().count() as u64 + 300;
        assert!(exact.contains(&counted), "{what}: {counted} bytes counted, {real} taken");
    }

    fn set(&mut self, lba: u64, addr: u64, blocks: usize) {
        let addr = BlockAddr::new(SegmentId((addr >> 20) as u32), addr as u32 & 0xf_ffff);
        let sums = [9; 512];
        self.map.keep_before_write(VOLUME, Lba(lba), blocks as u64, &mut |_| {});
        self.map.set_run(VOLUME, Lba(lba), addr, &sums[..blocks], false, &mut |_, _| {}).unwrap();
    }
}

#[test]
fn memory_count_of_a_small_map_is_exact() {
    let mut small = Small { before: BYTES.get(), map: Map::new() };
    small.map.create_volume(VOLUME).unwrap();
    let leaf = u64::from(LEAF_BLOCKS);
    // One leaf in each of its forms.
    for block in 0..512 {
        small.set(block * 37 % 512, 9000 - 2 * block, 1);
        small.check("a leaf that fills");
    }
    small.set(100, 1 << 38, 1);
    small.check("a leaf of wide addresses");
    small.set(0, 70_000, 512);
    small.check("a leaf of one run");
    small.map.seal(LeafId { volume: VOLUME, leaf: 0 }, &mut |_| true);
    small.check("a sealed leaf");
    small.set(0, 90_000, 30);
    small.check("runs");
    // Pages that fill, in the tree and as arrays, and more lists than one.
    for number in (0..300).chain(4000..4300) {
        small.set(number * leaf + 7, 100_000 + 2 * number, 1);
        small.check("leaves that are added");
    }
    for number in (0..300).filter(|number| number % 7 != 0).rev() {
        small.map.clear(VOLUME, Lba(number * leaf), leaf, &mut |_, _| {}).unwrap();
        small.check("leaves that go");
    }
    // Snapshots with a block of the same leaf: few, and so many that the index says which blocks.
    for number in 0..70 {
        small.map.add_snapshot(VOLUME, VolumeId(100 + number));
        small.set(7 + u64::from(number % 3), 200_000 + 2 * u64::from(number), 1);
    }
    let gone = (0..69).filter(|number| number % 33 != 0);
    for number in gone {
        let id = VolumeId(100 + number);
        while small.map.let_go(id, &mut |_, _| {}, &mut |_| {}).is_some() {}
        assert!(small.map.drop_empty(id));
    }
    small.map.set_versions(VOLUME, &[100, 133, 166, 169].map(|id| (VolumeId(id), false)), None);
    small.check("four snapshots");
    small.map.drop_volume(VOLUME, &mut |_, _| {}).unwrap();
    small.check("a volume that is dropped");
}

#[test]
fn memory_count_has_the_pages_of_a_chapter() {
    let mut small = Small { before: BYTES.get(), map: Map::new() };
    small.map.create_volume(VOLUME).unwrap();
    let leaf = u64::from(LEAF_BLOCKS);
    let first = |page: u64| ((1 << 15) + page * 64) * leaf;
    // In an order in which pages come before others, and so many that they lie in an array.
    for page in (0..90).map(|page| page * 37 % 90) {
        (0..64).for_each(|number| small.set(first(page) + number * leaf, 5000 + 2 * number, 1));
        small.check("pages that are added");
    }
    for page in (0..90).map(|page| page * 53 % 90) {
        small.map.clear(VOLUME, Lba(first(page)), 64 * leaf, &mut |_, _| {}).unwrap();
        small.check("pages that go");
    }
}

#[test]
fn memory_count_has_the_volumes_that_have_anothers_blocks() {
    let mut small = Small { before: BYTES.get(), map: Map::new() };
    small.map.create_volume(VOLUME).unwrap();
    for heir in 0..400 {
        small.map.set_writers(VolumeId(heir), &[VOLUME, VolumeId(1 + heir % 2)]);
    }
    small.check("writers with many heirs");
    (0..400).for_each(|heir| small.map.set_writers(VolumeId(heir), &[]));
    small.check("writers without heirs");
}

#[test]
fn memory_count_of_snapshots_has_their_index() {
    let mut small = Small { before: BYTES.get(), map: Map::new() };
    small.map.create_volume(VOLUME).unwrap();
    for number in 0..80 {
        small.map.add_snapshot(VOLUME, VolumeId(100 + number));
        for leaf in 0..200 {
            small.set(leaf * u64::from(LEAF_BLOCKS) + 7, 1000 + 2 * leaf, 1);
        }
        if [1, 7, 9, 63, 79].contains(&number) {
            // Nodes of trees may have more items than the fewest.
            let (real, counted) =
                (BYTES.get().wrapping_sub(small.before), small.map.memory_bytes());
            let exact = real..real + real / 4;
            assert!(exact.contains(&counted), "{counted} bytes counted, {real} taken");
        }
    }
}

#[test]
fn memory_count_is_exact_and_bounded() {
    full_volumes_stay_within_their_bounds();
    scattered_blocks_stay_within_their_bound();
}

fn full_volumes_stay_within_their_bounds() {
    // Random single blocks: at most 9.2 bytes each, and 2.5 GiB for a TiB.
    let mut world = World::new();
    for (i, lba) in World::shuffled(0).enumerate() {
        world.set(lba, &[i as u64], false);
        if i as u64 == BLOCKS / 8 {
            let each = world.memory_bytes() as f64 / i as f64;
            assert!(each <= 12.5, "{each} bytes a block of a volume that is an eighth full");
        }
    }
    assert_eq!(world.map.mapped_blocks(VOLUME), BLOCKS);
    let each = world.memory_bytes() as f64 / BLOCKS as f64;
    assert!(each <= 9.2, "{each} bytes a block of a random volume");
    let tib = world.memory_bytes() * (TIB_BLOCKS / BLOCKS);
    assert!(tib <= 5 << 29, "{tib} bytes a TiB of a random volume");

    // The same volume written in order, sums on media: at most 16 MiB for a TiB.
    let sums = [9; 32];
    for lba in (0..BLOCKS).step_by(sums.len()) {
        world.set(lba, &sums, true);
    }
    let tib = world.memory_bytes() * (TIB_BLOCKS / BLOCKS);
    assert!(tib <= 16 << 20, "{tib} bytes a TiB of a sequential volume");

    // Random blocks again, over sealed leaves: the bound holds at every point.
    for (i, lba) in World::shuffled(77).enumerate() {
        world.set(lba, &[i as u64], false);
        if (i as u64) % (BLOCKS / 16) == 0 {
            let each = world.memory_bytes() as f64 / BLOCKS as f64;
            assert!(each <= 9.6, "{each} bytes a block after {i} random ones");
        }
    }
    world.map.truncate(VOLUME, 0, &mut |_, _| {}).unwrap();
    assert!(world.memory_bytes() < 64 << 10, "an empty volume keeps only scratch space");
    drop(world);

    // Sequential writes with late footers, and segments that end within leaves: sealing later has
    // the same result, and two runs in a leaf cost no more than one.
    let mut world = World::new();
    for lba in (0..BLOCKS).step_by(32) {
        world.written += u64::from(lba % u64::from(LEAF_BLOCKS) == 160) * 32;
        world.set(lba, &sums, false);
    }
    let each = world.memory_bytes() as f64 / BLOCKS as f64;
    assert!(each <= 5.5, "{each} bytes a block of runs with sums");
    let mut cursor = LeafId::default();
    loop {
        let next = world.map.leaves_from(cursor).next();
        let Some(id) = next else { break };
        assert!(world.map.seal(id, &mut |_| true));
        cursor = id.next().unwrap();
    }
    let tib = world.memory_bytes() * (TIB_BLOCKS / BLOCKS);
    assert!(tib <= 16 << 20, "{tib} bytes a TiB of a sealed volume");
}

/// Blocks of a PiB.
const PIB_BLOCKS: u64 = 1 << 38;
/// Most bytes of map for a block, wherever the blocks lie.
const MAX_EACH: u64 = 40;
/// What a volume may take besides: the space to work in, and the last list of a tree.
const FIXED: u64 = 16 << 10;

/// Changes whose every state must keep the bound, whatever a client may do.
fn scattered_blocks_stay_within_their_bound() {
    let mixed = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 26;
    let leaf = u64::from(LEAF_BLOCKS);
    let bounded = |world: &World, what: &str| {
        let blocks = world.map.mapped_blocks(VOLUME);
        let bytes = world.memory_bytes();
        assert!(bytes <= MAX_EACH * blocks + FIXED, "{bytes} bytes for {blocks} blocks: {what}");
    };
    // Single blocks anywhere in a PiB, as many as take 1.2 GB of a device.
    let mut world = World::new();
    for i in 0..300_000 {
        world.set(mixed(i) % PIB_BLOCKS, &[i], false);
        if i % 10_000 == 0 {
            bounded(&world, "random blocks of a PiB");
        }
    }
    bounded(&world, "random blocks of a PiB");
    // All but each twentieth are cleared.
    for i in (0..300_000).filter(|i| i % 20 != 0) {
        world.map.clear(VOLUME, Lba(mixed(i) % PIB_BLOCKS), 1, &mut |_, _| {}).unwrap();
        if i % 9_999 == 0 {
            bounded(&world, "random blocks cleared");
        }
    }
    bounded(&world, "random blocks cleared");
    drop(world);

    // In order, with every distance from a leaf to a chapter.
    for stride in [1, 2, 3, 7, 13, 32, 64, 65, 512, 1 << 15, (1 << 15) + 1] {
        let mut world = World::new();
        for i in 0..40_000u64 {
            world.set(i * stride % (PIB_BLOCKS / leaf) * leaf + i % leaf, &[i], false);
            if i % 7_000 == 0 {
                bounded(&world, &format!("a block in every {stride}th leaf"));
            }
        }
        bounded(&world, &format!("a block in every {stride}th leaf"));
    }

    // Parts of pages, and parts of what has been whole: from one block of a leaf to five, from few
    // leaves of a page to all of them, and back.
    for kept in [1, 2, 3, 4, 5, 20, 47, 48, 49, 55, 56, 57, 63] {
        for blocks in [1, 2, 3, 4, 5, 21, 22] {
            let mut world = World::new();
            for page in 0..40 {
                for i in 0..64 {
                    for block in 0..blocks {
                        world.set((page * 997 * 64 + i) * leaf + block * 5, &[block], false);
                    }
                }
            }
            bounded(&world, "whole pages");
            for page in 0..40 {
                let (from, all) = ((page * 997 * 64 + kept) * leaf, (64 - kept) * leaf);
                world.map.clear(VOLUME, Lba(from), all, &mut |_, _| {}).unwrap();
            }
            bounded(&world, &format!("{blocks} blocks in each of {kept} leaves of a page"));
            for leaf_no in 0..kept {
                for page in 0..40 {
                    let at = (page * 997 * 64 + leaf_no) * leaf;
                    world.map.clear(VOLUME, Lba(at + 1), leaf - 1, &mut |_, _| {}).unwrap();
                }
            }
            bounded(&world, &format!("a block left in each of {kept} leaves"));
        }
    }
}
