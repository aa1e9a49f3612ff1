//! Succession: one set of disks has failed and returned, and then others fail.
//!
//! What enters: a pool that has just been imported, and the disks that fail next. What leaves: an
//! objection when the other disks lack data. What always holds: nothing fails before the pool
//! reports that every disk holds everything.

use forebay_device::Device;
use forebay_rt as rt;
use forebay_sim::faults::Fault;
use forebay_units::Nanos;

use crate::boot_context::BootContext;
use crate::judgement::{judge, judge_disks, scrub_until_clean};
use crate::scenario::{Demand, Succession, TimedFault};
use crate::subject::{Manage, Pool, Subject};

/// How often the pool is asked whether it is whole, once a second.
const MAX_ROUNDS: u64 = 400;

/// Waits until the pool is whole, lets other disks fail, and judges what the rest hold. Then the
/// faults of the boot count from here on.
pub(crate) async fn succeed<S: Subject>(
    context: &BootContext<S>,
    pool: &S::Pool,
    devices: &[Device],
    succession: &Succession,
    faults: &[TimedFault],
) {
    let model = &context.model;
    context.phase.set("succession");
    if !make_whole(pool, devices).await {
        return model.count("succession: the pool did not become whole", 1);
    }
    judge_disks(context, pool);
    if succession.scrubs {
        scrub_until_clean(context, pool, context.scenario.demand).await;
    }
    for disk in &succession.fails {
        let Some(stack) = context.disks.stacks.get(*disk) else { continue };
        context.disks.world.tell(|| format!("disk {disk} fails in its turn"));
        context.disks.struck.borrow_mut().insert(*disk);
        stack.inject(&Fault::Gone);
    }
    model.count("succession: other disks failed", 1);
    let begun = context.disks.world.submitted();
    let later =
        |timed: &TimedFault| TimedFault { at_command: timed.at_command + begun, ..timed.clone() };
    context.disks.schedule(&faults.iter().map(later).collect::<Vec<_>>(), None);
    if context.scenario.demand == Demand::AllData {
        judge(context, pool, Demand::AllData).await;
    }
}

/// Brings every disk online and waits until each holds everything. False when that takes too long.
async fn make_whole<P: Pool>(pool: &P, devices: &[Device]) -> bool {
    for _ in 0..MAX_ROUNDS {
        match pool.lacking(devices) {
            Some(lacking) if lacking.is_empty() => return true,
            Some(lacking) => {
                for disk in lacking {
                    // Refused while the disk is online and only waits for its turn.
                    let _ = pool.manage(devices, &Manage::Online(disk)).await;
                }
            }
            None => {}
        }
        rt::sleep(Nanos::from_secs(1)).await;
    }
    false
}
