//! Attached devices of the volumes that are served: each second they get back the connections that
//! they lack, and the sizes of their volumes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_attach::ublk::DeviceState;
use forebay_attach::{Attached, System, Volume};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::attachments::{attached_by_ublk, failure, reconnect, take_over, with_kernel, with_ublk};
use crate::failure::Failure;
use crate::log;
use crate::pools::PoolSet;
use crate::signals::Stop;

/// Between two looks at the kernel's devices.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(1);
/// Between two attempts at a device that cannot be helped.
const RETRY_INTERVAL: Nanos = Nanos::from_secs(30);
/// Attempts to take over a ublk device, one a second, until a failure is reported.
const UBLK_ATTEMPTS: u32 = 5;

/// What the server does for attached devices.
pub(super) struct Keeper {
    set: Rc<PoolSet>,
    control: PathBuf,
    stop: Rc<Stop>,
    /// When to try again to help a device that could not be helped.
    failed: BTreeMap<(u32, Volume), Nanos>,
    /// How often it was in vain to take over ublk devices.
    failed_ublk: BTreeMap<u32, u32>,
    /// Sizes that ublk devices could not be given.
    refused_sizes: BTreeMap<u32, u64>,
}

/// What a device lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Connections(u32),
    Size(u64),
}

impl Keeper {
    /// A keeper of the devices of the volumes of `set`. `control` is the control socket of this
    /// process, and `stop` its end.
    pub(super) fn new(set: Rc<PoolSet>, control: PathBuf, stop: Rc<Stop>) -> Self {
        let (failed, failed_ublk, refused_sizes) = Default::default();
        Self { set, control, stop, failed, failed_ublk, refused_sizes }
    }

    /// Runs until the server ends.
    pub(super) async fn run(mut self) {
        while !self.stop.is_asked() {
            self.look_after_ublk().await;
            if System::default().has_client() {
                let devices = rt::aside(|| System::default().attached()).await.unwrap_or_default();
                self.failed.retain(|(index, volume), _| {
                    devices.iter().any(|d| d.index == *index && d.identity.volume == *volume)
                });
                for device in &devices {
                    self.look_after(device).await;
                }
            }
            self.stop.unless_asked(rt::sleep(LOOK_INTERVAL)).await;
        }
    }

    /// Takes over the ublk devices of volumes that are served here: those whose server has ended,
    /// and those that this process serves and whose volume has come back.
    async fn look_after_ublk(&mut self) {
        self.set.ublk().forget_gone();
        for (device, state, _) in attached_by_ublk().await {
            let Some((name, bytes)) = self.set.volume_of(device.identity.volume) else { continue };
            let (index, path) = (device.index, device.path.display());
            let is_waiting = state == DeviceState::Quiesced;
            if !is_waiting && !self.set.ublk().lacks_volume(index) {
                self.resize_ublk(&device, &name, bytes).await;
                continue;
            }
            let serve = self.set.ublk().serve(&*self.set, &name, index);
            let served = match is_waiting {
                true => take_over(index, std::process::id(), serve).await,
                false => serve.await,
            };
            match served {
                Ok(()) => {
                    self.failed_ublk.remove(&index);
                    log::notice(&format!("{name}: {path} is served here now"));
                }
                Err(_) if self.stop.is_asked() => {}
                Err(failure) => {
                    // The last server may be on its way out.
                    let times = self.failed_ublk.entry(index).or_default();
                    *times += 1;
                    if *times == UBLK_ATTEMPTS {
                        let line = failure.line();
                        log::warning(&format!("{name}: {path} cannot be served: {line}"));
                    }
                }
            }
        }
    }

    /// Gives a ublk device the size of its volume, if the kernel can.
    async fn resize_ublk(&mut self, device: &Attached, name: &str, bytes: u64) {
        let (index, path) = (device.index, device.path.display());
        if device.size_bytes == bytes || self.refused_sizes.get(&index) == Some(&bytes) {
            return;
        }
        match with_ublk(move |control| control.resize(index, bytes)).await {
            Ok(()) => log::notice(&format!("{name}: {path} has {bytes} bytes now")),
            Err(error) => {
                self.refused_sizes.insert(index, bytes);
                log::warning(&format!(
                    "{name}: {path} keeps its size until it is attached again (Linux 6.16 and \
                     newer can change it): {error}"
                ));
            }
        }
    }

    async fn look_after(&mut self, device: &Attached) {
        let key = (device.index, device.identity.volume);
        let Some((name, size_bytes)) = self.set.volume_of(device.identity.volume) else { return };
        let live = self.set.kernel_connections().of(&name);
        let Some(lack) = lack_of(device, live, size_bytes) else { return };
        if self.failed.get(&key).is_some_and(|again| rt::now() < *again) {
            return;
        }
        let path = device.path.display();
        match self.mend(device, &name, lack).await {
            Ok(()) => {
                self.failed.remove(&key);
                log::notice(&match lack {
                    Lack::Connections(count) => {
                        format!("{name}: {path} has {count} new connections")
                    }
                    Lack::Size(bytes) => format!("{name}: {path} has {bytes} bytes now"),
                });
            }
            Err(_) if self.stop.is_asked() => {}
            Err(failure) => {
                let is_first = self.failed.insert(key, rt::now() + RETRY_INTERVAL).is_none();
                if is_first {
                    let line = failure.line();
                    log::warning(&format!("{name}: {path} cannot be served: {line}"));
                }
            }
        }
    }

    async fn mend(&self, device: &Attached, name: &str, lack: Lack) -> Result<(), Failure> {
        match lack {
            Lack::Connections(count) => reconnect(&self.control, device, name, count).await,
            Lack::Size(bytes) => {
                let device = device.clone();
                with_kernel(move |kernel| kernel.resize(&device, bytes)).await.map_err(failure)
            }
        }
    }
}

/// What `device` lacks, when it has `live` connections and its volume `size_bytes` bytes. Without a
/// connection the kernel would not come to an end of a change of the size.
fn lack_of(device: &Attached, live: u32, size_bytes: u64) -> Option<Lack> {
    let missing = device.identity.connections.saturating_sub(live);
    if missing > 0 {
        return Some(Lack::Connections(missing));
    }
    (device.size_bytes != size_bytes).then_some(Lack::Size(size_bytes))
}

#[cfg(test)]
mod tests;
