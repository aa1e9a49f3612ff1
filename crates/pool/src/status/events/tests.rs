use forebay_device::{DramChange, DramState, ErrorKind, Operation};
use forebay_rt::Runtime;

use super::*;

fn error(device: &str) -> DeviceError {
    DeviceError::new(device, Operation::Read, 0, 4096, ErrorKind::Gone)
}

fn name() -> String {
    "a".to_owned()
}

fn damaged(segment: u32) -> PoolEvent {
    PoolEvent::JournalDamaged { segment: SegmentId(segment) }
}

fn numbers(log: &EventLog) -> Vec<u64> {
    log.after(0, "tank", 1).iter().map(|record| record.sequence).collect()
}

#[test]
fn the_newest_events_are_kept_with_their_numbers() {
    Runtime::simulated(4041).block_on(async {
        let most = MAX_KEPT as u64;
        let log = EventLog::default();
        (0..MAX_KEPT as u32 + 5).for_each(|segment| log.push(damaged(segment)));
        assert_eq!(numbers(&log), (6..=most + 5).collect::<Vec<_>>());
        assert_eq!(log.all().last(), Some(&damaged(MAX_KEPT as u32 + 4)));
        // Those of the pool that went on here count as well.
        let next = EventLog::default();
        (0..3).for_each(|segment| next.push(damaged(segment)));
        next.go_on(&log);
        assert_eq!(numbers(&next), (9..=most + 8).collect::<Vec<_>>());
    });
}

// What the operator is told of a failed device is why it failed, not what the pool did beside.
#[test]
fn the_last_event_that_explains_a_failed_device_is_not_one_of_other_things() {
    Runtime::simulated(4042).block_on(async {
        let log = EventLog::default();
        assert_eq!(log.last(), None);
        let why = PoolEvent::TakenOut { device: name() };
        log.push(damaged(1));
        log.push(why.clone());
        for beside in [
            PoolEvent::ScanBegan(ScanKind::Scrub),
            PoolEvent::StoreAnswers { device: name() },
            PoolEvent::OutageReserveLow { lasts_secs: 3 },
            PoolEvent::LogDeviceReturned { device: name() },
            PoolEvent::MemoryShort { free_bytes: 1 << 20 },
            PoolEvent::Import(ImportRemark::TornTail { frame: 7 }),
            PoolEvent::Import(ImportRemark::FramesLeftOut { frame: 7 }),
            PoolEvent::Import(ImportRemark::LossAccepted { loss: "all".to_owned() }),
        ] {
            log.push(beside);
            assert_eq!(log.last().as_ref(), Some(&why));
        }
        let newer = PoolEvent::ManyRepairs { device: name() };
        log.push(newer.clone());
        assert_eq!(log.last(), Some(newer));
    });
}

#[test]
fn a_record_names_the_device_that_its_event_is_about() {
    Runtime::simulated(4043).block_on(async {
        let log = EventLog::default();
        let (from, to) = (DramState::Armed, DramState::Saved);
        let of_devices = [
            PoolEvent::ReadFailed(error("a")),
            PoolEvent::TakenOut { device: name() },
            PoolEvent::LogDeviceFailed { device: name(), error: error("l").into() },
            PoolEvent::LogMemoryChanged {
                device: name(),
                change: DramChange { from, to, reason: None },
            },
            PoolEvent::SpareTaken { device: name(), by: "s".to_owned() },
            PoolEvent::Import(ImportRemark::SideDamaged {
                device: name(),
                offset_bytes: 4096,
                fault: "torn".to_owned(),
            }),
        ];
        let count = of_devices.len();
        of_devices.into_iter().for_each(|event| log.push(event));
        log.push(PoolEvent::Import(ImportRemark::TornTail { frame: 7 }));
        log.push(damaged(1));
        let records = log.after(0, "tank", 9);
        let named = records.iter().map(|record| record.device.as_deref());
        let expected = std::iter::repeat_n(Some("a"), count).chain([None, None]);
        assert_eq!(named.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        assert!(records.iter().all(|record| record.pool == "tank" && record.guid == 9));
        assert_eq!(records[0].event, EventKind::ReadFailed);
        assert_eq!(records[count].event, EventKind::Import);
    });
}

#[test]
fn how_a_scan_ended_can_be_read() {
    let ended = |phase| {
        let (kind, repaired_bytes, errors) = (ScanKind::Scrub, 1, 2);
        PoolEvent::ScanEnded { kind, phase, repaired_bytes, errors }.to_string()
    };
    let completed = ended(ScanPhase::Completed);
    assert!(completed.contains("complete"), "{completed}");
    assert!(ended(ScanPhase::Paused).contains("paused"));
    assert!(ended(ScanPhase::Stopped).contains("stopped"));
}
