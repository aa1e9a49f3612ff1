//! Log devices in memory by name: `dram:SIZE,…` becomes the path of a backup device or a memory.
//!
//! What enters: words of the command line. What leaves: paths, opened devices. What always holds:
//! nothing is written to a device that holds something, unless forced. Who calls: commands that add
//! log devices, and the opener.

use std::path::Path;
use std::rc::Rc;

use forebay_device::{Deadline, Device, DeviceError, ErrorKind, FileDevice, IoBuf};
use forebay_dram::{
    DramDevice, DramKind, DramProtection, Host, Preparation, ThisMachine, UpsName, judge, kind_of,
    prepare_alone, prepare_backup,
};
use forebay_pool::describe_content;
use forebay_pool::spec::PoolSpec;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos, format_bytes, parse_bytes};

use crate::devices::{DEVICE_MIN_BYTES, FileOpener, resolve_new};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::object_stores;
use crate::remote_log;
use forebay_pool::Opener;

/// The longest path or name in a header.
const VALUE_MAX_BYTES: usize = 1024;
/// What a name begins with.
const PREFIX: &str = "dram:";
/// Where memory is made.
const MEMORY_FOLDER: &str = "/dev/shm";
/// How long a backup device may take for a command.
const BACKUP_TIMEOUT: Nanos = Nanos::from_secs(30);
const EXAMPLE: &str = "for example log dram:4G,backup=/dev/nvme0n1p3,ups=rack1@localhost";

/// What a `dram:` word asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    size_bytes: u64,
    backup: Option<String>,
    memory: Option<String>,
    protection: DramProtection,
}

/// Whether the word names a log device in memory.
#[must_use]
pub fn is_name(word: &str) -> bool {
    word.starts_with(PREFIX)
}

/// Reads `dram:SIZE` and what may follow it: `,backup=DEV`, `,ups=NAME@HOST[:PORT]`,
/// `,memory=FILE`, `,protection=none|pmem|mirror`.
fn parse(word: &str) -> Result<Wanted, Failure> {
    let wrong = |what: String| Failure::usage(format!("{word}: {what}")).with_hint(EXAMPLE);
    let mut parts = word.strip_prefix(PREFIX).unwrap_or(word).split(',');
    let size = parts.next().unwrap_or("");
    let size_bytes = parse_bytes(size).map_err(|e| wrong(e.to_string()))?;
    let size_bytes = size_bytes / BLOCK_BYTES * BLOCK_BYTES;
    if size_bytes < DEVICE_MIN_BYTES {
        return Err(wrong("a log device needs 64M at least".to_owned()));
    }
    let (mut backup, mut memory, mut ups, mut protection) = (None, None, None, None);
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            return Err(wrong(format!("'{part}' is not of the form name=value")));
        };
        let place = match key {
            "backup" => &mut backup,
            "memory" => &mut memory,
            "ups" => &mut ups,
            "protection" => &mut protection,
            _ => {
                let names = "backup, ups, memory and protection";
                return Err(wrong(format!("'{key}' is unknown; there are {names}")));
            }
        };
        if value.len() > VALUE_MAX_BYTES {
            return Err(wrong(format!("'{key}' is longer than {VALUE_MAX_BYTES} bytes")));
        }
        if value.is_empty() || place.replace(value.to_owned()).is_some() {
            return Err(wrong(format!("'{key}' needs one value")));
        }
    }
    let protection = match (protection.as_deref(), ups) {
        (None | Some("ups"), Some(name)) if UpsName::parse(&name).is_some() => {
            DramProtection::Ups { name }
        }
        (None | Some("ups"), Some(name)) => {
            return Err(wrong(format!("'{name}' is not of the form NAME@HOST")));
        }
        (Some("none"), None) => DramProtection::None,
        (Some("pmem"), None) => DramProtection::Persistent,
        (Some("mirror"), None) => DramProtection::Mirror,
        (Some("none" | "pmem" | "mirror"), Some(_)) => {
            return Err(wrong("ups= and protection= contradict each other".to_owned()));
        }
        (None, None) => {
            let message = "nothing protects it from a loss of power: name a power supply (ups=) \
                           with a backup device (backup=), persistent memory (protection=pmem), a \
                           mirror with a device elsewhere (protection=mirror), or accept the loss \
                           (protection=none)";
            return Err(wrong(message.to_owned()));
        }
        (Some(other), _) => return Err(wrong(format!("'{other}' is no protection"))),
    };
    match (&protection, &backup, &memory) {
        (DramProtection::Ups { .. }, None, _) => {
            Err(wrong("a power supply only gives time to save: name a backup=".to_owned()))
        }
        (DramProtection::Persistent, Some(_), _) => {
            Err(wrong("persistent memory needs no backup device".to_owned()))
        }
        (DramProtection::Mirror, Some(_), _) => {
            Err(wrong("the other side of its mirror takes the place of a backup=".to_owned()))
        }
        (DramProtection::Persistent, _, None) => {
            Err(wrong("name a file on persistent memory with memory=".to_owned()))
        }
        _ => Ok(Wanted { size_bytes, backup, memory, protection }),
    }
}

