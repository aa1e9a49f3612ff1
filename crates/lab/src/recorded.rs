//! Recorded traces as loads: which requests of a trace go to the device, and when.

use crate::{LabError, files, hash};
use forebay_trace::{Event, Flags, Op, ReadOptions, Source, Stage};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Longer transfers are left out: no block layer issues one.
const MAX_TRANSFER_BYTES: u64 = 8 << 20;
/// Places are folded back by a multiple of this.
const FOLD_BYTES: u64 = 4096;
/// A request counts where it was issued, else where it was queued, else where it completed.
const STAGES: [Stage; 3] = [Stage::Issued, Stage::Queued, Stage::Completed];

/// When the requests of a trace arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TracePace {
    /// At the trace's own times.
    #[default]
    Own,
    /// So many times as fast: 0.5 takes twice as long.
    Times(f64),
    /// As fast as the device answers; a flush waits for the requests before it.
    Max,
}

fn default_outstanding() -> u32 {
    32
}

/// A recorded trace as a load. Places and times are those of the full-size device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The trace, in any format that `forebay trace` reads.
    pub file: PathBuf,
    /// The name of its format; absent: it is recognized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// When its requests arrive.
    #[serde(default)]
    pub pace: TracePace,
    /// Requests outstanding at most, at the pace `max`.
    #[serde(default = "default_outstanding")]
    pub outstanding: u32,
    /// Leave out what is no read.
    #[serde(default)]
    pub reads_only: bool,
    /// Fold places beyond the device's end back into it.
    #[serde(default)]
    pub wraps: bool,
    /// Sixteen digits over the file, which are then checked. A sweep puts them here, so that points
    /// run again when the file has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Requests of a trace that did not go to the device, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// They end behind the device's end.
    pub beyond_end: u64,
    /// They are not whole sectors of 512 bytes.
    pub unaligned: u64,
    /// Of another kind than asked for, empty, too long, or not understood.
    pub other: u64,
}

impl Recorded {
    /// Checks all but the file.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), LabError> {
        if let TracePace::Times(factor) = self.pace {
            if !(factor > 0.0 && factor <= 1e6) {
                let allowed = "above 0 and at most 1,000,000";
                return Err(LabError::field("trace", "pace.times", factor, allowed));
            }
        }
        if !(1..=65_536).contains(&self.outstanding) {
            let found = self.outstanding;
            return Err(LabError::field("trace", "outstanding", found, "from 1 to 65,536"));
        }
        self.read_options().map(|_| ())
    }

    fn read_options(&self) -> Result<ReadOptions, LabError> {
        let Some(name) = &self.format else { return Ok(ReadOptions::default()) };
        let format = name.parse().map_err(|_| {
            LabError::field("trace", "format", name, "a name that `forebay trace --format` takes")
        })?;
        Ok(ReadOptions { format: Some(format), time_unit: None })
    }

    /// Notes what the file holds now.
    pub(crate) fn note_digest(&mut self) -> Result<(), LabError> {
        if self.digest.is_none() {
            self.digest = Some(hash::of_reader(files::open_named(&self.file)?, &self.file)?);
        }
        Ok(())
    }

    /// Opens the trace.
    pub(crate) fn open(&self) -> Result<Events, LabError> {
        self.check()?;
        if let Some(expected) = &self.digest {
            let found = hash::of_reader(files::open_named(&self.file)?, &self.file)?;
            if *expected != found {
                let (path, expected) = (self.file.clone(), expected.clone());
                return Err(LabError::TraceChanged { path, expected, found });
            }
        }
        let source = Source::open(files::open_named(&self.file)?, self.read_options()?);
        let source = source.map_err(|cause| LabError::Trace { path: self.file.clone(), cause })?;
        if !source.has_times() && self.pace != TracePace::Max {
            return Err(LabError::field("trace", "pace", "its own", "max: the trace has no times"));
        }
        let stage = source.stages().choose(&STAGES);
        Ok(Events { source, stage, left_out: LeftOut::default(), first_ns: None })
    }
}

/// The requests of a trace that a device can take.
pub(crate) struct Events {
    source: Source,
    stage: Stage,
    pub left_out: LeftOut,
    first_ns: Option<u64>,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceRequest {
    /// Since the first request, at the pace asked for.
    pub due_ns: u64,
    pub op: Op,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub fua: bool,
    /// The cache is flushed before the data is written.
    pub flushes_before: bool,
}

impl Events {
    /// What was left out of the trace at `path`, lines that were not understood among it.
    ///
    /// # Errors
    /// The trace is cut off or damaged: what came behind is not in the outcome.
    pub(crate) fn finish(self, path: &Path) -> Result<LeftOut, LabError> {
        let (_, remarks) = self.source.into_remarks();
        if let Some(rest) = remarks.rest {
            return Err(LabError::TraceDamaged { path: path.to_owned(), rest });
        }
        let other = self.left_out.other + remarks.skipped.count;
        Ok(LeftOut { other, ..self.left_out })
    }

    /// The next request for a device of `capacity_bytes`.
    pub(crate) fn next(&mut self, of: &Recorded, capacity_bytes: u64) -> Option<TraceRequest> {
        loop {
            let event = self.source.next()?;
            let counts = event.stage == self.stage || event.stage == Stage::Request;
            if !counts {
                continue;
            }
            let Some(offset_bytes) = self.place(&event, of, capacity_bytes) else { continue };
            let since = event.time.0.saturating_sub(*self.first_ns.get_or_insert(event.time.0));
            let due_ns = match of.pace {
                TracePace::Own => since,
                TracePace::Times(factor) => (since as f64 / factor) as u64,
                TracePace::Max => 0,
            };
            return Some(TraceRequest {
                due_ns,
                op: event.op,
                offset_bytes,
                len_bytes: event.len_bytes,
                fua: event.flags.has(Flags::FUA),
                flushes_before: event.op == Op::Write && event.flags.has(Flags::PREFLUSH),
            });
        }
    }

    /// Where the request goes; none when the device cannot take it.
    fn place(&mut self, event: &Event, of: &Recorded, capacity_bytes: u64) -> Option<u64> {
        let is_too_long = event.op.is_data() && event.len_bytes > MAX_TRANSFER_BYTES;
        let is_unwanted = of.reads_only && event.op != Op::Read;
        let is_empty = event.len_bytes == 0 && event.op != Op::Flush;
        if is_too_long || is_unwanted || is_empty || event.op == Op::Other {
            self.left_out.other += 1;
            return None;
        }
        if event.op == Op::Flush {
            return Some(0);
        }
        if (event.offset_bytes | event.len_bytes) % 512 != 0 {
            self.left_out.unaligned += 1;
            return None;
        }
        if event.end_bytes() <= capacity_bytes {
            return Some(event.offset_bytes);
        }
        if !of.wraps || event.len_bytes > capacity_bytes {
            self.left_out.beyond_end += 1;
            return None;
        }
        // Runs stay runs, and the place within a block of 4 KiB stays what it was.
        let whole = capacity_bytes - capacity_bytes % FOLD_BYTES;
        let offset_bytes = event.offset_bytes.checked_rem(whole).unwrap_or(0);
        Some(if offset_bytes + event.len_bytes > capacity_bytes { 0 } else { offset_bytes })
    }
}

#[cfg(test)]
mod tests;
