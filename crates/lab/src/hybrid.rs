//! A pool of slow devices with or without a log and a cache device, under a load of its clients.
//!
//! The pool's own code runs over simulated devices. All sizes are cut down alike; speeds stay.

use crate::load::{Ask, AskKind, Asks, Load};
use crate::responses::{BothTimes, Responses};
use crate::sparse_disk::SparseDisk;
use crate::wear::{cut_down, distinct, fill, opener};
use crate::{LabError, load};
use forebay_device::{Device, DeviceError, IoBuf};
use forebay_flash::{DeviceSpec, Stats};
use forebay_pool::Pool;
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, VolumeSpec};
use forebay_rt as rt;
use forebay_sim::Seed;
use forebay_units::{BLOCK_BYTES, Layout, Nanos};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A pool and the load on its one volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hybrid {
    /// Each data device at full size.
    pub main: DeviceSpec,
    /// How many, a multiple of `group`.
    pub drives: u32,
    /// Devices of each group.
    pub group: u32,
    /// How a group keeps data.
    pub redundancy: Layout,
    /// The log device at full size; without one the log lies in the pool.
    #[serde(default)]
    pub log: Option<DeviceSpec>,
    /// The cache device at full size.
    #[serde(default)]
    pub cache: Option<DeviceSpec>,
    /// How many times smaller data devices and cache device are made.
    pub smaller: u32,
    /// The read cache in memory, of this smaller pool; 0: none.
    pub memory_bytes: u64,
    /// What leaves a full read cache.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// The volume, which is filled once before the load.
    pub volume_bytes: u64,
    /// The load; a closed one.
    pub load: Load,
    /// The load runs for so many seconds, or requests, before they count.
    pub warm: Span,
    /// And for so many that count.
    pub counted: Span,
    /// Seed of devices, pool and load.
    #[serde(default)]
    pub seed: u64,
}

/// A stretch of load: it ends with whichever is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Seconds of virtual time.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
}

fn default_policy() -> String {
    "arc".into()
}

/// What clients and devices saw while it counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HybridOutcome {
    /// Virtual seconds.
    pub seconds: f64,
    /// Requests a second.
    pub iops: f64,
    /// How long they took.
    pub responses: Responses,
    /// Mean number of requests outstanding: rate times mean response.
    pub outstanding: f64,
    /// Blocks that clients read, and of those the ones from memory and from the cache device.
    pub read_blocks: u64,
    /// From memory.
    pub memory_blocks: u64,
    /// From the cache device.
    pub cache_blocks: u64,
    /// Reads at the data devices.
    pub main_reads: u64,
    /// Mean power of all devices, in watts.
    pub watts: f64,
    /// Bytes written to the cache device since the pool was made, and programmed to its flash.
    pub cache_written_bytes: u64,
    /// Programmed to its flash.
    pub cache_programmed_bytes: u64,
    /// Bytes of the pool that volumes can have.
    pub usable_bytes: u64,
}

impl HybridOutcome {
    /// The share of blocks read that no data device was asked for.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        (self.memory_blocks + self.cache_blocks) as f64 / self.read_blocks.max(1) as f64
    }
}

/// The log device is so large whatever the scale: its size decides nothing here.
const LOG_BYTES: u64 = 1 << 30;
/// The smallest device that a pool takes, with room to spare.
const MIN_DEVICE_BYTES: u64 = 96 << 20;

impl Hybrid {
    fn check(&self) -> Result<(), LabError> {
        let bad =
            |field, found: String, allowed| Err(LabError::field("hybrid", field, found, allowed));
        if self.drives == 0 || self.group == 0 || self.drives % self.group != 0 {
            return bad("drives", self.drives.to_string(), "a multiple of group, above 0");
        }
        if self.smaller == 0 {
            return bad("smaller", "0".into(), "at least 1");
        }
        if self.load.arrivals != load::Arrivals::Closed {
            return bad("load", "open arrivals".into(), "a closed load");
        }
        let blocks = self.load.block_bytes;
        if u64::from(blocks) % BLOCK_BYTES != 0 {
            return bad("load.block_bytes", blocks.to_string(), "a multiple of 4096");
        }
        for (field, span) in [("warm", self.warm), ("counted", self.counted)] {
            let is_right = (0.0..=1e7).contains(&span.seconds) && span.requests > 0;
            if !is_right || (field == "counted" && span.seconds == 0.0) {
                let found = format!("{} s, {} requests", span.seconds, span.requests);
                return bad(field, found, "up to 1e7 seconds, at least one request");
            }
        }
        if self.volume_bytes < 1 << 20 {
            return bad("volume_bytes", self.volume_bytes.to_string(), "at least 1 MiB");
        }
        Ok(())
    }

