//! DRAM SSD in virtual time: constant service, and flash that is written only when power fails.
//!
//! An armed device has an erased backup flash and energy for a whole save: a power cut loses
//! nothing acknowledged. After a restore it is armed again when the flash is erased and the energy
//! source is recharged. A cut before that loses what the energy does not reach.

use std::collections::VecDeque;

use forebay_units::Nanos;

use crate::busy::BusyTime;
use crate::chance::Chance;
use crate::link::{Link, ns, ps_per_byte};
use crate::model::{
    Completion, CutReport, Damage, Fate, Identity, Model, PowerOn, Request, RequestError,
    RequestKind, Status, WriteId, check_request,
};
use crate::ranges::Ranges;
use crate::spec::{DeviceSpec, DramSpec, MediaKind, MediaSpec, PowerSpec, SpecError, SpecFlaw};
use crate::ssd::energy_j;
use crate::stats::Stats;

/// The state of a DRAM SSD between two power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DramState {
    /// Running, but a cut now would lose data: the energy source is not full enough.
    Disarmed,
    /// Running, and a cut now loses nothing acknowledged.
    Armed,
    /// Off, saving DRAM to flash.
    Saving,
    /// Off, the image is complete.
    Saved,
    /// Off, the image is partial or there is none.
    SaveFailed,
    /// On, loading the image; requests wait.
    Restoring,
    /// Running on a loaded image whose flash is being erased: not armed.
    Restored,
    /// Running after the image could not be read: not armed while its flash is being erased.
    RestoreFailed,
}

/// What the backup flash holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Backup {
    Erased,
    /// An image of the first so many bytes.
    Image(u64),
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// On since before; `ready_at` is when requests are served, `erased_at` when the flash is
    /// erased, `failed` whether the last restore failed, `fresh` whether there was none.
    On { ready_at: u64, erased_at: u64, failed: bool },
    /// Off; the save ends at `saved_at`.
    Off { saved_at: u64 },
}

/// A DRAM SSD.
#[derive(Clone, Debug)]
pub struct DramSsd {
    name: String,
    capacity_bytes: u64,
    queue_depth: u32,
    power: PowerSpec,
    spec: DramSpec,
    service_ns: u64,
    latency_ns: u64,
    dram_ps_per_byte: u64,
    link: Link,
    free: u64,
    busy: BusyTime,
    phase: Phase,
    backup: Backup,
    backups: u64,
    backup_bytes: u64,
    /// Energy in the source at an instant.
    energy_at: (f64, u64),
    /// Writes whose data may still be on its way.
    in_flight: VecDeque<(WriteId, u64, u64, u64)>,
    last_write: WriteId,
    unreadable: Ranges,
    off_ns: u64,
    off_since: u64,
}

impl DramSsd {
    /// A device with erased backup flash and the initial charge.
    ///
    /// # Errors
    /// [`SpecError`] when the description is impossible or its media is not DRAM.
    pub fn new(spec: &DeviceSpec, seed: u64) -> Result<Self, SpecError> {
        spec.check()?;
        let MediaSpec::Dram(dram) = &spec.media else {
            return Err(SpecError {
                device: spec.name.clone(),
                field: "media",
                flaw: SpecFlaw::WrongMedia { expected: MediaKind::Dram },
            });
        };
        Ok(Self {
            name: spec.name.clone(),
            capacity_bytes: spec.offered_bytes(),
            queue_depth: spec.interface.resolve().queue_depth,
            power: spec.power.clone(),
            service_ns: ns(dram.service_us),
            latency_ns: ns(dram.latency_us),
            dram_ps_per_byte: ps_per_byte(dram.dram_mb_s),
            link: Link::new(&spec.interface, seed),
            free: 0,
            busy: BusyTime::default(),
            phase: Phase::On { ready_at: 0, erased_at: 0, failed: false },
            backup: Backup::Erased,
            backups: 0,
            backup_bytes: 0,
            energy_at: (dram.energy.full_j * dram.energy.initial_fraction, 0),
            in_flight: VecDeque::new(),
            last_write: WriteId(0),
            unreadable: Ranges::default(),
            off_ns: 0,
            off_since: 0,
            spec: dram.clone(),
        })
    }

    fn save_ns(&self) -> u64 {
        self.capacity_bytes * ps_per_byte(self.spec.save_mb_s) / 1000
    }

    fn restore_ns(&self) -> u64 {
        self.capacity_bytes * ps_per_byte(self.spec.restore_mb_s) / 1000
    }

