//! Power cuts at random instants, and the writes promised durable that they lose.

use crate::{LabError, shrink};
use forebay_flash::{Chance, Damage, DeviceSpec, Model, Request, Status, WriteId};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How the host asks for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Every write with FUA.
    Fua,
    /// A flush after every 32 writes.
    Flush,
    /// The host asks for nothing and takes a completed write for durable: flushes are turned off.
    Trusting,
}

/// Many cuts on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The device at full size.
    pub device: DeviceSpec,
    /// Seed of device, load and cuts.
    #[serde(default)]
    pub seed: u64,
    /// How the host asks for durability.
    pub durability: Durability,
    /// How many cuts.
    pub cuts: u32,
    /// Time between power coming back and the next load, in seconds: shorter than a recharge means
    /// that the next cut may come before the device is armed again.
    pub rest_s: f64,
}

/// What was lost over all cuts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CutOutcome {
    /// Cuts.
    pub cuts: u32,
    /// Cuts that lost something promised.
    pub bad_cuts: u32,
    /// Writes promised durable, over all cuts: those of the burst before each cut.
    pub promised: u64,
    /// Of these, not there afterwards.
    pub lost: u64,
    /// Of these, undone with the map that named them.
    pub rolled_back: u64,
    /// Of these, written in part.
    pub shorn: u64,
    /// Ranges at rest, promised earlier, that could not be read afterwards.
    pub ruined_at_rest: u64,
    /// Writes completed but never promised that were lost: allowed.
    pub unpromised_lost: u64,
}

impl CutOutcome {
    /// Nothing promised was ever lost.
    #[must_use]
    pub fn safe(&self) -> bool {
        self.bad_cuts == 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Written {
    id: WriteId,
    offset: u64,
    done_ns: u64,
    promised_ns: Option<u64>,
}

const WRITE_BYTES: u64 = 4096;
const WRITES_OUTSTANDING: usize = 8;
const WRITES_PER_FLUSH: u64 = 32;

struct Burst<'a> {
    model: &'a mut dyn Model,
    now: u64,
    written: Vec<Written>,
    offset: &'a mut u64,
    ring_bytes: u64,
    worn_out: bool,
}

impl Burst<'_> {
    /// Writes in order until `until`, `WRITES_OUTSTANDING` outstanding.
    fn write_until(&mut self, until: u64, durability: Durability) -> Result<(), LabError> {
        let mut in_flight: VecDeque<u64> = VecDeque::new();
        let mut count = 0;
        loop {
            if in_flight.len() >= WRITES_OUTSTANDING {
                let first = (0..in_flight.len()).min_by_key(|&i| in_flight[i]).expect("not empty");
                let at = in_flight.remove(first).expect("it is there");
                self.now = self.now.max(at);
            }
            if self.now >= until || self.worn_out {
                return Ok(());
            }
            let write = Request::write(*self.offset, WRITE_BYTES);
            let write = if durability == Durability::Fua { write.fua() } else { write };
            let done = self.model.submit(Nanos(self.now), &write)?;
            self.worn_out |= done.status == Status::WornOut;
            let promised_ns = (durability != Durability::Flush).then_some(done.at.0);
            let offset = *self.offset;
            self.written.push(Written { id: done.write, offset, done_ns: done.at.0, promised_ns });
            in_flight.push_back(done.at.0);
            *self.offset = (*self.offset + WRITE_BYTES) % self.ring_bytes;
            count += 1;
            if durability == Durability::Flush && count % WRITES_PER_FLUSH == 0 {
                let asked = self.now;
                let flush = self.model.submit(Nanos(self.now), &Request::flush())?.at.0;
                // A flush promises what had completed when it was sent.
                for w in self.written.iter_mut().filter(|w| w.done_ns <= asked) {
                    w.promised_ns.get_or_insert(flush);
                }
                in_flight.push_back(flush);
            }
        }
    }
}

