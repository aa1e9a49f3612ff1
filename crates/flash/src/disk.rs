//! Rotating disk in virtual time: seek, rotation, zoned transfer, read-ahead, write cache.
//!
//! Cached writes go to the platter between other work, in sweeps by ascending address. So a full
//! cache costs less than its writes one by one.

use std::collections::{BTreeMap, VecDeque};

use forebay_units::Nanos;

use crate::busy::BusyTime;
use crate::chance::Chance;
use crate::link::{Link, ns, ps_per_byte};
use crate::model::{
    Completion, CutReport, Damage, Fate, Identity, Model, PowerOn, Request, RequestError,
    RequestKind, Status, WriteId, check_request,
};
use crate::ranges::Ranges;
use crate::spec::{
    DeviceSpec, DiskSpec, Honesty, MediaKind, MediaSpec, PowerSpec, SpecError, SpecFlaw,
};
use crate::ssd::energy_j;
use crate::stats::Stats;

/// A write the head carries out, or has carried out.
#[derive(Clone, Copy, Debug)]
struct Serviced {
    write: WriteId,
    offset: u64,
    len: u64,
    transfer_from: u64,
    done: u64,
}

/// Data that the disk reads past the end of a request.
#[derive(Clone, Copy, Debug, Default)]
struct ReadAhead {
    start: u64,
    /// The head was here ...
    at: u64,
    /// ... at this instant, and reads on to `end` at the media rate.
    at_ns: u64,
    end: u64,
}

/// A rotating disk.
#[derive(Clone, Debug)]
pub struct Disk {
    name: String,
    capacity_bytes: u64,
    queue_depth: u32,
    power: PowerSpec,
    spec: DiskSpec,
    revolution_ns: u64,
    link: Link,
    /// Where the head stands, and when it is free.
    head: u64,
    head_free: u64,
    /// When the last transfer ended: later, the platter has turned on.
    head_left_at: u64,
    /// Writes in the cache by address.
    cached: BTreeMap<(u64, WriteId), u64>,
    cached_bytes: u64,
    serviced: VecDeque<Serviced>,
    read_ahead: ReadAhead,
    last_write: WriteId,
    media_written_bytes: u64,
    busy: BusyTime,
    unreadable: Ranges,
    off_since: Option<u64>,
    off_ns: u64,
}

impl Disk {
    /// A disk with its head at the outer edge.
    ///
    /// # Errors
    /// [`SpecError`] when the description is impossible or its media is not a disk.
    pub fn new(spec: &DeviceSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let MediaSpec::Disk(disk) = &spec.media else {
            return Err(SpecError {
                device: spec.name.clone(),
                field: "media",
                flaw: SpecFlaw::WrongMedia { expected: MediaKind::Disk },
            });
        };
        Ok(Self {
            name: spec.name.clone(),
            capacity_bytes: spec.offered_bytes(),
            queue_depth: spec.interface.resolve().queue_depth,
            power: spec.power.clone(),
            revolution_ns: (60e9 / disk.rpm).round().max(1.0) as u64,
            link: Link::new(&spec.interface, seed),
            head: 0,
            head_free: 0,
            head_left_at: 0,
            cached: BTreeMap::new(),
            cached_bytes: 0,
            serviced: VecDeque::new(),
            read_ahead: ReadAhead::default(),
            last_write: WriteId(0),
            media_written_bytes: 0,
            busy: BusyTime::default(),
            unreadable: Ranges::default(),
            off_since: None,
            off_ns: 0,
            spec: disk.clone(),
        })
    }

    fn ps_per_byte(&self, offset: u64) -> u64 {
        let inward = offset as f64 / self.capacity_bytes as f64;
        let spec = &self.spec;
        ps_per_byte(spec.outer_mb_s + (spec.inner_mb_s - spec.outer_mb_s) * inward)
    }

    /// Seek and rotation before the head, free at `start`, is at `offset`.
    fn position_ns(&self, start: u64, offset: u64) -> u64 {
        if offset == self.head && start <= self.head_left_at {
            return 0;
        }
        let track_bytes = (self.revolution_ns * 1000 / self.ps_per_byte(offset)).max(1);
        let same_track = offset / track_bytes == self.head / track_bytes;
        let seek = if same_track {
            0
        } else {
            let far = offset.abs_diff(self.head) as f64 / self.capacity_bytes as f64;
            let (track, full) = (self.spec.track_seek_ms, self.spec.full_seek_ms);
            ns((track + (full - track) * far.sqrt()) * 1e3)
        };
        let under_head = (start + seek) % self.revolution_ns;
        let wanted = offset % track_bytes * self.revolution_ns / track_bytes;
        seek + (wanted + self.revolution_ns - under_head) % self.revolution_ns
    }

