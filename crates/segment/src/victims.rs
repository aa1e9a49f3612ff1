//! Which segment to clean next.

use forebay_units::SegmentId;

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

/// The segment with the best ratio of benefit to cost (Rosenblum and Ousterhout 1992): the space
/// gained times its age, over the cost of reading it all and writing back what lives. `None` when
/// no segment would give any space.
#[must_use]
pub fn choose_victim(table: &SegmentTable, now: u64) -> Option<Victim> {
    let mut best: Option<(f64, Victim)> = None;
    table.for_each(|segment, info| {
        let ready = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
        if !ready || info.cleaning {
            return;
        }
        let blocks = table.data_blocks(segment);
        if blocks == 0 || info.live >= blocks {
            return;
        }
        let utilisation = f64::from(info.live) / f64::from(blocks);
        let age = now.saturating_sub(info.clock) as f64 + 1.0;
        let score = (1.0 - utilisation) * age / (1.0 + utilisation);
        if best.as_ref().is_none_or(|(most, _)| score > *most) {
            best = Some((score, Victim { segment, live: info.live, utilisation }));
        }
    });
    best.map(|(_, victim)| victim)
}
