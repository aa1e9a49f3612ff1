use super::*;

#[test]
fn percentiles_are_those_of_the_sorted_times_within_one_percent() {
    // Squares, so that the tail is long: 1 µs to 10^4 s.
    let times: Vec<u64> = (1..=100_000u64).map(|i| i * i * 100 + 1_000).collect();
    let mut noted = Times::default();
    times.iter().for_each(|&ns| noted.note(ns));
    let got = noted.percentiles();
    assert_eq!(got.requests, 100_000);
    assert_eq!(got.max_ms, *times.last().unwrap() as f64 / 1e6);
    for (share, got) in SHARES.iter().zip(got.at_ms) {
        let rank = (share * times.len() as f64).ceil() as usize - 1;
        let exact = times[rank] as f64 / 1e6;
        let got = got.expect("at least one time lies beyond");
        assert!((got / exact - 1.0).abs() < 0.01, "{share}: {exact} exact, {got} got");
    }
}

#[test]
fn percentile_beyond_which_no_request_lies_is_unknown() {
    let mut noted = Times::default();
    (1..=999).for_each(|us| noted.note(us * 1000));
    let got = noted.percentiles();
    assert!(got.at_ms[2].is_some() && got.at_ms[3].is_none(), "{got:?}");
    noted.note(1);
    assert!(noted.percentiles().at_ms[3].is_some());
    assert_eq!(Times::default().percentiles(), Percentiles::default());
}

#[test]
fn reads_and_writes_stay_apart_when_windows_are_taken_together() {
    let (mut whole, mut window) = (BothTimes::default(), BothTimes::default());
    window.note(true, 5_000_000);
    window.note(false, 1_000_000);
    window.note(false, 3_000_000);
    whole.take(&mut window);
    whole.take(&mut window);
    let got = whole.responses();
    assert_eq!((got.reads.requests, got.writes.requests), (1, 2));
    assert_eq!((got.reads.max_ms, got.writes.max_ms), (5.0, 3.0));
}

#[test]
fn counts_have_every_request_in_the_range_of_its_time() {
    let mut noted = BothTimes::default();
    // Ranges are 100 ns to 126 ns, and so on: ten a tenfold.
    for (ns, times) in [(50, 1), (110, 2), (1_010, 3), (1_200, 4), (1_300, 5), (2_000_000, 6)] {
        (0..times).for_each(|_| noted.note(false, ns));
    }
    noted.note(true, 10 * MOST_NS);
    let counts = noted.counts();
    assert_eq!(counts.writes, [(0, 3), (10, 7), (11, 5), (43, 6)]);
    assert_eq!(counts.reads, [(RANGES - 1, 1)]);
    for (range, _) in &counts.writes[1..] {
        let (low, high) = (range_edge_ms(*range), range_edge_ms(range + 1));
        assert!((high / low - 10f64.powf(0.1)).abs() < 1e-2, "{low} to {high}");
    }
}
