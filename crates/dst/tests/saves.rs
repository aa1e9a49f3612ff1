//! DRAM log devices whose save fails: after a power cut they hold old contents, or part of the new.
//!
//! With a second log side that kept its contents nothing is lost. Alone, the volume is a prefix.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{ImportErrorKind, OpenWith, Opener, Pool};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{DiskConfig, Fate, Media, Seed, SimDisk, World};
use forebay_testkit::Shelf;
use forebay_units::{Layout, Nanos};

const DISK_BYTES: u64 = 64 << 20;
const BLOCK_LEN_BYTES: u64 = 4096;
/// The part of the log device that so few writes can reach.
const LOG_REACH_BYTES: u64 = 4 << 20;

struct Bench {
    world: Rc<World>,
    disks: BTreeMap<String, Rc<SimDisk>>,
}

fn bench(seed: u64) -> Rc<Bench> {
    let world = World::new(Seed(seed));
    let disk = |name: &str| {
        let config = match name {
            "a" => DiskConfig::flash(name, DISK_BYTES),
            _ => DiskConfig::log(name, DISK_BYTES),
        };
        (name.to_owned(), SimDisk::new(&world, config))
    };
    let disks = ["a", "l", "m"].into_iter().map(disk).collect();
    Rc::new(Bench { world, disks })
}

fn stamp(number: u64) -> IoBytes {
    let mut buf = IoBuf::zeroed(BLOCK_LEN_BYTES as usize);
    for (at, word) in buf.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(number << 16 | at as u64 | 1 << 60).to_le_bytes());
    }
    buf.freeze()
}

impl Bench {
    fn opener(&self) -> Rc<dyn Opener> {
        let shelf = Shelf::new(self.disks.values().map(|disk| disk.clone() as Device));
        OpenWith::new(1, move |name| shelf.open(name))
    }

