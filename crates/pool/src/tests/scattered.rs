//! Reads of blocks that were written in random order.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt::Runtime;
use forebay_units::Layout;
use proptest::prelude::*;

use super::rack::{memory, paced};
use super::{expect, spec, stamp, volume};
use crate::Pool;

const BLOCK: u64 = 4096;

/// A pool on one device, and the number of reads of that device.
async fn counted() -> (Rc<Pool>, Rc<Cell<u64>>) {
    let reads = Rc::new(Cell::new(0));
    let seen = reads.clone();
    let pace = move |_: &str, operation: Operation, _: u64| {
        seen.set(seen.get() + u64::from(operation == Operation::Read));
        None
    };
    let shelf = paced(memory(&["a"], 128 << 20), pace);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    (pool, reads)
}

#[test]
fn scattered_reads_take_few_commands() {
    Runtime::simulated(3).block_on(async {
        let (pool, reads) = counted().await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let mut model = stamp(8 << 20, 1).to_vec();
        v.write(0, stamp(8 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        for group in 0..3u64 {
            // A different third of all blocks each time, in random order.
            for i in 0..512 {
                let at = ((i * 677) % 512 * 3 + group) * BLOCK;
                let data = stamp(BLOCK as usize, 100 * i + group);
                model[at as usize..][..BLOCK as usize].copy_from_slice(&data);
                v.write(at, data, false).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        // One read for the pages of checksums.
        expect(&v, 0, &model[..1 << 20]).await;
        reads.set(0);
        expect(&v, 0, &model[..1 << 20]).await;
        assert!(
            reads.get() <= 12,
            "{} reads for 256 blocks, none beside its neighbour",
            reads.get()
        );
        pool.export().await.unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn reads_find_what_was_written_in_whatever_order(
        writes in prop::collection::vec((0u64..1000, 1u64..6, any::<bool>()), 1..300),
        reads in prop::collection::vec((0u64..1000, 1u64..300), 1..40),
    ) {
        Runtime::simulated(4).block_on(async move {
            let (pool, _) = counted().await;
            pool.create_volume(&volume(4 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            let mut model = vec![0; 4 << 20];
            for (index, (lba, blocks, ends)) in writes.into_iter().enumerate() {
                let data = stamp((blocks * BLOCK) as usize, index as u64);
                model[(lba * BLOCK) as usize..][..data.len()].copy_from_slice(&data);
                v.write(lba * BLOCK, data, false).await.unwrap();
                if ends && index % 8 == 0 {
                    pool.sync().await.unwrap();
                }
            }
            pool.sync().await.unwrap();
            for (lba, blocks) in reads {
                let end = (lba + blocks).min(1024);
                let (at, len) = (lba * BLOCK, ((end - lba) * BLOCK) as usize);
                let got = v.read(at, IoBuf::zeroed(len)).await.unwrap();
                assert!(got[..] == model[at as usize..][..len], "{blocks} blocks from {lba}");
            }
            pool.export().await.unwrap();
        });
    }
}
