//! The power supply and the command counters that all disks of one simulation share.
//!
//! What enters: every submission and completion, a planned crash point, and hooks. What leaves:
//! whether a command may proceed, a digest over all events, and disk images. What always holds: the
//! digest depends on each event, its content, its time and its order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::Operation;
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::disk_state::{DiskImage, DiskState};
use crate::{CrashPoint, Fate, Seed, Unflushed};

/// Command counts since the world was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandStats {
    /// Reads.
    pub reads: u64,
    /// Writes and write-zeroes without FUA.
    pub writes: u64,
    /// Writes and write-zeroes with FUA.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// A copy of every disk's state. Pages are shared until one side changes them.
#[derive(Clone)]
pub struct WorldImage {
    disks: Vec<DiskImage>,
}

impl WorldImage {
    /// The same with the disks of these numbers as they are in `other`.
    #[must_use]
    pub fn with_disks_of(mut self, other: &Self, numbers: &[usize]) -> Self {
        for number in numbers {
            self.disks[*number] = other.disks[*number].clone();
        }
        self
    }
}

/// The disks of one simulation and their common power supply.
pub struct World {
    seed: Seed,
    powered: Cell<bool>,
    submitted: Cell<u64>,
    completed: Cell<u64>,
    flushed: Cell<u64>,
    plan: Cell<Option<CrashPoint>>,
    digest: Cell<u64>,
    stats: Cell<CommandStats>,
    disks: RefCell<Vec<Weak<RefCell<DiskState>>>>,
    hooks: RefCell<BTreeMap<u64, Vec<Hook>>>,
    watcher: RefCell<Option<Watcher>>,
    power_cut_hook: RefCell<Option<Hook>>,
    follower: RefCell<Option<Follower>>,
    machine: Cell<u64>,
}

/// A change that a disk holds and that has had no effect yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldChange {
    disk: usize,
    id: u64,
}

type Watcher = Box<dyn Fn(&str)>;

type Hook = Box<dyn FnOnce()>;

type Follower = Box<dyn Fn(Step)>;

/// A command that was submitted or has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The command completed; otherwise it was submitted.
    pub completed: bool,
    /// Number among submissions, or among completions, since power-on, from 1.
    pub number: u64,
    /// Kind of the command.
    pub operation: Operation,
}

impl Step {
    /// True when the step can change what a power cut leaves on disk.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.operation {
            Operation::Read => false,
            Operation::Flush => self.completed,
            _ => true,
        }
    }
}

/// A submission or completion of a command, for counters and the digest.
pub(crate) struct CommandEvent {
    pub(crate) disk: usize,
    pub(crate) operation: Operation,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) fua: bool,
    pub(crate) content: u64,
}

