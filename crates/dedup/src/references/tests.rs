use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn counts_agree_with_a_plain_model(
        changes in proptest::collection::vec((0..3 * PAGE_BLOCKS, 1..600u64, 0..3u8), 1..300),
    ) {
        let mut counts = References::default();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (first, blocks, remove) in changes {
            if remove == 0 {
                // Only what is there can go.
                let there: Vec<u64> = model.range(first..first + blocks).map(|(b, _)| *b).collect();
                for block in there {
                    let mut unused = Vec::new();
                    counts.remove(block, 1, |block| unused.push(block));
                    let left = model[&block] - 1;
                    prop_assert_eq!(unused, if left == 0 { vec![block] } else { vec![] });
                    if left == 0 {
                        model.remove(&block);
                    } else {
                        model.insert(block, left);
                    }
                }
                continue;
            }
            counts.add(first, blocks);
            (first..first + blocks).for_each(|block| *model.entry(block).or_default() += 1);
        }
        for block in 0..4 * PAGE_BLOCKS {
            prop_assert_eq!(counts.count(block), model.get(&block).copied().unwrap_or(0));
        }
        prop_assert_eq!(counts.total(), model.values().sum::<u64>());
        for first in [0, PAGE_BLOCKS - 1, PAGE_BLOCKS + 70, 5 * PAGE_BLOCKS] {
            let used: Vec<(u64, u64)> = counts.used_from(first).collect();
            let expected = model.range(first..).map(|(block, count)| (*block, *count));
            prop_assert_eq!(used, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_count_may_be_larger_than_a_byte() {
    let mut counts = References::default();
    (0..1000).for_each(|_| counts.add(7, 1));
    assert_eq!((counts.count(7), counts.count(8), counts.total()), (1000, 0, 1000));
    (0..999).for_each(|_| counts.remove(7, 1, |_| panic!("one is left")));
    assert_eq!(counts.count(7), 1);
    let mut unused = Vec::new();
    counts.remove(7, 1, |block| unused.push(block));
    assert_eq!(unused, [7]);
    assert_eq!((counts.pages.len(), counts.large.len()), (0, 0));
}

#[test]
#[should_panic(expected = "virtual block 3 has no reference")]
fn a_reference_that_is_not_there_cannot_go() {
    References::default().remove(3, 1, |_| {});
}
