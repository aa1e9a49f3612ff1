mod detectors;
mod fakes;
mod health;
mod load;
mod power_cut;
mod procedures;
mod purge;
mod records;
mod rounds;

use std::rc::Rc;

use forebay_device::{BlockDevice, Device};
use forebay_rt::Runtime;

use crate::*;
use fakes::{Fake, Nature};

const SIZE_BYTES: u64 = 64 << 20;

/// An observer without wishes.
struct Silent;

impl Observer for Silent {
    fn goes_on(&self, _: Progress) -> bool {
        true
    }
}

fn conditions(nature: &Nature) -> Conditions {
    Conditions {
        target: nature.name.to_owned(),
        kind: TargetKind::Simulated,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        model: None,
        serial: None,
        firmware: None,
        write_cache: Some(match nature.is_volatile {
            true => WriteCache::Volatile,
            false => WriteCache::Durable,
        }),
        takes_fua: Some(true),
        protection: None,
        protection_source: None,
        rated_bytes: None,
        price_usd: None,
        scale: None,
        details: Default::default(),
    }
}

fn plan(purpose: Purpose, shrink: u32, seed: u64) -> Plan {
    Plan::new(PlanFor {
        profile: Profile::Quick,
        purpose,
        procedure: None,
        only: None,
        purge: None,
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        sleeps: false,
        shrink,
        seed,
    })
    .unwrap()
}

/// A whole quick qualification of a device of this nature, at a tenth of its time.
fn qualify(nature: Nature, purpose: Purpose, seed: u64) -> Qualification {
    let (conditions, plan) = (conditions(&nature), plan(purpose, 10, seed));
    let steps = plan.steps.clone();
    let outcomes = Runtime::simulated(seed).block_on(async move {
        let device: Device = Rc::new(Fake::new(nature, SIZE_BYTES, seed));
        let mut outcomes = Vec::new();
        for step in &steps {
            outcomes.push(run_step(&device, step, seed, &Silent).await);
        }
        assert!(device.geometry().size_bytes == SIZE_BYTES);
        outcomes
    });
    of_outcomes(conditions, plan, outcomes)
}

/// Names of disks change from one start of a machine to the next; serial numbers do not.
#[test]
fn a_disk_with_a_serial_number_is_known_by_another_name() {
    let named = |target: &str, serial: Option<&str>, partition: Option<&str>| {
        let mut known = conditions(&fakes::HONEST);
        known.target = target.to_owned();
        known.kind = TargetKind::BlockDevice;
        known.serial = serial.map(str::to_owned);
        let part = partition.map(|number| (Conditions::PARTITION.to_owned(), number.to_owned()));
        known.details.extend(part);
        known
    };
    let disk = named("/dev/sda", Some("S1"), None);
    assert!(disk.is_same_device(&named("/dev/sdb", Some("S1"), None)));
    assert!(!disk.is_same_device(&named("/dev/sda", Some("S2"), None)));
    assert!(!disk.is_same_device(&named("/dev/sda", None, None)));
    assert!(!disk.is_same_device(&named("/dev/sda1", Some("S1"), Some("1"))));
    let nameless = named("/dev/sda", None, None);
    assert!(nameless.is_same_device(&named("/dev/sda", None, None)));
    assert!(!nameless.is_same_device(&named("/dev/sdb", None, None)));
}

fn of_outcomes(conditions: Conditions, plan: Plan, outcomes: Vec<Outcome>) -> Qualification {
    let (health, resumed_s) = (Vec::new(), Vec::new());
    Qualification { conditions, plan, outcomes, health, resumed_s, verdict: None, records: 0 }
}
