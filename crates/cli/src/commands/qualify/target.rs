//! The device under test: opened, described, and guarded against being overwritten by mistake.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, FileDevice, OpenOptions};
use forebay_lab::catalogue::Simulated;
use forebay_nbd::Client;
use forebay_pool::describe_content;
use forebay_qualify::{Conditions, Protection, Qualification, Reading, TargetKind, WriteCache};
use forebay_rt::{self as rt, sys};
use forebay_units::Nanos;

use super::counters::Counters;
use super::facts;
use super::log_file;
use super::sensors::Sensors;
use crate::args::QualifyArgs;
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::holders::refuse_used_file;
use crate::log;

/// A device under test.
pub struct Target {
    /// The device.
    pub device: Device,
    /// What is known of it.
    pub conditions: Conditions,
    /// The file that this command created for it.
    created: Option<PathBuf>,
    /// Temperature and power.
    pub sensors: RefCell<Sensors>,
    /// The drive's own counters.
    pub counters: Counters,
    /// Folders in /sys of the disks whose traffic is counted.
    pub below: Vec<PathBuf>,
}

/// How long a busy device is tried again.
const BUSY_FOR: Nanos = Nanos::from_secs(2);
/// Between two tries.
const BUSY_RETRY_INTERVAL: Nanos = Nanos::from_millis(100);

/// The key of `details` that marks a file which the command created.
const CREATED: &str = "file created for this";

/// Opens a file or block device. The kernel closes the files of a process that was killed with its
/// io_uring, which takes a while on a machine with much to do: a busy device is tried again.
pub async fn open_file(path: &Path, options: OpenOptions) -> Result<FileDevice, DeviceError> {
    let begun = rt::now();
    loop {
        match FileDevice::open(path, options).await {
            Err(error) if error.kind == ErrorKind::Busy && rt::now().since(begun) < BUSY_FOR => {
                rt::sleep(BUSY_RETRY_INTERVAL).await;
            }
            outcome => return outcome,
        }
    }
}

/// Opens what the operator named.
pub async fn open(args: &QualifyArgs) -> Result<Target, Failure> {
    if args.target.starts_with("nbd") && args.target.contains("://") {
        let client = Client::connect(&args.target).await;
        let client = client.map_err(|e| Failure::new(ErrorCode::ServerUnreachable, e))?;
        let device: Device = Rc::new(client);
        let mut conditions = conditions(args, TargetKind::Nbd, &device);
        let is_volatile = device.geometry().volatile_cache;
        conditions.write_cache =
            Some(if is_volatile { WriteCache::Volatile } else { WriteCache::Durable });
        let below = below(args, None)?;
        let disk = if let [only] = &below[..] { Some(only.clone()) } else { None };
        return Ok(Target::new(device, conditions, disk, below));
    }
    refuse_half_uri(&args.target)?;
    let path = PathBuf::from(&args.target);
    if args.resume && !path.exists() {
        return Err(log_file::file_is_gone(&log_file::path(args), &args.target));
    }
    let is_new = !path.exists();
    if is_new {
        if args.read_only || path.starts_with("/dev") {
            return Err(Failure::new(
                ErrorCode::DeviceNotFound,
                format!("{}: no such device", args.target),
            ));
        }
        if !args.plan {
            create(&path, args.size)?;
        }
    }
    if is_new && args.plan {
        return Ok(planned(args));
    }
    if !args.read_only {
        refuse_used_file(&path)?;
    }
    let options = OpenOptions { read_only: args.read_only, exclusive: !args.read_only };
    let opened = open_file(&path, options).await;
    let device: Device = Rc::new(opened.inspect_err(|_| {
        if is_new {
            remove(&path);
        }
    })?);
    let kind = if device.allocates_on_write() { TargetKind::File } else { TargetKind::BlockDevice };
    let mut conditions = conditions(args, kind, &device);
    facts::of_disk(&path, &mut conditions);
    if is_new {
        conditions.details.insert(CREATED.to_owned(), "yes".to_owned());
    }
    let below = below(args, Some(&path))?;
    let mut target = Target::new(device, conditions, facts::disk_folder(&path), below);
    target.created = is_new.then_some(path);
    Ok(target)
}

/// Refuses `nbd:HOST:PORT`, which some programs take for an address, and which would be the name of
/// a new file here.
fn refuse_half_uri(target: &str) -> Result<(), Failure> {
    let is_half = target.starts_with("nbd:") || target.starts_with("nbd+unix:");
    if !is_half || Path::new(target).exists() {
        return Ok(());
    }
    let message = format!("{target} is no URI and no file");
    Err(Failure::usage(message).with_hint("write nbd://HOST:PORT/NAME, or ./ in front of a file"))
}

/// The disks whose traffic is counted: those that the operator names, else the target's own.
fn below(args: &QualifyArgs, own: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if args.below.is_empty() {
        return Ok(own.and_then(facts::counted).into_iter().collect());
    }
    let folder = |path: &PathBuf| {
        facts::counted(path).ok_or_else(|| {
            let message = format!("{}: the kernel counts no traffic of it", path.display());
            Failure::new(ErrorCode::DeviceUnusable, message)
        })
    };
    args.below.iter().map(folder).collect()
}

/// A file that would be created, for a plan.
fn planned(args: &QualifyArgs) -> Target {
    let device: Device = Rc::new(forebay_device::MemoryDevice::new(&args.target, args.size));
    let conditions = conditions(args, TargetKind::File, &device);
    Target::new(device, conditions, None, Vec::new())
}

