//! Contents that are read to be compared, and the neighbors of those that were found.

use forebay_rt::Runtime;

use super::*;
use crate::tests::compression::{blocks, pool_of, sparse};

const COUNT: u64 = 300;

// Contents that are packed and others, in runs of both.
#[test]
fn contents_are_read_under_their_numbers() {
    Runtime::simulated(1).block_on(async {
        let properties = [("dedup", "on"), ("compression", "lz4")];
        let (pool, _) = pool_of(&[sparse("v", 4 << 20, &properties)], 64 << 20).await;
        let v = pool.open_volume("v").unwrap();
        let mut all = Vec::new();
        for run in 0..COUNT / 10 {
            let noise = [200, 1500, 4096][run as usize % 3];
            let data = blocks(run, 10, noise);
            v.write(run * 10 * BLOCK_LEN as u64, data.clone(), false).await.unwrap();
            all.extend(data.chunks(BLOCK_LEN).map(<[u8]>::to_vec));
        }
        pool.sync().await.unwrap();
        let mut by_number = vec![None; all.len()];
        for block in &all {
            let (number, _) = pool.dedup.find(&pool.dedup.key().fingerprint(block)).unwrap();
            by_number[number as usize] = Some(block);
        }
        let [mut packed, mut plain] = [0, 0];
        pool.store.map.borrow().lookup_range(DEDUP_VOLUME, Lba(0), COUNT, |part| match part.kind {
            ExtentKind::Packed { .. } => packed += part.blocks,
            _ => plain += part.blocks,
        });
        assert!(packed > 50 && plain > 50, "{packed} {plain}");
        for (first, count) in [(0, COUNT), (0, 1), (7, 40), (29, 64), (COUNT - 3, 10)] {
            let mut found = pool.contents(Lba(first), count).await;
            found.sort_unstable();
            let numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, (first..COUNT.min(first + count)).collect::<Vec<_>>());
            for (number, data) in found {
                assert!(Some(&data) == by_number[number as usize], "{number}");
            }
        }
        for number in 0..COUNT {
            let content = pool.content_of(number).await.unwrap();
            let is_known = async |block: &[u8], mode| {
                let fingerprint = pool.dedup.key().fingerprint(&content);
                pool.known_content(&fingerprint, block, mode).await
            };
            assert_eq!(is_known(&content, DedupMode::Verify).await, Some(number));
            let mut other = content.clone();
            other[17] ^= 1;
            assert_eq!(is_known(&other, DedupMode::Verify).await, None);
            assert_eq!(is_known(&other, DedupMode::On).await, Some(number));
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn contents_around_one_that_was_found_are_known() {
    Runtime::simulated(2).block_on(async {
        let (pool, _) = pool_of(&[sparse("v", 4 << 20, &[("dedup", "on")])], 64 << 20).await;
        let v = pool.open_volume("v").unwrap();
        let data = blocks(1, COUNT as usize, 4096);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        let prints: Vec<Fingerprint> =
            data.chunks(BLOCK_LEN).map(|block| pool.dedup.key().fingerprint(block)).collect();
        // The whole index is there, so there is nothing to look for.
        pool.look_for_neighbors(&prints).await;
        assert!(!prints.iter().any(|print| pool.dedup.is_near(print)));
        for number in [NEIGHBOR_BLOCKS, 3 * NEIGHBOR_BLOCKS - 1, 4 * NEIGHBOR_BLOCKS + 7] {
            let number_of = |print: &Fingerprint| pool.dedup.find(print).unwrap().0;
            pool.look_at_neighbors(number).await;
            for print in &prints {
                let group = number_of(print) / NEIGHBOR_BLOCKS;
                let expected = match number / NEIGHBOR_BLOCKS {
                    1 => group == 1,
                    2 => (1..=2).contains(&group),
                    _ => (1..=2).contains(&group) || group == 4,
                };
                assert_eq!(pool.dedup.is_near(print), expected, "{}", number_of(print));
            }
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn contents_around_a_gap_are_known_under_their_own_numbers() {
    Runtime::simulated(3).block_on(async {
        let (pool, _) = pool_of(&[sparse("v", 4 << 20, &[("dedup", "on")])], 64 << 20).await;
        let v = pool.open_volume("v").unwrap();
        let data = blocks(1, COUNT as usize, 4096);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        let prints: Vec<Fingerprint> =
            data.chunks(BLOCK_LEN).map(|block| pool.dedup.key().fingerprint(block)).collect();
        let number_of = |print: &Fingerprint| pool.dedup.find(print).map(|(number, _)| number);
        let mut numbers: Vec<Option<u64>> = prints.iter().map(number_of).collect();
        // Nothing refers to this one any more.
        let gap = (NEIGHBOR_BLOCKS + 6) as usize;
        v.discard((gap * BLOCK_LEN) as u64, BLOCK_LEN as u64, false).await.unwrap();
        pool.sync().await.unwrap();
        numbers[gap] = None;
        pool.look_at_neighbors(numbers[gap - 1].unwrap()).await;
        assert!(pool.dedup.is_near(&prints[gap + 1]) && !pool.dedup.is_near(&prints[gap]));
        assert_eq!(prints.iter().map(number_of).collect::<Vec<_>>(), numbers);
        drop(v);
        pool.export().await.unwrap();
    });
}
