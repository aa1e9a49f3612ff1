//! Loads: addresses, sizes, the share of reads, contents.

use crate::LabError;
use forebay_flash::Chance;
use serde::{Deserialize, Serialize};

mod arrivals;
mod places;

pub use arrivals::Arrivals;
pub(crate) use arrivals::{ArrivalTimes, exponential};
pub use places::Places;

use places::PlaceDraw;

/// What the data written looks like to a controller that compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Pseudo-random bytes: nothing to compress.
    #[default]
    PseudoRandom,
    /// Half of each block pseudo-random, half one byte repeated.
    Half,
    /// One byte repeated.
    Repeating,
}

impl Content {
    /// As pages print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PseudoRandom => "pseudo-random",
            Self::Half => "half repeating",
            Self::Repeating => "repeating byte",
        }
    }

    /// A block with such content.
    #[must_use]
    pub fn block(self, len_bytes: usize, seed: u64) -> Vec<u8> {
        let mut chance = Chance::derive(seed, "content");
        let random = match self {
            Self::PseudoRandom => len_bytes,
            Self::Half => len_bytes / 2,
            Self::Repeating => 0,
        };
        let mut block = vec![0x5a; len_bytes];
        for chunk in block[..random].chunks_mut(8) {
            let bytes = chance.bits().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        block
    }
}

fn default_block() -> u32 {
    4096
}
fn default_align() -> u32 {
    4096
}
fn default_outstanding() -> u32 {
    32
}
fn default_workers() -> u32 {
    1
}

/// How a load sorts its writes into streams of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// All in stream 0.
    #[default]
    One,
    /// Each worker's in a stream of its own.
    Workers,
    /// The first part of the span, up to this share of it, in stream 1, and the rest in stream 0.
    Split(f64),
}

impl Streams {
    fn is_one(&self) -> bool {
        *self == Self::One
    }
}

/// Requests that one load may keep outstanding: the most that one NVMe queue holds.
const MAX_OUTSTANDING: u32 = 65_536;

/// One kind of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct Load {
    /// Share of reads, 0 to 1.
    #[serde(default)]
    pub read_share: f64,
    /// Share of requests at a random place, 0 to 1; the others follow their worker's last one.
    #[serde(default)]
    pub random_share: f64,
    /// Bytes of a request.
    #[serde(default = "default_block")]
    pub block_bytes: u32,
    /// Random places are multiples of this many bytes.
    #[serde(default = "default_align")]
    pub align_bytes: u32,
    /// Added to every place: a partition that starts at a bad sector.
    #[serde(default)]
    pub offset_bytes: u64,
    /// Share of requests that trim their blocks instead, 0 to 1; reads and writes share the rest.
    #[serde(default)]
    pub trim_share: f64,
    /// Which places random requests go to.
    #[serde(default)]
    pub places: Places,
    /// When requests arrive.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Requests each worker keeps outstanding, when the load is closed.
    #[serde(default = "default_outstanding")]
    pub outstanding: u32,
    /// Workers, each with a queue and a sequential position of its own.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Bytes from the start of the device that are used; 0 means all.
    #[serde(default)]
    pub span_bytes: u64,
    /// What the data looks like.
    #[serde(default)]
    pub content: Content,
    /// Whether each write must be durable before it completes.
    #[serde(default)]
    pub fua: bool,
    /// How writes are sorted into streams, where the device has several.
    #[serde(default, skip_serializing_if = "Streams::is_one")]
    pub streams: Streams,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            read_share: 0.0,
            random_share: 0.0,
            block_bytes: default_block(),
            align_bytes: default_align(),
            offset_bytes: 0,
            trim_share: 0.0,
            places: Places::Uniform,
            arrivals: Arrivals::Closed,
            outstanding: default_outstanding(),
            workers: 1,
            span_bytes: 0,
            content: Content::PseudoRandom,
            fua: false,
            streams: Streams::One,
        }
    }
}

