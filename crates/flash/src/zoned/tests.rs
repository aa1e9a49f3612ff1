use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Ssd;
use crate::spec::{FlashSpec, Plp};

/// Four dies; a zone is 128 units of 4 KiB on all of them.
const PAGE: &str = r#"
name = "zoned"
capacity_bytes = 16_777_216
interface = { kind = "nvme", bit_error_rate = 0 }
[media.flash.geometry]
channels = 2
dies_per_channel = 2
planes_per_die = 1
blocks_per_plane = 37
pages_per_block = 32
page_bytes = 4096
[media.flash.timing]
read_us = 25
program_us = 200
erase_us = 1500
channel_mb_s = 800
[media.flash.cache]
plp = "full"
[media.flash.zones]
max_open = 2
max_active = 3
"#;

const ZONES: u32 = 32;
const ZONE_UNITS: u64 = 128;

fn spec(edit: impl Fn(&mut FlashSpec)) -> DeviceSpec {
    let mut spec: DeviceSpec = toml::from_str(PAGE).unwrap();
    match &mut spec.media {
        MediaSpec::Flash(flash) => edit(flash),
        other => panic!("the page is flash, not {other:?}"),
    }
    spec
}

fn zoned() -> ZonedSsd {
    ZonedSsd::new(&spec(|_| {}), 1).unwrap()
}

fn why(error: &RequestError) -> ZoneRefusal {
    match error {
        RequestError::Zone { why, .. } => *why,
        other => panic!("not a rule of zones: {other}"),
    }
}

#[test]
fn a_zone_on_all_dies_takes_what_the_dies_can_program() {
    let mut ssd = zoned();
    assert_eq!((ssd.zone_count(), ssd.zone_bytes()), (ZONES, ZONE_UNITS * 4096));
    let (mut now, mut end) = (Nanos(0), Nanos(0));
    for unit in 0..16 * ZONE_UNITS {
        now = ssd.submit(now, &Request::write(unit * 4096, 4096)).unwrap().at;
        end = end.max(now);
    }
    // 200 us a page and die, less the four units that the buffer still holds.
    let rate = (16 * ZONE_UNITS) as f64 / end.as_secs_f64();
    assert!((19_900.0..20_300.0).contains(&rate), "{rate}");
    let stats = ssd.stats(end);
    assert_eq!(stats.media_written_bytes, stats.written_bytes);
}

#[test]
fn a_zone_on_one_die_takes_what_one_die_can_program() {
    let narrow = spec(|flash| flash.ftl.superblock_dies = 1);
    let mut ssd = ZonedSsd::new(&narrow, 1).unwrap();
    let (mut now, bytes) = (Nanos(0), ssd.zone_bytes());
    for zone in 0..32_u32 {
        for unit in 0..bytes / 4096 {
            let at = u64::from(zone) * 4 * bytes + unit * 4096;
            now = ssd.submit(now, &Request::write(at, 4096)).unwrap().at;
        }
    }
    let rate = 32.0 * (bytes / 4096) as f64 / now.as_secs_f64();
    assert!((4_900.0..5_100.0).contains(&rate), "{rate}");
}

#[test]
fn commands_that_break_a_rule_change_nothing() {
    let mut ssd = zoned();
    let bytes = ssd.zone_bytes();
    let now = ssd.append(Nanos(0), 0, 8192).unwrap().1.at;
    let now = ssd.append(now, 1, 4096).unwrap().1.at;
    let now = ssd.append(now, 2, 4096).unwrap().1.at;
    let before = ssd.digest();
    for (request, rule) in [
        (Request::write(0, 4096), ZoneRefusal::NotAtPointer { pointer_bytes: 8192 }),
        (Request::write(12_288, 4096), ZoneRefusal::NotAtPointer { pointer_bytes: 8192 }),
        (Request::write(8192, bytes), ZoneRefusal::Boundary),
        (Request::write(8192, 512), ZoneRefusal::NotWhole { unit_bytes: 4096 }),
        (Request::write(3 * bytes, 4096), ZoneRefusal::TooManyActive),
    ] {
        assert_eq!(why(&ssd.submit(now, &request).unwrap_err()), rule, "{request:?}");
    }
    assert_eq!(why(&ssd.append(now, ZONES, 4096).unwrap_err()), ZoneRefusal::NoZone);
    assert_eq!(why(&ssd.reset(now, ZONES).unwrap_err()), ZoneRefusal::NoZone);
    assert_eq!(ssd.digest(), before);
    assert_eq!(ssd.stats(now).writes, 3);
    // A zone that is finished is no longer active, and full.
    let now = ssd.finish(now, 1).unwrap().at;
    let full = ZoneRefusal::NotWritable(ZoneState::Full);
    assert_eq!(why(&ssd.append(now, 1, 4096).unwrap_err()), full);
    let now = ssd.append(now, 3, 4096).unwrap().1.at;
    let now = ssd.reset(now, 1).unwrap().at;
    assert_eq!(ssd.zone(1), Some((ZoneState::Empty, bytes)));
    assert_eq!(why(&ssd.append(now, 1, 4096).unwrap_err()), ZoneRefusal::TooManyActive);
}

