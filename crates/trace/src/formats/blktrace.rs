//! blktrace's binary records, as the kernel writes them: versions 7 and 8, either byte order.
//!
//! Records of one processor are in the order of time; several files are merged by
//! [`crate::Source::merged`].

use forebay_units::{Nanos, SECTOR_BYTES};

use crate::error::{Damage, Rest};
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use crate::formats::Decode;
use crate::input::Input;
use crate::names::Names;

/// The upper 24 bits of a record's first word; the lower 8 are its version.
const MAGIC: u32 = 0x6561_7400;
/// Bytes of a record of version 7, before its payload.
const HEADER_BYTES: usize = 48;
/// Bytes that version 8 has more, 12 of them padding.
const MORE_BYTES: usize = 16;

// Categories: bits of the upper half of the action.
const READ: u64 = 1;
const WRITE: u64 = 1 << 1;
const FLUSH: u64 = 1 << 2;
const SYNC: u64 = 1 << 3;
const PASSTHROUGH: u64 = 1 << 9;
const NOTIFY: u64 = 1 << 10;
const AHEAD: u64 = 1 << 11;
const META: u64 = 1 << 12;
const DISCARD: u64 = 1 << 13;
const FUA: u64 = 1 << 15;

/// Whether `head` begins with a record, and if so, whether its byte order is the other one.
pub(crate) fn byte_order(head: &[u8]) -> Option<bool> {
    let word: [u8; 4] = head.get(..4)?.try_into().ok()?;
    let is = |value: u32| value & !0xff == MAGIC;
    if is(u32::from_le_bytes(word)) {
        Some(false)
    } else if is(u32::from_be_bytes(word)) {
        Some(true)
    } else {
        None
    }
}

pub(crate) struct Blktrace {
    input: Input,
    is_big_endian: bool,
    payload: Vec<u8>,
    latest_device: Option<(u32, DeviceIndex)>,
}

/// The fields of a record, of either version.
struct Header {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    category: u64,
    pid: u32,
    device: u32,
    payload_len: usize,
}

impl Blktrace {
    pub(crate) fn new(input: Input, is_big_endian: bool) -> Self {
        Self { input, is_big_endian, payload: Vec::new(), latest_device: None }
    }

    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let part = [bytes[at], bytes[at + 1]];
        if self.is_big_endian { u16::from_be_bytes(part) } else { u16::from_le_bytes(part) }
    }

    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let part: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
        if self.is_big_endian { u32::from_be_bytes(part) } else { u32::from_le_bytes(part) }
    }

    fn u64(&self, bytes: &[u8], at: usize) -> u64 {
        let part: [u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes");
        if self.is_big_endian { u64::from_be_bytes(part) } else { u64::from_le_bytes(part) }
    }

    /// The next record's header; its payload stays in `self.payload`.
    fn record(&mut self) -> Result<Option<Header>, Rest> {
        let offset = self.input.offset();
        let failed = |error| Rest::of_io(error, offset);
        let mut bytes = [0u8; HEADER_BYTES + MORE_BYTES];
        if !self.input.fill(&mut bytes[..HEADER_BYTES]).map_err(failed)? {
            return Ok(None);
        }
        let magic = self.u32(&bytes, 0);
        if magic & !0xff != MAGIC {
            return Err(Rest::corrupt(offset, Damage::Magic { found: magic }));
        }
        let is_wide = magic & 0xff == 8;
        if is_wide && !self.input.fill(&mut bytes[HEADER_BYTES..]).map_err(failed)? {
            return Err(Rest::Truncated { offset });
        }
        let header = if is_wide { self.wide(&bytes) } else { self.narrow(&bytes) };
        self.payload.resize(header.payload_len, 0);
        let mut payload = std::mem::take(&mut self.payload);
        let is_there = payload.is_empty() || self.input.fill(&mut payload).map_err(failed)?;
        self.payload = payload;
        if is_there { Ok(Some(header)) } else { Err(Rest::Truncated { offset }) }
    }

    fn narrow(&self, bytes: &[u8]) -> Header {
        let action = self.u32(bytes, 28);
        Header {
            time: self.u64(bytes, 8),
            sector: self.u64(bytes, 16),
            bytes: self.u32(bytes, 24),
            action: action & 0xffff,
            category: u64::from(action >> 16),
            pid: self.u32(bytes, 32),
            device: self.u32(bytes, 36),
            payload_len: usize::from(self.u16(bytes, 46)),
        }
    }

    fn wide(&self, bytes: &[u8]) -> Header {
        let action = self.u64(bytes, 32);
        Header {
            time: self.u64(bytes, 8),
            sector: self.u64(bytes, 16),
            bytes: self.u32(bytes, 24),
            action: (action & 0xffff) as u32,
            category: action >> 16,
            pid: self.u32(bytes, 28),
            device: self.u32(bytes, 40),
            payload_len: usize::from(self.u16(bytes, 50)),
        }
    }

    /// Names of threads, and the wall-clock time of the trace's beginning.
    fn notice(&self, header: &Header, names: &mut Names) {
        const PROCESS: u32 = 0;
        const TIMESTAMP: u32 = 1;
        match header.action & 0xff {
            PROCESS => {
                let name = self.payload.split(|b| *b == 0).next().unwrap_or(&[]);
                names.set_process(header.pid, name);
            }
            TIMESTAMP if self.payload.len() >= 8 => {
                let secs = u64::from(self.u32(&self.payload, 0));
                let nanos = u64::from(self.u32(&self.payload, 4));
                let wall = secs.saturating_mul(1_000_000_000).saturating_add(nanos);
                names.set_wall_zero(wall.saturating_sub(header.time));
            }
            _ => {}
        }
    }

    fn device(&mut self, number: u32, names: &mut Names) -> DeviceIndex {
        if let Some((latest, index)) = self.latest_device {
            if latest == number {
                return index;
            }
        }
        // The kernel's dev_t: 12 bits of major, 20 of minor.
        let name = format!("{},{}", number >> 20, number & 0xf_ffff);
        let index = names.device(name.as_bytes());
        self.latest_device = Some((number, index));
        index
    }
}

