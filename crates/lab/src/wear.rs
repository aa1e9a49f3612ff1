//! The pool's own code over simulated drives: bytes at their interfaces and at their flash for each
//! byte that a client writes.

use crate::LabError;
use crate::sparse_disk::{SparseDisk, fill_with};
use forebay_device::{BlockDevice, Device, DeviceError, ErrorKind, IoBuf, Operation};
use forebay_flash::{DeviceSpec, MediaSpec, Stats};
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt as rt;
use forebay_sim::Seed;
use forebay_units::{BLOCK_LEN, Layout};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A pool, filled and then overwritten at random.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wear {
    /// Each data drive at full size; it must be flash.
    pub device: DeviceSpec,
    /// The log device at full size.
    pub log: DeviceSpec,
    /// How many data drives.
    pub drives: u32,
    /// Bytes of the volume, 16 MiB or more.
    pub volume_bytes: u64,
    /// Share of the data drives' bytes that the volume and its parity take when each of its blocks
    /// is there once, above 0, below 1. The drives are cut down to the size that makes it so.
    pub full: f64,
    /// How they keep data.
    pub redundancy: Layout,
    /// Size and alignment of the random writes.
    pub block_bytes: u32,
    /// Bytes overwritten and measured, as a multiple of the volume. Before that the pool's whole
    /// space is written in 64 KiB, and then half as much as is measured in the load's own size.
    pub turnover: f64,
    /// Seed of drives, pool and load.
    #[serde(default)]
    pub seed: u64,
}

/// What was counted while the volume was overwritten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WearOutcome {
    /// Bytes clients wrote.
    pub host_bytes: u64,
    /// Bytes written at the interfaces of the data drives.
    pub interface_bytes: u64,
    /// Bytes read there.
    pub interface_read_bytes: u64,
    /// Bytes programmed to their flash.
    pub programmed_bytes: u64,
    /// Bytes written to the log device.
    pub log_bytes: u64,
    /// Of the pool's own count: user data, parity, metadata, moved by the cleaner, padding.
    pub parts: Parts,
    /// Segments the cleaner emptied.
    pub segments_cleaned: u64,
    /// Bytes of the data drives.
    pub pool_bytes: u64,
    /// Bytes of them that volumes can have, parity and the pool's reserve taken off.
    pub usable_bytes: u64,
    /// Virtual seconds the measured part took.
    pub seconds: f64,
    /// Largest and mean erase count over all drives' blocks, at the end.
    pub erases: (u32, f64),
}

/// Where bytes at the interface come from, as the pool counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// Clients' data.
    pub data: u64,
    /// Parity.
    pub parity: u64,
    /// Map, footers, roots.
    pub metadata: u64,
    /// Blocks moved by the cleaner.
    pub cleaning: u64,
    /// Unused ends of stripes.
    pub padding: u64,
}

impl WearOutcome {
    /// Bytes at the interface for each byte of a client.
    #[must_use]
    pub fn interface_amplification(&self) -> f64 {
        self.interface_bytes as f64 / self.host_bytes.max(1) as f64
    }
    /// Bytes programmed for each byte at the interface: the drives' own amplification.
    #[must_use]
    pub fn drive_amplification(&self) -> f64 {
        self.programmed_bytes as f64 / self.interface_bytes.max(1) as f64
    }
    /// Bytes programmed for each byte of a client.
    #[must_use]
    pub fn whole_amplification(&self) -> f64 {
        self.programmed_bytes as f64 / self.host_bytes.max(1) as f64
    }
}

/// An opener of simulated devices by name, for a pool.
#[must_use]
pub fn opener(devices: impl IntoIterator<Item = (String, Device)>) -> Rc<dyn Opener> {
    let devices: BTreeMap<String, Device> = devices.into_iter().collect();
    OpenWith::new(1, move |path| {
        let found = devices.get(path).cloned();
        found.ok_or_else(|| DeviceError::new(path, Operation::Open, 0, 0, ErrorKind::Gone))
    })
}

/// Writes outstanding at once, as in the printed measurement.
const CLIENTS: u64 = 10;
const LOG_BYTES: u64 = 1 << 30;
/// Bytes of a write while the pool's whole space is written once.
const WARM_UP_BLOCK_BYTES: u64 = 64 << 10;
/// Superblocks a drive is left with at least, so that reserve and open ones stay a small part.
const MIN_SUPERBLOCKS: u64 = 64;

