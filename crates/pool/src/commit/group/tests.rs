//! Runs of a group's blocks: as few as there can be, and every block where it went. The stream of a
//! block when the last segments are in use.

use forebay_map::dedup_ref;
use forebay_rt::Runtime;
use forebay_units::{BlockAddr, Layout, Lba, SegmentId, VolumeId};

use super::Places;
use crate::Pool;
use crate::tests::rack::memory;
use crate::tests::{leave_free, spec, stamp, volume};

/// A block of a volume, and the number of where it went.
type At = ((VolumeId, Lba), u64);

/// All pairs of a block and a successor that is near it in each way, and near a segment's end.
fn pairs() -> Vec<[At; 2]> {
    let last = u64::from(BlockAddr::MAX_BLOCKS) - 1;
    let mut all = Vec::new();
    for (first, to) in [(5, 7 << 20 | 9), (5, 7 << 20 | last), (1, 7 << 20 | 1)] {
        let mine = ((VolumeId(3), Lba(first)), to);
        let steps = [to, to + 1, to + 2, to - 1, to + (1 << 20), to + (1 << 20) + 1];
        for volume in [2, 3, 4] {
            for lba in [first - 1, first, first + 1, first + 2] {
                all.extend(steps.map(|next| [mine, ((VolumeId(volume), Lba(lba)), next)]));
            }
        }
    }
    all
}

/// Whether the second block of a pair follows the first in its volume and where they went.
fn follows([(first, to), (second, next)]: [At; 2]) -> bool {
    let is_in_segment = to >> 20 == next >> 20;
    first.0 == second.0 && first.1.0 + 1 == second.1.0 && to + 1 == next && is_in_segment
}

#[test]
fn blocks_that_follow_each_other_are_one_run_and_others_are_not() {
    for pair in pairs() {
        let [(first, to), (second, next)] = pair;
        let addr = BlockAddr::from_raw;
        // Runs of one block, and of three.
        for more in [0, 2] {
            let mut places = Places::default();
            let start = Lba(first.1.0 - more.min(first.1.0));
            for at in start.0..=first.1.0 {
                let back = first.1.0 - at;
                places.place((first.0, Lba(at)), addr(to - back), at);
                places.pack((first.0, Lba(at)), addr(to - back), 1);
                places.refer((first.0, Lba(at)), Lba(to - back));
            }
            let blocks = first.1.0 - start.0 + 1;
            places.place(second, addr(next), 77);
            places.pack(second, addr(next), 2);
            places.refer(second, Lba(next));
            let placed: Vec<_> = places.placed.iter().map(|run| run.sums.len() as u64).collect();
            let packed: Vec<_> = places.packed.iter().map(|run| u64::from(run.blocks)).collect();
            let of = |run: &super::Referring| u64::from(run.blocks);
            let referring: Vec<_> = places.referring.iter().map(of).collect();
            let expected = |last| match follows(pair) {
                true => vec![blocks + last],
                false => vec![blocks, last],
            };
            assert_eq!(placed, expected(1), "{pair:?}");
            assert_eq!(packed, expected(2), "{pair:?}");
            assert_eq!(referring, expected(1), "{pair:?}");
            let run = &places.placed[0];
            assert_eq!((run.volume, run.lba, run.addr), (first.0, start, addr(to + 1 - blocks)));
            assert_eq!(places.placed.last().unwrap().sums.last(), Some(&77));
        }
    }
}

// Blocks are placed in their order, so a run of many blocks is one record of the journal.
#[test]
fn a_run_grows_to_the_end_of_its_segment() {
    const BLOCKS: u32 = 40;
    let mut places = Places::default();
    let begin = BlockAddr::MAX_BLOCKS - BLOCKS / 2;
    let start = BlockAddr::new(SegmentId(4), begin).raw();
    for at in 0..u64::from(BLOCKS) {
        let lba = (VolumeId(1), Lba(100 + at));
        places.place(lba, BlockAddr::from_raw(start + at), at);
        places.pack(lba, BlockAddr::from_raw(start + at), 1);
        places.refer(lba, Lba(start + at));
    }
    let half = BLOCKS / 2;
    let placed: Vec<_> = places.placed.iter().map(|run| run.sums.len() as u32).collect();
    assert_eq!(placed, [half, half]);
    let packed: Vec<_> = places.packed.iter().map(|run| run.blocks).collect();
    assert_eq!(packed, [half, half]);
    let referring: Vec<_> = places.referring.iter().map(|run| run.blocks).collect();
    assert_eq!(referring, [half, half]);
    let content = |at: usize| dedup_ref(places.referring[at].content).segment();
    assert_ne!(content(0), content(1));
}

// A group counts what is left in all streams of clients as its room.
#[test]
fn a_block_goes_where_there_is_room_when_the_last_segments_are_in_use() {
    const KEEP: u32 = 3;
    Runtime::simulated(1).block_on(async {
        let spec = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], 64 << 20), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let id = VolumeId(pool.volumes()[0].id);
        let mut writers = pool.writers.lock().await;
        let usual = pool.user_stream(&writers, id, Lba(0), KEEP);
        assert_eq!(writers.data[usize::from(usual)].blocks_left(), 0);
        leave_free(&pool, KEEP + 3);
        let commit = pool.sync.commit.get().next();
        let other = 1 - usual;
        let writer = &mut writers.data[usize::from(other)];
        writer.append(id, Lba(9), stamp(4096, 1), commit, 0, KEEP).await.unwrap();
        assert_eq!(pool.store.table.free_count(), KEEP + 2);
        assert_eq!(pool.user_stream(&writers, id, Lba(0), KEEP), usual, "it has a segment to take");
        leave_free(&pool, KEEP + 1);
        assert_eq!(pool.user_stream(&writers, id, Lba(0), KEEP), other);
        assert_eq!(pool.user_stream(&writers, id, Lba(0), KEEP - 1), usual);
    });
}
