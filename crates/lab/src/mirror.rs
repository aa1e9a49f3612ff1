//! Mirrored log devices under the same writes, until each side is worn out.

use crate::LabError;
use crate::load::{Asks, Load};
use forebay_flash::{DeviceSpec, Frontiers, Ftl, FtlConfig, MediaSpec};
use serde::{Deserialize, Serialize};

/// Two sides under the same writes until both are worn out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// One side, a flash device.
    pub left: DeviceSpec,
    /// The other; of its capacity only what the left one has is used.
    pub right: DeviceSpec,
    /// Mean cycles of a block in the model. The real number only stretches time, so a small one
    /// gives the same picture sooner.
    pub cycles: f64,
    /// Seed.
    #[serde(default)]
    pub seed: u64,
}

/// How far each side got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorOutcome {
    /// Wear at equal steps: share of the left device's life in host writes, then failed blocks in
    /// percent, left and right.
    pub wear: Vec<(f64, f64, f64)>,
    /// Host writes until worn out, in writes of the whole used span.
    pub left_passes: f64,
    /// The same for the right side.
    pub right_passes: f64,
    /// Media writes for each host write, left.
    pub left_amplification: f64,
    /// Right.
    pub right_amplification: f64,
}

/// One side: a translation layer without a clock.
struct Side {
    ftl: Ftl,
    units_per_page: u64,
    worn_at: Option<u64>,
    /// Failed blocks after each step.
    failed: Vec<f64>,
}

/// Pages of a block in the model.
const BLOCK_PAGES: u32 = 4;
/// Logical space of the model, in bytes.
const MODEL_BYTES: f64 = 192.0 * (1u64 << 20) as f64;

impl Side {
    fn new(device: &DeviceSpec, scale: f64, cycles: f64, seed: u64) -> Result<Self, LabError> {
        let (mut small, _) = crate::shrink::shrink(device, scale.round().max(1.0) as u32)?;
        let MediaSpec::Flash(flash) = &mut small.media else {
            return Err(LabError::NoFlash { device: device.name.clone() });
        };
        // Many small blocks instead of few large ones: with a few dozen the first to fail would
        // decide, as it does not on a device of thousands.
        let g = &mut flash.geometry;
        let shorter = (g.pages_per_block / BLOCK_PAGES).max(1);
        g.pages_per_block /= shorter;
        g.blocks_per_plane *= shorter;
        // What is open or in reserve keeps its share, or there would be more room to clean in.
        let open = match flash.ftl.frontiers {
            Frontiers::Apart => 2,
            Frontiers::Shared => 1,
        };
        flash.ftl.reserve_superblocks = (flash.ftl.reserve_superblocks + open) * shorter - open;
        flash.endurance.cycles_mean = cycles;
        flash.endurance.cycles_sd_fraction = flash.endurance.cycles_sd_fraction.max(0.05);
        flash.ftl.static_wear_gap = 4;
        let units_per_page = u64::from(flash.ftl.mapping_unit_bytes).max(4096) / 4096;
        let flash = flash.clone();
        let ftl = Ftl::new(FtlConfig::from_spec(&small, &flash), seed);
        Ok(Self { ftl, units_per_page, worn_at: None, failed: Vec::new() })
    }

    fn pages(&self) -> u64 {
        u64::from(self.ftl.config().units) * self.units_per_page
    }

    fn write(&mut self, page: u64, count: u64) {
        if self.worn_at.is_some() {
            return;
        }
        let unit = (page / self.units_per_page) as u32;
        let slots = self.ftl.config().slots_per_unit;
        let pool = page as usize % self.ftl.config().pools as usize;
        if self.ftl.write(unit, slots, pool, &mut ()).is_err() {
            self.worn_at = Some(count);
        }
    }

    fn failed_percent(&self) -> f64 {
        let wear = self.ftl.wear_spread();
        f64::from(wear.bad_blocks) / f64::from(wear.blocks.max(1)) * 100.0
    }
}

impl Mirror {
    /// Runs until both sides are worn out.
    pub fn run(&self) -> Result<MirrorOutcome, LabError> {
        if !(5.0..=1000.0).contains(&self.cycles) {
            return Err(LabError::field("mirror", "cycles", self.cycles, "from 5 to 1000"));
        }
        self.left.check()?;
        self.right.check()?;
        let scale = self.left.capacity_bytes as f64 / MODEL_BYTES;
        let side = |device: &DeviceSpec, salt: u64| {
            Side::new(device, scale, self.cycles, crate::hash::mix(self.seed ^ salt))
        };
        let (mut left, mut right) = (side(&self.left, 1)?, side(&self.right, 2)?);
        let pages = left.pages().min(right.pages());
        let load = Load { random_share: 1.0, ..Load::default() };
        let mut asks = Asks::new(&load, pages * 4096, self.seed)?;
        let mut count = 0u64;
        while left.worn_at.is_none() || right.worn_at.is_none() {
            for _ in 0..pages {
                let page = asks.next(0).offset_bytes / 4096;
                count += 1;
                left.write(page, count);
                right.write(page, count);
            }
            left.failed.push(left.failed_percent());
            right.failed.push(right.failed_percent());
        }
        let passes = |side: &Side| side.worn_at.unwrap_or(count) as f64 / pages as f64;
        let (left_passes, right_passes) = (passes(&left), passes(&right));
        let steps = left.failed.len();
        // At most 120 points: a chart shows no more.
        let stride = steps.div_ceil(120).max(1);
        let wear = (0..steps)
            .step_by(stride)
            .map(|i| ((i + 1) as f64 / left_passes, left.failed[i], right.failed[i]))
            .collect();
        Ok(MirrorOutcome {
            wear,
            left_passes,
            right_passes,
            left_amplification: left.ftl.write_amplification() * left.units_per_page as f64,
            right_amplification: right.ftl.write_amplification() * right.units_per_page as f64,
        })
    }
}

#[cfg(test)]
mod tests;
