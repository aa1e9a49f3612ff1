//! Attachments: volumes that the kernel of this machine has as block devices.
//!
//! What enters: volumes, servers, and what the kernel shows. What leaves: devices, and connections
//! for them. What always holds: calls that may wait for the server run on threads of their own.
//! Who calls: `attach`, `detach`, `volume`, `pool`, and the serving process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use forebay_attach::ublk::{Control, Known, Registry};
use forebay_attach::{AttachError, Attached, Driver, Kernel, System};
use forebay_nbd::Handshaken;
use forebay_rt as rt;

use crate::control::Link;
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::PoolAccess;
use crate::state::{Environment, locate};

/// The attached devices. An empty list when the kernel does not tell.
pub async fn attached() -> Vec<Attached> {
    let by_nbd = rt::aside(|| System::default().attached()).await.unwrap_or_default();
    let by_ublk = attached_by_ublk().await.into_iter().map(|(device, ..)| device);
    by_nbd.into_iter().chain(by_ublk).collect()
}

/// The devices that are attached by ublk.
pub async fn attached_by_ublk() -> Vec<Known> {
    match registry() {
        // Without the driver there is nothing to ask a thread for.
        Ok(registry) if System::default().has_ublk() => {
            rt::aside(move || registry.attached(&System::default())).await
        }
        _ => Vec::new(),
    }
}

/// Where ublk devices are kept, in the state folder of this process's environment.
pub fn registry() -> Result<Registry, Failure> {
    Ok(Registry::in_state(&locate(&Environment::current())?))
}

/// Runs `work` with the kernel's ublk driver, on a thread of its own.
pub async fn with_ublk<T: Send + 'static>(
    work: impl FnOnce(&Control) -> Result<T, AttachError> + Send + 'static,
) -> Result<T, AttachError> {
    rt::aside(move || work(&Control::open(&System::default())?)).await
}

/// Gives ublk device `index`, whose server has ended, to the process `pid`, which begins to serve
/// it with `serve`.
pub async fn take_over(
    index: u32,
    pid: u32,
    serve: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    with_ublk(move |control| control.start_recovery(index)).await.map_err(failure)?;
    serve.await?;
    with_ublk(move |control| control.end_recovery(index, pid)).await.map_err(failure)
}

/// Takes a device away from its users.
pub async fn remove(device: &Attached) -> Result<(), Failure> {
    let index = device.index;
    match device.driver {
        Driver::Nbd => with_kernel(move |kernel| kernel.disconnect(index)).await,
        Driver::Ublk => {
            let registry = registry()?;
            with_ublk(move |control| registry.remove(control, index)).await
        }
    }
    .map_err(failure)
}

/// Runs `work` with the kernel's NBD client, on a thread of its own.
pub async fn with_kernel<T: Send + 'static>(
    work: impl FnOnce(&Kernel) -> Result<T, AttachError> + Send + 'static,
) -> Result<T, AttachError> {
    rt::aside(|| work(&Kernel::open()?)).await
}

/// `count` connections to `volume` at the server with the control socket `control`, ready for the
/// kernel.
pub async fn connections(
    control: &Path,
    volume: &str,
    count: u32,
) -> Result<Vec<Handshaken>, Failure> {
    let mut all = Vec::new();
    for _ in 0..count {
        let link = Link::connect(control).await?.ok_or_else(|| {
            Failure::new(ErrorCode::ServerUnreachable, "the server has ended")
                .with_hint("start it again, and try again")
        })?;
        all.push(link.into_nbd(volume).await?);
    }
    Ok(all)
}

/// Gives `device` connections to the server with the control socket `control` in the place of dead
/// ones. The volume is called `volume` now.
pub async fn reconnect(
    control: &Path,
    device: &Attached,
    volume: &str,
    count: u32,
) -> Result<(), Failure> {
    let sockets: Vec<OwnedFd> = connections(control, volume, count)
        .await?
        .into_iter()
        .map(|connection| connection.socket)
        .collect();
    let device = device.clone();
    with_kernel(move |kernel| kernel.reconnect(&device, &sockets)).await.map_err(failure)
}