/// The log devices in memory that a command has made, to be taken back if the command fails.
#[derive(Default)]
pub struct Made {
    backups: Vec<String>,
    memories: Vec<String>,
}

impl Made {
    /// Takes them back.
    pub async fn undo(self) {
        for path in &self.backups {
            // What cannot be cleared is found again by its header.
            let _ = clear_header(path).await;
        }
        for path in &self.memories {
            ThisMachine.remove_memory(path).await;
        }
    }
}

/// Makes the log devices in memory that `spec` names, and puts their paths in the place of the
/// names.
pub async fn make_all(spec: &mut PoolSpec) -> Result<Made, Failure> {
    let mut made = Made::default();
    for device in spec.logs.iter_mut().flat_map(|log| &mut log.devices) {
        if !is_name(device) {
            continue;
        }
        match make(device, spec.force, &mut made).await {
            Ok(path) => *device = path,
            Err(failure) => {
                made.undo().await;
                return Err(failure);
            }
        }
    }
    Ok(made)
}

/// The path of a device that a pool is to take: the one of that name, or of a log device in memory
/// that is made now.
pub async fn make_or_resolve(word: &str, force: bool) -> Result<(String, Made), Failure> {
    let mut made = Made::default();
    if remote_log::is_name(word) {
        return Ok((remote_log::resolve(word).await?, made));
    }
    if object_stores::is_name(word) {
        return Ok((object_stores::resolve_new(word)?, made));
    }
    if !is_name(word) {
        return Ok((resolve_new(word)?, made));
    }
    let path = make(word, force, &mut made).await?;
    Ok((path, made))
}

/// Checks the names of log devices in memory, and that no other device has such a name.
pub fn check_names(spec: &PoolSpec) -> Result<(), Failure> {
    let others = spec.groups.iter().flat_map(|group| &group.devices).chain(&spec.caches);
    if let Some(word) = others.chain(&spec.spares).find(|word| is_name(word)) {
        let message = format!("{word}: memory can be a log device only");
        return Err(Failure::usage(message).with_hint("write it behind 'log'"));
    }
    for log in &spec.logs {
        let (mut needs_mirror, mut has_mirror) = (None, false);
        for word in &log.devices {
            match is_name(word) && parse(word)?.protection == DramProtection::Mirror {
                true => needs_mirror = Some(word),
                false => has_mirror = true,
            }
        }
        if let Some(word) = needs_mirror.filter(|_| !has_mirror) {
            let message = format!("{word}: nothing mirrors it");
            return Err(Failure::usage(message)
                .with_hint(format!("for example log mirror {word} nbd://10.0.0.2/log0")));
        }
    }
    Ok(())
}

async fn make(word: &str, force: bool, made: &mut Made) -> Result<String, Failure> {
    let wanted = parse(word)?;
    let memory = match &wanted.memory {
        Some(path) => absolute(path)?,
        None => format!("{MEMORY_FOLDER}/forebay-{:016x}.log", forebay_rt::random_u64()),
    };
    let Wanted { size_bytes, protection, .. } = wanted.clone();
    let preparation = Preparation { size_bytes, memory, protection };
    if let DramProtection::Ups { name } = &preparation.protection {
        warn_if_not_armed(name).await;
    }
    match &wanted.backup {
        Some(backup) => make_backup(backup, preparation, force, made).await,
        None => make_alone(preparation, made).await,
    }
}

/// Opens the log device in memory of that name, or makes it if it is not there yet.
pub async fn open_or_make(word: &str) -> Result<Device, Failure> {
    let wanted = parse(word)?;
    let known = match (&wanted.backup, &wanted.memory) {
        (Some(backup), _) => {
            let path = resolve_new(backup)?;
            let is_known = kind_of(&open_raw(&path).await?).await? == Some(DramKind::Backup);
            is_known.then_some(path)
        }
        (None, Some(memory)) if Path::new(memory).exists() => Some(absolute(memory)?),
        _ => None,
    };
    let path = match known {
        Some(path) => path,
        None => make(word, false, &mut Made::default()).await?,
    };
    let device = open(&path).await?;
    let (size_bytes, wanted_bytes) = (device.geometry().size_bytes, wanted.size_bytes);
    if device.dram().is_none() || size_bytes != wanted_bytes {
        let (size, wanted) = (format_bytes(size_bytes), format_bytes(wanted_bytes));
        let message = format!("{path} holds a log device of {size}, not one in memory of {wanted}");
        return Err(Failure::new(ErrorCode::DeviceInUse, message));
    }
    Ok(device)
}

