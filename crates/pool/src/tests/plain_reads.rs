//! Reads as clients make them: of any length, of what is nowhere, and of what cannot be read.

use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{spec, stamp, volume};
use crate::Pool;
use crate::spec::VolumeSpec;

const SIZE: u64 = 8 << 20;

async fn made() -> (Rc<Rack>, Rc<Pool>, Device) {
    let rack = Rack::new(&["a"], 64 << 20);
    let options = spec(Layout::Raid0, &["a"], &[]);
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    pool.set("txg_timeout", "600").await.unwrap();
    pool.create_volume(&VolumeSpec { sparse: true, ..volume(SIZE) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (rack, pool, v)
}

/// A buffer that was used before.
fn used(len: usize) -> IoBuf {
    let mut buf = IoBuf::zeroed(len);
    buf.fill(0xaa);
    buf
}

// The blocks are in the main store, in the open group, holes that were made, and nothing yet.
#[test]
fn any_part_of_a_volume_is_read_as_it_is() {
    Runtime::simulated(6130).block_on(async {
        let (_, pool, v) = made().await;
        let mut model = vec![0; 64 << 10];
        model[..32 << 10].copy_from_slice(&stamp(32 << 10, 1));
        v.write(0, stamp(32 << 10, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        model[8 << 10..12 << 10].copy_from_slice(&stamp(4 << 10, 2));
        v.write(8 << 10, stamp(4 << 10, 2), false).await.unwrap();
        model[20 << 10..24 << 10].fill(0);
        v.discard(20 << 10, 4 << 10, false).await.unwrap();
        for cache in ["8M", "off", "8M"] {
            pool.set("cache_size", cache).await.unwrap();
            for at in (0..11).map(|block| block << 12).flat_map(|at| [at, at + 512, at + 3584]) {
                for len in [512, 1024, 3584, 4096, 4608, 8192, 12 << 10, 13824] {
                    let got = v.read(at as u64, used(len)).await.unwrap();
                    assert!(got[..] == model[at..at + len], "{len} bytes at {at}, cache {cache}");
                }
            }
            pool.sync().await.unwrap();
        }
        let got = v.read(0, IoBuf::zeroed(0)).await.unwrap();
        assert!(got.is_empty());
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_part_of_a_block_takes_no_more_than_its_block() {
    Runtime::simulated(6131).block_on(async {
        let (_, pool, v) = made().await;
        pool.set("cache_size", "off").await.unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let read = || pool.stats().devices["a"].read_bytes;
        for at in [9 << 12, 100 << 12] {
            // Where sums are read as well.
            v.read(at, IoBuf::zeroed(8192)).await.unwrap();
            let before = read();
            v.read(at + 512, IoBuf::zeroed(1024)).await.unwrap();
            assert_eq!(read() - before, 4096);
            v.read(at + 512, IoBuf::zeroed(4096)).await.unwrap();
            assert_eq!(read() - before, 3 * 4096);
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn an_error_names_the_blocks_of_the_volume_that_cannot_be_read() {
    Runtime::simulated(6132).block_on(async {
        let (rack, pool, v) = made().await;
        v.write(3 << 20, stamp(64 << 10, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        // The first of them are in the cache.
        let first = (3 << 20) >> 12;
        v.read(3 << 20, IoBuf::zeroed(8192)).await.unwrap();
        rack.switches.unreadable.borrow_mut().insert("a".to_owned());
        let error = v.read(3 << 20, IoBuf::zeroed(16 << 10)).await.unwrap_err();
        let place = (error.offset_bytes, error.len_bytes);
        assert_eq!(place, ((3 << 20) + 8192, 8192), "{error}");
        let lost = [2, 3].map(|block| format!("tank/v: offset {}", (first + block) << 12));
        assert_eq!(pool.lost(), (lost.to_vec(), 2));
        let error = v.read((3 << 20) + 20480, IoBuf::zeroed(4096)).await.unwrap_err();
        assert_eq!((error.offset_bytes, error.len_bytes), ((3 << 20) + 20480, 4096));
        rack.switches.unreadable.borrow_mut().clear();
        drop(v);
        pool.export().await.unwrap();
    });
}
