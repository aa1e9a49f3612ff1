use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{
    Device, ErrorKind, MemoryDevice, Operation, ReservationChange, ReservationKey,
};
use forebay_format::label::Heartbeat;
use forebay_rt::{self as rt, Runtime};
use forebay_sim::SharedDisk;
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Nanos, OwnerNonce, PoolGuid};

use super::{Claim, LabeledDevice, check_activity, is_claimed};
use crate::error::MultihostError;
use crate::heartbeat::{read_heartbeat, write_heartbeat};
use crate::monitor::Monitor;

const POOL: u64 = 1;
const OLD_NONCE: u64 = 5;
const NEW_NONCE: u64 = 7;
const THIRD_NONCE: u64 = 9;

fn heartbeat(nonce: u64, beat: u64) -> Heartbeat {
    Heartbeat { pool: POOL, nonce, beat, ..Heartbeat::default() }
}

/// Devices `a` and `b` with this heartbeat.
async fn labeled(heartbeat: Heartbeat) -> Vec<LabeledDevice> {
    let mut devices = Vec::new();
    for path in ["a", "b"] {
        let device: Device = Rc::new(MemoryDevice::new(path, 1 << 20));
        write_heartbeat(&device, &heartbeat).await.expect("written");
        devices.push(LabeledDevice { path: path.to_owned(), device, heartbeat: Some(heartbeat) });
    }
    devices
}

fn old_owner() -> BTreeSet<OwnerNonce> {
    BTreeSet::from([OwnerNonce(OLD_NONCE)])
}

async fn claim(devices: &[LabeledDevice]) -> Result<Claim, MultihostError> {
    Claim::new(devices, old_owner(), &Monitor::new(), heartbeat(NEW_NONCE, 0), false).await
}

async fn read(device: &LabeledDevice) -> Heartbeat {
    read_heartbeat(&device.device).await.expect("readable").expect("a heartbeat")
}

#[test]
fn pool_whose_heartbeat_changes_is_in_use() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        assert_eq!(check_activity(&devices, PoolGuid(POOL)).await, Ok(old_owner()));
        let owner = devices[1].device.clone();
        drop(rt::spawn(async move {
            rt::sleep(Nanos::from_secs(1)).await;
            write_heartbeat(&owner, &heartbeat(OLD_NONCE, 4)).await.expect("written");
        }));
        let in_use = MultihostError::InUse { device: "b".to_owned() };
        assert_eq!(check_activity(&devices, PoolGuid(POOL)).await, Err(in_use));
    });
}

/// A script in which reads of device `b` fail during a span of time.
struct FailsReads {
    from: Nanos,
    until: Nanos,
}

impl Script for FailsReads {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            let fails = command.operation == Operation::Read
                && command.device == "b"
                && (self.from..self.until).contains(&rt::now());
            if fails { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run }
        })
    }
}

/// Devices with the old owner's heartbeat. On `b` lies that of a third one, which could not be read
/// with the label.
async fn with_a_third_owner(script: FailsReads) -> Vec<LabeledDevice> {
    let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
    write_heartbeat(&devices[1].device, &heartbeat(THIRD_NONCE, 0)).await.expect("written");
    devices[1].device = Probe::new(devices[1].device.clone(), Rc::new(script));
    devices[1].heartbeat = None;
    devices
}

#[test]
fn owner_that_was_watched_in_silence_is_replaced() {
    Runtime::simulated(1).block_on(async {
        let never = FailsReads { from: Nanos::ZERO, until: Nanos::ZERO };
        let devices = with_a_third_owner(never).await;
        assert_eq!(claim(&devices).await.err(), Some(MultihostError::UnknownOwner));
        let silent = check_activity(&devices, PoolGuid(POOL)).await.expect("no heartbeat moves");
        assert_eq!(silent, [OLD_NONCE, THIRD_NONCE].map(OwnerNonce).into());
        let (monitor, mine) = (Monitor::new(), heartbeat(NEW_NONCE, 0));
        let claim = Claim::new(&devices, silent, &monitor, mine, false).await.expect("claimed");
        assert_eq!(read(&devices[1]).await, heartbeat(NEW_NONCE, 0));
        // The old owner had a heartbeat under way.
        write_heartbeat(&devices[1].device, &heartbeat(THIRD_NONCE, 1)).await.expect("written");
        assert_eq!(claim.verify().await, Ok(()));
    });
}

