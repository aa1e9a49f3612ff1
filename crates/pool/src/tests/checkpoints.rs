//! Checkpoints of the map beside what happens while they are written.

use forebay_format::map_record::Delta;
use forebay_rt::Runtime;
use forebay_segment::SegmentState;
use forebay_units::{Layout, SegmentId};

use super::rack::memory;
use super::{leave_free, spec, stamp, volume};
use crate::Pool;

/// Gives back what [`leave_free`] has taken.
fn leave_all(pool: &Pool) {
    let table = &pool.store.table;
    let all = (0..table.count()).map(SegmentId);
    let held = all.filter(|segment| table.get(*segment).state == SegmentState::Free);
    held.filter(|segment| !table.is_free(*segment)).for_each(|segment| table.let_go(segment));
}

// The damage may be in what the checkpoint has written already.
#[test]
fn damage_that_is_found_beside_a_checkpoint_has_the_map_written_once_more() {
    Runtime::simulated(1).block_on(async {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], 256 << 20), "tank", &options).await.unwrap();
        pool.create_volume(&volume(160 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..16_384 {
            v.write(at * 2 * 4096, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        // Without room a checkpoint begins, and gets no further than the end of a row.
        leave_free(&pool, 2);
        let mut writers = pool.writers.lock().await;
        let commit = pool.sync.commit.get().next();
        pool.scan.checkpoint_wanted.set(true);
        pool.journal(&mut writers, &Delta::new(), commit).await.unwrap();
        assert!(!pool.scan.checkpoint_wanted.get());
        let begun = writers.checkpoint.expect("there is no room for it").start;
        let found_at = writers.journal.position().expect("it has written");
        assert!(begun.seq < found_at.seq);
        pool.scan.checkpoint_wanted.set(true);
        pool.journal(&mut writers, &Delta::new(), commit).await.unwrap();
        assert!(writers.checkpoint.is_some_and(|checkpoint| checkpoint.start == begun));
        drop(writers);
        leave_all(&pool);
        while pool.scan.checkpoint_wanted.get() || pool.writers.lock().await.checkpoint.is_some() {
            pool.sync().await.unwrap();
        }
        let start = pool.writers.lock().await.journal_start.expect("it has begun");
        assert!(start.seq >= found_at.seq, "{start:?} is before {found_at:?}");
        drop(v);
        pool.export().await.unwrap();
    });
}
