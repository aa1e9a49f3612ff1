//! Several logs on one flash device. How the device tells their data apart decides what it costs.
//!
//! Each log goes around a ring of its own, in order, at its own speed. Data of a log dies in the
//! order of its writing. A superblock with data of one log alone dies whole; one that has data of
//! several must be cleaned.

use crate::bench::{Bench, Sample};
use crate::responses::BothTimes;
use crate::{LabError, shrink};
use forebay_flash::{Chance, DeviceSpec, FlashSpec, MediaSpec, Plp, Request, Status, ZonesSpec};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How the device tells logs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sorting {
    /// Not at all: the device as it is.
    None,
    /// Each log is a stream (or has a placement handle).
    Streams,
    /// Each log has zones; the same flash without a translation layer.
    Zones,
}

fn default_block() -> u32 {
    4096
}
fn default_outstanding() -> u32 {
    32
}

/// Logs at different speeds on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// The device at full size.
    pub device: DeviceSpec,
    /// How many times smaller its model is; 0: as small as stays faithful.
    #[serde(default)]
    pub scale: u32,
    /// Seed.
    #[serde(default)]
    pub seed: u64,
    /// How the device tells logs apart.
    pub sorting: Sorting,
    /// For each log, how often its turn comes, in relation to the others.
    pub speeds: Vec<u32>,
    /// Share of the device that the rings take together, in equal parts.
    pub used: f64,
    /// Times that the bytes of all rings are written before the measurement, and in it.
    pub rounds: u32,
    /// Bytes of a write.
    #[serde(default = "default_block")]
    pub block_bytes: u32,
    /// Writes outstanding.
    #[serde(default = "default_outstanding")]
    pub outstanding: u32,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogsOutcome {
    /// The measured rounds.
    pub whole: Sample,
    /// Bytes of a superblock or zone.
    pub segment_bytes: u64,
    /// Segments of each ring.
    pub segments: u64,
    /// Mean erases of a block over the whole run.
    pub erase_mean: f64,
}

/// One log: a ring of segments.
struct Ring {
    first_byte: u64,
    bytes: u64,
    next_byte: u64,
}

impl Logs {
    fn check(&self) -> Result<(), LabError> {
        let field = |name, found: &dyn std::fmt::Display, allowed| {
            Err(LabError::field("logs", name, found, allowed))
        };
        if self.speeds.is_empty() || self.speeds.len() > 64 {
            return field("speeds", &self.speeds.len(), "from 1 to 64 of them");
        }
        if let Some(speed) = self.speeds.iter().find(|speed| !(1..=1000).contains(*speed)) {
            return field("speeds", speed, "from 1 to 1000");
        }
        if !(self.used > 0.0 && self.used <= 1.0) {
            return field("used", &self.used, "above 0 and at most 1");
        }
        if !(1..=100).contains(&self.rounds) {
            return field("rounds", &self.rounds, "from 1 to 100");
        }
        if !(1..=65_536).contains(&self.outstanding) {
            return field("outstanding", &self.outstanding, "from 1 to 65,536");
        }
        let block = self.block_bytes;
        if !(4096..=1 << 20).contains(&block) || !block.is_power_of_two() {
            return field("block_bytes", &block, "a power of two from 4096 to 1,048,576");
        }
        self.device.check().map_err(LabError::from)
    }

    /// The device of the model, its scale, and the bytes of a superblock.
    fn model(&self) -> Result<(DeviceSpec, f64, u64), LabError> {
        let (mut device, scale) = shrink::shrink(&self.device, self.scale)?;
        let MediaSpec::Flash(flash) = &mut device.media else {
            return Err(LabError::NoFlash { device: device.name.clone() });
        };
        match self.sorting {
            Sorting::None => {}
            Sorting::Streams => flash.ftl.streams = self.speeds.len() as u32,
            Sorting::Zones => make_zoned(flash, self.speeds.len() as u32),
        }
        let g = &flash.geometry;
        let dies = match flash.ftl.superblock_dies {
            0 => g.channels * g.dies_per_channel,
            some => some,
        };
        let stripe_bytes = u64::from(g.page_bytes) * u64::from(g.planes_per_die);
        let segment_bytes = stripe_bytes * u64::from(g.pages_per_block) * u64::from(dies);
        Ok((device, scale, segment_bytes))
    }