impl Cut {
    /// Runs it.
    pub fn run(&self) -> Result<CutOutcome, LabError> {
        if self.cuts == 0 {
            return Err(LabError::field("cut", "cuts", self.cuts, "at least 1"));
        }
        if !(0.0..=1e6).contains(&self.rest_s) {
            return Err(LabError::field("cut", "rest_s", self.rest_s, "from 0 to 1,000,000"));
        }
        // Small, so that cleaning runs while power is cut; what is lost does not depend on size.
        let raw = match &self.device.media {
            forebay_flash::MediaSpec::Flash(flash) => flash.raw_bytes() as f64,
            _ => 0.0,
        };
        let scale = (raw / (1u64 << 28) as f64).ceil().max(1.0) as u32;
        let (device, _) = shrink::shrink(&self.device, scale)?;
        let mut model = forebay_flash::build(&device, self.seed)?;
        let mut chance = Chance::derive(self.seed, "cuts");
        let ring_bytes = model.identity().capacity_bytes / WRITE_BYTES * WRITE_BYTES;
        let (mut offset, mut now, mut total) = (0u64, 0u64, CutOutcome::default());
        // Energy stores charge before the first use.
        now += 3600 * 1_000_000_000;
        for _ in 0..self.cuts {
            let begin = now;
            // Half the cuts come early, when little is in flight, half in the thick of it.
            let spread_ns = if chance.below(2) == 0 { 2_000_000.0 } else { 200_000_000.0 };
            let cut_at = begin + (chance.unit() * spread_ns) as u64 + 1;
            let mut burst = Burst {
                model: model.as_mut(),
                now,
                written: Vec::new(),
                offset: &mut offset,
                ring_bytes,
                worn_out: false,
            };
            burst.write_until(cut_at, self.durability)?;
            // Submission is in order of time: the loop may have run past the instant drawn.
            let cut_at = cut_at.max(burst.now);
            let written = burst.written;
            let report = model.power_cut(Nanos(cut_at), &mut chance);
            let on_at = cut_at + 1_000_000_000;
            let on = model.power_on(Nanos(on_at), &mut chance);
            let damage: Vec<Damage> = report.damage.iter().chain(&on.damage).copied().collect();
            judge(&written, cut_at, &damage, report.undone_from, &mut total);
            now = on.ready_at.0.max(on_at) + (self.rest_s * 1e9) as u64;
        }
        Ok(total)
    }
}

fn judge(
    written: &[Written],
    cut_at: u64,
    damage: &[Damage],
    undone_from: Option<WriteId>,
    total: &mut CutOutcome,
) {
    total.cuts += 1;
    let before = (total.lost, total.ruined_at_rest);
    for w in written.iter().filter(|w| w.done_ns <= cut_at) {
        let promised = w.promised_ns.is_some_and(|at| at <= cut_at);
        let undone = undone_from.is_some_and(|first| w.id >= first);
        let fate = damage.iter().find(|d| d.write == Some(w.id)).map(|d| d.fate);
        // What ruins a range at rest ruins the write that put it there, when that is of this burst.
        let ruined = damage.iter().any(|d| {
            d.write.is_none()
                && d.offset_bytes <= w.offset
                && w.offset < d.offset_bytes + d.len_bytes
        });
        let gone = undone || fate.is_some() || ruined;
        total.promised += u64::from(promised);
        if promised && gone {
            total.lost += 1;
            let rolled = undone || fate == Some(forebay_flash::Fate::RolledBack);
            total.rolled_back += u64::from(rolled);
            let shorn = matches!(fate, Some(forebay_flash::Fate::Shorn { .. }));
            total.shorn += u64::from(shorn);
        }
        total.unpromised_lost += u64::from(!promised && gone);
    }
    let old = |d: &&Damage| {
        d.write.is_none()
            && !written
                .iter()
                .any(|w| d.offset_bytes <= w.offset && w.offset < d.offset_bytes + d.len_bytes)
    };
    // Data at rest from earlier bursts was promised long ago, whatever the way of asking.
    total.ruined_at_rest += damage.iter().filter(old).count() as u64;
    total.bad_cuts += u32::from((total.lost, total.ruined_at_rest) != before);
}

#[cfg(test)]
mod tests;