    /// Bytes that a device of this experiment has.
    fn smaller_bytes(&self, device: &DeviceSpec) -> u64 {
        let bytes = device.offered_bytes() / u64::from(self.smaller);
        bytes.max(MIN_DEVICE_BYTES).next_multiple_of(1 << 20)
    }

    /// Runs it.
    pub fn run(&self) -> Result<HybridOutcome, LabError> {
        self.check()?;
        let seed = Seed(self.seed);
        let disk = |name: &str, device: &DeviceSpec, bytes: u64| {
            let small = cut_down(device, bytes)?;
            let disk = SparseDisk::new(name, &small, seed.derive(name).0)?;
            Ok::<_, LabError>((name.to_owned(), disk))
        };
        let mut devices = Devices::default();
        for i in 0..self.drives {
            let bytes = self.smaller_bytes(&self.main);
            devices.main.push(disk(&format!("main{i:03}"), &self.main, bytes)?);
        }
        devices.log = self.log.as_ref().map(|log| disk("log", log, LOG_BYTES)).transpose()?;
        let cache = self.cache.as_ref();
        devices.cache =
            cache.map(|cache| disk("cache", cache, self.smaller_bytes(cache))).transpose()?;
        let task = self.clone();
        rt::Runtime::simulated(seed.derive("runtime").0)
            .block_on(async move { task.measure(devices).await })
    }

    fn pool_spec(&self, devices: &Devices) -> PoolSpec {
        let names: Vec<String> = devices.main.iter().map(|(name, _)| name.clone()).collect();
        let group =
            |names: &[String]| GroupSpec { layout: self.redundancy, devices: names.to_vec() };
        let memory = match self.memory_bytes {
            0 => "off".to_owned(),
            bytes => bytes.to_string(),
        };
        let logs = devices.log.iter().map(|(name, _)| LogSpec { devices: vec![name.clone()] });
        PoolSpec {
            groups: names.chunks(self.group as usize).map(group).collect(),
            logs: logs.collect(),
            caches: devices.cache.iter().map(|(name, _)| name.clone()).collect(),
            properties: BTreeMap::from([
                ("cache_size".to_owned(), memory),
                ("cache_policy".to_owned(), self.policy.clone()),
            ]),
            ..PoolSpec::default()
        }
    }

    async fn measure(&self, devices: Devices) -> Result<HybridOutcome, LabError> {
        let named = devices.all().map(|(name, disk)| (name.clone(), disk.clone() as Device));
        let pool = Pool::create(opener(named), "tank", &self.pool_spec(&devices)).await?;
        let usable_bytes = pool.summary().size_bytes;
        let volume = VolumeSpec {
            name: "v".into(),
            size_bytes: self.volume_bytes,
            sparse: false,
            properties: BTreeMap::new(),
        };
        pool.create_volume(&volume).await?;
        let volume = pool.open_volume("v").expect("it was just made");
        fill(&volume, self.volume_bytes).await?;
        pool.sync().await?;
        let asks = Asks::new(&self.load, self.volume_bytes, self.seed)?;
        let clients = Clients::new(volume, asks, &self.load);
        clients.run(self.warm).await?;
        let before = Counts::of(&pool, &devices);
        let (tally, seconds) = clients.run(self.counted).await?;
        let after = Counts::of(&pool, &devices);
        pool.export().await?;
        let cache = devices.cache.as_ref().map(|(_, disk)| disk.stats());
        Ok(HybridOutcome {
            seconds,
            iops: tally.requests as f64 / seconds,
            responses: tally.times.responses(),
            outstanding: tally.sum_ns as f64 / 1e9 / seconds,
            read_blocks: tally.read_blocks,
            memory_blocks: after.memory_hits - before.memory_hits,
            cache_blocks: after.cache_hits - before.cache_hits,
            main_reads: after.main_reads - before.main_reads,
            watts: (after.energy_j - before.energy_j) / seconds,
            cache_written_bytes: cache.as_ref().map_or(0, |stats| stats.written_bytes),
            cache_programmed_bytes: cache.as_ref().map_or(0, |stats| stats.media_written_bytes),
            usable_bytes,
        })
    }
}

