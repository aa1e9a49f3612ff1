//! A log device in memory over many boots that end in every way: what was acknowledged is there
//! afterwards, unless the power went without the warning that was promised.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::layers::Layer;
use forebay_device::{BlockDevice, Deadline, Device, DeviceFuture, DramState, IoBuf, IoBytes};
use forebay_dram::{DramDevice, Host, Preparation, prepare_backup};
use forebay_format::dram::DramProtection;
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::{DiskConfig, Fate, Rng, Seed, SimDisk, SimHost, Supply, World, random_fates};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos, SECTOR_BYTES};

const SIZE_BYTES: u64 = 2 << 20;
/// The battery holds for this long, and says so. A save of a second needs 9.
const RUNTIME_SECS: u64 = 12;
const WRITERS: u64 = 3;
const BLOCKS: u64 = SIZE_BYTES / BLOCK_BYTES;
const SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
const SECTOR_LEN: usize = SECTOR_BYTES as usize;

/// How a boot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The device is saved and closed.
    Close,
    /// The process is killed; the machine goes on.
    Kill,
    /// The power fails; the battery holds for as long as it said.
    Battery,
    /// The same, without a word: the supply's server is gone too.
    SilentBattery,
    /// The power is gone at once, against what the supply said.
    NoWarning,
    /// The supply cannot be asked for long, and then the power is gone at once.
    AfterSilence,
}

const ENDS: [End; 6] =
    [End::Close, End::Kill, End::Battery, End::SilentBattery, End::NoWarning, End::AfterSilence];

/// What a sector may hold: any write from the last that was acknowledged to the last that began.
/// Writes are of blocks, and one that was not acknowledged may be torn between sectors.
#[derive(Default)]
struct Model {
    acknowledged: RefCell<BTreeMap<u64, u64>>,
    begun: RefCell<BTreeMap<u64, u64>>,
    next: Cell<u64>,
}

/// A device whose reads see what there was when they began, and whose writes land when they end.
struct Lazy {
    inner: Rc<SimDisk>,
    rng: RefCell<Rng>,
}

impl Lazy {
    fn delay(&self) -> Nanos {
        let mut rng = self.rng.borrow_mut();
        let most_micros =
            [100, 2_000, 300_000, 3_000_000][rng.u64().trailing_ones().min(3) as usize];
        Nanos::from_micros(rng.below(most_micros))
    }
}

impl Layer for Lazy {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let buf = self.inner.read(offset_bytes, buf).await?;
            rt::sleep(self.delay()).await;
            Ok(buf)
        })
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            rt::sleep(self.delay()).await;
            self.inner.write(offset_bytes, data, fua).await
        })
    }
}

struct Rig {
    world: Rc<World>,
    disk: Rc<SimDisk>,
    host: Rc<SimHost>,
    model: Rc<Model>,
    /// How often each state was reached.
    states: Rc<RefCell<BTreeMap<&'static str, u64>>>,
}