impl Load {
    /// Checks that a device can be asked for this load.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), LabError> {
        for (field, value) in [
            ("read_share", self.read_share),
            ("random_share", self.random_share),
            ("trim_share", self.trim_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(LabError::field("load", field, value, "from 0 to 1"));
            }
        }
        if let Streams::Split(share) = self.streams {
            if !(0.0..=1.0).contains(&share) {
                return Err(LabError::field("load", "streams.split", share, "from 0 to 1"));
            }
        }
        self.places.check()?;
        self.arrivals.check()?;
        for (field, bytes) in [("block_bytes", self.block_bytes), ("align_bytes", self.align_bytes)]
        {
            if bytes == 0 || bytes % 512 != 0 {
                return Err(LabError::field("load", field, bytes, "a multiple of 512 above 0"));
            }
        }
        if self.offset_bytes % 512 != 0 {
            let bytes = self.offset_bytes;
            return Err(LabError::field("load", "offset_bytes", bytes, "a multiple of 512"));
        }
        for (field, count) in [("outstanding", self.outstanding), ("workers", self.workers)] {
            if !(1..=MAX_OUTSTANDING).contains(&count) {
                return Err(LabError::field("load", field, count, "from 1 to 65,536"));
            }
        }
        if self.depth() > MAX_OUTSTANDING {
            let depth = self.depth();
            let allowed = "at most 65,536";
            return Err(LabError::field("load", "outstanding times workers", depth, allowed));
        }
        Ok(())
    }

    /// Requests outstanding in all.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.outstanding.saturating_mul(self.workers)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AskKind {
    Read,
    Write,
    Trim,
}

/// One request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub kind: AskKind,
    pub offset_bytes: u64,
    pub len_bytes: u32,
    pub stream: u8,
}

/// The stream of requests of a [`Load`] on a device of a given size.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    chance: Chance,
    positions: Vec<u64>,
    read_threshold: u64,
    random_threshold: u64,
    trim_threshold: u64,
    places: PlaceDraw,
    /// Places below this are of stream 1.
    split: u64,
    by_worker: bool,
    align: u64,
    offset: u64,
    end: u64,
    block: u64,
}

/// The number below which 32 random bits fall with probability `share`.
fn threshold(share: f64) -> u64 {
    (share * 4_294_967_296.0) as u64
}

impl Asks {
    /// The requests of `load` on a device of `capacity_bytes`.
    ///
    /// # Errors
    /// A field of the load is out of range, or not even one request fits.
    pub(crate) fn new(load: &Load, capacity_bytes: u64, seed: u64) -> Result<Self, LabError> {
        load.check()?;
        let span = if load.span_bytes == 0 { capacity_bytes } else { load.span_bytes };
        let end = capacity_bytes.min(load.offset_bytes.saturating_add(span));
        let (block, align) = (u64::from(load.block_bytes), u64::from(load.align_bytes));
        let room = end.saturating_sub(load.offset_bytes);
        if room < block {
            return Err(LabError::RequestTooLarge { request_bytes: block, room_bytes: room });
        }
        let places = u32::try_from((room - block) / align + 1).unwrap_or(u32::MAX);
        let workers = u64::from(load.workers);
        // Workers start apart, on the alignment of the load.
        let start = |w: u64| load.offset_bytes + (room / workers * w) / align * align;
        Ok(Self {
            chance: Chance::derive(seed, "load"),
            positions: (0..workers).map(start).collect(),
            read_threshold: threshold(load.read_share),
            random_threshold: threshold(load.random_share),
            trim_threshold: threshold(load.trim_share),
            places: PlaceDraw::new(load.places, places),
            split: match load.streams {
                Streams::Split(share) => load.offset_bytes + (room as f64 * share) as u64,
                Streams::One | Streams::Workers => 0,
            },
            by_worker: load.streams == Streams::Workers,
            align,
            offset: load.offset_bytes,
            end,
            block,
        })
    }

    /// The next request of `worker`.
    #[inline]
    pub(crate) fn next(&mut self, worker: usize) -> Ask {
        let bits = self.chance.bits();
        let random = (bits & 0xffff_ffff) < self.random_threshold;
        let read = (bits >> 32) < self.read_threshold;
        let position = &mut self.positions[worker];
        if random {
            *position = self.offset + u64::from(self.places.next(&mut self.chance)) * self.align;
        } else if *position + self.block > self.end {
            *position = self.offset;
        }
        // A load without trims draws no number for them, so that it stays what it was.
        let trims =
            self.trim_threshold > 0 && (self.chance.bits() & 0xffff_ffff) < self.trim_threshold;
        let kind = match (trims, read) {
            (true, _) => AskKind::Trim,
            (_, true) => AskKind::Read,
            _ => AskKind::Write,
        };
        let stream = if self.by_worker { worker as u8 } else { u8::from(*position < self.split) };
        let ask = Ask { kind, offset_bytes: *position, len_bytes: self.block as u32, stream };
        *position += self.block;
        ask
    }
}

#[cfg(test)]
mod tests;
