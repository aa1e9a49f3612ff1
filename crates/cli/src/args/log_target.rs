//! Arguments of `forebay log-target`.

use clap::Args;

use super::{ListenAddress, SecurityArgs, listen_address};

/// Arguments of `forebay log-target`.
#[derive(Args, Clone, Debug)]
pub struct LogTargetArgs {
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given several times [default:
    /// tcp:127.0.0.1:10809].
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Vec<ListenAddress>,
    /// TLS.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// What to serve, each under a name: a file, a block device, or memory (dram:SIZE,…).
    #[arg(value_name = "NAME=DEV", required = true, value_parser = target)]
    pub targets: Vec<Target>,
}

/// A device and the name under which it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name of the export.
    pub name: String,
    /// The device.
    pub device: String,
}

/// Reads `NAME=DEV`.
fn target(text: &str) -> Result<Target, String> {
    const NAME_MAX_BYTES: usize = 255;
    let example = "write NAME=DEV, for example log0=/dev/nvme0n1p4";
    let (name, device) = text.split_once('=').ok_or(example)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX_BYTES || !name.chars().all(is_plain) {
        return Err(format!("a name has letters, digits, '-', '_' and '.'; {example}"));
    }
    if device.is_empty() {
        return Err(example.to_owned());
    }
    Ok(Target { name: name.to_owned(), device: device.to_owned() })
}
