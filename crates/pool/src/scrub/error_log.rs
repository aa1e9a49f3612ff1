//! Blocks that no copy and no parity could give back: kept in the configuration, until a scrub has
//! seen everything again.

use std::collections::BTreeSet;

use forebay_format::config::LostConfig;
use forebay_units::{BLOCK_BYTES, Lba, VolumeId};

use crate::Pool;

/// Lost blocks that are named; more are counted.
const NAMED: usize = 1000;
/// Those of them that a listing shows.
const SHOWN: usize = 100;

/// Lost blocks by name, and how many there are beside them.
#[derive(Default)]
pub(crate) struct Lost {
    named: BTreeSet<(VolumeId, Lba)>,
    more: u64,
    /// What the running scrub has found: all there is, at its end.
    by_scrub: Option<Box<Lost>>,
}

impl Lost {
    /// As the configuration has it.
    pub fn restored(kept: &LostConfig) -> Self {
        let mut lost = Self { more: kept.more, ..Self::default() };
        for (volume, first, blocks) in &kept.runs {
            for lba in *first..first.saturating_add((*blocks).min(NAMED as u64)) {
                lost.note(VolumeId(*volume), Lba(lba));
            }
        }
        lost
    }

    /// As the configuration keeps it.
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

    /// Takes a block in, or counts it when the list is full. Whether the list has changed.
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
            // What is beyond the list is counted each time that it is met.
            self.more += 1;
        }
        true
    }

    /// A volume is gone, and what it had lost with it.
    pub fn forget(&mut self, volume: VolumeId) {
        self.named.retain(|(v, _)| *v != volume);
        if let Some(scrub) = &mut self.by_scrub {
            scrub.forget(volume);
        }
    }

    /// A scrub begins. What it does not find again is forgotten when it has seen everything.
    pub fn begin_scrub(&mut self) {
        self.by_scrub = Some(Box::default());
    }

    /// The scrub has seen everything, and has done so within one import.
    pub fn settle(&mut self) {
        if let Some(found) = self.by_scrub.take() {
            *self = *found;
        }
    }
}

impl Pool {
    pub(crate) fn note_lost_block(&self, volume: VolumeId, lba: Lba) {
        if self.health.lost.borrow_mut().note(volume, lba) {
            // On the devices with the next root, at export at the latest. (Not with one of its own:
            // a pool that can still be read must not stop because it cannot be written.)
            self.sync.config_dirty.set(true);
        }
    }

    /// Lost blocks by name (the first hundred), and how many there are.
    pub(crate) fn lost(&self) -> (Vec<String>, u64) {
        let lost = self.health.lost.borrow();
        let volumes = self.volumes.borrow();
        let name = self.name();
        let named = lost.named.iter().filter_map(|(volume, lba)| {
            let volume = volumes.get(volume)?;
            Some(format!("{name}/{}: offset {}", volume.name.borrow(), lba.0 * BLOCK_BYTES))
        });
        (named.take(SHOWN).collect(), lost.named.len() as u64 + lost.more)
    }
}