    /// Moves the head and transfers. Returns when the transfer begins and ends.
    fn access(&mut self, start: u64, offset: u64, len: u64) -> (u64, u64) {
        let from = start + self.position_ns(start, offset);
        let done = from + len * self.ps_per_byte(offset) / 1000;
        self.head = offset + len;
        (self.head_free, self.head_left_at) = (done, done);
        (from, done)
    }

    fn write_now(&mut self, start: u64, write: WriteId, offset: u64, len: u64) -> u64 {
        self.read_ahead = ReadAhead::default();
        let (transfer_from, done) = self.access(start, offset, len);
        self.busy.note(self.link.latest(), start, done, true);
        self.media_written_bytes += len;
        self.serviced.push_back(Serviced { write, offset, len, transfer_from, done });
        done
    }

    /// Writes the next cached write of the sweep, from `start` on.
    fn write_cached(&mut self, start: u64) -> Option<u64> {
        let from = (self.head, WriteId(0));
        let next = self.cached.range(from..).next().or_else(|| self.cached.iter().next());
        let (&(offset, write), &len) = next?;
        self.cached.remove(&(offset, write));
        self.cached_bytes -= len;
        Some(self.write_now(start, write, offset, len))
    }

    /// Carries out what the head does by itself before `now`.
    fn run_background(&mut self, now: u64) {
        while self.head_free < now && !self.cached.is_empty() {
            self.write_cached(self.head_free);
        }
        self.head_free = self.head_free.max(now);
        while self.serviced.front().is_some_and(|serviced| serviced.done <= now) {
            self.serviced.pop_front();
        }
    }

    fn write(&mut self, request: &Request<'_>, arrived: u64) -> u64 {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let write = self.last_write;
        self.unreadable.remove(offset..offset + len);
        if request.fua || len > self.spec.write_cache_bytes {
            return self.write_now(self.head_free.max(arrived), write, offset, len);
        }
        let mut accepted = arrived;
        while self.cached_bytes + len > self.spec.write_cache_bytes {
            match self.write_cached(self.head_free) {
                Some(done) => accepted = accepted.max(done),
                None => break,
            }
        }
        self.cached.insert((offset, write), len);
        self.cached_bytes += len;
        accepted
    }

    fn flush(&mut self, arrived: u64) -> u64 {
        if self.spec.flush == Honesty::Ignored {
            return arrived;
        }
        while !self.cached.is_empty() {
            self.write_cached(self.head_free.max(arrived));
        }
        // Writes in progress count too.
        self.serviced.iter().map(|serviced| serviced.done).max().unwrap_or(0).max(arrived)
    }

    fn read(&mut self, request: &Request<'_>, arrived: u64) -> (u64, Status) {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let ahead = self.read_ahead;
        let done = if ahead.start <= offset && offset + len <= ahead.end {
            let more = (offset + len).saturating_sub(ahead.at);
            let here = ahead.at_ns + more * self.ps_per_byte(offset) / 1000;
            self.head = self.head.max(offset + len);
            self.head_free = self.head_free.max(here);
            self.head_left_at = self.head_free;
            self.read_ahead.end = (offset + len + self.spec.read_ahead_bytes).max(ahead.end);
            here.max(arrived)
        } else {
            let start = self.head_free.max(arrived);
            let (_, done) = self.access(start, offset, len);
            self.busy.note(self.link.latest(), start, done, false);
            let end = offset + len;
            self.read_ahead = ReadAhead {
                start: offset,
                at: end,
                at_ns: done,
                end: end + self.spec.read_ahead_bytes,
            };
            done
        };
        let status = match self.unreadable.first_in(offset..offset + len) {
            None => Status::Done,
            Some(bad) => {
                Status::Unreadable { offset_bytes: bad.start, len_bytes: bad.end - bad.start }
            }
        };
        (self.link.return_data(done, done, len), status)
    }
}

