use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, MemoryDevice, Operation};
use forebay_format::label::Heartbeat;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Nanos, OwnerNonce, PoolGuid};

use super::{Monitor, Verdict};
use crate::heartbeat::{Owner, read_heartbeat, write_heartbeat};
use crate::poller::PollMode;
use crate::timing::{ONE_DEVICE_CONFIRMS_AFTER, RETRY_INTERVAL};

const OWNER: Owner = Owner { pool: PoolGuid(1), nonce: OwnerNonce(7) };
const OTHER_NONCE: u64 = 8;

/// Has the operations hang that the switch names.
struct Hanging(Rc<Cell<Option<Operation>>>);

impl Script for Hanging {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            while self.0.get() == Some(command.operation) {
                rt::sleep(Nanos::from_millis(10)).await;
            }
            Decision::Run
        })
    }
}

/// Devices `a` and `b` with this owner's heartbeat, and the switch that makes `a` hang.
async fn devices() -> (Vec<Device>, Rc<Cell<Option<Operation>>>) {
    let hangs = Rc::new(Cell::new(None));
    let inner = Rc::new(MemoryDevice::new("a", 1 << 20));
    let a: Device = Probe::new(inner, Rc::new(Hanging(hangs.clone())));
    let devices = vec![a, Rc::new(MemoryDevice::new("b", 1 << 20))];
    for device in &devices {
        write(device, OWNER.nonce.0).await;
    }
    (devices, hangs)
}

async fn write(device: &Device, nonce: u64) {
    let heartbeat = Heartbeat { pool: OWNER.pool.0, nonce, ..Heartbeat::default() };
    write_heartbeat(device, &heartbeat).await.expect("written");
}

fn armed() -> Rc<Monitor> {
    let monitor = Monitor::new();
    monitor.fence().arm();
    monitor
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Names of the devices that confirm ownership.
async fn confirmed(monitor: &Monitor, devices: &[Device], mode: PollMode) -> BTreeSet<String> {
    match monitor.check(devices, mode, OWNER).await {
        Verdict::Confirmed(devices) => devices.iter().map(|d| d.name().to_owned()).collect(),
        Verdict::OtherOwner => panic!("another owner"),
        Verdict::Unproven => panic!("unproven"),
    }
}

#[test]
fn device_that_hangs_is_passed_over_and_heard_when_it_answers() {
    Runtime::simulated(1).block_on(async {
        let (devices, hangs) = devices().await;
        let monitor = armed();
        assert_eq!(confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await, names(&["a"]));
        hangs.set(Some(Operation::Read));
        assert_eq!(confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await, names(&["b"]));
        hangs.set(None);
        rt::sleep(Nanos::from_millis(20)).await;
        assert_eq!(confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await, names(&["a"]));
    });
}

#[test]
fn heartbeat_that_hangs_does_not_hold_up_the_next_one() {
    Runtime::simulated(1).block_on(async {
        let (devices, hangs) = devices().await;
        let monitor = armed();
        hangs.set(Some(Operation::Write));
        let heartbeat =
            |beat| Heartbeat { pool: OWNER.pool.0, nonce: 7, beat, ..Heartbeat::default() };
        for beat in 1..=3 {
            monitor.write_to_each(&devices, heartbeat(beat)).await;
        }
        let beats = |of| async move {
            let found = read_heartbeat(of).await.expect("readable").expect("a heartbeat");
            found.beat
        };
        assert_eq!((beats(&devices[0]).await, beats(&devices[1]).await), (0, 3));
        hangs.set(None);
        monitor.drain().await;
        monitor.write_to_each(&devices, heartbeat(4)).await;
        assert_eq!((beats(&devices[0]).await, beats(&devices[1]).await), (4, 4));
    });
}

#[test]
fn no_answer_proves_nothing() {
    Runtime::simulated(1).block_on(async {
        let (devices, hangs) = devices().await;
        let monitor = armed();
        hangs.set(Some(Operation::Read));
        let verdict = monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::Unproven));
        assert!(monitor.fence().is_valid(), "the last read still counts");
        rt::sleep(Nanos::from_secs(3)).await;
        let verdict = monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::Unproven));
        assert!(!monitor.fence().is_valid());
    });
}

