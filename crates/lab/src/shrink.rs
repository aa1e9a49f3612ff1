//! Scaled-down devices: a smaller device with the same behavior, quick to compute.
//!
//! Speeds, dies, channels, queue and the share of spare space stay. There are fewer blocks, then
//! shorter blocks with shorter erases. The device fills `scale` times sooner, so time is stretched
//! by `scale` on every axis that shows it.

use crate::LabError;
use forebay_flash::{DeviceSpec, Frontiers, MediaSpec};

/// Raw bytes a flash model is cut to when the caller does not say.
const AUTO_RAW_BYTES: f64 = 4.0 * (1u64 << 30) as f64;
/// Scale of media that remember nothing but their contents: a minute is simulated in a tenth of a
/// second.
const MEMORYLESS_SCALE: f64 = 600.0;
/// Superblocks that a model keeps: with fewer, write amplification falls visibly (finite size).
const MIN_SUPERBLOCKS: f64 = 1024.0;
/// Mapping units that a superblock keeps: with fewer, greedy cleaning profits visibly.
const MIN_UNITS_PER_SUPERBLOCK: f64 = 1024.0;

/// The model of `device` at 1/`wanted` (0: small enough to be quick), and the exact scale.
pub(crate) fn shrink(device: &DeviceSpec, wanted: u32) -> Result<(DeviceSpec, f64), LabError> {
    device.check()?;
    let mut small = device.clone();
    let MediaSpec::Flash(flash) = &mut small.media else {
        let scale = if wanted == 0 { MEMORYLESS_SCALE } else { f64::from(wanted) };
        return Ok((small, scale));
    };
    let raw = flash.raw_bytes() as f64;
    let wanted = if wanted == 0 { (raw / AUTO_RAW_BYTES).max(1.0) } else { f64::from(wanted) };
    if wanted <= 1.0 {
        return Ok((small, 1.0));
    }
    let g = &mut flash.geometry;
    let dies = f64::from(g.channels) * f64::from(g.dies_per_channel);
    let in_superblock =
        if flash.ftl.superblock_dies == 0 { dies } else { f64::from(flash.ftl.superblock_dies) };
    let stripe_bytes = f64::from(g.planes_per_die) * f64::from(g.page_bytes) * in_superblock;
    let units_per_page = stripe_bytes / f64::from(flash.ftl.mapping_unit_bytes);
    let open = match flash.ftl.frontiers {
        Frontiers::Apart => 2,
        Frontiers::Shared => 1,
    };
    let overhead = f64::from(flash.ftl.reserve_superblocks + open);
    let (blocks, pages) = (f64::from(g.blocks_per_plane), f64::from(g.pages_per_block));
    let by_blocks = wanted.min((blocks / MIN_SUPERBLOCKS).max(1.0));
    let fewest_pages = (MIN_UNITS_PER_SUPERBLOCK / units_per_page).clamp(1.0, pages);
    let by_pages = (wanted / by_blocks).min(pages / fewest_pages);
    g.pages_per_block = (pages / by_pages).round() as u32;
    let rest = wanted * f64::from(g.pages_per_block) / pages;
    g.blocks_per_plane = (blocks / rest).round().max(overhead + 4.0) as u32;
    flash.timing.erase_us *= f64::from(g.pages_per_block) / pages;
    // The spare space that cleaning can use must keep its share: blocks that are open or in
    // reserve weigh more in a small device, so they are left out of the comparison.
    let usable = |blocks: f64, pages: f64| (blocks - overhead) * pages;
    let share =
        usable(f64::from(g.blocks_per_plane), f64::from(g.pages_per_block)) / usable(blocks, pages);
    if flash.cache.bytes > 0 {
        flash.cache.bytes = (flash.cache.bytes as f64 * share).ceil() as u64;
    }
    if flash.ftl.idle_clean_superblocks > 0 {
        let same = f64::from(flash.ftl.idle_clean_superblocks) * f64::from(g.blocks_per_plane);
        flash.ftl.idle_clean_superblocks = (same / blocks).ceil() as u32;
    }
    if let Some(pslc) = &mut flash.pslc {
        pslc.bytes = (pslc.bytes as f64 * share) as u64;
        pslc.static_bytes = (pslc.static_bytes as f64 * share) as u64;
    }
    if let Some(map) = &mut flash.map_memory {
        // Bytes of 0 stand for all of the map.
        map.bytes = (map.bytes as f64 * share).ceil() as u64;
        map.flush_ms *= share;
    }
    if let Some(thermal) = &mut flash.thermal {
        thermal.time_s *= share;
    }
    small.capacity_bytes = (small.capacity_bytes as f64 * share) as u64 / 4096 * 4096;
    small.check()?;
    let scale = device.capacity_bytes as f64 / small.capacity_bytes as f64;
    Ok((small, scale))
}

#[cfg(test)]
mod tests;
