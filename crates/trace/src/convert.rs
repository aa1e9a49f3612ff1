//! A trace in another format.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use forebay_units::{FixedSet, Nanos, SECTOR_BYTES};

use crate::event::{Event, Flags, Op, Stage};
use crate::formats::compact::CompactWriter;
use crate::formats::csv::OPEN_CAS_HEADING;
use crate::formats::fio::VERSION_3;
use crate::names::Names;

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This project's own: everything is kept.
    Forebay,
    /// CSV with the columns of the Open-CAS files. Threads, latencies and stages are lost.
    Csv,
    /// fio iolog version 3, for `fio --read_iolog`. Attributes are lost too.
    Fio,
    /// DiskSim ASCII with nanoseconds, as MQSim reads it: only reads and writes.
    Disksim,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 4] = [Target::Forebay, Target::Csv, Target::Fio, Target::Disksim];

    /// The name that `--to` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Csv => "csv",
            Self::Fio => "fio",
            Self::Disksim => "disksim",
        }
    }
}

/// No format that can be written has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTargetName;

impl fmt::Display for UnknownTargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no format that can be written has this name")
    }
}

impl std::error::Error for UnknownTargetName {}

impl FromStr for Target {
    type Err = UnknownTargetName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|t| t.name() == name).ok_or(UnknownTargetName)
    }
}

/// Writes events in a format.
pub struct Converter<W: Write> {
    to: To<W>,
    stage: Stage,
    first: Option<Nanos>,
    written: u64,
    left_out: u64,
    opened: FixedSet<u32>,
    line: Vec<u8>,
}

enum To<W: Write> {
    Compact(Box<CompactWriter<W>>),
    Text(Target, W),
}

impl<W: Write> Converter<W> {
    /// A converter to `out`. Of a source that tells stages apart, only requests at `stage` are
    /// written, except to the own format, which keeps all.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn new(target: Target, mut out: W, stage: Stage, has_times: bool) -> io::Result<Self> {
        let to = match target {
            Target::Forebay => To::Compact(Box::new(CompactWriter::new(out, has_times))),
            _ => {
                match target {
                    Target::Csv => writeln!(out, "{OPEN_CAS_HEADING}")?,
                    Target::Fio => writeln!(out, "{VERSION_3}")?,
                    Target::Disksim | Target::Forebay => {}
                }
                To::Text(target, out)
            }
        };
        let opened = FixedSet::default();
        Ok(Self { to, stage, first: None, written: 0, left_out: 0, opened, line: Vec::new() })
    }

    /// Writes an event.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let (target, out) = match &mut self.to {
            To::Compact(writer) => {
                self.written += 1;
                return writer.event(event, names);
            }
            To::Text(target, out) => (*target, out),
        };
        if event.stage != self.stage && event.stage != Stage::Request {
            return Ok(());
        }
        let first = *self.first.get_or_insert(event.time);
        let since = event.time.since(first);
        let is_new = self.opened.insert(event.device.0);
        self.line.clear();
        let is_written = match target {
            Target::Csv => csv(&mut self.line, event, names)?,
            Target::Fio => fio(&mut self.line, event, names, since, is_new)?,
            Target::Disksim => disksim(&mut self.line, event, since)?,
            Target::Forebay => false,
        };
        self.written += u64::from(is_written);
        self.left_out += u64::from(!is_written);
        out.write_all(&self.line)
    }

    /// Writes what belongs behind the last event. How many were written, and how many the format
    /// cannot say.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn finish(self, names: &Names) -> io::Result<(u64, u64)> {
        match self.to {
            To::Compact(writer) => {
                writer.finish(names)?;
            }
            To::Text(_, mut out) => out.flush()?,
        }
        Ok((self.written, self.left_out))
    }
}

/// `time_ns,device,op,start_sector,sectors,flags`.
fn csv(line: &mut Vec<u8>, event: &Event, names: &Names) -> io::Result<bool> {
    let has_sectors = (event.offset_bytes | event.len_bytes) % SECTOR_BYTES == 0;
    if !has_sectors {
        return Ok(false);
    }
    let device = names.device_name(event.device).replace(',', ":");
    let (start, count) = (event.offset_bytes / SECTOR_BYTES, event.len_bytes / SECTOR_BYTES);
    write!(line, "{},{device},{},{start},{count},", event.time.0, event.op.letter())?;
    let letters = [
        (Flags::FUA, b'F'),
        (Flags::PREFLUSH, b'P'),
        (Flags::SYNC, b'S'),
        (Flags::META, b'M'),
        (Flags::AHEAD, b'A'),
    ];
    line.extend(letters.iter().filter(|(flag, _)| event.flags.has(*flag)).map(|(_, l)| *l));
    line.push(b'\n');
    Ok(true)
}

/// `MICROSECONDS FILE ACTION [OFFSET LENGTH]`.
fn fio(
    line: &mut Vec<u8>,
    event: &Event,
    names: &Names,
    since: Nanos,
    is_new: bool,
) -> io::Result<bool> {
    let at = since.0 / 1000;
    // fio splits its lines at spaces, and takes `:` and `,` in names of files for separators.
    let file = names.device_name(event.device).replace([' ', ',', ':'], "_");
    if is_new {
        writeln!(line, "{at} {file} add\n{at} {file} open")?;
    }
    let action = match event.op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Discard => "trim",
        Op::Flush => {
            writeln!(line, "{at} {file} datasync 0 0")?;
            return Ok(true);
        }
        Op::Other => return Ok(false),
    };
    if event.len_bytes == 0 {
        return Ok(false);
    }
    writeln!(line, "{at} {file} {action} {} {}", event.offset_bytes, event.len_bytes)?;
    Ok(true)
}

/// `arrival_ns device sector sectors type`.
fn disksim(line: &mut Vec<u8>, event: &Event, since: Nanos) -> io::Result<bool> {
    let has_sectors = (event.offset_bytes | event.len_bytes) % SECTOR_BYTES == 0;
    if !event.op.is_data() || event.len_bytes == 0 || !has_sectors {
        return Ok(false);
    }
    let (start, count) = (event.offset_bytes / SECTOR_BYTES, event.len_bytes / SECTOR_BYTES);
    let kind = u8::from(event.op == Op::Read);
    writeln!(line, "{} {} {start} {count} {kind}", since.0, event.device.0)?;
    Ok(true)
}
