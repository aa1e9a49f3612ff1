//! Flash SSD in virtual time: link, controller, write buffer, translation layer, flash array.
//!
//! A write is acknowledged when it is in the write buffer. FUA and FLUSH wait for flash unless the
//! buffer is protected or the device lies. Contents are the caller's. After a power cut the
//! translation layer continues from its newest map.

use forebay_units::Nanos;

use crate::chance::Chance;
use crate::compress::Compressor;
use crate::ftl::{Ftl, FtlConfig, WornOut};
use crate::link::{Link, ns};
use crate::model::{
    Completion, CutReport, Damage, Fate, Identity, Model, PowerOn, Request, RequestError,
    RequestKind, Status, WriteId, check_request,
};
use crate::ranges::Ranges;
use crate::spec::{
    CacheSpec, DeviceSpec, MediaKind, MediaSpec, Plp, PowerSpec, SpecError, SpecFlaw,
};
use crate::stats::Stats;

mod array;
mod die;
mod map_memory;
mod partial;
mod pending;
mod pslc;
mod streams;
mod thermal;

pub(crate) use array::Array;
use map_memory::MapMemory;
use partial::{PartialUnit, Partials};
use pending::is_needed;
use pslc::Pslc;
use thermal::Thermal;

const SECTOR: u64 = 512;

/// A flash SSD.
#[derive(Clone, Debug)]
pub struct Ssd {
    name: String,
    capacity_bytes: u64,
    unit_bytes: u64,
    slots_per_unit: u32,
    stripe_bytes: u64,
    slot_bytes: u64,
    queue_depth: u32,
    cache: CacheSpec,
    power: PowerSpec,
    command_ns: u64,
    unit_ns: u64,
    latency_ns: u64,
    flush_ns: u64,
    power_on_ns: u64,
    persist_ns: u64,
    idle_clean_blocks: u32,
    idle_after_ns: u64,
    journals_map: bool,
    link: Link,
    controller_free: u64,
    ftl: Ftl,
    array: Array,
    partials: Partials,
    compressor: Option<Compressor>,
    pslc: Option<Pslc>,
    map_memory: Option<MapMemory>,
    thermal: Option<Thermal>,
    /// The pool that takes the next stripe.
    pool: usize,
    /// The stream that the host writes to, and the pools of all streams.
    stream: usize,
    pool_of_stream: Vec<usize>,
    last_write: WriteId,
    last_write_at: u64,
    /// Bytes that a power cut ruined.
    unreadable: Ranges,
    read_modify_writes: u64,
    /// Since when power is off, and for how long it was off before.
    off_since: Option<u64>,
    off_ns: u64,
}

impl Ssd {
    /// A device fresh from secure erase.
    ///
    /// # Errors
    /// [`SpecError`] when the description is impossible or its media is not flash.
    pub fn new(spec: &DeviceSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let MediaSpec::Flash(flash) = &spec.media else {
            return Err(SpecError {
                device: spec.name.clone(),
                field: "media",
                flaw: SpecFlaw::WrongMedia { expected: MediaKind::Flash },
            });
        };
        let layout = flash.layout();
        let unit_bytes = u64::from(flash.ftl.mapping_unit_bytes);
        let array = Array::new(flash, seed);
        let ftl = Ftl::new(FtlConfig::from_spec(spec, flash), seed);
        let units = ftl.config().units;
        Ok(Self {
            name: spec.name.clone(),
            capacity_bytes: spec.offered_bytes() / unit_bytes * unit_bytes,
            unit_bytes,
            slots_per_unit: layout.slots_per_unit,
            stripe_bytes: u64::from(layout.slots_per_stripe) * u64::from(layout.slot_bytes),
            slot_bytes: u64::from(layout.slot_bytes),
            queue_depth: spec.interface.resolve().queue_depth,
            cache: flash.cache.clone(),
            power: spec.power.clone(),
            command_ns: ns(flash.controller.command_us),
            unit_ns: ns(flash.controller.unit_us),
            latency_ns: ns(flash.controller.latency_us),
            flush_ns: ns(flash.cache.flush_us),
            power_on_ns: ns(flash.controller.power_on_ms * 1e3),
            persist_ns: ns(flash.ftl.map_persist_ms * 1e3),
            idle_clean_blocks: flash.ftl.idle_clean_superblocks,
            idle_after_ns: ns(flash.ftl.idle_after_ms * 1e3),
            journals_map: flash.ftl.map_journal_units > 0,
            link: Link::new(&spec.interface, seed),
            controller_free: 0,
            ftl,
            // Half the buffer: a part waits as the whole unit that it may become.
            partials: Partials::new(array.places() / layout.slots_per_unit as usize / 2),
            array,
            compressor: flash
                .controller
                .compression
                .as_ref()
                .map(|z| Compressor::new(flash.ftl.mapping_unit_bytes, z.granule_bytes)),
            pslc: flash.pslc.as_ref().map(|pslc| Pslc::new(pslc, flash, units)),
            map_memory: flash.map_memory.as_ref().map(|map| MapMemory::new(map, flash, units)),
            thermal: flash.thermal.as_ref().map(Thermal::new),
            pool: 0,
            stream: 0,
            pool_of_stream: vec![0; flash.ftl.streams as usize],
            last_write: WriteId(0),
            last_write_at: 0,
            unreadable: Ranges::default(),
            read_modify_writes: 0,
            off_since: None,
            off_ns: 0,
        })
    }

