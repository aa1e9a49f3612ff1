use super::*;
use crate::catalogue;
use forebay_flash::{Honesty, MediaSpec};

fn cut(id: &str, durability: Durability, change: impl Fn(&mut DeviceSpec)) -> CutOutcome {
    let mut device = catalogue::find(id).expect("built in").device;
    change(&mut device);
    Cut { device, seed: 5, durability, cuts: 60, rest_s: 3600.0 }.run().expect("runs")
}

#[test]
fn protected_devices_keep_every_acknowledged_write() {
    for id in ["ocz-vertex-2-ex-50gb", "ddrdrive-x1", "stec-zeusram-8gb"] {
        for durability in [Durability::Fua, Durability::Flush, Durability::Trusting] {
            let out = cut(id, durability, |_| {});
            assert!(out.safe(), "{id}, {durability:?}: {out:?}");
            assert!(out.promised > 1000, "{id}, {durability:?}: {out:?}");
        }
    }
}

#[test]
fn unprotected_cache_loses_unflushed_writes() {
    let out = cut("samsung-850-pro-256gb", Durability::Trusting, |_| {});
    assert!(!out.safe() && out.lost > 0, "{out:?}");
}

#[test]
fn lying_device_is_caught() {
    let lie = |device: &mut DeviceSpec| {
        if let MediaSpec::Flash(flash) = &mut device.media {
            (flash.cache.flush, flash.cache.fua) = (Honesty::Ignored, Honesty::Ignored);
        }
    };
    for durability in [Durability::Fua, Durability::Flush] {
        let out = cut("samsung-850-pro-256gb", durability, lie);
        assert!(!out.safe() && out.lost > 0, "{durability:?}: {out:?}");
    }
}

#[test]
fn insufficient_energy_is_caught() {
    let tired = |device: &mut DeviceSpec| {
        if let MediaSpec::Dram(dram) = &mut device.media {
            dram.energy.full_j /= 100.0;
        }
    };
    let out = cut("stec-zeusram-8gb", Durability::Fua, tired);
    assert!(!out.safe(), "{out:?}");
}