impl World {
    /// A world with power and without disks. Every random choice derives from `seed`.
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
            power_cut_hook: RefCell::default(),
            follower: RefCell::default(),
            machine: Cell::new(0),
        })
    }

    /// The seed of this world.
    #[must_use]
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Plans the next power cut; `None` cancels it.
    pub fn plan_crash(&self, plan: Option<CrashPoint>) {
        self.plan.set(plan);
    }

    /// True while there is power. Without power no command has an effect or completes.
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

    /// Command counts since the world was made.
    #[must_use]
    pub fn stats(&self) -> CommandStats {
        self.stats.get()
    }

    /// A hash over every command's range, content and time, in order: two runs with equal digests
    /// did the same.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Adds a value to the digest.
    fn note(&self, value: u64) {
        let mixed = (self.digest.get().rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest.set(mixed ^ (mixed >> 32));
    }

    /// Cuts the power and halts the current runtime.
    pub fn power_cut(&self) {
        if self.powered.replace(false) {
            self.plan.set(None);
            let hook = self.power_cut_hook.take();
            if let Some(hook) = hook {
                hook();
            }
            rt::halt();
        }
    }

    /// Writes that no flush has covered. For each disk: cached writes in order of completion, then
    /// writes in flight in order of issue.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Unflushed> {
        self.each_disk().flat_map(|disk| disk.borrow().unflushed()).collect()
    }

    /// Ends a power cut on every disk: `decide` draws the fate of each unflushed write, in the
    /// order of [`World::unflushed`]. Returns the fates. The old runtime must be gone.
    pub fn draw_crash_outcome(
        &self,
        mut decide: impl FnMut(usize, &Unflushed) -> Fate,
    ) -> Vec<Fate> {
        let mut fates = Vec::new();
        for disk in self.each_disk() {
            disk.borrow_mut().draw_crash_outcome(&mut |write| {
                let fate = decide(fates.len(), write);
                fates.push(fate);
                fate
            });
        }
        fates
    }

    /// From here on commands are those of this machine, of several that share the disks.
    pub fn set_machine(&self, machine: u64) {
        self.machine.set(machine);
    }

    /// The machine whose commands are submitted now.
    #[must_use]
    pub fn machine(&self) -> u64 {
        self.machine.get()
    }

    /// Changes of a machine that are in flight, by disk and in order of issue.
    #[must_use]
    pub fn held_changes(&self, machine: u64) -> Vec<HeldChange> {
        let of = |(disk, state): (usize, Rc<RefCell<DiskState>>)| {
            let ids = state.borrow().in_flight_of(machine);
            ids.into_iter().map(move |id| HeldChange { disk, id })
        };
        self.each_disk().enumerate().flat_map(of).collect()
    }

    /// A change takes effect now, if it has had none; its machine hears of it when it runs again.
    pub fn land(&self, held: HeldChange) {
        if let Some(disk) = self.each_disk().nth(held.disk) {
            disk.borrow_mut().land(held.id);
        }
    }

    /// Calls `hook` when the `number`-th command since power-on is submitted, before its effect.
    /// [`World::power_on`] removes hooks that were not called.
    pub fn at_command(&self, number: u64, hook: impl FnOnce() + 'static) {
        self.hooks.borrow_mut().entry(number).or_default().push(Box::new(hook));
    }

    /// Calls `hook` at the power cut while the runtime still exists, for example to read counters.
    /// [`World::power_on`] removes it.
    pub fn at_power_cut(&self, hook: impl FnOnce() + 'static) {
        *self.power_cut_hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Calls `watcher` with a line of text for each submission and completion.
    pub fn watch(&self, watcher: impl Fn(&str) + 'static) {
        *self.watcher.borrow_mut() = Some(Box::new(watcher));
    }

    /// Calls `follower` for each submission and completion.
    pub fn follow(&self, follower: impl Fn(Step) + 'static) {
        *self.follower.borrow_mut() = Some(Box::new(follower));
    }

    /// Passes a line of text to the watcher.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(watcher) = &*self.watcher.borrow() {
            watcher(&line());
        }
    }

    /// Restores power and restarts the command numbers at 1.
    pub fn power_on(&self) {
        self.hooks.borrow_mut().clear();
        *self.power_cut_hook.borrow_mut() = None;
        self.powered.set(true);
        self.submitted.set(0);
        self.completed.set(0);
        self.flushed.set(0);
    }

    /// A copy of every disk's state.
    #[must_use]
    pub fn image(&self) -> WorldImage {
        WorldImage { disks: self.each_disk().map(|disk| disk.borrow().image()).collect() }
    }

    /// Restores every disk from `image`. Panics when disks were added after the image.
    pub fn restore(&self, image: &WorldImage) {
        let disks: Vec<_> = self.each_disk().collect();
        assert_eq!(disks.len(), image.disks.len(), "the image is of another world");
        for (disk, state) in disks.iter().zip(&image.disks) {
            disk.borrow_mut().restore(state);
        }
    }

    fn each_disk(&self) -> impl Iterator<Item = Rc<RefCell<DiskState>>> + use<> {
        let disks: Vec<_> = self.disks.borrow().iter().filter_map(Weak::upgrade).collect();
        disks.into_iter()
    }

    pub(crate) fn add(&self, disk: Weak<RefCell<DiskState>>) {
        self.disks.borrow_mut().push(disk);
    }

    pub(crate) fn disk_count(&self) -> usize {
        self.disks.borrow().len()
    }

    /// Counts a submission. False when the power is off and the command does not reach the disk.
    #[must_use]
    pub(crate) fn before_submit(&self, event: &CommandEvent) -> bool {
        if !self.powered.get() {
            return false;
        }
        let number = self.submitted.get() + 1;
        self.submitted.set(number);
        // The map is not borrowed while hooks run: they may add hooks.
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

    /// Cuts the power when the plan says so. The command is in flight by now.
    pub(crate) fn after_submit(&self) {
        if self.plan.get() == Some(CrashPoint::AfterSubmit(self.submitted.get())) {
            self.power_cut();
        }
    }

    /// Counts a completion after its effect. False when the host does not receive it.
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
            Some(CrashPoint::SinceFlush { flush, commands })
                if is_flush && flush == self.flushed.get() =>
            {
                self.plan.set(Some(CrashPoint::AfterSubmit(self.submitted.get() + commands)));
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
            let range = format!("{offset_bytes:#x} + {len_bytes:#x}");
            format!("{at:>9} us  {what} {number:>5}  disk {disk}: {operation} {range}{fua}")
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

    /// The runtime's clock.
    pub(crate) fn now(&self) -> Nanos {
        rt::now()
    }
}
