//! Reading the compact format.

use forebay_units::{Nanos, SECTOR_BYTES};

use super::{
    CHUNK_HEADER_BYTES, CHUNK_MAGIC, Context, HAS_TIMES, HEADER_BYTES, MAX_NAME_BYTES,
    MAX_PAYLOAD_BYTES, checksum, more, tag, unzigzag,
};
use crate::error::{Damage, Rest};
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use crate::formats::Decode;
use crate::input::Input;
use crate::names::Names;

/// The version in a file's header, and whether its events have times. `None`: the header is
/// damaged.
pub(crate) fn header(head: &[u8]) -> Option<(u16, bool)> {
    let header = head.get(..HEADER_BYTES)?;
    let sum = u64::from_le_bytes(header[24..32].try_into().ok()?);
    let bits = u16::from_le_bytes([header[10], header[11]]);
    let is_whole = checksum(&[&header[..24]]) == sum;
    is_whole.then(|| (u16::from_le_bytes([header[8], header[9]]), bits & HAS_TIMES != 0))
}

pub(crate) struct Compact {
    input: Input,
    has_header: bool,
    has_ended: bool,
    payload: Vec<u8>,
    at: usize,
    chunk_offset: u64,
    context: Context,
    /// The file's number of a device to the reader's.
    devices: Vec<DeviceIndex>,
}

impl Compact {
    pub(crate) fn new(input: Input) -> Self {
        Self {
            input,
            has_header: false,
            has_ended: false,
            payload: Vec::new(),
            at: 0,
            chunk_offset: 0,
            context: Context::default(),
            devices: Vec::new(),
        }
    }

    fn read_header(&mut self, names: &mut Names) -> Result<(), Rest> {
        let mut bytes = [0u8; HEADER_BYTES];
        if !self.input.fill(&mut bytes).map_err(|error| Rest::of_io(error, 0))? {
            return Err(Rest::Truncated { offset: 0 });
        }
        if header(&bytes).is_none() {
            return Err(Rest::corrupt(0, Damage::Checksum));
        }
        let wall_zero = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        if let Some(zero) = wall_zero.checked_sub(1) {
            names.set_wall_zero(zero);
        }
        self.has_header = true;
        Ok(())
    }

    /// Reads the next chunk; `false` at the end.
    fn chunk(&mut self) -> Result<bool, Rest> {
        let offset = self.input.offset();
        let failed = |error| Rest::of_io(error, offset);
        let mut header = [0u8; CHUNK_HEADER_BYTES];
        if !self.input.fill(&mut header).map_err(failed)? {
            // The end is a chunk too.
            return Err(Rest::Truncated { offset });
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        if word(0) != CHUNK_MAGIC {
            return Err(Rest::corrupt(offset, Damage::Magic { found: word(0) }));
        }
        let len = word(4) as usize;
        if len > MAX_PAYLOAD_BYTES {
            return Err(Rest::corrupt(offset, Damage::Length { found: len as u64 }));
        }
        self.payload.resize(len, 0);
        if len > 0 && !self.input.fill(&mut self.payload).map_err(failed)? {
            return Err(Rest::Truncated { offset });
        }
        let sum = u64::from_le_bytes(header[16..].try_into().expect("eight bytes"));
        if checksum(&[&header[..16], &self.payload]) != sum {
            return Err(Rest::corrupt(offset, Damage::Checksum));
        }
        self.at = 0;
        self.chunk_offset = offset;
        self.context = Context::default();
        Ok(len > 0)
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.payload.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A device's or a thread's name.
    fn name(&mut self, kind: u8, names: &mut Names) -> Option<()> {
        let number = u32::try_from(self.varint()?).ok()?;
        let len = usize::try_from(self.varint()?).ok().filter(|len| *len <= MAX_NAME_BYTES)?;
        let name = self.payload.get(self.at..self.at + len)?.to_vec();
        self.at += len;
        match kind {
            // Devices are named in the order of their numbers.
            0 if number as usize == self.devices.len() => self.devices.push(names.device(&name)),
            1 => names.set_process(number, &name),
            _ => return None,
        }
        Some(())
    }

    /// An event. `None`: it makes no sense.
    fn entry(&mut self, first: u8) -> Option<Event> {
        let op = *Op::ALL.get(usize::from(first & tag::OP))?;
        let at = usize::from(first >> tag::STAGE_SHIFT & 3);
        let second = if first & tag::MORE != 0 { self.byte()? } else { 0 };
        let time = unzigzag(self.context.time, self.varint()?);
        if first & tag::SAME_SOURCE == 0 {
            self.context.device = u32::try_from(self.varint()?).ok()?;
            self.context.pid = u32::try_from(self.varint()?).ok()?;
        }
        let device = *self.devices.get(self.context.device as usize)?;
        let unit = if second & more::BYTES != 0 { 1 } else { SECTOR_BYTES };
        let len_bytes = self.varint()?.checked_mul(unit)?;
        let end = self.context.ends[at];
        let offset_bytes = if len_bytes == 0 {
            0
        } else if first & tag::SEQUENTIAL != 0 {
            end
        } else {
            unzigzag(end / unit, self.varint()?).checked_mul(unit)?
        };
        let latency = if second & more::LATENCY != 0 { Some(Nanos(self.varint()?)) } else { None };
        if len_bytes > 0 {
            self.context.ends[at] = offset_bytes.checked_add(len_bytes)?;
        }
        self.context.time = time;
        let (pid, stage) = (self.context.pid, Stage::ALL[at]);
        let (time, flags) = (Nanos(time), Flags(second & more::FLAGS));
        Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
    }
}

impl Decode for Compact {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        if !self.has_header {
            self.read_header(names)?;
        }
        loop {
            while self.at >= self.payload.len() {
                if self.has_ended || !self.chunk()? {
                    self.has_ended = true;
                    return Ok(None);
                }
            }
            let damaged = Rest::corrupt(self.chunk_offset, Damage::Field);
            let Some(first) = self.byte() else { return Err(damaged) };
            if first & tag::OP == tag::NAME {
                let kind = first >> tag::STAGE_SHIFT & 3;
                if self.name(kind, names).is_none() {
                    return Err(damaged);
                }
                continue;
            }
            return match self.entry(first) {
                Some(event) => Ok(Some(event)),
                None => Err(damaged),
            };
        }
    }
}
