//! A device of the catalogue as a block device in virtual time.

use forebay_device::Device;
use forebay_flash::{DeviceSpec, Model};
use forebay_sim::FlashDisk;

use super::{Page, load};
use crate::LabError;
use crate::shrink::shrink;

/// A device of the catalogue, at work.
pub struct Simulated {
    /// Its page.
    pub page: Page,
    /// The device, new and empty.
    pub device: Device,
    /// How many times smaller the model is than the device. Its speeds are those of the device; it
    /// fills so many times sooner.
    pub scale: f64,
}

/// The device called `name` (or of the page in that file) at 1/`scale` of its size; 0: small enough
/// to be quick.
///
/// # Errors
/// There is no such device, or its page is malformed.
pub fn simulated(name: &str, scale: u32, seed: u64) -> Result<Simulated, LabError> {
    let page = load(name)?;
    let (spec, scale) = match scale {
        // Media without flash are quick at their full size.
        0 if !matches!(page.device.media, forebay_flash::MediaSpec::Flash(_)) => {
            (page.device.clone(), 1.0)
        }
        scale => shrink(&page.device, scale)?,
    };
    let device: Device = FlashDisk::new(&page.device.name, &spec, seed)?;
    Ok(Simulated { page, device, scale })
}

/// The model of `device` at 1/`scale` of its size (0: small enough to be quick), new and empty, and
/// its exact scale. It is the one that tasks of the same scale and seed run.
///
/// # Errors
/// The description is impossible.
pub fn model(
    device: &DeviceSpec,
    scale: u32,
    seed: u64,
) -> Result<(Box<dyn Model>, f64), LabError> {
    let (small, scale) = shrink(device, scale)?;
    Ok((forebay_flash::build(&small, seed)?, scale))
}