#[test]
fn owner_that_was_not_seen_throughout_the_watch_is_not_silent() {
    let second = Nanos::from_secs(1);
    for (from, until) in [(Nanos::ZERO, second), (second, Nanos::from_secs(60))] {
        Runtime::simulated(1).block_on(async move {
            let devices = with_a_third_owner(FailsReads { from, until }).await;
            let silent = check_activity(&devices, PoolGuid(POOL)).await;
            assert_eq!(silent, Ok(old_owner()), "unreadable until {until:?}");
        });
    }
}

#[test]
fn heartbeat_of_another_pool_has_no_silent_owner() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        assert_eq!(check_activity(&devices, PoolGuid(POOL + 1)).await, Ok(BTreeSet::new()));
    });
}

#[test]
fn owner_that_claims_the_pool_during_the_watch_has_it_in_use() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 0)).await;
        let claimed = devices[1].device.clone();
        drop(rt::spawn(async move {
            rt::sleep(Nanos::from_millis(3900)).await;
            // A claim counts from the same number as that of the owner before.
            write_heartbeat(&claimed, &heartbeat(THIRD_NONCE, 0)).await.expect("written");
        }));
        let in_use = MultihostError::InUse { device: "b".to_owned() };
        assert_eq!(check_activity(&devices, PoolGuid(POOL)).await, Err(in_use));
    });
}

#[test]
fn heartbeat_of_an_owner_without_roots_is_a_claim() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        assert!(!is_claimed(&devices, PoolGuid(POOL), &old_owner()));
        assert!(is_claimed(&devices, PoolGuid(POOL), &BTreeSet::new()));
        assert!(!is_claimed(&devices, PoolGuid(POOL + 1), &BTreeSet::new()));
    });
}

#[test]
fn claim_is_renewed_on_every_device_until_it_is_dropped() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        let claim = claim(&devices).await.expect("claimed");
        rt::sleep(Nanos::from_millis(2500)).await;
        for device in &devices {
            assert_eq!(read(device).await, heartbeat(NEW_NONCE, 2));
        }
        drop(claim);
        rt::sleep(Nanos::from_secs(5)).await;
        for device in &devices {
            assert_eq!(read(device).await, heartbeat(NEW_NONCE, 2));
        }
    });
}

/// A script in which reads that begin later than 0.5 s take as long.
struct DelaysReads;

impl Script for DelaysReads {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation == Operation::Read && rt::now() > Nanos::from_millis(500) {
                rt::sleep(Nanos::from_millis(500)).await;
            }
            Decision::Run
        })
    }
}

// The pool's heartbeat counts on from there, and an equal one would be taken for silence.
#[test]
fn claim_that_ends_while_it_reads_writes_no_heartbeat_any_more() {
    for is_handed_over in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
            for device in &mut devices {
                device.device = Probe::new(device.device.clone(), Rc::new(DelaysReads));
            }
            let claim = claim(&devices).await.expect("claimed");
            rt::sleep(Nanos::from_millis(1200)).await;
            match is_handed_over {
                true => assert_eq!(claim.hand_over(), 0),
                false => drop(claim),
            }
            rt::sleep(Nanos::from_secs(5)).await;
            for device in &devices {
                assert_eq!(read(device).await, heartbeat(NEW_NONCE, 0));
            }
        });
    }
}

/// A script in which writes to device `b` that begin later than 1.5 s take ten seconds.
struct DelaysWrites;

impl Script for DelaysWrites {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.changes_data()
                && command.device == "b"
                && rt::now() > Nanos::from_millis(1500)
            {
                rt::sleep(Nanos::from_secs(10)).await;
            }
            Decision::Run
        })
    }
}

#[test]
fn devices_of_a_claim_that_was_given_up_are_closed_when_their_commands_end() {
    for is_handed_over in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
            let monitor = Monitor::new();
            let slow = Probe::new(devices[1].device.clone(), Rc::new(DelaysWrites));
            devices[1].device = monitor.fence().guard(slow);
            let mine = heartbeat(NEW_NONCE, 0);
            let claim = Claim::new(&devices, old_owner(), &monitor, mine, false).await;
            let claim = claim.expect("claimed");
            rt::sleep(Nanos::from_millis(2500)).await;
            assert_eq!(Rc::strong_count(&devices[1].device), 3, "one for the claim, one to write");
            match is_handed_over {
                true => assert_eq!(claim.hand_over(), 2),
                false => drop(claim),
            }
            rt::sleep(Nanos::from_secs(12)).await;
            let mine = heartbeat(NEW_NONCE, 9);
            let more = Box::pin(write_heartbeat(&devices[1].device, &mine));
            let outcome = rt::timeout(Nanos::from_secs(60), more).await;
            if is_handed_over {
                assert_eq!(outcome, Err(rt::Elapsed), "the pool's heartbeat is to follow");
            } else {
                assert!(matches!(outcome, Ok(Err(_))), "{outcome:?}");
                // It has a list of failed heartbeats.
                drop(monitor);
                assert_eq!(Rc::strong_count(&devices[1].device), 1, "nothing holds it any more");
            }
        });
    }
}

