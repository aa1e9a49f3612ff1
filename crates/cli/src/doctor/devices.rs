//! Findings of devices: caches, schedulers, places, sizes.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_units::format_bytes;

use super::{Finding, Grade, Kernel};

/// Seconds of writes that a log holds: a group is committed at least that often.
const LOG_SECONDS: u64 = 5;

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A side of the log.
    Log,
    /// A part of the main store.
    Data,
    /// A cache device.
    Cache,
    /// Not known: it is judged as a log device.
    Any,
}

impl Purpose {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Data => "data",
            Self::Cache => "cache",
            Self::Any => "device",
        }
    }
}

/// A device that is looked at.
#[derive(Clone, Debug)]
pub struct Examined {
    /// Its path.
    pub path: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its pool, if it is part of one.
    pub pool: Option<String>,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// Major and minor number of the block device, or of the one under the file.
    pub number: Option<(u32, u32)>,
}

impl Examined {
    /// The device at `path`.
    #[must_use]
    pub fn at(path: &str, purpose: Purpose, pool: Option<&str>, size_bytes: Option<u64>) -> Self {
        let meta = std::fs::metadata(path).ok();
        let number = meta.map(|meta| match meta.file_type().is_block_device() {
            true => meta.rdev(),
            false => meta.dev(),
        });
        Self {
            path: path.to_owned(),
            purpose,
            pool: pool.map(str::to_owned),
            size_bytes,
            number: number.map(|number| (libc::major(number), libc::minor(number))),
        }
    }

    fn subject(&self) -> String {
        format!("{} {}", self.purpose.as_str(), self.path)
    }
}

/// A whole disk, as the kernel describes it.
struct Disk {
    name: String,
    is_volatile: bool,
    takes_fua: bool,
    is_rotating: bool,
    /// The chosen scheduler, and all.
    scheduler: Option<(String, String)>,
    physical_block_bytes: u64,
}

impl Disk {
    fn find(kernel: &Kernel, (major, minor): (u32, u32)) -> Option<Self> {
        let folder = kernel.path(&format!("sys/dev/block/{major}:{minor}"));
        let folder = std::fs::canonicalize(folder).ok()?;
        let is_part = folder.join("partition").exists();
        let folder = if is_part { folder.parent()?.to_owned() } else { folder };
        let inner = Kernel::below(&folder);
        let scheduler = inner.line("queue/scheduler").and_then(|all| {
            let chosen = all.split_once('[')?.1.split_once(']')?.0.to_owned();
            Some((chosen, all))
        });
        let number = |name: &str| inner.line(name).and_then(|text| text.parse().ok());
        Some(Self {
            name: name_of(&folder),
            is_volatile: inner.line("queue/write_cache").as_deref() == Some("write back"),
            takes_fua: inner.line("queue/fua").as_deref() == Some("1"),
            is_rotating: inner.line("queue/rotational").as_deref() == Some("1"),
            scheduler,
            physical_block_bytes: number("queue/physical_block_size").unwrap_or(512),
        })
    }
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What is found of devices, each by itself and beside each other.
#[must_use]
pub fn of_devices(kernel: &Kernel, devices: &[Examined]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut disks = BTreeMap::new();
    for (at, device) in devices.iter().enumerate() {
        let subject = device.subject();
        let Some(number) = device.number else {
            let found = "it is not there";
            findings.push(Finding::of(Grade::Warning, &subject, found, "its pool lacks it"));
            continue;
        };
        let before = findings.len();
        findings.extend(of_size(kernel, device));
        if let Some(disk) = Disk::find(kernel, number) {
            findings.extend(of_disk(device, &disk));
            disks.insert(at, disk);
        }
        if findings.len() == before {
            let on = disks.get(&at).map_or(String::new(), |disk| format!(", on {}", disk.name));
            let size = device.size_bytes.map_or("in order".to_owned(), format_bytes);
            findings.push(Finding::ok(&subject, format!("{size}{on}")));
        }
    }
    findings.extend(shared(devices, &disks));
    findings
}

/// Logs that lie on the disks of their own main store.
fn shared(devices: &[Examined], disks: &BTreeMap<usize, Disk>) -> Vec<Finding> {
    let of = |purpose| {
        let known = devices.iter().enumerate().filter(move |(_, d)| d.purpose == purpose);
        known.filter_map(|(at, device)| Some((device, disks.get(&at)?)))
    };
    let mut findings = Vec::new();
    for (log, disk) in of(Purpose::Log) {
        let data = of(Purpose::Data)
            .find(|(data, other)| data.pool == log.pool && other.name == disk.name);
        if let Some((data, _)) = data {
            let found = format!("{} holds {} too", disk.name, data.path);
            let why = "durable writes wait behind what is written to the main store";
            findings.push(
                Finding::of(Grade::Warning, &log.subject(), found, why)
                    .fix("put the log on a device of its own"),
            );
        }
    }
    findings
}

fn of_size(kernel: &Kernel, device: &Examined) -> Option<Finding> {
    let (size_bytes, link_bytes) = (device.size_bytes?, fastest_link_bytes(kernel)?);
    let wanted_bytes = LOG_SECONDS * link_bytes;
    if device.purpose != Purpose::Log || size_bytes >= wanted_bytes {
        return None;
    }
    let (size, wanted) = (format_bytes(size_bytes), format_bytes(wanted_bytes));
    let found = format!("{size}; {LOG_SECONDS} s of writes over the network are {wanted}");
    let why = "a log that is full makes durable writes wait for the main store";
    Some(
        Finding::of(Grade::Advice, &device.subject(), found, why)
            .fix("use a larger log device, or several, if clients write as fast as that"),
    )
}

/// What the fastest network link carries in a second.
fn fastest_link_bytes(kernel: &Kernel) -> Option<u64> {
    let links = std::fs::read_dir(kernel.path("sys/class/net")).ok()?;
    let speed = |entry: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        // Megabits a second; virtual links have none, or -1.
        let link = Kernel::below(&entry.ok()?.path());
        link.line("speed")?.parse().ok()
    };
    links.filter_map(speed).max().map(|megabits| megabits * 1_000_000 / 8)
}