/// `device` cut down to `wanted` bytes with the same dies, speeds and share of spare space.
pub fn cut_down(device: &DeviceSpec, wanted: u64) -> Result<DeviceSpec, LabError> {
    device.check()?;
    let mut small = device.clone();
    small.name = format!("{}, cut down", device.name);
    small.capacity_bytes = wanted;
    let MediaSpec::Flash(flash) = &mut small.media else { return Ok(small) };
    let g = &mut flash.geometry;
    let dies = u64::from(g.channels) * u64::from(g.dies_per_channel);
    let stripe = dies * u64::from(g.planes_per_die) * u64::from(g.page_bytes);
    let raw_share = flash.raw_bytes() as f64 / device.offered_bytes() as f64;
    let g = &mut flash.geometry;
    let pages = u64::from(g.pages_per_block);
    // The pool's columns grow with about the square root of a drive's size. Erase units must be cut
    // down by as much, or the pool's frees would never empty one.
    let smaller = (wanted as f64 / device.offered_bytes() as f64).sqrt();
    let shorter = (pages as f64 * smaller) as u64;
    let fewest = wanted / stripe / MIN_SUPERBLOCKS;
    let shorter = shorter.min(fewest).clamp(1, pages);
    g.pages_per_block = shorter as u32;
    flash.timing.erase_us *= shorter as f64 / pages as f64;
    flash.ftl.superblock_dies = 0;
    let open = match flash.ftl.frontiers {
        forebay_flash::Frontiers::Apart => 2,
        forebay_flash::Frontiers::Shared => 1,
    };
    // Open and reserve blocks come on top: of a full-size drive they are next to nothing.
    let usable = (wanted as f64 * raw_share / (stripe * shorter) as f64).ceil() as u32;
    g.blocks_per_plane = usable + open + flash.ftl.reserve_superblocks;
    flash.cache.bytes = flash.cache.bytes.min(wanted / 64);
    small.unused_fraction = 0.0;
    small.check()?;
    Ok(small)
}

impl Wear {
    /// Parity columns.
    fn parity(&self) -> u32 {
        match self.redundancy {
            Layout::Raid0 => 0,
            Layout::Raidz1 => 1,
            Layout::Raidz2 => 2,
            Layout::Raidz3 => 3,
            Layout::Mirror => self.drives.saturating_sub(1),
        }
    }

    /// Bytes of each drive: the volume with its parity takes `full` of all drives.
    fn drive_bytes(&self) -> u64 {
        let data_columns = f64::from(self.drives - self.parity());
        let bytes = self.volume_bytes as f64 / data_columns / self.full;
        (bytes as u64).next_multiple_of(1 << 20)
    }

    fn check(&self) -> Result<(), LabError> {
        let bad =
            |field, found: String, allowed| Err(LabError::field("wear", field, found, allowed));
        if !(1..=64).contains(&self.drives) || self.drives <= self.parity() {
            let allowed = "from 1 to 64, more than the parity columns";
            return bad("drives", self.drives.to_string(), allowed);
        }
        if !(16 << 20..=1 << 40).contains(&self.volume_bytes) {
            return bad("volume_bytes", self.volume_bytes.to_string(), "from 16 MiB to 1 TiB");
        }
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(512..=1 << 20).contains(&block) {
            return bad("block_bytes", block.to_string(), "a power of two from 512 to 1 MiB");
        }
        if !(self.full > 0.0 && self.full < 1.0) {
            return bad("full", self.full.to_string(), "above 0 and below 1");
        }
        if !(0.01..=100.0).contains(&self.turnover) {
            return bad("turnover", self.turnover.to_string(), "from 0.01 to 100");
        }
        if !matches!(self.device.media, MediaSpec::Flash(_)) {
            return Err(LabError::NoFlash { device: self.device.name.clone() });
        }
        Ok(())
    }

    /// Runs it.
    pub fn run(&self) -> Result<WearOutcome, LabError> {
        self.check()?;
        let seed = Seed(self.seed);
        let (small, log) =
            (cut_down(&self.device, self.drive_bytes())?, cut_down(&self.log, LOG_BYTES)?);
        let mut disks = Vec::new();
        for i in 0..self.drives {
            let name = format!("ssd{i:02}");
            let disk = SparseDisk::new(&name, &small, seed.derive(&name).0)?;
            disks.push((name, disk));
        }
        let log = SparseDisk::new("log", &log, seed.derive("log").0)?;
        let task = self.clone();
        rt::Runtime::simulated(seed.derive("runtime").0)
            .block_on(async move { task.measure(disks, log).await })
    }

