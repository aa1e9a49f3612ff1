//! Fronts of the kernel's ublk devices in a serving process.
//!
//! What enters: numbers of devices, and the volumes that they are. What always holds: a device that
//! is here has one front, whose volume goes when its owner takes it away. Who calls: `pools` for
//! `forebay attach`, and the keeper of attached devices.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_attach::System;
use forebay_attach::ublk::{CharacterDevice, Front};
use forebay_nbd::{Exports, Peer};
use forebay_rt as rt;

use crate::attachments::failure;
use crate::failure::{ErrorCode, Failure};

/// The fronts by the numbers of their devices.
#[derive(Default)]
pub struct UblkFronts(RefCell<BTreeMap<u32, Rc<Front>>>);

impl UblkFronts {
    /// Performs the requests of device `index` on `volume` of `exports` from now on.
    pub async fn serve(
        &self,
        exports: &dyn Exports,
        volume: &str,
        index: u32,
    ) -> Result<(), Failure> {
        let peer = Peer { is_kernel: true, ..Peer::default() };
        let opened = exports.open(volume, &peer).map_err(|_| {
            Failure::new(ErrorCode::VolumeNotFound, format!("no volume named '{volume}' is served"))
        })?;
        let (device, hold) = (opened.device, Box::new(opened.hold));
        let front = match self.living(index) {
            Some(front) => {
                front.adopt(device, hold);
                front
            }
            None => {
                let open = move || CharacterDevice::open(&System::default(), index);
                let opened = rt::aside(open).await.map_err(failure)?;
                let failed = |error| Failure::io(format!("/dev/ublkc{index}"), &error);
                let front = Front::serve(opened, device, hold).map_err(failed)?;
                self.0.borrow_mut().insert(index, front.clone());
                front
            }
        };
        if let Some(revocation) = opened.revocation {
            // The task lives as long as the volume is open, and must not keep the device.
            let front = Rc::downgrade(&front);
            rt::spawn(async move {
                revocation.revoked().await;
                if let Some(front) = front.upgrade() {
                    front.let_go().await;
                }
            });
        }
        Ok(())
    }

    /// Closes what is left of devices that are gone: until then the kernel keeps their numbers.
    pub fn forget_gone(&self) {
        self.0.borrow_mut().retain(|_, front| front.is_alive());
    }

    fn living(&self, index: u32) -> Option<Rc<Front>> {
        self.forget_gone();
        self.0.borrow().get(&index).cloned()
    }

    /// Whether device `index` is here without a volume.
    pub fn lacks_volume(&self, index: u32) -> bool {
        self.living(index).is_some_and(|front| !front.has_volume())
    }

    /// Begins no request any more. Those under way are answered.
    pub async fn end(&self) {
        let all: Vec<Rc<Front>> = self.0.take().into_values().collect();
        rt::join_all(all.into_iter().map(|front| async move { front.end().await })).await;
    }
}