    /// The translation layer, for its counters and for audits.
    #[must_use]
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// Writes one unit that asks for its place in the buffer at `now` and whose data is complete
    /// at `data_at`; `writes` are the pending writes that become durable with it. Returns when it
    /// has its place.
    #[inline]
    fn write_unit(
        &mut self,
        unit: u32,
        slots: u32,
        now: u64,
        data_at: u64,
        writes: &[u64],
    ) -> Result<u64, WornOut> {
        if self.pslc.is_some() {
            return self.write_pslc(unit, now, data_at, writes);
        }
        let admitted = now.max(self.array.room_at(slots));
        self.array.host_time = admitted.max(data_at);
        if !self.array.has_open_stripe() && self.pools() > 1 {
            self.pool = self.ftl.pick_pool((self.pool + 1) % self.pools());
        }
        self.array.incoming.extend_from_slice(writes);
        self.ftl.write(unit, slots, self.pool, &mut self.array)?;
        Ok(admitted)
    }

    fn pools(&self) -> usize {
        self.ftl.config().pools as usize
    }

    fn slots_for(&mut self, request: &Request<'_>, from: u64, to: u64) -> u32 {
        match &mut self.compressor {
            None => self.slots_per_unit,
            Some(compressor) => {
                let (from, to) = (from - request.offset_bytes, to - request.offset_bytes);
                compressor.granules(request.content, from as usize, to as usize)
            }
        }
    }

    /// Takes a write whose data is in the controller at `ready`. Returns when it is in the buffer.
    fn write(&mut self, request: &Request<'_>, ready: u64) -> Result<u64, WornOut> {
        let end = request.offset_bytes + request.len_bytes;
        let mut at = request.offset_bytes;
        if self.ftl.is_worn_out() {
            return Err(WornOut);
        }
        self.select_stream(usize::from(request.stream));
        let mut admitted = self.look_up(request, true, ready);
        if !self.unreadable.is_empty() {
            self.unreadable.remove(request.offset_bytes..end);
        }
        while at < end {
            let unit = at / self.unit_bytes;
            let part_end = ((unit + 1) * self.unit_bytes).min(end);
            let slots = self.slots_for(request, at, part_end);
            let sectors = ((part_end - at) / SECTOR) as u32;
            let pending = &mut self.array.pending;
            let number = pending.add(self.last_write, at / SECTOR, sectors, ready);
            let unit = unit as u32;
            let placed = if part_end - at == self.unit_bytes {
                if !self.partials.is_empty() {
                    self.join_partial(unit);
                }
                self.write_unit(unit, slots, admitted, admitted, &[number])?
            } else {
                let first = at % self.unit_bytes / SECTOR;
                self.write_part(unit, first, sectors, slots, admitted, number)?
            };
            admitted = admitted.max(placed);
            self.array.pending.accepted(number, placed);
            at = part_end;
        }
        Ok(admitted)
    }

    /// Newer data covers a whole unit: the part that waits becomes durable with the newer data.
    fn join_partial(&mut self, unit: u32) {
        if let Some(partial) = self.partials.take(unit) {
            self.array.incoming.extend_from_slice(partial.writes.as_slice());
        }
    }

