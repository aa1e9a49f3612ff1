//! dm-log-writes: the log of a device mapper target that records writes in the order in which they
//! became durable. It has no times.
//!
//! A superblock in the first sector, then for each entry a sector with its header, and the data of
//! writes behind it. Lengths count the log's own sectors.

use forebay_units::Nanos;

use crate::error::{Damage, Rest};
use crate::event::{Event, Flags, Op, Stage};
use crate::formats::Decode;
use crate::input::Input;
use crate::names::Names;
use crate::text::range;

/// The superblock's first eight bytes, little-endian.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
const METADATA: u64 = 1 << 4;
/// Bytes of the superblock that have a meaning.
const SUPER_BYTES: usize = 28;
/// Bytes of an entry's header.
const ENTRY_BYTES: usize = 32;

/// Whether `head` begins with the superblock.
pub(crate) fn detect(head: &[u8]) -> bool {
    head.starts_with(&MAGIC.to_le_bytes())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) struct LogWrites {
    input: Input,
    /// `None` before the superblock was read.
    geometry: Option<Geometry>,
    /// Bytes of data behind the header that was read last.
    data_bytes: u64,
}

#[derive(Clone, Copy)]
struct Geometry {
    sector_bytes: u64,
    entries_left: u64,
}

impl LogWrites {
    pub(crate) fn new(input: Input) -> Self {
        Self { input, geometry: None, data_bytes: 0 }
    }

    fn superblock(&mut self) -> Result<Geometry, Rest> {
        let failed = |error| Rest::of_io(error, 0);
        let mut bytes = [0u8; SUPER_BYTES];
        if !self.input.fill(&mut bytes).map_err(failed)? {
            return Err(Rest::Truncated { offset: 0 });
        }
        let sector_bytes = u64::from(u32::from_le_bytes(bytes[24..28].try_into().expect("four")));
        let is_possible = sector_bytes.is_power_of_two() && (512..=65536).contains(&sector_bytes);
        if !is_possible {
            return Err(Rest::corrupt(24, Damage::Length { found: sector_bytes }));
        }
        self.input.skip(sector_bytes - SUPER_BYTES as u64).map_err(failed)?;
        Ok(Geometry { sector_bytes, entries_left: u64_at(&bytes, 16) })
    }

    /// Reads the next entry's header and leaves out what the entry before had behind it.
    fn entry(&mut self, geometry: Geometry) -> Result<[u8; ENTRY_BYTES], Rest> {
        let offset = self.input.offset();
        let failed = |error| Rest::of_io(error, offset);
        self.input.skip(self.data_bytes).map_err(failed)?;
        self.data_bytes = 0;
        let mut bytes = [0u8; ENTRY_BYTES];
        if !self.input.fill(&mut bytes).map_err(failed)? {
            return Err(Rest::Truncated { offset: self.input.offset() });
        }
        self.input.skip(geometry.sector_bytes - ENTRY_BYTES as u64).map_err(failed)?;
        Ok(bytes)
    }
}

impl Decode for LogWrites {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        loop {
            let mut geometry = match self.geometry {
                Some(geometry) => geometry,
                None => self.superblock()?,
            };
            if geometry.entries_left == 0 {
                self.geometry = Some(geometry);
                return Ok(None);
            }
            geometry.entries_left -= 1;
            self.geometry = Some(geometry);
            let offset = self.input.offset().saturating_add(self.data_bytes);
            let entry = self.entry(geometry)?;
            let (sector, count, bits) = (u64_at(&entry, 0), u64_at(&entry, 8), u64_at(&entry, 16));
            let bytes = |sectors: u64| sectors.checked_mul(geometry.sector_bytes);
            let place = bytes(sector).zip(bytes(count)).and_then(|(at, len)| range(at, len));
            let Some((offset_bytes, len_bytes)) = place else {
                return Err(Rest::corrupt(offset, Damage::Field));
            };
            if bits & DISCARD == 0 {
                self.data_bytes = len_bytes;
            }
            if bits & MARK != 0 {
                // A mark's text stands in the header's own sector.
                self.data_bytes = 0;
                continue;
            }
            return Ok(Some(event(bits, offset_bytes, len_bytes, names)));
        }
    }
}

fn event(bits: u64, offset_bytes: u64, len_bytes: u64, names: &mut Names) -> Event {
    let mut flags = Flags::default();
    for (bit, flag) in [(FLUSH, Flags::PREFLUSH), (FUA, Flags::FUA), (METADATA, Flags::META)] {
        if bits & bit != 0 {
            flags = flags.with(flag);
        }
    }
    let op = match (bits & DISCARD != 0, len_bytes) {
        (true, _) => Op::Discard,
        (false, 0) if bits & FLUSH != 0 => Op::Flush,
        _ => Op::Write,
    };
    let offset_bytes = if op == Op::Flush { 0 } else { offset_bytes };
    let (time, latency, stage, pid) = (Nanos::ZERO, None, Stage::Request, 0);
    let device = names.device(b"0");
    Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags }
}
