//! De-duplicated and compressed volumes, and clients whose blocks have contents in common.

use forebay_sim::Rng;

use super::aim::Aim;
use super::boot::BootPlan;
use super::nearly_all;
use crate::scenario::{Act, Admin, Boot};
use crate::stamp::Fill;
use crate::subject::{PoolSpec, SERVICES};

/// How many of a thousand clients of de-duplicated volumes write contents that others write too.
const CLIENTS_PER_MILLE: u64 = 500;
/// How many of a thousand writes of such a client do so.
const WRITES_PER_MILLE: u64 = 600;

/// Draws the volumes of the aim "sharing", and what the pool does with their blocks.
pub(super) fn draw_volumes(spec: &mut PoolSpec, is_full: bool, rng: &mut Rng) -> Vec<u64> {
    let (size, _) = rng.pick(&SERVICES);
    spec.properties.insert("dedup_index_size".to_owned(), (*size).to_owned());
    let count = rng.between(2, 3);
    let sectors = match is_full {
        // What is shared or compressed leaves room.
        true => nearly_all(spec, rng) / count / 8 * 8,
        false => rng.between(64, 512) * 8,
    };
    vec![sectors; count as usize]
}

/// Lets clients of a pool that de-duplicates write contents that others write too. Takes services
/// of sparse volumes away and gives them back, if that is the aim.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>) {
    let size = plan.spec.properties.get("dedup_index_size");
    let services = SERVICES.iter().find(|(drawn, _)| size.is_some_and(|size| size == drawn));
    let Some((_, services)) = services else { return };
    let rng = &mut plan.seed.derive("sharing").rng();
    let is_aim = plan.aim == Aim::Sharing;
    if !is_aim && services.iter().all(|(name, _)| *name != "dedup") {
        return;
    }
    for acts in &mut boot.clients {
        if !is_aim && !rng.chance(CLIENTS_PER_MILLE) {
            continue;
        }
        for act in acts {
            if let Act::Write { fill, .. } = act {
                let shares = *fill == Fill::Noise && rng.chance(WRITES_PER_MILLE);
                *fill = if shares { Fill::Shared } else { *fill };
            }
        }
    }
    if !is_aim {
        return;
    }
    for _ in 0..rng.below(4) {
        let (name, value) = *rng.pick(services);
        let value = if rng.chance(500) { "off" } else { value };
        let volume = rng.below(plan.volumes.len() as u64) as u32;
        let service = Admin::Service { volume, name: name.to_owned(), value: value.to_owned() };
        let at = rng.below(boot.admin.len() as u64 + 1) as usize;
        let pause = Admin::Pause { ns: 1 << rng.between(14, 26) };
        boot.admin.splice(at..at, [pause, service]);
    }
}

/// The script of a client: runs of blocks, which it overwrites and trims in few places.
pub(super) fn draw_client(volumes: &[u64], acts: u64, rng: &mut Rng) -> Vec<Act> {
    let (fua, span) = (*rng.pick(&[0, 100, 700]), *rng.pick(&[128, 1024, u64::MAX]));
    let most = *rng.pick(&[1, 4, 16, 64]);
    // Who writes one volume after the other writes contents again that are gone elsewhere.
    let in_turn = rng.chance(600);
    let count_of_volumes = volumes.len() as u64;
    let mut out = Vec::new();
    for number in 0..acts {
        let volume = match in_turn {
            true => number * count_of_volumes / acts,
            false => rng.below(count_of_volumes),
        } as u32;
        let sectors = volumes[volume as usize];
        let count = (rng.between(1, most) * 8).min(sectors);
        let first = rng.below((sectors.min(span).max(count) - count) / 8 + 1) * 8;
        let fua = rng.chance(fua);
        // Sometimes a part of a block, whose rest stays what it was.
        let skip = if rng.chance(100) { rng.between(1, 7) } else { 0 };
        let (first, count) = (first + skip, count - skip);
        out.push(match rng.below(20) {
            0..11 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            11 => Act::Write { volume, first, count, fua, fill: Fill::Zeros },
            12 | 13 => Act::Trim { volume, first, count, fua },
            14 => Act::Zero { volume, first, count, fua, no_hole: rng.chance(300) },
            15 | 16 => Act::Read { volume, first, count },
            17 => Act::Status { volume, first, count },
            18 => Act::Flush { volume },
            _ => Act::Pause { ns: 1 << rng.between(12, 24) },
        });
    }
    out
}
