//! Writes of parts of blocks beside others of the same blocks, while the rest is read.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::VolumeSpec;

const BLOCK: usize = 4096;
const SIZE: u64 = 8 << 20;
/// Where the block is that all of them write.
const AT: u64 = SIZE - BLOCK as u64;

/// A volume whose last block is in the main store alone.
struct Made {
    pool: Rc<Pool>,
    v: Device,
    /// While it is set, what is read takes ten seconds.
    is_slow: Rc<Cell<bool>>,
}

async fn made() -> Made {
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let shelf = paced(memory(&["a"], 64 << 20), move |_, operation, _| {
        (operation == Operation::Read && told.get()).then_some(Nanos::from_secs(10))
    });
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    pool.set("cache_size", "off").await.unwrap();
    pool.set("txg_timeout", "600").await.unwrap();
    pool.create_volume(&VolumeSpec { sparse: true, ..volume(SIZE) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(AT, stamp(BLOCK, 1), false).await.unwrap();
    pool.sync().await.unwrap();
    Made { pool, v, is_slow }
}

impl Made {
    /// Writes a part of the block, in a task of its own that has begun to read when this returns.
    async fn begun(&self, at: usize, len: usize, salt: u64) -> rt::JoinHandle<bool> {
        let v = self.v.clone();
        self.is_slow.set(true);
        let write =
            rt::spawn(
                async move { v.write(AT + at as u64, stamp(len, salt), false).await.is_ok() },
            );
        rt::sleep(Nanos::from_millis(10)).await;
        self.is_slow.set(false);
        assert!(!write.is_finished());
        write
    }
}

fn laid_over(block: &mut [u8], at: usize, len: usize, salt: u64) {
    block[at..at + len].copy_from_slice(&stamp(len, salt));
}

#[test]
fn parts_of_one_block_that_are_written_at_once_are_all_there() {
    Runtime::simulated(6120).block_on(async {
        let made = made().await;
        let Made { pool, v, .. } = &made;
        let mut block = stamp(BLOCK, 1).to_vec();
        let mut writes = Vec::new();
        for part in 0..4 {
            writes.push(made.begun(part * 1024, 512, 10 + part as u64).await);
            laid_over(&mut block, part * 1024, 512, 10 + part as u64);
        }
        for write in writes {
            assert!(write.await);
        }
        expect(v, AT, &block).await;
        pool.sync().await.unwrap();
        expect(v, AT, &block).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_whole_block_that_is_written_beside_a_part_of_it_is_not_lost() {
    Runtime::simulated(6121).block_on(async {
        let made = made().await;
        let Made { pool, v, .. } = &made;
        let part = made.begun(512, 1024, 2).await;
        v.write(AT, stamp(BLOCK, 3), false).await.unwrap();
        assert!(part.await);
        let whole = stamp(BLOCK, 3);
        let mut both = whole.to_vec();
        laid_over(&mut both, 512, 1024, 2);
        let got = v.read(AT, IoBuf::zeroed(BLOCK)).await.unwrap();
        assert!(got[..] == whole[..] || got[..] == both[..]);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_was_zeroed_or_trimmed_beside_a_part_does_not_come_back() {
    for is_trim in [false, true] {
        Runtime::simulated(6122).block_on(async move {
            let made = made().await;
            let Made { pool, v, .. } = &made;
            let part = made.begun(512, 1024, 2).await;
            match is_trim {
                true => v.discard(AT, BLOCK as u64, false).await.unwrap(),
                false => v.write_zeroes(AT, BLOCK as u64, Default::default()).await.unwrap(),
            }
            assert!(part.await);
            let mut with_part = vec![0; BLOCK];
            laid_over(&mut with_part, 512, 1024, 2);
            let got = v.read(AT, IoBuf::zeroed(BLOCK)).await.unwrap();
            assert!(got[..] == with_part[..] || got.iter().all(|byte| *byte == 0), "{is_trim}");
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_a_part_has_read_does_not_come_back_after_its_block_was_cut_off() {
    Runtime::simulated(6123).block_on(async {
        let made = made().await;
        let Made { pool, v, .. } = &made;
        let part = made.begun(512, 1024, 2).await;
        pool.resize_volume("v", SIZE / 2, true).await.unwrap();
        pool.resize_volume("v", SIZE, false).await.unwrap();
        let is_written = part.await;
        let mut with_part = vec![0; BLOCK];
        laid_over(&mut with_part, 512, 1024, 2);
        let got = v.read(AT, IoBuf::zeroed(BLOCK)).await.unwrap();
        let is_zero = got.iter().all(|byte| *byte == 0);
        assert!(is_zero || is_written && got[..] == with_part[..]);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_a_part_has_read_does_not_come_back_after_a_rollback() {
    Runtime::simulated(6124).block_on(async {
        let made = made().await;
        let Made { pool, v, .. } = &made;
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        v.write(AT, stamp(BLOCK, 5), false).await.unwrap();
        pool.sync().await.unwrap();
        let part = made.begun(512, 1024, 2).await;
        pool.roll_back_volume("v@s", false).await.unwrap();
        let is_written = part.await;
        let before = stamp(BLOCK, 1);
        let mut with_part = before.to_vec();
        laid_over(&mut with_part, 512, 1024, 2);
        let got = v.read(AT, IoBuf::zeroed(BLOCK)).await.unwrap();
        assert!(got[..] == before[..] || is_written && got[..] == with_part[..]);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_part_of_a_volume_that_is_destroyed_meanwhile_is_refused() {
    Runtime::simulated(6125).block_on(async {
        let made = made().await;
        let Made { pool, .. } = &made;
        let part = made.begun(512, 1024, 2).await;
        pool.destroy_volume("v", false).await.unwrap();
        assert!(!part.await);
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().alloc_bytes, 0);
        pool.export().await.unwrap();
    });
}
