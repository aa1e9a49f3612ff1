use super::*;
use proptest::prelude::*;

#[test]
fn late_reservation_leaves_earlier_time_free() {
    let mut calendar = Calendar::default();
    assert_eq!(calendar.reserve(1000, 100), 1100);
    assert_eq!(calendar.reserve(0, 100), 100);
    // In two pieces, around the reservation from 1000 to 1100.
    assert_eq!(calendar.reserve(950, 100), 1150);
    assert_eq!(calendar.busy, [(0, 100), (950, 1150)]);
}

proptest! {
    /// Against an array of single nanoseconds.
    #[test]
    fn reservation_takes_the_first_free_nanoseconds(
        asked in prop::collection::vec((0usize..300, 0usize..40), 1..60),
    ) {
        let (mut calendar, mut taken) = (Calendar::default(), vec![false; 4000]);
        for (earliest, len) in asked {
            let free: Vec<usize> = (earliest..4000).filter(|&ns| !taken[ns]).take(len).collect();
            free.iter().for_each(|&ns| taken[ns] = true);
            let done = free.last().map_or(earliest, |last| last + 1);
            prop_assert_eq!(calendar.reserve(earliest as u64, len as u64), done as u64);
            let pairs = calendar.busy.iter().zip(calendar.busy.iter().skip(1));
            prop_assert!(pairs.into_iter().all(|(a, b)| a.1 < b.0));
        }
    }
}
