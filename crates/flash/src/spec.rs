//! Device descriptions: plain data, read from a TOML page or built in code. The crate's README has
//! an example.
//!
//! Every number carries its unit in its name. A missing field takes the default that its doc
//! comment names; an unknown field is an error. A catalogue page names the source of each number.

use serde::{Deserialize, Serialize};

mod check;
mod error;
mod link;
mod modern;
mod scale;
pub use error::{MediaKind, SpecError, SpecFlaw};
pub use link::LinkParams;
pub use modern::{MapMemorySpec, PslcSpec, ThermalSpec, ZonesSpec};

/// One device: how large, how attached, what it draws, and what it stores data on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// The name reports print.
    pub name: String,
    /// Bytes the device offers to its host, before [`DeviceSpec::unused_fraction`].
    pub capacity_bytes: u64,
    /// Share of `capacity_bytes` the operator leaves unpartitioned, 0 to below 1: "+20 % spare" is
    /// 0.2. The model then offers `capacity_bytes * (1 - unused_fraction)`.
    #[serde(default)]
    pub unused_fraction: f64,
    /// How it is attached.
    pub interface: InterfaceSpec,
    /// What it draws.
    #[serde(default)]
    pub power: PowerSpec,
    /// What keeps the data: exactly one of `[media.flash]`, `[media.dram]`, `[media.disk]`.
    pub media: MediaSpec,
}

/// What keeps the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum MediaSpec {
    /// NAND flash behind a translation layer.
    Flash(Box<FlashSpec>),
    /// DRAM saved to flash by its own energy source when power fails.
    Dram(DramSpec),
    /// A rotating disk.
    Disk(DiskSpec),
}

/// The kinds of attachment, each with the defaults of [`LinkParams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// SATA II, 3 Gb/s, behind a host bus adapter.
    Sata2,
    /// SATA 6 Gb/s, behind a host bus adapter.
    Sata6,
    /// SAS 6 Gb/s, behind a host bus adapter.
    Sas6,
    /// SAS 12 Gb/s, behind a host bus adapter.
    Sas12,
    /// A card that is its own PCIe endpoint with its own driver, one hop.
    Pcie,
    /// NVMe, one hop.
    Nvme,
}

/// How the device is attached. Absent numbers take the kind's default (see [`LinkParams`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceSpec {
    /// The kind.
    pub kind: InterfaceKind,
    /// Payload bandwidth of the link, one direction, in 10^6 bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_mb_s: Option<f64>,
    /// Time one command occupies the link besides its data, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_us: Option<f64>,
    /// Commands the device accepts at once; more wait at the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// Components between host memory and device controller, this link included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hops: Option<u32>,
    /// Latency each hop adds to a command (there and back together), in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop_us: Option<f64>,
    /// Commands per second the host bus adapter passes; 0 or absent means no cap. To share one
    /// adapter between devices, leave this out and pass requests through [`crate::Hba`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hba_iops_cap: Option<f64>,
    /// Probability that one bit is received wrong; each hit costs a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bit_error_rate: Option<f64>,
    /// What one retry costs besides sending the data again, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_us: Option<f64>,
}

/// Power at the device, in watts. `read_w`, `write_w`, `erase_w` are the whole device's draw while
/// every die (or the one head, or the DRAM) is busy with that; between, draw is proportional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Draw at rest. Default 0.
    #[serde(default)]
    pub idle_w: f64,
    /// Draw under full read load; below `idle_w` counts as `idle_w`. Default 0.
    #[serde(default)]
    pub read_w: f64,
    /// Draw under full program load; below `idle_w` counts as `idle_w`. Default 0.
    #[serde(default)]
    pub write_w: f64,
    /// Draw while every die erases (flash only); below `idle_w` counts as `idle_w`. Default 0.
    #[serde(default)]
    pub erase_w: f64,
}