/// Operation and attributes by category.
fn kind(category: u64, bytes: u32) -> (Op, Flags) {
    let mut flags = Flags::default();
    let pairs = [
        (FLUSH, Flags::PREFLUSH),
        (FUA, Flags::FUA),
        (SYNC, Flags::SYNC),
        (META, Flags::META),
        (AHEAD, Flags::AHEAD),
    ];
    for (bit, flag) in pairs {
        if category & bit != 0 {
            flags = flags.with(flag);
        }
    }
    let op = if category & FLUSH != 0 && bytes == 0 {
        Op::Flush
    } else if category & DISCARD != 0 {
        Op::Discard
    } else if category & WRITE != 0 {
        Op::Write
    } else if category & READ != 0 && bytes > 0 {
        Op::Read
    } else {
        Op::Other
    };
    (op, flags)
}

impl Decode for Blktrace {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        loop {
            let offset = self.input.offset();
            let Some(header) = self.record()? else { return Ok(None) };
            if header.category & NOTIFY != 0 {
                self.notice(&header, names);
                continue;
            }
            // Bit 8 of the action marks a control group's id in the payload.
            let stage = match header.action & 0xff {
                1 => Stage::Queued,
                7 => Stage::Issued,
                8 => Stage::Completed,
                _ => continue,
            };
            if header.category & PASSTHROUGH != 0 {
                continue;
            }
            let (op, flags) = kind(header.category, header.bytes);
            let len_bytes = u64::from(header.bytes);
            let start =
                if len_bytes == 0 { Some(0) } else { header.sector.checked_mul(SECTOR_BYTES) };
            let Some(offset_bytes) = start.filter(|start| start.checked_add(len_bytes).is_some())
            else {
                return Err(Rest::corrupt(offset, Damage::Field));
            };
            let device = self.device(header.device, names);
            let (time, latency, pid) = (Nanos(header.time), None, header.pid);
            return Ok(Some(Event {
                time,
                latency,
                offset_bytes,
                len_bytes,
                device,
                pid,
                op,
                stage,
                flags,
            }));
        }
    }
}
