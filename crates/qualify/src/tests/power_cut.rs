//! The power-cut rig on simulated devices: every class is found, and an honest drive raises none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer, Operation,
};
use forebay_rt::Runtime;
use forebay_sim::faults::{LostWrites, LyingFlush, Misdirected, Ops, Trigger};
use forebay_sim::{
    CrashPoint, DiskConfig, Fate, LatencyModel, Seed, SimDisk, Unflushed, World, random_fates,
};

use super::Silent;
use crate::power_cut::*;

/// 256 places of 16 KiB.
const SPAN_BYTES: u64 = 4 << 20;
const CUTS: u64 = 20;

/// What a device does beside its duty.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vice {
    None,
    /// It answers flushes and FUA at once, and forgets them.
    IgnoresFlush,
    /// It ignores the FUA bit, and flushes honestly.
    IgnoresFua,
    /// It ignores flushes, and parts of a write reach the media.
    TearsFlushed,
    /// Its blocks of 4 KiB reach the media in part.
    Shears,
    /// One write in a hundred goes elsewhere.
    Misdirects,
    /// One write in a hundred is answered and never done.
    Drops,
    /// Places that were written long ago are gone after a cut.
    LosesMap,
    /// Bits flip at a cut.
    FlipsBits,
    /// Some places cannot be read after a cut.
    LosesSectors,
}

struct Row {
    name: &'static str,
    vice: Vice,
    is_volatile: bool,
    /// Classes that are its nature.
    expected: &'static [&'static str],
}

const fn row(
    name: &'static str,
    vice: Vice,
    is_volatile: bool,
    expected: &'static [&'static str],
) -> Row {
    Row { name, vice, is_volatile, expected }
}

const ROWS: [Row; 11] = [
    row("honest drive with a volatile cache", Vice::None, true, &[]),
    row("honest drive with a durable cache", Vice::None, false, &[]),
    row("ignores flushes and FUA", Vice::IgnoresFlush, true, &["stale", "unserializable"]),
    row("ignores FUA alone", Vice::IgnoresFua, true, &["stale", "unserializable"]),
    row("ignores flushes, tears writes", Vice::TearsFlushed, true, &["torn"]),
    row("shears its 4 KiB blocks", Vice::Shears, true, &["shorn"]),
    row("misdirects one write in 100", Vice::Misdirects, true, &["misdirected"]),
    row("drops one write in 100", Vice::Drops, true, &["missing", "stale", "unserializable"]),
    row("loses parts of its map", Vice::LosesMap, false, &["missing"]),
    row("flips bits", Vice::FlipsBits, false, &["corrupt"]),
    row("loses sectors", Vice::LosesSectors, false, &["unreadable"]),
];

/// Drops the FUA bit.
struct NoFua(Device);

impl Layer for NoFua {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }
    fn write(&self, offset: u64, data: IoBytes, _: bool) -> DeviceFuture<'_, ()> {
        self.0.write(offset, data, false)
    }
}

/// Fails reads of the first sectors of some places, once it is told to.
struct Unreadable(Device, Cell<bool>);

impl Layer for Unreadable {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        const BAD_BYTES: u64 = 7 * 16384 + 512;
        let touches = offset <= BAD_BYTES && BAD_BYTES < offset + buf.len() as u64;
        if !(self.1.get() && touches) {
            return self.0.read(offset, buf);
        }
        let kind = ErrorKind::Os { errno: 5 };
        let error = DeviceError::new("bad", Operation::Read, offset, buf.len() as u64, kind);
        Box::pin(async { Err(error) })
    }
}

/// The witness: it lies outside of the runtime that the cut ends.
#[derive(Default)]
struct Kept {
    durable: RefCell<Vec<u64>>,
    is_filled: Cell<bool>,
}

