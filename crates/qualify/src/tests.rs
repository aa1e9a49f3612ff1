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

fn of_outcomes(conditions: Conditions, plan: Plan, outcomes: Vec<Outcome>) -> Qualification {
    let (health, resumed_s) = (Vec::new(), Vec::new());
    Qualification { conditions, plan, outcomes, health, resumed_s, verdict: None, records: 0 }
}
