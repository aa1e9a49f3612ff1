use super::*;

const PAGE: &str = r#"
name = "dram card"
capacity_bytes = 4_096_000_000
interface = { kind = "pcie", bit_error_rate = 0 }
power = { idle_w = 5, write_w = 9 }
[media.dram]
service_us = 3
save_mb_s = 80
restore_mb_s = 200
erase_ms = 2000
backup_cycles = 100000
energy = { full_j = 612, save_w = 10, charge_w = 5 }
"#;

fn card(edit: impl Fn(&mut DramSpec)) -> DramSsd {
    let mut spec: DeviceSpec = toml::from_str(PAGE).unwrap();
    match &mut spec.media {
        MediaSpec::Dram(dram) => edit(dram),
        other => panic!("the page is DRAM, not {other:?}"),
    }
    DramSsd::new(&spec, 1).unwrap()
}

fn secs(s: u64) -> Nanos {
    Nanos::from_secs(s)
}

#[test]
fn service_is_the_same_for_any_place_alignment_and_content() {
    let mut card = card(|_| {});
    let mut chance = Chance::new(1);
    let mut now = Nanos(0);
    let mut times = std::collections::BTreeSet::new();
    for number in 0..10_000_u64 {
        let sector = match number % 3 {
            0 => number * 8,
            1 => u64::from(chance.below(7_000_000)),
            _ => u64::from(chance.below(800_000)) * 8,
        };
        let at = card.submit(now, &Request::write(sector * 512, 4096)).unwrap().at;
        times.insert(at.since(now).0);
        now = at;
    }
    assert_eq!(times.len(), 1, "{times:?}");
}

#[test]
fn an_armed_card_goes_through_every_state_and_loses_nothing() {
    let mut card = card(|_| {});
    let mut chance = Chance::new(1);
    assert_eq!(card.state(Nanos(0)), DramState::Armed);
    let at = card.submit(Nanos(0), &Request::write(0, 4096)).unwrap().at;
    assert_eq!(card.durable_before(at), WriteId(2));
    assert_eq!(card.power_cut(at, &mut chance), CutReport::default());
    // 4096 MB at 80 MB/s: 51.2 s; restored at 200 MB/s: 20.48 s; erased in 2 s.
    assert_eq!(card.state(at + secs(51)), DramState::Saving);
    assert_eq!(card.state(at + secs(52)), DramState::Saved);
    let on = card.power_on(at + secs(60), &mut chance);
    assert_eq!(on.damage, vec![]);
    assert_eq!(on.ready_at, at + Nanos::from_millis(80_480));
    assert_eq!(card.state(at + secs(80)), DramState::Restoring);
    assert_eq!(card.state(at + secs(81)), DramState::Restored);
    // 100 J are left and 512 J needed: 82.4 s of charging at 5 W from switching on.
    assert_eq!(card.state(at + secs(100)), DramState::Disarmed);
    assert_eq!(card.durable_before(at + secs(100)), WriteId(0));
    assert_eq!(card.state(at + secs(142)), DramState::Disarmed);
    assert_eq!(card.state(at + secs(143)), DramState::Armed);
    // A request that comes while the image is loaded waits.
    let early = card.submit(at + secs(70), &Request::read(0, 4096)).unwrap();
    assert_eq!(early.status, Status::Done);
    assert!(early.at > on.ready_at);
    assert_eq!(card.backups(), 1);
}

