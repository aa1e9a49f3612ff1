use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u32),
    Lower(u32),
    TakeLowest,
    Take(u32),
    Rebase,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20_u32, 0..=9_u32).prop_map(|(block, key)| Step::Insert(block, key)),
        6 => (0..20_u32).prop_map(Step::Lower),
        2 => Just(Step::TakeLowest),
        1 => (0..20_u32).prop_map(Step::Take),
        1 => Just(Step::Rebase),
    ]
}

proptest! {
    /// Against a plain map of keys: the same members, always sorted, and the lowest is the lowest.
    #[test]
    fn sorted_blocks_follow_a_plain_map(steps in prop::collection::vec(step(), 1..200)) {
        let mut sorted = SortedBlocks::new(20, 9);
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let mut chance = Chance::new(1);
        for step in steps {
            match step {
                Step::Insert(block, key) => {
                    if let std::collections::btree_map::Entry::Vacant(slot) = model.entry(block) {
                        slot.insert(key);
                        sorted.insert(block, key);
                    }
                }
                Step::Lower(block) => {
                    if let Some(key) = model.get_mut(&block).filter(|key| **key > 0) {
                        sorted.lower(block, *key);
                        *key -= 1;
                    }
                }
                Step::TakeLowest => {
                    if let Some(first) = sorted.first() {
                        let lowest = *model.values().min().unwrap();
                        prop_assert_eq!(model[&first], lowest);
                        let taken = sorted.take_lowest(lowest, &mut chance);
                        prop_assert_eq!(model.remove(&taken), Some(lowest));
                    }
                }
                Step::Take(block) => {
                    if let Some(key) = model.remove(&block) {
                        sorted.take(block, key);
                    }
                }
                Step::Rebase => sorted.rebase(),
            }
            let members: Vec<u32> = (0..20).filter(|&block| sorted.contains(block)).collect();
            prop_assert!(members.iter().eq(model.keys()));
            let order: Vec<u32> = (sorted.head..sorted.tail)
                .map(|at| sorted.ring[(at & sorted.mask) as usize])
                .collect();
            prop_assert!(order.windows(2).all(|pair| model[&pair[0]] <= model[&pair[1]]));
            prop_assert_eq!(order.iter().copied().collect::<BTreeSet<u32>>().len(), model.len());
            prop_assert!(order.iter().all(|block| sorted.contains(*block)));
        }
    }
}