/// The devices that `name` (`POOL/VOL`, or a whole pool) is attached as.
pub async fn devices_of(access: &PoolAccess, name: &str) -> Result<Vec<Attached>, Failure> {
    let devices = attached().await;
    if devices.is_empty() {
        return Ok(devices);
    }
    let (pool, volume) = match name.split_once('/') {
        Some((pool, volume)) => (pool, Some(volume)),
        None => (name, None),
    };
    let known = access.state().known_pools()?;
    let guid = known.iter().find(|known| known.name == pool).map(|known| known.guid);
    let is_wanted = |device: &Attached| {
        let attached_as = device.identity.name.split_once('/').map(|(_, volume)| volume);
        Some(device.identity.volume.pool_guid) == guid
            && (volume.is_none() || volume == attached_as)
    };
    Ok(devices.into_iter().filter(is_wanted).collect())
}

/// Fails if a volume of the pool is attached: its data are about to be other data than the kernel
/// knows, by a rewind or by what another machine has written.
pub async fn refuse_left_behind(pool_guid: u64) -> Result<(), Failure> {
    let devices = attached().await;
    let left = devices.iter().find(|device| device.identity.volume.pool_guid == pool_guid);
    let Some(device) = left else { return Ok(()) };
    let (path, name) = (device.path.display(), &device.identity.name);
    let message =
        format!("'{name}' is still attached as {path}, which must not see older or newer data");
    Err(Failure::new(ErrorCode::PoolBusy, message)
        .with_hint(format!("unmount it and take it away first (forebay detach -f {path})")))
}

/// Takes `devices` away, whose data are gone. A device that stays is reported.
pub async fn take_away_all(devices: Vec<Attached>) {
    for device in devices {
        if let Err(failure) = remove(&device).await {
            let (name, path, line) = (&device.identity.name, device.path.display(), failure.line());
            log::warning(&format!("'{name}' is gone, and {path} is left: {line}"));
        }
    }
}

/// Fails if there are any `devices`: they would be left without data.
pub fn refuse_attached(devices: &[Attached]) -> Result<(), Failure> {
    let Some(device) = devices.first() else { return Ok(()) };
    let path = device.path.display();
    let message = format!("'{}' is attached as {path}", device.identity.name);
    Err(Failure::new(ErrorCode::PoolBusy, message)
        .with_hint(format!("take it away first (forebay detach {path}), or use -f")))
}

/// What the operator is told of a failed call of the kernel.
#[must_use]
pub fn failure(error: AttachError) -> Failure {
    let message = error.to_string();
    match error {
        AttachError::NoClient => Failure::new(ErrorCode::Attach, message)
            .with_hint("load it with 'modprobe nbd'; a kernel without it cannot attach volumes"),
        AttachError::NoUblk => Failure::new(ErrorCode::Attach, message)
            .with_hint("load it with 'modprobe ublk_drv', or use --driver nbd"),
        AttachError::NotPermitted => {
            Failure::new(ErrorCode::PermissionDenied, message).with_hint("run the command as root")
        }
        AttachError::NoNetlink(_)
        | AttachError::NoRing(_)
        | AttachError::Message(_)
        | AttachError::Refused { .. } => Failure::new(ErrorCode::Attach, message),
    }
}

/// Connections of the kernel to volumes that this process serves, by `POOL/VOL`.
#[derive(Default)]
pub struct KernelConnections(RefCell<BTreeMap<String, u32>>);

/// One connection, for as long as it lives.
pub struct KernelConnection {
    all: Rc<KernelConnections>,
    volume: String,
}

impl KernelConnections {
    /// Counts one more.
    #[must_use]
    pub fn add(self: &Rc<Self>, volume: &str) -> KernelConnection {
        *self.0.borrow_mut().entry(volume.to_owned()).or_default() += 1;
        KernelConnection { all: self.clone(), volume: volume.to_owned() }
    }

    /// How many `volume` has.
    #[must_use]
    pub fn of(&self, volume: &str) -> u32 {
        self.0.borrow().get(volume).copied().unwrap_or(0)
    }

    /// The volumes that have any.
    #[must_use]
    pub fn volumes(&self) -> Vec<String> {
        self.0.borrow().keys().cloned().collect()
    }
}

impl Drop for KernelConnection {
    fn drop(&mut self) {
        let mut all = self.all.0.borrow_mut();
        if let Some(count) = all.get_mut(&self.volume) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.volume);
            }
        }
    }
}
