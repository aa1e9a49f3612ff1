//! The aim "refusals": requests and jobs that must be refused, many of them, in a pool whose sparse
//! volumes are larger than it is.

use forebay_sim::Rng;

use super::nearly_all;
use crate::scenario::{Act, Admin, Improper, ImproperJob};
use crate::stamp::Fill;
use crate::subject::PoolSpec;

/// Draws the volumes. The first two are sparse, and each is larger than the space that the third
/// one leaves, which owns most of the pool.
pub(super) fn draw_volumes(spec: &PoolSpec, rng: &mut Rng) -> (Vec<u64>, Vec<u32>) {
    let sparse = rng.between(12, 24) << 11;
    (vec![sparse, sparse, nearly_all(spec, rng)], vec![0, 1])
}

/// The script of a client with about `acts` acts: it fills sparse volumes, and asks for what it may
/// not have.
pub(super) fn draw_client(volumes: &[u64], index: u64, acts: u64, rng: &mut Rng) -> Vec<Act> {
    const FILL_SECTORS: u64 = 512;
    let sparse = (index % 2) as u32;
    let mut out = Vec::new();
    let (refused, flushes) = (rng.between(500, 950), rng.chance(500));
    let mut at = rng.below(volumes[sparse as usize] / FILL_SECTORS) * FILL_SECTORS;
    for _ in 0..acts {
        let volume = if rng.chance(800) { sparse } else { 2 };
        let (first, count) = (rng.below(volumes[volume as usize]), rng.between(1, 16));
        if rng.chance(refused) {
            let what = *rng.pick(&[
                Improper::Write,
                Improper::Read,
                Improper::Trim,
                Improper::Zero,
                Improper::Status,
                Improper::Misaligned,
                Improper::TooLong,
                Improper::NoExport,
            ]);
            out.push(Act::Improper { volume, what, first, count });
            continue;
        }
        let fua = rng.chance(100);
        out.push(match rng.below(20) {
            0..9 => {
                at = if at + FILL_SECTORS < volumes[0] { at + FILL_SECTORS } else { 0 };
                let count = FILL_SECTORS;
                Act::Write { volume: sparse, first: at, count, fua, fill: Fill::Noise }
            }
            9..15 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            15 => Act::Trim { volume, first, count: count * 64, fua },
            16 => Act::Zero { volume, first, count, fua, no_hole: rng.chance(700) },
            17 => Act::Read { volume, first, count },
            18 if flushes => Act::Flush { volume },
            _ => Act::Pause { ns: 1 << rng.between(12, 22) },
        });
    }
    out
}

/// Jobs that must be refused, and commits between them.
pub(super) fn draw_jobs(rng: &mut Rng) -> Vec<Admin> {
    let mut jobs = Vec::new();
    for _ in 0..rng.between(4, 40) {
        jobs.push(Admin::Pause { ns: 1 << rng.between(14, 24) });
        let what = *rng.pick(&[
            ImproperJob::CreateTwice,
            ImproperJob::CreateLarge,
            ImproperJob::CreateUneven,
            ImproperJob::Grow,
            ImproperJob::DestroyNone,
        ]);
        // The third volume is not sparse.
        jobs.push(Admin::Improper { volume: 2, what });
    }
    jobs
}
