//! Events of the kernel's ring buffers: pages of `trace_pipe_raw` with three block events.
//!
//! What enters: the text of each event's `format` file, and pages of any processor. What leaves:
//! events in the order of time. What always holds: no page makes it panic; other events are passed
//! over. `cli` sets the tracing up.

use std::fmt;

use forebay_units::{Nanos, SECTOR_BYTES};

use crate::event::{Event, Stage};
use crate::formats::rwbs;
use crate::names::Names;

/// The events of the group `block` that are wanted, and the stage that each shows.
pub const KERNEL_EVENTS: [(&str, Stage); 3] = [
    ("block_bio_queue", Stage::Queued),
    ("block_rq_issue", Stage::Issued),
    ("block_rq_complete", Stage::Completed),
];

/// Bytes in front of a page's entries: its time and how much it holds.
const PAGE_HEADER_BYTES: usize = 16;
/// Bits of the second word that are the length; the highest two say that events were lost.
const COMMIT_MASK: u64 = 0x3fff_ffff;
const LOST_EVENTS: u64 = 1 << 31;

/// The `format` file of an event lacks what a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// The event.
    pub event: String,
    /// The field, or `ID`.
    pub field: &'static str,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel's event {} has no field '{}'", self.event, self.field)
    }
}

impl std::error::Error for LayoutError {}

/// Where an event's fields lie: offset and length in bytes.
struct Layout {
    id: u16,
    stage: Stage,
    pid: Field,
    sector: Field,
    sectors: Field,
    rwbs: Field,
    /// The thread's name; completions have none.
    comm: Option<Field>,
}

#[derive(Clone, Copy)]
struct Field {
    offset: usize,
    len: usize,
}

impl Field {
    fn of(self, entry: &[u8]) -> Option<&[u8]> {
        entry.get(self.offset..self.offset.checked_add(self.len)?)
    }

    fn number(self, entry: &[u8]) -> Option<u64> {
        let bytes = self.of(entry)?;
        let mut word = [0u8; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    /// Text up to its zero byte.
    fn text(self, entry: &[u8]) -> Option<&[u8]> {
        self.of(entry)?.split(|b| *b == 0).next()
    }
}

impl Layout {
    fn new(event: &str, stage: Stage, format: &str) -> Result<Self, LayoutError> {
        let missing = |field| LayoutError { event: event.to_owned(), field };
        let id = format.lines().find_map(|line| line.strip_prefix("ID: ")?.trim().parse().ok());
        let field = |name: &'static str| field(format, name).ok_or(missing(name));
        Ok(Self {
            id: id.ok_or(missing("ID"))?,
            stage,
            pid: field("common_pid")?,
            sector: field("sector")?,
            sectors: field("nr_sector")?,
            rwbs: field("rwbs")?,
            comm: field("comm").ok(),
        })
    }

    fn event(&self, entry: &[u8], time: Nanos, names: &mut Names, device: &str) -> Option<Event> {
        let pid = self.pid.number(entry)? as u32;
        let count = self.sectors.number(entry)?;
        let len_bytes = count.checked_mul(SECTOR_BYTES)?;
        let (op, flags) = rwbs::parse(self.rwbs.text(entry)?, count > 0)?;
        let offset_bytes = match count {
            0 => 0,
            _ => self.sector.number(entry)?.checked_mul(SECTOR_BYTES)?,
        };
        offset_bytes.checked_add(len_bytes)?;
        if let Some(name) = self.comm.and_then(|comm| comm.text(entry)) {
            names.set_process(pid, name);
        }
        let device = names.device(device.as_bytes());
        let (latency, stage) = (None, self.stage);
        Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
    }
}

/// A line such as `field:sector_t sector; offset:16; size:8; signed:0;`, with tabs for spaces.
fn field(format: &str, name: &str) -> Option<Field> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let declared = parts.next()?.rsplit(' ').next()?;
        if declared.split('[').next()? != name {
            return None;
        }
        let mut value = |label: &str| parts.next()?.strip_prefix(label)?.parse().ok();
        let (offset, len) = (value("offset:")?, value("size:")?);
        Some(Field { offset, len })
    })
}

/// Events from the kernel's ring buffers.
pub struct KernelEvents {
    layouts: Vec<Layout>,
    device: String,
    names: Names,
    pending: Vec<Event>,
    lost_pages: u64,
}