impl Model for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        Identity {
            capacity_bytes: self.capacity_bytes,
            volatile_cache: self.spec.write_cache_bytes > 0,
            best_write_bytes: 4096,
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
        self.run_background(now.0);
        let arrived = self.link.send(now.0, request);
        let (done, status) = match request.kind {
            RequestKind::Write => {
                self.last_write.0 += 1;
                (self.write(request, arrived), Status::Done)
            }
            RequestKind::Read => self.read(request, arrived),
            RequestKind::Flush => (self.flush(arrived), Status::Done),
            RequestKind::Trim => (arrived, Status::Done),
            RequestKind::SecureErase => {
                self.unreadable.clear();
                self.cached.clear();
                self.cached_bytes = 0;
                let middle = self.ps_per_byte(self.capacity_bytes / 2);
                let done = self.head_free.max(arrived) + self.capacity_bytes / 1000 * middle;
                self.head = 0;
                self.head_free = done;
                (done, Status::Done)
            }
        };
        let at = self.link.complete(now.0, done, request);
        Ok(Completion { at, write: self.last_write, status })
    }

    fn power_cut(&mut self, now: Nanos, chance: &mut Chance) -> CutReport {
        let now = now.0.max(self.link.latest());
        self.run_background(now);
        let mut report = CutReport::default();
        let lost = |write, offset_bytes, len_bytes, fate| Damage {
            offset_bytes,
            len_bytes,
            write: Some(write),
            fate,
        };
        for s in self.serviced.iter().filter(|s| s.done > now) {
            let written = if now <= s.transfer_from {
                0
            } else {
                s.len * (now - s.transfer_from) / (s.done - s.transfer_from) / 512 * 512
            };
            let fate =
                if written == 0 { Fate::Lost } else { Fate::Shorn { intact_bytes: written } };
            report.damage.push(lost(s.write, s.offset, s.len, fate));
            if now > s.transfer_from && chance.below(4) == 0 {
                // The sector under the head was half written.
                let at = s.offset + written;
                self.unreadable.insert(at..at + 512);
            }
        }
        for (&(offset, write), &len) in &self.cached {
            report.damage.push(lost(write, offset, len, Fate::Lost));
        }
        report.damage.sort_by_key(|damage| damage.write);
        let mut from = 0;
        while let Some(bad) = self.unreadable.first_in(from..self.capacity_bytes) {
            from = bad.end;
            let (offset_bytes, len_bytes) = (bad.start, bad.end - bad.start);
            let fate = Fate::Unreadable;
            report.damage.push(Damage { offset_bytes, len_bytes, write: None, fate });
        }
        self.cached.clear();
        self.cached_bytes = 0;
        self.serviced.clear();
        self.read_ahead = ReadAhead::default();
        self.head_free = now;
        self.link.cut(now);
        self.busy.cut(now);
        self.off_since = Some(now);
        report
    }

    fn power_on(&mut self, now: Nanos, _chance: &mut Chance) -> PowerOn {
        let now = now.0.max(self.link.latest());
        if let Some(since) = self.off_since.take() {
            self.off_ns += now - since;
            self.link.cut(now);
            self.head = 0;
            self.head_free = now;
        }
        PowerOn { ready_at: Nanos(now), damage: Vec::new() }
    }

    fn durable_before(&mut self, now: Nanos) -> WriteId {
        let now = now.0.max(self.link.latest());
        self.run_background(now);
        let cached = self.cached.keys().map(|&(_, write)| write);
        let serviced = self.serviced.iter().filter(|s| s.done > now).map(|s| s.write);
        cached.chain(serviced).min().unwrap_or(WriteId(self.last_write.0 + 1))
    }

    fn stats(&self, now: Nanos) -> Stats {
        let mut stats = self.link.stats_at(now.0);
        stats.media_written_bytes = self.media_written_bytes;
        stats.servers = 1;
        (stats.media_read_ns, stats.media_write_ns) = self.busy.until(now.0);
        let off = self.off_ns + self.off_since.map_or(0, |since| now.0.saturating_sub(since));
        stats.energy_j = energy_j(&self.power, now.0.saturating_sub(off), &stats);
        stats
    }

    fn digest(&self) -> u64 {
        let stats = self.link.stats_at(self.link.latest());
        let words = [self.head, self.head_free, self.cached_bytes, stats.response_sum_ns as u64];
        words.into_iter().fold(self.last_write.0, |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests;
