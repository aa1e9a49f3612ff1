//! Variants of a device within the intervals of its assumed numbers.
//!
//! What enters: a page and the number of a variant. What leaves: the device with each assumed
//! number moved inside its interval, as a low-discrepancy sample. Sourced and fitted numbers stay,
//! and so does the geometry, to which the offered capacity is tied.

use crate::LabError;
use crate::catalogue::{Page, Trust};
use forebay_flash::DeviceSpec;
use serde_json::Value;

/// Tables of a device whose assumed numbers are varied.
const VARIED: [&str; 8] = [
    "interface",
    "media.flash.timing",
    "media.flash.controller",
    "media.flash.cache",
    "media.flash.pslc",
    "media.flash.map_memory",
    "media.dram",
    "media.disk",
];
/// Numbers in them that are powers of two, or say what protects data and not how fast it is.
const KEPT: [&str; 3] =
    ["media.flash.controller.compression", "media.dram.energy", "media.dram.backup_cycles"];

/// Paths of the numbers of `page` that are varied, in order.
#[must_use]
pub(crate) fn assumed(page: &Page) -> Vec<String> {
    let tree = explicit(page);
    let mut paths = Vec::new();
    numbers("", &tree, &mut paths);
    let inside = |path: &str, table: &str| {
        path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    paths.retain(|path| {
        let is_assumed = page.provenance_of(path).is_some_and(|p| p.mark == Trust::Assumed);
        let is_varied = VARIED.iter().any(|table| inside(path, table));
        is_assumed && is_varied && !KEPT.iter().any(|table| inside(path, table))
    });
    paths
}

/// The device of `page` with the speeds of its kind of link written out.
fn explicit(page: &Page) -> Value {
    let mut device = page.device.clone();
    let link = device.interface.resolve();
    device.interface.bandwidth_mb_s = Some(link.bandwidth_mb_s);
    device.interface.command_us = Some(link.command_us);
    device.interface.hop_us = Some(link.hop_us);
    serde_json::to_value(&device).expect("plain data")
}

fn numbers(prefix: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path =
                    if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                numbers(&path, value, out);
            }
        }
        Value::Number(number) if number.as_f64().is_some_and(|n| n != 0.0) => {
            out.push(prefix.to_owned());
        }
        _ => {}
    }
}

/// Variant `number`, from 0 on, of `count` variants of the device of `page`; `count` is prime.
///
/// # Errors
/// The variant is impossible.
pub(crate) fn variant(page: &Page, number: u32, count: u32) -> Result<DeviceSpec, LabError> {
    let paths = assumed(page);
    let mut tree = explicit(page);
    for (path, unit) in paths.iter().zip(point(paths.len(), number, count)) {
        let spread = page.provenance_of(path).map_or(0.0, |from| from.spread());
        let mut here = &mut tree;
        for name in path.split('.') {
            here = &mut here[name];
        }
        let Some(value) = here.as_f64() else { continue };
        let moved = value * (1.0 - spread + 2.0 * spread * unit);
        *here = if here.is_u64() { Value::from(moved.round() as u64) } else { Value::from(moved) };
    }
    let device: DeviceSpec = serde_json::from_value(tree).map_err(|e| LabError::Malformed {
        origin: page.id.clone(),
        detail: crate::error::one_line(e),
    })?;
    device.check()?;
    Ok(device)
}

/// Point `number` of `count` in `dimensions`: a Korobov lattice. `count` is prime, so that the
/// points divide each axis into equal steps, in another order on each.
fn point(dimensions: usize, number: u32, count: u32) -> Vec<f64> {
    let count = u64::from(count);
    let step = primitive_root(count);
    let mut place = u64::from(number) % count;
    let mut point = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        point.push((place as f64 + 0.5) / count as f64);
        place = place * step % count;
    }
    point
}

/// The least number whose powers are all numbers from 1 to below `prime`.
fn primitive_root(prime: u64) -> u64 {
    let powers = |a: u64| std::iter::successors(Some(a), move |power| Some(power * a % prime));
    let is_root = |a: &u64| powers(*a).position(|power| power == 1) == Some(prime as usize - 2);
    (2..prime).find(is_root).unwrap_or(1)
}

#[cfg(test)]
mod tests;
