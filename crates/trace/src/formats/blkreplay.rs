//! blkreplay `.load` files: `seconds ; sector ; sectors ; R|W ; 0.0 ; 0.0`, one device.
//!
//! License text and headings stand in front, and may come again in between: only lines that begin
//! with a digit are rows.

use crate::event::{Event, Flags, Op, Stage};
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, number, sectors, time};

#[derive(Default)]
pub(crate) struct Blkreplay;

fn row(line: &[u8]) -> Option<Event> {
    let mut fields = line.split(|b| *b == b';').map(<[u8]>::trim_ascii);
    let at = time(fields.next()?, TimeUnit::S)?;
    let (start, count) = (number(fields.next()?)?, number(fields.next()?)?);
    let (offset_bytes, len_bytes) = sectors(start, count)?;
    let op = match fields.next()?.first()? {
        b'R' | b'r' => Op::Read,
        b'W' | b'w' => Op::Write,
        b'D' => Op::Discard,
        _ => return None,
    };
    let (stage, flags) = (Stage::Request, Flags::default());
    let device = crate::event::DeviceIndex::default();
    let (latency, pid, time) = (None, 0, at);
    Some(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
}

impl ParseLine for Blkreplay {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        if !line.trim_ascii_start().first().is_some_and(u8::is_ascii_digit) {
            return Line::Nothing;
        }
        match row(line) {
            Some(mut event) => {
                event.device = names.device(b"0");
                Line::Event(event)
            }
            // A sentence of the license may begin with a digit; a row has separators.
            None if line.contains(&b';') => Line::Unclear,
            None => Line::Nothing,
        }
    }
}
