//! The contents of a simulated disk: stable media, volatile cache and commands in flight.
//!
//! What enters: changes, as commands are submitted, complete and are flushed. What leaves: the
//! bytes that reads see, the unflushed writes, and images to restore. What always holds: the stable
//! media contains exactly what a power cut cannot take away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_device::{IoBytes, Operation};
use forebay_units::Nanos;

use crate::{Fate, Media, Rng, SECTOR_LEN, Seed, Unflushed};

#[derive(Clone)]
pub(crate) enum Payload {
    Data(IoBytes),
    Fill(u8),
}

/// A change to the media that is not durable yet.
#[derive(Clone)]
pub(crate) struct Change {
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
    payload: Payload,
    fua: bool,
    /// One bit for each sector that a later durable write replaced; empty while there is none.
    superseded: Vec<u64>,
}

impl Change {
    pub(crate) fn new(
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        payload: Payload,
        fua: bool,
    ) -> Self {
        Self { operation, offset_bytes, len_bytes, payload, fua, superseded: Vec::new() }
    }

    fn sectors(&self) -> u64 {
        self.len_bytes / SECTOR_LEN as u64
    }

    fn overlap(&self, offset_bytes: u64, len_bytes: u64) -> Option<(u64, u64)> {
        let from = self.offset_bytes.max(offset_bytes);
        let to = (self.offset_bytes + self.len_bytes).min(offset_bytes + len_bytes);
        (from < to).then_some((from, to))
    }

    fn supersede(&mut self, offset_bytes: u64, len_bytes: u64) {
        let Some((from, to)) = self.overlap(offset_bytes, len_bytes) else { return };
        let words = self.sectors().div_ceil(64) as usize;
        self.superseded.resize(words, 0);
        let unit = SECTOR_LEN as u64;
        for sector in (from - self.offset_bytes) / unit..(to - self.offset_bytes) / unit {
            self.superseded[(sector / 64) as usize] |= 1 << (sector % 64);
        }
    }

    fn is_superseded(&self, sector: u64) -> bool {
        self.superseded.get((sector / 64) as usize).is_some_and(|w| w >> (sector % 64) & 1 == 1)
    }

    fn apply_whole(&self, media: &mut Media) {
        if self.superseded.is_empty() {
            match &self.payload {
                Payload::Data(data) => media.write_shared(self.offset_bytes, data),
                Payload::Fill(byte) => media.fill(self.offset_bytes, self.len_bytes, *byte),
            }
        } else {
            self.apply(media, |_| true);
        }
    }

    fn apply(&self, media: &mut Media, mut keep: impl FnMut(u64) -> bool) {
        for sector in 0..self.sectors() {
            if !keep(sector) || self.is_superseded(sector) {
                continue;
            }
            let within = sector as usize * SECTOR_LEN;
            let at = self.offset_bytes + within as u64;
            match &self.payload {
                Payload::Data(data) => media.write(at, &data[within..within + SECTOR_LEN]),
                Payload::Fill(byte) => media.fill(at, SECTOR_LEN as u64, *byte),
            }
        }
    }

    fn apply_fate(&self, media: &mut Media, fate: Fate) {
        match fate {
            Fate::Kept => self.apply_whole(media),
            Fate::Lost => {}
            Fate::Prefix { sectors } => self.apply(media, |sector| sector < sectors),
            Fate::Scatter { seed } => {
                let mut rng = Seed(seed).rng();
                self.apply(media, |_| rng.chance(500));
            }
        }
    }
}

struct InFlight {
    change: Change,
    /// The machine that submitted it: [`crate::World::set_machine`].
    machine: u64,
    /// Set when the caller dropped the command: the disk completes it at this time.
    abandoned_until: Option<Nanos>,
}

/// The whole state of one disk.
pub(crate) struct DiskState {
    number: usize,
    volatile_cache: bool,
    /// What survives a power cut.
    pub(crate) stable: Media,
    /// What reads return.
    pub(crate) view: Media,
    cached: VecDeque<(u64, Change)>,
    in_flight: BTreeMap<u64, InFlight>,
    /// Changes that have had their effect, and whose callers do not know it yet.
    landed: BTreeSet<u64>,
    /// How many commands in flight are abandoned.
    abandoned: usize,
    next_id: u64,
    pub(crate) rng: Rng,
}

/// A copy of a disk's state.
#[derive(Clone)]
pub(crate) struct DiskImage {
    stable: Media,
    view: Media,
    cached: Vec<Change>,
    in_flight: Vec<Change>,
    rng: Rng,
}

