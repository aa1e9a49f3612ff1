use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, MemoryDevice, Operation};
use forebay_format::label::Heartbeat;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Nanos, OwnerNonce, PoolGuid};

use super::{Monitor, Verdict};
use crate::heartbeat::{Owner, write_heartbeat};
use crate::poller::PollMode;
use crate::timing::{ONE_DEVICE_CONFIRMS_AFTER, RETRY_INTERVAL};

const OWNER: Owner = Owner { pool: PoolGuid(1), nonce: OwnerNonce(7) };
const OTHER_NONCE: u64 = 8;

/// Has reads hang while the switch is set.
struct Hanging(Rc<Cell<bool>>);

impl Script for Hanging {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            while command.operation == Operation::Read && self.0.get() {
                rt::sleep(Nanos::from_millis(10)).await;
            }
            Decision::Run
        })
    }
}

/// Devices `a` and `b` with this owner's heartbeat, and the switch that makes `a` hang.
async fn devices() -> (Vec<Device>, Rc<Cell<bool>>) {
    let hangs = Rc::new(Cell::new(false));
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
        hangs.set(true);
        assert_eq!(confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await, names(&["b"]));
        hangs.set(false);
        rt::sleep(Nanos::from_millis(20)).await;
        assert_eq!(confirmed(&monitor, &devices, PollMode::FirstHeartbeat).await, names(&["a"]));
    });
}

#[test]
fn no_answer_proves_nothing() {
    Runtime::simulated(1).block_on(async {
        let (devices, hangs) = devices().await;
        let monitor = armed();
        hangs.set(true);
        let verdict = monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::Unproven));
        assert!(monitor.fence().is_valid(), "the last read still counts");
        rt::sleep(Nanos::from_secs(3)).await;
        let verdict = monitor.check(&devices[..1], PollMode::FirstHeartbeat, OWNER).await;
        assert!(matches!(verdict, Verdict::Unproven));
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
