//! `forebay attach` and `forebay detach`.

mod ublk;

use std::path::{Path, PathBuf};

use forebay_attach::{AttachError, Attached, Connect, Driver, Identity, System, Use, Volume};
use forebay_nbd::wire::transmission_flag;
use forebay_pool::status::VolumeStatus;
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::Serialize;

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::{AttachArgs, DetachArgs, DetachTarget};
use crate::attachments::{attached, connections, failure, reconnect, remove, with_kernel};
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::log;
use crate::path_probe::probe;
use crate::pool_access::PoolAccess;
use crate::render::document;
use crate::terminal::with_waiting_line;

/// Connections, on a machine with as many processors.
const CONNECTIONS_DEFAULT: u32 = 4;
/// How long the kernel may take to show or to remove a device.
const DEVICE_TIMEOUT: Nanos = Nanos::from_secs(5);
const LOOK_INTERVAL: Nanos = Nanos::from_millis(10);

/// Attaches a volume, or connects it again, and prints its device.
pub async fn attach(args: AttachArgs, access: &PoolAccess) -> Result<Outcome, Failure> {
    let name = format!("{}/{}", args.volume.pool, args.volume.volume);
    let control = server_of(access, &args.volume.pool)?;
    let (volume, guid) = look_up(access, &args.volume.pool, &name).await?;
    let volume_id = Volume { pool_guid: guid, volume_id: volume.id };
    if volume.sync == "disabled" {
        log::warning(&format!(
            "'{name}' has sync=disabled: a server that is killed loses writes that the kernel was \
             told are done, and goes on"
        ));
    }
    let devices = attached().await;
    let device = match devices.into_iter().find(|device| device.identity.volume == volume_id) {
        Some(device) => {
            if device.read_only != args.read_only {
                return Err(attached_otherwise(&name, &device));
            }
            let what = format!("connecting {} again", device.path.display());
            match device.driver {
                Driver::Nbd => {
                    let count = device.identity.connections;
                    let again = reconnect(&control, &device, &name, count);
                    with_waiting_line(&what, false, again).await?;
                }
                Driver::Ublk => {
                    let again = ublk::take_over_if_waiting(&control, &device, &name);
                    with_waiting_line(&what, false, again).await?;
                }
            }
            device
        }
        None => {
            let making = make(&args, &control, &name, volume_id, volume.size_bytes);
            with_waiting_line(&format!("attaching '{name}'"), false, making).await?
        }
    };
    Ok(Outcome::text(match args.json {
        true => document("attach", Shown::of(&device)),
        false => format!("{}\n", device.path.display()),
    }))
}

/// Makes sure that the kernel's NBD client is loaded, as far as this process can.
async fn load_client() -> Result<(), AttachError> {
    match with_kernel(|_| Ok(())).await {
        Err(AttachError::NoClient) => {}
        other => return other,
    }
    // Where there is no modprobe, or no module, the answer of the kernel stays the same.
    let load = || std::process::Command::new("modprobe").args(["-q", "nbd"]).output();
    let _ = rt::aside(load).await;
    with_kernel(|_| Ok(())).await
}

/// The control socket of the server of `pool`.
fn server_of(access: &PoolAccess, pool: &str) -> Result<PathBuf, Failure> {
    access.names(&[pool.to_owned()])?;
    match access.server_of(pool) {
        Some(pid) => Ok(access.state().control_socket(pid)),
        None => {
            let message = format!("no server serves '{pool}', and the kernel needs one");
            Err(Failure::new(ErrorCode::PoolNotServed, message)
                .with_hint(format!("start 'forebay serve {pool}'")))
        }
    }
}

/// The volume `name`, and the guid of its pool.
async fn look_up(
    access: &PoolAccess,
    pool: &str,
    name: &str,
) -> Result<(VolumeStatus, u64), Failure> {
    let handle = access.open(pool).await?;
    let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
    let volumes = reply_as!(handle.ask(Action::Volumes).await, Reply::Volumes)?;
    let volume = volumes.into_iter().find(|volume| volume.name == name);
    let missing = || {
        Failure::new(ErrorCode::VolumeNotFound, format!("no volume named '{name}'"))
            .with_hint("'forebay volume list' shows the volumes")
    };
    Ok((volume.ok_or_else(missing)?, summary.guid))
}

/// Connections of the NBD client, or queues of a ublk device.
fn connections_of(args: &AttachArgs) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    args.connections.unwrap_or(CONNECTIONS_DEFAULT.min(processors))
}