/// NAND flash behind a translation layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashSpec {
    /// How the array is built.
    pub geometry: GeometrySpec,
    /// How long it takes.
    pub timing: TimingSpec,
    /// How addresses are translated and space is reclaimed.
    #[serde(default)]
    pub ftl: FtlSpec,
    /// What the controller itself costs and whether it compresses.
    #[serde(default)]
    pub controller: ControllerSpec,
    /// The write cache and what a power cut does to it.
    #[serde(default)]
    pub cache: CacheSpec,
    /// How blocks wear out.
    #[serde(default)]
    pub endurance: EnduranceSpec,
    /// Blocks with one bit a cell in front of the others; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pslc: Option<PslcSpec>,
    /// The part of the map that is in memory; absent: all of it, which costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_memory: Option<MapMemorySpec>,
    /// What heat does; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thermal: Option<ThermalSpec>,
    /// Zones instead of a translation layer; absent: none. Of `ftl`, only the mapping unit (the
    /// write size) and `superblock_dies` (the dies of a zone) then count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZonesSpec>,
}

/// The flash array. Raw bytes are the product of all six; they must exceed the offered capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometrySpec {
    /// Channels of the controller.
    pub channels: u32,
    /// Dies on each channel.
    pub dies_per_channel: u32,
    /// Planes of each die; a die programs and erases all its planes together.
    pub planes_per_die: u32,
    /// Erase blocks of each plane.
    pub blocks_per_plane: u32,
    /// Pages of each erase block.
    pub pages_per_block: u32,
    /// Bytes of each page, spare bytes not counted.
    pub page_bytes: u32,
}

/// Operation times of the flash and its buses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingSpec {
    /// Array read of one page.
    pub read_us: f64,
    /// Program of one page (of all planes together).
    pub program_us: f64,
    /// Erase of one block (of all planes together).
    pub erase_us: f64,
    /// Bandwidth of one channel, in 10^6 bytes per second. Default 200.
    #[serde(default = "TimingSpec::default_channel_mb_s")]
    pub channel_mb_s: f64,
    /// What a read may interrupt. Default `none`.
    #[serde(default)]
    pub suspend: Suspend,
    /// Time to suspend and resume one operation. Default 20.
    #[serde(default = "TimingSpec::default_suspend_us")]
    pub suspend_us: f64,
    /// Share of the host's page reads that must be repeated with other voltages. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_fraction: f64,
    /// How many times such a page is read again. Default 0.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub retry_reads: u32,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_one(value: &u32) -> bool {
    *value == 1
}

fn is_nothing(value: &u32) -> bool {
    *value == 0
}

impl TimingSpec {
    fn default_channel_mb_s() -> f64 {
        200.0
    }
    fn default_suspend_us() -> f64 {
        20.0
    }
}

/// Which operations in progress a read may suspend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspend {
    /// None: a read waits for the operation in progress.
    #[default]
    None,
    /// Erases only.
    Erase,
    /// Erases and programs.
    ProgramAndErase,
}

/// The translation layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FtlSpec {
    /// Bytes one map entry covers; a write that covers one only in part costs a
    /// read-modify-write. A power of two from 512 to the page of all planes. Default 4096.
    pub mapping_unit_bytes: u32,
    /// Whether moved data shares open blocks with host data. Default `apart`.
    pub frontiers: Frontiers,
    /// How a block to clean is chosen. Default `greedy`.
    pub policy: CleaningPolicy,
    /// Dies whose blocks are opened, cleaned and erased together; must divide the number of dies.
    /// Default 0: all dies.
    pub superblock_dies: u32,
    /// Free superblocks each pool of dies keeps; cleaning starts below. Default 2, at least 1.
    pub reserve_superblocks: u32,
    /// Whether a superblock is cleaned at once or in step with host writes. Default `paced`.
    pub cleaning_pace: Pace,
    /// Free superblocks that idle-time cleaning works towards; 0 means none. Default 0.
    pub idle_clean_superblocks: u32,
    /// Idle time before idle-time cleaning starts, in milliseconds. Default 100.
    pub idle_after_ms: f64,
    /// Whether the least worn free block is opened first. Default true.
    pub dynamic_wear_leveling: bool,
    /// Difference of erase counts at which a block with cold data is moved; 0 means never.
    /// Default 0.
    pub static_wear_gap: u32,
    /// Unit updates after which one page of map is programmed besides the data; 0 means the map
    /// costs nothing. Default 0.
    pub map_journal_units: u32,
    /// Time after which map changes are on flash even without a flush, in milliseconds.
    /// Default 100.
    pub map_persist_ms: f64,
    /// Host reads of a superblock after which its data is moved; 0 means never. Default 0.
    #[serde(skip_serializing_if = "is_nothing")]
    pub read_disturb_reads: u32,
    /// Streams that hosts may sort their writes into (streams, or placement handles of FDP). Each
    /// has an open superblock of its own; moved data of all streams shares one. Default 1, at most
    /// 64.
    #[serde(skip_serializing_if = "is_one")]
    pub streams: u32,
}

