//! What an import takes of a map: addresses, references, rows of the journal's segments, and what
//! members miss.

use std::rc::Rc;

use forebay_format::map_record::{DEDUP_REF_SEGMENT, dedup_ref};
use forebay_map::PACKED_VOLUME;
use forebay_rt::Runtime;
use forebay_units::{CommitId, Layout};

use super::*;
use crate::ImportErrorKind;
use crate::Pool;
use crate::labels::read_label;
use crate::spec::ImportOptions;
use crate::tests::rack::memory;
use crate::tests::{names, spec, volume};

const V: VolumeId = VolumeId(1);
const SEGMENTS: u32 = 4;

fn table() -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    table.add_group(SEGMENTS, 64);
    table
}

fn record(segment: u32, kind: SegmentUse, last: u64) -> SegmentRecord {
    let segment = SegmentId(segment);
    let (stream, footer, rows, blocks, birth, clock) = (0, true, 3, 48, last, 0);
    SegmentRecord { segment, kind, stream, footer, rows, blocks, birth, last, clock }
}

fn map_with(runs: &[(VolumeId, u64, BlockAddr, usize)]) -> Map {
    let mut map = Map::new();
    for (volume, lba, addr, blocks) in runs {
        let _ = map.create_volume(*volume);
        let freed = &mut |_, _| panic!("nothing is overwritten");
        match addr.segment() >= DEDUP_REF_SEGMENT {
            true => map.set_refs(*volume, Lba(*lba), *addr, *blocks as u32, freed),
            false => {
                map.set_run(*volume, Lba(*lba), *addr, &vec![1; *blocks], false, freed).unwrap()
            }
        }
    }
    map
}

#[test]
fn a_block_outside_the_groups_or_in_a_free_segment_is_refused() {
    let in_segment = |segment: u32| map_with(&[(V, 7, BlockAddr::new(SegmentId(segment), 5), 3)]);
    let table = table();
    assert!(table.load_record(&record(SEGMENTS - 1, SegmentUse::Data, 1)));
    count_live(&in_segment(SEGMENTS - 1), &table).unwrap();
    assert_eq!(table.get(SegmentId(SEGMENTS - 1)).live, 3);
    let lba = Lba(7);
    for segment in [SEGMENTS, SEGMENTS + 1] {
        let addr = BlockAddr::new(SegmentId(segment), 5);
        assert_eq!(
            count_live(&in_segment(segment), &table),
            Err(MapLoadError::OutsideGroups { volume: V, lba, addr })
        );
    }
    let addr = BlockAddr::new(SegmentId(0), 5);
    let free = MapLoadError::InFreeSegment { volume: V, lba, addr };
    assert_eq!(count_live(&in_segment(0), &table), Err(free));
}

#[test]
fn a_reference_to_a_content_that_is_not_whole_is_refused() {
    let place = |block: u32| BlockAddr::new(SegmentId(0), block);
    let refers = |contents: usize| {
        map_with(&[(V, 0, dedup_ref(Lba(20)), 3), (DEDUP_VOLUME, 20, place(0), contents)])
    };
    check_refs(&refers(3)).unwrap();
    let missing = MapLoadError::NoContent { content: Lba(20) };
    assert_eq!(check_refs(&refers(2)), Err(missing.clone()));
    assert_eq!(check_refs(&map_with(&[(V, 0, dedup_ref(Lba(20)), 3)])), Err(missing));
}

// A unit in the last slot goes on in three further blocks.
#[test]
fn a_reference_to_a_packed_block_that_is_not_there_is_refused() {
    let place = |block: u32| BlockAddr::new(SegmentId(0), block);
    for (slot, span) in [(0, 1), (15, 4)] {
        let unit = PackedRef { block: Lba(6), slot, index: 1 };
        assert_eq!(unit.span(), span);
        let refers = |blocks: u64| {
            map_with(&[(V, 0, unit.addr(), 2), (PACKED_VOLUME, 6, place(0), blocks as usize)])
        };
        check_refs(&refers(span)).unwrap();
        if span > 1 {
            let missing = MapLoadError::NoPackedBlock { packed: Lba(6 + span - 1) };
            assert_eq!(check_refs(&refers(span - 1)), Err(missing));
        }
        let missing = MapLoadError::NoPackedBlock { packed: Lba(6) };
        assert_eq!(check_refs(&map_with(&[(V, 0, unit.addr(), 2)])), Err(missing));
    }
}

#[test]
fn a_member_misses_what_was_written_since_it_left_and_what_the_journal_has() {
    let table = table();
    for (segment, last) in [(0, 9), (1, 10), (2, 11)] {
        assert!(table.load_record(&record(segment, SegmentUse::Data, last)));
    }
    let journal = |segments: &[u32]| Journal {
        positions: segments.iter().map(|s| position(*s, 0)).collect(),
        ..Journal::default()
    };
    let member = |stale_since, stale| MemberConfig {
        device: 0,
        path: "a".into(),
        size_bytes: 0,
        state: Default::default(),
        stale_since,
        stale,
        replacement: None,
    };
    let missed = |member: &MemberConfig, journal: &Journal| {
        let mut missed: Vec<u32> =
            stale_segments(member, &table, journal).into_iter().flatten().collect();
        missed.sort_unstable();
        missed
    };
    let none: [u32; 0] = [];
    assert_eq!(missed(&member(None, vec![]), &journal(&[0])), none);
    assert_eq!(missed(&member(None, vec![(1, 3)]), &journal(&[])), [1, 2]);
    assert_eq!(missed(&member(Some(10), vec![]), &journal(&[])), [1, 2]);
    // Segment 3 is free, and the records of the journal's own segments are one root old.
    assert_eq!(missed(&member(Some(12), vec![]), &journal(&[0, 3])), [0]);
    assert_eq!(missed(&member(Some(12), vec![(3, 4)]), &journal(&[0])), [0, 3]);
}