fn absolute(path: &str) -> Result<String, Failure> {
    let path = std::path::absolute(path).map_err(|e| Failure::io(path, &e))?;
    Ok(path.display().to_string())
}

async fn warn_if_not_armed(ups: &str) {
    let Some(power) = Rc::new(ThisMachine).power(ups) else { return };
    let reason = match power.read().await {
        Err(cause) => cause.error().to_string(),
        // How long a save takes is not known yet.
        Ok(reading) => match judge(&reading, 0, false) {
            Ok(()) => return,
            Err(reason) => reason.to_string(),
        },
    };
    log::warning(&format!(
        "{ups}: {reason}; until that is mended, writes of the log go through to the backup device"
    ));
}

async fn make_backup(
    backup: &str,
    preparation: Preparation,
    force: bool,
    made: &mut Made,
) -> Result<String, Failure> {
    let path = resolve_new(backup)?;
    // As a pool sees it: it may be the backup device of a log device that is in use.
    if let Ok(device) = FileOpener.open(&path).await {
        if !force {
            if let Some(content) = describe_content(&device).await {
                let message = format!("{path} is not empty: it holds {content}");
                return Err(Failure::new(ErrorCode::DeviceInUse, message)
                    .with_hint("if its content is not needed, use -f"));
            }
        }
    }
    let device = open_raw(&path).await?;
    let (size_bytes, needed_bytes) = (device.geometry().size_bytes, preparation.backup_bytes());
    if size_bytes < needed_bytes {
        let (size, needed) = (format_bytes(size_bytes), format_bytes(needed_bytes));
        let message = format!("{path} has {size}; the image and its header need {needed}");
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    if !force {
        if let Some(content) = describe_content(&device).await {
            let message = format!("{path} is not empty: it holds {content}");
            return Err(Failure::new(ErrorCode::DeviceInUse, message)
                .with_hint("if its content is not needed, use -f"));
        }
    }
    made.backups.push(path.clone());
    prepare_backup(&device, &preparation).await?;
    Ok(path)
}

async fn make_alone(preparation: Preparation, made: &mut Made) -> Result<String, Failure> {
    let path = preparation.memory.clone();
    if Path::new(&path).exists() {
        let message = format!("{path} exists already");
        return Err(Failure::new(ErrorCode::DeviceInUse, message)
            .with_hint("name another memory=, or remove it if nothing needs it"));
    }
    let shown = path.clone();
    let failed = move |e: std::io::Error| Failure::io(&shown, &e);
    prepare_alone(&ThisMachine, &preparation).await.map_err(failed)?;
    made.memories.push(path.clone());
    // Persistent memory that is none is found out by opening it.
    DramDevice::open_alone(&path, Rc::new(ThisMachine)).await?;
    Ok(path)
}

async fn open_raw(path: &str) -> Result<Device, DeviceError> {
    let options = forebay_device::OpenOptions { read_only: false, exclusive: true };
    Ok(Rc::new(FileDevice::open(Path::new(path), options).await?))
}

/// Clears the header of a backup device, so that it is an ordinary device again. Returns whether it
/// was one.
pub async fn clear_header(path: &str) -> Result<bool, DeviceError> {
    let device = open_raw(path).await?;
    if kind_of(&device).await? != Some(DramKind::Backup) {
        return Ok(false);
    }
    device.write(0, IoBuf::zeroed(2 * BLOCK_LEN).freeze(), true).await?;
    Ok(true)
}

/// Opens `path` for a pool: as what it is by itself, or as the log device in memory that its header
/// names.
pub async fn open(path: &str) -> Result<Device, DeviceError> {
    let raw = match open_raw(path).await {
        Ok(raw) => raw,
        // Before Linux 6.6, tmpfs refuses O_DIRECT.
        Err(error) if error.kind == (ErrorKind::Os { errno: libc::EINVAL }) => {
            let alone = DramDevice::open_alone(path, Rc::new(ThisMachine)).await;
            return alone.map_err(|_| error);
        }
        Err(error) => return Err(error),
    };
    // A device that cannot be read is the pool's to judge.
    match kind_of(&raw).await {
        Ok(Some(DramKind::Backup)) => {
            DramDevice::open(Deadline::new(raw, BACKUP_TIMEOUT), Rc::new(ThisMachine)).await
        }
        Ok(Some(DramKind::Memory)) => {
            drop(raw);
            DramDevice::open_alone(path, Rc::new(ThisMachine)).await
        }
        Ok(None) | Err(_) => Ok(raw),
    }
}

#[cfg(test)]
mod tests;
