//! Snapshots and clones: who takes them when, and clients that overwrite what they share.

use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{Latency, Rng, Seed};

use super::aim::Aim;
use super::boot::{BootPlan, Size};
use super::{Class, Constraints, holds, renames, wide_volumes};
use crate::scenario::{Act, Admin, Boot, Copying, SnapshotJob, TimedFault};
use crate::snapshot_copies::FIRST_COPY;
use crate::stamp::Fill;
use crate::subject::Manage;

/// How many of a thousand scenarios of other aims have snapshots.
const SNAPSHOTS_PER_MILLE: u64 = 200;
/// How many of a thousand scenarios of takeovers have more of them.
const TAKEOVERS_PER_MILLE: u64 = 300;
/// The number of the first clone, beyond the volumes that other jobs create.
pub(super) const FIRST_CLONE: u32 = 1000;
/// Clones of a scenario.
pub(super) const MOST_CLONES: u32 = 6;
/// Fewer than so many snapshots are sent in a boot.
const MOST_COPIES: u64 = 4;
/// Snapshots that a scenario asks for.
const MOST_SNAPSHOTS: u32 = 24;

/// The snapshots of a scenario from boot to boot.
pub(super) struct Workload {
    /// Jobs a boot, at least and at most.
    jobs: (u64, u64),
    /// Volumes are cloned.
    branches: bool,
    /// Volumes are rolled back, and clones promoted.
    rolls_back: bool,
    taken: Vec<(u32, u32)>,
    next_number: u32,
    clones: Vec<u32>,
    next_clone: u32,
    /// Snapshots are sent and received.
    sends: bool,
    /// Volumes that were received, each with its source and the number of its last snapshot.
    copies: Vec<(u32, u32, u32)>,
}

/// Which of `volumes` are sparse; some pools get a wide one instead of these.
pub(super) fn draw_sparse(seed: Seed, is_full: bool, volumes: &mut Vec<u64>) -> Vec<u32> {
    let wide = wide_volumes::draw(&mut seed.derive("wide volumes").rng());
    if let Some(wide) = wide.filter(|_| !is_full) {
        *volumes = wide;
        return vec![0];
    }
    let kinds = &mut seed.derive("snapshots kinds").rng();
    (0..volumes.len() as u32).filter(|_| kinds.chance(400)).collect()
}

impl Workload {
    /// The workload of a scenario; mostly it is empty.
    pub(super) fn new(class: &Class, constraints: &Constraints, seed: Seed) -> Self {
        let draws = constraints.manage && class.is_free;
        let takes_over = class.aim == Aim::Takeover
            && seed.derive("takeovers").rng().chance(TAKEOVERS_PER_MILLE);
        let is_any = takes_over || seed.derive("share").rng().chance(SNAPSHOTS_PER_MILLE);
        let jobs = match class.aim {
            Aim::Snapshots if constraints.manage => (4, 16),
            Aim::Sharing if constraints.manage => (1, 8),
            // Their volumes have gaps, or the space that is left is counted.
            Aim::Sizes | Aim::Refusals | Aim::Throttle | Aim::Canceled => (0, 0),
            Aim::Takeover if draws && takes_over => (3, 10),
            _ if draws && is_any => (0, 5),
            _ => (0, 0),
        };
        Self {
            jobs,
            // A rewind takes volumes back to a state that is not known exactly.
            branches: class.aim != Aim::Rewind,
            rolls_back: class.aim != Aim::Rewind,
            taken: Vec::new(),
            next_number: 0,
            clones: Vec::new(),
            next_clone: FIRST_CLONE,
            // A stream ends with a suspension, and what it leaves is not known exactly.
            sends: !matches!(class.aim, Aim::Rewind | Aim::Suspension),
            copies: Vec::new(),
        }
    }

