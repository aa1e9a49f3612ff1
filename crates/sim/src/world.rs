//! What all disks of one simulation share: power, the count of commands, and the plan to cut it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::Operation;
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::disk::{DiskImage, SimDisk};
use crate::{Rng, Seed};

/// Where the power fails. Commands of all disks are counted together, from 1, since the last
/// [`World::power_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrashPoint {
    /// The n-th command never reaches its disk.
    BeforeSubmit(u64),
    /// The n-th command has reached its disk and is in flight.
    AfterSubmit(u64),
    /// The n-th completion had its effect, but the host never hears of it.
    AfterComplete(u64),
    /// The n-th flush that completed had its effect, and the host never hears of it: what a commit is
    /// made of is mostly on media then, and what makes it count is not.
    AfterFlush(u64),
    /// At the first command event at this time of the runtime's clock (ns) or later.
    AtTime(u64),
}

/// What became of a write that no flush had covered when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It reached the media whole.
    Kept,
    /// It did not reach the media.
    Lost,
    /// Only its first sectors did.
    Prefix {
        /// How many sectors of 512 bytes.
        sectors: u64,
    },
    /// Some of its sectors did, chosen one by one.
    Scatter {
        /// What chose them.
        seed: u64,
    },
}

/// A write (or discard) that no flush had covered when the power went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// Number of the disk in the world.
    pub disk: usize,
    /// What it was.
    pub operation: Operation,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
    /// Whether its completion was still to come.
    pub in_flight: bool,
    /// Whether it asked for durability.
    pub fua: bool,
}

/// Commands by kind, since the world began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStats {
    /// Reads.
    pub reads: u64,
    /// Writes without FUA, write-zeroes included.
    pub writes: u64,
    /// Writes with FUA.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// The state of every disk, to come back to. Pages are shared until changed.
#[derive(Clone)]
pub struct WorldImage {
    disks: Vec<DiskImage>,
}

/// One simulation's disks and their common power supply.
pub struct World {
    seed: Seed,
    powered: Cell<bool>,
    submitted: Cell<u64>,
    completed: Cell<u64>,
    flushed: Cell<u64>,
    plan: Cell<Option<CrashPoint>>,
    digest: Cell<u64>,
    stats: Cell<CommandStats>,
    disks: RefCell<Vec<Weak<SimDisk>>>,
    hooks: RefCell<BTreeMap<u64, Vec<Hook>>>,
    watcher: RefCell<Option<Watcher>>,
    last_words: RefCell<Option<Hook>>,
    follower: RefCell<Option<Follower>>,
}

type Watcher = Box<dyn Fn(&str)>;

type Hook = Box<dyn FnOnce()>;

type Follower = Box<dyn Fn(Step)>;

/// A command that was submitted or has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether it is its end.
    pub completed: bool,
    /// Of its kind (submissions, completions) since power-on, from 1.
    pub number: u64,
    /// The command.
    pub operation: Operation,
}

impl Step {
    /// Whether it can change what a power cut leaves behind.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.operation {
            Operation::Read => false,
            Operation::Flush => self.completed,
            _ => true,
        }
    }
}

/// One thing that happened to a command, for the digest.
pub(crate) struct CommandEvent {
    pub(crate) disk: usize,
    pub(crate) operation: Operation,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) fua: bool,
    pub(crate) content: u64,
}

impl World {
    /// A world under power, without disks, whose every choice follows from `seed`.
    #[must_use]
    pub fn new(seed: Seed) -> Rc<Self> {
        Rc::new(Self {
            seed,
            powered: Cell::new(true),
            submitted: Cell::new(0),
            completed: Cell::new(0),
            flushed: Cell::new(0),
            plan: Cell::new(None),
            digest: Cell::new(0),
            stats: Cell::default(),
            disks: RefCell::default(),
            hooks: RefCell::default(),
            watcher: RefCell::default(),
            last_words: RefCell::default(),
            follower: RefCell::default(),
        })
    }

    /// The seed it was made from.
    #[must_use]
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Plans (or with `None` calls off) the next power cut.
    pub fn plan_crash(&self, plan: Option<CrashPoint>) {
        self.plan.set(plan);
    }

    /// Whether there is power. Without it no command has any effect or any end.
    #[must_use]
    pub fn is_powered(&self) -> bool {
        self.powered.get()
    }