    fn write_part(
        &mut self,
        unit: u32,
        first_sector: u64,
        sectors: u32,
        slots: u32,
        ready: u64,
        number: u64,
    ) -> Result<u64, WornOut> {
        let all = u128::MAX >> (128 - self.unit_bytes / SECTOR);
        let bits = (u128::MAX >> (128 - sectors)) << first_sector;
        if self.partials.add(unit, bits, slots, ready, number) == all {
            let Some(partial) = self.partials.take(unit) else { return Ok(ready) };
            return self.write_out(unit, &partial, ready);
        }
        if let Some(unit) = self.partials.leaves_after(16) {
            self.ftl.expect_later(unit);
        }
        if let Some(unit) = self.partials.leaves_after(4) {
            self.ftl.expect_soon(unit);
        }
        match self.partials.take_due(None) {
            Some((unit, partial)) => self.write_out(unit, &partial, ready),
            None => Ok(ready),
        }
    }

    /// Writes out a unit of which only a part is in the buffer. The rest is read from flash.
    fn write_out(&mut self, unit: u32, partial: &PartialUnit, now: u64) -> Result<u64, WornOut> {
        let all = u128::MAX >> (128 - self.unit_bytes / SECTOR);
        let mut ready = now;
        if partial.sectors != all {
            self.read_modify_writes += 1;
            if let Some(done) = self.read_pslc(unit, now) {
                ready = done;
            } else if let Some(slot) = self.ftl.slot_of(unit) {
                let slots = self.ftl.slots_of(unit);
                ready = self.array.host_read(slot, slots, false, now);
            }
        }
        // The buffer has the data already: its place does not wait for the read, its program does.
        self.write_unit(unit, partial.slots, now, ready, partial.writes.as_slice())
    }

    /// Puts everything in the buffer on its way to flash at `now`. Returns when it is there.
    fn drain(&mut self, now: u64) -> Result<u64, WornOut> {
        while let Some((unit, partial)) = self.partials.take_due(Some(u64::MAX)) {
            self.write_out(unit, &partial, now)?;
        }
        if self.array.has_open_stripes() {
            self.array.host_time = self.array.host_time.max(now);
            self.pad_open_stripes();
        }
        let mut done = self.array.host_done.max(now);
        if self.cache.plp == Plp::None && self.journals_map {
            done = done.max(self.array.program_map(now));
        }
        Ok(done)
    }

    /// Carries out what the device does by itself up to `now`: writes out units that have waited
    /// too long, and cleans ahead.
    fn run_background(&mut self, now: u64) -> Result<(), WornOut> {
        let waited = now.saturating_sub(self.persist_ns);
        if !self.partials.is_empty() {
            while let Some((unit, partial)) = self.partials.take_due(Some(waited)) {
                let due = partial.since + self.persist_ns;
                self.write_out(unit, &partial, due)?;
            }
        }
        if self.last_write_at <= waited && self.array.has_open_stripes() {
            self.array.host_time = self.array.host_time.max(self.last_write_at + self.persist_ns);
            self.pad_open_stripes();
        }
        self.fold_while_idle(now)?;
        self.flush_map(now);
        if self.idle_clean_blocks > 0 && now > self.last_write_at + self.idle_after_ns {
            let idle_from = self.array.all_free().max(self.last_write_at) + self.idle_after_ns;
            if idle_from < now {
                self.array.host_time = self.array.host_time.max(idle_from);
                let target = self.idle_clean_blocks;
                self.ftl.clean_ahead(target, &mut self.array, |array| array.all_free() < now);
            }
        }
        self.array.pending.prune(now);
        Ok(())
    }

    fn read(&mut self, request: &Request<'_>, ready: u64) -> (u64, Status) {
        let ready = self.look_up(request, false, ready);
        let end = request.offset_bytes + request.len_bytes;
        let units = request.offset_bytes / self.unit_bytes..end.div_ceil(self.unit_bytes);
        let (mut first, mut last) = (u64::MAX, ready);
        let status = match self.unreadable.first_in(request.offset_bytes..end) {
            None => Status::Done,
            Some(bad) => {
                Status::Unreadable { offset_bytes: bad.start, len_bytes: bad.end - bad.start }
            }
        };
        let mut before = None;
        for unit in units {
            let unit = unit as u32;
            let here = self.ftl.slot_of(unit);
            let data = match here {
                None => self.read_pslc(unit, ready).unwrap_or(ready),
                Some(slot) => {
                    let same_page = before.is_some_and(|before| self.array.same_page(before, slot));
                    self.array.host_read(slot, self.ftl.slots_of(unit), same_page, ready)
                }
            };
            before = here;
            first = first.min(data);
            last = last.max(data);
        }
        if let Some(block) = self.array.disturbed.take() {
            self.array.host_time = self.array.host_time.max(ready);
            // A device that wears out here answers so when it is written to next.
            let _ = self.ftl.refresh(block, &mut self.array);
        }
        (self.link.return_data(first.min(last), last, request.len_bytes), status)
    }

