//! Repacking: what a packed block has in use, and how that is packed again.

use forebay_device::{Device, Operation};
use forebay_format::packed::Packer;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::spec::VolumeSpec;
use crate::tests::compression::{blocks, sparse};
use crate::tests::rack::{memory, paced};
use crate::tests::{leave_free, names, spec, volume};

const VOLUME: VolumeId = VolumeId(3);
const LBA: u64 = 40;

/// A unit of four blocks in packed block 9, with its compressed bytes.
fn live_unit(data: &[u8], live: Mask) -> (LiveUnit, Vec<u8>) {
    let (codec, bytes) = compress(Compression::Lz4, data).unwrap();
    let (mut packer, mut full) = (Packer::new(8), Vec::new());
    let small = Unit { volume: VOLUME, lba: Lba(0), blocks: 1, codec, bytes: vec![1; 50] };
    packer.push(&small, |_| true, &mut full).unwrap();
    let unit = Unit { volume: VOLUME, lba: Lba(LBA), blocks: 4, codec, bytes: bytes.clone() };
    let at = packer.push(&unit, |_| true, &mut full).unwrap();
    full.extend(packer.flush());
    let table = PackedTable::read(&full[0].bytes).unwrap();
    let entry = *table.units.last().unwrap();
    assert_eq!((entry.lba, entry.slot), (Lba(LBA), at.slot));
    (LiveUnit { number: at.block.0, entry, live }, bytes)
}

/// Each new unit: its blocks, the reference that they had, and which of them are in use.
fn repacked(unit: &LiveUnit, bytes: &[u8], data: &[u8]) -> Vec<(u64, u8, BlockAddr, Mask)> {
    let new = unit.repacked(bytes.to_vec());
    for NewUnit { unit: Unit { volume, lba, blocks, codec, bytes }, from, .. } in &new {
        assert_eq!((*volume, *from), (VOLUME, (unit.number, unit.entry.slot)));
        let first = (lba.0 - LBA) as usize * BLOCK_LEN;
        let found = decompress(*codec, bytes, usize::from(*blocks)).unwrap();
        assert!(found == data[first..first + found.len()]);
    }
    new.iter().map(|new| (new.unit.lba.0 - LBA, new.unit.blocks, new.old, new.live)).collect()
}

#[test]
fn runs_of_blocks_in_use_become_units_of_their_own() {
    let data = blocks(1, 4, 700);
    for (live, runs) in [
        (0b1111, vec![(0, 4)]),
        (0b0001, vec![(0, 1)]),
        (0b0110, vec![(1, 2)]),
        (0b1000, vec![(3, 1)]),
        (0b1011, vec![(0, 2), (3, 1)]),
        (0b0101, vec![(0, 1), (2, 1)]),
    ] {
        let (unit, bytes) = live_unit(&data, live);
        let old = unit.entry.reference(Lba(unit.number), 0).addr();
        let expected: Vec<(u64, u8, BlockAddr, Mask)> = runs
            .into_iter()
            .map(|(first, count): (u8, u8)| {
                (first.into(), count, old.plus(first.into()), (1 << count) - 1)
            })
            .collect();
        assert_eq!(repacked(&unit, &bytes, &data), expected, "{live:04b}");
        let part = unit.entry.room_bytes() * live.count_ones() as usize / 4;
        assert_eq!(unit.room_bytes(), part);
        let new: usize = unit.repacked(bytes).iter().map(NewUnit::room_bytes).sum();
        assert!((part * 9 / 10..part * 11 / 10 + 20).contains(&new), "{new} instead of {part}");
    }
}

#[test]
fn a_unit_stays_whole_where_its_parts_would_take_more() {
    // Blocks without a pattern that are alike, so that one of them alone does not become smaller.
    let block = blocks(1, 1, BLOCK_LEN);
    let alike = [&block[..]; 4].concat();
    // Blocks that are alike, and become smaller.
    let block = blocks(2, 1, 2000);
    let smaller = [&block[..]; 4].concat();
    for (data, live) in [(alike, 0b0100), (smaller, 0b1001)] {
        let (unit, bytes) = live_unit(&data, live);
        let old = unit.entry.reference(Lba(unit.number), 0).addr();
        assert_eq!(repacked(&unit, &bytes, &data), [(0, 4, old, live)]);
    }
}