impl Default for FtlSpec {
    fn default() -> Self {
        Self {
            mapping_unit_bytes: 4096,
            frontiers: Frontiers::Apart,
            policy: CleaningPolicy::Greedy,
            superblock_dies: 0,
            reserve_superblocks: 2,
            cleaning_pace: Pace::Paced,
            idle_clean_superblocks: 0,
            idle_after_ms: 100.0,
            dynamic_wear_leveling: true,
            static_wear_gap: 0,
            map_journal_units: 0,
            map_persist_ms: 100.0,
            read_disturb_reads: 0,
            streams: 1,
        }
    }
}

/// Whether moved data shares open blocks with host data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frontiers {
    /// Two open blocks: one for the host, one for moved data.
    #[default]
    Apart,
    /// One open block for both.
    Shared,
}

/// How cleaning is spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// A whole superblock at once: the write that needs the space waits for all of it.
    Whole,
    /// Each host write moves its share, so that the victim is free when its space is needed.
    #[default]
    Paced,
}

/// How a block to clean is chosen among the closed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleaningPolicy {
    /// The least live data, ties broken by chance.
    #[default]
    Greedy,
    /// The least live data among this many blocks picked by chance: `{ d-choices = 10 }`.
    DChoices(u32),
    /// The largest (1 - u) * age / (1 + u), u being the live share.
    CostBenefit,
    /// The block closed longest ago.
    Fifo,
    /// Any block.
    Random,
}

/// What the controller costs besides flash and link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControllerSpec {
    /// Controller time of each command, spent one command at a time, in microseconds. Default 0.
    pub command_us: f64,
    /// Controller time of each mapping unit written by the host, likewise. Default 0.
    pub unit_us: f64,
    /// Latency of each command that does not occupy the controller. Default 0.
    pub latency_us: f64,
    /// Time from power-on to the first answer, in milliseconds. Default 0.
    pub power_on_ms: f64,
    /// Compression of data before it is stored; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSpec>,
}

/// A controller that stores LZ4-compressed units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompressionSpec {
    /// Granule that compressed units are rounded up to; a power of two that divides the mapping
    /// unit into at most 64. Default 512.
    pub granule_bytes: u32,
}

impl Default for CompressionSpec {
    fn default() -> Self {
        Self { granule_bytes: 512 }
    }
}

/// The write cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSpec {
    /// Bytes of write buffer in the controller or its DRAM; at least one page of every die is
    /// always assumed. Default 0.
    pub bytes: u64,
    /// What energy for a power cut protects. Default `none`.
    pub plp: Plp,
    /// Whether FLUSH does what it promises. Default `honored`.
    pub flush: Honesty,
    /// Whether FUA does what it promises. Default `honored`.
    pub fua: Honesty,
    /// Fixed cost of a FLUSH besides writing out the cache, in microseconds. Default 0.
    pub flush_us: f64,
    /// Whether a program interrupted by a power cut also ruins the page programmed before it on
    /// the same die, as paired pages of MLC do. Default false.
    pub paired_pages: bool,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            bytes: 0,
            plp: Plp::None,
            flush: Honesty::Honored,
            fua: Honesty::Honored,
            flush_us: 0.0,
            paired_pages: false,
        }
    }
}