    fn trim(&mut self, request: &Request<'_>, now: u64) {
        // Only whole units can be forgotten.
        let first = request.offset_bytes.div_ceil(self.unit_bytes);
        let end = (request.offset_bytes + request.len_bytes) / self.unit_bytes;
        for unit in first..end {
            let unit = unit as u32;
            if let Some(partial) = self.partials.take(unit) {
                for &number in partial.writes.as_slice() {
                    self.array.pending.programmed(number, now);
                }
            }
            if let Some(pslc) = &mut self.pslc {
                pslc.forget(unit);
            }
            self.ftl.trim(unit);
        }
        self.unreadable.remove(first * self.unit_bytes..end.max(first) * self.unit_bytes);
    }

    fn secure_erase(&mut self, ready: u64) -> u64 {
        self.partials.clear();
        self.unreadable.clear();
        let start = self.array.all_free().max(ready);
        self.array.cut(start, start);
        self.array.pending.forget();
        if let Some(pslc) = &mut self.pslc {
            pslc.clear();
        }
        self.ftl.secure_erase(&mut self.array);
        self.array.all_free().max(start)
    }

    fn carry_out(&mut self, request: &Request<'_>, ready: u64) -> (u64, Status) {
        match self.try_carry_out(request, ready) {
            Ok((done, status)) => (done + self.latency_ns, status),
            Err(WornOut) => (ready + self.latency_ns, Status::WornOut),
        }
    }

    fn try_carry_out(
        &mut self,
        request: &Request<'_>,
        ready: u64,
    ) -> Result<(u64, Status), WornOut> {
        let done = match request.kind {
            RequestKind::Write => {
                let first_number = self.array.pending.next_number();
                let written = self.write(request, ready)?;
                self.last_write_at = written;
                if !request.fua || !is_needed(self.cache.fua, self.cache.plp) {
                    return Ok((written, Status::Done));
                }
                let done = self.drain(written)?;
                self.array.pending.durable_from(first_number, done);
                done
            }
            RequestKind::Flush if !is_needed(self.cache.flush, self.cache.plp) => {
                ready + self.flush_ns
            }
            RequestKind::Flush => {
                let done = self.drain(ready)? + self.flush_ns;
                self.array.pending.flushed(done);
                done
            }
            RequestKind::Read => return Ok(self.read(request, ready)),
            RequestKind::Trim => {
                self.trim(request, ready);
                ready
            }
            RequestKind::SecureErase => self.secure_erase(ready),
        };
        Ok((done, Status::Done))
    }

    /// Units of the stripes that were whole until a program beside them was cut short.
    fn ruin_pairs(&mut self, now: u64) -> Vec<Damage> {
        let mut damage = Vec::new();
        let slots = self.array.slots_per_stripe;
        for first_slot in self.array.neighbors_of_interrupted(now) {
            for slot in first_slot..first_slot + slots {
                if let Some(unit) = self.ftl.unit_at(slot) {
                    let offset_bytes = u64::from(unit) * self.unit_bytes;
                    self.unreadable.insert(offset_bytes..offset_bytes + self.unit_bytes);
                    damage.push(Damage {
                        offset_bytes,
                        len_bytes: self.unit_bytes,
                        write: None,
                        fate: Fate::Unreadable,
                    });
                }
            }
        }
        damage
    }
}