impl KernelEvents {
    /// For the block events of one device. `formats`: the text of the `format` file of each of
    /// [`KERNEL_EVENTS`], in that order. `wall_zero_ns`: nanoseconds from 1970 to the zero of the
    /// kernel's trace clock.
    ///
    /// # Errors
    /// [`LayoutError`] for a kernel whose events have other fields.
    pub fn new(
        device: &str,
        formats: &[String; 3],
        wall_zero_ns: u64,
    ) -> Result<Self, LayoutError> {
        let mut layouts = Vec::new();
        for ((event, stage), format) in KERNEL_EVENTS.iter().zip(formats) {
            layouts.push(Layout::new(event, *stage, format)?);
        }
        let mut names = Names::default();
        names.set_wall_zero(wall_zero_ns);
        let device = device.to_owned();
        Ok(Self { layouts, device, names, pending: Vec::new(), lost_pages: 0 })
    }

    /// Takes a page, as one read of `trace_pipe_raw` gives it.
    pub fn page(&mut self, page: &[u8]) {
        let Some((header, data)) = page.split_at_checked(PAGE_HEADER_BYTES) else { return };
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight"));
        let (mut time, commit) = (word(0), word(8));
        self.lost_pages += u64::from(commit & LOST_EVENTS != 0);
        let len = usize::try_from(commit & COMMIT_MASK).unwrap_or(usize::MAX).min(data.len());
        let mut data = &data[..len];
        while let Some((entry, rest)) = next_entry(data, &mut time) {
            if let Some(entry) = entry {
                self.entry(entry, Nanos(time));
            }
            data = rest;
        }
    }

    fn entry(&mut self, entry: &[u8], time: Nanos) {
        let Some(id) = entry.get(..2).map(|id| u16::from_le_bytes([id[0], id[1]])) else { return };
        let Some(layout) = self.layouts.iter().find(|layout| layout.id == id) else { return };
        self.pending.extend(layout.event(entry, time, &mut self.names, &self.device));
    }

    /// The events before `end`, in the order of time. All pages that hold such events must have
    /// been taken: what the kernel gave after `end` was read from its clock.
    pub fn take_before(&mut self, end: Nanos) -> Vec<Event> {
        self.pending.sort_by_key(|event| event.time);
        let count = self.pending.partition_point(|event| event.time < end);
        self.pending.drain(..count).collect()
    }

    /// Names of the device and of threads.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Pages in front of which the kernel had to drop events.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        self.lost_pages
    }
}

/// The entry in front of `data`, if it is one, and what follows it. Moves `time` on. `None` at the
/// page's end.
fn next_entry<'a>(data: &'a [u8], time: &mut u64) -> Option<(Option<&'a [u8]>, &'a [u8])> {
    const PADDING: u32 = 29;
    const TIME_EXTEND: u32 = 30;
    const TIME_STAMP: u32 = 31;
    /// Bits of a time in an entry's first word.
    const DELTA_BITS: u32 = 27;
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
    };
    let first = word(0)?;
    let (kind, delta) = (first & 0x1f, u64::from(first >> 5));
    let long = || Some(u64::from(word(4)?) << DELTA_BITS | delta);
    match kind {
        TIME_EXTEND => {
            *time = time.wrapping_add(long()?);
            Some((None, data.get(8..)?))
        }
        TIME_STAMP => {
            // The highest bits are those of the time before.
            const STAMP_BITS: u32 = 59;
            *time = *time >> STAMP_BITS << STAMP_BITS | long()?;
            Some((None, data.get(8..)?))
        }
        // Padding without a time is the rest of the page.
        PADDING if delta == 0 => None,
        PADDING => {
            *time = time.wrapping_add(delta);
            Some((None, data.get((word(4)? as usize).checked_add(4)?..)?))
        }
        0 => {
            *time = time.wrapping_add(delta);
            let end = (word(4)? as usize).checked_add(4)?;
            Some((Some(data.get(8..end)?), data.get(end..)?))
        }
        words => {
            *time = time.wrapping_add(delta);
            let end = 4 + words as usize * 4;
            Some((Some(data.get(4..end)?), data.get(end..)?))
        }
    }
}

#[cfg(test)]
mod tests;
