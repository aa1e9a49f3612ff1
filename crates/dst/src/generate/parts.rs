//! Clients of the aim "parts of blocks": they write, zero and trim ranges of sectors in one place.

use forebay_sim::Rng;

use super::clients::HotBlocks;
use crate::scenario::Act;
use crate::stamp::Fill;

/// Sectors of the range that all clients share: some blocks, so that changes meet in one of them.
const SPAN_SECTORS: u64 = 64;
/// The longest change.
const MAX_SECTORS: u64 = 28;

/// The script of a client with `acts` acts.
pub(super) fn draw_client(place: HotBlocks, acts: u64, rng: &mut Rng) -> Vec<Act> {
    let HotBlocks { volume, first } = place;
    let (fua, pause) = (*rng.pick(&[0, 200, 700]), *rng.pick(&[0, 100, 400]));
    let draw_one = |_| {
        if rng.chance(pause) {
            return Act::Pause { ns: 1 << rng.between(12, 20) };
        }
        let count = if rng.chance(700) { rng.between(1, 9) } else { rng.between(1, MAX_SECTORS) };
        let first = first + rng.below(SPAN_SECTORS - count + 1);
        let fua = rng.chance(fua);
        match rng.below(100) {
            0..40 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            40..66 => Act::Zero { volume, first, count, fua, no_hole: rng.chance(200) },
            66..84 => Act::Trim { volume, first, count, fua },
            84..92 => Act::Read { volume, first, count },
            92..94 => Act::Status { volume, first, count },
            _ => Act::Flush { volume },
        }
    };
    (0..acts).map(draw_one).collect()
}
