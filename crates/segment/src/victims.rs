//! Which segment to clean next.

use forebay_units::{CommitId, SegmentId};

use crate::{SegmentKind, SegmentState, SegmentTable};

/// A segment worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Victim {
    /// The segment.
    pub segment: SegmentId,
    /// Its live blocks.
    pub live: u32,
    /// Live share of its blocks.
    pub utilisation: f64,
}

/// The segment that gives the most space for the least copying: the one with the fewest live
/// blocks, the older of two alike. Greedy is optimal where every block is as likely to be
/// overwritten as any other (Yang, Misra and Rubenstein 2015); where that is not so, separation by
/// lifetime ([`crate::Classes`]) makes the segments differ, and the emptiest is still the right
/// one. Segments written since root `committed` are left out: what lives in them is not settled yet.
/// `None` when no segment would give any space.
#[must_use]
pub fn choose_victim(table: &SegmentTable, committed: CommitId) -> Option<Victim> {
    let mut best: Option<(f64, u64, Victim)> = None;
    table.for_each(|segment, info| {
        let ready = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
        if !ready || info.cleaning || info.last > committed.0 {
            return;
        }
        let blocks = table.data_blocks(segment);
        if info.live >= blocks {
            return;
        }
        let utilisation = f64::from(info.live) / f64::from(blocks);
        let key = (utilisation, info.clock);
        if best.as_ref().is_none_or(|(least, clock, _)| key < (*least, *clock)) {
            best = Some((key.0, key.1, Victim { segment, live: info.live, utilisation }));
        }
    });
    best.map(|(_, _, victim)| victim)
}
