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

/// What makes a segment worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The most space for the least copying: the fewest live blocks, the older of two alike. That
    /// is optimal where every block is as likely to be overwritten as any other (Yang, Misra and
    /// Rubenstein 2015), and the only choice when space is short.
    Emptiest,
    /// Under skew, at write clock `now`: what an old segment gives stays free for longer, and a
    /// young one goes on emptying by itself, so that age counts too, as its cube root. Only
    /// segments that give a quarter of what the emptiest does, or more, are considered: age alone
    /// is no reason to copy a full one.
    Worthiest {
        /// The pool's write clock.
        now: u64,
    },
}

/// Segments worth cleaning, the best first.
///
/// Live blocks are counted when the list is made; nothing dies until the next group is settled, so
/// that the order holds for as long as one root is being prepared.
pub struct Victims(BinaryHeap<Reverse<(u64, Victim)>>);

impl Victims {
    /// Looks at every segment. Segments written since root `committed` are left out: what lives in
    /// them is not settled yet. So are those that would give nothing, and those that will be empty
    /// without the cleaner.
    #[must_use]
    pub fn of(table: &SegmentTable, committed: CommitId, choice: Choice) -> Self {
        // Groups may have segments of different sizes: shares count.
        let mut found: Vec<(f64, Victim)> = Vec::new();
        table.for_each(|segment, info| {
            let ready = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
            if !ready || info.cleaning || info.last > committed.0 {
                return;
            }
            let live = info.live.saturating_sub(info.dying);
            let blocks = match info.blocks {
                0 => table.data_blocks(segment),
                blocks => blocks,
            };
            if live == 0 || live >= blocks {
                return;
            }
            let share = f64::from(live) / f64::from(blocks);
            found.push((share, Victim { live, clock: info.clock, segment }));
        });
        let least = found.iter().map(|(share, _)| *share).fold(1.0, f64::min);
        if let Choice::Worthiest { .. } = choice {
            found.retain(|(share, _)| 1.0 - share >= (1.0 - least) / 4.0);
        }
        let key = |share: f64, clock: u64| match choice {
            Choice::Emptiest => share,
            Choice::Worthiest { now } => {
                let age = now.saturating_sub(clock) as f64 + 1.0;
                (1.0 + share) / ((1.0 - share) * age.cbrt())
            }
        };
        // Keys are positive: their bits sort as they do.
        let keyed = found.into_iter().map(|(share, v)| Reverse((key(share, v.clock).to_bits(), v)));
        Self(keyed.collect())
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
