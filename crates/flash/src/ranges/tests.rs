use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

proptest! {
    /// Against a plain set of numbers.
    #[test]
    fn ranges_follow_a_set_of_numbers(
        steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..20_u64), 1..60),
    ) {
        let mut ranges = Ranges::default();
        let mut model = BTreeSet::new();
        for (insert, start, len) in steps {
            if insert {
                ranges.insert(start..start + len);
                model.extend(start..start + len);
            } else {
                ranges.remove(start..start + len);
                model.retain(|number| !(start..start + len).contains(number));
            }
            for number in 0..80 {
                let is_in = ranges.first_in(number..number + 1).is_some();
                prop_assert_eq!(is_in, model.contains(&number));
            }
            let first = model.range(10..70).next().copied();
            prop_assert_eq!(ranges.first_in(10..70).map(|range| range.start), first);
        }
    }
}
