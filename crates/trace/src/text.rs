//! Lines and numbers of text formats.

use std::io::{self, BufRead, Read};

use forebay_units::{Nanos, SECTOR_BYTES};
use serde::Serialize;

use crate::error::{Rest, SkippedLines};
use crate::event::Event;
use crate::formats::Decode;
use crate::input::Input;
use crate::names::Names;

/// A line of a trace is never as long as this. What is longer counts as not understood.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// The first line of a text without the byte order mark that some programs put in front.
pub(crate) fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

/// What a line turned out to be.
pub(crate) enum Line {
    /// An event.
    Event(Event),
    /// A heading, a comment, a summary: understood, and no event.
    Nothing,
    /// Not understood.
    Unclear,
}

/// The reader of one text format, line by line.
pub(crate) trait ParseLine {
    /// Reads a line without its line feed.
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line;
}

/// A text format as a decoder.
pub(crate) struct Lines<P> {
    input: Input,
    parser: P,
    line: Vec<u8>,
    number: u64,
    skipped: SkippedLines,
}

impl<P> Lines<P> {
    pub(crate) fn new(input: Input, parser: P) -> Self {
        let skipped = SkippedLines::default();
        Self { input, parser, line: Vec::new(), number: 0, skipped }
    }

    /// Reads the next line; `false` at the end. Of a line that is too long only the beginning
    /// stays, and `true` in the second place.
    fn read_line(&mut self) -> io::Result<(bool, bool)> {
        self.line.clear();
        let read = (&mut self.input).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok((false, false));
        }
        self.number += 1;
        let is_too_long = read as u64 == MAX_LINE_BYTES && self.line.last() != Some(&b'\n');
        if is_too_long {
            self.skip_rest_of_line()?;
        }
        Ok((true, is_too_long))
    }

    fn skip_rest_of_line(&mut self) -> io::Result<()> {
        loop {
            let part = self.input.fill_buf()?;
            if part.is_empty() {
                return Ok(());
            }
            let end = part.iter().position(|b| *b == b'\n');
            let len = end.map_or(part.len(), |at| at + 1);
            self.input.consume(len);
            if end.is_some() {
                return Ok(());
            }
        }
    }

    fn skip(&mut self) {
        self.skipped.count += 1;
        if self.skipped.first == 0 {
            self.skipped.first = self.number;
        }
    }
}

impl<P: ParseLine> Decode for Lines<P> {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        loop {
            let offset = self.input.offset();
            let (is_there, is_too_long) =
                self.read_line().map_err(|error| Rest::of_io(error, offset))?;
            if !is_there {
                return Ok(None);
            }
            if is_too_long {
                self.skip();
                continue;
            }
            let (line, is_whole) = match self.line.strip_suffix(b"\n") {
                Some(line) => (line, true),
                None => (&self.line[..], false),
            };
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = if self.number == 1 { without_mark(line) } else { line };
            match self.parser.parse(line, names) {
                Line::Event(event) => return Ok(Some(event)),
                Line::Nothing => {}
                Line::Unclear if is_whole => self.skip(),
                Line::Unclear => return Err(Rest::Truncated { offset }),
            }
        }
    }

    fn skipped(&self) -> SkippedLines {
        self.skipped
    }
}

/// A unit of time of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

impl TimeUnit {
    /// Decimal places between the unit and a nanosecond.
    fn places(self) -> usize {
        match self {
            Self::S => 9,
            Self::Ms => 6,
            Self::Us => 3,
            Self::Ns => 0,
        }
    }
}

/// A number without a sign.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A time such as `12`, `12.` or `12.345678`, exactly; digits below a nanosecond are cut off.
pub(crate) fn time(text: &[u8], unit: TimeUnit) -> Option<Nanos> {
    let places = unit.places();
    let point = text.iter().position(|b| *b == b'.').unwrap_or(text.len());
    let whole = number(&text[..point])?;
    let digits = text.get(point + 1..).unwrap_or(&[]);
    let mut fraction = 0u64;
    for at in 0..places.max(digits.len()) {
        let digit = digits.get(at).map_or(0, |b| b.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        if at < places {
            fraction = fraction * 10 + u64::from(digit);
        }
    }
    let whole = whole.checked_mul(10u64.pow(places as u32))?;
    whole.checked_add(fraction).map(Nanos)
}

/// A range in sectors of 512 bytes, in bytes.
pub(crate) fn sectors(start: u64, count: u64) -> Option<(u64, u64)> {
    range(start.checked_mul(SECTOR_BYTES)?, count.checked_mul(SECTOR_BYTES)?)
}

/// A range in bytes whose end does not overflow.
pub(crate) fn range(offset_bytes: u64, len_bytes: u64) -> Option<(u64, u64)> {
    offset_bytes.checked_add(len_bytes).map(|_| (offset_bytes, len_bytes))
}

/// Exactly `N` columns between separators, without the spaces around them.
pub(crate) fn columns<const N: usize>(line: &[u8], separator: u8) -> Option<[&[u8]; N]> {
    let mut found: [&[u8]; N] = [&[]; N];
    let mut count = 0;
    for column in line.split(|b| *b == separator) {
        *found.get_mut(count)? = column.trim_ascii();
        count += 1;
    }
    (count == N).then_some(found)
}

/// The words of a line.
pub(crate) fn words(line: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}
