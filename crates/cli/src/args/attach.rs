//! Arguments of `forebay attach` and `forebay detach`.

use std::path::PathBuf;

use clap::Args;

use super::values::{VolumeName, volume_name};

/// Connections that a device may have.
const CONNECTIONS_MAX: i64 = 16;
/// A week: longer waits are no waits.
const TIMEOUT_MAX_SECS: u64 = 7 * 24 * 3600;

/// Arguments of `forebay attach`.
#[derive(Args, Clone, Debug)]
pub struct AttachArgs {
    /// The kernel refuses writes.
    #[arg(short, long)]
    pub read_only: bool,
    /// What attaches it: ublk if its module is loaded, else the kernel's NBD client.
    #[arg(long, value_enum, default_value_t = DriverChoice::Auto)]
    pub driver: DriverChoice,
    /// Connections of NBD, or queues of ublk [default: 4, or the number of processors if that is
    /// less].
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    pub connections: Option<u32>,
    /// Unit of reads and writes, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = block_bytes)]
    pub block_size: u32,
    /// Seconds after which a connection that leaves a request unanswered is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX_SECS))]
    pub timeout: u64,
    /// Seconds for which reads and writes wait for a server; then they fail.
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX_SECS))]
    pub dead_timeout: u64,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
    /// The volume.
    #[arg(value_name = "POOL/VOL", value_parser = volume_name)]
    pub volume: VolumeName,
}

/// The part of the kernel that is to attach a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DriverChoice {
    /// ublk if its module is loaded, else NBD.
    Auto,
    /// The NBD client.
    Nbd,
    /// The ublk driver, which is loaded if need be.
    Ublk,
}

/// Arguments of `forebay detach`.
#[derive(Args, Clone, Debug)]
pub struct DetachArgs {
    /// Even while it is mounted or open.
    #[arg(short)]
    pub force: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
    /// The volume, or the device that it is attached as.
    #[arg(value_name = "POOL/VOL|DEVICE", value_parser = target)]
    pub volume: DetachTarget,
}

/// What is to be detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetachTarget {
    /// A device, by an absolute path.
    Device(PathBuf),
    /// `POOL/VOL`.
    Volume(String),
}

fn target(text: &str) -> Result<DetachTarget, String> {
    if text.starts_with('/') {
        return Ok(DetachTarget::Device(text.into()));
    }
    match volume_name(text) {
        Ok(_) => Ok(DetachTarget::Volume(text.to_owned())),
        Err(_) => Err("name a volume as POOL/VOL, or a device as /dev/nbd0".to_owned()),
    }
}

fn block_bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("use 512, 1024, 2048 or 4096".to_owned()),
    }
}
