//! Writes and zeroes that begin and end within blocks, against a copy in memory.

use std::ops::Range;

use forebay_device::{Device, IoBuf, ZeroOptions};
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::memory;
use super::{expect, spec, stamp, volume};
use crate::Pool;

const SIZE: usize = 128 << 10;

/// Begins and ends within one block, within its neighbors, within blocks that lie apart, and at
/// their edges.
const RANGES: [Range<usize>; 11] = [
    512..1024,
    512..4608,
    3584..3584 + 8192,
    4096..8192,
    0..4608,
    3584..4608,
    512..8192,
    4096..9 * 4096 + 1024,
    512..9 * 4096 + 1024,
    2 * 4096 - 512..8 * 4096 + 512,
    SIZE - 4608..SIZE - 512,
];

async fn change(v: &Device, range: &Range<usize>, salt: Option<u64>) -> Vec<u8> {
    let (at, len) = (range.start as u64, range.len());
    match salt {
        Some(salt) => {
            let data = stamp(len, salt);
            v.write(at, data.clone(), false).await.unwrap();
            data.to_vec()
        }
        None => {
            v.write_zeroes(at, len as u64, ZeroOptions::default()).await.unwrap();
            vec![0; len]
        }
    }
}

// What surrounds the part is read from the devices, from the open group, or is a hole.
#[test]
fn what_is_written_in_part_keeps_the_rest_of_its_first_and_last_block() {
    Runtime::simulated(1).block_on(async {
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(memory(&["a", "b", "l"], 64 << 20), "tank", &options).await;
        let pool = pool.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for (number, range) in (0..).zip(&RANGES) {
            for (is_zero, before) in [(false, "hole"), (false, "dirty"), (true, "stored")] {
                v.discard(0, SIZE as u64, false).await.unwrap();
                let mut model = vec![0; SIZE];
                if before != "hole" {
                    model = stamp(SIZE, 1000 + number).to_vec();
                    v.write(0, stamp(SIZE, 1000 + number), false).await.unwrap();
                }
                if before == "stored" {
                    pool.sync().await.unwrap();
                }
                let salt = if is_zero { None } else { Some(number) };
                let data = change(&v, range, salt).await;
                model[range.clone()].copy_from_slice(&data);
                expect(&v, 0, &model).await;
                pool.sync().await.unwrap();
                expect(&v, 0, &model).await;
                let got = v.read(range.start as u64, IoBuf::zeroed(range.len())).await.unwrap();
                assert!(got[..] == model[range.clone()], "{range:?} over what was {before}");
            }
        }
        drop(v);
        pool.export().await.unwrap();
    });
}
