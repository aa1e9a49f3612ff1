//! `biosnoop` of bcc: `TIME(s) COMM PID DISK T SECTOR BYTES [QUE(ms)] LAT(ms)`.
//!
//! A line is printed when its request completes, so events come in that order. A thread's name may
//! hold spaces: columns are counted from the right.

use crate::event::{Event, Stage};
use crate::formats::rwbs;
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, number, range, time, words};

#[derive(Default)]
pub(crate) struct Biosnoop {
    /// Columns behind `BYTES`, from the heading.
    has_queue_time: bool,
}

/// The heading's first word.
pub(crate) const HEADING: &[u8] = b"TIME(s)";

impl Biosnoop {
    fn row(&self, line: &[u8], names: &mut Names) -> Option<Event> {
        let mut fields = words(line);
        let at = time(fields.next()?, TimeUnit::S)?;
        let latency = time(fields.next_back()?, TimeUnit::Ms)?;
        if self.has_queue_time {
            time(fields.next_back()?, TimeUnit::Ms)?;
        }
        let (len_bytes, sector) = (number(fields.next_back()?)?, fields.next_back()?);
        let (letters, disk) = (fields.next_back()?, fields.next_back()?);
        let pid = u32::try_from(number(fields.next_back()?)?).ok()?;
        let (op, flags) = rwbs::parse(letters, len_bytes > 0)?;
        let (offset_bytes, len_bytes) = match len_bytes {
            // The sector of a flush is -1, in one notation or another.
            0 => (0, 0),
            _ => range(number(sector)?.checked_mul(forebay_units::SECTOR_BYTES)?, len_bytes)?,
        };
        if let Some(name) = fields.next() {
            let from = name.as_ptr() as usize - line.as_ptr() as usize;
            let last = fields.next_back().unwrap_or(name);
            let to = last.as_ptr() as usize - line.as_ptr() as usize + last.len();
            names.set_process(pid, &line[from..to]);
        }
        let device = names.device(disk);
        let (time, latency, stage) = (at, Some(latency), Stage::Completed);
        Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
    }
}

impl ParseLine for Biosnoop {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        let first = words(line).next().unwrap_or(&[]);
        if first == HEADING {
            self.has_queue_time = words(line).any(|word| word == b"QUE(ms)");
            return Line::Nothing;
        }
        match self.row(line, names) {
            Some(event) => Line::Event(event),
            None if first.first().is_some_and(u8::is_ascii_digit) => Line::Unclear,
            None => Line::Nothing,
        }
    }
}
