use super::*;
use crate::catalogue;

fn logs(sorting: Sorting) -> Logs {
    Logs {
        device: catalogue::find("intel-s3700-200gb").expect("built in").device,
        scale: 512,
        seed: 3,
        sorting,
        speeds: vec![16, 4, 1, 1],
        used: 0.98,
        rounds: 4,
        block_bytes: 4096,
        outstanding: 32,
    }
}

#[test]
fn logs_that_the_device_tells_apart_move_nothing() {
    let run = |sorting| logs(sorting).run().expect("runs");
    let (none, streams, zones) = (run(Sorting::None), run(Sorting::Streams), run(Sorting::Zones));
    assert!((1.0..1.001).contains(&zones.whole.amplification), "{zones:?}");
    assert!(none.whole.amplification > 1.1, "{none:?}");
    assert!(streams.whole.amplification < 1.0 + (none.whole.amplification - 1.0) / 2.0);
    // The same segments of the same flash.
    assert_eq!((none.segment_bytes, none.segments), (zones.segment_bytes, zones.segments));
    // The controller bounds the rate of this device, so that fewer programs save power alone.
    assert!(zones.whole.iops > 0.99 * none.whole.iops, "{zones:?} {none:?}");
    assert!(zones.whole.power_w < 0.9 * none.whole.power_w, "{zones:?} {none:?}");
}

#[test]
fn one_log_costs_the_same_however_it_is_sorted() {
    for sorting in [Sorting::None, Sorting::Streams, Sorting::Zones] {
        let outcome = Logs { speeds: vec![1], ..logs(sorting) }.run().expect("runs");
        assert!((0.99..1.01).contains(&outcome.whole.amplification), "{sorting:?}: {outcome:?}");
    }
}

#[test]
fn impossible_logs_are_refused_in_one_line() {
    let plain = || logs(Sorting::Zones);
    let dram = catalogue::find("ddrdrive-x1").expect("built in").device;
    for wrong in [
        Logs { speeds: vec![], ..plain() },
        Logs { speeds: vec![0], ..plain() },
        Logs { used: 0.0, ..plain() },
        Logs { used: f64::NAN, ..plain() },
        Logs { used: 1e-6, ..plain() },
        Logs { rounds: 0, ..plain() },
        Logs { block_bytes: 1000, ..plain() },
        Logs { outstanding: 0, ..plain() },
        Logs { device: dram, ..plain() },
    ] {
        let error = wrong.run().expect_err("must refuse");
        assert!(error.exit_code() == 2 && !error.to_string().contains('\n'), "{wrong:?}: {error}");
    }
}
