use super::*;
use crate::catalogue;

fn small(redundancy: Layout, drives: u32) -> Wear {
    Wear {
        device: catalogue::find("samsung-830-128gb").unwrap().device,
        log: catalogue::find("ddrdrive-x1").unwrap().device,
        drives,
        volume_bytes: 48 << 20,
        full: 0.12,
        redundancy,
        block_bytes: 65536,
        turnover: 1.0,
        seed: 1,
    }
}

#[test]
fn interface_bytes_include_parity_and_equal_the_sum_of_parts() {
    let mut last = 0.0;
    for redundancy in [Layout::Raid0, Layout::Raidz1, Layout::Raidz2] {
        let wear = small(redundancy, 5);
        let out = wear.run().unwrap();
        assert_eq!(out, wear.run().unwrap());
        let n = f64::from(wear.drives);
        let least = n / (n - f64::from(wear.parity()));
        // Of the bytes that left memory: what is overwritten within one group goes out once.
        let of_data = out.interface_bytes as f64 / out.parts.data as f64;
        assert!(of_data >= least, "{out:?}");
        assert!(of_data > last, "{out:?}");
        last = of_data;
        let p = out.parts;
        let parts = p.data + p.parity + p.metadata + p.cleaning + p.padding;
        let off = (parts as f64 / out.interface_bytes as f64 - 1.0).abs();
        assert!(off < 0.1, "the pool counts {parts}, the drives {}", out.interface_bytes);
        assert!(out.programmed_bytes as f64 > 0.95 * out.interface_bytes as f64, "{out:?}");
    }
}

#[test]
fn out_of_range_fields_are_refused() {
    let good = small(Layout::Raidz1, 4);
    let dram = catalogue::find("ddrdrive-x1").unwrap().device;
    for bad in [
        Wear { drives: 0, ..good.clone() },
        Wear { drives: 1, ..good.clone() },
        Wear { volume_bytes: 1 << 20, ..good.clone() },
        Wear { full: 1.5, ..good.clone() },
        Wear { full: f64::NAN, ..good.clone() },
        Wear { turnover: 0.0, ..good.clone() },
        Wear { block_bytes: 5000, ..good.clone() },
        Wear { device: dram, ..good.clone() },
    ] {
        assert!(bad.run().is_err_and(|e| e.exit_code() == 2), "{bad:?}");
    }
}

/// Every figure of a run, to the last digit.
fn as_json(outcome: &WearOutcome) -> String {
    serde_json::to_string_pretty(outcome).unwrap()
}

#[test]
fn json_follows_from_the_seed() {
    let wear = small(Layout::Raidz1, 4);
    let first = as_json(&wear.run().unwrap());
    assert_eq!(first, as_json(&wear.run().unwrap()));
    let other = Wear { seed: 2, ..wear };
    assert_ne!(first, as_json(&other.run().unwrap()));
}
