//! A pool on sixteen simulated SSDs and a simulated DRAM log device, its power cut in the middle of
//! clients' writes: `cargo run --release -p forebay-lab --example power_cut_pool -- [SEED]`.
//! `docs/simulated-pool.md` walks through it.

use forebay_device::{Device, IoBuf};
use forebay_flash::Fate;
use forebay_lab::wear::{Shelf, cut_down};
use forebay_lab::{LabError, catalogue};
use forebay_pool::Pool;
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, Redundancy, VolumeSpec};
use forebay_rt as rt;
use forebay_sim::FlashDisk;
use forebay_units::Nanos;
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

fn run() -> Result<(), Box<dyn Error>> {
    let seed: u64 = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;

    // Hardware: it outlives the host's memory, so it is made outside of any runtime.
    let ssd = cut_down(&catalogue::find("samsung-830-128gb")?.device, 64 << 20)?;
    let x1 = cut_down(&catalogue::find("ddrdrive-x1")?.device, 64 << 20)?;
    let mut disks: Vec<(String, Rc<FlashDisk>)> = Vec::new();
    for i in 0..16 {
        let name = format!("ssd{i:02}");
        disks.push((name.clone(), FlashDisk::new(&name, &ssd, seed * 100 + i)?));
    }
    disks.push(("x1".into(), FlashDisk::new("x1", &x1, seed * 100 + 16)?));
    let names: Vec<String> = disks.iter().map(|(name, _)| name.clone()).collect();
    let shelf = Shelf::new(disks.clone());

    // First life: clients write until the power goes.
    let versions: Versions = Rc::default();
    let cut_at: Rc<RefCell<(Nanos, u64, u64)>> = Rc::default();
    let first = rt::Runtime::simulated(seed);
    let life = {
        let (shelf, names, disks) = (shelf.clone(), names.clone(), disks.clone());
        let (versions, cut_at) = (versions.clone(), cut_at.clone());
        async move {
            let data = names[..16].to_vec();
            let spec = PoolSpec {
                groups: vec![GroupSpec { redundancy: Redundancy::Raidz1, devices: data }],
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
                rt::spawn_detached(Box::pin(write_for_ever(
                    device.clone(),
                    client,
                    versions.clone(),
                )));
            }
            // Past several groups, and not at a round time: in the middle of something.
            rt::sleep(Nanos::from_millis(6000) + Nanos(rt::random_below(2_000_000_000))).await;
            let (mut lost, mut other) = (0, 0);
            for (_, disk) in &disks {
                for hit in disk.power_cut().damage {
                    let back = matches!(hit.fate, Fate::Lost | Fate::RolledBack);
                    *(if back { &mut lost } else { &mut other }) += 1;
                }
            }
            *cut_at.borrow_mut() = (rt::now(), lost, other);
            rt::halt();
            std::future::pending::<Result<(), forebay_pool::PoolError>>().await
        }
    };
    if let Some(early) = first.run(life) {
        early?;
    }
    drop(first);
    let (at, lost, other) = *cut_at.borrow();
    println!("power cut at {:.3} s of virtual time", at.as_secs_f64());
    println!("  ranges the drives took back: {lost}; torn or unreadable: {other}");

    // Power comes back after five minutes.
    for (_, disk) in &disks {
        disk.power_on(Nanos::from_secs(300));
    }

    // Second life: import, then look at every block.
    let known = std::mem::take(&mut *versions.borrow_mut());
    let (acknowledged, wrong, newer) = rt::Runtime::simulated(seed + 1).block_on(async move {
        let pool = Pool::import(shelf, &names, "tank", &ImportOptions::default()).await?;
        let report = pool.stats().last_import;
        println!(
            "import: {:.3} s, {} log records replayed, {} remarks",
            report.seconds,
            report.log_records,
            report.remarks.len()
        );
        let device = pool.open_volume("v").expect("it is in the pool");
        let (mut acknowledged, mut wrong, mut newer) = (0u64, 0u64, 0u64);
        for (&block, &(least, most)) in &known {
            let got = device.read(block * BLOCK, IoBuf::zeroed(BLOCK as usize)).await?;
            let fits = (least..=most).find(|&version| {
                if version == 0 {
                    got.iter().all(|b| *b == 0)
                } else {
                    got[..] == stamp(block, version)[..]
                }
            });
            acknowledged += u64::from(least > 0);
            match fits {
                None => wrong += 1,
                Some(version) => newer += u64::from(version > least),
            }
        }
        pool.export().await?;
        Ok::<_, Box<dyn Error>>((acknowledged, wrong, newer))
    })?;
    println!("blocks with an acknowledged write: {acknowledged}, missing or wrong: {wrong}");
    println!("blocks with a later write that was on its way and is there: {newer}");

    println!("{:6} {:>12} {:>12} {:>6} {:>11}", "drive", "written", "programmed", "own", "erases");
    for (name, disk) in &disks {
        let s = disk.stats();
        let (mean, most) = (s.wear.mean, s.wear.max);
        let (written, programmed) = (s.written_bytes, s.media_written_bytes);
        let own = s.write_amplification();
        println!("{name:6} {written:>12} {programmed:>12} {own:>6.3} {mean:>5.2}, {most:>4}");
    }
    if wrong > 0 || acknowledged == 0 {
        return Err(LabError::failed("acknowledged writes are not there").into());
    }
    Ok(())
}

async fn write_for_ever(device: Device, client: u64, versions: Versions) {
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
