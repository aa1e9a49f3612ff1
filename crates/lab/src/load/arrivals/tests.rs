use super::*;

#[test]
fn exponential_draws_have_the_distribution() {
    let mut chance = Chance::new(5);
    let draws: Vec<f64> = (0..200_000).map(|_| exponential(&mut chance)).collect();
    let n = draws.len() as f64;
    let mean = draws.iter().sum::<f64>() / n;
    let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    assert!((mean - 1.0).abs() < 0.01 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    for limit in [0.1_f64, 0.5, 1.0, 2.0, 4.0] {
        let beyond = draws.iter().filter(|x| **x > limit).count() as f64 / n;
        let expected = (-limit).exp();
        assert!((beyond - expected).abs() < 0.005, "{limit}: {expected} expected, {beyond} got");
    }
}

#[test]
fn arrivals_keep_their_rate_and_come_in_bursts() {
    let bursts = Arrivals::Bursts { rate_s: 10_000.0, burst: 8 };
    let mut times = ArrivalTimes::new(bursts, 1_000, 1).expect("open");
    let at: Vec<u64> = (0..80_000).map(|_| times.next_ns()).collect();
    assert!(at.windows(2).all(|pair| pair[0] <= pair[1]) && at[0] >= 1_000);
    assert!(at.chunks(8).all(|burst| burst.iter().all(|ns| *ns == burst[0])));
    let rate = at.len() as f64 / (at[at.len() - 1] as f64 / 1e9);
    assert!((rate / 10_000.0 - 1.0).abs() < 0.03, "{rate}");
    assert!(ArrivalTimes::new(Arrivals::Closed, 0, 1).is_none());
}
