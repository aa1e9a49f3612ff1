//! What a root says of a snapshot that it brings, and what a volume may do after its snapshot.

use forebay_device::ErrorKind;
use forebay_rt::Runtime;
use forebay_units::{Layout, VolumeId};

use super::rack::memory;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::VolumeSpec;

const SIZE: u64 = 64 << 20;
const PART: u64 = 64 << 10;

// While a snapshot comes or goes, an overwrite is taken for a block more.
#[test]
fn a_full_pool_takes_overwrites_once_its_snapshot_is_under_a_root_or_gone() {
    Runtime::simulated(1).block_on(async {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], SIZE), "tank", &options).await.unwrap();
        pool.create_volume(&VolumeSpec { sparse: true, ..volume(1 << 30) }).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for is_destroyed in [false, true] {
            v.write(0, stamp(PART as usize, 1), false).await.unwrap();
            match is_destroyed {
                false => pool.take_snapshots(&names(&["v@s"])).await.unwrap(),
                true => pool.destroy_snapshots(&names(&["v@s"])).await.unwrap(),
            }
            pool.sync().await.unwrap();
            let mut end = PART;
            let full = loop {
                match v.write(end, stamp(PART as usize, end), false).await {
                    Ok(()) => end += PART,
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind, ErrorKind::NoSpace, "{full}");
            assert_eq!((full.offset_bytes, full.len_bytes), (end, PART), "{full}");
            pool.sync().await.unwrap();
            assert!(pool.free_blocks() < PART / 4096);
            for at in (PART..end).step_by(PART as usize) {
                v.write(at, stamp(PART as usize, at + 1), false).await.unwrap();
            }
            v.discard(PART, end - PART, true).await.unwrap();
            pool.sync().await.unwrap();
        }
        pool.export().await.unwrap();
    });
}

// It is a part of the identity by which a stream finds its base.
#[test]
fn a_snapshot_has_the_number_of_the_root_that_brought_it() {
    Runtime::simulated(2).block_on(async {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], SIZE), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let id = VolumeId(pool.volumes()[0].id);
        for (count, name) in [(1, "v@a"), (2, "v@b")] {
            let before = pool.sync.commit.get();
            pool.take_snapshots(&names(&[name])).await.unwrap();
            let all = pool.snapshots.of(id);
            assert_eq!(all.len(), count);
            assert!(all[count - 1].commit > before.0);
            assert!(all[count - 1].commit <= pool.sync.commit.get().0);
        }
        pool.export().await.unwrap();
    });
}
