use super::*;
use crate::catalogue;

fn usable_spare(device: &DeviceSpec) -> f64 {
    let MediaSpec::Flash(flash) = &device.media else { panic!("flash only") };
    let overhead = flash.ftl.reserve_superblocks as f64 + 2.0;
    let blocks = f64::from(flash.geometry.blocks_per_plane);
    let room = flash.raw_bytes() as f64 * (blocks - overhead) / blocks;
    (room - device.offered_bytes() as f64) / room
}

#[test]
fn every_flash_device_shrinks_and_keeps_its_spare_share() {
    for page in catalogue::all() {
        if !matches!(page.device.media, MediaSpec::Flash(_)) {
            continue;
        }
        for wanted in [0, 2, 7, 16, 100] {
            let (small, scale) = shrink(&page.device, wanted).expect(&page.id);
            let (a, b) = (usable_spare(&page.device), usable_spare(&small));
            assert!((a - b).abs() < 1e-4, "{} 1/{wanted}: {a} against {b}", page.id);
            if wanted > 0 {
                let off = scale / f64::from(wanted);
                assert!((0.7..1.4).contains(&off), "{} 1/{wanted}: {scale}", page.id);
            }
        }
    }
}

#[test]
fn dram_and_disk_keep_their_size() {
    for id in ["ddrdrive-x1", "generic-disk-7200-2tb"] {
        let page = catalogue::find(id).expect(id);
        let (small, scale) = shrink(&page.device, 0).expect(id);
        assert_eq!(small, page.device);
        assert!(scale > 1.0);
    }
}
