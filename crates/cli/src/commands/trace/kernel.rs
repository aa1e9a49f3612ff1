//! Recording of a block device by the kernel's tracing (tracefs): its events, in the order of time,
//! a tenth of a second late, for the commands of `forebay trace` that take a live device.
//!
//! A recording has a tracing instance of its own and removes it, or the one of a killed process.
//! tracefs rather than the blktrace ioctl, because lockdown (Secure Boot) closes debugfs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_rt::sys;
use forebay_trace::{Event, KERNEL_EVENTS, KernelEvents, Names};
use forebay_units::Nanos;

use crate::failure::{ErrorCode, Failure};
use crate::files;

/// Where tracefs is mounted, mostly.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Begin of the instances' names; the rest is the process id.
const INSTANCE_PREFIX: &str = "forebay-";
/// Memory of each processor's buffer: some 60,000 events.
const BUFFER_KIB: u32 = 4096;
/// The mechanism's name in messages.
pub const MECHANISM: &str = "tracefs (events of the block layer)";

/// A block device that is being recorded.
pub struct Recorder {
    /// Closed before the instance goes: it cannot be removed while a file of it is open.
    cpus: Vec<File>,
    instance: Instance,
    events: KernelEvents,
    page: Vec<u8>,
}

/// Whether `path` is a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// A tracing instance, removed when it is dropped.
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure leaves the instance to the next recording.
        let _ = write(&self.0.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

impl Recorder {
    /// Begins to record `device`.
    pub fn start(device: &Path) -> Result<Self, Failure> {
        let (name, number) = identity(device)?;
        let tracefs = mounted()?;
        remove_stale(&tracefs);
        let path = tracefs.join("instances").join(format!("{INSTANCE_PREFIX}{}", process_id()));
        fs::create_dir(&path).map_err(|e| refused(&path, &e))?;
        let instance = Instance(path);
        let failed = |path: &Path, e: &io::Error| refused(path, e);
        let set = |file: &str, value: &str| {
            let path = instance.0.join(file);
            write(&path, value).map_err(|e| failed(&path, &e))
        };
        // The clock of `sys::boot_time`, so that both can be compared.
        set("trace_clock", "boot")?;
        set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        let mut formats: [String; 3] = Default::default();
        for ((event, _), format) in KERNEL_EVENTS.iter().zip(&mut formats) {
            let folder = format!("events/block/{event}");
            let path = instance.0.join(&folder).join("format");
            *format = read_text(&path).map_err(|e| failed(&path, &e))?;
            set(&format!("{folder}/filter"), &format!("dev == {number}"))?;
        }
        let now = sys::boot_time().0;
        let wall_zero = sys::unix_time_secs().saturating_mul(1_000_000_000).saturating_sub(now);
        let events = KernelEvents::new(&name, &formats, wall_zero)
            .map_err(|e| Failure::new(ErrorCode::Trace, e))?;
        let cpus = open_cpus(&instance.0)?;
        for (event, _) in KERNEL_EVENTS {
            set(&format!("events/block/{event}/enable"), "1")?;
        }
        Ok(Self { cpus, instance, events, page: vec![0; 64 << 10] })
    }

    /// The time of the kernel's clock, and the events before it that were not taken yet.
    pub fn take(&mut self) -> Result<(Nanos, Vec<Event>), Failure> {
        let now = sys::boot_time();
        for cpu in &mut self.cpus {
            loop {
                match cpu.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(len) => self.events.page(&self.page[..len]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(refused(&self.instance.0, &e)),
                }
            }
        }
        Ok((now, self.events.take_before(now)))
    }

    /// Names of the device and of threads.
    pub fn names(&self) -> &Names {
        self.events.names()
    }

    /// What the kernel had to drop, as a sentence.
    pub fn loss(&self) -> Option<String> {
        let pages = self.events.lost_pages();
        (pages > 0).then(|| format!("the kernel dropped events {pages} times: too many at once"))
    }
}

/// The device's name and number, as the kernel's events have them.
fn identity(device: &Path) -> Result<(String, u64), Failure> {
    let meta = fs::metadata(device).map_err(|e| Failure::io(device.display(), &e))?;
    if !meta.file_type().is_block_device() {
        let message = format!("{} is not a block device", device.display());
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let name = |folder: &Path| {
        let target = fs::canonicalize(folder).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    if folder.join("partition").exists() {
        let whole = name(&folder.join("..")).unwrap_or_else(|| "the disk".to_owned());
        let message = format!("{} is a partition", device.display());
        let hint = format!("requests are recorded for a whole disk: name /dev/{whole}");
        return Err(Failure::new(ErrorCode::DeviceUnusable, message).with_hint(hint));
    }
    let name = name(&folder).unwrap_or_else(|| format!("{major},{minor}"));
    Ok((name, u64::from(major) << 20 | u64::from(minor)))
}

fn mounted() -> Result<PathBuf, Failure> {
    let found = TRACEFS.iter().map(PathBuf::from).find(|path| path.join("instances").exists());
    found.ok_or_else(|| {
        let is_hidden = TRACEFS.iter().any(|path| {
            fs::read_dir(path).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        });
        if is_hidden {
            let message = format!("{} may be entered by root only", TRACEFS[0]);
            let failure = Failure::new(ErrorCode::PermissionDenied, message);
            return failure.with_hint("run it as root, or with CAP_DAC_OVERRIDE");
        }
        let message = format!("tracefs is not mounted at {}", TRACEFS[0]);
        Failure::new(ErrorCode::Trace, message)
            .with_hint(format!("as root: mount -t tracefs nodev {}", TRACEFS[0]))
    })
}

/// Removes instances of processes that are gone.
fn remove_stale(tracefs: &Path) {
    let Ok(entries) = fs::read_dir(tracefs.join("instances")) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(INSTANCE_PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            drop(Instance(entry.path()));
        }
    }
}

fn process_id() -> u32 {
    std::process::id()
}

fn open_cpus(instance: &Path) -> Result<Vec<File>, Failure> {
    let folder = instance.join("per_cpu");
    let entries = fs::read_dir(&folder).map_err(|e| refused(&folder, &e))?;
    let mut cpus = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| refused(&folder, &e))?.path().join("trace_pipe_raw");
        cpus.push(files::open_to_poll(&path).map_err(|e| refused(&path, &e))?);
    }
    Ok(cpus)
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    files::open_to_write(path)?.write_all(value.as_bytes())
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    files::open_to_read(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// The kernel refused a step of setting tracing up.
fn refused(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::io(path.display(), error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.with_hint(
            "tracing needs root (CAP_SYS_ADMIN), and a kernel without lockdown=confidentiality",
        ),
        io::ErrorKind::NotFound => {
            failure.with_hint("the kernel lacks CONFIG_BLK_DEV_IO_TRACE or CONFIG_EVENT_TRACING")
        }
        _ => failure,
    }
}
