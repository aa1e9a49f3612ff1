//! Parts of drives of the 2020s: a pSLC cache, a map that is not all in memory, a thermal limit.

use serde::{Deserialize, Serialize};

/// Blocks programmed with one bit a cell, in front of the others. All host writes go there, and
/// move on when the drive is idle or when the cache is full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PslcSpec {
    /// Bytes that it holds while the drive is empty. As the drive fills, it shrinks to a third of
    /// the unwritten space (three bits a cell).
    pub bytes: u64,
    /// Bytes that it keeps on a full drive.
    pub static_bytes: u64,
    /// Program of a page with one bit a cell, in microseconds.
    pub program_us: f64,
    /// Read of such a page, in microseconds.
    pub read_us: f64,
    /// Idle time before it is emptied, in milliseconds. Default 100.
    #[serde(default = "PslcSpec::default_idle_ms")]
    pub idle_after_ms: f64,
}

impl PslcSpec {
    fn default_idle_ms() -> f64 {
        100.0
    }
}

/// Zones instead of a translation layer (NVMe ZNS): each is one superblock, which the host writes
/// in order and resets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonesSpec {
    /// Zones that may be open at once; beyond it the one written longest ago is closed. Default 14.
    #[serde(default = "ZonesSpec::default_most")]
    pub max_open: u32,
    /// Zones that may be partly written at once; a write to one more is refused. Default 14.
    #[serde(default = "ZonesSpec::default_most")]
    pub max_active: u32,
}

impl ZonesSpec {
    fn default_most() -> u32 {
        14
    }
}

/// The part of the map that is in memory, of the controller or of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapMemorySpec {
    /// Bytes of map in memory, at four an entry; 0: all of it. A request for another part reads a
    /// page of map from flash first; a changed part that leaves is programmed.
    pub bytes: u64,
    /// Time of a look-up in memory, in microseconds: of host memory about 1. Default 0.
    #[serde(default)]
    pub look_up_us: f64,
    /// Time between two moments at which all changed parts are programmed, in milliseconds; 0: only
    /// when they leave. Default 0.
    #[serde(default)]
    pub flush_ms: f64,
}

/// A thermal limit: above it each command costs the controller more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThermalSpec {
    /// Temperature around the drive, in degrees Celsius.
    pub ambient_c: f64,
    /// Degrees above that for each watt, in the end.
    pub c_per_w: f64,
    /// Time in which 63 % of a change happen, in seconds.
    pub time_s: f64,
    /// The drive is slowed down from here on, until it is two degrees cooler.
    pub limit_c: f64,
    /// Then a command takes so many times its controller time.
    pub slowdown: f64,
}
