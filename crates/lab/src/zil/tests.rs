use super::chain::{Chain, LogSpace};
use super::pattern::PatternCounter;
use super::*;
use crate::catalogue;

fn zil(datasets: u32, layout: LogLayout) -> Zil {
    Zil {
        device: catalogue::find("ddrdrive-x1").expect("built in").device,
        scale: 0,
        seed: 3,
        datasets,
        layout,
        think_us: 200.0,
        commits: 4_000,
    }
}

const OPEN_ZFS: LogLayout = LogLayout::Chains(ChainRules::OpenZfs21);
const WHOLE: LogLayout = LogLayout::Chains(ChainRules::WholeBlocks);

#[test]
fn chain_writes_the_blocks_that_its_rules_name() {
    const KIB: u64 = 1 << 10;
    // By hand. The first block has 4 KiB, which the record of 4 KiB does not fit in.
    let rules = ChainRules::OpenZfs21;
    let mut space = LogSpace::new(rules, 1 << 30);
    let mut chain = Chain::new(rules, 0, &mut space);
    assert_eq!(chain.commit(4 * KIB, &mut space), [(0, 4 * KIB), (4 * KIB, 8 * KIB)]);
    // Blocks of 12 KiB follow, of which two pages are used.
    assert_eq!(chain.commit(4 * KIB, &mut space), [(16 * KIB, 8 * KIB)]);
    assert_eq!(chain.commit(8 * KIB, &mut space), [(28 * KIB, 12 * KIB)]);
    // 32 KiB need a block of 36 KiB; the empty one that is too small is sent with one page.
    let large = chain.commit(32 * KIB, &mut space);
    assert_eq!(large, [(40 * KIB, 4 * KIB), (52 * KIB, 36 * KIB)]);
    // For sixteen blocks more the next one has the size of the largest.
    for i in 0..14 {
        let at = (88 + 36 * i) * KIB;
        assert_eq!(chain.commit(4 * KIB, &mut space), [(at, 8 * KIB)], "commit {i}");
    }
    let mut whole = Chain::new(ChainRules::WholeBlocks, 0, &mut space);
    whole.commit(4 * KIB, &mut space);
    assert_eq!(whole.commit(4 * KIB, &mut space)[0].1, 12 * KIB, "2010 wrote blocks whole");
}

#[test]
fn space_is_divided_as_the_recorded_device_was() {
    // 2 GiB without the labels: metaslabs of 128 MiB, as the trace's jumps show.
    let rules = ChainRules::OpenZfs21;
    let mut space = LogSpace::new(rules, (2 << 30) - (9 << 19));
    let first: Vec<u64> =
        (0..4).map(|a| Chain::new(rules, a, &mut space).commit(512, &mut space)[0].0).collect();
    assert_eq!(first, [0, 128 << 20, 256 << 20, 384 << 20]);
}

/// What `blkparse` shows of a log device of OpenZFS 2.1.11 (docs/device-models.md): random share
/// and mean bytes.
const MEASURED: [(u32, f64, f64); 2] = [(1, 92.53, 16_448.0), (5, 98.74, 16_487.0)];

#[test]
fn modelled_chains_have_the_pattern_of_a_recorded_log_device() {
    for (datasets, random, mean_bytes) in MEASURED {
        let got = zil(datasets, OPEN_ZFS).run().expect("runs").pattern;
        let off = (got.random_percent() - random).abs();
        assert!(off < 3.0, "{datasets}: {random} % measured, {} % got", got.random_percent());
        let ratio = got.mean_bytes() / mean_bytes;
        assert!((0.95..1.05).contains(&ratio), "{datasets}: {} bytes", got.mean_bytes());
        let [near, far, back] = got.directions_percent();
        if datasets == 1 {
            assert!(near > 90.0 && far < 1.0 && back < 1.0, "{near} {far} {back}");
        } else {
            assert!(far > 25.0 && back > 25.0, "{near} {far} {back}");
        }
    }
}

#[test]
fn whole_blocks_of_one_dataset_are_sequential_and_of_five_are_not() {
    let one = zil(1, WHOLE).run().expect("runs").pattern;
    let five = zil(5, WHOLE).run().expect("runs").pattern;
    assert!(one.random_percent() < 1.0, "{}", one.random_percent());
    assert!(five.random_percent() > 10.0, "{}", five.random_percent());
}

#[test]
fn forebays_log_is_sequential_and_packs_records() {
    let few = zil(1, LogLayout::Stream).run().expect("runs");
    let many = zil(100, LogLayout::Stream).run().expect("runs");
    for run in [&few, &many] {
        assert_eq!(run.commits.requests, 4_000);
        assert!(run.pattern.random_percent() < 1.0, "{}", run.pattern.random_percent());
    }
    assert!(many.pattern.mean_bytes() > few.pattern.mean_bytes(), "frames take what waits");
    assert!(many.overhead < few.overhead, "and share their headers and padding");
    assert!((1.0..1.5).contains(&few.overhead), "{}", few.overhead);
}

#[test]
fn pattern_counts_like_iopattern() {
    let mut counter = PatternCounter::default();
    for (offset, len) in [(4096, 4096), (8192, 512), (8704, 512), (0, 512), (1 << 20, 512)] {
        counter.note(offset, len);
    }
    let p = counter.pattern();
    assert_eq!((p.writes, p.random, p.zero_seeks()), (5, 2, 2));
    // Back over 9,216 bytes = 18 sectors; ahead from 512 to 2^20 = 2,047 sectors.
    let seeks =
        [Seeks { sectors: 16, ahead: 0, back: 1 }, Seeks { sectors: 1024, ahead: 1, back: 0 }];
    assert_eq!(p.seeks, seeks);
    assert_eq!(p.sizes, [(1, 4), (8, 1)]);
    assert_eq!(p.directions_percent(), [0.0, 25.0, 25.0]);
}

#[test]
fn out_of_range_fields_are_refused() {
    let good = zil(1, OPEN_ZFS);
    for bad in [
        Zil { datasets: 0, ..good.clone() },
        Zil { commits: 0, ..good.clone() },
        Zil { think_us: -1.0, ..good.clone() },
        Zil { think_us: f64::NAN, ..good.clone() },
    ] {
        assert_eq!(bad.run().expect_err("must refuse").exit_code(), 2);
    }
}