    async fn measure(
        &self,
        disks: Vec<(String, Rc<SparseDisk>)>,
        log: Rc<SparseDisk>,
    ) -> Result<WearOutcome, LabError> {
        let devices: Vec<String> = disks.iter().map(|(name, _)| name.clone()).collect();
        let drives = disks.iter().map(|(name, disk)| (name.clone(), disk.clone() as Device));
        let opener = opener(drives.chain([("log".to_owned(), log.clone() as Device)]));
        let spec = PoolSpec {
            groups: vec![GroupSpec { layout: self.redundancy, devices }],
            logs: vec![LogSpec { devices: vec!["log".into()] }],
            ..PoolSpec::default()
        };
        let pool = Pool::create(opener, "tank", &spec).await?;
        let usable_bytes = pool.summary().size_bytes;
        let volume = VolumeSpec {
            name: "v".into(),
            size_bytes: self.volume_bytes,
            sparse: false,
            properties: BTreeMap::new(),
        };
        pool.create_volume(&volume).await?;
        let device = pool.open_volume("v").expect("it was just made");
        fill(&device, self.volume_bytes).await?;
        let block = u64::from(self.block_bytes);
        let writes = ((self.volume_bytes as f64 * self.turnover) as u64 / block).max(1);
        let round = usable_bytes.saturating_sub(self.volume_bytes) / WARM_UP_BLOCK_BYTES;
        self.overwrite(&device, WARM_UP_BLOCK_BYTES, round).await?;
        self.overwrite(&device, block, writes.div_ceil(2)).await?;
        pool.sync().await?;
        let before = Counts::of(&pool, &disks, &log);
        self.overwrite(&device, block, writes).await?;
        pool.sync().await?;
        let after = Counts::of(&pool, &disks, &log);
        let erases = disks.iter().map(|(_, disk)| disk.stats().wear);
        let (most, sum) =
            erases.fold((0u32, 0.0), |(most, sum), w| (w.max.max(most), sum + w.mean));
        pool.export().await?;
        let mut outcome = after.since(&before);
        outcome.host_bytes = writes * block;
        outcome.pool_bytes = disks.iter().map(|(_, disk)| disk.geometry().size_bytes).sum();
        outcome.usable_bytes = usable_bytes;
        outcome.erases = (most, sum / f64::from(self.drives));
        Ok(outcome)
    }

    /// Writes at random places, `CLIENTS` at a time.
    async fn overwrite(&self, device: &Device, block: u64, writes: u64) -> Result<(), LabError> {
        let bytes = self.volume_bytes;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let device = device.clone();
                let mine = writes / CLIENTS + u64::from(client < writes % CLIENTS);
                rt::spawn(async move {
                    for _ in 0..mine {
                        let at = rt::random_below(bytes / block) * block;
                        device.write(at, distinct(block).freeze(), false).await?;
                    }
                    Ok::<(), DeviceError>(())
                })
            })
            .collect();
        for client in clients {
            client.await?;
        }
        Ok(())
    }
}

/// Writes the whole volume once in order.
pub(crate) async fn fill(device: &Device, bytes: u64) -> Result<(), LabError> {
    const FILL_WRITE_BYTES: u64 = 1 << 20;
    let mut at = 0;
    while at < bytes {
        let len = FILL_WRITE_BYTES.min(bytes - at);
        device.write(at, distinct(len).freeze(), false).await?;
        at += len;
    }
    Ok(())
}

/// Blocks that differ from each other, each filled with one word, which the drives keep cheaply.
pub(crate) fn distinct(len_bytes: u64) -> IoBuf {
    let mut buf = IoBuf::recycled(len_bytes as usize);
    for block in buf.chunks_mut(BLOCK_LEN) {
        fill_with(block, rt::random_u64());
    }
    buf
}

struct Counts {
    now_ns: u64,
    drives: Vec<Stats>,
    log: Stats,
    parts: Parts,
    cleaned: u64,
}

impl Counts {
    fn of(pool: &Pool, disks: &[(String, Rc<SparseDisk>)], log: &SparseDisk) -> Self {
        let stats = pool.stats();
        let media = stats.since_import.media;
        Self {
            now_ns: rt::now().0,
            drives: disks.iter().map(|(_, disk)| disk.stats()).collect(),
            log: log.stats(),
            parts: Parts {
                data: media.data,
                parity: media.parity,
                metadata: media.metadata,
                cleaning: media.cleaning,
                padding: media.padding,
            },
            cleaned: stats.since_import.segments_cleaned,
        }
    }

    fn since(&self, before: &Self) -> WearOutcome {
        let sum = |of: fn(&Stats) -> u64| -> u64 {
            let all = self.drives.iter().zip(&before.drives);
            all.map(|(after, before)| of(after) - of(before)).sum()
        };
        WearOutcome {
            host_bytes: 0,
            interface_bytes: sum(|s| s.written_bytes),
            interface_read_bytes: sum(|s| s.read_bytes),
            programmed_bytes: sum(|s| s.media_written_bytes),
            log_bytes: self.log.written_bytes - before.log.written_bytes,
            parts: Parts {
                data: self.parts.data - before.parts.data,
                parity: self.parts.parity - before.parts.parity,
                metadata: self.parts.metadata - before.parts.metadata,
                cleaning: self.parts.cleaning - before.parts.cleaning,
                padding: self.parts.padding - before.parts.padding,
            },
            segments_cleaned: self.cleaned - before.cleaned,
            pool_bytes: 0,
            usable_bytes: 0,
            seconds: (self.now_ns - before.now_ns) as f64 / 1e9,
            erases: (0, 0.0),
        }
    }
}

#[cfg(test)]
mod tests;
