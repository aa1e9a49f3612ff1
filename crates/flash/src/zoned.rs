//! A zoned SSD (NVMe ZNS) in virtual time: no translation layer, no cleaning.
//!
//! A zone is one superblock. It is written in order, from its start, and reset whole. Zones with
//! data that are not full are *active*; those that take writes are *open*. Link, controller, write
//! buffer and dies are those of [`crate::Ssd`].

use forebay_units::Nanos;

use crate::chance::Chance;
use crate::ftl::{Media, Origin, WearSpread};
use crate::link::{Link, ns};
use crate::model::{
    Completion, CutReport, Identity, Model, PowerOn, Request, RequestError, RequestKind, Status,
    WriteId, check_request,
};
use crate::spec::{DeviceSpec, MediaKind, MediaSpec, PowerSpec, SpecError, SpecFlaw};
use crate::ssd::{Array, energy_j};
use crate::stats::Stats;

/// What a zone takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Nothing is written.
    Empty,
    /// Partly written, and open.
    Open,
    /// Partly written. The next write opens it again.
    Closed,
    /// It takes no write before it is reset.
    Full,
    /// Worn out.
    Offline,
}

/// A zone command that breaks the rules of zones. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneRefusal {
    /// The write does not begin at the write pointer, which is here.
    NotAtPointer {
        /// Where the next write goes.
        pointer_bytes: u64,
    },
    /// The write leaves its zone, or the zone has no such room.
    Boundary,
    /// The zone is full or worn out.
    NotWritable(ZoneState),
    /// Another zone would be active, and no more may be.
    TooManyActive,
    /// Offset or length is not a multiple of the write size.
    NotWhole {
        /// The write size.
        unit_bytes: u64,
    },
    /// There is no such zone.
    NoZone,
}

impl std::fmt::Display for ZoneRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotAtPointer { pointer_bytes } => {
                write!(f, "the zone's write pointer is at {pointer_bytes}")
            }
            Self::Boundary => f.write_str("the write leaves its zone"),
            Self::NotWritable(state) => write!(f, "the zone is {state:?}"),
            Self::TooManyActive => f.write_str("too many zones are active"),
            Self::NotWhole { unit_bytes } => write!(f, "writes are multiples of {unit_bytes}"),
            Self::NoZone => f.write_str("there is no such zone"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    state: ZoneState,
    /// Units written.
    written: u32,
    /// The open stripe that an active zone has.
    handle: u32,
    /// The number of the last write to it.
    used_at: u64,
    erases: u32,
    /// Erases after which it is worn out.
    limit: u32,
}

/// A zoned SSD.
#[derive(Clone, Debug)]
pub struct ZonedSsd {
    name: String,
    unit_bytes: u64,
    zone_units: u32,
    zones: Vec<Zone>,
    pools: u32,
    blocks_per_pool: u32,
    max_open: usize,
    /// By handle, whether a zone has it.
    handles: Vec<bool>,
    queue_depth: u32,
    power: PowerSpec,
    command_ns: u64,
    unit_ns: u64,
    latency_ns: u64,
    flush_ns: u64,
    power_on_ns: u64,
    link: Link,
    controller_free: u64,
    array: Array,
    last_write: WriteId,
    programmed_units: u64,
    off_since: Option<u64>,
    off_ns: u64,
}

impl ZonedSsd {
    /// A device whose zones are all empty.
    ///
    /// # Errors
    /// [`SpecError`] when the description is impossible or has no zones.
    pub fn new(spec: &DeviceSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let error = |field, flaw| SpecError { device: spec.name.clone(), field, flaw };
        let MediaSpec::Flash(flash) = &spec.media else {
            return Err(error("media", SpecFlaw::WrongMedia { expected: MediaKind::Flash }));
        };
        let Some(zones) = &flash.zones else {
            return Err(error("media.flash.zones", SpecFlaw::NoZones));
        };
        let layout = flash.layout();
        let unit_bytes = u64::from(layout.slot_bytes);
        let zone_bytes = u64::from(layout.slots_per_block) * unit_bytes;
        let mut chance = Chance::derive(seed, "endurance");
        let (mean, sd) = (flash.endurance.cycles_mean, flash.endurance.cycles_sd_fraction);
        let mut limit = || match mean {
            0.0 => u32::MAX,
            _ => (mean * (1.0 + sd * chance.normal())).clamp(1.0, 4e9) as u32,
        };
        let count = spec.offered_bytes() / zone_bytes;
        let empty = |limit| Zone {
            state: ZoneState::Empty,
            written: 0,
            handle: 0,
            used_at: 0,
            erases: 0,
            limit,
        };
        Ok(Self {
            name: spec.name.clone(),
            unit_bytes,
            zone_units: layout.slots_per_block,
            zones: (0..count).map(|_| empty(limit())).collect(),
            pools: layout.pools,
            blocks_per_pool: layout.blocks_per_pool,
            max_open: zones.max_open as usize,
            handles: vec![false; zones.max_active as usize],
            queue_depth: spec.interface.resolve().queue_depth,
            power: spec.power.clone(),
            command_ns: ns(flash.controller.command_us),
            unit_ns: ns(flash.controller.unit_us),
            latency_ns: ns(flash.controller.latency_us),
            flush_ns: ns(flash.cache.flush_us),
            power_on_ns: ns(flash.controller.power_on_ms * 1e3),
            link: Link::new(&spec.interface, seed),
            controller_free: 0,
            array: Array::new(flash, seed),
            last_write: WriteId(0),
            programmed_units: 0,
            off_since: None,
            off_ns: 0,
        })
    }

