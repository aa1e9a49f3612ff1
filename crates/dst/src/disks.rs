//! The disks of a run, under layers that break them.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device};
use forebay_rt as rt;
use forebay_sim::faults::{Fault, Ops, Stack, Trigger};
use forebay_sim::{DiskConfig, Seed, SimDisk, World};
use forebay_units::{BLOCK_BYTES, Nanos};

use crate::refusal::Suspect;
use crate::scenario::{Demand, MapRot, Scenario, TimedFault};

/// The disks of a run, under their fault layers. They outlive every boot.
pub struct Disks {
    /// Power, counts, digest.
    pub world: Rc<World>,
    pub(crate) sims: Vec<Rc<SimDisk>>,
    pub(crate) stacks: Vec<Rc<Stack>>,
    /// The disks of which a refused import may complain: [`Suspect::struck`].
    pub(crate) struck: Rc<RefCell<BTreeSet<usize>>>,
    /// Disks on which what was written last does not rot.
    tails: Vec<usize>,
}

impl Disks {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let spec = &scenario.spec;
        let world = World::new(Seed(scenario.seed).derive("disks"));
        let log = spec.log_range();
        let sims: Vec<Rc<SimDisk>> = (0..spec.disks())
            .map(|number| {
                let config = if log.contains(&number) {
                    DiskConfig::log(&format!("log{number}"), spec.log_bytes)
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
        // Beyond what a mirrored log makes good, rot in the last frames is not told from the log's end.
        let tails = match scenario.demand {
            Demand::Detected => log.collect(),
            _ => Vec::new(),
        };
        Self { world, sims, stacks, struck: Rc::default(), tails }
    }

    pub(crate) fn suspects(&self) -> Vec<Suspect> {
        let struck = self.struck.borrow();
        let suspect = |(disk, stack): (usize, &Rc<Stack>)| Suspect {
            name: stack.name().to_owned(),
            struck: struck.contains(&disk),
        };
        self.stacks.iter().enumerate().map(suspect).collect()
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.stacks.iter().map(|stack| stack.clone() as Device).collect()
    }

    /// How often something on a disk became other than it should be, or could not be read: a scrub
    /// repairs it.
    pub(crate) fn damage(&self) -> u64 {
        let counts = self.stacks.iter().map(|stack| stack.counts());
        counts.map(|c| c.torn + c.lost + c.misdirected + c.rot_bytes + c.errors).sum()
    }

    /// Where on a disk frames of the map journal begin, and their numbers.
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

    /// Has disks lose the next write over each frame of the map journal that they hold now.
    pub(crate) fn keep_map(&self, disks: &[usize]) {
        for disk in disks.iter().copied().filter(|disk| *disk < self.sims.len()) {
            self.struck.borrow_mut().insert(disk);
            for (at, _) in self.frames_on(disk) {
                let trigger = Trigger::once(Ops::WRITE).within(at, at + BLOCK_BYTES);
                self.stacks[disk].inject(&Fault::Lost { trigger });
            }
        }
    }

    /// Flips bits in a frame of the map journal, wherever on a disk one begins.
    pub(crate) fn rot_map(&self, rot: &MapRot) {
        const UNIT_BYTES: u64 = 16 << 10;
        let on = |disk| self.frames_on(disk).into_iter().map(move |(at, seq)| (seq, disk, at));
        let mut places: Vec<_> = (0..self.sims.len()).flat_map(on).collect();
        places.sort_by_key(|(seq, disk, at)| (Reverse(*seq), *disk, *at));
        if places.is_empty() {
            return;
        }
        let (_, disk, from) = places[(rot.pick % places.len() as u64) as usize];
        let end =
            (from + rot.blocks * BLOCK_BYTES).min(from / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES);
        self.world.tell(|| format!("rot in the map journal, on disk {disk} from {from} to {end}"));
        self.struck.borrow_mut().insert(disk);
        for block in (from..end).step_by(BLOCK_BYTES as usize) {
            let offset_bytes = block + rot.at_byte % BLOCK_BYTES;
            self.stacks[disk].inject(&Fault::Rot { offset_bytes, mask: rot.mask });
        }
    }

    pub(crate) fn schedule(&self, faults: &[TimedFault]) {
        for timed in faults {
            let Some(stack) = self.stacks.get(timed.disk).cloned() else { continue };
            let fault = timed.fault.clone();
            let (world, disk) = (self.world.clone(), timed.disk);
            let struck = self.struck.clone();
            let keeps_tail = self.tails.contains(&disk);
            let strike = move || {
                if let Fault::Rot { offset_bytes, .. } = fault
                    && keeps_tail
                    && stack.wrote_lately(offset_bytes)
                {
                    return;
                }
                world.tell(|| format!("fault on disk {disk}: {fault:?}"));
                // A disk that is slow, or back, has nothing to be blamed for.
                if !matches!(fault, Fault::Slow { .. } | Fault::Hung { .. } | Fault::Back) {
                    struck.borrow_mut().insert(disk);
                }
                stack.inject(&fault);
                let calm_after_secs = match fault {
                    // Shorter than any deadline: a disk that takes longer has failed.
                    Fault::Hung { .. } => Some(4),
                    Fault::Slow { .. } => Some(20),
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
