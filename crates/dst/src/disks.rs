//! The disks of a run under their fault layers. They outlive every boot.
//!
//! What enters: a scenario's pool shape and faults. What leaves: devices for the pool, and which of
//! them were struck. Who calls: `run.rs` and `boot.rs`.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device};
use forebay_rt as rt;
use forebay_sim::faults::{Fault, FaultCounts, Ops, Stack, Trigger};
use forebay_sim::{Bucket, DiskConfig, Seed, SimDisk, World};
use forebay_units::{BLOCK_BYTES, Nanos};

use crate::coverage::{Coverage, fault_name};
use crate::link::Link;
use crate::log_memory::Machine;
use crate::model::Model;
use crate::object_stores;
use crate::refusal::Suspect;
use crate::remote_log::Networks;
use crate::scenario::{
    Demand, MapRot, Scenario, TimedFault, TimedLoss, TimedMapLoss, TimedNetwork,
};
use crate::subject::PoolSpec;

/// What a backup device has beside the image, and some more.
const BACKUP_BYTES: u64 = 1 << 20;

/// How long a hang takes that ends by itself.
const HANG_SECS: u64 = 4;

/// How long the pool waits for an answer of a disk.
fn deadline_secs(spec: &PoolSpec, disk: usize) -> u64 {
    let (name, usual_secs) = match spec.log_range().contains(&disk) {
        true => ("log_timeout", 5),
        false => ("device_timeout", 30),
    };
    spec.properties.get(name).and_then(|secs| secs.parse().ok()).unwrap_or(usual_secs)
}

/// All disks of a run.
pub struct Disks {
    /// Power, command counters, digest.
    pub world: Rc<World>,
    pub(crate) sims: Vec<Rc<SimDisk>>,
    pub(crate) stacks: Vec<Rc<Stack>>,
    /// Disks that a refused import may name: [`Suspect::is_struck`].
    pub(crate) struck: Rc<RefCell<BTreeSet<usize>>>,
    /// Disks on which recent writes do not rot.
    keep_recent_writes: Vec<usize>,
    /// Disks that stay in use when they hang for a while.
    outlast_hangs: Vec<usize>,
    pub(crate) coverage: Rc<Coverage>,
    /// Scheduled faults strike no more until the next boot.
    is_calm: Rc<Cell<bool>>,
    /// Faults that have struck.
    pub(crate) strikes: Rc<Cell<u64>>,
    /// The machine with the memory of log devices.
    pub(crate) machine: Machine,
    /// The networks to log disks on other hosts.
    pub(crate) networks: Networks,
    /// The disks that are in object stores, and their stores.
    pub(crate) buckets: Vec<(usize, Rc<Bucket>)>,
    /// Objects that they have lost.
    lost_objects: Rc<Cell<u64>>,
    /// Rot in the map journal that has not come.
    map_loss: Cell<Option<TimedMapLoss>>,
    /// Frames of the map journal that are gone on every disk.
    lost_frames: Cell<u64>,
    /// Numbers of the disks of each group.
    groups: Vec<Range<usize>>,
}

