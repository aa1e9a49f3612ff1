//! Pending writes: those that a power cut can still undo, in order of arrival.

use std::collections::VecDeque;

use crate::Chance;
use crate::link::ns;
use crate::model::{Damage, Fate, WriteId};
use crate::spec::{FlashSpec, Honesty, Plp};

const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    write: WriteId,
    /// First sector, and sectors, of the device.
    sector: u64,
    sectors: u32,
    /// When the controller has the data.
    accepted: u64,
    /// When it is on flash; `NEVER` while its stripe is open.
    programmed: u64,
    /// When it is there with its entry of the map.
    on_flash: u64,
    /// When FUA makes it durable at the latest.
    durable: u64,
}

/// All writes that are accepted and not yet durable.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    plp: Plp,
    program_ns: u64,
    persist_ns: u64,
    /// The end of the map's present step, at which its entries are on flash.
    step_end: u64,
    entries: VecDeque<Entry>,
    /// Number of `entries[0]`.
    first: u64,
    /// Entries below the first number are durable at the second, for each flush in flight.
    flushes: VecDeque<(u64, u64)>,
}

impl Pending {
    pub(super) fn new(flash: &FlashSpec) -> Self {
        Self {
            plp: flash.cache.plp,
            program_ns: ns(flash.timing.program_us),
            persist_ns: ns(flash.ftl.map_persist_ms * 1e3),
            step_end: 0,
            entries: VecDeque::new(),
            first: 0,
            flushes: VecDeque::new(),
        }
    }

    /// Notes a write of sectors that lie in one unit. Returns its number here.
    #[inline]
    pub(super) fn add(&mut self, write: WriteId, sector: u64, sectors: u32, accepted: u64) -> u64 {
        self.entries.push_back(Entry {
            write,
            sector,
            sectors,
            accepted,
            programmed: NEVER,
            on_flash: NEVER,
            durable: NEVER,
        });
        self.first + self.entries.len() as u64 - 1
    }

    #[inline]
    pub(super) fn programmed(&mut self, number: u64, done: u64) {
        let on_flash = if self.plp == Plp::None { self.persisted(done) } else { done };
        if let Some(index) = number.checked_sub(self.first) {
            let entry = &mut self.entries[index as usize];
            (entry.programmed, entry.on_flash) = (done, on_flash);
        }
    }

    /// The entry's data has its place in the buffer from `at` on.
    #[inline]
    pub(super) fn accepted(&mut self, number: u64, at: u64) {
        if let Some(index) = number.checked_sub(self.first) {
            self.entries[index as usize].accepted = at;
        }
    }

    /// Forgets all entries: what they wrote was erased.
    pub(super) fn forget(&mut self) {
        self.first += self.entries.len() as u64;
        self.entries.clear();
        self.flushes.clear();
    }

    /// The entries from `number` on are durable at `at`: their write was FUA.
    pub(super) fn durable_from(&mut self, number: u64, at: u64) {
        let skip = number.saturating_sub(self.first) as usize;
        for entry in self.entries.iter_mut().skip(skip) {
            entry.durable = at;
        }
    }

    /// The number the next entry gets.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Everything so far is durable at `at`.
    pub(super) fn flushed(&mut self, at: u64) {
        self.flushes.push_back((self.next_number(), at));
    }

    /// When an entry is safe from a cut, flushes aside.
    #[inline]
    fn safe_at(&self, entry: &Entry) -> u64 {
        if self.plp == Plp::Full {
            return entry.accepted;
        }
        entry.on_flash.min(entry.durable)
    }

    /// When the map as of `done` is on flash.
    #[inline]
    fn persisted(&mut self, done: u64) -> u64 {
        let step = self.persist_ns;
        if step == 0 {
            return done;
        }
        if done > self.step_end || done + step <= self.step_end {
            self.step_end = done.div_ceil(step) * step;
        }
        self.step_end
    }

    /// Forgets entries that are safe at `now`, as far as order allows.
    #[inline]
    pub(super) fn prune(&mut self, now: u64) {
        while let Some(&(below, at)) = self.flushes.front() {
            if at > now {
                break;
            }
            let drop = below.saturating_sub(self.first).min(self.entries.len() as u64);
            self.entries.drain(..drop as usize);
            self.first += drop;
            self.flushes.pop_front();
        }
        while let Some(entry) = self.entries.front() {
            // An open stripe still refers to its entries by number.
            if self.safe_at(entry) > now || (entry.programmed == NEVER && self.plp != Plp::Full) {
                break;
            }
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// The first write not safe at `now`, if there is one.
    pub(super) fn first_unsafe(&self, now: u64) -> Option<WriteId> {
        self.entries
            .iter()
            .enumerate()
            .find(|(index, entry)| !self.is_safe(*index, entry, now))
            .map(|(_, entry)| entry.write)
    }

    fn is_safe(&self, index: usize, entry: &Entry, now: u64) -> bool {
        let number = self.first + index as u64;
        self.safe_at(entry) <= now
            || self.flushes.iter().any(|&(below, at)| number < below && at <= now)
    }

    /// What a cut at `now` does to each entry; forgets them all.
    pub(super) fn cut(&mut self, now: u64, chance: &mut Chance) -> Vec<Damage> {
        let mut damage = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            if self.is_safe(index, entry, now) {
                continue;
            }
            let fate = if entry.accepted > now || entry.programmed == NEVER {
                Fate::Lost
            } else if entry.programmed <= now {
                Fate::RolledBack
            } else if entry.programmed - self.program_ns <= now && self.plp != Plp::Full {
                // The page is being programmed: none, some or all of it may read back.
                match chance.below(4) {
                    0 => Fate::Lost,
                    1 => Fate::Unreadable,
                    _ => match chance.below(entry.sectors) {
                        0 => Fate::Lost,
                        intact => Fate::Shorn { intact_bytes: u64::from(intact) * 512 },
                    },
                }
            } else {
                Fate::Lost
            };
            damage.push(Damage {
                offset_bytes: entry.sector * 512,
                len_bytes: u64::from(entry.sectors) * 512,
                write: Some(entry.write),
                fate,
            });
        }
        self.first += self.entries.len() as u64;
        self.entries.clear();
        self.flushes.clear();
        damage
    }
}

/// Whether a promise costs anything on this device: it is kept, and needs keeping.
pub(super) fn is_needed(promise: Honesty, plp: Plp) -> bool {
    promise == Honesty::Honored && plp != Plp::Full
}
