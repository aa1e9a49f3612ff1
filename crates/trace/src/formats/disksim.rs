//! DiskSim ASCII: `arrival device sector sectors type`, where type 0 is a write and 1 a read.
//!
//! MQSim's files have whole nanoseconds, DiskSim's own have milliseconds with a fraction.

use crate::event::{Event, Flags, Op, Stage};
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, number, sectors, time, words};

pub(crate) struct Disksim {
    unit: Option<TimeUnit>,
}

impl Disksim {
    /// `unit`: of the arrival; by default by whether it has a fraction.
    pub(crate) fn new(unit: Option<TimeUnit>) -> Self {
        Self { unit }
    }

    fn row(&self, line: &[u8], names: &mut Names) -> Option<Event> {
        let mut fields = words(line);
        let at = fields.next()?;
        let device = fields.next()?;
        number(device)?;
        let (start, count) = (number(fields.next()?)?, number(fields.next()?)?);
        let kind = number(fields.next()?)?;
        if fields.next().is_some() {
            return None;
        }
        let own = if at.contains(&b'.') { TimeUnit::Ms } else { TimeUnit::Ns };
        let time = time(at, self.unit.unwrap_or(own))?;
        let (offset_bytes, len_bytes) = sectors(start, count)?;
        let op = if kind & 1 == 1 { Op::Read } else { Op::Write };
        let (stage, flags, latency, pid) = (Stage::Request, Flags::default(), None, 0);
        let device = names.device(device);
        Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
    }
}

impl ParseLine for Disksim {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        match self.row(line, names) {
            Some(event) => Line::Event(event),
            None if line.trim_ascii().is_empty() || line.starts_with(b"#") => Line::Nothing,
            None => Line::Unclear,
        }
    }
}