    /// Runs all logs.
    pub fn run(&self) -> Result<LogsOutcome, LabError> {
        self.check()?;
        let (device, scale, segment_bytes) = self.model()?;
        let mut bench = Bench::new(&device, scale, self.seed)?;
        let logs = self.speeds.len() as u64;
        let share = (bench.capacity_bytes() as f64 * self.used) as u64 / logs;
        let segments = share / segment_bytes;
        // A log that writes into its only segment would overwrite what it has just written.
        if segments < 2 {
            let (request_bytes, room_bytes) = (2 * segment_bytes, share);
            return Err(LabError::RequestTooLarge { request_bytes, room_bytes });
        }
        let bytes = segments * segment_bytes;
        let mut rings: Vec<Ring> =
            (0..logs).map(|log| Ring { first_byte: log * bytes, bytes, next_byte: 0 }).collect();
        let writes = u64::from(self.rounds) * bytes * logs / u64::from(self.block_bytes);
        let mut chance = Chance::derive(self.seed, "logs");
        self.write(&mut bench, &mut rings, segment_bytes, writes, &mut chance)?;
        bench.start_counting();
        let (begin, before) = (bench.now, bench.stats());
        let times = self.write(&mut bench, &mut rings, segment_bytes, writes, &mut chance)?;
        let after = bench.stats();
        let between = after.since(&before);
        let seconds = (bench.now - begin).max(1) as f64 / 1e9;
        let responses = times.responses();
        let whole = Sample {
            minute: bench.minute_at(bench.now),
            iops: writes as f64 / seconds,
            mib_s: (writes * u64::from(self.block_bytes)) as f64 / seconds / f64::from(1 << 20),
            mean_ms: between.response_sum_ns as f64 / between.requests().max(1) as f64 / 1e6,
            max_ms: responses.writes.max_ms,
            power_w: between.energy_j / seconds,
            amplification: between.write_amplification(),
            responses,
        };
        Ok(LogsOutcome { whole, segment_bytes, segments, erase_mean: after.wear.mean })
    }

    /// So many writes, of the logs by chance. Returns how long they took.
    fn write(
        &self,
        bench: &mut Bench,
        rings: &mut [Ring],
        segment_bytes: u64,
        writes: u64,
        chance: &mut Chance,
    ) -> Result<BothTimes, LabError> {
        let (turns, block) = (self.speeds.iter().sum::<u32>(), u64::from(self.block_bytes));
        let mut in_flight: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        let mut times = BothTimes::default();
        for _ in 0..writes {
            if in_flight.len() >= self.outstanding as usize {
                if let Some(Reverse(done)) = in_flight.pop() {
                    bench.now = bench.now.max(done);
                }
            }
            let mut turn = chance.below(turns);
            let mut is_this = |speed: &&u32| {
                let found = turn < **speed;
                turn = turn.saturating_sub(**speed);
                found
            };
            let log = self.speeds.iter().take_while(|speed| !is_this(speed)).count();
            let ring = &mut rings[log];
            let offset = ring.first_byte + ring.next_byte % ring.bytes;
            if self.sorting == Sorting::Zones && offset % segment_bytes == 0 {
                bench.wait_for(&Request::trim(offset, segment_bytes))?;
            }
            ring.next_byte += block;
            let done = bench.submit(&Request::write(offset, block).on_stream(log as u8))?;
            if done.status == Status::WornOut {
                break;
            }
            times.note(false, done.at.0 - bench.now);
            in_flight.push(Reverse(done.at.0));
        }
        bench.now = in_flight.into_iter().map(|Reverse(at)| at).fold(bench.now, u64::max);
        Ok(times)
    }
}

/// The same flash with zones, without what only a translation layer has.
fn make_zoned(flash: &mut FlashSpec, logs: u32) {
    flash.zones = Some(ZonesSpec { max_open: logs, max_active: logs });
    flash.cache.plp = Plp::Full;
    flash.controller.compression = None;
    (flash.pslc, flash.map_memory, flash.thermal) = (None, None, None);
    (flash.ftl.streams, flash.ftl.map_journal_units, flash.ftl.read_disturb_reads) = (1, 0, 0);
}

#[cfg(test)]
mod tests;
