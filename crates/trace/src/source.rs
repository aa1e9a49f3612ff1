//! A trace as a stream of events, whatever its format.

use std::collections::VecDeque;

use crate::detect::{Format, detect};
use crate::error::{Remarks, Rest, SkippedLines, TraceError};
use crate::event::{Event, Stage};
use crate::formats::biosnoop::Biosnoop;
use crate::formats::blkparse::Blkparse;
use crate::formats::blkreplay::Blkreplay;
use crate::formats::blktrace::{self, Blktrace};
use crate::formats::compact::{self, Compact};
use crate::formats::csv::{Alibaba, Msr, OpenCas, Systor, Tencent};
use crate::formats::disksim::Disksim;
use crate::formats::fio::Fio;
use crate::formats::log_writes::LogWrites;
use crate::formats::vscsi::{self, Vscsi};
use crate::formats::{Decode, compact::VERSION};
use crate::input::{Bytes, Input, Peeked, unpack};
use crate::names::Names;
use crate::text::{Lines, TimeUnit};

/// A format must show itself within this many bytes; blkreplay puts its license in front.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Events that are read ahead to learn which stages a source has.
const LOOK_AHEAD_EVENTS: usize = 1024;

/// How a source is to be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// The format; `None` to find out.
    pub format: Option<Format>,
    /// The unit of times, for formats that do not fix it: fio and DiskSim.
    pub time_unit: Option<TimeUnit>,
}

/// Which stages a source has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages([bool; 4]);

impl Stages {
    fn add(&mut self, stage: Stage) {
        self.0[stage as usize] = true;
    }

    /// Whether the source has events of this stage.
    #[must_use]
    pub fn has(self, stage: Stage) -> bool {
        self.0[stage as usize]
    }

    /// The stage to count, so that each request counts once: the first of `wanted` that the source
    /// has. [`Stage::Request`] when it tells no stages apart.
    #[must_use]
    pub fn choose(self, wanted: &[Stage]) -> Stage {
        wanted.iter().copied().find(|stage| self.has(*stage)).unwrap_or(Stage::Request)
    }
}

/// A trace that is being read, in constant memory.
///
/// As an iterator it yields the events in the source's order. It ends at the source's end or where
/// the source is damaged; [`Source::remarks`] then says which.
pub struct Source {
    decoder: Box<dyn Decode>,
    names: Names,
    ahead: VecDeque<Event>,
    stages: Stages,
    rest: Option<Rest>,
    has_ended: bool,
    format: Format,
    has_times: bool,
}

impl Source {
    /// Unpacks, recognizes and begins to read one source.
    ///
    /// # Errors
    /// [`TraceError`] when not one event can be expected from it.
    pub fn open(bytes: Bytes, options: ReadOptions) -> Result<Self, TraceError> {
        let (decoder, format, has_times) = decoder(bytes, options)?;
        Ok(Self::new(decoder, format, has_times))
    }

    /// Several sources of one recording, such as blktrace's files of each processor, merged by
    /// time. Each must be in the order of time itself.
    ///
    /// # Errors
    /// [`TraceError`] of the first that is refused.
    pub fn merged(parts: Vec<Bytes>, options: ReadOptions) -> Result<Self, TraceError> {
        let mut opened = Vec::with_capacity(parts.len());
        let (mut format, mut have_times) = (None, true);
        for part in parts {
            let (decoder, found, has_times) = decoder(part, options)?;
            format.get_or_insert(found);
            have_times &= has_times;
            opened.push(Part { decoder, next: None, has_ended: false });
        }
        let format = format.ok_or(TraceError::Empty)?;
        Ok(Self::new(Box::new(Merged { parts: opened, rest: None }), format, have_times))
    }

    fn new(decoder: Box<dyn Decode>, format: Format, has_times: bool) -> Self {
        let mut source = Self {
            decoder,
            names: Names::default(),
            ahead: VecDeque::new(),
            stages: Stages::default(),
            rest: None,
            has_ended: false,
            format,
            has_times,
        };
        source.look_ahead();
        source
    }

    /// Reads until it is clear which stages there are. A trace that began while requests were under
    /// way shows their completions first.
    fn look_ahead(&mut self) {
        while self.ahead.len() < LOOK_AHEAD_EVENTS {
            let Some(event) = self.read() else { return };
            self.stages.add(event.stage);
            self.ahead.push_back(event);
            let has_start = self.stages.has(Stage::Queued) || self.stages.has(Stage::Issued);
            let has_both = has_start && self.stages.has(Stage::Completed);
            if event.stage == Stage::Request || (has_both && self.ahead.len() >= 64) {
                return;
            }
        }
    }

    fn read(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        match self.decoder.next(&mut self.names) {
            Ok(Some(event)) => return Some(event),
            Ok(None) => {}
            Err(rest) => self.rest = Some(rest),
        }
        self.has_ended = true;
        None
    }

    /// The format, given or found out.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether the events' times mean something; dm-log-writes has none.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// The stages in the first events.
    #[must_use]
    pub fn stages(&self) -> Stages {
        self.stages
    }

