//! A trace that a command reads: files of a name, standard input, progress, remarks.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_rt::sys;
use forebay_trace::{Bytes, Event, Names, ReadOptions, Source, Stage};
use forebay_units::Nanos;

use super::kernel::is_block_device;
use super::stage_name;
use crate::args::SourceArgs;
use crate::failure::Failure;
use crate::files;
use crate::log;
use crate::render::TraceHead;
use crate::terminal::Screen;

/// A command is silent for as long.
const QUIET_FOR: Nanos = Nanos::from_secs(2);
const REDRAW_INTERVAL: Nanos = Nanos::from_millis(500);
/// Events between two looks at the clock.
const EVENTS_A_LOOK: u64 = 8192;

/// A trace being read, with the operator's filter and a progress line.
pub struct Reading {
    source: Source,
    path: PathBuf,
    only_device: Option<String>,
    events: u64,
    progress: Progress,
    interrupt: Rc<Interrupt>,
}

/// The line on a terminal that says how far a long command is.
struct Progress {
    screen: Screen,
    what: String,
    /// Bytes that were read, of all bytes there are; 0 where that is unknown.
    read_bytes: Rc<Cell<u64>>,
    all_bytes: u64,
    next_at: Nanos,
}

impl Progress {
    fn look(&mut self, events: u64) {
        let now = sys::boot_time();
        if now < self.next_at {
            return;
        }
        self.next_at = now + REDRAW_INTERVAL;
        let share = (self.read_bytes.get() * 100).checked_div(self.all_bytes);
        let share = share.map_or(String::new(), |pct| format!(" {}%,", pct.min(100)));
        self.screen.show(&format!("{}:{share} {events} events", self.what));
    }
}

/// Ctrl-C as the end of the trace: what was read up to then is analyzed.
struct Interrupt {
    signals: OwnedFd,
    is_asked: Cell<bool>,
}

impl Interrupt {
    /// From now on Ctrl-C does not end the process.
    fn take() -> Result<Rc<Self>, Failure> {
        let signals = sys::signal_fd(&[libc::SIGINT]);
        let signals = signals.map_err(|e| Failure::io("signals cannot be handled", &e))?;
        Ok(Rc::new(Self { signals, is_asked: Cell::new(false) }))
    }

    /// Waits until `input` can be read. `false`: the operator has pressed Ctrl-C.
    fn wait_for(&self, input: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.is_asked.get() {
            let [is_asked, _] = sys::wait_readable([self.signals.as_fd(), input])?;
            self.is_asked.set(is_asked);
        }
        Ok(!self.is_asked.get())
    }
}

/// Counts what a command takes from a file, and ends it at Ctrl-C.
struct Counted<R> {
    inner: R,
    read_bytes: Rc<Cell<u64>>,
    interrupt: Rc<Interrupt>,
}

impl<R: Read + AsFd> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.interrupt.wait_for(self.inner.as_fd())? {
            return Ok(0);
        }
        let read = self.inner.read(bytes)?;
        self.read_bytes.set(self.read_bytes.get() + read as u64);
        Ok(read)
    }
}

impl Reading {
    /// Opens the trace that `args` name.
    pub fn open(args: &SourceArgs) -> Result<Self, Failure> {
        if args.format.is_none() && is_block_device(&args.source) {
            let source = args.source.display();
            let message = format!("{source} is a block device, and no trace");
            let hint = format!("'forebay trace record {source}' records one of it");
            return Err(Failure::usage(message).with_hint(hint));
        }
        let interrupt = Interrupt::take()?;
        let read_bytes = Rc::new(Cell::new(0));
        let (parts, all_bytes) = parts(&args.source, &read_bytes, &interrupt)?;
        Self::of_parts(args, parts, all_bytes, read_bytes, interrupt)
    }

    /// Reads `bytes`, which were kept from an earlier pass, as the trace of `args`.
    pub fn again(args: &SourceArgs, bytes: Bytes) -> Result<Self, Failure> {
        let kept = SourceArgs { format: None, time_unit: None, ..args.clone() };
        Self::of_parts(&kept, vec![bytes], 0, Rc::default(), Interrupt::take()?)
    }

    fn of_parts(
        args: &SourceArgs,
        mut parts: Vec<Bytes>,
        all_bytes: u64,
        read_bytes: Rc<Cell<u64>>,
        interrupt: Rc<Interrupt>,
    ) -> Result<Self, Failure> {
        let options = ReadOptions { format: args.format, time_unit: args.time_unit };
        let source = match parts.len() {
            1 => Source::open(parts.remove(0), options),
            _ => Source::merged(parts, options),
        };
        let source = source.map_err(|error| {
            let failure = Failure::from(error);
            let message = format!("{}: {}", args.source.display(), failure.message);
            Failure { message, ..failure }
        })?;
        let progress = Progress {
            screen: Screen::stderr(),
            what: format!("reading {}", args.source.display()),
            read_bytes,
            all_bytes,
            next_at: sys::boot_time() + QUIET_FOR,
        };
        let (path, only_device) = (args.source.clone(), args.only_device.clone());
        Ok(Self { source, path, only_device, events: 0, progress, interrupt })
    }

