use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::FingerprintKey;

fn print_of(number: u64) -> Fingerprint {
    FingerprintKey::of_pool(1).fingerprint(&number.to_le_bytes())
}

proptest! {
    #[test]
    fn index_agrees_with_a_plain_model(
        changes in proptest::collection::vec((0..5000u64, 0..1000u64), 1..3000),
    ) {
        let mut index = Index::new(1 << 30);
        let mut model = BTreeMap::new();
        for (number, block) in changes {
            prop_assert!(index.insert(&print_of(number), block, |_| true));
            model.insert(number, block);
        }
        for number in 0..5000 {
            prop_assert_eq!(index.get(&print_of(number)), model.get(&number).copied());
        }
        prop_assert_eq!(index.len(), model.len() as u64);
        let parts = (0..index.parts()).flat_map(|part| index.part(part));
        let mut found: Vec<_> = parts.collect();
        found.sort_unstable();
        let mut expected: Vec<_> =
            model.iter().map(|(number, block)| (print_of(*number), *block)).collect();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_full_index_keeps_a_share_and_its_limit() {
    const LIMIT_BYTES: u64 = 2 << 20;
    let mut index = Index::new(LIMIT_BYTES);
    for number in 0..400_000 {
        index.insert(&print_of(number), number, |_| true);
        assert!(index.memory_bytes() <= LIMIT_BYTES);
    }
    assert!(index.one_in() >= 4, "400,000 slots of 21 bytes do not fit");
    // All that it says to keep is there, and nothing else is found.
    for number in 0..400_000 {
        let expected = index.keeps(&print_of(number)).then_some(number);
        assert_eq!(index.get(&print_of(number)).filter(|_| expected.is_some()), expected);
    }
    let share = 400_000 / index.one_in();
    let kept: usize = (0..index.parts()).map(|part| index.part(part).count()).sum();
    assert!(kept as u64 > share * 9 / 10 && (kept as u64) < share * 11 / 10, "{kept} of {share}");
}

#[test]
fn dead_blocks_make_room_first() {
    let mut index = Index::new(1 << 20);
    for number in 0..1_000_000 {
        // Only the last thousand are alive, so the index never has to leave any out.
        index.insert(&print_of(number), number, |block| block + 1000 > number);
    }
    assert_eq!(index.one_in(), 1);
    for number in 999_000..1_000_000 {
        assert_eq!(index.get(&print_of(number)), Some(number));
    }
}