    /// Commands submitted since the last power-on.
    #[must_use]
    pub fn submitted(&self) -> u64 {
        self.submitted.get()
    }

    /// Commands completed since the last power-on.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// Flushes completed since the last power-on.
    #[must_use]
    pub fn flushed(&self) -> u64 {
        self.flushed.get()
    }

    /// Commands by kind since the world began.
    #[must_use]
    pub fn stats(&self) -> CommandStats {
        self.stats.get()
    }

    /// A number that depends on every command, its place, content and time, in their order: two
    /// runs with the same digest did the same.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Adds something else that happened to the digest.
    pub fn note(&self, value: u64) {
        let mixed = (self.digest.get().rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest.set(mixed ^ (mixed >> 32));
    }

    /// Cuts the power now and halts the current runtime.
    pub fn power_cut(&self) {
        if self.powered.replace(false) {
            self.plan.set(None);
            let last = self.last_words.take();
            if let Some(look) = last {
                look();
            }
            rt::halt();
        }
    }

    /// What no flush has covered, over all disks: those in a cache in order of completion, then
    /// those in flight in order of issue.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Unflushed> {
        self.each_disk().flat_map(|disk| disk.unflushed()).collect()
    }

    /// Ends a power cut on every disk: `decide` chooses the fate of each unflushed write, in the
    /// order of [`World::unflushed`]. Returns the choices. Call it when the old runtime is gone.
    pub fn draw_crash_outcome(
        &self,
        mut decide: impl FnMut(usize, &Unflushed) -> Fate,
    ) -> Vec<Fate> {
        let mut fates = Vec::new();
        for disk in self.each_disk() {
            disk.draw_crash_outcome(&mut |write| {
                let fate = decide(fates.len(), write);
                fates.push(fate);
                fate
            });
        }
        fates
    }

    /// Calls `hook` when the `number`-th command since power-on is submitted, just before it counts.
    /// Hooks that were never called are gone after the next [`World::power_on`].
    pub fn at_command(&self, number: u64, hook: impl FnOnce() + 'static) {
        self.hooks.borrow_mut().entry(number).or_default().push(Box::new(hook));
    }

    /// Calls `look` when the power is cut, while the runtime still stands: to count what the machine
    /// had done. Forgotten at the next [`World::power_on`].
    pub fn at_power_cut(&self, look: impl FnOnce() + 'static) {
        *self.last_words.borrow_mut() = Some(Box::new(look));
    }

    /// Calls `watcher` with a line for each command that is submitted and each that completes.
    pub fn watch(&self, watcher: impl Fn(&str) + 'static) {
        *self.watcher.borrow_mut() = Some(Box::new(watcher));
    }

    /// Calls `follower` for each command that is submitted and each that completes.
    pub fn follow(&self, follower: impl Fn(Step) + 'static) {
        *self.follower.borrow_mut() = Some(Box::new(follower));
    }

