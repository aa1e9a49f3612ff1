use forebay_array::ErrorCounts;

use super::*;
use crate::status::ScanStatus;

fn device(state: Health, note: Option<VdevNote>) -> VdevStatus {
    VdevStatus { note, ..leaf("a", 10, state) }
}

#[test]
fn a_device_has_no_errors_only_without_any() {
    let well = device(Health::Online, None);
    assert!(has_no_errors(&well));
    assert!(!has_no_errors(&VdevStatus { read_errors: 1, ..well.clone() }));
    assert!(!has_no_errors(&VdevStatus { write_errors: 1, ..well.clone() }));
    assert!(!has_no_errors(&VdevStatus { checksum_errors: 1, ..well }));
}

#[test]
fn a_device_that_is_rebuilt_is_well_and_one_with_many_errors_is_not() {
    let is_well = |state, note| is_well(&device(state, note));
    for note in [None, Some(VdevNote::Resilvering), Some(VdevNote::AwaitingResilver)] {
        assert!(is_well(Health::Online, note.clone()));
        assert!(!is_well(Health::Faulted, note));
    }
    assert!(!is_well(Health::Online, Some(VdevNote::TooManyErrors)));
}

#[test]
fn a_node_above_devices_has_their_size_and_a_single_device_stands_for_its_group() {
    let devices = || vec![device(Health::Online, None), device(Health::Faulted, None)];
    let mirror = VdevKind::Group(Layout::Mirror);
    let node = branch(mirror, 3, Health::Degraded, devices());
    assert_eq!((node.name.as_str(), node.size_bytes, node.children.len()), ("mirror-3", 20, 2));
    assert_eq!((node.state, node.kind), (Health::Degraded, mirror));
    assert!(has_no_errors(&node));
    for kind in [mirror, VdevKind::Group(Layout::Raid0)] {
        let alone = branch(kind, 3, Health::Online, devices().split_off(1));
        assert_eq!((alone.name.as_str(), alone.state), ("a", Health::Faulted));
    }
    let raidz = branch(VdevKind::Group(Layout::Raidz1), 0, Health::Online, devices().split_off(1));
    assert_eq!((raidz.name.as_str(), raidz.children.len()), ("raidz1-0", 1));
}

#[test]
fn a_member_shows_its_counts_and_whether_it_is_rebuilt() {
    let config = MemberConfig {
        device: 1,
        path: "a".to_owned(),
        size_bytes: 10,
        state: MemberUse::Online,
        stale_since: None,
        stale: Vec::new(),
        replacement: None,
    };
    let of = |state, stale_segments| MemberStatus {
        state,
        stale_segments,
        errors: ErrorCounts { read: 1, write: 2, checksum: 3 },
        id: DeviceId(1),
        group: 0,
        column: 0,
        replacement: false,
        name: None,
        durable_stale: Vec::new(),
    };
    let scan = |kind, state| ScanStatus {
        kind,
        state,
        started_at: 0,
        elapsed_secs: 0,
        done_bytes: 0,
        total_bytes: 0,
        repaired_bytes: 0,
        errors: 0,
    };
    let note = |now: MemberStatus, scan: Option<ScanStatus>| {
        let shown = member_status(&config, Some(&now), None, scan.as_ref());
        assert_eq!((shown.read_errors, shown.write_errors, shown.checksum_errors), (1, 2, 3));
        shown.note
    };
    let stale = || of(MemberState::Online, 1);
    let resilver = scan(ScanKind::Resilver, ScanPhase::InProgress);
    assert_eq!(note(of(MemberState::Online, 0), Some(resilver.clone())), None);
    assert_eq!(note(of(MemberState::Faulted, 1), Some(resilver.clone())), None);
    assert_eq!(note(stale(), Some(resilver)), Some(VdevNote::Resilvering));
    let ended = scan(ScanKind::Resilver, ScanPhase::Completed);
    let scrub = scan(ScanKind::Scrub, ScanPhase::InProgress);
    for other in [None, Some(ended), Some(scrub)] {
        assert_eq!(note(stale(), other), Some(VdevNote::AwaitingResilver));
    }
    let states = [
        (MemberState::Online, Health::Online),
        (MemberState::Degraded, Health::Degraded),
        (MemberState::Offline, Health::Offline),
        (MemberState::Faulted, Health::Faulted),
        (MemberState::Unavail, Health::Unavail),
        (MemberState::Removed, Health::Unavail),
    ];
    for (state, health) in states {
        assert_eq!(member_status(&config, Some(&of(state, 0)), None, None).state, health);
    }
    let counts = Counts { writes: 4, ..Counts::default() };
    let gone = member_status(&config, None, Some(counts), None);
    assert_eq!((gone.state, gone.io.writes, gone.size_bytes), (Health::Unavail, 4, 10));
}