/// Content of a sector: the write's number, and the place.
fn content(sector: u64, stamp: u64) -> [u8; SECTOR_LEN] {
    let mut bytes = [0; SECTOR_LEN];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = if stamp == 0 { 0 } else { stamp << 24 | sector << 8 | at as u64 };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

impl Model {
    async fn write(&self, device: &Device, block: u64) -> bool {
        let stamp = self.next.get() + 1;
        self.next.set(stamp);
        let sectors = block * SECTORS..(block + 1) * SECTORS;
        self.begun.borrow_mut().extend(sectors.clone().map(|sector| (sector, stamp)));
        let mut data = IoBuf::zeroed(BLOCK_LEN);
        for (place, sector) in data.chunks_mut(SECTOR_LEN).zip(sectors.clone()) {
            place.copy_from_slice(&content(sector, stamp));
        }
        let outcome = device.write(block * BLOCK_BYTES, data.freeze(), true).await;
        if outcome.is_ok() {
            self.acknowledged.borrow_mut().extend(sectors.map(|sector| (sector, stamp)));
        }
        outcome.is_ok()
    }

    /// Reads a block: everything that was acknowledged before is there.
    async fn read(&self, device: &Device, block: u64) {
        let first = block * SECTORS;
        let oldest = self.acknowledged.borrow().get(&first).copied().unwrap_or(0);
        let found = device.read(block * BLOCK_BYTES, IoBuf::zeroed(BLOCK_LEN)).await.unwrap();
        let newest = self.begun.borrow().get(&first).copied().unwrap_or(0);
        let stamp = u64::from_le_bytes(found[..8].try_into().unwrap()) >> 24;
        assert!((oldest..=newest).contains(&stamp), "block {block}: {stamp}, not {oldest} on");
    }

    /// Reads everything, and makes it durable. What was read counts as acknowledged from here on.
    async fn check(&self, device: &Device) {
        device.flush().await.unwrap();
        let all = device.read(0, IoBuf::zeroed(SIZE_BYTES as usize)).await.unwrap();
        for (sector, found) in (0..).zip(all.chunks(SECTOR_LEN)) {
            let stamp = u64::from_le_bytes(found[..8].try_into().unwrap()) >> 24;
            assert!(found == content(sector, stamp), "sector {sector} has another's content");
            let oldest = self.acknowledged.borrow().get(&sector).copied().unwrap_or(0);
            let newest = self.begun.borrow().get(&sector).copied().unwrap_or(0);
            assert!(
                (oldest..=newest).contains(&stamp),
                "sector {sector} has write {stamp}, not {oldest} to {newest}"
            );
            self.acknowledged.borrow_mut().insert(sector, stamp);
            self.begun.borrow_mut().insert(sector, stamp);
        }
    }
}

async fn writer(device: Device, model: Rc<Model>, number: u64, mut rng: Rng) {
    loop {
        let block = rng.below(BLOCKS / WRITERS) * WRITERS + number;
        if rng.below(4) == 0 {
            model.read(&device, rng.below(BLOCKS)).await;
        }
        if !model.write(&device, block).await {
            rt::sleep(Nanos::from_millis(100)).await;
        }
        rt::sleep(Nanos::from_micros(rng.below(6_000))).await;
    }
}

/// Opens the device; `None` if its memory was lost.
async fn open(rig: &Rig) -> Option<Device> {
    let rng = RefCell::new(Seed(rt::random_u64()).rng());
    let disk: Device = Rc::new(Lazy { inner: rig.disk.clone(), rng });
    let backup = Deadline::new(disk, Nanos::from_secs(30));
    DramDevice::open(backup, rig.host.clone()).await.ok()
}

impl Rig {
    fn new(seed: u64) -> Self {
        let world = World::new(Seed(seed));
        let disk = SimDisk::new(&world, DiskConfig::flash("backup", SIZE_BYTES + (1 << 20)));
        let host = SimHost::new(RUNTIME_SECS);
        let rig = Self { world, disk, host, model: Rc::default(), states: Rc::default() };
        rig.prepare(seed);
        rig
    }

    fn prepare(&self, seed: u64) {
        let disk: Device = self.disk.clone();
        Runtime::simulated(seed).block_on(async move {
            let protection = DramProtection::Ups { name: "u".to_owned() };
            let memory = "m".to_owned();
            let made = Preparation { size_bytes: SIZE_BYTES, memory, protection };
            prepare_backup(&disk, &made).await.unwrap();
        });
        self.model.acknowledged.borrow_mut().clear();
        self.model.begun.borrow_mut().clear();
    }

    /// One boot. Returns whether the memory was found lost.
    fn boot(self: &Rc<Self>, seed: u64, end: End) -> bool {
        self.host.set_supply(Supply::OnLine { runtime_secs: RUNTIME_SECS });
        let runtime = Runtime::simulated(seed);
        let rig = self.clone();
        let outcome = runtime.run(async move { rig.run(Seed(seed).rng(), end).await });
        drop(runtime);
        let mut rng = Seed(seed).derive("fates").rng();
        if self.world.is_powered() {
            // The kernel ends the commands of a process that was killed before another one gets the
            // device.
            self.world.draw_crash_outcome(|_, _| Fate::Kept);
        } else {
            self.host.lose_memory();
            self.world.draw_crash_outcome(random_fates(&mut rng));
        }
        self.world.power_on();
        outcome == Some(false)
    }

    /// Returns `false` if the memory was lost; does not return when the boot ends in a crash.
    async fn run(&self, mut rng: Rng, end: End) -> bool {
        let Some(device) = open(self).await else { return false };
        self.model.check(&device).await;
        for number in 0..WRITERS {
            let rng = Seed(rng.u64()).rng();
            rt::spawn(writer(device.clone(), self.model.clone(), number, rng));
        }
        for _ in 0..rng.below(5) {
            if rng.below(2) == 0 {
                // What was on its way to the backup device meets what comes after.
                self.until_armed(&device).await;
            } else {
                rt::sleep(Nanos::from_millis(rng.below(4_000))).await;
            }
            let until = rt::now() + Nanos::from_secs(RUNTIME_SECS);
            self.host.set_supply(match rng.below(4) {
                0 => Supply::OnBattery { until },
                1 => Supply::Silent,
                2 => Supply::OnLine { runtime_secs: rng.below(9) },
                _ => Supply::OnLine { runtime_secs: RUNTIME_SECS },
            });
            self.note(&device);
        }
        self.host.set_supply(Supply::OnLine { runtime_secs: RUNTIME_SECS });
        if rng.below(2) == 0 {
            self.until_armed(&device).await;
            rt::sleep(Nanos::from_millis(rng.below(2_000))).await;
        } else {
            rt::sleep(Nanos::from_millis(rng.below(8_000))).await;
        }
        self.note(&device);
        self.end(device, end, rng).await
    }

    async fn end(&self, device: Device, end: End, mut rng: Rng) -> bool {
        let holds = Nanos::from_secs(RUNTIME_SECS);
        match end {
            End::Close => {
                device.save().await.unwrap();
                // What is written after a save goes through.
                rt::sleep(Nanos::from_millis(rng.below(3_000))).await;
                self.note(&device);
                if rng.below(2) == 0 {
                    self.world.power_cut();
                } else {
                    rt::halt();
                }
            }
            End::Kill => rt::halt(),
            End::Battery | End::SilentBattery => {
                let until = rt::now() + holds;
                self.host.set_supply(match end {
                    End::Battery => Supply::OnBattery { until },
                    _ => Supply::Silent,
                });
                rt::sleep(holds).await;
                self.note(&device);
                self.world.power_cut();
            }
            End::NoWarning => self.world.power_cut(),
            End::AfterSilence => {
                self.host.set_supply(Supply::Silent);
                rt::sleep(Nanos::from_secs(9 + rng.below(3))).await;
                self.world.power_cut();
            }
        }
        rt::sleep(Nanos::from_secs(1)).await;
        unreachable!("the runtime was halted")
    }

    /// Waits until the device is armed, for some seconds at most.
    async fn until_armed(&self, device: &Device) {
        for _ in 0..1_000 {
            if state_of(device) == DramState::Armed {
                return;
            }
            rt::sleep(Nanos::from_millis(10)).await;
        }
    }

    fn note(&self, device: &Device) {
        for change in device.take_dram_changes() {
            *self.states.borrow_mut().entry(change.to.as_str()).or_default() += 1;
        }
    }
}

#[test]
fn acknowledged_writes_outlive_every_end_that_was_promised() {
    let mut lost = 0;
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..24 {
        let rig = Rc::new(Rig::new(seed));
        let mut rng = Seed(seed).derive("ends").rng();
        let mut before = End::Close;
        for boot in 0..8 {
            let end = ENDS[rng.below(ENDS.len() as u64) as usize];
            if rig.boot(seed * 100 + boot, end) {
                assert_eq!(before, End::NoWarning, "seed {seed}, boot {boot}: the memory is lost");
                lost += 1;
                rig.prepare(seed);
            }
            before = end;
        }
        for (state, count) in &*rig.states.borrow() {
            *states.entry(state).or_default() += count;
        }
    }
    assert!(lost > 4, "a supply that lies is noticed: {lost} times");
    for state in ["ARMED", "SAVING", "SAVED", "RESTORING", "RESTORED"] {
        assert!(states.get(state).is_some_and(|count| *count > 20), "{state}: {states:?}");
    }
}

/// A boot without a script.
fn with_device<T: 'static>(
    rig: &Rc<Rig>,
    work: impl AsyncFnOnce(Rc<Rig>, Device) -> T + 'static,
) -> T {
    let rig = rig.clone();
    Runtime::simulated(5).block_on(async move {
        let device = open(&rig).await.expect("it opens");
        work(rig, device).await
    })
}

