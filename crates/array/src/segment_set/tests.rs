use std::collections::BTreeSet;

use proptest::prelude::*;

use super::SegmentSet;

proptest! {
    #[test]
    fn segment_set_agrees_with_an_ordered_set(
        limit in 1u32..300,
        steps in prop::collection::vec((any::<bool>(), any::<u32>()), 0..200),
    ) {
        let (mut set, mut model) = (SegmentSet::new(limit), BTreeSet::new());
        for (insert, index) in steps {
            let index = index % limit;
            if insert {
                prop_assert_eq!(set.insert(index), model.insert(index));
            } else {
                prop_assert_eq!(set.remove(index), model.remove(&index));
            }
            prop_assert_eq!(set.contains(index), model.contains(&index));
        }
        prop_assert_eq!(set.len() as usize, model.len());
        prop_assert!(set.iter().eq(model.iter().copied()));
        let from_ranges: Vec<u32> = set.ranges().into_iter().flatten().collect();
        prop_assert!(from_ranges.into_iter().eq(model.iter().copied()));
        for pair in set.ranges().windows(2) {
            prop_assert!(pair[0].end < pair[1].start);
        }
    }
}

#[test]
fn full_set_ends_at_its_limit() {
    let set = SegmentSet::full(70);
    assert_eq!(set.ranges(), vec![0..70]);
    assert!(!set.contains(70));
    assert_eq!(set.word(1), 0b11_1111);
}
