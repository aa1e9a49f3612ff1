//! `forebay attach` by the kernel's ublk driver.

use std::path::Path;

use forebay_attach::ublk::{DeviceState, NewDevice};
use forebay_attach::{AttachError, Attached, Identity, System, Volume};
use forebay_rt as rt;

use super::connections_of;
use crate::args::{AttachArgs, DriverChoice};
use crate::attachments::{attached_by_ublk, failure, registry, take_over, with_ublk};
use crate::control::{Action, Link, PROTOCOL_VERSION, Request};
use crate::failure::{ErrorCode, Failure};
use crate::log;

/// Makes a device, if the kernel can. `None`: the NBD client is to do it.
pub(super) async fn make(
    args: &AttachArgs,
    control: &Path,
    name: &str,
    volume: Volume,
    size_bytes: u64,
) -> Result<Option<Attached>, Failure> {
    match args.driver {
        DriverChoice::Nbd => return Ok(None),
        DriverChoice::Auto if !rt::aside(|| System::default().has_ublk()).await => return Ok(None),
        DriverChoice::Auto => {}
        DriverChoice::Ublk => load().await,
    }
    let (link, registry) = (link_to(control).await?, registry()?);
    let identity = Identity { volume, connections: connections_of(args), name: name.to_owned() };
    let new = NewDevice {
        identity: identity.clone(),
        size_bytes,
        block_bytes: args.block_size,
        read_only: args.read_only,
    };
    let index = match with_ublk(move |control| control.add(&new)).await {
        // Kernels before 6.4 have an older driver.
        Err(AttachError::Refused { .. }) if args.driver == DriverChoice::Auto => return Ok(None),
        added => added.map_err(failure)?,
    };
    let pid = link.hello.pid;
    let started = async {
        let (kept, folder) = (identity.clone(), registry.clone());
        let kept = rt::aside(move || folder.keep(index, &kept)).await;
        kept.map_err(|error| Failure::io("the state folder".to_owned(), &error))?;
        serve(&link, name, index).await?;
        with_ublk(move |control| control.start(index, pid)).await.map_err(failure)
    };
    if let Err(failure) = started.await {
        let _ = with_ublk(move |control| registry.remove(control, index)).await;
        if args.driver == DriverChoice::Auto {
            // Such as a server in a sandbox without the devices of ublk.
            log::warning(&format!("'{name}' cannot be attached by ublk: {}", failure.line()));
            return Ok(None);
        }
        return Err(failure);
    }
    let shown = attached_by_ublk().await.into_iter().map(|(device, ..)| device);
    let found = shown.into_iter().find(|device| device.index == index);
    let missing = || Failure::new(ErrorCode::Attach, format!("ublk device {index} is gone again"));
    found.ok_or_else(missing).map(Some)
}

/// Gives `device` to the server at `control`, if it has none.
pub(super) async fn take_over_if_waiting(
    control: &Path,
    device: &Attached,
    name: &str,
) -> Result<(), Failure> {
    let all = attached_by_ublk().await;
    let state = all.iter().find(|(known, ..)| known.index == device.index);
    if state.is_none_or(|(_, state, _)| *state != DeviceState::Quiesced) {
        return Ok(());
    }
    let link = link_to(control).await?;
    take_over(device.index, link.hello.pid, serve(&link, name, device.index)).await
}

/// Asks a server to perform the requests of device `index`.
async fn serve(link: &Link, name: &str, index: u32) -> Result<(), Failure> {
    let action = Action::Ublk { volume: name.to_owned(), index };
    let (version, pool, typed) = (PROTOCOL_VERSION, String::new(), String::new());
    link.ask(&Request { version, pool, typed, action }).await.map(|_| ())
}

async fn link_to(control: &Path) -> Result<Link, Failure> {
    Link::connect(control).await?.ok_or_else(|| {
        Failure::new(ErrorCode::ServerUnreachable, "the server has ended")
            .with_hint("start it again, and try again")
    })
}

/// Loads the driver, as far as this process can.
async fn load() {
    // Without it the answer of the kernel is clear enough.
    let load = || std::process::Command::new("modprobe").args(["-q", "ublk_drv"]).output();
    let _ = rt::aside(load).await;
}