fn of_disk(device: &Examined, disk: &Disk) -> Vec<Finding> {
    let (subject, name) = (device.subject(), &disk.name);
    let is_log = matches!(device.purpose, Purpose::Log | Purpose::Any);
    let mut findings = Vec::new();
    if is_log && disk.is_volatile && !disk.takes_fua {
        findings.push(
            Finding::of(
                Grade::Warning,
                &subject,
                format!("{name} has a volatile write cache and takes no FUA"),
                "each durable write costs a flush of the whole cache",
            )
            .fix("use a device with power-loss protection; 'forebay qualify' measures it"),
        );
    }
    if is_log && disk.is_rotating {
        findings.push(
            Finding::of(
                Grade::Warning,
                &subject,
                format!("{name} is a rotating disk"),
                "each durable write waits for the platter",
            )
            .fix("put the log on flash with power-loss protection, or into memory"),
        );
    }
    if device.purpose == Purpose::Cache && disk.is_rotating {
        let found = format!("{name} is a rotating disk");
        let why = "it is no faster than what it caches";
        findings.push(
            Finding::of(Grade::Warning, &subject, found, why).fix("remove it with 'pool remove'"),
        );
    }
    if let Some((chosen, all)) = &disk.scheduler {
        if !disk.is_rotating && chosen != "none" && all.contains("none") {
            let found = format!("{name} has the scheduler {chosen}");
            let why = "it reorders what the pool has put in order, and costs processor time";
            findings.push(
                Finding::of(Grade::Advice, &subject, found, why)
                    .fix(format!("echo none > /sys/block/{name}/queue/scheduler")),
            );
        }
    }
    if disk.physical_block_bytes > forebay_units::BLOCK_BYTES {
        let block = format_bytes(disk.physical_block_bytes);
        let found = format!("{name} has physical blocks of {block}");
        let why = "the log's frames are multiples of 4K: the device reads before it writes";
        findings.push(Finding::of(Grade::Advice, &subject, found, why));
    }
    findings
}