#[test]
fn references_to_blocks_in_use_follow_a_unit_that_is_packed_again() {
    Runtime::simulated(4805).block_on(async {
        let (pool, _v) = compressed(4, 700, false).await;
        let mut writers = pool.writers.lock().await;
        let block = blocks(2, 1, 2000);
        let (unit, bytes) = live_unit(&[&block[..]; 4].concat(), 0b1101);
        let new = unit.repacked(bytes).pop().unwrap();
        let old = new.old;
        assert!(pool.pack_again(&mut writers, &new));
        let full = writers.packer.flush().unwrap();
        let first = PackedRef { block: full.number, slot: 0, index: 0 }.addr();
        let moved = writers.repacked.moved.iter();
        let moved: Vec<_> =
            moved.map(|refs| (refs.bound, refs.old, refs.new, refs.blocks)).collect();
        let run =
            |at, count| ((VOLUME, Lba(LBA + u64::from(at))), old.plus(at), first.plus(at), count);
        assert_eq!(moved, [run(0, 1), run(2, 2)]);
        assert!(writers.repacked.units.contains(&(unit.number, unit.entry.slot)));
    });
}

/// A pool with a compressed volume of `count` blocks.
async fn compressed(count: usize, noise: usize, is_slow: bool) -> (Rc<Pool>, Device) {
    let pace = move |_: &str, operation: Operation, _: u64| {
        (is_slow && operation == Operation::Write).then(|| Nanos::from_millis(5))
    };
    let host = paced(memory(&["a"], 64 << 20), pace);
    let pool = Pool::create(host, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    pool.create_volume(&sparse("v", 16 << 20, &[("compression", "lz4")])).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(0, blocks(1, count, noise), false).await.unwrap();
    pool.sync().await.unwrap();
    (pool, v)
}

/// The references of the volume's first blocks.
fn references(pool: &Pool, count: u64) -> Vec<Option<PackedRef>> {
    let id = pool.volume_named("v").unwrap().id;
    let map = pool.store.map.borrow();
    (0..count).map(|lba| PackedRef::of(map.lookup(id, Lba(lba))?.addr)).collect()
}

#[test]
fn units_in_use_are_found_in_each_packed_block_that_they_lie_in() {
    const COUNT: u64 = 192;
    for noise in [300, 1500, 3000] {
        Runtime::simulated(4801).block_on(async move {
            let (pool, v) = compressed(COUNT as usize, noise, false).await;
            // Whole units and parts of others go.
            for lba in (0..COUNT).filter(|lba| lba / 4 % 5 == 2 || lba % 7 == 3) {
                v.discard(lba * BLOCK_LEN as u64, BLOCK_LEN as u64, false).await.unwrap();
            }
            pool.sync().await.unwrap();
            // By packed block: where the unit begins, and what is in use of it.
            let mut expected: BTreeMap<u64, BTreeMap<(u64, u8), Mask>> = BTreeMap::new();
            for from in references(&pool, COUNT).into_iter().flatten() {
                for number in from.block.0..from.block.0 + from.span() {
                    let units = expected.entry(number).or_default();
                    *units.entry((from.block.0, from.slot)).or_default() |= 1 << from.index;
                }
            }
            assert!(expected.len() > 3 && expected.values().any(|units| units.len() > 1));
            for (number, units) in expected {
                let near = Near::new();
                let mut here = Blocks { near: &near, read: BTreeMap::new() };
                let found = pool.live_units(number, &mut here).await.unwrap();
                let found = found.iter().map(|unit| ((unit.number, unit.entry.slot), unit.live));
                assert_eq!(found.collect::<BTreeMap<_, _>>(), units, "{number}");
            }
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_a_group_overwrites_is_in_use_only_if_a_snapshot_needs_it() {
    for has_snapshot in [false, true] {
        Runtime::simulated(4802).block_on(async move {
            let (pool, v) = compressed(64, 700, true).await;
            if has_snapshot {
                pool.take_snapshots(&names(&["v@a"])).await.unwrap();
                // Snapshots are taken with a group, and blocks move to them when they must.
                pool.sync().await.unwrap();
            }
            let at = references(&pool, 64)[4].unwrap();
            v.write(5 * BLOCK_LEN as u64, blocks(7, 2, 700), false).await.unwrap();
            let group = rt::spawn({
                let pool = pool.clone();
                async move { pool.sync().await.unwrap() }
            });
            while pool.dirty.groups.borrow().syncing().is_none() {
                assert!(!group.is_finished(), "it was not seen");
                rt::sleep(Nanos::from_micros(100)).await;
            }
            let block = pool.read_packed_blocks(&[at.block.0]).await.pop().unwrap().unwrap();
            let units = PackedTable::read(&block).unwrap().units;
            let entry = units.into_iter().find(|unit| unit.slot == at.slot).unwrap();
            assert_eq!((entry.lba, entry.blocks), (Lba(4), 4));
            let live = if has_snapshot { 0b1111 } else { 0b1001 };
            assert_eq!(pool.live_of(at.block.0, &entry), (4, live));
            group.await;
            // Two of them are the volume's no more.
            let kept = if has_snapshot { (4, 0b1111) } else { (2, 0b1001) };
            assert_eq!(pool.live_of(at.block.0, &entry), kept);
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn nothing_is_repacked_while_no_packed_block_is_free() {
    Runtime::simulated(4804).block_on(async {
        let (pool, v) = compressed(64, 700, false).await;
        v.discard(0, 3 * BLOCK_LEN as u64, false).await.unwrap();
        pool.sync().await.unwrap();
        let all = references(&pool, 64);
        let number = all[3].unwrap().block.0;
        let last = all.into_iter().flatten().map(|from| from.block.0 + from.span()).max().unwrap();
        // No four numbers in a row are free.
        let taken = || {
            let at = |number| PackedRef { block: Lba(number), slot: 0, index: 0 }.addr();
            (last..70_000).step_by(4).map(at)
        };
        taken().for_each(|at| pool.packed.refer(at, 1));
        let mut writers = pool.writers.lock().await;
        let commit = pool.sync.commit.get().next();
        let to = pool.room_for_repacked(&writers, &[number], commit, 0).unwrap();
        let near = Near::new();
        for is_full in [true, false] {
            let most = 2 * PACKED_ROOM_BYTES;
            let room = pool.repack_within(&mut writers, number, &near, &to, most).await.unwrap();
            assert_eq!(room.is_none(), is_full);
            assert_eq!(writers.repacked.units.is_empty(), is_full);
            assert_eq!(pool.stats().compression.repacked_blocks, u64::from(!is_full));
            if is_full {
                taken().for_each(|at| pool.packed.release(at, 1));
            }
        }
    });
}

#[test]
fn a_root_moves_no_more_references_than_its_journal_has_room_for() {
    Runtime::simulated(4803).block_on(async {
        let (pool, v) = compressed(64, 700, false).await;
        v.discard(0, 3 * BLOCK_LEN as u64, false).await.unwrap();
        pool.sync().await.unwrap();
        let number = references(&pool, 64)[3].unwrap().block.0;
        let mut writers = pool.writers.lock().await;
        let commit = pool.sync.commit.get().next();
        let to = pool.room_for_repacked(&writers, &[number], commit, 0).unwrap();
        let near = Near::new();
        let most = pool.journal_segment_bytes() / 8 / 20;
        let moved = |_| MovedRefs {
            bound: (VOLUME, Lba(0)),
            old: BlockAddr::from_raw(0),
            new: BlockAddr::from_raw(0),
            blocks: 0,
        };
        writers.repacked.moved = (0..most).map(moved).collect();
        let most_room = 2 * PACKED_ROOM_BYTES;
        let room = pool.repack_within(&mut writers, number, &near, &to, most_room).await.unwrap();
        assert_eq!((room, writers.repacked.moved.len() as u64), (None, most));
        writers.repacked.moved.pop();
        let room = pool.repack_within(&mut writers, number, &near, &to, most_room).await.unwrap();
        assert!(room.is_some_and(|room| room > 0));
        assert!(writers.repacked.moved.len() as u64 > most);
        // What was repacked is not repacked once more.
        writers.repacked.moved.drain(..most as usize - 1);
        let before = writers.repacked.moved.len();
        let room = pool.repack_within(&mut writers, number, &near, &to, most_room).await.unwrap();
        assert_eq!((room, writers.repacked.moved.len()), (Some(0), before));
    });
}

#[test]
fn masks_are_runs_of_bits() {
    assert_eq!(runs_of(0), []);
    assert_eq!(runs_of(0b1111), [(0, 4)]);
    assert_eq!(runs_of(0b1011), [(0, 2), (3, 1)]);
    assert_eq!(runs_of(0b1000_0100), [(2, 1), (7, 1)]);
}

#[test]
fn repacked_blocks_leave_room_for_the_cleaner_and_the_journal() {
    Runtime::simulated(1).block_on(async {
        let spec = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], 256 << 20), "tank", &spec).await.unwrap();
        let properties = [("compression".to_owned(), "lz4".to_owned())].into();
        let sparse = VolumeSpec { sparse: true, properties, ..volume(16 << 20) };
        pool.create_volume(&sparse).await.unwrap();
        let data = IoBuf::copy_of(&[7; 64 << 10]).freeze();
        pool.open_volume("v").unwrap().write(0, data, false).await.unwrap();
        pool.sync().await.unwrap();
        let writers = pool.writers.lock().await;
        let number = pool.store.map.borrow().next_entry(PACKED_VOLUME, Lba(0)).unwrap().0;
        let is_there = |at: &u64| pool.store.map.borrow().lookup(PACKED_VOLUME, Lba(*at)).is_some();
        let number = (number..number + 1000).find(is_there).unwrap();
        const KEEP: u32 = 5;
        let (commit, spare) = (CommitId(9), KEEP + pool.limits.get().reserve_segments);
        let goes = || pool.room_for_repacked(&writers, &[number], commit, KEEP).is_some();
        // It opens a segment.
        leave_free(&pool, spare + 2);
        assert!(goes());
        leave_free(&pool, spare + 1);
        assert!(!goes(), "the last but the spare ones");
    });
}
