//! Which format a source has.

use std::fmt;
use std::str::FromStr;

use crate::formats::biosnoop::Biosnoop;
use crate::formats::blkparse::Blkparse;
use crate::formats::blkreplay::Blkreplay;
use crate::formats::csv::{Alibaba, Msr, OPEN_CAS_HEADING, OpenCas, Systor, Tencent};
use crate::formats::disksim::Disksim;
use crate::formats::fio::{Fio, VERSION_2, VERSION_3};
use crate::formats::{blktrace, compact, log_writes, vscsi};
use crate::names::Names;
use crate::text::{Line, ParseLine, without_mark};

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// This project's own.
    Forebay,
    /// blktrace binary, as the kernel writes it.
    Blktrace,
    /// Text of blkparse.
    Blkparse,
    /// iolog of fio, version 2.
    Fio2,
    /// iolog of fio, version 3.
    Fio3,
    /// MSR Cambridge CSV.
    Msr,
    /// Alibaba block traces.
    Alibaba,
    /// Tencent block storage.
    Tencent,
    /// SYSTOR '17.
    Systor,
    /// blkreplay `.load`.
    Blkreplay,
    /// DiskSim ASCII, also of MQSim.
    Disksim,
    /// Open-CAS CSV.
    OpenCas,
    /// biosnoop of bcc.
    Biosnoop,
    /// Log device of dm-log-writes.
    LogWrites,
    /// vscsi of VMware.
    Vscsi,
}

impl Format {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Format; 15] = [
        Format::Forebay,
        Format::Blktrace,
        Format::LogWrites,
        Format::Vscsi,
        Format::Fio2,
        Format::Fio3,
        Format::Blkparse,
        Format::Biosnoop,
        Format::Msr,
        Format::OpenCas,
        Format::Systor,
        Format::Alibaba,
        Format::Tencent,
        Format::Blkreplay,
        Format::Disksim,
    ];

    /// The name that `--format` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Blktrace => "blktrace",
            Self::Blkparse => "blkparse",
            Self::Fio2 => "fio2",
            Self::Fio3 => "fio3",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Systor => "systor",
            Self::Blkreplay => "blkreplay",
            Self::Disksim => "disksim",
            Self::OpenCas => "opencas",
            Self::Biosnoop => "biosnoop",
            Self::LogWrites => "log-writes",
            Self::Vscsi => "vscsi",
        }
    }

    /// Whether `head`, the beginning of a source, is of this format. `is_all`: nothing follows.
    /// `is_asked`: the operator says that it is, and one good line is enough.
    pub(crate) fn fits(self, head: &[u8], is_all: bool, is_asked: bool) -> bool {
        match self {
            Self::Forebay => head.starts_with(compact::MAGIC),
            Self::Blktrace => blktrace::byte_order(head).is_some(),
            Self::LogWrites => log_writes::detect(head),
            Self::Vscsi => vscsi::detect(head).is_some(),
            Self::Fio2 => head.starts_with(VERSION_2.as_bytes()),
            Self::Fio3 => head.starts_with(VERSION_3.as_bytes()),
            Self::OpenCas if head.starts_with(OPEN_CAS_HEADING.as_bytes()) => true,
            _ => self.parser().is_some_and(|mut parser| {
                let (events, unclear) = count_lines(&mut *parser, head, is_all);
                events > unclear || (is_asked && events > 0)
            }),
        }
    }

    /// The reader of a line, of the text formats whose first line does not name them.
    fn parser(self) -> Option<Box<dyn ParseLine>> {
        Some(match self {
            Self::Blkparse => Box::new(Blkparse),
            Self::Biosnoop => Box::new(Biosnoop::default()),
            Self::Msr => Box::new(Msr::default()),
            Self::OpenCas => Box::new(OpenCas),
            Self::Systor => Box::new(Systor),
            Self::Alibaba => Box::new(Alibaba),
            Self::Tencent => Box::new(Tencent),
            Self::Blkreplay => Box::new(Blkreplay),
            Self::Disksim => Box::new(Disksim::new(None)),
            Self::Fio2 => Box::new(Fio::new(false, None)),
            Self::Fio3 => Box::new(Fio::new(true, None)),
            Self::Forebay | Self::Blktrace | Self::LogWrites | Self::Vscsi => return None,
        })
    }
}

/// Among the whole lines of `head`: events, and lines that were not understood.
fn count_lines(parser: &mut dyn ParseLine, head: &[u8], is_all: bool) -> (usize, usize) {
    const LOOKED_AT: usize = 400;
    let (mut events, mut unclear) = (0, 0);
    if head.contains(&0) {
        return (0, 0);
    }
    let whole = match head.iter().rposition(|b| *b == b'\n') {
        _ if is_all => head,
        Some(at) => &head[..at],
        None => return (0, 0),
    };
    let mut names = Names::default();
    for line in without_mark(whole).split(|b| *b == b'\n').take(LOOKED_AT) {
        match parser.parse(line.strip_suffix(b"\r").unwrap_or(line), &mut names) {
            Line::Event(_) => events += 1,
            Line::Unclear => unclear += 1,
            Line::Nothing => {}
        }
    }
    (events, unclear)
}

/// The format of a source that begins with `head`.
pub(crate) fn detect(head: &[u8], is_all: bool) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.fits(head, is_all, false))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No format has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFormatName;

impl fmt::Display for UnknownFormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no trace format has this name")
    }
}

impl std::error::Error for UnknownFormatName {}

impl FromStr for Format {
    type Err = UnknownFormatName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|f| f.name() == name).ok_or(UnknownFormatName)
    }
}
