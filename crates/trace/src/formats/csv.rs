//! Tables with commas: MSR Cambridge, Alibaba, Tencent, SYSTOR '17 and Open-CAS.
//!
//! `docs/trace.md` says where each data set describes its columns.

use forebay_units::Nanos;

use crate::event::{Event, Flags, Op, Stage};
use crate::names::Names;
use crate::text::{Line, ParseLine, TimeUnit, columns, number, range, sectors, time};

/// 100 ns ticks between 1601, where Windows counts from, and 1970.
const TICKS_1601_TO_1970: u64 = 116_444_736_000_000_000;

/// A row that is one request.
struct Request<'a> {
    at: Nanos,
    latency: Option<Nanos>,
    op: Op,
    range: (u64, u64),
    device: &'a [u8],
    flags: Flags,
}

/// The event of a row. Without one, the line is a heading or a comment when no column begins like
/// a number.
fn event(row: Option<Request<'_>>, line: &[u8], names: &mut Names) -> Line {
    let Some(row) = row else {
        let is_comment = line.trim_ascii_start().starts_with(b"#");
        let number = |column: &[u8]| {
            let digits = column.trim_ascii().strip_prefix(b"-").unwrap_or(column.trim_ascii());
            digits.first().is_some_and(u8::is_ascii_digit)
        };
        let is_data = !is_comment && line.split(|b| *b == b',').any(number);
        return if is_data { Line::Unclear } else { Line::Nothing };
    };
    Line::Event(Event {
        time: row.at,
        latency: row.latency,
        offset_bytes: row.range.0,
        len_bytes: row.range.1,
        device: names.device(row.device),
        pid: 0,
        op: row.op,
        stage: Stage::Request,
        flags: row.flags,
    })
}

/// `R` or `W`, in either case.
fn read_or_write(letter: &[u8]) -> Option<Op> {
    match letter {
        b"R" | b"r" => Some(Op::Read),
        b"W" | b"w" => Some(Op::Write),
        _ => None,
    }
}

/// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: ticks of 100 ns, bytes.
#[derive(Default)]
pub(crate) struct Msr {
    device: Vec<u8>,
}

impl Msr {
    fn row<'a>(device: &'a mut Vec<u8>, line: &[u8]) -> Option<Request<'a>> {
        let [at, host, disk, kind, offset, len, response] = columns::<7>(line, b',')?;
        let ticks = number(at)?;
        let at = Nanos(ticks.saturating_sub(TICKS_1601_TO_1970).checked_mul(100)?);
        let latency = number(response)?.checked_mul(100).map(Nanos)?;
        let op = match kind {
            b"Read" | b"read" => Op::Read,
            b"Write" | b"write" => Op::Write,
            _ => return None,
        };
        let range = range(number(offset)?, number(len)?)?;
        device.clear();
        device.extend_from_slice(host);
        device.push(b'_');
        device.extend_from_slice(disk);
        let (latency, flags) = (Some(latency), Flags::default());
        Some(Request { at, latency, op, range, device, flags })
    }
}

impl ParseLine for Msr {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        names.set_wall_zero(0);
        event(Self::row(&mut self.device, line), line, names)
    }
}

/// `device_id,opcode,offset,length,timestamp`: bytes, microseconds since 1970.
#[derive(Default)]
pub(crate) struct Alibaba;

impl Alibaba {
    fn row(line: &[u8]) -> Option<Request<'_>> {
        let [device, op, offset, len, at] = columns::<5>(line, b',')?;
        number(device)?;
        let range = range(number(offset)?, number(len)?)?;
        let (at, op) = (time(at, TimeUnit::Us)?, read_or_write(op)?);
        Some(Request { at, latency: None, op, range, device, flags: Flags::default() })
    }
}

impl ParseLine for Alibaba {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        names.set_wall_zero(0);
        event(Self::row(line), line, names)
    }
}

/// `Timestamp,Offset,Size,IOType,VolumeID`: seconds since 1970, sectors, 0 for a read.
#[derive(Default)]
pub(crate) struct Tencent;

impl Tencent {
    fn row(line: &[u8]) -> Option<Request<'_>> {
        let [at, start, count, kind, device] = columns::<5>(line, b',')?;
        number(device)?;
        let op = match kind {
            b"0" => Op::Read,
            b"1" => Op::Write,
            _ => return None,
        };
        let range = sectors(number(start)?, number(count)?)?;
        let at = time(at, TimeUnit::S)?;
        Some(Request { at, latency: None, op, range, device, flags: Flags::default() })
    }
}

impl ParseLine for Tencent {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        names.set_wall_zero(0);
        event(Self::row(line), line, names)
    }
}

/// `Timestamp,Response,IOType,LUN,Offset,Size`: seconds since 1970 with a fraction, bytes.
#[derive(Default)]
pub(crate) struct Systor;

impl Systor {
    fn row(line: &[u8]) -> Option<Request<'_>> {
        let [at, response, op, device, offset, len] = columns::<6>(line, b',')?;
        // The fraction tells these rows from those of Open-CAS.
        if !at.contains(&b'.') {
            return None;
        }
        let latency = match response {
            [] => None,
            text => Some(seconds(text)?),
        };
        let range = range(number(offset)?, number(len)?)?;
        let (at, op) = (time(at, TimeUnit::S)?, read_or_write(op)?);
        Some(Request { at, latency, op, range, device, flags: Flags::default() })
    }
}

/// A latency in seconds. Some rows have it in scientific notation, such as `6e-05`.
fn seconds(text: &[u8]) -> Option<Nanos> {
    time(text, TimeUnit::S).or_else(|| {
        let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then(|| Nanos((value * 1e9).round() as u64))
    })
}

impl ParseLine for Systor {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        names.set_wall_zero(0);
        event(Self::row(line), line, names)
    }
}

/// `time_ns,device,op,start_sector,sectors,flags`; also what `trace convert --to csv` writes.
#[derive(Default)]
pub(crate) struct OpenCas;

/// The heading of such a table.
pub(crate) const OPEN_CAS_HEADING: &str = "time_ns,device,op,start_sector,sectors,flags";

impl OpenCas {
    fn row(line: &[u8]) -> Option<Request<'_>> {
        let [at, device, op, start, count, letters] = columns::<6>(line, b',')?;
        let op = match op {
            b"R" => Op::Read,
            b"W" => Op::Write,
            b"D" => Op::Discard,
            b"F" => Op::Flush,
            b"N" => Op::Other,
            _ => return None,
        };
        let at = Nanos(number(at)?);
        let range = sectors(number(start)?, number(count)?)?;
        let mut flags = Flags::default();
        for letter in letters {
            flags = match letter {
                b'F' => flags.with(Flags::FUA),
                b'P' => flags.with(Flags::PREFLUSH),
                b'S' => flags.with(Flags::SYNC),
                b'M' => flags.with(Flags::META),
                b'A' => flags.with(Flags::AHEAD),
                _ => flags,
            };
        }
        Some(Request { at, latency: None, op, range, device, flags })
    }
}

impl ParseLine for OpenCas {
    fn parse(&mut self, line: &[u8], names: &mut Names) -> Line {
        event(Self::row(line), line, names)
    }
}