/// A device of the catalogue.
pub fn of_simulated(args: &QualifyArgs, simulated: Simulated) -> Target {
    let Simulated { page, device, scale } = simulated;
    let mut conditions = conditions(args, TargetKind::Simulated, &device);
    let facts = &page.facts;
    conditions.model = Some(format!("{} (model)", page.device.name));
    conditions.write_cache = Some(match device.geometry().volatile_cache {
        true => WriteCache::Volatile,
        false => WriteCache::Durable,
    });
    conditions.takes_fua = Some(true);
    conditions.scale = (scale > 1.0).then_some(scale);
    if conditions.protection.is_none() {
        conditions.protection = match facts.protected.as_str() {
            "yes" => Some(Protection::UserData),
            "map-only" => Some(Protection::MapOnly),
            "no" => Some(Protection::No),
            _ => None,
        };
        conditions.protection_source = Some("the catalogue".to_owned());
    }
    conditions.rated_bytes = conditions.rated_bytes.or(page.rated_bytes());
    let price = facts.price_usd.as_ref().map(forebay_lab::catalogue::Fact::middle);
    conditions.price_usd = conditions.price_usd.or(price);
    Target::new(device, conditions, None, Vec::new())
}

/// What is known of any device.
fn conditions(args: &QualifyArgs, kind: TargetKind, device: &Device) -> Conditions {
    let geometry = device.geometry();
    let mut details = std::collections::BTreeMap::new();
    details.insert("program".to_owned(), format!("forebay {}", env!("CARGO_PKG_VERSION")));
    if kind != TargetKind::Simulated {
        facts::of_machine(&mut details);
    }
    Conditions {
        target: args.target.clone(),
        kind,
        size_bytes: geometry.size_bytes,
        block_bytes: geometry.block_bytes,
        model: None,
        serial: None,
        firmware: None,
        write_cache: None,
        takes_fua: None,
        protection: args.plp,
        protection_source: args.plp.map(|_| "the operator".to_owned()),
        rated_bytes: args.rated_tb.map(|tb| tb * 1e12),
        price_usd: args.price,
        scale: None,
        details,
    }
}

/// Creates a file of this size whose space is reserved.
fn create(path: &Path, size_bytes: u64) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io(path.display(), &e);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free_bytes = sys::free_bytes(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    if free_bytes < size_bytes {
        let (free, size) =
            (forebay_units::format_bytes(free_bytes), forebay_units::format_bytes(size_bytes));
        let message = format!("{} has {free} free, and the file needs {size}", folder.display());
        return Err(Failure::new(ErrorCode::NoSpace, message).with_hint("--size makes it smaller"));
    }
    let file = files::create_new_private(path).map_err(failed)?;
    sys::preallocate(&file, size_bytes).map_err(|e| {
        remove(path);
        failed(e)
    })
}

fn remove(path: &Path) {
    if let Err(e) = std::fs::remove_file(path) {
        log::warning(&format!("{} cannot be removed: {e}", path.display()));
    }
}

impl Target {
    /// `disk` is the folder of its disk in /sys, whose counters and sensors are read.
    fn new(
        device: Device,
        conditions: Conditions,
        disk: Option<PathBuf>,
        below: Vec<PathBuf>,
    ) -> Self {
        let sensors = match conditions.kind {
            TargetKind::Simulated => Sensors::default(),
            _ => Sensors::find(Path::new("/sys"), disk.as_deref()),
        };
        let name = disk.as_ref().and_then(|disk| disk.file_name());
        let counters = Counters::of(name.map(|name| format!("/dev/{}", name.to_string_lossy())));
        let sensors = RefCell::new(sensors);
        Self { device, conditions, created: None, sensors, counters, below }
    }

    /// Reads the counters for the first time, and notes what there is.
    pub async fn look_at_sensors(&mut self) -> Option<Reading> {
        if self.conditions.kind == TargetKind::Simulated {
            return None;
        }
        let reading = self.counters.read(0, true).await;
        let counters = match &reading {
            Some(reading) => format!("by {}", reading.health.source),
            None => format!("none: {}", self.counters.why()),
        };
        let names = self.sensors.borrow().names();
        let sensors = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let details = &mut self.conditions.details;
        details.insert("counters".to_owned(), counters);
        details.insert("sensors".to_owned(), sensors);
        reading
    }

    /// Removes the file that was created for the qualification.
    pub fn remove_created(&self) {
        if let Some(path) = &self.created {
            remove(path);
        }
    }

    /// Takes over the file that an interrupted run of the same target created, if it did.
    pub fn adopt_created(&mut self, run: &Qualification) {
        if run.conditions.details.contains_key(CREATED) {
            self.created = Some(PathBuf::from(&run.conditions.target));
        }
    }

    /// Refuses a device that may hold something, unless the operator repeated its name.
    pub async fn may_write(&self, args: &QualifyArgs) -> Result<(), Failure> {
        let is_own = self.created.is_some() || self.conditions.kind == TargetKind::Simulated;
        if args.read_only || is_own {
            return Ok(());
        }
        may_destroy(&self.device, &args.target, args.destroy.as_deref()).await
    }
}

/// Refuses a device that may hold something, unless the operator repeated its name.
pub async fn may_destroy(
    device: &Device,
    target: &str,
    destroy: Option<&str>,
) -> Result<(), Failure> {
    match destroy {
        Some(named) if named == target => return Ok(()),
        Some(named) => {
            let message = format!("--destroy names {named}, and TARGET is {target}");
            return Err(Failure::usage(message).with_hint("both must be the same word"));
        }
        None => {}
    }
    let content = match describe_content(device).await {
        Some(content) => format!(", which holds {content}"),
        None => String::new(),
    };
    let message =
        format!("a qualification writes to {target}{content}, and destroys what is there");
    Err(Failure::usage(message)
        .with_hint(format!("--destroy {target} allows it; --read-only only reads")))
}
