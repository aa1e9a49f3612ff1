use super::*;
use crate::catalogue;

fn shared(devices: u32, hba_iops: f64) -> SharedOutcome {
    let device = catalogue::find("ddrdrive-x1").expect("built in").device;
    let pattern = Load { random_share: 1.0, ..Load::default() };
    Shared { device, devices, hba_iops, seed: 1, requests: 5_000, pattern }.run().expect("runs")
}

#[test]
fn rates_add_up_to_the_cap_of_the_adapter() {
    let one = shared(1, 0.0).whole.iops;
    let four = shared(4, 0.0).whole.iops;
    assert!((four / one - 4.0).abs() < 0.02, "{four} against {one}");
    let capped = shared(4, 60_000.0).whole;
    assert!((capped.iops / 60_000.0 - 1.0).abs() < 0.01, "{}", capped.iops);
    // Little's law with the wait at the adapter counted.
    let outstanding = capped.iops * capped.mean_ms / 1000.0;
    assert!((outstanding / 128.0 - 1.0).abs() < 0.02, "{outstanding}");
}

#[test]
fn out_of_range_fields_are_refused() {
    let device = catalogue::find("ddrdrive-x1").expect("built in").device;
    let good = Shared {
        device,
        devices: 1,
        hba_iops: 0.0,
        seed: 1,
        requests: 1,
        pattern: Load::default(),
    };
    for bad in [
        Shared { devices: 0, ..good.clone() },
        Shared { requests: 0, ..good.clone() },
        Shared { hba_iops: -1.0, ..good.clone() },
        Shared { hba_iops: f64::NAN, ..good.clone() },
    ] {
        assert_eq!(bad.run().expect_err("must refuse").exit_code(), 2);
    }
}