    /// Puts jobs on snapshots between the other jobs of a boot.
    pub(super) fn apply(&mut self, boot: &mut Boot, plan: &BootPlan<'_>) {
        if self.jobs.1 == 0 {
            return;
        }
        let rng = &mut plan.seed.derive("snapshots").rng();
        if wide_volumes::are_wide(plan) {
            let number = self.next_number;
            self.next_number += 1;
            return wide_volumes::apply(boot, plan, number);
        }
        let mut at = 0;
        for _ in 0..rng.between(self.jobs.0, self.jobs.1) {
            let Some(job) = self.job(plan.volumes.len() as u32, rng) else { continue };
            // Numbers are used in order, so the jobs keep theirs.
            at += rng.below((boot.admin.len() - at) as u64 + 1) as usize;
            let pause =
                Admin::Pause { ns: 1 << rng.between(12, if plan.is_full { 27 } else { 23 }) };
            boot.admin.splice(at..at, [pause, job]);
            at += 2;
        }
        grow_after_rollbacks(boot, plan);
        if self.rolls_back {
            roll_back_in_use(boot, plan);
        }
        overwrite_all(boot, plan);
        if self.sends {
            let rng = &mut plan.seed.derive("copies").rng();
            for _ in 0..rng.below(MOST_COPIES) {
                self.copy(&mut boot.admin, rng);
            }
        }
        let may_roll_back = self.rolls_back;
        holds::apply(boot, &self.taken, may_roll_back, &mut plan.seed.derive("holds").rng());
        let rng = &mut plan.seed.derive("snapshot names").rng();
        renames::apply_to_snapshots(boot, &self.taken, rng);
    }

    /// Puts the job of sending a snapshot after the one that takes it: whole, or since the last
    /// one that was sent.
    fn copy(&mut self, jobs: &mut Vec<Admin>, rng: &mut Rng) {
        let Some((volume, number)) = pick(&self.taken, rng) else { return };
        let since = self.copies.iter().position(|(of, _, last)| *of == volume && *last < number);
        let since = since.filter(|_| rng.chance(700));
        let (copy, base) = match since {
            Some(at) => {
                let last = std::mem::replace(&mut self.copies[at].2, number);
                (self.copies[at].1, Some(last))
            }
            None => {
                let copy = FIRST_COPY + self.copies.len() as u32;
                self.copies.push((volume, copy, number));
                (copy, None)
            }
        };
        let how = Copying {
            base,
            is_as_stored: rng.chance(400),
            is_resumable: base.is_none() && rng.chance(400),
            cut: rng.chance(300).then(|| rng.between(1, 12)),
        };
        let is_its = |job: &Admin| match job {
            Admin::Snapshot(SnapshotJob::Take { number: taken, .. }) => *taken == number,
            _ => false,
        };
        let mut at = jobs.iter().position(is_its).map_or(0, |at| at + 1);
        // What is cut goes on, or begins anew.
        for cut in [how.cut].into_iter().chain(how.cut.map(|_| None)) {
            at += rng.below((jobs.len() - at) as u64 + 1) as usize;
            let how = Copying { cut, ..how };
            let job = Admin::Snapshot(SnapshotJob::Copy { volume, number, copy, how });
            jobs.splice(at..at, [Admin::Pause { ns: 1 << rng.between(12, 23) }, job]);
            at += 2;
        }
    }

    fn job(&mut self, volumes: u32, rng: &mut Rng) -> Option<Admin> {
        let job = match rng.below(22) {
            0..9 => self.take(volumes, rng)?,
            9 | 10 => {
                let (volume, number) = pick(&self.taken, rng)?;
                match rng.chance(500) {
                    true => SnapshotJob::Read { volume, number },
                    false => SnapshotJob::ReadAll { number },
                }
            }
            11..15 => {
                let (volume, number) = pick(&self.taken, rng)?;
                SnapshotJob::Destroy { volume, number }
            }
            15 if self.rolls_back => {
                let (volume, number) = pick(&self.taken, rng)?;
                SnapshotJob::RollBack { volume, number, in_use: false }
            }
            16..19 if self.branches && self.next_clone < FIRST_CLONE + MOST_CLONES => {
                let (volume, number) = pick(&self.taken, rng)?;
                let clone = self.next_clone;
                self.next_clone += 1;
                self.clones.push(clone);
                SnapshotJob::Clone { volume, number, clone }
            }
            _ if self.branches && !self.clones.is_empty() => {
                let at = rng.below(self.clones.len() as u64) as usize;
                if self.rolls_back && rng.chance(600) {
                    let job = SnapshotJob::Promote { clone: self.clones[at] };
                    return Some(Admin::Snapshot(job));
                }
                return Some(Admin::Destroy { volume: self.clones.swap_remove(at) });
            }
            _ => self.take(volumes, rng)?,
        };
        Some(Admin::Snapshot(job))
    }

