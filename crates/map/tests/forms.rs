//! Changes of leaves in each of their forms against a plain model: what each block has then, and
//! what is freed.

use std::collections::BTreeMap;

use forebay_map::{Delta, ExtentKind, LeafId, MAX_VOLUME_BLOCKS, Map};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

const VOLUME: VolumeId = VolumeId(3);
/// The leaf that has a form; the ones before and after it are empty at first.
const LEAF: u64 = 5;
const FIRST: u64 = LEAF * 512;

type Model = BTreeMap<u64, (BlockAddr, Option<u64>)>;

fn at(segment: u32, block: u64) -> BlockAddr {
    BlockAddr::new(SegmentId(segment), block as u32)
}

/// A map whose leaf has these blocks.
fn map_of(blocks: &Model) -> Map {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    let mut delta = Delta::new();
    for (lba, (addr, sum)) in blocks {
        match sum {
            Some(sum) => delta.assign(VOLUME, Lba(*lba), *addr, &[*sum]),
            None => delta.assign_sealed(VOLUME, Lba(*lba), *addr, 1),
        }
    }
    map.apply(&delta);
    map
}

/// Leaves whose smallest forms are all that there are.
fn forms() -> Vec<(&'static str, Model)> {
    let blocks = |of: &dyn Fn(u64) -> Option<(BlockAddr, Option<u64>)>| -> Model {
        (0..512).filter_map(|block| Some((FIRST + block, of(block)?))).collect()
    };
    let sum = |block| Some(1000 + block);
    let single = |block: u64| at(block as u32 % 3, 9000 - 2 * block);
    vec![
        ("empty", Model::new()),
        ("one block", blocks(&|b| (b == 255).then(|| (at(1, 9), sum(b))))),
        ("two blocks", blocks(&|b| [5, 511].contains(&b).then(|| (at(1, b), sum(b))))),
        ("two blocks in a row", blocks(&|b| [4, 5].contains(&b).then(|| (at(1, b), sum(b))))),
        ("runs", blocks(&|b| (b % 100 < 60).then(|| (at(1, b + b / 100), sum(b))))),
        (
            "runs, some sealed",
            blocks(&|b| {
                (b % 100 < 60).then(|| (at(1, b), if b / 100 % 2 == 0 { sum(b) } else { None }))
            }),
        ),
        ("packed", blocks(&|b| (b % 3 == 0 || b > 500).then(|| (single(b), sum(b))))),
        (
            "packed, some sealed",
            blocks(&|b| (b % 3 == 0).then(|| (single(b), if b % 2 == 0 { sum(b) } else { None }))),
        ),
        ("narrow", blocks(&|b| (b % 16 != 9).then(|| (single(b), sum(b))))),
        (
            "narrow, some sealed",
            blocks(&|b| Some((single(b), if b % 5 == 0 { None } else { sum(b) }))),
        ),
        (
            "wide",
            blocks(&|b| {
                let far = at(BlockAddr::MAX_SEGMENTS / 2, 1 << 19);
                (b % 16 != 9).then(|| (if b == 100 { far } else { single(b) }, sum(b)))
            }),
        ),
        ("sealed", blocks(&|b| Some((at(2, b), None)))),
        ("sealed, two runs", blocks(&|b| Some((at(2, if b < 300 { b } else { 4000 + b }), None)))),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// To addresses that were never used.
    Set,
    /// To the address that the first block has already.
    SetAgain,
    SetSealed,
    Clear,
}

/// Applies a change to a map and to its model, and compares what is freed.
fn change(map: &mut Map, model: &mut Model, what: Change, lba: u64, blocks: u64) {
    // The last blocks of a segment.
    let fresh = at(77, u64::from(BlockAddr::MAX_BLOCKS) - blocks);
    let old = model.get(&lba).map(|(addr, _)| *addr);
    let to = |i: u64| match what {
        Change::Clear => None,
        Change::SetAgain => Some(BlockAddr::from_raw(old.unwrap_or(fresh).raw() + i)),
        _ => Some(fresh.plus(i as u32)),
    };
    let sums: Vec<u64> = (0..blocks).map(|i| 7 * i + 3).collect();
    let mut freed = Vec::new();
    let mut free = |addr: BlockAddr, blocks: u32| freed.push((addr, blocks));
    match (what, to(0)) {
        (Change::SetSealed, Some(addr)) => {
            let mut delta = Delta::new();
            delta.assign_sealed(VOLUME, Lba(lba), addr, blocks as u32);
            map.apply(&delta);
        }
        (_, Some(addr)) => {
            map.set_run(VOLUME, Lba(lba), addr, &sums, false, &mut free).unwrap();
        }
        (_, None) => map.clear(VOLUME, Lba(lba), blocks, &mut free).unwrap(),
    }
    let mut expected: Vec<(BlockAddr, u32)> = Vec::new();
    for i in 0..blocks {
        let old = match to(i) {
            Some(addr) => {
                let sum = (what != Change::SetSealed).then(|| sums[i as usize]);
                model.insert(lba + i, (addr, sum)).filter(|(old, _)| *old != addr)
            }
            None => model.remove(&(lba + i)),
        };
        let Some((old, _)) = old.filter(|_| what != Change::SetSealed) else { continue };
        match expected.last_mut() {
            Some((first, count))
                if first.raw() + u64::from(*count) == old.raw()
                    && first.segment() == old.segment() =>
            {
                *count += 1;
            }
            _ => expected.push((old, 1)),
        }
    }
    assert_eq!(freed, expected, "freed");
}

fn check(map: &Map, model: &Model) {
    let mut found = Model::new();
    let mut end = 0;
    map.lookup_range(VOLUME, Lba(0), MAX_VOLUME_BLOCKS, |extent| {
        assert_eq!(extent.lba.0, end);
        end += extent.blocks;
        if let ExtentKind::Mapped { addr, sums, .. } = extent.kind {
            let blocks = sums.iter().enumerate();
            found.extend(
                blocks.map(|(i, sum)| (extent.lba.0 + i as u64, (addr.plus(i as u32), sum))),
            );
        }
    });
    assert_eq!((&found, end), (model, MAX_VOLUME_BLOCKS));
    for lba in FIRST - 2..FIRST + 514 {
        let one = map.lookup(VOLUME, Lba(lba)).map(|found| (found.addr, found.sum));
        assert_eq!(one.as_ref(), model.get(&lba), "block {lba}");
    }
    assert_eq!(map.mapped_blocks(VOLUME), model.len() as u64);
    for (lba, blocks) in [(FIRST, 1), (FIRST + 3, 90), (FIRST + 101, 7), (FIRST + 255, 300)] {
        let mut found = Model::new();
        map.lookup_range(VOLUME, Lba(lba), blocks, |extent| {
            if let ExtentKind::Mapped { addr, sums, .. } = extent.kind {
                found.extend(
                    (0..extent.blocks)
                        .map(|i| (extent.lba.0 + i, (addr.plus(i as u32), sums.get(i as usize)))),
                );
            }
        });
        assert!(found.iter().eq(model.range(lba..lba + blocks)), "{blocks} blocks at {lba}");
    }
    for (lba, blocks) in [(0, FIRST), (0, FIRST + 40), (FIRST + 3, 90), (FIRST + 400, 500)] {
        let count = model.range(lba..lba + blocks).count() as u64;
        assert_eq!(map.mapped_within(VOLUME, Lba(lba), blocks), count);
    }
    let mut last = (0, at(0, 0), false);
    map.for_each(|_, lba, addr, blocks| {
        let is_sealed = model[&lba.0].1.is_none();
        let goes_on = lba.0 % 512 != 0 && last == (lba.0, addr, is_sealed);
        assert!(!goes_on, "two runs at block {lba} that should be one");
        last = (
            lba.0 + u64::from(blocks),
            BlockAddr::from_raw(addr.raw() + u64::from(blocks)),
            is_sealed,
        );
    });
    let leaf = LeafId { volume: VOLUME, leaf: LEAF as u32 };
    let mut loaded = Map::new();
    loaded.load_leaf(&map.leaf_image(leaf));
    for (lba, right) in model.range(FIRST..FIRST + 512) {
        let one = loaded.lookup(VOLUME, Lba(*lba)).map(|found| (found.addr, found.sum));
        assert_eq!(one.as_ref(), Some(right), "block {lba} of the image");
    }
}

#[test]
fn a_leaf_of_any_form_has_what_was_set_and_frees_what_it_had() {
    let ranges = [(0, 1), (1, 2), (5, 3), (4, 31), (96, 32), (90, 33), (255, 1), (250, 200)];
    let ranges = ranges.into_iter().chain([(0, 512), (481, 31), (500, 12), (511, 1), (490, 60)]);
    for (name, model) in forms() {
        let map = map_of(&model);
        check(&map, &model);
        for (start, blocks) in ranges.clone() {
            for what in [Change::Set, Change::SetAgain, Change::SetSealed, Change::Clear] {
                let (mut map, mut model) = (map_of(&model), model.clone());
                println!("{what:?} {blocks} blocks at {start} of a leaf: {name}");
                change(&mut map, &mut model, what, FIRST + start, blocks);
                check(&map, &model);
            }
        }
    }
}

#[test]
fn a_leaf_of_any_form_refuses_a_sum_of_more_than_40_bits() {
    for (name, model) in forms() {
        for sum in [1 << 40, u64::MAX] {
            let mut map = map_of(&model);
            let set =
                || map.set_run(VOLUME, Lba(FIRST + 9), at(1, 0), &[sum], false, &mut |_, _| {});
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(set)).is_err();
            assert!(refused, "{sum:#x} in a leaf: {name}");
        }
        let mut map = map_of(&model);
        let most = (1 << 40) - 1;
        map.set_run(VOLUME, Lba(FIRST + 9), at(99, 0), &[most], false, &mut |_, _| {}).unwrap();
        assert_eq!(map.lookup(VOLUME, Lba(FIRST + 9)).and_then(|found| found.sum), Some(most));
    }
}