#[test]
fn a_second_cut_before_arming_saves_as_far_as_the_energy_goes() {
    let mut card = card(|_| {});
    let mut chance = Chance::new(1);
    card.power_cut(Nanos(0), &mut chance);
    let ready = card.power_on(secs(60), &mut chance).ready_at;
    assert_eq!(ready, Nanos::from_millis(80_480));
    // 20 s after loading: erased, 100 J + 40 s * 5 W = 300 J of the 512 J needed.
    let report = card.power_cut(secs(100), &mut chance);
    let [hit] = report.damage[..] else { panic!("{report:?}") };
    assert_eq!((hit.write, hit.fate), (None, Fate::Unreadable));
    let kept = hit.offset_bytes as f64 / 4.096e9;
    assert!((0.585..0.587).contains(&kept), "{kept}");
    assert_eq!(card.state(secs(200)), DramState::SaveFailed);
    let ready = card.power_on(secs(200), &mut chance).ready_at;
    let kept_read = card.submit(ready, &Request::read(0, 4096)).unwrap();
    assert_eq!(kept_read.status, Status::Done);
    let lost = card.submit(ready, &Request::read(4_095_995_904, 4096)).unwrap();
    assert!(matches!(lost.status, Status::Unreadable { .. }));
    // Written again, it can be read again.
    card.submit(ready, &Request::write(4_095_995_904, 4096)).unwrap();
    let again = card.submit(ready, &Request::read(4_095_995_904, 4096)).unwrap();
    assert_eq!(again.status, Status::Done);
}

#[test]
fn a_cut_while_the_flash_is_being_erased_loses_everything() {
    let mut card = card(|_| {});
    let mut chance = Chance::new(1);
    card.power_cut(Nanos(0), &mut chance);
    let ready = card.power_on(secs(60), &mut chance).ready_at;
    let report = card.power_cut(ready + secs(1), &mut chance);
    assert_eq!(report.damage.len(), 1);
    assert_eq!((report.damage[0].offset_bytes, report.damage[0].len_bytes), (0, 4_096_000_000));
}

#[test]
fn a_cut_while_restoring_loses_nothing() {
    let mut card = card(|_| {});
    let mut chance = Chance::new(1);
    card.power_cut(Nanos(0), &mut chance);
    card.power_on(secs(60), &mut chance);
    assert_eq!(card.power_cut(secs(70), &mut chance), CutReport::default());
    assert_eq!(card.state(secs(71)), DramState::Saved);
    assert_eq!(card.power_on(secs(80), &mut chance).damage, vec![]);
}

#[test]
fn an_outside_supply_arms_again_as_soon_as_the_flash_is_erased() {
    let mut card = card(|dram| dram.energy.charge_w = 0.0);
    let mut chance = Chance::new(1);
    card.power_cut(Nanos(0), &mut chance);
    let ready = card.power_on(secs(60), &mut chance).ready_at;
    assert_eq!(card.state(ready + secs(1)), DramState::Restored);
    assert_eq!(card.state(ready + secs(3)), DramState::Armed);
}

#[test]
fn backup_flash_beyond_its_cycles_fails_in_the_end() {
    let mut card = card(|dram| {
        dram.backup_cycles = 3;
        dram.energy.charge_w = 0.0;
    });
    let mut chance = Chance::new(1);
    let mut now = Nanos(0);
    for backup in 1..200 {
        card.power_cut(now, &mut chance);
        let on = card.power_on(now + secs(60), &mut chance);
        now = on.ready_at + secs(10);
        if !on.damage.is_empty() {
            assert!(backup > 3, "it failed within its rated cycles");
            assert_eq!(card.state(on.ready_at + secs(1)), DramState::RestoreFailed);
            return;
        }
    }
    panic!("it never failed");
}

#[test]
fn a_card_without_enough_energy_is_never_armed() {
    let card = card(|dram| dram.energy.full_j = 100.0);
    assert_eq!(card.state(secs(100_000)), DramState::Disarmed);
}

#[test]
fn writes_in_flight_at_the_cut_are_reported_lost() {
    let mut card = card(|_| {});
    let done = card.submit(Nanos(0), &Request::write(4096, 4096)).unwrap();
    let report = card.power_cut(Nanos(1), &mut Chance::new(1));
    assert_eq!(report.damage.len(), 1);
    assert_eq!((report.damage[0].write, report.damage[0].fate), (Some(done.write), Fate::Lost));
}