impl Witness for Kept {
    fn durable(&self, writer: u16, sequence: u64) -> WitnessFuture<'_> {
        self.durable.borrow_mut()[usize::from(writer)] = sequence;
        Box::pin(std::future::ready(Ok(())))
    }
    fn filled(&self) -> WitnessFuture<'_> {
        self.is_filled.set(true);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A device of this vice, and what becomes of it at the cut.
struct Rig {
    world: Rc<World>,
    disk: Rc<SimDisk>,
    device: Device,
    unreadable: Rc<Unreadable>,
    vice: Vice,
    seed: Seed,
}

impl Rig {
    fn new(row: &Row, seed: u64) -> Self {
        let seed = Seed(seed);
        let world = World::new(seed);
        let config = DiskConfig {
            block_bytes: if row.vice == Vice::Shears { 4096 } else { 512 },
            volatile_cache: row.is_volatile,
            latency: LatencyModel::log(),
            ..DiskConfig::flash("disk", SPAN_BYTES)
        };
        let disk = SimDisk::new(&world, config);
        let base: Device = disk.clone();
        let unreadable = Rc::new(Unreadable(base.clone(), Cell::new(false)));
        // Behind the first writes: the places have been filled in part.
        let some = |rule: &mut dyn FnMut(Trigger, u64)| {
            (0..40).for_each(|n| rule(Trigger::once(Ops::WRITE).after(20 + 100 * n), n));
        };
        let device: Device = match row.vice {
            Vice::IgnoresFlush | Vice::TearsFlushed => {
                let lying = LyingFlush::new(base);
                lying.set_lying(true);
                lying
            }
            Vice::IgnoresFua => Rc::new(NoFua(base)),
            Vice::Misdirects => {
                let layer = Misdirected::new(base);
                some(&mut |trigger, n| layer.add(trigger, n * 91 % 256 * 16384));
                layer
            }
            Vice::Drops => {
                let layer = LostWrites::new(base);
                some(&mut |trigger, _| layer.add(trigger));
                layer
            }
            Vice::LosesSectors => unreadable.clone(),
            _ => base,
        };
        Self { world, disk, device, unreadable, vice: row.vice, seed }
    }

    /// What the cut does to writes that are not durable, and to old data.
    fn lose_power(&self) {
        let mut rng = self.seed.derive("fates").rng();
        match self.vice {
            Vice::TearsFlushed => {
                let tear = |_, write: &Unflushed| Fate::Prefix { sectors: write.len_bytes / 1024 };
                self.world.draw_crash_outcome(tear);
            }
            Vice::IgnoresFlush | Vice::IgnoresFua => {
                let half = |_, _: &Unflushed| match rng.chance(500) {
                    true => Fate::Kept,
                    false => Fate::Lost,
                };
                self.world.draw_crash_outcome(half);
            }
            Vice::Shears => {
                self.world.draw_crash_outcome(|_, _| Fate::Prefix { sectors: 3 });
            }
            _ => {
                self.world.draw_crash_outcome(random_fates(&mut rng));
            }
        }
        match self.vice {
            Vice::LosesMap => self.disk.damage(0, |bytes| bytes.fill(0), 64 << 10),
            Vice::FlipsBits => {
                // One in the mark of a sector, one in its data, one in its number.
                let flip = |bytes: &mut [u8]| {
                    (bytes[0], bytes[700], bytes[1052]) =
                        (bytes[0] ^ 1, bytes[700] ^ 0x10, bytes[1052] ^ 2);
                };
                self.disk.damage(3 * 16384, flip, 2048);
            }
            Vice::LosesSectors => self.unreadable.1.set(true),
            _ => {}
        }
    }
}