// A machine may stand still while its read is answered, and another one has taken the pool since.
#[test]
fn a_late_answer_counts_from_when_it_was_asked() {
    Runtime::simulated(1).block_on(async {
        let (devices, hangs) = devices().await;
        let monitor = armed();
        hangs.set(Some(Operation::Read));
        let verdict = monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::Unproven));
        rt::sleep(Nanos::from_millis(1600)).await;
        hangs.set(None);
        rt::sleep(Nanos::from_millis(20)).await;
        let mode = PollMode::FirstHeartbeat;
        assert_eq!(confirmed(&monitor, &devices[..1], mode).await, names(&["a"]));
        rt::sleep(Nanos::from_millis(600)).await;
        assert!(!monitor.fence().is_valid(), "it was asked more than three seconds ago");
    });
}

// All were given up while the machine was cut off from them, and another one has the pool.
#[test]
fn no_device_proves_nothing() {
    Runtime::simulated(1).block_on(async {
        let monitor = armed();
        for mode in [PollMode::FirstHeartbeat, PollMode::AllDevices] {
            rt::sleep(Nanos::from_secs(2)).await;
            assert!(matches!(monitor.check(&[], mode, OWNER).await, Verdict::Unproven));
        }
        assert!(!monitor.fence().is_valid());
    });
}

#[test]
fn heartbeat_of_a_predecessor_is_ignored() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let monitor = armed();
        write(&devices[0], OTHER_NONCE).await;
        let verdict = monitor.check(&devices, PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::OtherOwner));
        monitor.set_predecessors(BTreeSet::from([OwnerNonce(OTHER_NONCE)]));
        assert_eq!(confirmed(&monitor, &devices, PollMode::AllDevices).await, names(&["a", "b"]));
    });
}

#[test]
fn after_a_gap_all_devices_are_asked() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let monitor = armed();
        rt::suspend(Nanos::from_secs(60));
        // A late heartbeat of this owner hides the other owner's on the first device.
        write(&devices[1], OTHER_NONCE).await;
        let verdict = monitor.check(&devices, PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::OtherOwner));
    });
}

#[test]
fn after_a_gap_one_device_confirms_only_after_the_delay() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let monitor = armed();
        rt::suspend(Nanos::from_secs(60));
        let begun = rt::now();
        while let Verdict::Unproven =
            monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await
        {
            assert!(!monitor.fence().is_valid());
            rt::sleep(RETRY_INTERVAL).await;
        }
        assert!(monitor.fence().is_valid());
        assert!(rt::now().since(begun) >= ONE_DEVICE_CONFIRMS_AFTER);
    });
}

/// A script in which every read takes two seconds.
struct SlowReads;

impl Script for SlowReads {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation == Operation::Read {
                rt::sleep(Nanos::from_secs(2)).await;
            }
            Decision::Run
        })
    }
}

// The gap lasts longer than a heartbeat counts. As long as checks follow each other, it stays the
// same gap.
#[test]
fn after_a_gap_the_only_device_confirms_although_it_is_slow() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let slow: [Device; 1] = [Probe::new(devices[1].clone(), Rc::new(SlowReads))];
        let monitor = armed();
        rt::suspend(Nanos::from_secs(60));
        let begun = rt::now();
        while let Verdict::Unproven = monitor.check(&slow, PollMode::FirstHeartbeat, OWNER).await {
            assert!(rt::now().since(begun) < Nanos::from_secs(60), "its writes wait for ever");
            rt::sleep(RETRY_INTERVAL).await;
        }
        assert!(monitor.fence().is_valid());
    });
}

#[test]
fn after_a_gap_two_devices_confirm_at_once() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let monitor = armed();
        rt::suspend(Nanos::from_secs(60));
        assert_eq!(
            confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await,
            names(&["a", "b"])
        );
    });
}

// Another owner has taken the pool between the two, and only one device shows it.
#[test]
fn device_that_was_heard_before_another_gap_does_not_confirm() {
    Runtime::simulated(1).block_on(async {
        let (devices, _) = devices().await;
        let monitor = armed();
        let check = async |of: &[Device]| monitor.check(of, PollMode::AllDevices, OWNER).await;
        rt::suspend(Nanos::from_secs(60));
        assert!(matches!(check(&devices[1..]).await, Verdict::Unproven));
        rt::suspend(Nanos::from_secs(60));
        write(&devices[1], OTHER_NONCE).await;
        assert!(matches!(check(&devices[..1]).await, Verdict::Unproven));
        assert!(!monitor.fence().is_valid());
        assert!(matches!(check(&devices).await, Verdict::OtherOwner));
    });
}