    /// Creates a pool, writes `count` blocks with FUA in order, and cuts the power after `pause`.
    /// Returns the contents of the first log device from before these writes.
    fn work(self: &Rc<Self>, seed: u64, log: &[&'static str], count: u64, pause: Nanos) -> Media {
        let runtime = Runtime::simulated(seed);
        let before = Rc::new(std::cell::RefCell::new(None));
        let (bench, kept, log) = (self.clone(), before.clone(), log.to_vec());
        let ended = runtime.run(async move {
            let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
            let spec = PoolSpec {
                groups: vec![GroupSpec { layout: Layout::Raid0, devices: names(&["a"]) }],
                logs: vec![LogSpec { devices: names(&log) }],
                ..PoolSpec::default()
            };
            let pool = Pool::create(bench.opener(), "tank", &spec).await.unwrap();
            let volume = VolumeSpec {
                name: "v".into(),
                size_bytes: 16 << 20,
                sparse: false,
                properties: BTreeMap::new(),
            };
            pool.create_volume(&volume).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            // The log is in use before its last good save.
            for number in 0..4 {
                v.write(number * BLOCK_LEN_BYTES, stamp(number), true).await.unwrap();
            }
            pool.sync().await.unwrap();
            *kept.borrow_mut() = Some(bench.disks[log[0]].stable());
            for number in 4..4 + count {
                v.write(number * BLOCK_LEN_BYTES, stamp(number), true).await.unwrap();
            }
            rt::sleep(pause).await;
            bench.world.power_cut();
            std::future::pending::<()>().await;
        });
        assert!(ended.is_none(), "the power was cut");
        drop(runtime);
        self.world.draw_crash_outcome(|_, _| Fate::Lost);
        self.world.power_on();
        before.take().expect("the pool was created")
    }

    /// Imports and returns how many blocks are found. They must be the first ones.
    fn import(
        self: &Rc<Self>,
        seed: u64,
        accept: bool,
        count: u64,
    ) -> Result<u64, ImportErrorKind> {
        let runtime = Runtime::simulated(seed);
        let bench = self.clone();
        runtime.block_on(async move {
            let paths: Vec<String> = bench.disks.keys().cloned().collect();
            let options = ImportOptions { accept_log_loss: accept, ..ImportOptions::default() };
            let pool = Pool::import(bench.opener(), &paths, "tank", &options).await;
            let pool = pool.map_err(|error| error.kind)?;
            let v = pool.open_volume("v").unwrap();
            let mut there = 0;
            for number in 0..count + 4 {
                let held = v
                    .read(number * BLOCK_LEN_BYTES, IoBuf::recycled(BLOCK_LEN_BYTES as usize))
                    .await
                    .unwrap();
                let whole = held[..] == stamp(number)[..];
                assert!(whole || held.iter().all(|byte| *byte == 0), "block {number} is garbage");
                assert!(!whole || there == number, "block {number} without {there}");
                there += u64::from(whole);
            }
            pool.export().await.unwrap();
            Ok(there)
        })
    }

    /// Undoes the save behind `cut_bytes`: the rest is as it was `before`, or zeros.
    fn half_save(&self, name: &str, before: &Media, cut_bytes: u64, old: bool) {
        let mut rest = vec![0; (LOG_REACH_BYTES - cut_bytes) as usize];
        if old {
            before.read(cut_bytes, &mut rest);
        }
        self.disks[name].damage(cut_bytes, |bytes| bytes.copy_from_slice(&rest), rest.len());
    }
}

/// The range of the log that differs from `before`: the frames of the writes.
fn frames(disk: &SimDisk, before: &Media) -> (u64, u64) {
    let (mut old, mut new) = (vec![0; LOG_REACH_BYTES as usize], vec![0; LOG_REACH_BYTES as usize]);
    before.read(0, &mut old);
    disk.stable().read(0, &mut new);
    let differs = |at: &usize| old[*at] != new[*at];
    // The first MiB holds labels and heartbeats.
    let from = (1 << 20..LOG_REACH_BYTES as usize).find(differs).expect("frames were written");
    let to = (1 << 20..LOG_REACH_BYTES as usize).rfind(differs).expect("frames were written");
    (from as u64, to as u64 + 1)
}

#[test]
fn unsaved_log_side_loses_nothing_that_the_other_has() {
    for seed in 0..6 {
        let bench = bench(seed);
        let before = bench.work(seed, &["l", "m"], 40, Nanos::ZERO);
        match seed % 3 {
            // Nothing was saved: old contents, or zeros.
            0 => bench.disks["l"].set_stable(before),
            1 => bench.disks["l"].set_stable(Media::new(DISK_BYTES)),
            _ => {
                let (from, to) = frames(&bench.disks["l"], &before);
                bench.half_save("l", &before, (from + (to - from) * seed / 7) / 8 * 8, seed == 5);
            }
        }
        assert_eq!(bench.import(seed + 100, false, 40), Ok(44), "seed {seed}");
    }
}

/// Breaks the save of the only log device as `seed` says, and imports. Returns how many of 44
/// blocks are found, and whether the import needed to accept a loss.
fn import_without_save(seed: u64, pause: Nanos) -> (u64, bool) {
    let bench = bench(seed);
    let before = bench.work(seed, &["l"], 40, pause);
    match seed {
        0 => bench.disks["l"].set_stable(before),
        1 => bench.disks["l"].set_stable(Media::new(DISK_BYTES)),
        _ => {
            let (from, to) = frames(&bench.disks["l"], &before);
            let cut = from + (to - from) * (seed - 1) / 16;
            bench.half_save("l", &before, cut / 8 * 8, seed % 2 == 0);
        }
    }
    match bench.import(seed + 100, false, 40) {
        Ok(there) => (there, false),
        Err(kind) => {
            // A device without its label is missed by name.
            let is_named = matches!(
                kind,
                ImportErrorKind::LogLoss(_)
                    | ImportErrorKind::LogMissing { lost_after: Some(_), .. }
            );
            assert!(is_named, "seed {seed}: {kind}");
            (bench.import(seed + 200, true, 40).unwrap(), true)
        }
    }
}

// Heartbeats on other devices record how far the log was acknowledged, so the loss is reported.
#[test]
fn unsaved_only_log_is_reported_as_loss() {
    for seed in 0..16 {
        let (there, refused) = import_without_save(seed, Nanos::from_millis(2500));
        assert!((4..44).contains(&there), "seed {seed}: {there} of 44");
        assert!(refused, "seed {seed}: {there} of 44 without a refusal");
    }
}

// Before the next heartbeat, a log that ends early looks like a log that was never longer. The
// blocks found must be a prefix with everything committed.
#[test]
fn unsaved_only_log_within_a_second_leaves_a_prefix() {
    for seed in 0..16 {
        let (there, _) = import_without_save(seed, Nanos::ZERO);
        assert!((4..=44).contains(&there), "seed {seed}: {there} of 44");
    }
}
