//! What blocks are judged by: of open and full segments, of footers, and of what has changed since.

use forebay_array::BlockVerdict;
use forebay_device::IoBuf;
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{BlockAddr, Layout, Nanos};

use super::Owner;
use crate::Pool;
use crate::scrub::tests::written::{segment, spoil, written};
use crate::status::{ScanPhase, ScanStatus};
use crate::tests::rack::Rack;
use crate::tests::{expect, spec, stamp, volume};

async fn scrubbed(pool: &Pool) -> ScanStatus {
    pool.scrub().await.unwrap();
    loop {
        rt::sleep(Nanos::from_millis(100)).await;
        let scan = pool.scan_status().unwrap();
        if scan.state != ScanPhase::InProgress {
            assert_eq!(scan.state, ScanPhase::Completed);
            return scan;
        }
    }
}

#[test]
fn the_first_block_of_a_run_in_an_open_segment_is_judged() {
    Runtime::simulated(7240).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(64 << 10, 7), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(spoil(&rack.device("a"), &[stamp(64 << 10, 7)]).await, 1);
        assert_eq!(scrubbed(&pool).await.errors, 1);
        assert_eq!(pool.status().lost_count, 1);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_block_that_was_overwritten_since_is_dead() {
    Runtime::simulated(7241).block_on(async {
        let pool = written().await;
        let full =
            segment(&pool, |kind, state| kind == SegmentKind::Data && state == SegmentState::Full);
        let writers = pool.writers.lock().await;
        let info = pool.store.table.get(full);
        let with_sums = pool.owners(&writers, full, &info).await;
        // As for a segment whose footer is not written yet.
        let mut open = info;
        open.footer = false;
        let without = pool.owners(&writers, full, &open).await;
        drop(writers);
        let is_data = |owner: &Owner| matches!(owner, Owner::Data(..));
        let is_unknown = |owner: &Owner| matches!(owner, Owner::Unknown(Some(_)));
        let known = *with_sums.iter().find(|(_, owner)| is_data(owner)).unwrap().0;
        let unknown = *without.iter().find(|(_, owner)| is_unknown(owner)).unwrap().0;
        let verdicts = || {
            let judge =
                |owners, block| pool.judge(owners, BlockAddr::new(full, block), &[0xee; 4096]);
            (judge(&with_sums, known), judge(&without, unknown))
        };
        assert_eq!(verdicts(), (BlockVerdict::Bad, BlockVerdict::Bad));
        let v = pool.open_volume("v").unwrap();
        for at in 0..4 {
            v.write(at << 20, stamp(1 << 20, 70 + at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert_eq!(verdicts(), (BlockVerdict::Dead, BlockVerdict::Dead));
        drop(v);
        pool.export().await.unwrap();
    });
}

// Its place in the row is all that is left to recover it from, and nothing else in the row is live.
#[test]
fn the_place_of_a_lost_footer_is_left_alone() {
    const COLUMN: u64 = 256 << 10;
    const BLOCK: u64 = 4096;
    Runtime::simulated(7243).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for i in 0..32 {
            v.write(i << 16, stamp(65536, i), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        let (a, b) = (rack.device("a"), rack.device("b"));
        let first = stamp(65536, 20);
        let mut at = 5 << 20;
        while a.read(at, IoBuf::zeroed(4096)).await.unwrap()[..] != first[..4096] {
            at += BLOCK;
        }
        let end = at.next_multiple_of(COLUMN);
        // The blocks of the footer's row go.
        for beside in (end - 4 * BLOCK..end - BLOCK).step_by(4096) {
            let held = a.read(beside, IoBuf::zeroed(4096)).await.unwrap();
            for i in 0..32u64 {
                let part = stamp(65536, i);
                let place = part.chunks(4096).position(|block| *block == held[..]);
                if let Some(place) = place {
                    v.discard((i << 16) + place as u64 * BLOCK, BLOCK, false).await.unwrap();
                }
            }
        }
        pool.sync().await.unwrap();
        let footer = b.read(end - BLOCK, IoBuf::zeroed(4096)).await.unwrap();
        a.write(end - BLOCK, IoBuf::copy_of(&[0xee; 4096]).freeze(), false).await.unwrap();
        let bad = ("b".to_owned(), end - BLOCK);
        rack.switches.bad_blocks.borrow_mut().insert(bad.clone());
        assert!(scrubbed(&pool).await.errors > 0);
        assert!(rack.switches.bad_blocks.borrow_mut().remove(&bad), "it was written");
        assert!(b.read(end - BLOCK, IoBuf::zeroed(4096)).await.unwrap()[..] == footer[..]);
        assert_eq!(scrubbed(&pool).await.errors, 0, "it can be read again");
        expect(&v, 20 << 16, &stamp(65536, 20)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