    fn take(&mut self, volumes: u32, rng: &mut Rng) -> Option<SnapshotJob> {
        if self.next_number >= MOST_SNAPSHOTS {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        let volumes: Vec<u32> = match rng.below(10) {
            0..3 => (0..volumes).collect(),
            3 | 4 if !self.clones.is_empty() => vec![*rng.pick(&self.clones)],
            _ => vec![rng.below(u64::from(volumes)) as u32],
        };
        self.taken.extend(volumes.iter().map(|volume| (*volume, number)));
        Some(SnapshotJob::Take { volumes, number })
    }
}

/// Has some rollbacks go on beside the clients of their volume, and adds some soon after their
/// snapshot was taken.
fn roll_back_in_use(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("rollbacks").rng();
    for job in std::mem::take(&mut boot.admin) {
        let taken = match &job {
            Admin::Snapshot(SnapshotJob::Take { volumes, number }) if rng.chance(150) => {
                Some((*rng.pick(volumes), *number))
            }
            _ => None,
        };
        boot.admin.push(job);
        if let Some((volume, number)) = taken {
            let pause = Admin::Pause { ns: 1 << rng.between(12, 23) };
            let job = SnapshotJob::RollBack { volume, number, in_use: false };
            boot.admin.extend([pause, Admin::Snapshot(job)]);
        }
    }
    for mut job in std::mem::take(&mut boot.admin) {
        if let Admin::Snapshot(SnapshotJob::RollBack { in_use, .. }) = &mut job {
            *in_use = rng.chance(600);
            if *in_use && rng.chance(500) {
                // What changed since the snapshot is on media, and a merge has to read it.
                let pause = Admin::Pause { ns: 1 << rng.between(12, 21) };
                boot.admin.extend([Admin::Manage(Manage::Commit), pause]);
            }
        }
        boot.admin.push(job);
    }
    let is_any =
        |job: &Admin| matches!(job, Admin::Snapshot(SnapshotJob::RollBack { in_use: true, .. }));
    // What is slow may last longer than its disk outlasts when a machine stands still.
    if boot.admin.iter().any(is_any) && rng.chance(400) && plan.aim != Aim::Takeover {
        read_slowly(boot, plan, rng);
    }
}

/// A change of a part of a block has read the rest before a rollback, and ends after it.
fn read_slowly(boot: &mut Boot, plan: &BootPlan<'_>, rng: &mut Rng) {
    let commands = Size::draw(plan, rng).commands.min(1 << 12);
    for disk in 0..plan.disks as usize {
        let (base_ns, max_ns) = (1 << rng.between(18, 22), 1 << rng.between(23, 27));
        let latency = Latency::HeavyTail { base_ns, max_ns };
        let fault = Fault::Slow { ops: Ops::READ, latency };
        boot.faults.push(TimedFault { at_command: rng.between(1, commands), disk, fault });
    }
}

/// Overwrites all of a volume: a snapshot that was taken without room for it shows.
fn overwrite_all(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("overwrites").rng();
    if plan.aim != Aim::Snapshots || !plan.is_full || !rng.chance(400) {
        return;
    }
    let volume = rng.below(plan.volumes.len() as u64) as u32;
    let sectors = plan.volumes[volume as usize];
    let step: u64 = 1 << rng.between(9, 11);
    let write = |first: u64| {
        let count = (sectors - first).min(step);
        Act::Write { volume, first, count, fua: false, fill: Fill::Noise }
    };
    boot.clients.push((0..sectors).step_by(step as usize).map(write).collect());
}

/// Has volumes go back to snapshots of less than they are, and grow again: what is new is zeros,
/// although the volume was as long before.
fn grow_after_rollbacks(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("ends").rng();
    let back = |job: &Admin| match job {
        Admin::Snapshot(SnapshotJob::RollBack { volume, number, .. }) => Some((*volume, *number)),
        _ => None,
    };
    let mut chosen: Vec<(u32, u32)> = boot.admin.iter().filter_map(back).collect();
    chosen.retain(|(volume, _)| plan.volumes.len() > *volume as usize && rng.chance(500));
    for job in std::mem::take(&mut boot.admin) {
        let its = chosen.iter().find(|key| match &job {
            Admin::Snapshot(SnapshotJob::Take { volumes, number }) => {
                *number == key.1 && volumes.contains(&key.0)
            }
            other => back(other) == Some(**key),
        });
        let Some((volume, _)) = its.copied() else {
            boot.admin.push(job);
            continue;
        };
        let sectors = plan.volumes[volume as usize];
        let grow = Admin::Resize { volume, sectors };
        if back(&job).is_none() {
            let sectors = rng.between(sectors / 16, sectors / 8) * 8;
            boot.admin.push(Admin::Resize { volume, sectors });
        }
        let pause = Admin::Pause { ns: 1 << rng.between(16, 23) };
        boot.admin.extend([job, grow, pause]);
    }
}

/// One of the snapshots that were taken, mostly one of the last few.
fn pick(taken: &[(u32, u32)], rng: &mut Rng) -> Option<(u32, u32)> {
    let from = if rng.chance(700) { taken.len().saturating_sub(4) } else { 0 };
    let at = rng.between(from as u64, taken.len().max(1) as u64 - 1) as usize;
    taken.get(at).copied()
}

/// The script of a client: it changes volumes and clones in few places, so that versions differ in
/// some of their blocks and share the others.
pub(super) fn draw_client(volumes: &[u64], acts: u64, rng: &mut Rng) -> Vec<Act> {
    let count_of_volumes = volumes.len() as u64;
    let (fua, of_clones) = (*rng.pick(&[0, 100, 700]), *rng.pick(&[0, 300, 600]));
    let (span, most) = (*rng.pick(&[128, 1024, u64::MAX]), *rng.pick(&[12, 64, 256]));
    let (zeroing, aligned) = (rng.between(0, 4), rng.chance(600));
    let mut out = Vec::new();
    for _ in 0..acts {
        let volume = match rng.chance(of_clones) {
            true => FIRST_CLONE + rng.below(u64::from(MOST_CLONES)) as u32,
            false => rng.below(count_of_volumes) as u32,
        };
        let sectors = volumes.get(volume as usize).copied().unwrap_or(volumes[0]);
        let count = rng.between(1, most).min(sectors);
        let first = rng.below(sectors.min(span).saturating_sub(count) + 1);
        let (first, count) =
            if aligned { (first / 8 * 8, count.next_multiple_of(8)) } else { (first, count) };
        let fua = rng.chance(fua);
        out.push(match rng.below(20) {
            0..10 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            10..14 if zeroing > rng.below(4) => match rng.chance(500) {
                true => Act::Zero { volume, first, count, fua, no_hole: rng.chance(300) },
                false => Act::Trim { volume, first, count, fua },
            },
            10..14 => Act::Write { volume, first, count, fua, fill: Fill::Zeros },
            14..16 => Act::Read { volume, first, count },
            16 => Act::Status { volume, first, count },
            17 => Act::Flush { volume },
            _ => Act::Pause { ns: 1 << rng.between(12, 22) },
        });
    }
    out
}
