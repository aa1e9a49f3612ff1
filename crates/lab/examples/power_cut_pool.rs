//! A pool on sixteen simulated SSDs and a simulated DRAM log device, its power cut in the middle of
//! clients' writes: `cargo run --release -p forebay-lab --example power_cut_pool -- [SEED]`.
//! `docs/simulated-pool.md` walks through it.

use forebay_device::{Device, IoBuf};
use forebay_flash::Fate;
use forebay_lab::wear::{cut_down, opener};
use forebay_lab::{LabError, catalogue};
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{Opener, Pool};
use forebay_rt as rt;
use forebay_sim::FlashDisk;
use forebay_units::{Layout, Nanos};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::rc::Rc;

const CLIENTS: u64 = 32;
const BLOCK: u64 = 4096;
/// Each client writes in a region of its own, so that it knows what must be there.
const CLIENT_BLOCKS: u64 = 512;

/// For each block, the newest version acknowledged and the newest sent.
type Versions = Rc<RefCell<BTreeMap<u64, (u64, u64)>>>;

fn stamp(block: u64, version: u64) -> IoBuf {
    let mut buf = IoBuf::zeroed(BLOCK as usize);
    for (i, word) in buf.chunks_mut(16).enumerate() {
        word[..8].copy_from_slice(&(block ^ (i as u64) << 48).to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
    buf
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("power_cut_pool: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The simulated drives, which outlive the host's memory: they are made outside of any runtime.
struct Hardware {
    disks: Vec<(String, Rc<FlashDisk>)>,
    shelf: Rc<dyn Opener>,
}

const DATA_DRIVES: u64 = 16;

impl Hardware {
    fn new(seed: u64) -> Result<Self, LabError> {
        let ssd = cut_down(&catalogue::find("samsung-830-128gb")?.device, 64 << 20)?;
        let x1 = cut_down(&catalogue::find("ddrdrive-x1")?.device, 64 << 20)?;
        let mut disks = Vec::new();
        for i in 0..DATA_DRIVES {
            let name = format!("ssd{i:02}");
            disks.push((name.clone(), FlashDisk::new(&name, &ssd, seed * 100 + i)?));
        }
        disks.push(("x1".into(), FlashDisk::new("x1", &x1, seed * 100 + DATA_DRIVES)?));
        let devices = disks.iter().map(|(name, disk)| (name.clone(), disk.clone() as Device));
        let shelf = opener(devices);
        Ok(Self { disks, shelf })
    }

    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Prints what each drive's interface and flash saw.
    fn print(&self) {
        let head = ["drive", "written", "programmed", "own", "erases"];
        println!("{:6} {:>12} {:>12} {:>6} {:>11}", head[0], head[1], head[2], head[3], head[4]);
        for (name, disk) in &self.disks {
            let s = disk.stats();
            let (mean, max) = (s.wear.mean, s.wear.max);
            let (written, programmed) = (s.written_bytes, s.media_written_bytes);
            let own = s.write_amplification();
            println!("{name:6} {written:>12} {programmed:>12} {own:>6.3} {mean:>5.2}, {max:>4}");
        }
    }
}

/// What a power cut did: when, ranges that the drives undid, ranges torn or unreadable.
type CutSeen = Rc<RefCell<(Nanos, u64, u64)>>;

/// Makes a pool, lets clients write, and cuts the power of all drives in the middle.
async fn first_life(
    shelf: Rc<dyn Opener>,
    disks: Vec<(String, Rc<FlashDisk>)>,
    versions: Versions,
    seen: CutSeen,
) -> Result<(), forebay_pool::PoolError> {
    let names: Vec<String> = disks.iter().map(|(name, _)| name.clone()).collect();
    let devices = names[..DATA_DRIVES as usize].to_vec();
    let spec = PoolSpec {
        groups: vec![GroupSpec { layout: Layout::Raidz1, devices }],
        logs: vec![LogSpec { devices: vec!["x1".into()] }],
        ..PoolSpec::default()
    };
    let pool = Pool::create(shelf, "tank", &spec).await?;
    let volume = VolumeSpec {
        name: "v".into(),
        size_bytes: CLIENTS * CLIENT_BLOCKS * BLOCK,
        sparse: false,
        properties: BTreeMap::new(),
    };
    pool.create_volume(&volume).await?;
    let device = pool.open_volume("v").expect("it was just made");
    for client in 0..CLIENTS {
        let client = write_forever(device.clone(), client, versions.clone());
        rt::spawn_detached(Box::pin(client));
    }
    // Several groups later, at an instant that is not round.
    rt::sleep(Nanos::from_millis(6000) + Nanos(rt::random_below(2_000_000_000))).await;
    let (mut undone, mut other) = (0, 0);
    for (_, disk) in &disks {
        for hit in disk.power_cut().damage {
            let back = matches!(hit.fate, Fate::Lost | Fate::RolledBack);
            *(if back { &mut undone } else { &mut other }) += 1;
        }
    }
    *seen.borrow_mut() = (rt::now(), undone, other);
    rt::halt();
    std::future::pending().await
}

/// Blocks found after the import.
struct Found {
    acknowledged: u64,
    wrong: u64,
    newer: u64,
}

/// Imports the pool and reads every block that clients wrote.
async fn second_life(
    shelf: Rc<dyn Opener>,
    names: Vec<String>,
    versions: BTreeMap<u64, (u64, u64)>,
) -> Result<Found, Box<dyn Error>> {
    let pool = Pool::import(shelf, &names, "tank", &ImportOptions::default()).await?;
    let report = pool.stats().last_import;
    println!(
        "import: {:.3} s, {} log records replayed, {} remarks",
        report.seconds,
        report.log_records,
        report.remarks.len()
    );
    let device = pool.open_volume("v").expect("it is in the pool");
    let mut found = Found { acknowledged: 0, wrong: 0, newer: 0 };
    for (&block, &(acknowledged, sent)) in &versions {
        let got = device.read(block * BLOCK, IoBuf::zeroed(BLOCK as usize)).await?;
        let fits = (acknowledged..=sent).find(|&version| {
            if version == 0 {
                got.iter().all(|b| *b == 0)
            } else {
                got[..] == stamp(block, version)[..]
            }
        });
        found.acknowledged += u64::from(acknowledged > 0);
        match fits {
            None => found.wrong += 1,
            Some(version) => found.newer += u64::from(version > acknowledged),
        }
    }
    pool.export().await?;
    Ok(found)
}

fn run() -> Result<(), Box<dyn Error>> {
    let seed: u64 = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let hardware = Hardware::new(seed)?;
    let (versions, seen) = (Versions::default(), CutSeen::default());
    let first = rt::Runtime::simulated(seed);
    let life =
        first_life(hardware.shelf.clone(), hardware.disks.clone(), versions.clone(), seen.clone());
    if let Some(early) = first.run(life) {
        early?;
    }
    drop(first);
    let (at, undone, other) = *seen.borrow();
    println!("power cut at {:.3} s of virtual time", at.as_secs_f64());
    println!("  ranges that the drives undid: {undone}; torn or unreadable: {other}");
    // Power comes back after five minutes.
    for (_, disk) in &hardware.disks {
        disk.power_on(Nanos::from_secs(300));
    }
    let known = std::mem::take(&mut *versions.borrow_mut());
    let life = second_life(hardware.shelf.clone(), hardware.names(), known);
    let found = rt::Runtime::simulated(seed + 1).block_on(life)?;
    println!(
        "blocks with an acknowledged write: {}, missing or wrong: {}",
        found.acknowledged, found.wrong
    );
    println!("blocks with a newer write that was in flight and is there: {}", found.newer);
    hardware.print();
    if found.wrong > 0 || found.acknowledged == 0 {
        return Err("acknowledged writes are not there".into());
    }
    Ok(())
}

async fn write_forever(device: Device, client: u64, versions: Versions) {
    for version in 1.. {
        let block = client * CLIENT_BLOCKS + rt::random_below(CLIENT_BLOCKS);
        versions.borrow_mut().entry(block).or_insert((0, 0)).1 = version;
        let written = device.write(block * BLOCK, stamp(block, version).freeze(), true).await;
        if let Err(why) = written {
            panic!("a write failed under power: {why}");
        }
        versions.borrow_mut().entry(block).or_insert((0, 0)).0 = version;
        rt::sleep(Nanos::from_micros(500)).await;
    }
}