/// One cycle: writes until the power fails, then a look at what is left.
fn cycle(row: &Row, seed: u64, sync: CutSync) -> (CutFindings, Rc<Kept>, CutPlan) {
    let rig = Rig::new(row, seed);
    let plan = CutPlan::new(seed ^ 0x5eed, &rig.device.geometry(), u64::MAX, sync).unwrap();
    let kept = Rc::new(Kept::default());
    kept.durable.borrow_mut().resize(usize::from(plan.writers), 0);
    // Mostly after each place was written, sometimes before.
    let cut_at = 200 + rig.seed.derive("cut").rng().below(3_000);
    rig.world.plan_crash(Some(CrashPoint::AfterSubmit(cut_at)));
    let runtime = Runtime::simulated(seed);
    let (device, given, witness) = (rig.device.clone(), plan.clone(), kept.clone());
    let end = runtime.run(async move {
        write_records(&device, &given, witness, &Silent).await;
    });
    assert!(end.is_none(), "the power failed in the middle");
    drop(runtime);
    rig.lose_power();
    rig.world.power_on();
    let (device, given, told) = (rig.device.clone(), plan.clone(), kept.durable.borrow().clone());
    let verified = Runtime::simulated(seed + 1)
        .block_on(async move { verify_records(&device, &given, &told, &|_| {}).await });
    (verified.unwrap(), kept, plan)
}

/// The classes that were found, by name.
fn classes(found: &CutFindings) -> Vec<&'static str> {
    let mut names: Vec<&str> = found.damages.keys().map(|damage| damage.name()).collect();
    names.extend((found.unserializable > 0).then_some("unserializable"));
    names
}

const COLUMNS: [&str; 8] =
    ["missing", "stale", "torn", "shorn", "misdirected", "corrupt", "unreadable", "unserializable"];

#[test]
fn table_of_hits_and_false_alarms_is_what_the_page_says() {
    let mut table = String::new();
    for (number, row) in (0..).zip(&ROWS) {
        let mut hits: BTreeMap<&str, u64> = BTreeMap::new();
        for cut in 0..CUTS {
            let (found, ..) = cycle(row, number * 1000 + cut, CutSync::Both);
            assert!(found.checked > 20, "{}: {found:?}", row.name);
            classes(&found).into_iter().for_each(|name| *hits.entry(name).or_default() += 1);
        }
        let cell = |name: &&str| {
            let count = hits.get(name).copied().unwrap_or(0);
            let mark = if row.expected.contains(name) { "**" } else { "" };
            assert!(count > 0 || mark.is_empty(), "{} is never {name}", row.name);
            format!("{mark}{count}{mark}")
        };
        let cells: Vec<String> = COLUMNS.iter().map(cell).collect();
        table.push_str(&format!("| {} | {} |\n", row.name, cells.join(" | ")));
        let is_honest = row.vice == Vice::None;
        assert!(!is_honest || hits.is_empty(), "a false alarm: {hits:?}");
    }
    let page = include_str!("../../../../docs/power-cut.md");
    assert!(page.contains(&table), "docs/power-cut.md must have this table:\n{table}");
}

#[test]
fn honest_drive_raises_no_alarm_by_any_way_to_make_writes_durable() {
    for sync in CutSync::ALL {
        for seed in 0..40 {
            let (found, kept, plan) = cycle(&ROWS[0], 50_000 + seed, sync);
            assert_eq!(found.damaged(), 0, "{} {seed}: {found:?}", sync.name());
            let told: u64 = kept.durable.borrow().iter().sum();
            assert!(told > 0 && found.checked > 0 && found.checked <= plan.span_bytes / 16384);
        }
    }
}

#[test]
fn losses_by_fua_are_told_from_losses_by_flush() {
    let (mut by_fua, mut all) = (0, 0);
    for seed in 0..CUTS {
        let (found, ..) = cycle(&ROWS[3], 60_000 + seed, CutSync::Both);
        by_fua += found.by_fua;
        all += found.damaged();
        let (found, ..) = cycle(&ROWS[3], 60_000 + seed, CutSync::Flush);
        assert_eq!(found.damaged(), 0, "its flushes are honest: {found:?}");
    }
    assert!(by_fua > 0 && by_fua == all, "{by_fua} of {all}");
}