fn state_of(device: &Device) -> DramState {
    device.dram().unwrap().state
}

#[test]
fn armed_writes_reach_no_device_until_they_are_saved() {
    let rig = Rc::new(Rig::new(1));
    with_device(&rig, async |rig, device| {
        rig.model.write(&device, 0).await;
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(state_of(&device), DramState::Armed);
        let before = rig.world.submitted();
        for block in 0..100 {
            let began = rt::now();
            assert!(rig.model.write(&device, block).await);
            assert_eq!(rt::now(), began, "no device and no clock is waited for");
        }
        device.flush().await.unwrap();
        assert_eq!(rig.world.submitted(), before);
        assert_eq!(device.dram().unwrap().unsaved_bytes, 7 * (64 << 10));
        rig.host.set_supply(Supply::OnBattery { until: rt::now() + Nanos::from_secs(8) });
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(state_of(&device), DramState::Saved);
        assert_eq!(device.dram().unwrap().unsaved_bytes, 0);
    });
}

#[test]
fn memory_that_a_killed_process_left_is_saved_before_the_first_write() {
    let rig = Rc::new(Rig::new(8));
    with_device(&rig, async |rig, device| {
        rig.model.write(&device, 3).await;
        rig.until_armed(&device).await;
        rig.model.write(&device, 4).await;
    });
    rig.host.set_supply(Supply::OnLine { runtime_secs: 0 });
    with_device(&rig, async |_, device| {
        rt::sleep(Nanos::from_secs(3)).await;
        assert_eq!(state_of(&device), DramState::Saved);
    });
    rig.host.lose_memory();
    with_device(&rig, async |rig, device| rig.model.check(&device).await);
}

