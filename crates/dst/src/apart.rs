//! Halves of a pool that are imported apart from each other, and of which one is kept.
//!
//! What enters: a run between two boots. What leaves: the first objection. What always holds: the
//! run itself stays as it is, for the halves are copies of its disks.
//! Who calls: `run.rs`, before a boot.

use forebay_device::Device;
use forebay_sim::Seed;
use forebay_sim::faults::Fault;

use crate::boot_context::BootContext;
use crate::model::NUMBERS_OF_EACH;
use crate::run::Run;
use crate::scenario::{Apart, Boot, Crash, Half, TimedFault};
use crate::subject::{Cause, ImportMode, OTHER_HOSTS, Refusal, Subject};
use crate::verdict::{Failure, Kind};

/// How a boot imports the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Importing {
    /// As it is.
    #[default]
    Usual,
    /// With `-f`, because half of the disks are missing.
    Half,
    /// Both halves, of which that of the disk is kept. A plain import must be refused.
    Undecided(usize),
    /// The same after a power cut, which may have come before or after the decision.
    Cut(usize),
    /// Against an earlier decision.
    Kept(usize),
}

impl<S: Subject> Run<S> {
    /// Has copies of the disks written apart from each other, and each of them kept.
    pub(crate) fn part(&mut self, boot: &Boot) {
        let knows_owners = self.subject.other_machine(OTHER_HOSTS[0]).is_some();
        let Some(apart) = boot.apart.as_ref().filter(|_| knows_owners && self.is_created) else {
            return;
        };
        let halves = [0, 1].map(|index| self.write_half(&apart.halves[index], index as u32));
        for kept in [0, 1] {
            if self.is_over() {
                return;
            }
            self.keep(&halves, apart, kept);
        }
    }

    /// A copy of the run in which a half was imported and written alone.
    fn write_half(&mut self, half: &Half, index: u32) -> Self {
        let mut copy = self.fork();
        copy.model.skip_numbers(index * NUMBERS_OF_EACH);
        copy.importing = Importing::Half;
        let gone = |disk| TimedFault { at_command: 0, disk, fault: Fault::Gone };
        let missing = (0..copy.scenario.spec.disks()).filter(|disk| !half.disks.contains(disk));
        let faults = missing.map(gone).collect();
        copy.boot(&Boot { faults, leaves_scrub: true, ..half.boot.clone() });
        self.adopt(&copy, "of a half that was imported alone");
        copy.power_off(half.boot.crash.as_ref());
        copy
    }

    /// Brings the halves together, keeps one of them, and after that the other.
    fn keep(&mut self, halves: &[Self; 2], apart: &Apart, kept: usize) {
        let other = 1 - kept;
        let first = |half: usize| apart.halves[half].disks[0];
        let mut joined = halves[kept].fork();
        joined.disks.take_contents(&halves[other].disks, &apart.halves[other].disks);
        joined.importing = Importing::Undecided(first(kept));
        let seed = Seed(apart.halves[kept].boot.seed);
        let mut boot = |run: &mut Self, label: &str, crash: Option<&Crash>| {
            let seed = seed.derive(label).0;
            run.boot(&Boot { seed, crash: crash.cloned(), leaves_scrub: true, ..Boot::default() });
            self.adopt(run, "of halves that were written apart");
            run.power_off(crash);
        };
        if apart.cut.is_some() {
            boot(&mut joined, "cut", apart.cut.as_ref());
            joined.importing = Importing::Cut(first(kept));
        }
        for (label, importing) in [("kept", joined.importing), ("again", Importing::Usual)] {
            if joined.is_over() {
                return;
            }
            joined.importing = importing;
            boot(&mut joined, label, None);
        }
        // The half that was left behind is as it was, and may be kept after all.
        let mut turned = halves[other].fork();
        turned.memory = joined.memory;
        let all: Vec<usize> = (0..joined.scenario.spec.disks()).collect();
        turned.disks.take_contents(&joined.disks, &all);
        turned.importing = Importing::Kept(first(other));
        if !joined.is_over() {
            boot(&mut turned, "turned", None);
        }
    }

    /// Takes over the counts of a copy, and its failure.
    fn adopt(&mut self, copy: &Self, which: &str) {
        for (event, count) in copy.model.events() {
            self.model.count(&event, count);
        }
        if let Some(Failure { kind, message }) = &copy.failure {
            let message = format!("{message} ({which})");
            self.failure.get_or_insert(Failure { kind: *kind, message });
        }
    }
}

impl<S: Subject> BootContext<S> {
    /// Imports with all disks of a pool whose halves were written apart, and keeps that of `disk`.
    /// Before that nothing may import it, unless a decision is on the disks already.
    pub(crate) async fn import_kept(
        &self,
        devices: &[Device],
        disk: usize,
        is_undecided: bool,
    ) -> Result<S::Pool, Refusal> {
        let spec = &self.scenario.spec;
        for mode in [ImportMode::Plain, ImportMode::Force] {
            match self.subject.import(devices, spec, mode).await {
                Ok(pool) if !is_undecided => return Ok(pool),
                Ok(pool) => {
                    let text = format!("halves that were written apart are imported ({mode:?})");
                    self.model.object(Kind::Import, text);
                    return Ok(pool);
                }
                Err(refusal) if refusal.cause == Cause::Diverged => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.model.count("halves kept", 1);
        self.subject.import(devices, spec, ImportMode::Keep(disk)).await
    }
}