    /// Zones.
    #[must_use]
    pub fn zone_count(&self) -> u32 {
        self.zones.len() as u32
    }

    /// Bytes of a zone, all of which can be written.
    #[must_use]
    pub fn zone_bytes(&self) -> u64 {
        u64::from(self.zone_units) * self.unit_bytes
    }

    /// The state of a zone and its write pointer, in bytes from the start of the device.
    #[must_use]
    pub fn zone(&self, zone: u32) -> Option<(ZoneState, u64)> {
        let found = self.zones.get(zone as usize)?;
        let start = u64::from(zone) * self.zone_bytes();
        Some((found.state, start + u64::from(found.written) * self.unit_bytes))
    }

    /// Writes `len_bytes` wherever the zone's write pointer is. Returns the place, too.
    ///
    /// # Errors
    /// [`RequestError`] when the zone cannot take them.
    pub fn append(
        &mut self,
        now: Nanos,
        zone: u32,
        len_bytes: u64,
    ) -> Result<(u64, Completion), RequestError> {
        let (state, pointer) = self.zone(zone).ok_or_else(|| self.refused(ZoneRefusal::NoZone))?;
        // The write pointer of a full zone is the start of the next one.
        if state == ZoneState::Full {
            return Err(self.refused(ZoneRefusal::NotWritable(state)));
        }
        let done = self.submit(now, &Request::write(pointer, len_bytes))?;
        Ok((pointer, done))
    }

    /// Forgets a zone's data and erases it. The device answers before the erase has ended; the next
    /// write to the zone waits for it at its dies.
    ///
    /// # Errors
    /// [`RequestError`] when there is no such zone.
    pub fn reset(&mut self, now: Nanos, zone: u32) -> Result<Completion, RequestError> {
        let (start, bytes) = (u64::from(zone) * self.zone_bytes(), self.zone_bytes());
        if zone >= self.zone_count() {
            return Err(self.refused(ZoneRefusal::NoZone));
        }
        self.submit(now, &Request::trim(start, bytes))
    }

    /// Makes a zone full: what was written is programmed, and it is no longer active.
    ///
    /// # Errors
    /// [`RequestError`] when there is no such zone.
    pub fn finish(&mut self, now: Nanos, zone: u32) -> Result<Completion, RequestError> {
        if zone >= self.zone_count() {
            return Err(self.refused(ZoneRefusal::NoZone));
        }
        let request = Request::flush();
        let ready = self.begin(now, &request)?;
        self.array.host_time = self.array.host_time.max(ready);
        if self.is_active(zone) {
            self.pad_stripe(zone);
            self.release(zone, ZoneState::Full);
        } else if self.zones[zone as usize].state == ZoneState::Empty {
            self.zones[zone as usize].state = ZoneState::Full;
        }
        Ok(self.end(now, ready, &request))
    }

    fn refused(&self, why: ZoneRefusal) -> RequestError {
        RequestError::Zone { device: self.name.clone(), why }
    }

    fn is_active(&self, zone: u32) -> bool {
        matches!(self.zones[zone as usize].state, ZoneState::Open | ZoneState::Closed)
    }

    /// The first slot of a zone; neighbors lie on different dies where zones are narrow.
    fn first_slot(&self, zone: u32) -> u32 {
        self.block_of(zone) * self.zone_units
    }

    fn block_of(&self, zone: u32) -> u32 {
        zone % self.pools * self.blocks_per_pool + zone / self.pools
    }

    /// Programs what waits in the zone's open stripe.
    fn pad_stripe(&mut self, zone: u32) {
        let Zone { handle, written, .. } = self.zones[zone as usize];
        self.array.select_stream(handle as usize);
        let rest = written.next_multiple_of(self.array.slots_per_stripe) - written;
        if rest > 0 && self.array.has_open_stripe() {
            self.array.program(self.first_slot(zone) + written, rest, Origin::Pad);
            self.programmed_units += u64::from(rest);
        }
    }

