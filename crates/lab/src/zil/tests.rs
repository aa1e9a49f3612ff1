use super::*;
use crate::catalogue;

fn zil(datasets: u32, layout: LogLayout) -> Zil {
    Zil {
        device: catalogue::find("ddrdrive-x1").expect("built in").device,
        scale: 0,
        seed: 3,
        datasets,
        layout,
        block_bytes: 8192,
        mean_blocks: 5.0,
        think_us: 200.0,
        commits: 3_000,
        frames_in_flight: 4,
    }
}

#[test]
fn one_chain_is_sequential_and_five_are_not() {
    let one = zil(1, LogLayout::Chains).run().expect("runs");
    let five = zil(5, LogLayout::Chains).run().expect("runs");
    assert!(one.random_percent < 1.0, "{}", one.random_percent);
    assert!((25.0..55.0).contains(&five.random_percent), "{}", five.random_percent);
    let seeks: u64 = five.seeks.iter().map(|s| s.1 + s.2).sum();
    let share = seeks as f64 / (seeks + five.zero_seeks) as f64 * 100.0;
    assert!((share - five.random_percent).abs() < 1e-9);
}

#[test]
fn one_stream_is_sequential_and_packs_records() {
    let few = zil(1, LogLayout::Stream).run().expect("runs");
    let many = zil(100, LogLayout::Stream).run().expect("runs");
    // Only the step from the end of the log back to its front is a seek.
    assert!(many.random_percent < 0.5, "{}", many.random_percent);
    assert!(many.mean_bytes > few.mean_bytes, "frames take what waits");
    assert!(many.overhead < few.overhead, "and share their headers and padding");
}

#[test]
fn pattern_counts_like_iopattern() {
    let mut p = Pattern::default();
    for (offset, len) in [(4096, 4096), (8192, 512), (8704, 512), (0, 512), (1 << 20, 512)] {
        p.note(offset, len);
    }
    assert_eq!((p.writes, p.random), (5, 2));
    // Back over 9,216 bytes = 18 sectors; ahead from 512 to 2^20 = 2,047 sectors.
    assert_eq!(p.back, BTreeMap::from([(16, 1)]));
    assert_eq!(p.ahead, BTreeMap::from([(1024, 1)]));
}

#[test]
fn out_of_range_fields_are_refused() {
    let good = zil(1, LogLayout::Chains);
    for bad in [
        Zil { datasets: 0, ..good.clone() },
        Zil { block_bytes: 100, ..good.clone() },
        Zil { mean_blocks: 0.5, ..good.clone() },
        Zil { think_us: -1.0, ..good.clone() },
        Zil { frames_in_flight: 0, ..good.clone() },
    ] {
        assert_eq!(bad.run().expect_err("must refuse").exit_code(), 2);
    }
}