impl Disks {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let spec = &scenario.spec;
        let world = World::new(Seed(scenario.seed).derive("disks"));
        let log = spec.log_range();
        let sims: Vec<Rc<SimDisk>> = (0..spec.disks())
            .map(|number| {
                let config = if spec.memory_log_range().contains(&number) {
                    DiskConfig::flash(&format!("log{number}"), spec.log_bytes + BACKUP_BYTES)
                } else if log.contains(&number) {
                    DiskConfig::log(&format!("log{number}"), spec.log_bytes)
                } else if spec.cache_range().contains(&number) {
                    DiskConfig::flash(&format!("cache{number}"), spec.data_bytes)
                } else {
                    DiskConfig::flash(&format!("disk{number}"), spec.data_bytes)
                };
                SimDisk::new(&world, config)
            })
            .collect();
        let stacks = sims
            .iter()
            .map(|sim| {
                let cache = sim.clone();
                let seed = world.seed().derive("slow").derive(&sim.number().to_string());
                Stack::new(sim.clone(), seed, move || cache.forget_cached())
            })
            .collect();
        // With all sides of a log struck, rot in the last frames looks like the end of the log. A
        // log in the pool lies on data disks.
        let keep_recent_writes = match scenario.demand {
            Demand::Detected if log.is_empty() => (0..spec.data_disks).collect(),
            Demand::Detected => log.collect(),
            _ => Vec::new(),
        };
        let buckets = object_stores::of(spec, &world);
        let outlasts_hangs = |disk: &usize| deadline_secs(spec, *disk) > HANG_SECS;
        Self {
            world,
            buckets,
            map_loss: Cell::default(),
            lost_frames: Cell::default(),
            groups: spec.group_ranges().collect(),
            lost_objects: Rc::default(),
            sims,
            stacks,
            // The pool may fill a spare at any time.
            struck: Rc::new(spec.hot_spare_range().collect::<BTreeSet<_>>().into()),
            keep_recent_writes,
            outlast_hangs: (0..spec.disks()).filter(outlasts_hangs).collect(),
            coverage: Coverage::new(scenario),
            is_calm: Rc::default(),
            strikes: Rc::default(),
            machine: Machine::new(),
            networks: Networks::new(spec.remote_log_range()),
        }
    }

    /// Gives disks the contents that they have in another run.
    pub(crate) fn take_contents(&self, other: &Self, disks: &[usize]) {
        self.world.restore(&self.world.image().with_disks_of(&other.world.image(), disks));
    }

    pub(crate) fn suspects(&self) -> Vec<Suspect> {
        let struck = self.struck.borrow();
        let suspect = |(disk, stack): (usize, &Rc<Stack>)| Suspect {
            name: stack.name().to_owned(),
            is_struck: struck.contains(&disk),
        };
        self.stacks.iter().enumerate().map(suspect).collect()
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.stacks.iter().map(|stack| stack.clone() as Device).collect()
    }

    /// The devices for the pool of a boot, with stores behind `link`. Backup devices are made when
    /// there is no pool yet.
    pub(crate) async fn open_devices(
        &self,
        spec: &PoolSpec,
        is_created: bool,
        link: Option<&Rc<Link>>,
    ) -> Vec<Device> {
        let mut devices = self.devices();
        self.machine.start();
        for device in &mut devices[spec.memory_log_range()] {
            if !is_created {
                self.machine.prepare(device, spec.log_bytes).await;
            }
            *device = self.machine.open(device).await;
        }
        for (disk, bucket) in &self.buckets {
            let device = &mut devices[*disk];
            *device = object_stores::open(bucket, device.name(), spec.data_bytes, link).await;
        }
        for disk in spec.mirrored_memory_disks() {
            devices[disk] = self.machine.open_mirrored(&devices[disk], spec.log_bytes).await;
        }
        devices
    }

    /// The devices as another machine has them, beside the one that has the pool. It `misses` some.
    pub(crate) async fn open_on(
        &self,
        host: u64,
        spec: &PoolSpec,
        misses: &[usize],
    ) -> Vec<Device> {
        let mut devices = self.devices();
        for (disk, bucket) in &self.buckets {
            let device = &mut devices[*disk];
            let client = bucket.client(device.name());
            *device = object_stores::open_on(client, host, spec.data_bytes).await;
        }
        let reached = devices.into_iter().enumerate().filter(|(disk, _)| !misses.contains(disk));
        reached.map(|(_, device)| device).collect()
    }

    /// Loses memory that only the other sides of log mirrors protect.
    pub(crate) fn lose_mirrored_memory(&self, spec: &PoolSpec) {
        self.machine.lose_memory();
        self.struck.borrow_mut().extend(spec.mirrored_memory_disks());
    }

    /// Number of strikes so far that a scrub would repair: damage and errors.
    pub(crate) fn damage(&self) -> u64 {
        let counts = self.stacks.iter().map(|stack| stack.counts());
        let damage = |c: FaultCounts| c.torn + c.lost + c.misdirected + c.rot_bytes + c.errors;
        counts.map(damage).sum::<u64>() + self.lost_objects.get()
    }

    /// How often each kind of fault struck, over all disks.
    pub(crate) fn fault_counts(&self) -> Vec<(&'static str, u64)> {
        let mut sums = vec![
            ("lost object", self.lost_objects.get()),
            ("lost frame of the map journal", self.lost_frames.get()),
        ];
        for stack in &self.stacks {
            let c = stack.counts();
            sums.extend([
                ("torn", c.torn),
                ("lost", c.lost),
                ("misdirected", c.misdirected),
                ("rot (bytes)", c.rot_bytes),
                ("rot (reads that saw it)", c.rot_reads),
                ("error", c.errors),
                ("flush error", c.flush_errors),
                ("lying flush", c.lies),
                ("slow", c.slow),
                ("hung", c.hung),
                ("no space", c.no_space),
                ("gone", c.gone),
                ("read-only", c.read_only),
            ]);
        }
        sums
    }

    /// Offset and number of each map journal frame on a disk.
    fn frames_on(&self, disk: usize) -> Vec<(u64, u64)> {
        const MAGIC: u64 = u64::from_le_bytes(*b"FBAYJRNL");
        let media = self.sims[disk].stable();
        let frame = |at: u64| {
            // Magic, pool, number.
            let mut first = [0; 24];
            if !media.is_hole(at, BLOCK_BYTES) {
                media.read(at, &mut first);
            }
            let word = |index: usize| {
                u64::from_le_bytes(first[8 * index..][..8].try_into().expect("eight bytes"))
            };
            (word(0) == MAGIC).then(|| (at, word(2)))
        };
        (0..media.size_bytes()).step_by(BLOCK_BYTES as usize).filter_map(frame).collect()
    }

    /// Makes disks lose the next write over each map journal frame that they hold now.
    pub(crate) fn keep_map(&self, disks: &[usize]) {
        for disk in disks.iter().copied().filter(|disk| *disk < self.sims.len()) {
            self.struck.borrow_mut().insert(disk);
            for (at, _) in self.frames_on(disk) {
                let trigger = Trigger::once(Ops::WRITE).within(at, at + BLOCK_BYTES);
                self.stacks[disk].inject(&Fault::Lost { trigger });
            }
        }
    }

    /// Flips bits in a frame of the map journal on any disk.
    pub(crate) fn rot_map(&self, rot: &MapRot) {
        const FRAME_ALIGN_BYTES: u64 = 16 << 10;
        let on = |disk| self.frames_on(disk).into_iter().map(move |(at, seq)| (seq, disk, at));
        let mut places: Vec<_> = (0..self.sims.len()).flat_map(on).collect();
        places.sort_by_key(|(seq, disk, at)| (Reverse(*seq), *disk, *at));
        if places.is_empty() {
            return;
        }
        let (_, disk, from) = places[(rot.pick % places.len() as u64) as usize];
        let end = (from + rot.blocks * BLOCK_BYTES)
            .min(from / FRAME_ALIGN_BYTES * FRAME_ALIGN_BYTES + FRAME_ALIGN_BYTES);
        self.world.tell(|| format!("rot in the map journal, on disk {disk} from {from} to {end}"));
        self.struck.borrow_mut().insert(disk);
        for block in (from..end).step_by(BLOCK_BYTES as usize) {
            let offset_bytes = block + rot.at_byte % BLOCK_BYTES;
            self.stacks[disk].inject(&Fault::Rot { offset_bytes, mask: rot.mask });
        }
    }

    /// Has frames of the map journal rot on every disk of their group, at a command from now on.
    pub(crate) fn schedule_map_loss(self: &Rc<Self>, loss: Option<TimedMapLoss>) {
        self.map_loss.set(loss);
        let Some(loss) = loss else { return };
        let disks = Rc::downgrade(self);
        self.world.at_command(self.world.submitted() + loss.at_command.max(1), move || {
            disks.upgrade().iter().for_each(|disks| disks.lose_map());
        });
    }

    /// Has them rot now, unless they have.
    pub(crate) fn lose_map(&self) {
        let Some(TimedMapLoss { pick, .. }) = self.map_loss.take() else { return };
        let on = |disk| self.frames_on(disk).into_iter().map(move |(at, seq)| (seq, disk, at));
        let data = 0..self.groups.last().map_or(0, |group| group.end);
        let mut places: Vec<_> = data.flat_map(on).collect();
        // What is being written there may be data.
        let written: Vec<_> = self
            .world
            .unflushed()
            .iter()
            .map(|w| w.offset_bytes..w.offset_bytes + w.len_bytes)
            .collect();
        places
            .retain(|(.., at)| !written.iter().any(|w| w.start < at + BLOCK_BYTES && *at < w.end));
        let numbers: BTreeSet<u64> = places.iter().map(|(seq, ..)| *seq).collect();
        if let Some(pick) = pick {
            let back = pick as usize % numbers.len().max(1);
            let number = numbers.into_iter().rev().nth(back);
            places.retain(|(seq, ..)| Some(*seq) == number);
        }
        for (seq, disk, at) in places {
            self.lost_frames.set(self.lost_frames.get() + 1);
            let group = self.groups.iter().find(|group| group.contains(&disk)).cloned();
            self.world.tell(|| format!("frame {seq} of the map journal is lost, at {at}"));
            for disk in group.into_iter().flatten() {
                // Equal rot of all columns would leave parity as it is.
                let offset_bytes = at + 8 + disk as u64;
                self.stacks[disk].inject(&Fault::Rot { offset_bytes, mask: 1 });
                self.struck.borrow_mut().insert(disk);
            }
        }
        self.strikes.set(self.strikes.get() + 1);
        self.coverage.note("lost map", true);
    }

    /// Ends all faults, also those whose command has not come.
    pub(crate) fn end_faults(&self) {
        self.is_calm.set(true);
        self.stacks.iter().for_each(|stack| stack.heal());
        self.networks.end_faults();
    }

    /// Has networks change at their commands.
    pub(crate) fn schedule_networks(&self, changes: &[TimedNetwork]) {
        let (struck, strikes) = (self.struck.clone(), self.strikes.clone());
        let coverage = self.coverage.clone();
        self.networks.schedule(&self.world, changes, move |disk| {
            coverage.note("network", false);
            strikes.set(strikes.get() + 1);
            struck.borrow_mut().insert(disk);
        });
    }

    /// Has the first store lose objects at their commands.
    pub(crate) fn schedule_losses(&self, losses: &[TimedLoss]) {
        for loss in losses {
            let Some((disk, bucket)) = self.buckets.first().cloned() else { continue };
            let (struck, strikes) = (self.struck.clone(), self.strikes.clone());
            let (coverage, pick) = (self.coverage.clone(), loss.pick);
            let lost = self.lost_objects.clone();
            let strike = move || {
                if object_stores::lose(&bucket, pick) {
                    coverage.note("lost object", false);
                    lost.set(lost.get() + 1);
                    strikes.set(strikes.get() + 1);
                    struck.borrow_mut().insert(disk);
                }
            };
            match loss.at_command {
                0 => strike(),
                at => self.world.at_command(at, strike),
            }
        }
    }

    /// Arms each fault at its command, and notes an outage in `model` if there is one.
    pub(crate) fn schedule(&self, faults: &[TimedFault], outage: Option<&Rc<Model>>) {
        self.is_calm.set(false);
        for timed in faults {
            let Some(stack) = self.stacks.get(timed.disk).cloned() else { continue };
            let fault = timed.fault.clone();
            let (world, disk) = (self.world.clone(), timed.disk);
            let (struck, coverage) = (self.struck.clone(), self.coverage.clone());
            let keeps_recent = self.keep_recent_writes.contains(&disk);
            let (outage, is_calm) = (outage.cloned(), self.is_calm.clone());
            let strikes = self.strikes.clone();
            let outlasts_hangs = self.outlast_hangs.contains(&disk);
            let strike = move || {
                if is_calm.get() {
                    return;
                }
                strikes.set(strikes.get() + 1);
                if let Some(model) = &outage {
                    model.set_outage(true);
                }
                if let Fault::Rot { offset_bytes, .. } = fault {
                    if keeps_recent && stack.wrote_recently(offset_bytes) {
                        return;
                    }
                }
                world.tell(|| format!("fault on disk {disk}: {fault:?}"));
                let is_further = struck.borrow().iter().any(|other| *other != disk);
                coverage.note(fault_name(&fault), is_further);
                // A refused import must not name a disk because it is slow, or back.
                let is_harmless = match fault {
                    Fault::Hung { .. } => outlasts_hangs,
                    Fault::Slow { .. } | Fault::SlowAnswer { .. } | Fault::SlowArea { .. } => true,
                    Fault::Back | Fault::Blocked { .. } => true,
                    _ => false,
                };
                if !is_harmless {
                    struck.borrow_mut().insert(disk);
                }
                stack.inject(&fault);
                let calm_after_secs = match fault {
                    Fault::Hung { .. } => Some(HANG_SECS),
                    Fault::Slow { .. } | Fault::SlowAnswer { .. } | Fault::SlowArea { .. } => {
                        Some(20)
                    }
                    Fault::Stuck { for_secs, .. } => for_secs,
                    _ => None,
                };
                if let Some(secs) = calm_after_secs {
                    let stack = stack.clone();
                    rt::spawn(async move {
                        rt::sleep(Nanos::from_secs(secs)).await;
                        stack.calm();
                    });
                }
            };
            if timed.at_command == 0 {
                strike();
            } else {
                self.world.at_command(timed.at_command, strike);
            }
        }
    }
}