#[test]
fn looking_at_a_device_changes_nothing() {
    let rig = Rc::new(Rig::new(2));
    let written = rig.world.stats();
    with_device(&rig, async |rig, device| {
        rig.model.check(&device).await;
        rt::sleep(Nanos::from_secs(5)).await;
        assert_eq!(state_of(&device), DramState::Saved);
        assert_eq!(rig.host.memory_bytes(), 0, "no memory is taken");
    });
    assert_eq!(rig.world.stats().writes, written.writes);
}

#[test]
fn memory_is_given_back_after_a_save() {
    let rig = Rc::new(Rig::new(3));
    with_device(&rig, async |rig, device| {
        rig.model.write(&device, 3).await;
        rt::sleep(Nanos::from_secs(2)).await;
        assert!(rig.host.memory_bytes() > SIZE_BYTES);
        device.save().await.unwrap();
        assert_eq!(rig.host.memory_bytes(), 0);
        assert!(rig.model.write(&device, 4).await, "later writes go through");
        rt::sleep(Nanos::from_secs(5)).await;
        assert_eq!(state_of(&device), DramState::Saved, "it is not armed again");
    });
    with_device(&rig, async |rig, device| rig.model.check(&device).await);
}

/// A copy of the memory.
fn memory_of(rig: &Rc<Rig>) -> Vec<u8> {
    let host = rig.host.clone();
    Runtime::simulated(8).block_on(async move {
        let memory = host.open_memory("m").await.unwrap();
        let mut bytes = vec![0; memory.len_bytes() as usize];
        memory.read(0, &mut bytes);
        bytes
    })
}