type Named = (String, Rc<SparseDisk>);

#[derive(Default)]
struct Devices {
    main: Vec<Named>,
    log: Option<Named>,
    cache: Option<Named>,
}

impl Devices {
    fn all(&self) -> impl Iterator<Item = &Named> {
        self.main.iter().chain(&self.log).chain(&self.cache)
    }
}

/// Counters of pool and devices.
struct Counts {
    memory_hits: u64,
    cache_hits: u64,
    main_reads: u64,
    energy_j: f64,
}

impl Counts {
    fn of(pool: &Pool, devices: &Devices) -> Self {
        let stats = pool.stats();
        let of = |disk: &Named| -> Stats { disk.1.stats() };
        Self {
            memory_hits: stats.cache.hits,
            cache_hits: stats.cache_devices.iter().map(|device| device.hits).sum(),
            main_reads: devices.main.iter().map(|disk| of(disk).reads).sum(),
            energy_j: devices.all().map(|disk| of(disk).energy_j).sum(),
        }
    }
}

/// What clients saw.
#[derive(Default)]
struct Tally {
    requests: u64,
    read_blocks: u64,
    sum_ns: u128,
    times: BothTimes,
}

/// The clients of a volume.
struct Clients {
    volume: Device,
    asks: RefCell<Asks>,
    fua: bool,
    workers: u32,
    depth: u32,
    left: Cell<u64>,
    ends_at: Cell<Nanos>,
    tally: RefCell<Tally>,
}

impl Clients {
    fn new(volume: Device, asks: Asks, load: &Load) -> Rc<Self> {
        Rc::new(Self {
            volume,
            asks: asks.into(),
            fua: load.fua,
            workers: load.workers,
            depth: load.depth(),
            left: Cell::new(0),
            ends_at: Cell::new(Nanos(0)),
            tally: RefCell::default(),
        })
    }

    /// Runs the load for `span`. Returns what completed, and the seconds that it took.
    async fn run(self: &Rc<Self>, span: Span) -> Result<(Tally, f64), LabError> {
        let begin = rt::now();
        self.left.set(span.requests);
        self.ends_at.set(Nanos(begin.0 + (span.seconds * 1e9) as u64));
        let clients: Vec<_> = (0..self.depth)
            .map(|client| rt::spawn(self.clone().ask_until_the_end(client % self.workers)))
            .collect();
        for client in clients {
            client.await?;
        }
        let seconds = rt::now().since(begin).0.max(1) as f64 / 1e9;
        Ok((self.tally.take(), seconds))
    }

    async fn ask_until_the_end(self: Rc<Self>, worker: u32) -> Result<(), DeviceError> {
        while rt::now() < self.ends_at.get() {
            let Some(left) = self.left.get().checked_sub(1) else { break };
            self.left.set(left);
            let ask = self.asks.borrow_mut().next(worker as usize);
            let asked = rt::now();
            self.carry_out(ask).await?;
            self.note(ask, rt::now().since(asked).0);
        }
        Ok(())
    }

    async fn carry_out(&self, ask: Ask) -> Result<(), DeviceError> {
        let (at, len) = (ask.offset_bytes, u64::from(ask.len_bytes));
        match ask.kind {
            AskKind::Read => {
                self.volume.read(at, IoBuf::recycled(len as usize)).await?;
                Ok(())
            }
            AskKind::Write => self.volume.write(at, distinct(len).freeze(), self.fua).await,
            AskKind::Trim => self.volume.discard(at, len, false).await,
        }
    }

    fn note(&self, ask: Ask, took_ns: u64) {
        let mut tally = self.tally.borrow_mut();
        tally.requests += 1;
        tally.sum_ns += u128::from(took_ns);
        if ask.kind == AskKind::Read {
            tally.read_blocks += u64::from(ask.len_bytes) / BLOCK_BYTES;
        }
        if ask.kind != AskKind::Trim {
            tally.times.note(ask.kind == AskKind::Read, took_ns);
        }
    }
}

#[cfg(test)]
mod tests;
