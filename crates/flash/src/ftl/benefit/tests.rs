use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn choice_is_that_of_the_formula_for_every_block(
        slots in 2_u32..2_000,
        // Few values, so that blocks tie; and ages beyond what 24 bits hold, so that they round.
        blocks in prop::collection::vec((0_u32..50, 0_u64..40), 1..200),
        step in prop::sample::select(vec![1_u64, 3, 1 << 20, 1 << 40]),
    ) {
        let live_slots: Vec<u32> = blocks.iter().map(|(live, _)| live * slots / 49).collect();
        let closed_at: Vec<u64> = blocks.iter().map(|(_, at)| at * step).collect();
        let now = 40 * step;
        let benefit = |block: usize| {
            let used = live_slots[block] as f32 / slots as f32;
            (1.0 - used) * (now - closed_at[block] + 1) as f32 / (1.0 + used)
        };
        let mut expected = 0;
        for block in 1..blocks.len() {
            if benefit(block) > benefit(expected) {
                expected = block;
            }
        }
        let all: Vec<u32> = (0..blocks.len() as u32).collect();
        let got = Benefit::new(slots).best(&all, &live_slots, &closed_at, now);
        prop_assert_eq!(got, expected as u32);
    }
}
