//! Victim selection: the order in which the cleaner takes segments.

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

/// How the cleaner orders segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Greedy: the fewest live blocks first, and of two equal segments the older. This is optimal
    /// for uniform overwrites (Yang, Misra and Rubenstein 2015), and necessary when space is short.
    Emptiest,
    /// Cost-benefit under skew, at write clock `now`: age counts too, as its cube root, because a
    /// young segment continues to empty by itself. Only segments that free at least a quarter of
    /// what the emptiest frees are considered: age alone does not justify copying a full segment.
    Worthiest {
        /// The pool's write clock.
        now: u64,
    },
}

/// Segments worth cleaning, the best first.
///
/// Live blocks are counted when the list is made. No block dies until the next group is applied to
/// the map, so the order holds while one root is prepared.
pub struct Victims(BinaryHeap<Reverse<(u64, Victim)>>);

impl Victims {
    /// Selects from all segments. Left out are segments written since root `committed`, because
    /// their live blocks are not final, and segments that are full or will be empty without
    /// cleaning.
    #[must_use]
    pub fn of(table: &SegmentTable, committed: CommitId, choice: Choice) -> Self {
        // Groups may have segments of different sizes, so shares are compared.
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
        // Positive floats sort as their bits do.
        let keyed = found.into_iter().map(|(share, v)| Reverse((key(share, v.clock).to_bits(), v)));
        Self(keyed.collect())
    }

    /// The best victim that is left.
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
