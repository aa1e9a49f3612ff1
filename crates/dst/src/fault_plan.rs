//! The fault plan: which faults strike which disks in a run, by level.
//!
//! What always holds: at level `Within` the struck disks are a fixed set, no larger than parity and
//! the log's mirror can replace. They may do anything; the others are at most slow. At level
//! `Beyond` more disks are struck.

use clap::ValueEnum;
use forebay_sim::faults::{Effect, Failure, Fault, Ops, Tear, Trigger};
use forebay_sim::{Latency, Rng};

use crate::scenario::{Demand, TimedFault};
use crate::subject::{LogShape, PoolSpec};

/// How many of a disk's most recent writes may rot.
const RECENT_WRITES: u64 = 32;
/// How many of them rot spares where the newest may not be damaged. Later frames of a log prove one
/// that is so old.
const NEWEST_WRITES: u64 = 24;

/// How much may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Only power cuts.
    #[value(name = "crash")]
    CrashOnly,
    /// Only what the pool must survive.
    Within,
    /// More than the pool must survive.
    Beyond,
    /// Any disk may acknowledge what it did not write.
    Lies,
}

impl Level {
    /// What the oracle demands at this level.
    #[must_use]
    pub fn demand(self) -> Demand {
        match self {
            Level::CrashOnly | Level::Within => Demand::AllData,
            Level::Beyond => Demand::Detected,
            Level::Lies => Demand::NeverWrong,
        }
    }
}

/// The disks that will be struck in a run.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    level: Level,
    victims: Vec<usize>,
    /// Sizes of all disks.
    sizes_bytes: Vec<u64>,
    /// Disks on which faults may damage the newest writes. Beyond the promise this excludes disks
    /// with a log, where such damage looks like the end of the log.
    newest_may_be_damaged_on: Vec<usize>,
}

impl FaultPlan {
    /// Draws the disks to strike.
    #[must_use]
    pub fn draw(spec: &PoolSpec, level: Level, rng: &mut Rng) -> Self {
        let mut sizes = vec![spec.data_bytes; spec.data_disks];
        sizes.extend(vec![spec.log_bytes; spec.log.disks()]);
        sizes.extend(vec![spec.data_bytes; spec.spare_disks + spec.cache_disks]);
        let mut victims = Vec::new();
        let mut choose = |from: std::ops::Range<usize>, count: usize, rng: &mut Rng| {
            let mut left: Vec<usize> = from.collect();
            for _ in 0..count.min(left.len()) {
                victims.push(left.swap_remove(rng.below(left.len() as u64) as usize));
            }
        };
        match level {
            Level::CrashOnly => {}
            Level::Within => {
                for (group, parity) in spec.groups_with_parity() {
                    choose(group, rng.between(0, parity as u64) as usize, rng);
                }
                // Memory is lost with the power, so faults spare its mirror.
                let rings = spec.ring_ranges().skip(spec.mirrored_memory);
                for ring in rings.filter(|ring| ring.len() > 1) {
                    if rng.chance(600) {
                        choose(ring, 1, rng);
                    }
                }
            }
            Level::Beyond => {
                if spec.log != LogShape::None && rng.chance(500) {
                    choose(spec.log_range(), spec.log.disks(), rng);
                } else {
                    let which = if spec.groups > 1 { rng.below(spec.groups as u64) } else { 0 };
                    let mut groups = spec.groups_with_parity();
                    let (group, parity) = groups.nth(which as usize).expect("it has so many");
                    let most = group.len() as u64;
                    let least = (parity as u64 + 1).min(most);
                    choose(group, rng.between(least, most) as usize, rng);
                }
            }
            Level::Lies => choose(0..spec.data_disks + spec.log.disks(), sizes.len(), rng),
        }
        let newest_may_be_damaged_on = match level {
            Level::Beyond if spec.log == LogShape::None => Vec::new(),
            Level::Beyond => (0..spec.data_disks).collect(),
            _ => (0..sizes.len()).collect(),
        };
        Self { level, victims, sizes_bytes: sizes, newest_may_be_damaged_on }
    }