#[test]
fn the_zone_written_longest_ago_is_closed_for_another() {
    let mut ssd = zoned();
    let mut now = Nanos(0);
    for zone in [0, 1, 0, 2] {
        now = ssd.append(now, zone, 4096).unwrap().1.at;
    }
    let states: Vec<ZoneState> = (0..4).map(|zone| ssd.zone(zone).unwrap().0).collect();
    assert_eq!(states, [ZoneState::Open, ZoneState::Closed, ZoneState::Open, ZoneState::Empty]);
    now = ssd.append(now, 1, 4096).unwrap().1.at;
    assert_eq!(ssd.zone(0).unwrap().0, ZoneState::Closed);
    let cut = ssd.power_cut(now, &mut Chance::new(1));
    assert_eq!(cut, CutReport::default());
    ssd.power_on(now, &mut Chance::new(1));
    assert_eq!(ssd.zone(0), Some((ZoneState::Closed, 8192)));
}

#[test]
fn worn_zones_go_offline() {
    let weak = spec(|flash| flash.endurance.cycles_mean = 3.0);
    let mut ssd = ZonedSsd::new(&weak, 1).unwrap();
    let mut now = Nanos(0);
    for _ in 0..3 {
        now = ssd.append(now, 5, 4096).unwrap().1.at;
        now = ssd.reset(now, 5).unwrap().at;
    }
    let offline = ZoneRefusal::NotWritable(ZoneState::Offline);
    assert_eq!(why(&ssd.append(now, 5, 4096).unwrap_err()), offline);
    assert_eq!(ssd.stats(now).wear.bad_blocks, 1);
}

#[test]
fn reads_of_what_is_not_written_touch_no_flash() {
    let mut ssd = zoned();
    let now = ssd.append(Nanos(0), 0, 64 << 10).unwrap().1.at;
    let later = now + Nanos::from_millis(10);
    ssd.submit(later, &Request::read(64 << 10, 4096)).unwrap();
    assert_eq!(ssd.stats(later + Nanos::from_millis(1)).media_read_ns, 0);
    let asked = later + Nanos::from_millis(1);
    let read = ssd.submit(asked, &Request::read(0, 4096)).unwrap().at;
    assert!(read.since(asked) >= Nanos::from_micros(25), "{read:?}");
}

#[test]
fn zones_take_a_plain_device() {
    for flaw in [
        spec(|flash| flash.cache.plp = Plp::None),
        spec(|flash| flash.ftl.streams = 2),
        spec(|flash| flash.ftl.map_journal_units = 8),
        spec(|flash| flash.zones.as_mut().unwrap().max_open = 4),
        spec(|flash| flash.zones.as_mut().unwrap().max_active = 0),
        spec(|flash| flash.geometry.blocks_per_plane = 31),
    ] {
        assert!(ZonedSsd::new(&flaw, 1).is_err(), "{:?}", flaw.media);
    }
    let none = spec(|flash| flash.zones = None);
    assert_eq!(ZonedSsd::new(&none, 1).unwrap_err().flaw, SpecFlaw::NoZones);
}