/// What energy kept for a power cut protects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plp {
    /// Nothing: cached data is lost, programs tear, the map falls back to its last copy on flash.
    #[default]
    None,
    /// The map, not user data in flight.
    MapOnly,
    /// Everything acknowledged.
    Full,
}

/// Whether a device does what a command promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Honesty {
    /// It does.
    #[default]
    Honored,
    /// It reports success and does nothing.
    Ignored,
}

/// How blocks wear out. Each erase block's limit is drawn once from a normal distribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnduranceSpec {
    /// Mean program/erase cycles to failure; 0 means blocks never fail. Default 0.
    pub cycles_mean: f64,
    /// Standard deviation as a share of the mean. Default 0.
    pub cycles_sd_fraction: f64,
    /// Share of superblocks bad from the start, 0 to below 1. Default 0.
    pub factory_bad_fraction: f64,
}

/// DRAM saved to flash by its own energy source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DramSpec {
    /// Time the card itself takes for one command, one at a time.
    pub service_us: f64,
    /// Latency of each command that does not occupy the card, in microseconds. Default 0.
    #[serde(default)]
    pub latency_us: f64,
    /// Bandwidth of the DRAM, in 10^6 bytes per second. Default 3000.
    #[serde(default = "DramSpec::default_dram_mb_s")]
    pub dram_mb_s: f64,
    /// Rate at which DRAM is saved to flash, in 10^6 bytes per second.
    pub save_mb_s: f64,
    /// Rate at which it is restored, in 10^6 bytes per second.
    pub restore_mb_s: f64,
    /// Time to erase the backup flash before it can take the next image, in milliseconds.
    /// Default 2000.
    #[serde(default = "DramSpec::default_erase_ms")]
    pub erase_ms: f64,
    /// Backups the flash is good for; beyond, each backup fails with rising probability.
    pub backup_cycles: u64,
    /// Where the energy for a save comes from.
    pub energy: EnergySpec,
}

impl DramSpec {
    fn default_dram_mb_s() -> f64 {
        3000.0
    }
    fn default_erase_ms() -> f64 {
        2000.0
    }
}

/// An energy source for saving DRAM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergySpec {
    /// Energy of the full source, in joules.
    pub full_j: f64,
    /// Draw while saving, in watts.
    pub save_w: f64,
    /// Power that recharges it, in watts; 0 means an outside supply (UPS) that is always full.
    pub charge_w: f64,
    /// Share of the charge present when the device is first switched on, 0 to 1. Default 1.
    #[serde(default = "EnergySpec::default_initial_fraction")]
    pub initial_fraction: f64,
}

impl EnergySpec {
    fn default_initial_fraction() -> f64 {
        1.0
    }
}

/// A rotating disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Revolutions per minute.
    pub rpm: f64,
    /// Seek to a neighboring track, settling included, in milliseconds.
    pub track_seek_ms: f64,
    /// Seek over the whole surface, in milliseconds.
    pub full_seek_ms: f64,
    /// Media rate on the outermost tracks, in 10^6 bytes per second.
    pub outer_mb_s: f64,
    /// Media rate on the innermost tracks, in 10^6 bytes per second.
    pub inner_mb_s: f64,
    /// Bytes of write cache; 0 means writes reach the platter before they complete. Default 0.
    #[serde(default)]
    pub write_cache_bytes: u64,
    /// Bytes read ahead after a read. Default 0.
    #[serde(default)]
    pub read_ahead_bytes: u64,
    /// Whether FLUSH does what it promises. Default `honored`.
    #[serde(default)]
    pub flush: Honesty,
}

#[cfg(test)]
mod tests;