    /// True when more than power fails.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.level != Level::CrashOnly
    }

    /// True when the pool must survive every fault of the plan.
    #[must_use]
    pub fn is_survivable(&self) -> bool {
        self.level.demand() == Demand::AllData
    }

    /// Adds a data disk to the struck ones when there is none.
    pub fn strike_one(&mut self, spec: &PoolSpec, rng: &mut Rng) {
        let data = 0..spec.data_disks;
        if spec.parity() > 0 && !self.victims.iter().any(|v| data.contains(v)) {
            self.victims.push(rng.below(spec.data_disks as u64) as usize);
        }
    }

    /// Draws the disks that fail next, once the pool is whole: as many of each group as it can
    /// spare, first those that no fault has struck, and the other sides of log mirrors.
    #[must_use]
    pub fn successors(&self, spec: &PoolSpec, rng: &mut Rng) -> Vec<usize> {
        let mut out = Vec::new();
        let groups = spec.groups_with_parity();
        let rings = spec.ring_ranges().map(|range| (range, spec.log.sides() - 1));
        for (range, most) in groups.chain(rings) {
            let mut left: Vec<usize> = range.collect();
            for _ in 0..rng.between(most.min(1) as u64, most as u64) {
                let fresh: Vec<usize> =
                    left.iter().copied().filter(|disk| !self.victims.contains(disk)).collect();
                let from = if fresh.is_empty() || rng.chance(150) { &left } else { &fresh };
                let disk = *rng.pick(from);
                left.retain(|other| *other != disk);
                out.push(disk);
            }
        }
        out
    }

    /// The plan whose faults strike these disks instead.
    #[must_use]
    pub fn with_victims(&self, victims: Vec<usize>) -> Self {
        Self { victims, ..self.clone() }
    }

    /// Draws faults of any kind for disks that hold nothing that counts.
    #[must_use]
    pub fn faults_of(
        &self,
        disks: &[usize],
        commands: u64,
        first_boot: bool,
        rng: &mut Rng,
    ) -> Vec<TimedFault> {
        let plan = self.with_victims(disks.to_vec());
        let mut out = plan.hangs(commands, rng);
        for disk in disks {
            for _ in 0..rng.below(5) {
                let fault = match rng.chance(200) {
                    true => slow(rng),
                    false => plan.damage(*disk, rng),
                };
                let early = !first_boot && rng.chance(250);
                let at_command = if early { 0 } else { rng.between(1, commands) };
                out.push(TimedFault { at_command, disk: *disk, fault });
            }
        }
        out
    }

    /// Draws faults that answer every failed command with an error.
    #[must_use]
    pub fn loud_faults(&self, commands: u64, rng: &mut Rng) -> Vec<TimedFault> {
        let mut out = Vec::new();
        for disk in &self.victims {
            let mut at_command = rng.between(1, commands);
            for _ in 0..rng.between(1, 3) {
                let trigger = Trigger::once(Ops::WRITE).after(rng.below(20));
                let effect = *rng.pick(&[Effect::None, Effect::Full]);
                let fault = match rng.below(8) {
                    0..2 => Fault::Gone,
                    2 => Fault::GoneAt { trigger, effect },
                    3 => Fault::FlushError { trigger: Trigger::once(Ops::FLUSH) },
                    4 => Fault::Stuck { ops: Ops::ALL, for_secs: Some(90) },
                    5 => Fault::Back,
                    _ => Fault::Error { trigger, failure: Failure::Eio, effect },
                };
                out.push(TimedFault { at_command, disk: *disk, fault });
                at_command += rng.between(1, commands);
            }
        }
        out
    }

    /// The disks that faults strike.
    #[must_use]
    pub fn victims(&self) -> &[usize] {
        &self.victims
    }

    /// Whether faults may damage the newest writes of a disk.
    #[must_use]
    pub fn may_damage_newest(&self, disk: usize) -> bool {
        self.newest_may_be_damaged_on.contains(&disk)
    }

    /// True when faults strike a log disk.
    #[must_use]
    pub fn strikes_log(&self, spec: &PoolSpec) -> bool {
        self.victims.iter().any(|disk| spec.log_range().contains(disk))
    }

    /// Disks that an administrator may take out without leaving the level: first the struck ones,
    /// then others as far as parity and the log's mirror allow.
    #[must_use]
    pub fn removable(&self, spec: &PoolSpec, rng: &mut Rng) -> Vec<usize> {
        let mut out = Vec::new();
        let groups = spec.groups_with_parity();
        let rings = spec.ring_ranges().map(|range| (range, spec.log.sides() - 1));
        for (range, most) in groups.chain(rings) {
            let (mut first, mut then): (Vec<usize>, Vec<usize>) =
                range.partition(|disk| self.victims.contains(disk));
            while first.len() < most && !then.is_empty() {
                first.push(then.swap_remove(rng.below(then.len() as u64) as usize));
            }
            first.truncate(most);
            out.extend(first);
        }
        out
    }

    /// Draws the faults of one boot that submits about `commands` commands.
    #[must_use]
    pub fn faults(&self, commands: u64, first_boot: bool, rng: &mut Rng) -> Vec<TimedFault> {
        let mut out = Vec::new();
        if self.level == Level::CrashOnly {
            return out;
        }
        for _ in 0..rng.below(3) {
            let disk = rng.below(self.sizes_bytes.len() as u64) as usize;
            let at_command = rng.between(1, commands);
            out.push(TimedFault { at_command, disk, fault: slow(rng) });
        }
        for disk in &self.victims {
            for _ in 0..rng.below(4) {
                let mut fault = self.damage(*disk, rng);
                // When all copies lack an acknowledged write, the loss cannot be detected. Such
                // faults belong to level `Lies`.
                if self.level == Level::Beyond {
                    while is_lie(&fault) {
                        fault = self.damage(*disk, rng);
                    }
                }
                if self.level == Level::Lies && rng.chance(300) {
                    fault = Fault::LyingFlush { on: rng.chance(800) };
                }
                let early = !first_boot && rng.chance(250);
                let at_command = if early { 0 } else { rng.between(1, commands) };
                out.push(TimedFault { at_command, disk: *disk, fault });
            }
        }
        out.extend(self.hangs(commands, rng));
        out
    }

    /// Draws hangs that are longer than any deadline, mostly without end. After a hang that ends,
    /// commands that were given up take effect late.
    fn hangs(&self, commands: u64, rng: &mut Rng) -> Vec<TimedFault> {
        let mut out = Vec::new();
        for disk in &self.victims {
            if !rng.chance(150) {
                continue;
            }
            let ops = *rng.pick(&[Ops::READ, Ops::WRITE, Ops::FLUSH, Ops::ALL, Ops::ALL]);
            let for_secs = rng.chance(400).then(|| rng.between(6, 120));
            let at_command = if rng.chance(100) { 0 } else { rng.between(1, commands) };
            let fault = Fault::Stuck { ops, for_secs };
            out.push(TimedFault { at_command, disk: *disk, fault });
        }
        out
    }

    /// Draws lost writes for a boot that recovers: struck disks each lose one to three writes in a
    /// row among the first `among`.
    #[must_use]
    pub fn losses(&self, among: u64, rng: &mut Rng) -> Vec<TimedFault> {
        let mut out = Vec::new();
        if matches!(self.level, Level::CrashOnly | Level::Beyond) {
            return out;
        }
        for disk in &self.victims {
            if rng.chance(700) {
                let mut trigger = Trigger::once(Ops::WRITE).after(rng.below(among));
                trigger.times = rng.between(1, 3);
                out.push(TimedFault { at_command: 0, disk: *disk, fault: Fault::Lost { trigger } });
            }
        }
        out
    }

    /// Draws disks whose flushes are answered and do nothing, from some command on.
    #[must_use]
    pub fn lies(&self, commands: u64, rng: &mut Rng) -> Vec<TimedFault> {
        let victims = self.victims.iter().filter(|_| rng.chance(700)).copied().collect::<Vec<_>>();
        let lie = |disk| {
            let at_command = if rng.chance(300) { 0 } else { rng.between(1, commands) };
            TimedFault { at_command, disk, fault: Fault::LyingFlush { on: true } }
        };
        victims.into_iter().map(lie).collect()
    }

    /// Draws which of the first `data` disks lose the first write over each map journal frame, in a
    /// boot that recovers.
    #[must_use]
    pub fn stale(&self, data: usize, rng: &mut Rng) -> Vec<usize> {
        if matches!(self.level, Level::CrashOnly | Level::Beyond) {
            return Vec::new();
        }
        let victims = self.victims.iter().copied().filter(|disk| *disk < data);
        victims.filter(|_| rng.chance(700)).collect()
    }

    fn damage(&self, disk: usize, rng: &mut Rng) -> Fault {
        let size = self.sizes_bytes[disk];
        // Labels and superblocks are at both ends; the first segments hold most data.
        let place = match rng.below(4) {
            0 => rng.below(1 << 20),
            1 => size - 1 - rng.below(1 << 20),
            _ => rng.below(size / 4),
        };
        let soon = |ops: Ops, rng: &mut Rng| Trigger::once(ops).after(rng.below(40));
        match rng.below(13) {
            0 | 1 => {
                let mask = 1 << rng.below(8);
                // Rot at a random place mostly strikes unused space, so half of it strikes recent
                // writes. Reusing bits of `place` keeps all other draws.
                if place & 1 == 1 {
                    let spared = if self.may_damage_newest(disk) { 0 } else { NEWEST_WRITES };
                    Fault::RotRecent {
                        back: spared + place / 2 % (RECENT_WRITES - spared),
                        permille: place / 64 % 1000,
                        mask,
                    }
                } else {
                    Fault::Rot { offset_bytes: place, mask }
                }
            }
            2 => Fault::Lost { trigger: soon(Ops::WRITE, rng) },
            3 => Fault::Misdirected { trigger: soon(Ops::WRITE, rng), to_bytes: place },
            4 => {
                let tear = if rng.chance(500) {
                    Tear::Prefix { sectors: rng.below(64) }
                } else {
                    Tear::Scatter { seed: rng.u64() }
                };
                Fault::Torn { trigger: soon(Ops::WRITE, rng), tear }
            }
            5 | 6 => {
                let ops = *rng.pick(&[Ops::READ, Ops::WRITE, Ops::FLUSH, Ops::ALL]);
                let effect = *rng.pick(&[Effect::None, Effect::Full]);
                let trigger = if rng.chance(800) { soon(ops, rng) } else { Trigger::always(ops) };
                Fault::Error { trigger, failure: Failure::Eio, effect }
            }
            // Flushes are rare.
            7 => Fault::FlushError { trigger: Trigger::once(Ops::FLUSH).after(rng.below(40) % 5) },
            8 => Fault::LyingFlush { on: true },
            9 => Fault::Gone,
            10 => {
                let effect = *rng.pick(&[Effect::None, Effect::Full]);
                Fault::GoneAt { trigger: soon(Ops::ALL, rng), effect }
            }
            // The limit may be zero.
            11 if place & 1 == 1 => Fault::NoSpace { limit_bytes: (place % 64) << 14 },
            11 => Fault::ReadOnly { on: true },
            _ => Fault::Back,
        }
    }
}

fn is_lie(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Lost { .. }
            | Fault::Torn { .. }
            | Fault::Misdirected { .. }
            | Fault::LyingFlush { .. }
            | Fault::FlushError { .. }
    )
}

fn slow(rng: &mut Rng) -> Fault {
    let ops = *rng.pick(&[Ops::READ, Ops::WRITE, Ops::FLUSH, Ops::ALL]);
    if rng.chance(300) {
        return Fault::Hung { ops };
    }
    let base_ns = 1_000_000 << rng.below(6);
    Fault::Slow { ops, latency: Latency::HeavyTail { base_ns, max_ns: 500_000_000 } }
}