#[test]
fn memory_of_an_earlier_arming_is_not_taken() {
    let rig = Rc::new(Rig::new(4));
    let arm = async |rig: Rc<Rig>, device: Device| {
        rig.model.write(&device, 3).await;
        rt::sleep(Nanos::from_secs(9)).await;
        assert_eq!(state_of(&device), DramState::Armed);
    };
    with_device(&rig, arm);
    let old = memory_of(&rig);
    with_device(&rig, async |rig, device| {
        rig.model.write(&device, 3).await;
        device.save().await.unwrap();
    });
    with_device(&rig, arm);
    let opened = Runtime::simulated(9).block_on(async move {
        let memory = rig.host.create_memory("m", old.len() as u64).await.unwrap();
        memory.write(0, &old);
        open(&rig).await.is_some()
    });
    assert!(!opened, "the memory is of the time before the save");
}

/// A device that lands writes to one block, and holds their completion back while it is told to.
struct Held {
    inner: Rc<SimDisk>,
    offset_bytes: u64,
    is_held: Rc<Cell<bool>>,
    /// Lands them only then.
    lands_late: bool,
}

impl Layer for Held {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let holds =
                self.is_held.get() && offset_bytes == self.offset_bytes && data.len() == BLOCK_LEN;
            if !holds || !self.lands_late {
                self.inner.write(offset_bytes, data.clone(), fua).await?;
            }
            while holds && self.is_held.get() {
                rt::sleep(Nanos::from_millis(10)).await;
            }
            if holds && self.lands_late {
                self.inner.write(offset_bytes, data, fua).await?;
            }
            Ok(())
        })
    }
}

/// A device that is armed while a write to block 5 is on its way to the backup device.
async fn armed_with_held(rig: &Rc<Rig>, lands_late: bool) -> (Device, Rc<Cell<bool>>) {
    rig.host.set_supply(Supply::Silent);
    let is_held = Rc::new(Cell::new(true));
    let offset_bytes = forebay_format::dram::IMAGE_START_BYTES + 5 * BLOCK_BYTES;
    let inner = rig.disk.clone();
    let backup: Device =
        Rc::new(Held { inner, offset_bytes, is_held: is_held.clone(), lands_late });
    let device = DramDevice::open(backup, rig.host.clone()).await.unwrap();
    rig.model.write(&device, 0).await;
    rt::sleep(Nanos::from_secs(3)).await;
    assert_eq!(state_of(&device), DramState::Restored);
    let (model, held) = (rig.model.clone(), device.clone());
    rt::spawn(async move { model.write(&held, 5).await });
    rt::sleep(Nanos::from_millis(10)).await;
    rig.host.set_supply(Supply::OnLine { runtime_secs: RUNTIME_SECS });
    rig.until_armed(&device).await;
    (device, is_held)
}

#[test]
fn save_waits_for_writes_that_began_before_it_was_armed() {
    let rig = Rc::new(Rig::new(6));
    let work = rig.clone();
    Runtime::simulated(6).block_on(async move {
        let (device, is_held) = armed_with_held(&work, true).await;
        work.model.write(&device, 6).await;
        work.host.set_supply(Supply::OnLine { runtime_secs: 0 });
        rt::sleep(Nanos::from_secs(3)).await;
        assert_eq!(state_of(&device), DramState::Saving);
        is_held.set(false);
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(state_of(&device), DramState::Saved);
        assert_eq!(work.model.acknowledged.borrow().get(&(5 * SECTORS)), Some(&2));
        work.model.check(&device).await;
    });
    rig.host.lose_memory();
    with_device(&rig, async |rig, device| rig.model.check(&device).await);
}

/// The write has landed in the image, and the memory that counts does not have it.
#[test]
fn write_that_a_killed_process_had_under_way_does_not_appear_later() {
    let rig = Rc::new(Rig::new(7));
    let work = rig.clone();
    Runtime::simulated(7).block_on(async move {
        let _device = armed_with_held(&work, false).await;
    });
    rig.world.draw_crash_outcome(|_, _| Fate::Kept);
    rig.world.power_on();
    with_device(&rig, async |rig, device| {
        rig.model.check(&device).await;
        device.save().await.unwrap();
    });
    with_device(&rig, async |rig, device| rig.model.check(&device).await);
}
