//! Arguments of `forebay doctor`.

use clap::Args;

/// Arguments of `forebay doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Print versioned JSON.
    #[arg(long)]
    pub json: bool,
    /// Pools, and devices that are to become log devices; all known pools when none is named.
    #[arg(value_name = "POOL|DEV")]
    pub names: Vec<String>,
}
