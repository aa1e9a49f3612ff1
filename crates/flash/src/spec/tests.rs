use super::*;

const FULL_PAGE: &str = r#"
name = "every field"
capacity_bytes = 50_000_000_000
unused_fraction = 0.2

[interface]
kind = "sata2"
bandwidth_mb_s = 260
command_us = 5.5
queue_depth = 31
hops = 3
hop_us = 4
hba_iops_cap = 60000
bit_error_rate = 1e-12
retry_us = 50

[power]
idle_w = 0.8
read_w = 1.5
write_w = 3.0
erase_w = 2.0

[media.flash.geometry]
channels = 8
dies_per_channel = 2
planes_per_die = 2
blocks_per_plane = 4096
pages_per_block = 128
page_bytes = 4096

[media.flash.timing]
read_us = 25
program_us = 200
erase_us = 1500
channel_mb_s = 40
suspend = "program-and-erase"
suspend_us = 30

[media.flash.ftl]
mapping_unit_bytes = 4096
frontiers = "shared"
policy = { d-choices = 10 }
superblock_dies = 4
reserve_superblocks = 3
cleaning_pace = "whole"
idle_clean_superblocks = 4
idle_after_ms = 50
dynamic_wear_leveling = false
static_wear_gap = 100
map_journal_units = 512
map_persist_ms = 20

[media.flash.controller]
command_us = 2
unit_us = 1
latency_us = 30
power_on_ms = 500
compression = { granule_bytes = 512 }

[media.flash.cache]
bytes = 1_048_576
plp = "map-only"
flush = "ignored"
fua = "honored"
flush_us = 10
paired_pages = true

[media.flash.endurance]
cycles_mean = 5000
cycles_sd_fraction = 0.1
factory_bad_fraction = 0.01
"#;

fn page() -> DeviceSpec {
    toml::from_str(FULL_PAGE).unwrap()
}

fn problem(edit: impl Fn(&mut DeviceSpec, &mut FlashSpec)) -> String {
    let mut spec = page();
    let MediaSpec::Flash(mut flash) = spec.media.clone() else { panic!("the page is flash") };
    edit(&mut spec, &mut flash);
    spec.media = MediaSpec::Flash(flash);
    let text = spec.check().unwrap_err().to_string();
    assert!(!text.contains('\n') && text.contains("every field"), "{text}");
    assert!(crate::build(&spec, 1).is_err());
    text
}

#[test]
fn toml_round_trip_keeps_every_field() {
    let spec = page();
    spec.check().unwrap();
    let written = toml::to_string(&spec).unwrap();
    let again: DeviceSpec = toml::from_str(&written).unwrap();
    assert_eq!(again, spec);
    assert_eq!(spec.offered_bytes(), 40_000_000_000 / 4096 * 4096);
    assert_eq!(crate::build(&spec.scaled(64), 1).unwrap().name(), "every field");
}

#[test]
fn unknown_field_is_refused() {
    let text = FULL_PAGE.replace("erase_us = 1500", "erase_us = 1500\nerase_ms = 1.5");
    let error = toml::from_str::<DeviceSpec>(&text).unwrap_err().to_string();
    assert!(error.contains("erase_ms"), "{error}");
}

#[test]
fn impossible_devices_are_refused_with_the_field() {
    type Edit = fn(&mut DeviceSpec, &mut FlashSpec);
    let cases: [(&str, Edit); 17] = [
        ("geometry.channels", |_, f| f.geometry.channels = 0),
        ("geometry.page_bytes", |_, f| f.geometry.page_bytes = 0),
        ("timing.program_us", |_, f| f.timing.program_us = -1.0),
        ("timing.read_us", |_, f| f.timing.read_us = f64::NAN),
        ("timing.erase_us", |_, f| f.timing.erase_us = 1e12),
        ("timing.program_us", |_, f| f.timing.program_us = 1e9),
        ("cache.bytes", |_, f| f.cache.bytes = u64::MAX),
        ("ftl.mapping_unit_bytes", |_, f| f.ftl.mapping_unit_bytes = 5000),
        ("ftl.superblock_dies", |_, f| f.ftl.superblock_dies = 5),
        ("ftl.reserve_superblocks", |_, f| f.ftl.reserve_superblocks = 0),
        ("ftl.policy", |_, f| f.ftl.policy = CleaningPolicy::DChoices(0)),
        ("media.flash.geometry", |_, f| f.geometry.blocks_per_plane = 2000),
        ("media.flash.geometry", |_, f| f.geometry.blocks_per_plane = u32::MAX),
        ("endurance.factory_bad_fraction", |_, f| f.endurance.factory_bad_fraction = 1.0),
        ("capacity_bytes", |spec, _| spec.capacity_bytes = 0),
        ("unused_fraction", |spec, _| spec.unused_fraction = 1.5),
        ("interface.queue_depth", |spec, _| spec.interface.queue_depth = Some(0)),
    ];
    for (field, edit) in cases {
        let text = problem(edit);
        assert!(text.contains(field), "{field} is not named in: {text}");
    }
}

#[test]
fn scaled_device_keeps_its_spare_fraction() {
    let mut spec = page();
    spec.unused_fraction = 0.0;
    let small = spec.scaled(16);
    let (before, after) = (spec.spare_fraction().unwrap(), small.spare_fraction().unwrap());
    assert!((before - after).abs() < 1e-3, "{before} {after}");
    small.check().unwrap();
}

#[test]
fn interface_kinds_have_different_defaults() {
    let sata = InterfaceSpec::of(InterfaceKind::Sata2).resolve();
    let nvme = InterfaceSpec::of(InterfaceKind::Nvme).resolve();
    assert!(sata.hops > nvme.hops && sata.command_us > nvme.command_us);
    assert!(sata.bandwidth_mb_s < nvme.bandwidth_mb_s && sata.queue_depth < nvme.queue_depth);
}