#[test]
fn survivor_proves_what_the_witness_never_heard() {
    let mut proven = 0;
    for seed in 0..CUTS {
        let rig = Rig::new(&ROWS[7], 70_000 + seed);
        let plan = CutPlan::new(9, &rig.device.geometry(), u64::MAX, CutSync::Flush).unwrap();
        rig.world.plan_crash(Some(CrashPoint::AfterSubmit(2_000)));
        let kept = Rc::new(Kept::default());
        kept.durable.borrow_mut().resize(usize::from(plan.writers), 0);
        let runtime = Runtime::simulated(seed);
        let (device, given) = (rig.device.clone(), plan.clone());
        runtime.run(async move {
            write_records(&device, &given, kept, &Silent).await;
        });
        drop(runtime);
        rig.lose_power();
        rig.world.power_on();
        // The witness has lost everything.
        let found = Runtime::simulated(seed).block_on(async move {
            verify_records(&rig.device, &plan, &[], &|_| {}).await.unwrap()
        });
        assert_eq!(found.unserializable, found.damaged(), "{found:?}");
        proven += found.damaged();
    }
    assert!(proven > 0);
}

#[test]
fn clean_end_loses_nothing_and_failure_of_the_device_ends_the_load() {
    struct Until(Cell<u32>);
    impl crate::Observer for Until {
        fn goes_on(&self, _: crate::Progress) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get() < 1
        }
    }
    struct Lost;
    impl Witness for Lost {
        fn durable(&self, _: u16, _: u64) -> WitnessFuture<'_> {
            Box::pin(std::future::ready(Err(WitnessLost)))
        }
        fn filled(&self) -> WitnessFuture<'_> {
            Box::pin(std::future::ready(Ok(())))
        }
    }
    let rig = Rig::new(&ROWS[0], 1);
    let plan = CutPlan::new(3, &rig.device.geometry(), u64::MAX, CutSync::Both).unwrap();
    let kept = Rc::new(Kept::default());
    kept.durable.borrow_mut().resize(usize::from(plan.writers), 0);
    let found = Runtime::simulated(1).block_on(async move {
        let load = write_records(&rig.device, &plan, kept.clone(), &Until(Cell::new(0))).await;
        assert_eq!(load.ended, LoadEnd::Stopped);
        assert_eq!(load.records, kept.durable.borrow().iter().sum::<u64>());
        assert!(kept.is_filled.get());
        let told = kept.durable.borrow().clone();
        let found = verify_records(&rig.device, &plan, &told, &|_| {}).await.unwrap();
        let lost = write_records(&rig.device, &plan, Rc::new(Lost), &Silent).await;
        assert_eq!((lost.ended, lost.records), (LoadEnd::WitnessLost, 0));
        found
    });
    assert_eq!(found.damaged(), 0, "{found:?}");
    assert_eq!(found.checked, SPAN_BYTES / 16384);
    let dead: Device = Rc::new(Dead);
    let plan = CutPlan::new(3, &dead.geometry(), u64::MAX, CutSync::Both).unwrap();
    Runtime::simulated(1).block_on(async move {
        let load = write_records(&dead, &plan, Rc::new(Lost), &Silent).await;
        assert!(matches!(load.ended, LoadEnd::DeviceFailed(_)), "{load:?}");
        assert!(verify_records(&dead, &plan, &[], &|_| {}).await.is_err(), "it does not answer");
    });
}

/// A device without power.
struct Dead;

impl BlockDevice for Dead {
    fn name(&self) -> &str {
        "dead"
    }
    fn geometry(&self) -> forebay_device::Geometry {
        forebay_device::MemoryDevice::new("dead", SPAN_BYTES).geometry()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let error = gone(Operation::Read, offset, buf.len() as u64);
        Box::pin(async { Err(error) })
    }
    fn write(&self, offset: u64, data: IoBytes, _: bool) -> DeviceFuture<'_, ()> {
        let error = gone(Operation::Write, offset, data.len() as u64);
        Box::pin(async { Err(error) })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async { Err(gone(Operation::Flush, 0, 0)) })
    }
    fn discard(&self, offset: u64, len: u64, _: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move { Err(gone(Operation::Discard, offset, len)) })
    }
}