    /// Tells the watcher something.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(watcher) = &*self.watcher.borrow() {
            watcher(&line());
        }
    }

    /// Gives power again and counts commands from 1 again.
    pub fn power_on(&self) {
        self.hooks.borrow_mut().clear();
        *self.last_words.borrow_mut() = None;
        self.powered.set(true);
        self.submitted.set(0);
        self.completed.set(0);
        self.flushed.set(0);
    }

    /// The state of every disk now.
    #[must_use]
    pub fn image(&self) -> WorldImage {
        WorldImage { disks: self.each_disk().map(|disk| disk.image()).collect() }
    }

    /// Puts every disk back into the state of `image`. Panics when disks were added since.
    pub fn restore(&self, image: &WorldImage) {
        let disks: Vec<_> = self.each_disk().collect();
        assert_eq!(disks.len(), image.disks.len(), "the image is of another world");
        for (disk, state) in disks.iter().zip(&image.disks) {
            disk.restore(state);
        }
    }

    fn each_disk(&self) -> impl Iterator<Item = Rc<SimDisk>> + use<> {
        let disks: Vec<_> = self.disks.borrow().iter().filter_map(Weak::upgrade).collect();
        disks.into_iter()
    }

    pub(crate) fn add(&self, disk: Weak<SimDisk>) {
        self.disks.borrow_mut().push(disk);
    }

    pub(crate) fn disk_count(&self) -> usize {
        self.disks.borrow().len()
    }

    /// Counts a submission. False when the command does not reach the disk.
    #[must_use]
    pub(crate) fn before_submit(&self, event: &CommandEvent) -> bool {
        if !self.powered.get() {
            return false;
        }
        let number = self.submitted.get() + 1;
        self.submitted.set(number);
        // Nothing is borrowed while they run: they may hook on to later commands.
        let hooks = self.hooks.borrow_mut().remove(&number);
        hooks.into_iter().flatten().for_each(|hook| hook());
        let timed = |at| rt::now().0 >= at;
        match self.plan.get() {
            Some(CrashPoint::BeforeSubmit(n)) if n == number => self.power_cut(),
            Some(CrashPoint::AtTime(at)) if timed(at) => self.power_cut(),
            _ => {}
        }
        if self.powered.get() {
            self.count(event);
            self.note_event(event, 1);
        }
        self.powered.get()
    }

    /// After the command has reached its disk.
    pub(crate) fn after_submit(&self) {
        if self.plan.get() == Some(CrashPoint::AfterSubmit(self.submitted.get())) {
            self.power_cut();
        }
    }

    /// Counts a completion, after its effect. False when the host does not hear of it.
    #[must_use]
    pub(crate) fn after_complete(&self, event: &CommandEvent) -> bool {
        let number = self.completed.get() + 1;
        self.completed.set(number);
        self.note_event(event, 2);
        let is_flush = event.operation == Operation::Flush;
        self.flushed.set(self.flushed.get() + u64::from(is_flush));
        match self.plan.get() {
            Some(CrashPoint::AfterComplete(n)) if n == number => self.power_cut(),
            Some(CrashPoint::AfterFlush(n)) if is_flush && n == self.flushed.get() => {
                self.power_cut();
            }
            _ => {}
        }
        self.powered.get()
    }

    fn note_event(&self, event: &CommandEvent, stage: u64) {
        if let Some(follower) = &*self.follower.borrow() {
            let completed = stage == 2;
            let number = if completed { self.completed.get() } else { self.submitted.get() };
            follower(Step { completed, number, operation: event.operation });
        }
        self.tell(|| {
            let what = if stage == 1 { "submit  " } else { "complete" };
            let number = if stage == 1 { self.submitted.get() } else { self.completed.get() };
            let fua = if event.fua { " FUA" } else { "" };
            let CommandEvent { disk, operation, offset_bytes, len_bytes, .. } = event;
            let at = rt::now().0 / 1000;
            format!(
                "{at:>9} us  {what} {number:>5}  disk {disk}: {operation} {offset_bytes:#x} + {len_bytes:#x}{fua}"
            )
        });
        let kind = event.operation as u64;
        self.note(stage << 60 | kind << 52 | u64::from(event.fua) << 51 | event.disk as u64);
        self.note(event.offset_bytes);
        self.note(event.len_bytes ^ event.content);
        self.note(rt::now().0);
    }

    fn count(&self, event: &CommandEvent) {
        let mut stats = self.stats.get();
        match event.operation {
            Operation::Read => stats.reads += 1,
            Operation::Flush => stats.flushes += 1,
            Operation::Discard => stats.discards += 1,
            _ if event.fua => stats.fua_writes += 1,
            _ => stats.writes += 1,
        }
        if matches!(event.operation, Operation::Write | Operation::WriteZeroes) {
            stats.write_bytes += event.len_bytes;
        }
        self.stats.set(stats);
    }

    /// The time, for disks.
    pub(crate) fn now(&self) -> Nanos {
        rt::now()
    }
}

/// Chooses fates as a power cut would: now and then all lost or all kept, mostly each on its own,
/// some torn.
pub fn random_fates(rng: &mut Rng) -> impl FnMut(usize, &Unflushed) -> Fate + '_ {
    let mode = rng.below(10);
    let kept_per_mille = match mode {
        0 => 0,
        1 => 1000,
        _ => rng.between(50, 950),
    };
    let torn_per_mille = if mode < 3 { 0 } else { rng.below(400) };
    move |_, write| {
        let sectors = (write.len_bytes / forebay_units::SECTOR_BYTES).max(1);
        if rng.chance(torn_per_mille) {
            if rng.chance(500) {
                Fate::Prefix { sectors: rng.below(sectors + 1) }
            } else {
                Fate::Scatter { seed: rng.u64() }
            }
        } else if rng.chance(kept_per_mille) {
            Fate::Kept
        } else {
            Fate::Lost
        }
    }
}
