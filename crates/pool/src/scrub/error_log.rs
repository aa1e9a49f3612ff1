//! The error log: blocks that no copy and no parity could repair. The configuration keeps it until
//! a scrub has read everything again.

use std::collections::BTreeSet;

use forebay_format::config::LostConfig;
use forebay_map::{DEDUP_VOLUME, PACKED_VOLUME};
use forebay_units::{BLOCK_BYTES, Lba, VolumeId};

use crate::Pool;

/// Most blocks that the log names; further ones are counted.
const NAMED: usize = 1000;
/// Most blocks that a listing shows.
const SHOWN: usize = 100;

/// Lost blocks by place, and a count of further ones.
#[derive(Default)]
pub(crate) struct Lost {
    named: BTreeSet<(VolumeId, Lba)>,
    more: u64,
    /// What the running scrub has found. It becomes the log when the scrub ends.
    by_scrub: Option<Box<Lost>>,
}

impl Lost {
    /// The log as the configuration keeps it.
    pub fn restored(kept: &LostConfig) -> Self {
        let mut lost = Self { more: kept.more, ..Self::default() };
        for (volume, first, blocks) in &kept.runs {
            for lba in *first..first.saturating_add((*blocks).min(NAMED as u64)) {
                lost.note(VolumeId(*volume), Lba(lba));
            }
        }
        lost
    }

    /// The log in the form that the configuration keeps.
    pub fn config(&self) -> LostConfig {
        let mut runs: Vec<(u32, u64, u64)> = Vec::new();
        for (volume, lba) in &self.named {
            match runs.last_mut() {
                Some((v, first, blocks)) if *v == volume.0 && *first + *blocks == lba.0 => {
                    *blocks += 1;
                }
                _ => runs.push((volume.0, lba.0, 1)),
            }
        }
        LostConfig { runs, more: self.more }
    }

    /// Adds a block, or counts it if the list is full. Returns whether the list changed.
    fn note(&mut self, volume: VolumeId, lba: Lba) -> bool {
        if let Some(scrub) = &mut self.by_scrub {
            scrub.note(volume, lba);
        }
        if self.named.contains(&(volume, lba)) {
            return false;
        }
        if self.named.len() < NAMED {
            self.named.insert((volume, lba));
        } else {
            // A block beyond the list is counted each time it is met.
            self.more += 1;
        }
        true
    }

    /// Drops the entries of a destroyed volume.
    pub fn forget(&mut self, volume: VolumeId) {
        self.named.retain(|(v, _)| *v != volume);
        if let Some(scrub) = &mut self.by_scrub {
            scrub.forget(volume);
        }
    }

    /// Called when a scrub begins. Entries that it does not find again are dropped when it
    /// completes.
    pub fn begin_scrub(&mut self) {
        self.by_scrub = Some(Box::default());
    }

    /// Called when a scrub has read everything within one import.
    pub fn finish_scrub(&mut self) {
        if let Some(found) = self.by_scrub.take() {
            *self = *found;
        }
    }
}

impl Pool {
    pub(crate) fn note_lost_block(&self, volume: VolumeId, lba: Lba) {
        if self.health.lost.borrow_mut().note(volume, lba) {
            // The next root, or the export, writes the log. It gets no root of its own: a pool that
            // can be read must not be suspended because it cannot be written.
            self.sync.config_dirty.set(true);
        }
    }

    /// Lost blocks by place (the first hundred), and their number.
    pub(crate) fn lost(&self) -> (Vec<String>, u64) {
        let lost = self.health.lost.borrow();
        let name = self.name();
        let named = lost.named.iter().filter_map(|(volume, lba)| {
            if *volume == DEDUP_VOLUME {
                return Some(format!("{name}: de-duplicated content {lba}"));
            }
            if *volume == PACKED_VOLUME {
                return Some(format!("{name}: block {lba} of compressed data"));
            }
            let volume = self.name_of(*volume)?;
            Some(format!("{name}/{volume}: offset {}", lba.0 * BLOCK_BYTES))
        });
        (named.take(SHOWN).collect(), lost.named.len() as u64 + lost.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first blocks, and how many are counted.
    fn of(lost: &Lost) -> (Vec<u64>, u64) {
        (lost.named.iter().map(|(_, lba)| lba.0).collect(), lost.more)
    }

    #[test]
    fn a_completed_scrub_leaves_what_it_has_met_known_before_or_not() {
        let mut lost = Lost::default();
        let note = |lost: &mut Lost, lba| lost.note(VolumeId(1), Lba(lba));
        assert!([1, 2, 3].into_iter().all(|lba| note(&mut lost, lba)));
        lost.begin_scrub();
        // The second is met by the scrub, the fourth by a client.
        assert!(!note(&mut lost, 2) && note(&mut lost, 4));
        assert_eq!(of(&lost), (vec![1, 2, 3, 4], 0), "until then nothing is dropped");
        lost.finish_scrub();
        assert_eq!(of(&lost), (vec![2, 4], 0));
        assert_eq!(of(&Lost::restored(&lost.config())), (vec![2, 4], 0));
        // A scrub that is given up drops nothing, and the next one begins anew.
        lost.begin_scrub();
        note(&mut lost, 2);
        lost.begin_scrub();
        note(&mut lost, 4);
        lost.finish_scrub();
        assert_eq!(of(&lost), (vec![4], 0));
    }

    #[test]
    fn the_configuration_keeps_runs_within_one_volume() {
        let mut lost = Lost::default();
        for (volume, lba) in [(1, 4), (1, 5), (1, 6), (1, 8), (2, 9)] {
            assert!(lost.note(VolumeId(volume), Lba(lba)));
        }
        let kept = lost.config();
        assert_eq!(kept.runs, [(1, 4, 3), (1, 8, 1), (2, 9, 1)]);
        assert_eq!(Lost::restored(&kept).named, lost.named);
    }

    #[test]
    fn blocks_beyond_the_list_are_counted_with_the_scrub_that_meets_them() {
        let mut lost = Lost::default();
        let note = |lost: &mut Lost, lba| lost.note(VolumeId(1), Lba(lba));
        (0..NAMED as u64 + 5).for_each(|lba| {
            note(&mut lost, lba);
        });
        assert_eq!((lost.named.len(), lost.more), (NAMED, 5));
        lost.begin_scrub();
        note(&mut lost, 7);
        lost.finish_scrub();
        assert_eq!(of(&lost), (vec![7], 0));
        lost.begin_scrub();
        note(&mut lost, 9);
        lost.forget(VolumeId(1));
        lost.finish_scrub();
        assert_eq!(of(&lost), (vec![], 0));
    }
}
