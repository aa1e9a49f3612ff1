use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn counts(places: Places, count: u32, draws: u64) -> BTreeMap<u32, u64> {
    let draw = PlaceDraw::new(places, count);
    let mut chance = Chance::new(11);
    let mut counts = BTreeMap::new();
    for _ in 0..draws {
        *counts.entry(draw.next(&mut chance)).or_default() += 1;
    }
    counts
}

#[test]
fn zipf_ranks_come_as_often_as_the_law_says() {
    const PLACES: u32 = 1000;
    const DRAWS: u64 = 2_000_000;
    for theta in [0.5, 0.99, 1.0, 1.5] {
        let mut got: Vec<u64> =
            counts(Places::Zipf { theta }, PLACES, DRAWS).into_values().collect();
        got.sort_unstable_by(|a, b| b.cmp(a));
        let sum: f64 = (1..=PLACES).map(|k| f64::from(k).powf(-theta)).sum();
        for rank in [1, 2, 3, 10] {
            let share = f64::from(rank as u32).powf(-theta) / sum;
            let expected = DRAWS as f64 * share;
            let deviation = (expected * (1.0 - share)).sqrt();
            // Sorting picks the largest of noisy counts, so neighbors of rank 10 may swap.
            let off = (got[rank - 1] as f64 - expected).abs();
            assert!(off < 5.0 * deviation + 0.01 * expected, "{theta}, rank {rank}: {off}");
        }
    }
}

#[test]
fn hot_places_take_their_share_of_the_requests() {
    let places = Places::HotCold { places: 0.1, requests: 0.9 };
    let counts = counts(places, 1000, 1_000_000);
    assert_eq!(counts.len(), 1000, "cold places are reached as well");
    let mut sorted: Vec<u64> = counts.values().copied().collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let hot: u64 = sorted[..100].iter().sum();
    assert!((hot as f64 / 1e6 - 0.9).abs() < 0.003, "{hot}");
    // Scattered: the hot ones are not the first hundred.
    let threshold = sorted[99];
    let first = counts.range(..100).filter(|(_, n)| **n >= threshold).count();
    assert!(first < 30, "{first}");
}

#[test]
fn scattered_ranks_visit_each_place_once() {
    for places in [1, 2, 3, 64, 97, 1000, 4096] {
        let step = u64::from(scatter_step(places));
        let seen: BTreeSet<u64> =
            (0..u64::from(places)).map(|rank| rank * step % u64::from(places)).collect();
        assert_eq!(seen.len(), places as usize);
    }
}
