//! fio's iolog, versions 2 and 3.
//!
//! Version 2: `FILE ACTION [OFFSET LENGTH]`, with time only in `FILE wait MICROSECONDS`. Version 3
//! puts a time in front of each line. fio itself writes microseconds there; some converters write
//! milliseconds, so the unit is an option.

use forebay_units::Nanos;

use crate::event::{Event, Flags, Op, Stage};
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, number, range, time, words};

/// The first line of version 2.
pub(crate) const VERSION_2: &str = "fio version 2 iolog";
/// The first line of version 3.
pub(crate) const VERSION_3: &str = "fio version 3 iolog";

pub(crate) struct Fio {
    unit: TimeUnit,
    has_times: bool,
    now: Nanos,
}

impl Fio {
    /// `unit`: of the times of version 3 and of the waits of version 2; microseconds by default.
    pub(crate) fn new(has_times: bool, unit: Option<TimeUnit>) -> Self {
        Self { unit: unit.unwrap_or(TimeUnit::Us), has_times, now: Nanos::ZERO }
    }

    fn row(&mut self, line: &[u8], names: &mut Names) -> Option<Line> {
        let mut fields = words(line);
        if self.has_times {
            self.now = time(fields.next()?, self.unit)?;
        }
        let (file, action) = (fields.next()?, fields.next()?);
        let op = match action {
            b"add" | b"open" | b"close" => return Some(Line::Nothing),
            b"wait" => {
                self.now = self.now + time(fields.next()?, self.unit)?;
                return Some(Line::Nothing);
            }
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Discard,
            b"sync" | b"datasync" | b"syncfs" | b"sync_file_range" => Op::Flush,
            _ => return None,
        };
        let (offset_bytes, len_bytes) = match op {
            Op::Flush => (0, 0),
            _ => range(number(fields.next()?)?, number(fields.next()?)?)?,
        };
        let device = names.device(file);
        let (stage, flags, latency, pid) = (Stage::Request, Flags::default(), None, 0);
        let time = self.now;
        let event = Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags };
        Some(Line::Event(event))
    }
}

impl ParseLine for Fio {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        let text = line.trim_ascii();
        if text.is_empty() || text == VERSION_2.as_bytes() || text == VERSION_3.as_bytes() {
            return Line::Nothing;
        }
        self.row(line, names).unwrap_or(Line::Unclear)
    }
}
