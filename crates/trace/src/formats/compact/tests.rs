use super::{unzigzag, zigzag};
use proptest::prelude::*;

#[test]
fn small_distances_to_either_side_have_small_codes() {
    let codes: Vec<u64> = [10, 9, 11, 8].iter().map(|to| zigzag(10, *to)).collect();
    assert_eq!(codes, [0, 1, 2, 3]);
}

proptest! {
    #[test]
    fn distances_come_back(from in any::<u64>(), to in any::<u64>()) {
        prop_assert_eq!(unzigzag(from, zigzag(from, to)), to);
    }
}
