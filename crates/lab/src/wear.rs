//! The pool's own code over simulated drives: bytes at their interfaces and at their flash for each
//! byte that a client writes.

use crate::LabError;
use forebay_device::{Device, DeviceError, ErrorKind, IoBuf, Operation};
use forebay_flash::{DeviceSpec, MediaSpec, Stats};
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{OpenWith, Opener, Pool};
use forebay_rt as rt;
use forebay_sim::{FlashDisk, Seed};
use forebay_units::Layout;
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
    /// Bytes each drive is cut down to, 64 MiB or more.
    pub drive_bytes: u64,
    /// How they keep data.
    pub redundancy: Layout,
    /// Size and alignment of the random writes.
    pub block_bytes: u32,
    /// Size of the volume as a share of what the pool offers, above 0, at most 1.
    pub utilization: f64,
    /// Bytes overwritten and measured, as a multiple of what the pool offers; half as much
    /// again is overwritten before, so that the drives' flash has come round once.
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
    /// Bytes the pool offered.
    pub pool_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
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
    /// Bytes at the interface for each byte of a client that left memory: without the gain from
    /// blocks overwritten again before their group was written, which is large on a small volume.
    #[must_use]
    pub fn unmerged_amplification(&self) -> f64 {
        self.interface_bytes as f64 / self.parts.data.max(1) as f64
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
const LOG_BYTES: u64 = 64 << 20;
/// Bytes of a column of a pool of large drives, and of one of the smallest: what a drive is cut
/// down by, its erase unit must be cut down by as well, or the pool's frees would never empty one.
const FULL_COLUMN_BYTES: u64 = 16 << 20;
const SMALL_COLUMN_BYTES: u64 = 256 << 10;
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
    let shorter = pages * SMALL_COLUMN_BYTES / FULL_COLUMN_BYTES;
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
    #[must_use]
    pub fn parity(&self) -> u32 {
        match self.redundancy {
            Layout::Raid0 => 0,
            Layout::Raidz1 => 1,
            Layout::Raidz2 => 2,
            Layout::Raidz3 => 3,
            Layout::Mirror => self.drives - 1,
        }
    }

    fn check(&self) -> Result<(), LabError> {
        let bad =
            |field, found: String, allowed| Err(LabError::field("wear", field, found, allowed));
        if !(1..=64).contains(&self.drives) {
            return bad("drives", self.drives.to_string(), "from 1 to 64");
        }
        if !(64 << 20..=1 << 40).contains(&self.drive_bytes) {
            return bad("drive_bytes", self.drive_bytes.to_string(), "from 64 MiB to 1 TiB");
        }
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(512..=1 << 20).contains(&block) {
            return bad("block_bytes", block.to_string(), "a power of two from 512 to 1 MiB");
        }
        if !(self.utilization > 0.0 && self.utilization <= 1.0) {
            return bad("utilization", self.utilization.to_string(), "above 0 and at most 1");
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
            (cut_down(&self.device, self.drive_bytes)?, cut_down(&self.log, LOG_BYTES)?);
        let mut disks = Vec::new();
        for i in 0..self.drives {
            let name = format!("ssd{i:02}");
            let disk = FlashDisk::new(&name, &small, seed.derive(&name).0)?;
            disks.push((name, disk));
        }
        let log = FlashDisk::new("log", &log, seed.derive("log").0)?;
        let task = self.clone();
        rt::Runtime::simulated(seed.derive("runtime").0)
            .block_on(async move { task.measure(disks, log).await })
    }

    async fn measure(
        &self,
        disks: Vec<(String, Rc<FlashDisk>)>,
        log: Rc<FlashDisk>,
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
        let pool_bytes = pool.summary().size_bytes;
        let block = u64::from(self.block_bytes).max(4096);
        let volume_bytes =
            ((pool_bytes as f64 * self.utilization) as u64 / block * block).max(block);
        let volume = VolumeSpec {
            name: "v".into(),
            size_bytes: volume_bytes,
            sparse: false,
            properties: BTreeMap::new(),
        };
        pool.create_volume(&volume).await?;
        let device = pool.open_volume("v").expect("it was just made");
        fill(&device, volume_bytes).await?;
        let writes = (pool_bytes as f64 * self.turnover) as u64 / u64::from(self.block_bytes);
        self.overwrite(&device, volume_bytes, writes + writes.div_ceil(2)).await?;
        pool.sync().await?;
        let before = Counts::of(&pool, &disks, &log);
        self.overwrite(&device, volume_bytes, writes.max(1)).await?;
        pool.sync().await?;
        let after = Counts::of(&pool, &disks, &log);
        let erases = disks.iter().map(|(_, disk)| disk.stats().wear);
        let (most, sum) =
            erases.fold((0u32, 0.0), |(most, sum), w| (w.max.max(most), sum + w.mean));
        pool.export().await?;
        let mut outcome = after.since(&before);
        outcome.host_bytes = writes.max(1) * u64::from(self.block_bytes);
        outcome.pool_bytes = pool_bytes;
        outcome.volume_bytes = volume_bytes;
        outcome.erases = (most, sum / f64::from(self.drives));
        Ok(outcome)
    }

    /// Writes at random places, `CLIENTS` at a time.
    async fn overwrite(&self, device: &Device, bytes: u64, writes: u64) -> Result<(), LabError> {
        let block = u64::from(self.block_bytes);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let device = device.clone();
                let mine = writes / CLIENTS + u64::from(client < writes % CLIENTS);
                rt::spawn(async move {
                    for _ in 0..mine {
                        let at = rt::random_below(bytes / block) * block;
                        device.write(at, noise(block).freeze(), false).await?;
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

async fn fill(device: &Device, bytes: u64) -> Result<(), LabError> {
    const FILL_WRITE_BYTES: u64 = 1 << 20;
    let mut at = 0;
    while at < bytes {
        let len = FILL_WRITE_BYTES.min(bytes - at);
        device.write(at, noise(len).freeze(), false).await?;
        at += len;
    }
    Ok(())
}

/// Bytes that do not compress.
fn noise(len_bytes: u64) -> IoBuf {
    let mut buf = IoBuf::recycled(len_bytes as usize);
    let mut word = rt::random_u64();
    for chunk in buf.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = (word ^ (word >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
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
    fn of(pool: &Pool, disks: &[(String, Rc<FlashDisk>)], log: &FlashDisk) -> Self {
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
            volume_bytes: 0,
            seconds: (self.now_ns - before.now_ns) as f64 / 1e9,
            erases: (0, 0.0),
        }
    }
}

#[cfg(test)]
mod tests;
