//! Writing the compact format.

use std::io::{self, Write};

use forebay_units::{FixedSet, SECTOR_BYTES};

use super::{
    CHUNK_HEADER_BYTES, CHUNK_MAGIC, Context, HAS_TIMES, HEADER_BYTES, MAGIC, MAX_NAME_BYTES,
    VERSION, checksum, more, tag, zigzag,
};
use crate::event::{DeviceIndex, Event, Op, Stage};
use crate::names::Names;

/// A chunk is written when its payload is as long as this.
const CHUNK_TARGET_BYTES: usize = 64 << 10;

/// Writes events in the compact format. [`Self::finish`] must be called: a file without an end
/// counts as truncated.
pub struct CompactWriter<W: Write> {
    out: W,
    has_times: bool,
    has_header: bool,
    payload: Vec<u8>,
    events: u32,
    context: Context,
    /// Devices below this index have their names in the file.
    named_devices: u32,
    named_threads: FixedSet<u32>,
}

impl<W: Write> CompactWriter<W> {
    /// A writer to `out`. `has_times`: whether the events' times mean something.
    pub fn new(out: W, has_times: bool) -> Self {
        Self {
            out,
            has_times,
            has_header: false,
            payload: Vec::with_capacity(CHUNK_TARGET_BYTES + 1024),
            events: 0,
            context: Context::default(),
            named_devices: 0,
            named_threads: FixedSet::default(),
        }
    }

    /// Adds an event. `names` has its device's and thread's names.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        self.header(names)?;
        self.names_of(event, names);
        self.entry(event);
        self.events += 1;
        if self.payload.len() >= CHUNK_TARGET_BYTES {
            self.end_chunk()?;
        }
        Ok(())
    }

    /// Writes what is buffered, as a chunk of its own.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn end_chunk(&mut self) -> io::Result<()> {
        if !self.payload.is_empty() {
            self.chunk()?;
        }
        self.out.flush()
    }

    /// Writes what is buffered and the end.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn finish(mut self, names: &Names) -> io::Result<W> {
        self.header(names)?;
        self.end_chunk()?;
        // A chunk without payload is the end.
        self.chunk()?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn header(&mut self, names: &Names) -> io::Result<()> {
        if std::mem::replace(&mut self.has_header, true) {
            return Ok(());
        }
        let mut header = [0u8; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..10].copy_from_slice(&VERSION.to_le_bytes());
        let bits = if self.has_times { HAS_TIMES } else { 0 };
        header[10..12].copy_from_slice(&bits.to_le_bytes());
        let wall_zero = names.wall_zero().map_or(0, |zero| zero.saturating_add(1));
        header[16..24].copy_from_slice(&wall_zero.to_le_bytes());
        let sum = checksum(&[&header[..24]]);
        header[24..].copy_from_slice(&sum.to_le_bytes());
        self.out.write_all(&header)
    }

    fn chunk(&mut self) -> io::Result<()> {
        let mut header = [0u8; CHUNK_HEADER_BYTES];
        header[..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[8..12].copy_from_slice(&self.events.to_le_bytes());
        let sum = checksum(&[&header[..16], &self.payload]);
        header[16..].copy_from_slice(&sum.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(&self.payload)?;
        self.payload.clear();
        self.events = 0;
        self.context = Context::default();
        Ok(())
    }

    /// Names that the file does not have yet.
    fn names_of(&mut self, event: &Event, names: &Names) {
        while self.named_devices <= event.device.0 {
            let at = self.named_devices;
            self.name(0, at, names.device_name(DeviceIndex(at)));
            self.named_devices += 1;
        }
        if event.pid != 0 && !self.named_threads.contains(&event.pid) {
            if let Some(name) = names.process_name(event.pid) {
                self.named_threads.insert(event.pid);
                self.name(1, event.pid, name);
            }
        }
    }

    fn name(&mut self, kind: u8, number: u32, name: &str) {
        let mut len = name.len().min(MAX_NAME_BYTES);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        self.payload.push(tag::NAME | kind << tag::STAGE_SHIFT);
        self.varint(u64::from(number));
        self.varint(len as u64);
        self.payload.extend_from_slice(&name.as_bytes()[..len]);
    }

    fn entry(&mut self, event: &Event) {
        let op = Op::ALL.iter().position(|op| *op == event.op).expect("every op is listed") as u8;
        let stage = Stage::ALL.iter().position(|s| *s == event.stage).expect("every stage is");
        let is_empty = event.len_bytes == 0;
        let is_same = event.device.0 == self.context.device && event.pid == self.context.pid;
        let is_next = !is_empty && event.offset_bytes == self.context.ends[stage];
        let in_bytes = (event.offset_bytes | event.len_bytes) % SECTOR_BYTES != 0;
        let mut second = event.flags.0 & more::FLAGS;
        second |= if event.latency.is_some() { more::LATENCY } else { 0 };
        second |= if in_bytes && !is_empty { more::BYTES } else { 0 };
        let mut first = op | (stage as u8) << tag::STAGE_SHIFT;
        first |= if is_same { tag::SAME_SOURCE } else { 0 };
        first |= if is_next { tag::SEQUENTIAL } else { 0 };
        first |= if second != 0 { tag::MORE } else { 0 };
        self.payload.push(first);
        if second != 0 {
            self.payload.push(second);
        }
        self.varint(zigzag(self.context.time, event.time.0));
        if !is_same {
            self.varint(u64::from(event.device.0));
            self.varint(u64::from(event.pid));
        }
        let unit = if second & more::BYTES != 0 { 1 } else { SECTOR_BYTES };
        self.varint(event.len_bytes / unit);
        if !is_empty && !is_next {
            // Ends of requests in bytes are rounded down when this one counts sectors.
            let from = self.context.ends[stage] / unit;
            self.varint(zigzag(from, event.offset_bytes / unit));
        }
        if let Some(latency) = event.latency {
            self.varint(latency.0);
        }
        self.context.time = event.time.0;
        (self.context.device, self.context.pid) = (event.device.0, event.pid);
        if !is_empty {
            self.context.ends[stage] = event.end_bytes();
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.payload.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.payload.push(value as u8);
    }
}