impl DiskState {
    /// A disk of zeros.
    pub(crate) fn new(number: usize, size_bytes: u64, volatile_cache: bool, rng: Rng) -> Self {
        let media = Media::new(size_bytes);
        Self {
            number,
            volatile_cache,
            stable: media.clone(),
            view: media,
            cached: VecDeque::new(),
            in_flight: BTreeMap::new(),
            landed: BTreeSet::new(),
            abandoned: 0,
            next_id: 0,
            rng,
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Writes that no flush has covered: cached ones by completion, then those in flight by issue.
    pub(crate) fn unflushed(&self) -> Vec<Unflushed> {
        let describe = |change: &Change, in_flight| Unflushed {
            disk: self.number,
            operation: change.operation,
            offset_bytes: change.offset_bytes,
            len_bytes: change.len_bytes,
            in_flight,
            fua: change.fua,
        };
        let cached = self.cached.iter().map(|(_, change)| describe(change, false));
        let in_flight = self.in_flight.values().map(|write| describe(&write.change, true));
        cached.chain(in_flight).collect()
    }

    /// Ends a power cut: applies to each unflushed write the fate that `decide` draws.
    pub(crate) fn draw_crash_outcome(&mut self, decide: &mut dyn FnMut(&Unflushed) -> Fate) {
        let writes = self.unflushed();
        let cached = std::mem::take(&mut self.cached).into_iter().map(|(_, change)| change);
        let in_flight = std::mem::take(&mut self.in_flight).into_values().map(|w| w.change);
        for (write, change) in writes.iter().zip(cached.chain(in_flight)) {
            change.apply_fate(&mut self.stable, decide(write));
        }
        self.view = self.stable.clone();
        self.landed.clear();
        self.abandoned = 0;
    }

    pub(crate) fn image(&self) -> DiskImage {
        DiskImage {
            stable: self.stable.clone(),
            view: self.view.clone(),
            cached: self.cached.iter().map(|(_, change)| change.clone()).collect(),
            in_flight: self.in_flight.values().map(|write| write.change.clone()).collect(),
            rng: self.rng.clone(),
        }
    }

    pub(crate) fn restore(&mut self, image: &DiskImage) {
        self.stable = image.stable.clone();
        self.view = image.view.clone();
        self.rng = image.rng.clone();
        self.cached.clear();
        self.in_flight.clear();
        for change in &image.cached {
            self.next_id += 1;
            self.cached.push_back((self.next_id, change.clone()));
        }
        for change in &image.in_flight {
            self.begin(change.clone(), 0);
        }
        self.landed.clear();
        self.abandoned = 0;
    }

    /// Drops the cached changes: reads still return them, and no flush writes them.
    pub(crate) fn forget_cached(&mut self) {
        self.cached.clear();
    }

    /// Replaces the contents, durably.
    pub(crate) fn set_stable(&mut self, media: Media) {
        self.view = media.clone();
        self.stable = media;
        self.cached.clear();
    }

    /// Puts a change of a machine in flight and returns its id.
    pub(crate) fn begin(&mut self, change: Change, machine: u64) -> u64 {
        self.next_id += 1;
        self.in_flight.insert(self.next_id, InFlight { change, machine, abandoned_until: None });
        self.next_id
    }

    /// Ids of the changes of a machine that are in flight.
    pub(crate) fn in_flight_of(&self, machine: u64) -> Vec<u64> {
        let of_it = self.in_flight.iter().filter(|(_, write)| write.machine == machine);
        of_it.map(|(id, _)| *id).collect()
    }

    /// A change in flight has its effect; its caller hears of it later.
    pub(crate) fn land(&mut self, id: u64) {
        let Some(write) = self.in_flight.remove(&id) else { return };
        match write.abandoned_until {
            Some(_) => self.abandoned -= 1,
            None => drop(self.landed.insert(id)),
        }
        self.take_effect(write.change);
    }

    /// Completes a change in flight.
    pub(crate) fn complete(&mut self, id: u64) {
        if self.landed.remove(&id) {
            return;
        }
        let write = self.in_flight.remove(&id).expect("a change stays until it completes");
        self.take_effect(write.change);
    }

    /// Marks a change in flight whose caller dropped it: it completes at `until` all the same.
    pub(crate) fn abandon(&mut self, id: u64, until: Nanos) {
        self.landed.remove(&id);
        if let Some(write) = self.in_flight.get_mut(&id) {
            write.abandoned_until = Some(until);
            self.abandoned += 1;
        }
    }

    /// Completes the abandoned changes that are due at `now`.
    pub(crate) fn finish_abandoned(&mut self, now: Nanos) {
        if self.abandoned == 0 {
            return;
        }
        let due: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(_, write)| write.abandoned_until.is_some_and(|until| until <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.abandoned -= 1;
            self.complete(id);
        }
    }

    /// A completed change becomes visible; it is durable only with FUA or without a cache.
    fn take_effect(&mut self, change: Change) {
        change.apply_whole(&mut self.view);
        if change.fua || !self.volatile_cache {
            change.apply_whole(&mut self.stable);
            // A later flush of an older cached write must not overwrite this one.
            for (_, older) in &mut self.cached {
                older.supersede(change.offset_bytes, change.len_bytes);
            }
        } else {
            self.next_id += 1;
            self.cached.push_back((self.next_id, change));
        }
    }

    /// The id up to which a flush that is issued now covers cached changes.
    pub(crate) fn flush_covers(&self) -> u64 {
        self.next_id
    }

    /// Makes cached changes up to id `covered` durable.
    pub(crate) fn drain_cache(&mut self, covered: u64) {
        while self.cached.front().is_some_and(|(id, _)| *id <= covered) {
            let (_, change) = self.cached.pop_front().expect("the loop condition saw it");
            change.apply_whole(&mut self.stable);
        }
    }
}