async fn make(
    args: &AttachArgs,
    control: &Path,
    name: &str,
    volume: Volume,
    size_bytes: u64,
) -> Result<Attached, Failure> {
    if let Some(device) = ublk::make(args, control, name, volume, size_bytes).await? {
        return Ok(device);
    }
    load_client().await.map_err(failure)?;
    let count = connections_of(args);
    let opened = connections(control, name, count).await?;
    let (size_bytes, mut server_flags) = (opened[0].size_bytes, opened[0].flags);
    if args.read_only {
        server_flags |= transmission_flag::READ_ONLY;
    }
    let identity = Identity { volume, connections: count, name: name.to_owned() };
    let connect = Connect {
        identity,
        size_bytes,
        block_bytes: args.block_size,
        server_flags,
        timeout_secs: args.timeout,
        dead_timeout_secs: args.dead_timeout,
        sockets: opened.into_iter().map(|connection| connection.socket).collect(),
    };
    let index = with_kernel(move |kernel| kernel.connect(&connect)).await.map_err(failure)?;
    let shown = async {
        loop {
            let is_new = |device: &Attached| (device.driver, device.index) == (Driver::Nbd, index);
            let device = attached().await.into_iter().find(is_new);
            match device.filter(|device| device.path.exists()) {
                Some(device) => return device,
                None => rt::sleep(LOOK_INTERVAL).await,
            }
        }
    };
    if let Ok(device) = rt::timeout(DEVICE_TIMEOUT, Box::pin(shown)).await {
        return Ok(device);
    }
    with_kernel(move |kernel| kernel.disconnect(index)).await.map_err(failure)?;
    let message =
        format!("the kernel has made the device nbd{index}, and /dev/nbd{index} is missing");
    Err(Failure::new(ErrorCode::Attach, message)
        .with_hint("look whether udev or devtmpfs is at work in /dev"))
}

fn attached_otherwise(name: &str, device: &Attached) -> Failure {
    let path = device.path.display();
    let (is, other) = match device.read_only {
        true => ("read-only", "with --read-only"),
        false => ("for reading and writing", "without --read-only"),
    };
    let message = format!("'{name}' is attached already, {is}, as {path}");
    Failure::new(ErrorCode::DeviceInUse, message)
        .with_hint(format!("attach it {other}, or take it away first (forebay detach {path})"))
}

/// Takes an attached volume away.
pub async fn detach(args: DetachArgs) -> Result<Outcome, Failure> {
    let device = find(&args.volume).await?;
    if !args.force {
        refuse_used(&device).await?;
    }
    let what = format!("taking {} away", device.path.display());
    with_waiting_line(&what, false, take_away(&device, args.force)).await?;
    Ok(match args.json {
        true => Outcome::text(document("detach", Shown::of(&device))),
        false => Outcome::done(),
    })
}

async fn take_away(device: &Attached, force: bool) -> Result<(), Failure> {
    let index = device.index;
    remove(device).await?;
    // The driver of ublk has removed it when it answers.
    if force || device.driver == Driver::Ublk {
        // The kernel keeps the device, without connections, until its last user has closed it.
        return Ok(());
    }
    let gone = async {
        while rt::aside(move || System::default().is_attached(index)).await {
            rt::sleep(LOOK_INTERVAL).await;
        }
    };
    rt::timeout(DEVICE_TIMEOUT, Box::pin(gone)).await.map_err(|rt::Elapsed| {
        let message = format!(
            "{} has no connections any more, and a process has opened it meanwhile",
            device.path.display()
        );
        Failure::new(ErrorCode::DeviceInUse, message).with_hint("it goes when that process ends")
    })
}

async fn find(target: &DetachTarget) -> Result<Attached, Failure> {
    let devices = attached().await;
    let (found, what) = match target {
        DetachTarget::Volume(name) => {
            let found = devices.into_iter().find(|device| device.identity.name == *name);
            (found, format!("'{name}' is not attached"))
        }
        DetachTarget::Device(path) => {
            let real = probe(path, |path| path.canonicalize()).await;
            let real = real.ok().and_then(Result::ok).unwrap_or_else(|| path.clone());
            let found = devices.into_iter().find(|device| device.path == real);
            (found, format!("{} is no device that a volume is attached as", path.display()))
        }
    };
    let missing = || {
        Failure::new(ErrorCode::DeviceNotFound, what)
            .with_hint("'forebay volume list' shows where volumes are attached")
    };
    found.ok_or_else(missing)
}

/// Fails while the device is in use.
async fn refuse_used(device: &Attached) -> Result<(), Failure> {
    let (path, name) = (device.path.display(), &device.identity.name);
    let refusal = |why: String, hint: String| {
        let message = format!("{path} ('{name}') is in use: {why}");
        Err(Failure::new(ErrorCode::DeviceInUse, message)
            .with_hint(format!("{hint}, or use -f, which makes its users fail")))
    };
    let looked_at = device.clone();
    match rt::aside(move || System::default().use_of(&looked_at)).await {
        None => {}
        Some(found @ Use::Mounted { .. }) => {
            return refusal(found.to_string(), format!("unmount it first (umount {path})"));
        }
        Some(found) => return refusal(found.to_string(), "end that first".to_owned()),
    }
    // The kernel knows of mounts in other namespaces too: it lets one user alone have the device.
    match probe(&device.path, |path| files::open_alone(path).map(|_| ())).await {
        Ok(Err(e)) if e.raw_os_error() == Some(libc::EBUSY) => refusal(
            "the kernel has it mounted elsewhere, or in another device".to_owned(),
            "end that first".to_owned(),
        ),
        Ok(_) => Ok(()),
        Err(_) => refusal(
            "it does not answer, so whether it is used is not known".to_owned(),
            "start its server".to_owned(),
        ),
    }
}

/// A device in JSON.
#[derive(Serialize)]
struct Shown<'a> {
    volume: &'a str,
    device: PathBuf,
    size_bytes: u64,
    read_only: bool,
    connections: u32,
}

impl<'a> Shown<'a> {
    fn of(device: &'a Attached) -> Self {
        Self {
            volume: &device.identity.name,
            device: device.path.clone(),
            size_bytes: device.size_bytes,
            read_only: device.read_only,
            connections: device.identity.connections,
        }
    }
}
