//! Which segment to clean next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_units::{CommitId, SegmentId};

use crate::{SegmentKind, SegmentState, SegmentTable};

/// A segment worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Victim {
    /// Its live blocks that the group being written does not overwrite.
    pub live: u32,
    /// The pool's write clock when it was opened.
    pub clock: u64,
    /// The segment.
    pub segment: SegmentId,
}

/// Segments worth cleaning, the best first: those that give the most space for the least copying,
/// which are the ones with the fewest live blocks, the older of two alike. Greedy is optimal where
/// every block is as likely to be overwritten as any other (Yang, Misra and Rubenstein 2015); where
/// that is not so, separation by lifetime ([`crate::Classes`]) makes the segments differ, and the
/// emptiest is still the right one.
///
/// Live blocks are counted when the list is made; nothing dies until the next group is settled, so
/// that the order holds for as long as one root is being prepared.
pub struct Victims(BinaryHeap<Reverse<(u64, Victim)>>);

impl Victims {
    /// Looks at every segment. Segments written since root `committed` are left out: what lives in
    /// them is not settled yet. So are those that would give nothing, and those that will be empty
    /// without the cleaner.
    #[must_use]
    pub fn of(table: &SegmentTable, committed: CommitId) -> Self {
        let mut found = Vec::new();
        table.for_each(|segment, info| {
            let ready = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
            if !ready || info.cleaning || info.last > committed.0 {
                return;
            }
            let (blocks, live) = (table.data_blocks(segment), info.live.saturating_sub(info.dying));
            if live == 0 || live >= blocks {
                return;
            }
            // Groups may have segments of different sizes: the share counts.
            let share = (u64::from(live) << 32) / u64::from(blocks);
            found.push(Reverse((share, Victim { live, clock: info.clock, segment })));
        });
        Self(found.into())
    }

    /// The best one that is left.
    #[must_use]
    pub fn first(&self) -> Option<Victim> {
        self.0.peek().map(|Reverse((_, victim))| *victim)
    }
}

impl Iterator for Victims {
    type Item = Victim;

    fn next(&mut self) -> Option<Victim> {
        self.0.pop().map(|Reverse((_, victim))| victim)
    }
}