#[test]
fn claim_over_an_unknown_owner_is_refused_and_writes_nothing() {
    Runtime::simulated(1).block_on(async {
        let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        let third = heartbeat(THIRD_NONCE, 0);
        write_heartbeat(&devices[1].device, &third).await.expect("written");
        assert_eq!(claim(&devices).await.err(), Some(MultihostError::UnknownOwner));
        assert_eq!(read(&devices[0]).await, heartbeat(OLD_NONCE, 3));
        assert_eq!(read(&devices[1]).await, third);
    });
}

#[test]
fn claim_that_was_replaced_on_any_device_is_lost() {
    for at in [0, 1] {
        Runtime::simulated(1).block_on(async move {
            let devices = labeled(heartbeat(OLD_NONCE, 3)).await;
            let claim = claim(&devices).await.expect("claimed");
            assert_eq!(claim.verify().await, Ok(()));
            let late = heartbeat(OLD_NONCE, 4);
            write_heartbeat(&devices[at].device, &late).await.expect("written");
            assert_eq!(claim.verify().await, Ok(()), "a late heartbeat of the old owner");
            let third = heartbeat(THIRD_NONCE, 0);
            write_heartbeat(&devices[at].device, &third).await.expect("written");
            assert_eq!(claim.verify().await, Err(MultihostError::Lost));
            rt::sleep(Nanos::from_secs(2)).await;
            assert_eq!(read(&devices[at]).await, third, "it stays in place");
        });
    }
}

#[test]
fn heartbeat_that_has_moved_since_its_label_was_read_is_in_use() {
    Runtime::simulated(1).block_on(async {
        let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        write_heartbeat(&devices[1].device, &heartbeat(OLD_NONCE, 4)).await.expect("written");
        // The first look of the watch fails, so that the label alone says what was there before.
        let script = FailsReads { from: Nanos::ZERO, until: Nanos::from_secs(1) };
        devices[1].device = Probe::new(devices[1].device.clone(), Rc::new(script));
        let in_use = MultihostError::InUse { device: "b".to_owned() };
        assert_eq!(check_activity(&devices, PoolGuid(POOL)).await, Err(in_use));
    });
}

/// A script in which every read takes five seconds.
struct SlowReads;

impl Script for SlowReads {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation == Operation::Read {
                rt::sleep(Nanos::from_secs(5)).await;
            }
            Decision::Run
        })
    }
}

#[test]
fn claim_whose_reads_took_longer_than_a_heartbeat_counts_permits_no_write() {
    Runtime::simulated(1).block_on(async {
        let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        let monitor = Monitor::new();
        let mine = heartbeat(NEW_NONCE, 0);
        let claim = Claim::new(&devices, old_owner(), &monitor, mine, false).await;
        assert!(claim.is_ok() && monitor.fence().is_valid());
        devices[0].device = Probe::new(devices[0].device.clone(), Rc::new(SlowReads));
        let monitor = Monitor::new();
        let known = [OLD_NONCE, NEW_NONCE].map(OwnerNonce).into();
        let mine = heartbeat(THIRD_NONCE, 0);
        let claim = Claim::new(&devices, known, &monitor, mine, false).await;
        // Another owner may have come since the first read was issued.
        assert!(claim.is_ok() && !monitor.fence().is_valid());
    });
}

// The next owner would be refused for it.
#[test]
fn claim_that_does_not_get_every_device_leaves_none_reserved() {
    Runtime::simulated(1).block_on(async {
        let disks =
            ["a", "b"].map(|name| SharedDisk::new(Rc::new(MemoryDevice::new(name, 1 << 20))));
        let (stranger, key) = (disks[1].initiator(2), ReservationKey(77));
        for change in [ReservationChange::Register { key }, ReservationChange::Reserve { key }] {
            stranger.change_reservations(change).await.expect("free");
        }
        let mut devices = labeled(heartbeat(OLD_NONCE, 3)).await;
        for (device, disk) in devices.iter_mut().zip(&disks) {
            device.device = disk.initiator(1);
        }
        let refused = MultihostError::Reserved { device: "b".to_owned(), holder: key };
        assert_eq!(claim(&devices).await.err(), Some(refused));
        for (disk, holder) in disks.iter().zip([None, Some(key)]) {
            assert_eq!(disk.initiator(3).reservations().await.expect("readable").holder, holder);
        }
    });
}