    /// The stage to count: `asked`, or the first of `wanted` that the trace has.
    pub fn stage(&self, asked: Option<Stage>, wanted: &[Stage]) -> Result<Stage, Failure> {
        let stages = self.source.stages();
        match asked {
            Some(stage) if !stages.has(stage) && !stages.has(Stage::Request) => {
                let name = stage_name(stage);
                Err(Failure::usage(format!("the trace has no events of the stage {name}")))
            }
            Some(stage) if stages.has(stage) => Ok(stage),
            _ => Ok(stages.choose(wanted)),
        }
    }

    /// Whether the trace has times.
    pub fn has_times(&self) -> bool {
        self.source.has_times()
    }

    /// Names of devices and threads so far.
    pub fn names(&self) -> &Names {
        self.source.names()
    }

    /// The next event of the device that is wanted.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.source.next()?;
            self.events += 1;
            if self.events % EVENTS_A_LOOK == 0 {
                self.progress.look(self.events);
            }
            let is_wanted = self
                .only_device
                .as_ref()
                .is_none_or(|name| self.source.names().device_name(event.device) == name);
            if is_wanted {
                return Some(event);
            }
        }
    }

    /// Whether Ctrl-C ended the reading.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_asked.get()
    }

    /// Takes the progress line away, so that a line of output can be printed.
    pub fn clear_progress(&self) {
        self.progress.screen.clear();
    }

    /// Ends the reading. What the trace was, and its names; a line on standard error says what was
    /// wrong with the rest.
    pub fn finish(self, stage: Stage) -> (TraceHead, Names) {
        self.clear_progress();
        let format = self.source.format();
        let (names, remarks) = self.source.into_remarks();
        let path = self.path.display().to_string();
        let interrupted = self.interrupt.is_asked.get();
        let remark = match interrupted {
            true => Some("interrupted before the end".to_owned()),
            false => (!remarks.is_clean()).then(|| remarks.to_string()),
        };
        if let Some(remark) = &remark {
            log::warning(&format!("{path}: {remark}; {} events were read", self.events));
        } else if let Some(name) = self.only_device.filter(|name| !names.devices().contains(name)) {
            let known = names.devices().iter().take(8).cloned().collect::<Vec<_>>().join(" ");
            log::warning(&format!("{path}: there is no device {name}; there are {known}"));
        }
        let complete = remarks.rest.is_none() && !interrupted;
        let (format, stage, events) = (format.name(), stage_name(stage), self.events);
        (TraceHead { source: path, format, stage, events, complete, remark }, names)
    }
}

/// The files behind a name, and their bytes in all.
fn parts(
    path: &Path,
    read_bytes: &Rc<Cell<u64>>,
    interrupt: &Rc<Interrupt>,
) -> Result<(Vec<Bytes>, u64), Failure> {
    let counted = |inner: File| -> Bytes {
        let (read_bytes, interrupt) = (read_bytes.clone(), interrupt.clone());
        Box::new(Counted { inner, read_bytes, interrupt })
    };
    if is_stdin(path) {
        // Past the buffer of std: bytes in it would not make the descriptor readable.
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|e| Failure::io("standard input", &e))?;
        return Ok((vec![counted(File::from(stdin))], 0));
    }
    let mut parts = Vec::new();
    let mut all_bytes = 0;
    for file in file_names(path) {
        let opened = files::open_to_read(&file).and_then(|file| Ok((file.metadata()?, file)));
        let (meta, opened) = opened.map_err(|e| Failure::io(file.display(), &e))?;
        if meta.is_dir() {
            return Err(Failure::usage(format!("{} is a folder, not a trace", file.display())));
        }
        all_bytes += meta.len();
        parts.push(counted(opened));
    }
    Ok((parts, all_bytes))
}

/// `path`, or the files that blktrace made for it, one for each processor.
fn file_names(path: &Path) -> Vec<PathBuf> {
    let of_cpu = |cpu: usize| PathBuf::from(format!("{}.blktrace.{cpu}", path.display()));
    if path.exists() || !of_cpu(0).exists() {
        return vec![path.to_owned()];
    }
    (0..).map(of_cpu).take_while(|file| file.exists()).collect()
}

/// Whether `path` stands for standard input.
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Whether the trace can be read twice.
pub fn is_readable_again(path: &Path) -> bool {
    !is_stdin(path) && file_names(path).iter().all(|file| file.is_file())
}