    /// Energy a whole save takes, in joules.
    #[must_use]
    pub fn save_energy_j(&self) -> f64 {
        self.spec.energy.save_w * self.save_ns() as f64 / 1e9
    }

    /// Energy in the source at `now`, in joules; it recharges while the device is on.
    #[must_use]
    pub fn energy_j(&self, now: Nanos) -> f64 {
        let (energy, at) = self.energy_at;
        let energy_spec = &self.spec.energy;
        if energy_spec.charge_w == 0.0 {
            return energy_spec.full_j;
        }
        match self.phase {
            Phase::Off { .. } => energy,
            Phase::On { .. } => {
                let gained = energy_spec.charge_w * now.0.saturating_sub(at) as f64 / 1e9;
                (energy + gained).min(energy_spec.full_j)
            }
        }
    }

    /// Where the device stands at `now`.
    #[must_use]
    pub fn state(&self, now: Nanos) -> DramState {
        match self.phase {
            Phase::Off { saved_at } if now.0 < saved_at => DramState::Saving,
            Phase::Off { .. } => match self.backup {
                Backup::Image(bytes) if bytes == self.capacity_bytes => DramState::Saved,
                _ => DramState::SaveFailed,
            },
            Phase::On { ready_at, .. } if now.0 < ready_at => DramState::Restoring,
            Phase::On { erased_at, failed, .. } if now.0 < erased_at => {
                if failed {
                    DramState::RestoreFailed
                } else {
                    DramState::Restored
                }
            }
            Phase::On { .. } if self.energy_j(now) >= self.save_energy_j() => DramState::Armed,
            Phase::On { .. } => DramState::Disarmed,
        }
    }

    /// Backups taken so far, partial ones included.
    #[must_use]
    pub fn backups(&self) -> u64 {
        self.backups
    }

    fn all_unreadable(&mut self, from: u64) -> Damage {
        self.unreadable.insert(from..self.capacity_bytes);
        Damage {
            offset_bytes: from,
            len_bytes: self.capacity_bytes - from,
            write: None,
            fate: Fate::Unreadable,
        }
    }

    /// Saves as much as the energy reaches. Returns the bytes saved.
    fn save(&mut self, now: u64) -> u64 {
        let energy = self.energy_j(Nanos(now));
        let needed = self.save_energy_j();
        let share = if needed > 0.0 { (energy / needed).min(1.0) } else { 1.0 };
        let saved = if share < 1.0 {
            (self.capacity_bytes as f64 * share) as u64 / 4096 * 4096
        } else {
            self.capacity_bytes
        };
        self.energy_at = (energy - needed * share, now);
        self.backups += 1;
        self.backup_bytes += saved;
        self.backup = Backup::Image(saved);
        self.phase = Phase::Off { saved_at: now + (self.save_ns() as f64 * share) as u64 };
        saved
    }
}

