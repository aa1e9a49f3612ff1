use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn requests_stay_on_the_device_and_on_their_grid(
        random in 0.0..=1.0f64, sectors in 1u32..64, align in 1u32..64, offset in 0u64..64,
        capacity in 200u64..100_000, workers in 1u32..4, seed: u64,
    ) {
        let load = Load {
            random_share: random, block_bytes: sectors * 512, align_bytes: align * 512,
            offset_bytes: offset * 512, workers, ..Load::default()
        };
        let mut asks = Asks::new(&load, capacity * 512, seed).expect("fits");
        for i in 0..200 {
            let ask = asks.next(i % workers as usize);
            prop_assert!(ask.offset_bytes >= offset * 512);
            prop_assert!(ask.offset_bytes + u64::from(ask.len_bytes) <= capacity * 512);
            prop_assert_eq!(ask.offset_bytes % 512, 0);
        }
    }
}

#[test]
fn sequential_workers_follow_themselves_and_wrap() {
    let load = Load { workers: 2, ..Load::default() };
    let mut asks = Asks::new(&load, 16 * 4096, 1).expect("fits");
    let of = |asks: &mut Asks, worker| asks.next(worker).offset_bytes / 4096;
    let mut seen = Vec::new();
    for _ in 0..9 {
        seen.push((of(&mut asks, 0), of(&mut asks, 1)));
    }
    assert_eq!(seen[0], (0, 8));
    assert_eq!(seen[7], (7, 15));
    assert_eq!(seen[8], (8, 0));
}

#[test]
fn shares_of_reads_and_random_places_are_met() {
    let load = Load { read_share: 0.3, random_share: 0.5, ..Load::default() };
    let mut asks = Asks::new(&load, 1 << 34, 7).expect("fits");
    let (mut reads, mut jumps, mut expected) = (0, 0, 0);
    for _ in 0..100_000 {
        let ask = asks.next(0);
        reads += u32::from(ask.kind == AskKind::Read);
        jumps += u32::from(ask.offset_bytes != expected);
        expected = ask.offset_bytes + 4096;
    }
    assert!((29_000..31_000).contains(&reads), "{reads}");
    assert!((49_000..51_000).contains(&jumps), "{jumps}");
}

#[test]
fn out_of_range_fields_are_refused_in_one_line() {
    let good = Load::default();
    for bad in [
        Load { read_share: -0.1, ..good.clone() },
        Load { random_share: 1.5, ..good.clone() },
        Load { random_share: f64::NAN, ..good.clone() },
        Load { block_bytes: 0, ..good.clone() },
        Load { block_bytes: 700, ..good.clone() },
        Load { align_bytes: 0, ..good.clone() },
        Load { offset_bytes: 3, ..good.clone() },
        Load { outstanding: 0, ..good.clone() },
        Load { workers: 0, ..good.clone() },
        Load { offset_bytes: 1 << 40, ..good.clone() },
    ] {
        let error = Asks::new(&bad, 1 << 30, 0).expect_err("must refuse");
        assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn content_blocks_have_the_named_content() {
    assert!(Content::Repeating.block(4096, 1).iter().all(|b| *b == 0x5a));
    let half = Content::Half.block(4096, 1);
    assert!(half[2048..].iter().all(|b| *b == 0x5a) && half[..2048].iter().any(|b| *b != 0x5a));
    assert_ne!(Content::PseudoRandom.block(4096, 1), Content::PseudoRandom.block(4096, 2));
}