fn position(segment: u32, block: u32) -> JournalPosition {
    JournalPosition { addr: BlockAddr::new(SegmentId(segment), block), seq: 1, link: 0 }
}

#[test]
fn segments_of_the_journal_are_in_use_up_to_its_end_and_others_of_the_map_are_free() {
    for doubled in [None, Some(false), Some(true)] {
        Runtime::simulated(1).block_on(async move {
            let opener = memory(&["a"], 64 << 20);
            let options = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(opener.clone(), "tank", &options).await.unwrap();
            let array = pool.store.array.clone();
            pool.export().await.unwrap();
            let mut root = read_label(&opener.open("a").await.unwrap()).await.roots.remove(0);
            let geometry = array.groups()[0];
            let of = |kind, segment: u32| (SegmentId(segment), record(segment, kind, 1));
            let records = [
                of(SegmentUse::Data, 0),
                of(SegmentUse::Map, 1),
                of(SegmentUse::Map, 2),
                of(SegmentUse::Free, 3),
            ];
            let end_block = 2 * geometry.blocks_per_row();
            root.commit = CommitId(77);
            root.journal_end = Some(position(5, end_block));
            // Segment 4 has no record yet, and segment 5 is the open one.
            let journal = Journal {
                records: records.into(),
                positions: [1, 4, 5].into_iter().map(|s| position(s, 0)).collect(),
                doubled,
                ..Journal::default()
            };
            let table = segment_table(&array, &journal, &root).unwrap();
            let info = |segment: u32| table.get(SegmentId(segment));
            for (segment, is_free) in
                [(0, false), (1, false), (2, true), (3, true), (4, false), (5, false), (6, true)]
            {
                let state = if is_free { SegmentState::Free } else { SegmentState::Full };
                assert_eq!(info(segment).state, state, "segment {segment}");
                assert_eq!(table.is_free(SegmentId(segment)), is_free, "segment {segment}");
            }
            assert_eq!((info(0).rows, info(0).last), (3, 1));
            for segment in [1, 4] {
                assert_eq!((info(segment).rows, info(segment).last), (geometry.rows(), 77));
            }
            let copied = if doubled == Some(true) { geometry.doubled_rows() } else { 0 };
            assert_eq!((info(5).rows, info(5).last), (copied + 2, 77));
            assert!([4, 5].into_iter().all(|segment| !info(segment).footer));
            let past = array.groups()[0].segments;
            let journal =
                Journal { records: [of(SegmentUse::Data, past)].into(), ..Journal::default() };
            assert_eq!(
                segment_table(&array, &journal, &root).err(),
                Some(MapLoadError::UnknownSegment { segment: SegmentId(past) })
            );
        });
    }
}

#[test]
fn a_map_may_take_its_room_and_no_more() {
    Runtime::simulated(2).block_on(async {
        let opener = memory(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        let config = pool.config.borrow().clone();
        let size = MapSize { bytes: 1000, volume: V, volume_bytes: 10 };
        let check = |size, room| check_room(&config, size, false, room);
        check(size, None).unwrap();
        check(size, Some(1000)).unwrap();
        let refused = check(size, Some(999)).unwrap_err();
        assert!(matches!(refused, MapLoadError::NoMemory(_)), "{refused:?}");
        check(MapSize { volume_bytes: 0, ..size }, Some(0)).unwrap();
        pool.export().await.unwrap();
    });
}

// The journal is whole: what it says is wrong.
#[test]
fn an_import_refuses_a_map_that_leads_nowhere() {
    let unused = BlockAddr::new(SegmentId(40), 3);
    let packed = PackedRef { block: Lba(6), slot: 0, index: 1 }.addr();
    let lba = Lba(9);
    for (addr, expected) in [
        (dedup_ref(Lba(20)), MapLoadError::NoContent { content: Lba(20) }),
        (packed, MapLoadError::NoPackedBlock { packed: Lba(6) }),
        (unused, MapLoadError::InFreeSegment { volume: V, lba, addr: unused }),
    ] {
        Runtime::simulated(3).block_on(async move {
            let opener = memory(&["a"], 64 << 20);
            let options = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(opener.clone(), "tank", &options).await.unwrap();
            pool.create_volume(&volume(4 << 20)).await.unwrap();
            assert_eq!(pool.volumes.borrow().keys().collect::<Vec<_>>(), [&V]);
            let mut delta = Delta::new();
            delta.assign_sealed(V, lba, addr, 1);
            let mut writers = pool.writers.lock().await;
            let commit = pool.sync.commit.get().next();
            pool.journal(&mut writers, &delta, commit).await.unwrap();
            let txg = pool.sync.committed.get();
            pool.write_root(&mut writers, txg, false).await.unwrap();
            drop(writers);
            let options = ImportOptions { force: true, ..ImportOptions::default() };
            let refused = Pool::import(opener, &names(&["a"]), "tank", &options).await;
            let ImportErrorKind::Map { error, .. } =
                refused.err().unwrap_or_else(|| panic!("{expected}")).kind
            else {
                panic!("{expected}");
            };
            assert_eq!(*error, expected);
        });
    }
}
