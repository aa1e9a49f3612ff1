//! Forebay's own intent log: a pool with one volume a dataset, whose log device records what it is
//! sent.

use super::pattern::PatternCounter;
use super::{Client, FILE_BYTES, MAX_WRITE_BYTES, Zil, ZilOutcome};
use crate::responses::Times;
use crate::wear::{cut_down, opener};
use crate::{LabError, catalogue, shrink};
use forebay_device::layers::{CommandRecord, Recorded};
use forebay_device::{Device, DeviceError, IoBuf, IoBytes, Operation};
use forebay_pool::Pool;
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, VolumeSpec};
use forebay_rt as rt;
use forebay_sim::{FlashDisk, Seed};
use forebay_units::Layout;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The data devices: DRAM, so that the log device alone sets the pace.
const DATA_DEVICE: &str = "pmc-flashtec-nv-4gb";
const DATA_DEVICES: u32 = 4;
/// Commands that are recorded at most.
const MAX_RECORDS: usize = 50_000_000;

/// What all clients share.
struct Tally {
    left: Cell<u64>,
    times: RefCell<Times>,
    sum_ns: Cell<u128>,
    bytes: Cell<u64>,
    data: IoBytes,
}

/// Runs `zil` over a pool.
pub(super) fn run(zil: &Zil) -> Result<ZilOutcome, LabError> {
    let seed = Seed(zil.seed);
    let (log, _) = shrink::shrink(&zil.device, zil.scale)?;
    let log = FlashDisk::new("log", &log, seed.derive("log").0)?;
    let data = catalogue::find(DATA_DEVICE)?.device;
    let data = cut_down(&data, data.offered_bytes())?;
    let mut disks = Vec::new();
    for i in 0..DATA_DEVICES {
        let name = format!("data{i}");
        let disk = FlashDisk::new(&name, &data, seed.derive(&name).0)?;
        disks.push((name, disk as Device));
    }
    let zil = zil.clone();
    rt::Runtime::simulated(seed.derive("runtime").0)
        .block_on(async move { measure(&zil, disks, log).await })
}

async fn measure(
    zil: &Zil,
    disks: Vec<(String, Device)>,
    log: Rc<FlashDisk>,
) -> Result<ZilOutcome, LabError> {
    let recorded = Recorded::new(log.clone(), MAX_RECORDS);
    let devices: Vec<String> = disks.iter().map(|(name, _)| name.clone()).collect();
    let log_device = ("log".to_owned(), recorded.clone() as Device);
    let opener = opener(disks.into_iter().chain([log_device]));
    let spec = PoolSpec {
        groups: vec![GroupSpec { layout: Layout::Raid0, devices }],
        logs: vec![LogSpec { devices: vec!["log".into()] }],
        ..PoolSpec::default()
    };
    let pool = Pool::create(opener, "tank", &spec).await?;
    let mut volumes = Vec::new();
    for dataset in 0..zil.datasets {
        let name = format!("v{dataset}");
        let (size_bytes, sparse) = (FILE_BYTES, true);
        let properties = BTreeMap::new();
        let volume = VolumeSpec { name: name.clone(), size_bytes, sparse, properties };
        pool.create_volume(&volume).await?;
        volumes.push(pool.open_volume(&name).expect("it was just made"));
    }
    pool.sync().await?;
    let tally = Rc::new(Tally {
        left: Cell::new(zil.commits),
        times: RefCell::default(),
        sum_ns: Cell::new(0),
        bytes: Cell::new(0),
        data: noise(zil.seed),
    });
    let _ = recorded.take();
    let (begin, before) = (rt::now(), log.stats());
    let clients: Vec<_> = volumes
        .into_iter()
        .zip(0..)
        .map(|(volume, dataset)| {
            rt::spawn(commit_until_done(volume, Client::new(zil, dataset), tally.clone()))
        })
        .collect();
    for client in clients {
        client.await?;
    }
    let seconds = rt::now().since(begin).0.max(1) as f64 / 1e9;
    let (records, stats) = (recorded.take(), log.stats().since(&before));
    pool.export().await?;
    let pattern = pattern_of(records);
    let times = tally.times.borrow().percentiles();
    Ok(ZilOutcome {
        commits_s: times.requests as f64 / seconds,
        mean_ms: tally.sum_ns.get() as f64 / times.requests.max(1) as f64 / 1e6,
        commits: times,
        overhead: pattern.bytes as f64 / tally.bytes.get().max(1) as f64,
        amplification: stats.write_amplification(),
        pattern,
    })
}

/// One client: thinks, writes the next piece of its volume with FUA, and again.
async fn commit_until_done(
    volume: Device,
    mut client: Client,
    tally: Rc<Tally>,
) -> Result<(), DeviceError> {
    let mut at = 0;
    loop {
        rt::sleep(forebay_units::Nanos(client.think_ns())).await;
        let Some(left) = tally.left.get().checked_sub(1) else { return Ok(()) };
        tally.left.set(left);
        let len = client.len_bytes();
        if at + len > FILE_BYTES {
            at = 0;
        }
        let asked = rt::now();
        volume.write(at, tally.data.slice(0, len as usize), true).await?;
        let took = rt::now().since(asked).0;
        at += len;
        tally.times.borrow_mut().note(took);
        tally.sum_ns.set(tally.sum_ns.get() + u128::from(took));
        tally.bytes.set(tally.bytes.get() + len);
    }
}

/// The pattern of the recorded writes, in the order in which they were sent.
fn pattern_of(mut records: Vec<CommandRecord>) -> super::pattern::Pattern {
    records.sort_by_key(|record| record.issued);
    let mut counter = PatternCounter::default();
    for record in records.iter().filter(|r| r.operation == Operation::Write) {
        counter.note(record.offset_bytes, record.len_bytes);
    }
    counter.pattern()
}

/// As many bytes as the largest write, which do not compress.
fn noise(seed: u64) -> IoBytes {
    let block = crate::load::Content::PseudoRandom.block(MAX_WRITE_BYTES as usize, seed);
    IoBuf::copy_of(&block).freeze()
}