impl Model for DramSsd {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        Identity {
            capacity_bytes: self.capacity_bytes,
            volatile_cache: false,
            best_write_bytes: 512,
            queue_depth: self.queue_depth,
        }
    }

    fn submit(&mut self, now: Nanos, request: &Request<'_>) -> Result<Completion, RequestError> {
        if now.0 < self.link.latest() {
            let latest = Nanos(self.link.latest());
            return Err(RequestError::TimeRanBackwards { device: self.name.clone(), now, latest });
        }
        let Phase::On { ready_at, .. } = self.phase else {
            return Err(RequestError::PoweredOff { device: self.name.clone() });
        };
        check_request(&self.name, self.capacity_bytes, request)?;
        let range = request.offset_bytes..request.offset_bytes + request.len_bytes;
        let arrived = self.link.send(now.0, request).max(ready_at);
        let start = self.free.max(arrived);
        let service_ns = self.service_ns + request.len_bytes * self.dram_ps_per_byte / 1000;
        let mut done = start + service_ns;
        let mut status = Status::Done;
        match request.kind {
            RequestKind::Write => {
                self.last_write.0 += 1;
                self.busy.note(now.0, start, done, true);
                self.unreadable.remove(range);
                while self.in_flight.front().is_some_and(|&(.., done)| done <= now.0) {
                    self.in_flight.pop_front();
                }
                let (offset, len) = (request.offset_bytes, request.len_bytes);
                self.in_flight.push_back((self.last_write, offset, len, done));
                self.free = done;
            }
            RequestKind::Read => {
                self.busy.note(now.0, start, done, false);
                self.free = done;
                if let Some(bad) = self.unreadable.first_in(range) {
                    status = Status::Unreadable {
                        offset_bytes: bad.start,
                        len_bytes: bad.end - bad.start,
                    };
                }
                done = self.link.return_data(done, done, request.len_bytes);
            }
            RequestKind::Flush => done = self.free.max(arrived) + self.service_ns,
            RequestKind::Trim => {
                self.unreadable.remove(range);
                done = self.free.max(arrived) + self.service_ns;
            }
            RequestKind::SecureErase => {
                self.unreadable.clear();
                let fill = self.capacity_bytes * self.dram_ps_per_byte / 1000;
                done = self.free.max(arrived) + fill;
                self.free = done;
            }
        }
        let at = self.link.complete(now.0, done + self.latency_ns, request);
        Ok(Completion { at, write: self.last_write, status })
    }

    fn power_cut(&mut self, now: Nanos, _chance: &mut Chance) -> CutReport {
        let now = now.0.max(self.link.latest());
        let Phase::On { ready_at, erased_at, .. } = self.phase else {
            return CutReport::default();
        };
        self.link.cut(now);
        self.busy.cut(now);
        self.off_since = now;
        let mut report = CutReport::default();
        for &(write, offset_bytes, len_bytes, done) in &self.in_flight {
            if done > now {
                let write = Some(write);
                report.damage.push(Damage { offset_bytes, len_bytes, write, fate: Fate::Lost });
            }
        }
        self.in_flight.clear();
        if now < ready_at {
            // The image is whole and nothing was accepted since: it is loaded again next time.
            self.energy_at = (self.energy_j(Nanos(now)), now);
            self.phase = Phase::Off { saved_at: now };
            return report;
        }
        if now < erased_at {
            // The flash is half erased: neither the old image nor room for a new one.
            self.energy_at = (self.energy_j(Nanos(now)), now);
            self.backup = Backup::Image(0);
            self.phase = Phase::Off { saved_at: now };
            report.damage.push(self.all_unreadable(0));
            return report;
        }
        let saved = self.save(now);
        if saved < self.capacity_bytes {
            report.damage.push(self.all_unreadable(saved));
        }
        report
    }

    fn power_on(&mut self, now: Nanos, chance: &mut Chance) -> PowerOn {
        let now = now.0.max(self.link.latest());
        let Phase::Off { saved_at } = self.phase else {
            return PowerOn { ready_at: Nanos(now), damage: Vec::new() };
        };
        self.off_ns += now - self.off_since;
        self.link.cut(now);
        // A save under way is finished first.
        let start = now.max(saved_at);
        let ready_at = start + self.restore_ns();
        let mut damage = Vec::new();
        // Beyond its rated cycles the flash keeps an image with falling probability.
        let worn = self.backups.saturating_sub(self.spec.backup_cycles) as f64;
        let failed = chance.unit() < worn / self.backups.max(1) as f64;
        if failed {
            damage.push(self.all_unreadable(0));
        }
        let erased_at = ready_at + ns(self.spec.erase_ms * 1e3);
        self.phase = Phase::On { ready_at, erased_at, failed };
        self.energy_at = (self.energy_at.0, now);
        self.free = ready_at;
        PowerOn { ready_at: Nanos(ready_at), damage }
    }

    fn durable_before(&mut self, now: Nanos) -> WriteId {
        let unsafe_state = !matches!(self.state(now), DramState::Armed | DramState::Restoring);
        if unsafe_state && matches!(self.phase, Phase::On { .. }) {
            return WriteId(0);
        }
        let first = self.in_flight.iter().find(|(.., done)| *done > now.0);
        first.map_or(WriteId(self.last_write.0 + 1), |&(write, ..)| write)
    }

    fn stats(&self, now: Nanos) -> Stats {
        let mut stats = self.link.stats_at(now.0);
        stats.media_written_bytes = stats.written_bytes;
        stats.servers = 1;
        (stats.media_read_ns, stats.media_write_ns) = self.busy.until(now.0);
        let off = match self.phase {
            Phase::Off { .. } => self.off_ns + now.0.saturating_sub(self.off_since),
            Phase::On { .. } => self.off_ns,
        };
        stats.energy_j = energy_j(&self.power, now.0.saturating_sub(off), &stats);
        stats
    }

    fn digest(&self) -> u64 {
        let stats = self.link.stats_at(self.link.latest());
        let words = [self.free, self.last_write.0, self.backups, stats.response_sum_ns as u64];
        words.into_iter().fold(self.energy_at.0.to_bits(), |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests;