/// Three logs, one of which moves eight times as fast as the others, each in a ring of its own.
/// What a round of the slow logs costs: bytes programmed a byte, and writes a second.
fn three_logs(model: &mut dyn Model, ring: u64, mut reset: impl FnMut(u64) -> bool) -> (f64, f64) {
    let (mut now, mut next) = (Nanos(0), [0_u64; 3]);
    let mut before = model.stats(now);
    for number in 0..20 * ring {
        if number == 10 * ring {
            before = model.stats(now);
        }
        let log = (number % 10).saturating_sub(7) as usize;
        let unit = log as u64 * ring + next[log] % ring;
        if unit % ZONE_UNITS == 0 && reset(unit) {
            now = model.submit(now, &Request::trim(unit * 4096, ZONE_UNITS * 4096)).unwrap().at;
        }
        now = model.submit(now, &Request::write(unit * 4096, 4096)).unwrap().at;
        next[log] += 1;
    }
    let round = model.stats(now).since(&before);
    (round.write_amplification(), round.writes as f64 / round.now.as_secs_f64())
}

#[test]
fn logs_in_zones_move_nothing_and_are_faster_for_it() {
    let ring = 10 * ZONE_UNITS;
    let mut zones = zoned();
    let (zoned_wa, zoned_rate) = three_logs(&mut zones, ring, |_| true);
    assert!((1.0..1.001).contains(&zoned_wa), "{zoned_wa}");
    // The same flash behind a translation layer, with all of it but the reserve offered.
    let plain = spec(|flash| flash.zones = None);
    let mut plain = Ssd::new(&plain, 1).unwrap();
    let (plain_wa, plain_rate) = three_logs(&mut plain, ring, |_| false);
    assert!(plain_wa > 1.3, "{plain_wa}");
    // Erases are the same for both: programs decide.
    let gain = zoned_rate / plain_rate;
    assert!(gain > 1.0 + (plain_wa - 1.0) / 2.0, "{gain} with {plain_wa}");
}

/// What the rules say, without any device.
#[derive(Default)]
struct Rules {
    written: BTreeMap<u32, u64>,
    full: Vec<u32>,
}

impl Rules {
    fn takes(&self, zone: u32, units: u64) -> bool {
        let active = self.written.keys().filter(|zone| !self.full.contains(zone)).count();
        let fits = self.written.get(&zone).copied().unwrap_or(0) + units <= ZONE_UNITS;
        let is_active = self.written.contains_key(&zone);
        !self.full.contains(&zone) && fits && (is_active || active < 3)
    }
}

proptest! {
    #[test]
    fn any_commands_leave_the_zones_that_the_rules_say(
        steps in prop::collection::vec((0..4_u8, 0..6_u32, 1..80_u64), 1..200),
    ) {
        let (mut ssd, mut rules, mut now) = (zoned(), Rules::default(), Nanos(0));
        for (kind, zone, units) in steps {
            match kind {
                0 | 1 => {
                    let done = ssd.append(now, zone, units * 4096);
                    prop_assert_eq!(done.is_ok(), rules.takes(zone, units));
                    if let Ok((_, done)) = done {
                        now = done.at;
                        let written = rules.written.entry(zone).or_insert(0);
                        *written += units;
                        if *written == ZONE_UNITS {
                            rules.full.push(zone);
                        }
                    }
                }
                2 => {
                    now = ssd.reset(now, zone).unwrap().at;
                    rules.written.remove(&zone);
                    rules.full.retain(|full| *full != zone);
                }
                _ => {
                    now = ssd.finish(now, zone).unwrap().at;
                    if !rules.full.contains(&zone) {
                        rules.written.entry(zone).or_insert(0);
                        rules.full.push(zone);
                    }
                }
            }
            let mut open = 0;
            for zone in 0..ZONES {
                let (state, pointer) = ssd.zone(zone).unwrap();
                let written = rules.written.get(&zone).copied();
                let start = u64::from(zone) * ZONE_UNITS * 4096;
                prop_assert_eq!(pointer, start + written.unwrap_or(0) * 4096);
                prop_assert_eq!(state == ZoneState::Full, rules.full.contains(&zone));
                prop_assert_eq!(state == ZoneState::Empty, written.is_none());
                open += u32::from(state == ZoneState::Open);
            }
            prop_assert!(open <= 2);
        }
    }
}
