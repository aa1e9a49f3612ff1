//! `blkparse` text in its default format: `65,0 1 17 0.000812 457 Q W 92200 + 136 [name]`.

use crate::event::{Event, Stage};
use crate::formats::rwbs;
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, number, sectors, time, words};

/// Columns before those that depend on the action.
const FIXED_COLUMNS: usize = 7;

#[derive(Default)]
pub(crate) struct Blkparse;

impl ParseLine for Blkparse {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        let mut fields: [&[u8]; FIXED_COLUMNS] = [&[]; FIXED_COLUMNS];
        let mut rest = words(line);
        for field in &mut fields {
            let Some(word) = rest.next() else { return not_an_event(line) };
            *field = word;
        }
        let [device, cpu, sequence, at, pid, action, letters] = fields;
        let is_event = is_device(device) && number(cpu).is_some() && number(sequence).is_some();
        let (Some(at), Some(pid)) = (time(at, TimeUnit::S), number(pid)) else {
            return not_an_event(line);
        };
        if !is_event {
            return not_an_event(line);
        }
        let stage = match action {
            b"Q" => Stage::Queued,
            b"D" => Stage::Issued,
            b"C" => Stage::Completed,
            _ => return Line::Nothing,
        };
        let Some((offset_bytes, len_bytes)) = range_of(rest) else {
            return Line::Unclear;
        };
        let Some((op, flags)) = rwbs::parse(letters, len_bytes > 0) else { return Line::Unclear };
        let pid = pid as u32;
        if stage != Stage::Completed {
            if let Some(name) = name_at_end(line) {
                names.set_process(pid, name);
            }
        }
        let device = names.device(device);
        let latency = None;
        let time = at;
        Line::Event(Event { time, latency, offset_bytes, len_bytes, device, pid, op, stage, flags })
    }
}

/// `major,minor`.
fn is_device(word: &[u8]) -> bool {
    let mut parts = word.split(|b| *b == b',');
    let numbers = parts.by_ref().take(2).filter(|part| number(part).is_some()).count();
    numbers == 2 && parts.next().is_none()
}

/// A heading or a line of the summary at the end has no device in front; anything that has one is
/// a damaged event.
fn not_an_event(line: &[u8]) -> Line {
    let first = words(line).next().unwrap_or(&[]);
    if is_device(first) { Line::Unclear } else { Line::Nothing }
}

/// `SECTOR + SECTORS`, or nothing for requests without data.
fn range_of<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Option<(u64, u64)> {
    let (sector, plus) = (words.next(), words.next());
    match (sector.and_then(number), plus) {
        (Some(start), Some(b"+")) => sectors(start, number(words.next()?)?),
        // `C FN 0 [0]`, `Q FW [name]`: a flush, or the end of one.
        _ => Some((0, 0)),
    }
}

/// The thread's name, in brackets at the line's end.
fn name_at_end(line: &[u8]) -> Option<&[u8]> {
    let inner = line.trim_ascii_end().strip_suffix(b"]")?;
    let open = inner.iter().position(|b| *b == b'[')?;
    Some(&inner[open + 1..])
}
