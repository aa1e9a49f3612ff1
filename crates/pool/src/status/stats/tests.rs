use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::tests::rack::memory;
use crate::tests::spec;

// The order is the format's.
#[test]
fn the_counters_of_a_root_are_the_figures_that_the_format_names() {
    Runtime::simulated(4074).block_on(async {
        let counters: [u64; COUNTERS] = std::array::from_fn(|at| 1000 + at as u64);
        let ever = from_counters(&counters);
        let op = |count: u64| OpCount { count, bytes: count + 1 };
        let Traffic { reads, writes, trims, flushes, fuas, log_writes, .. } = ever;
        let ops = [reads, writes, trims, flushes, fuas, log_writes];
        assert_eq!(ops, [1000, 1002, 1004, 1006, 1008, 1010].map(op));
        assert_eq!((ever.log_sequential_writes, ever.segments_cleaned), (1012, 1021));
        let m = ever.media;
        let media = [m.data, m.parity, m.metadata, m.cleaning, m.padding, m.repair, m.log];
        assert_eq!(media, [1013, 1014, 1015, 1016, 1017, 1018, 1019]);
        let map = MapSize::from_counters(&counters);
        assert_eq!((map.bytes, map.volume, map.volume_bytes), (1022, VolumeId(1023), 1024));
        let stats = Stats::new(&counters, &FiguresConfig::default());
        assert_eq!(stats.clock(), 1020);

        let shelf = memory(&["a"], 64 << 20);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let before = pool.counters();
        *pool.stats.since.borrow_mut() = ever;
        let now = pool.counters();
        for at in (0..20).chain([21]) {
            assert_eq!(now[at], counters[at] + from_before(&pool, at), "{at}");
        }
        assert_eq!(now[20], before[20]);
        assert_eq!(MapSize::from_counters(&now), map_size(&pool.store.map.borrow()));
        assert_eq!(now[25..], [0; COUNTERS - 25]);
    });
}

/// A counter of the time before the import.
fn from_before(pool: &Pool, at: usize) -> u64 {
    let since = pool.stats.since.replace(Traffic::default());
    let before = pool.counters()[at];
    *pool.stats.since.borrow_mut() = since;
    before
}

#[test]
fn latencies_are_the_times_that_so_many_did_not_exceed() {
    let of = histogram();
    assert_eq!(latency(&of.borrow()), Latency::default());
    for micros in 1..=10_000 {
        of.borrow_mut().saturating_record(micros * 1000);
    }
    let is_about = |got: f64, expected: f64| (got / expected - 1.0).abs() < 0.01;
    let fine = latency(&of.borrow());
    assert_eq!(fine.count, 10_000);
    for (got, expected) in [
        (fine.mean_us, 5000.5),
        (fine.p50_us, 5000.0),
        (fine.p90_us, 9000.0),
        (fine.p99_us, 9900.0),
        (fine.p999_us, 9990.0),
        (fine.p9999_us, 9999.0),
        (fine.max_us, 10_000.0),
    ] {
        assert!(is_about(got, expected), "{got} {expected}");
    }
    assert!(fine.p99_us < fine.p999_us);
    // What earlier imports counted comes to it.
    let all = coarse(&[(1_000_000, 4), (9_000_000_000, 6)], &of.borrow());
    assert_eq!(all.len(), 10_010);
    assert!((0.93..1.07).contains(&(latency(&all).max_us / 9e6)), "{:?}", latency(&all));
    let kept: u64 = places(&all).iter().map(|(_, count)| count).sum();
    assert_eq!(kept, 10_010);
}

#[test]
fn lifetime_figures_are_kept_every_ten_minutes_and_at_the_end_every_minute() {
    Runtime::simulated(4075).block_on(async {
        let stats = Stats::new(&[0; COUNTERS], &FiguresConfig::default());
        rt::sleep(Nanos::from_secs(59)).await;
        assert!(!stats.figures_are_due(true));
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(stats.figures_are_due(true) && !stats.figures_are_due(false));
        rt::sleep(Nanos::from_secs(539)).await;
        assert!(!stats.figures_are_due(false));
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(stats.figures_are_due(false));
    });
}

#[test]
fn counts_of_a_device_that_is_opened_again_add_up() {
    Runtime::simulated(4076).block_on(async {
        let stats = Stats::new(&[0; COUNTERS], &FiguresConfig::default());
        let counts = Counts {
            reads: 1,
            read_bytes: 2,
            writes: 3,
            write_bytes: 4,
            sequential_writes: 5,
            flushes: 6,
            discards: 7,
            discard_bytes: 8,
            ..Counts::default()
        };
        stats.counted_before(DeviceId(7), &counts);
        stats.counted_before(DeviceId(7), &counts);
        assert_eq!(stats.earlier.borrow().devices[&7], [2, 4, 6, 8, 10, 12, 14, 16]);
        let shown = io_counts(&counts);
        let reads = (shown.reads, shown.read_bytes, shown.writes, shown.write_bytes);
        assert_eq!((reads, shown.sequential_writes), ((1, 2, 3, 4), 5));
        assert_eq!((shown.flushes, shown.discards, shown.discard_bytes), (6, 7, 8));
    });
}

#[test]
fn long_polls_have_their_mean() {
    let of = |count, total| {
        let (place, longest, longest_at) = ("a.rs:1".to_owned(), Nanos(4000), Nanos::ZERO);
        long_poll(rt::LongPolls { place, count, total: Nanos(total), longest, longest_at })
    };
    let shown = of(2, 6000);
    assert_eq!((shown.mean_us, shown.longest_us, shown.count), (3.0, 4.0, 2));
    assert_eq!((of(1, 4000).mean_us, of(0, 0).mean_us), (4.0, 0.0));
}
