//! vscsi traces of VMware ESX, versions 1 (32 bytes a record) and 2 (40 bytes), little-endian.

use forebay_units::{Nanos, SECTOR_BYTES};

use crate::error::{Damage, Rest};
use crate::event::{Event, Flags, Op, Stage};
use crate::formats::Decode;
use crate::input::Input;
use crate::names::Names;
use crate::text::range;

/// The version of the format, in the upper byte of each record's version field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    fn record_bytes(self) -> usize {
        match self {
            Self::One => 32,
            Self::Two => 40,
        }
    }

    /// Whether the record carries this version.
    fn is_in(self, record: &[u8]) -> bool {
        match self {
            Self::One => record[15] == 1,
            Self::Two => record[3] == 2,
        }
    }
}

/// The version of which all whole records in `head` are; at least two of them.
pub(crate) fn detect(head: &[u8]) -> Option<Version> {
    const LOOKED_AT: usize = 16;
    [Version::Two, Version::One].into_iter().find(|version| {
        let mut records = head.chunks_exact(version.record_bytes()).take(LOOKED_AT);
        let is_plausible =
            |record: &[u8]| version.is_in(record) && op(command(*version, record)) != Op::Other;
        head.len() >= 2 * version.record_bytes() && records.all(is_plausible)
    })
}

fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
}

fn command(version: Version, record: &[u8]) -> u16 {
    match version {
        Version::One => u16_at(record, 12),
        Version::Two => u16_at(record, 0),
    }
}

/// SCSI operation codes (SBC-4).
fn op(command: u16) -> Op {
    match command & 0xff {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x35 | 0x91 => Op::Flush,
        0x42 => Op::Discard,
        _ => Op::Other,
    }
}

pub(crate) struct Vscsi {
    input: Input,
    version: Version,
}

impl Vscsi {
    pub(crate) fn new(input: Input, version: Version) -> Self {
        Self { input, version }
    }
}

impl Decode for Vscsi {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        let offset = self.input.offset();
        let mut bytes = [0u8; 40];
        let record = &mut bytes[..self.version.record_bytes()];
        if !self.input.fill(record).map_err(|error| Rest::of_io(error, offset))? {
            return Ok(None);
        }
        if !self.version.is_in(record) {
            return Err(Rest::corrupt(offset, Damage::Field));
        }
        let op = op(command(self.version, record));
        let (len, lbn, at_us, latency_us) = match self.version {
            Version::One => (u32_at(record, 4), u64_at(record, 16), u64_at(record, 24), None),
            Version::Two => {
                let response = u64_at(record, 32);
                (u32_at(record, 8), u64_at(record, 16), u64_at(record, 24), Some(response))
            }
        };
        let start = if op == Op::Flush { Some(0) } else { lbn.checked_mul(SECTOR_BYTES) };
        let len = if op == Op::Flush { 0 } else { u64::from(len) };
        let place = start.and_then(|start| range(start, len));
        let Some((offset_bytes, len_bytes)) = place else {
            return Err(Rest::corrupt(offset, Damage::Field));
        };
        let nanos = |us: u64| Nanos(us.saturating_mul(1000));
        let (time, latency) = (nanos(at_us), latency_us.map(nanos));
        let (stage, flags, pid) = (Stage::Request, Flags::default(), 0);
        let device = names.device(b"0");
        Ok(Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags }))
    }
}
