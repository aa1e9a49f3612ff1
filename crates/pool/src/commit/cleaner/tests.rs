//! What stays free for a group, the map journal, a checkpoint and the cleaner.

use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_format::snapshot::Snapshot;
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{Choice, SegmentKind, SegmentState};
use forebay_units::{Layout, Nanos, SegmentId, VolumeId};

use super::{CHANGE_BYTES, MOVED_AND_WRITTEN};
use crate::Pool;
use crate::spec::VolumeSpec;
use crate::state::Checkpoint;
use crate::tests::rack::{Rack, memory};
use crate::tests::{expect, leave_free, spec, stamp, volume};

/// A pool of one device with 4096 blocks that lie apart.
async fn scattered() -> Rc<Pool> {
    let spec = spec(Layout::Raid0, &["a"], &[]);
    let pool = Pool::create(memory(&["a"], 256 << 20), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(96 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..4096 {
        v.write(at * 5 * 4096, stamp(4096, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

#[test]
fn the_journal_has_room_for_the_changes_of_a_group() {
    const BLOCKS: u64 = 1 << 20;
    Runtime::simulated(1).block_on(async {
        let pool = scattered().await;
        let room_bytes = |pool: &Pool| {
            let more = pool.journal_keep(BLOCKS) - pool.limits.get().map_reserve_segments;
            (u64::from(more) + 1) * pool.journal_segment_bytes()
        };
        let change_bytes = BLOCKS * MOVED_AND_WRITTEN * CHANGE_BYTES;
        assert!(room_bytes(&pool) > change_bytes);
        // A block, its reference, its fingerprint, and a content that goes.
        let shared = VolumeSpec {
            name: "shared".into(),
            sparse: true,
            properties: [("dedup".to_owned(), "on".to_owned())].into(),
            ..volume(1 << 20)
        };
        pool.create_volume(&shared).await.unwrap();
        assert!(room_bytes(&pool) > 4 * change_bytes);
        pool.export().await.unwrap();
    });
}

#[test]
fn the_journal_has_room_for_what_a_group_lets_go_of() {
    // 256 leaves of 512 blocks, each with an address and a checksum.
    const LET_GO_BYTES: u64 = 256 * 512 * 16;
    Runtime::simulated(6).block_on(async {
        let pool = scattered().await;
        assert_eq!(pool.let_go_bytes(), 0);
        let goes_back = || vec![VolumeId(pool.volumes()[0].id)];
        for end in [&pool.snapshots.wanted, &pool.snapshots.syncing] {
            end.borrow_mut().partly_rolled_back = goes_back();
            assert!(pool.let_go_bytes() >= LET_GO_BYTES);
            end.take();
        }
        pool.take_snapshots(&["v@s".to_owned()]).await.unwrap();
        assert_eq!(pool.let_go_bytes(), 0);
        let snapshot = pool.snapshots.of(goes_back()[0]).remove(0);
        pool.snapshots.insert(Snapshot { is_dying: true, ..snapshot });
        let of_dying = pool.let_go_bytes();
        assert!(of_dying >= LET_GO_BYTES);
        pool.snapshots.wanted.borrow_mut().partly_rolled_back = goes_back();
        assert!(pool.let_go_bytes() >= 2 * LET_GO_BYTES);
        let keep = pool.journal_keep(0) - pool.limits.get().map_reserve_segments;
        assert!(u64::from(keep + 1) * pool.journal_segment_bytes() >= 2 * LET_GO_BYTES);
        pool.snapshots.wanted.take();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_checkpoint_has_room_beside_a_group() {
    Runtime::simulated(2).block_on(async {
        let pool = scattered().await;
        // Each entry has a checksum at least, also without snapshots.
        let entries = pool.store.map.borrow().entries(VolumeId(pool.volumes()[0].id));
        assert!(entries >= 4096 && pool.checkpoint_bytes() >= entries * 8);
        let mut writers = pool.writers.lock().await;
        let held = writers.checkpoint.take();
        let without = pool.segments_before(4096, &writers);
        let start = writers.journal.position().expect("groups were committed");
        let (cursor, index_part) = Default::default();
        writers.checkpoint = Some(Checkpoint { start, cursor, index_part, urgent: true });
        assert!(pool.segments_before(4096, &writers) > without);
        writers.checkpoint = held;
        drop(writers);
        pool.export().await.unwrap();
    });
}

#[test]
fn space_is_tight_while_two_groups_do_not_fit() {
    Runtime::simulated(3).block_on(async {
        let pool = scattered().await;
        let writers = pool.writers.lock().await;
        let blocks = pool.stats.last_group_blocks();
        let two_groups = 2 * pool.segments_before(blocks, &writers);
        leave_free(&pool, two_groups);
        assert!(!pool.is_tight(&writers));
        leave_free(&pool, two_groups - 1);
        assert!(pool.is_tight(&writers));
    });
}

#[test]
fn the_cleaner_ends_when_it_has_gained_what_is_wanted() {
    Runtime::simulated(4).block_on(async {
        let pool = scattered().await;
        let v = pool.open_volume("v").unwrap();
        // Half of each segment is dead then.
        for at in (0..4096).step_by(2) {
            v.write(at * 5 * 4096, stamp(4096, at + 1), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let cleaned = || {
            let mut count = 0;
            pool.store.table.for_each(|_, info| count += u32::from(info.cleaning));
            count
        };
        let before = cleaned();
        let mut writers = pool.writers.lock().await;
        assert!(pool.clean(&mut writers, 1, 0, Choice::Emptiest).await.unwrap());
        let more = cleaned() - before;
        assert!((1..=4).contains(&more), "{more} segments for one");
    });
}

/// Moving a damaged block would give it a checksum that fits.
#[test]
fn a_damaged_block_stays_where_it_is_and_is_not_taken_for_right() {
    Runtime::simulated(5).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..512 {
            v.write(at * 4096, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let device = shelf.open("a").await.unwrap();
        let mut struck = 0;
        for at in (5 << 20..63 << 20).step_by(4096) {
            let held = device.read(at, IoBuf::zeroed(4096)).await.unwrap();
            if held[..] == stamp(4096, 100)[..] {
                device.write(at, stamp(4096, 9999), false).await.unwrap();
                struck += 1;
            }
        }
        assert_eq!(struck, 1);
        // Most of each segment is dead then.
        for at in (0..512).filter(|at| at % 4 != 0) {
            v.write(at * 4096, stamp(4096, at + 1000), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let mut writers = pool.writers.lock().await;
        while pool.clean(&mut writers, 1, 0, Choice::Emptiest).await.unwrap() {}
        drop(writers);
        pool.sync().await.unwrap();
        assert!(v.read(100 * 4096, IoBuf::zeroed(4096)).await.is_err(), "it is lost");
        assert_eq!(pool.status().lost_count, 1);
        for at in (0..512).step_by(4).filter(|at| *at != 100) {
            let found = v.read(at * 4096, IoBuf::zeroed(4096)).await.unwrap();
            assert!(found[..] == stamp(4096, at)[..], "block {at}");
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

/// The checksums of long runs are in the footer alone.
#[test]
fn a_damaged_block_whose_checksum_was_lost_is_not_taken_for_right() {
    const COLUMN: u64 = 256 << 10;
    Runtime::simulated(6).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..32u64 {
            v.write(at << 16, stamp(65536, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        let device = shelf.open("a").await.unwrap();
        let mut struck = 0;
        for at in (5 << 20..63 << 20).step_by(4096) {
            let held = device.read(at, IoBuf::zeroed(4096)).await.unwrap();
            if held[..] == stamp(65536, 20)[..4096] {
                device.write(at, stamp(4096, 9999), false).await.unwrap();
                let footer = at.next_multiple_of(COLUMN) - 4096;
                device.write(footer, stamp(4096, 8888), false).await.unwrap();
                struck += 1;
            }
        }
        assert_eq!(struck, 1);
        // Most of each segment is dead then.
        for at in (0..32u64).filter(|at| *at != 20) {
            v.write(at << 16, stamp(65536, at + 100), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let mut writers = pool.writers.lock().await;
        while pool.clean(&mut writers, 1, 0, Choice::Emptiest).await.unwrap() {}
        drop(writers);
        pool.sync().await.unwrap();
        assert!(v.read(20 << 16, IoBuf::zeroed(4096)).await.is_err(), "it is lost");
        drop(v);
        pool.export().await.unwrap();
    });
}

// A crash leaves segments without a footer.
#[test]
fn the_map_tells_the_same_live_blocks_as_a_footer() {
    Runtime::simulated(7).block_on(async {
        let pool = scattered().await;
        let v = pool.open_volume("v").unwrap();
        for (at, blocks) in [(0, 40), (100, 7), (2000, 90), (5000, 300), (9000, 33)] {
            v.write(at * 4096, stamp(blocks * 4096, at + 7), false).await.unwrap();
        }
        pool.take_snapshots(&["v@s".to_owned()]).await.unwrap();
        v.discard(2010 * 4096, 20 * 4096, false).await.unwrap();
        v.write(5100 * 4096, stamp(50 * 4096, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        let table = pool.store.table.clone();
        let mut compared = 0;
        for segment in (0..table.count()).map(SegmentId) {
            let info = table.get(segment);
            if !info.footer {
                continue;
            }
            let told = async |footer: bool| {
                let mut info = info;
                info.footer = footer;
                let live = pool.live_blocks(segment, &info).await;
                live.iter().map(|l| (l.block, l.volume, l.lba)).collect::<Vec<_>>()
            };
            let by_footer = told(true).await;
            assert_eq!(told(false).await, by_footer, "segment {segment}");
            compared += by_footer.len();
        }
        assert!(compared > 4096, "{compared}");
        drop(v);
        pool.export().await.unwrap();
    });
}

/// A volume of which most blocks of each segment are dead, and one that stays is bad on `a`. Where
/// that is.
async fn with_a_bad_block(rack: &Rc<Rack>, pool: &Rc<Pool>) -> u64 {
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..512 {
        v.write(at * 4096, stamp(4096, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    if pool.config.borrow().data_members().count() > 1 {
        pool.offline("b").await.unwrap();
    }
    let (a, mut bad) = (rack.device("a"), 0);
    for at in (5 << 20..63 << 20).step_by(4096) {
        let held = a.read(at, IoBuf::zeroed(4096)).await.unwrap();
        if held[..] == stamp(4096, 100)[..] {
            a.write(at, stamp(4096, 9999), false).await.unwrap();
            bad = at;
        }
    }
    for at in (0..512).filter(|at| at % 4 != 0) {
        v.write(at * 4096, stamp(4096, at + 1000), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    bad
}

/// Cleans all that can be, and counts the segments that cannot.
async fn left_alone(pool: &Rc<Pool>) -> u32 {
    let mut writers = pool.writers.lock().await;
    while pool.clean(&mut writers, 1, 0, Choice::Emptiest).await.unwrap() {}
    drop(writers);
    pool.sync().await.unwrap();
    let mut count = 0;
    pool.store.table.for_each(|_, info| {
        let is_full = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
        count += u32::from(is_full && info.cleaning && info.live > 0);
    });
    count
}

// What the cleaner could not read is on the device that was away.
#[test]
fn the_cleaner_tries_again_after_a_resilver() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        with_a_bad_block(&rack, &pool).await;
        assert_eq!(left_alone(&pool).await, 1, "it has a block that cannot be read");
        pool.online("b").await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        assert_eq!(left_alone(&pool).await, 0);
        let v = pool.open_volume("v").unwrap();
        expect(&v, 100 * 4096, &stamp(4096, 100)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn the_cleaner_tries_again_after_a_scrub() {
    Runtime::simulated(7250).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        let bad = with_a_bad_block(&rack, &pool).await;
        assert_eq!(left_alone(&pool).await, 1, "it has a block that cannot be read");
        rack.device("a").write(bad, stamp(4096, 100), false).await.unwrap();
        assert_eq!(left_alone(&pool).await, 1, "it is not tried again and again");
        pool.scrub().await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        assert_eq!(left_alone(&pool).await, 0);
        let v = pool.open_volume("v").unwrap();
        expect(&v, 100 * 4096, &stamp(4096, 100)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