impl Model for Ssd {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        Identity {
            capacity_bytes: self.capacity_bytes,
            volatile_cache: self.cache.plp != Plp::Full,
            best_write_bytes: self.unit_bytes as u32,
            queue_depth: self.queue_depth,
        }
    }

    fn submit(&mut self, now: Nanos, request: &Request<'_>) -> Result<Completion, RequestError> {
        if now.0 < self.link.latest() {
            let latest = Nanos(self.link.latest());
            return Err(RequestError::TimeRanBackwards { device: self.name.clone(), now, latest });
        }
        if self.off_since.is_some() {
            return Err(RequestError::PoweredOff { device: self.name.clone() });
        }
        check_request(&self.name, self.capacity_bytes, request)?;
        // A device that wears out here answers so when it is written to next.
        let _ = self.run_background(now.0);
        self.array.horizon = now.0;
        if request.kind == RequestKind::Write {
            self.last_write.0 += 1;
        }
        let arrived = self.link.send(now.0, request);
        let units = match request.kind {
            RequestKind::Write => {
                let end = request.offset_bytes + request.len_bytes;
                end.div_ceil(self.unit_bytes) - request.offset_bytes / self.unit_bytes
            }
            _ => 0,
        };
        let command_ns = self.command_ns_at(now.0);
        let ready = self.controller_free.max(arrived) + command_ns + self.unit_ns * units;
        self.controller_free = ready;
        let (done, status) = self.carry_out(request, ready);
        let at = self.link.complete(now.0, done, request);
        Ok(Completion { at, write: self.last_write, status })
    }

    fn power_cut(&mut self, now: Nanos, chance: &mut Chance) -> CutReport {
        let now = now.0.max(self.link.latest());
        let _ = self.run_background(now);
        let mut damage = self.array.pending.cut(now, chance);
        for hit in damage.iter().filter(|hit| hit.fate == Fate::Unreadable) {
            self.unreadable.insert(hit.offset_bytes..hit.offset_bytes + hit.len_bytes);
        }
        damage.extend(self.ruin_pairs(now));
        self.partials.clear();
        if let Some(pslc) = &mut self.pslc {
            pslc.pad();
        }
        self.array.cut(now, now);
        self.link.cut(now);
        self.controller_free = now;
        self.off_since = Some(now);
        CutReport { damage, undone_from: None }
    }

    fn power_on(&mut self, now: Nanos, _chance: &mut Chance) -> PowerOn {
        let now = now.0.max(self.link.latest());
        if let Some(since) = self.off_since.take() {
            self.off_ns += now - since;
            self.link.cut(now);
            self.array.cut(now, now + self.power_on_ns);
            self.controller_free = now + self.power_on_ns;
        }
        PowerOn { ready_at: Nanos(self.controller_free.max(now)), damage: Vec::new() }
    }

    fn durable_before(&mut self, now: Nanos) -> WriteId {
        let now = now.0.max(self.link.latest());
        self.array.pending.first_unsafe(now).unwrap_or(WriteId(self.last_write.0 + 1))
    }

    fn stats(&self, now: Nanos) -> Stats {
        let mut stats = self.link.stats_at(now.0);
        let counters = self.ftl.counters();
        let one_bit = self.pslc.as_ref().map_or(0, |pslc| pslc.programmed);
        let slots = counters.host_slots + counters.moved_slots + counters.padded_slots + one_bit;
        stats.media_written_bytes =
            slots * self.slot_bytes + self.array.map_programs * self.stripe_bytes;
        stats.servers = self.array.die_count();
        let busy = self.array.busy_until(now.0);
        stats.media_read_ns = busy.read_ns;
        stats.media_write_ns = busy.program_ns;
        stats.media_erase_ns = busy.erase_ns;
        stats.read_modify_writes = self.read_modify_writes;
        stats.wear = self.ftl.wear_spread();
        let off = self.off_ns + self.off_since.map_or(0, |since| now.0.saturating_sub(since));
        stats.energy_j = energy_j(&self.power, now.0.saturating_sub(off), &stats);
        stats
    }

    fn digest(&self) -> u64 {
        let stats = self.link.stats_at(self.link.latest());
        let words = [
            self.array.all_free(),
            self.controller_free,
            self.last_write.0,
            stats.response_sum_ns as u64,
            stats.outstanding_ns as u64,
            self.array.map_programs,
        ];
        let one_bit = self.pslc.as_ref().map(|pslc| pslc.programmed);
        let words = words.into_iter().chain(one_bit);
        words.fold(self.ftl.digest(), |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Energy after `on_ns` of being switched on with the medium as busy as `stats` say, in joules.
pub(crate) fn energy_j(power: &PowerSpec, on_ns: u64, stats: &Stats) -> f64 {
    let servers = f64::from(stats.servers.max(1));
    let extra = |watts: f64, busy_ns: u128| {
        (watts - power.idle_w).max(0.0) * busy_ns as f64 / servers / 1e9
    };
    power.idle_w * on_ns as f64 / 1e9
        + extra(power.read_w, stats.media_read_ns)
        + extra(power.write_w, stats.media_write_ns)
        + extra(power.erase_w, stats.media_erase_ns)
}

#[cfg(test)]
mod tests;