    /// The zone is no longer active.
    fn release(&mut self, zone: u32, state: ZoneState) {
        if self.is_active(zone) {
            self.handles[self.zones[zone as usize].handle as usize] = false;
        }
        self.zones[zone as usize].state = state;
    }

    /// Makes a zone open for a write. Another one is closed where too many would be open.
    fn open(&mut self, zone: u32) -> Result<(), ZoneRefusal> {
        match self.zones[zone as usize].state {
            ZoneState::Open => return Ok(()),
            ZoneState::Closed => {}
            ZoneState::Empty => {
                let free = self.handles.iter().position(|is_taken| !is_taken);
                let handle = free.ok_or(ZoneRefusal::TooManyActive)?;
                self.handles[handle] = true;
                self.zones[zone as usize].handle = handle as u32;
            }
            state @ (ZoneState::Full | ZoneState::Offline) => {
                return Err(ZoneRefusal::NotWritable(state));
            }
        }
        let open = |zone: &&mut Zone| zone.state == ZoneState::Open;
        if self.zones.iter_mut().filter(open).count() >= self.max_open {
            if let Some(oldest) = self.zones.iter_mut().filter(open).min_by_key(|z| z.used_at) {
                oldest.state = ZoneState::Closed;
            }
        }
        self.zones[zone as usize].state = ZoneState::Open;
        Ok(())
    }

    fn check_write(&self, request: &Request<'_>) -> Result<u32, ZoneRefusal> {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        if (offset | len) % self.unit_bytes != 0 {
            return Err(ZoneRefusal::NotWhole { unit_bytes: self.unit_bytes });
        }
        let zone = (offset / self.zone_bytes()) as u32;
        let (state, pointer_bytes) = self.zone(zone).ok_or(ZoneRefusal::NoZone)?;
        if matches!(state, ZoneState::Full | ZoneState::Offline) {
            return Err(ZoneRefusal::NotWritable(state));
        }
        if offset != pointer_bytes {
            return Err(ZoneRefusal::NotAtPointer { pointer_bytes });
        }
        if offset + len > (u64::from(zone) + 1) * self.zone_bytes() {
            return Err(ZoneRefusal::Boundary);
        }
        Ok(zone)
    }

    fn write(&mut self, zone: u32, request: &Request<'_>, ready: u64) -> u64 {
        let first = self.first_slot(zone);
        let handle = self.zones[zone as usize].handle as usize;
        self.array.select_stream(handle);
        let mut admitted = ready;
        for _ in 0..request.len_bytes / self.unit_bytes {
            admitted = admitted.max(self.array.room_at(1));
            self.array.host_time = admitted;
            let at = &mut self.zones[zone as usize];
            let slot = first + at.written;
            (at.written, at.used_at) = (at.written + 1, self.last_write.0);
            self.array.program(slot, 1, Origin::Host);
            self.programmed_units += 1;
        }
        if self.zones[zone as usize].written == self.zone_units {
            self.release(zone, ZoneState::Full);
        }
        admitted
    }

    fn erase(&mut self, zone: u32, ready: u64) {
        let is_written = self.zones[zone as usize].written > 0;
        self.array.host_time = self.array.host_time.max(ready);
        if self.is_active(zone) {
            // What waits in the buffer needs no place any more.
            self.pad_stripe(zone);
        }
        self.release(zone, ZoneState::Empty);
        if is_written {
            self.array.erase(self.block_of(zone));
            let at = &mut self.zones[zone as usize];
            (at.written, at.erases) = (0, at.erases + 1);
            if at.erases >= at.limit {
                at.state = ZoneState::Offline;
            }
        }
    }

    /// Resets the zones that lie in the range whole. The others keep their data.
    fn reset_range(&mut self, request: &Request<'_>, ready: u64) {
        let bytes = self.zone_bytes();
        let first = request.offset_bytes.div_ceil(bytes);
        for zone in first..(request.offset_bytes + request.len_bytes) / bytes {
            if self.zones[zone as usize].state != ZoneState::Offline {
                self.erase(zone as u32, ready);
            }
        }
    }

    fn read(&mut self, request: &Request<'_>, ready: u64) -> u64 {
        let end = request.offset_bytes + request.len_bytes;
        let (mut first, mut last, mut before) = (u64::MAX, ready, None);
        for unit in request.offset_bytes / self.unit_bytes..end.div_ceil(self.unit_bytes) {
            let zone = (unit / u64::from(self.zone_units)) as u32;
            let index = (unit % u64::from(self.zone_units)) as u32;
            let here =
                (index < self.zones[zone as usize].written).then(|| self.first_slot(zone) + index);
            let data = here.map_or(ready, |slot| {
                let same_page = before.is_some_and(|before| self.array.same_page(before, slot));
                self.array.host_read(slot, 1, same_page, ready)
            });
            (before, first, last) = (here, first.min(data), last.max(data));
        }
        self.link.return_data(first.min(last), last, request.len_bytes)
    }

    /// Takes a request over link and controller. Returns when the controller is ready for it.
    fn begin(&mut self, now: Nanos, request: &Request<'_>) -> Result<u64, RequestError> {
        if now.0 < self.link.latest() {
            let latest = Nanos(self.link.latest());
            return Err(RequestError::TimeRanBackwards { device: self.name.clone(), now, latest });
        }
        if self.off_since.is_some() {
            return Err(RequestError::PoweredOff { device: self.name.clone() });
        }
        self.array.horizon = now.0;
        let arrived = self.link.send(now.0, request);
        let units = match request.kind {
            RequestKind::Write => request.len_bytes / self.unit_bytes,
            _ => 0,
        };
        let ready = self.controller_free.max(arrived) + self.command_ns + self.unit_ns * units;
        self.controller_free = ready;
        Ok(ready)
    }

    fn end(&mut self, now: Nanos, done: u64, request: &Request<'_>) -> Completion {
        let at = self.link.complete(now.0, done + self.latency_ns, request);
        Completion { at, write: self.last_write, status: Status::Done }
    }
}