    /// Names of devices and threads that were met so far.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What there is to say beside the events; complete when the iterator has ended.
    #[must_use]
    pub fn into_remarks(self) -> (Names, Remarks) {
        let skipped = self.decoder.skipped();
        (self.names, Remarks { skipped, rest: self.rest })
    }
}

impl Iterator for Source {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        match self.ahead.pop_front() {
            Some(event) => Some(event),
            None => self.read(),
        }
    }
}

/// Reads the head, finds out the format, and makes its reader.
fn decoder(
    bytes: Bytes,
    options: ReadOptions,
) -> Result<(Box<dyn Decode>, Format, bool), TraceError> {
    let mut peeked = unpack(bytes)?;
    let format = loop {
        // At least a line, or a binary header, before the first look.
        if peeked.head().len() >= compact::HEADER_BYTES || peeked.has_ended() {
            let is_all = peeked.has_ended();
            let found = match options.format {
                Some(format) => format.fits(peeked.head(), is_all, true).then_some(format),
                None => detect(peeked.head(), is_all),
            };
            if let Some(format) = found {
                break format;
            }
        }
        if peeked.has_ended() || peeked.head().len() >= MAX_HEAD_BYTES {
            return Err(refusal(&mut peeked, options.format));
        }
        peeked.read_on();
    };
    let head = peeked.head();
    let (mut has_times, mut is_big_endian, mut version) = (true, false, None);
    match format {
        Format::Forebay => {
            let (found, have_times) =
                compact::header(head).ok_or(TraceError::NotThisFormat { format })?;
            if found > VERSION {
                return Err(TraceError::Version { found });
            }
            has_times = have_times;
        }
        Format::LogWrites => has_times = false,
        Format::Blktrace => is_big_endian = blktrace::byte_order(head) == Some(true),
        Format::Vscsi => version = vscsi::detect(head),
        _ => {}
    }
    let input = Input::new(Box::new(peeked));
    let unit = options.time_unit;
    let decoder: Box<dyn Decode> = match format {
        Format::Forebay => Box::new(Compact::new(input)),
        Format::Blktrace => Box::new(Blktrace::new(input, is_big_endian)),
        Format::LogWrites => Box::new(LogWrites::new(input)),
        Format::Vscsi => Box::new(Vscsi::new(input, version.unwrap_or(vscsi::Version::One))),
        Format::Blkparse => Box::new(Lines::new(input, Blkparse)),
        Format::Fio2 => Box::new(Lines::new(input, Fio::new(false, unit))),
        Format::Fio3 => Box::new(Lines::new(input, Fio::new(true, unit))),
        Format::Msr => Box::new(Lines::new(input, Msr::default())),
        Format::Alibaba => Box::new(Lines::new(input, Alibaba)),
        Format::Tencent => Box::new(Lines::new(input, Tencent)),
        Format::Systor => Box::new(Lines::new(input, Systor)),
        Format::Blkreplay => Box::new(Lines::new(input, Blkreplay)),
        Format::Disksim => Box::new(Lines::new(input, Disksim::new(unit))),
        Format::OpenCas => Box::new(Lines::new(input, OpenCas)),
        Format::Biosnoop => Box::new(Lines::new(input, Biosnoop::default())),
    };
    Ok((decoder, format, has_times))
}

/// Why a source that no reader takes is refused.
fn refusal(peeked: &mut Peeked, wanted: Option<Format>) -> TraceError {
    const USTAR_AT: usize = 257;
    if let Some(error) = peeked.error_at_start() {
        return TraceError::Io(error);
    }
    if peeked.head().is_empty() {
        return TraceError::Empty;
    }
    if peeked.head().get(USTAR_AT..USTAR_AT + 5) == Some(b"ustar") {
        return TraceError::Archive;
    }
    wanted.map_or(TraceError::UnknownFormat, |format| TraceError::NotThisFormat { format })
}

/// One of several sources.
struct Part {
    decoder: Box<dyn Decode>,
    next: Option<Event>,
    has_ended: bool,
}

/// Several sources as one, by time.
struct Merged {
    parts: Vec<Part>,
    /// The first damage in any part; the other parts are read to their ends.
    rest: Option<Rest>,
}

impl Decode for Merged {
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest> {
        for part in self.parts.iter_mut().filter(|part| part.next.is_none() && !part.has_ended) {
            match part.decoder.next(names) {
                Ok(next) => part.next = next,
                Err(rest) => {
                    self.rest.get_or_insert(rest);
                }
            }
            part.has_ended = part.next.is_none();
        }
        let first = self.parts.iter_mut().filter(|part| part.next.is_some());
        match first.min_by_key(|part| part.next.map(|event| event.time)) {
            Some(part) => Ok(part.next.take()),
            None => self.rest.take().map_or(Ok(None), Err),
        }
    }

    fn skipped(&self) -> SkippedLines {
        let mut all = SkippedLines::default();
        for part in &self.parts {
            let skipped = part.decoder.skipped();
            all.count += skipped.count;
            all.first = if all.first == 0 { skipped.first } else { all.first };
        }
        all
    }
}
