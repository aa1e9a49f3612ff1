//! The aim "administration beside I/O": volumes are resized, created and destroyed while requests
//! are in flight.

use forebay_sim::Rng;

use crate::scenario::{Act, Admin};
use crate::stamp::Fill;
use crate::subject::{Manage, Sync};

/// Volumes that the administrator creates beside those of the scenario.
const MORE_VOLUMES: u32 = 6;

/// The script of a client: it works at the ends of volumes, which move, and on volumes that may not
/// exist yet.
pub(super) fn draw_client(volumes: &[u64], acts: u64, rng: &mut Rng) -> Vec<Act> {
    let count_of_volumes = volumes.len() as u32;
    let (fua, more) = (*rng.pick(&[100, 500, 900]), *rng.pick(&[0, 300, 800]));
    let mut out = Vec::new();
    for _ in 0..acts {
        let volume = match rng.chance(more) {
            true => count_of_volumes + rng.below(u64::from(MORE_VOLUMES)) as u32,
            false => rng.below(volumes.len() as u64) as u32,
        };
        let sectors = volumes.get(volume as usize).copied().unwrap_or(512);
        let count = rng.between(1, 48);
        // A range past the end is cut to the volume.
        let first = match rng.below(3) {
            0 => rng.below(sectors),
            _ => sectors.saturating_sub(rng.below(sectors / 2 + 1)),
        };
        let fua = rng.chance(fua);
        out.push(match rng.below(20) {
            0..12 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            12..14 => Act::Zero { volume, first, count, fua, no_hole: false },
            14 => Act::Trim { volume, first, count, fua },
            15..17 => Act::Read { volume, first, count },
            17 => Act::Status { volume, first, count },
            18 => Act::Flush { volume },
            _ => Act::Pause { ns: 1 << rng.between(12, 22) },
        });
    }
    out
}

/// The jobs of a boot.
pub(super) fn draw_jobs(volumes: &[u64], first_boot: bool, rng: &mut Rng) -> Vec<Admin> {
    let mut jobs = Vec::new();
    let mut next = volumes.len() as u32;
    let last = next + MORE_VOLUMES;
    for _ in 0..rng.between(6, 40) {
        jobs.push(Admin::Pause { ns: 1 << rng.between(10, 21) });
        let volume = rng.below(volumes.len() as u64) as u32;
        let blocks = volumes[volume as usize] / 8;
        jobs.push(match rng.below(20) {
            0..10 => {
                let least = (blocks / 2).max(1);
                let blocks = if rng.chance(400) { blocks } else { rng.between(least, blocks) };
                Admin::Resize { volume, sectors: blocks * 8 }
            }
            // Numbers are used once, so only the first boot creates.
            10..15 if first_boot && next < last => {
                next += 1;
                Admin::Create { volume: next - 1, sectors: rng.between(8, 64) * 8 }
            }
            15..18 => {
                let volume = volumes.len() as u64 + rng.below(u64::from(MORE_VOLUMES));
                Admin::Destroy { volume: volume as u32 }
            }
            18 => {
                let sync = *rng.pick(&[Sync::Standard, Sync::Always, Sync::Standard]);
                Admin::Sync { volume, sync }
            }
            _ => Admin::Manage(Manage::Commit),
        });
    }
    jobs
}