fn gone(operation: Operation, offset: u64, len: u64) -> DeviceError {
    DeviceError::new("dead", operation, offset, len, ErrorKind::Os { errno: 19 })
}

#[test]
fn bound_is_the_rule_of_three_and_clopper_and_pearsons() {
    assert_eq!(loss_bound(0, 0), None);
    let bound = loss_bound(100, 0).unwrap();
    assert_eq!(bound.low, 0.0);
    assert!((bound.high - 0.029_513).abs() < 1e-6, "{bound:?}");
    let many = loss_bound(30_000, 0).unwrap();
    assert!((many.high * 30_000.0 - 3.0).abs() < 0.01, "3/n: {many:?}");
    // Figures of the exact interval, from tables: 1 of 10, 5 of 20, 10 of 10.
    for (cuts, failed, low, high) in
        [(10, 1, 0.002_529, 0.445_016), (20, 5, 0.086_571, 0.491_046), (10, 10, 0.691_503, 1.0)]
    {
        let bound = loss_bound(cuts, failed).unwrap();
        let is_near = (bound.low - low).abs() < 1e-5 && (bound.high - high).abs() < 1e-5;
        assert!(is_near, "{failed} of {cuts}: {bound:?}");
    }
}

#[test]
fn witness_remembers_from_its_lines_and_a_cut_tail_only_weakens_it() {
    let geometry = Dead.geometry();
    let plan = CutPlan::new(7, &geometry, 1 << 20, CutSync::Both).unwrap();
    let begin = |boot: &str| Entry::Begin {
        at_s: 1,
        device: "disk, 4 MiB".to_owned(),
        boot: boot.to_owned(),
        plan: plan.clone(),
    };
    let (good, bad) = (CutFindings::default(), cycle(&ROWS[8], 3, CutSync::Both).0);
    assert!(bad.damaged() > 0);
    let verdict = |is_cut, findings: &CutFindings| Entry::Verdict {
        at_s: 2,
        is_cut,
        findings: Box::new(findings.clone()),
    };
    let mut ledger = Ledger::default();
    let mut text = String::new();
    for entry in [
        begin("a"),
        Entry::Durable(vec![1, 2, 3, 4, 5, 6, 7, 8]),
        Entry::Durable(vec![2, 1, 3, 4, 5, 6, 7, 8]),
        Entry::Filled,
        Entry::Cut { at_s: 4 },
        verdict(true, &good),
        begin("b"),
        verdict(true, &bad),
        begin("c"),
        Entry::Ended { at_s: 9 },
        verdict(false, &good),
        begin("d"),
        Entry::Durable(vec![9; 8]),
    ] {
        text.push_str(&ledger.append(&entry));
    }
    let (read, damage) = Ledger::read(text.as_bytes()).unwrap();
    assert_eq!((&read, damage), (&ledger, None));
    assert_eq!((read.tally.cuts, read.tally.failed, read.tally.not_cut), (2, 1, 1));
    let cycle = read.cycle.unwrap();
    assert_eq!((cycle.number, cycle.boot.as_str(), cycle.durable), (4, "d", vec![9; 8]));
    // The witness was killed in the middle of its last line.
    let cut = &text.as_bytes()[..text.len() - 3];
    let (read, damage) = Ledger::read(cut).unwrap();
    assert!(matches!(damage, Some(crate::LogDamage::Line { number: 13, .. })), "{damage:?}");
    assert_eq!(read.cycle.unwrap().durable, vec![0; 8]);
    assert_eq!(Ledger::read(b"hello\n").unwrap_err(), crate::LogDamage::NotALog);
    assert_eq!(Ledger::read(b"").unwrap().0, Ledger::default());
}
