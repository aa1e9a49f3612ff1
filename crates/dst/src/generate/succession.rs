//! The aim "redundancy": disks fail and return, and once the pool is whole, others fail.

use forebay_sim::{Rng, Seed};

use super::aim::Aim;
use crate::fault_plan::FaultPlan;
use crate::scenario::{Admin, Boot, Succession, TimedFault};
use crate::subject::{Manage, PoolSpec};

/// The disks that are struck at present, and how.
pub(super) struct Chain<'a> {
    spec: &'a PoolSpec,
    plan: FaultPlan,
    /// Every failed command is answered with an error.
    pub(super) is_loud: bool,
}

impl<'a> Chain<'a> {
    /// A chain that begins with the victims of `plan`.
    pub(super) fn new(spec: &'a PoolSpec, plan: &FaultPlan, aim: Aim, rng: &mut Rng) -> Self {
        Self { spec, plan: plan.clone(), is_loud: rng.chance(600) || aim == Aim::Returns }
    }

    /// Turns a boot into the next one of the chain. `commands` estimates its device commands.
    pub(super) fn extend(&mut self, boot: &mut Boot, is_first: bool, commands: u64, seed: Seed) {
        let rng = &mut seed.rng();
        boot.admin.clear();
        if !is_first {
            let fails = self.plan.successors(self.spec, rng);
            self.plan = self.plan.with_victims(fails.clone());
            let scrubs = !self.is_loud || rng.chance(300);
            boot.succession = Some(Succession { scrubs, fails });
        }
        boot.faults = match (self.is_loud, is_first) {
            (true, _) => self.plan.loud_faults(commands, rng),
            (false, true) => self.plan.faults(commands, true, rng),
            // The disks are gone already; some come back while clients work.
            (false, false) => Vec::new(),
        };
        for disk in self.victims().iter().copied() {
            if rng.chance(500) {
                continue;
            }
            let at_command = rng.between(1, commands);
            let fault = forebay_sim::faults::Fault::Back;
            boot.faults.push(TimedFault { at_command, disk, fault });
            for _ in 0..rng.between(1, 3) {
                boot.admin.push(Admin::Pause { ns: 1 << rng.between(16, 28) });
                boot.admin.push(Admin::Manage(Manage::Online(disk)));
                if rng.chance(300) {
                    boot.admin.push(Admin::Manage(Manage::Commit));
                }
            }
        }
    }

    /// The disks that are struck at present.
    pub(super) fn victims(&self) -> &[usize] {
        self.plan.victims()
    }
}