impl Model for ZonedSsd {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        Identity {
            capacity_bytes: self.zones.len() as u64 * self.zone_bytes(),
            volatile_cache: false,
            best_write_bytes: self.unit_bytes as u32,
            queue_depth: self.queue_depth,
        }
    }

    /// As every device, but for zones: a write begins at its zone's write pointer, and a trim
    /// resets the zones that it covers whole.
    fn submit(&mut self, now: Nanos, request: &Request<'_>) -> Result<Completion, RequestError> {
        check_request(&self.name, self.identity().capacity_bytes, request)?;
        let mut zone = 0;
        if request.kind == RequestKind::Write {
            zone = self.check_write(request).map_err(|why| self.refused(why))?;
            self.open(zone).map_err(|why| self.refused(why))?;
        }
        let ready = self.begin(now, request)?;
        let done = match request.kind {
            RequestKind::Write => {
                self.last_write.0 += 1;
                self.write(zone, request, ready)
            }
            RequestKind::Read => self.read(request, ready),
            // The buffer is protected: check() demands it.
            RequestKind::Flush => ready + self.flush_ns,
            RequestKind::Trim => {
                self.reset_range(request, ready);
                ready
            }
            RequestKind::SecureErase => {
                let capacity = self.identity().capacity_bytes;
                self.reset_range(&Request::trim(0, capacity), ready);
                self.array.all_free().max(ready)
            }
        };
        Ok(self.end(now, done, request))
    }

    fn power_cut(&mut self, now: Nanos, _chance: &mut Chance) -> CutReport {
        let now = now.0.max(self.link.latest());
        self.array.cut(now, now);
        self.link.cut(now);
        self.controller_free = now;
        self.off_since = Some(now);
        // Active zones are closed, with the write pointers that they had.
        for zone in &mut self.zones {
            if zone.state == ZoneState::Open {
                zone.state = ZoneState::Closed;
            }
        }
        CutReport::default()
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

    fn durable_before(&mut self, _now: Nanos) -> WriteId {
        WriteId(self.last_write.0 + 1)
    }

    fn stats(&self, now: Nanos) -> Stats {
        let mut stats = self.link.stats_at(now.0);
        stats.media_written_bytes = self.programmed_units * self.unit_bytes;
        stats.servers = self.array.die_count();
        let busy = self.array.busy_until(now.0);
        (stats.media_read_ns, stats.media_write_ns) = (busy.read_ns, busy.program_ns);
        stats.media_erase_ns = busy.erase_ns;
        let erases = || self.zones.iter().map(|zone| zone.erases);
        let count = self.zones.len() as f64;
        let mean = erases().map(f64::from).sum::<f64>() / count;
        let variance = erases().map(|n| (f64::from(n) - mean).powi(2)).sum::<f64>() / count;
        let offline = self.zones.iter().filter(|zone| zone.state == ZoneState::Offline).count();
        stats.wear = WearSpread {
            min: erases().min().unwrap_or(0),
            max: erases().max().unwrap_or(0),
            mean,
            deviation: variance.sqrt(),
            bad_blocks: offline as u32,
            blocks: self.zones.len() as u32,
        };
        let off = self.off_ns + self.off_since.map_or(0, |since| now.0.saturating_sub(since));
        stats.energy_j = energy_j(&self.power, now.0.saturating_sub(off), &stats);
        stats
    }

    fn digest(&self) -> u64 {
        let words = [self.array.all_free(), self.controller_free, self.programmed_units];
        let zones = self.zones.iter().flat_map(|z| [u64::from(z.written), u64::from(z.erases)]);
        words.into_iter().chain(zones).fold(self.last_write.0, |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests;
