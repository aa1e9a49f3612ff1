//! Errors of the lab, each with the exit code of the command that meets it.

use forebay_device::DeviceError;
use forebay_flash::{RequestError, SpecError};
use forebay_pool::{AdminError, CloseError, CommitError, PoolError, VolumeError};
use forebay_trace::{Rest, TraceError};
use std::fmt;
use std::path::PathBuf;

/// An error of the lab. Its text is one line.
#[derive(Debug)]
pub enum LabError {
    /// The description of a device is impossible.
    Spec(SpecError),
    /// A workload sends a request that its device cannot carry out.
    Request(RequestError),
    /// A field of a task has a value outside its range.
    Field {
        /// The task or the part of it: `load`, `mirror`.
        owner: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        found: String,
        /// The values that are possible.
        allowed: &'static str,
    },
    /// Not even one request of a load fits its part of the device.
    RequestTooLarge {
        /// Bytes of one request.
        request_bytes: u64,
        /// Bytes of the part.
        room_bytes: u64,
    },
    /// The experiment wears flash out, and the device has none.
    NoFlash {
        /// The device.
        device: String,
    },
    /// No device of the catalogue has this name.
    UnknownDevice {
        /// The name.
        name: String,
        /// Devices in the catalogue.
        known: usize,
    },
    /// Several devices of the catalogue match this name.
    AmbiguousDevice {
        /// The name.
        name: String,
        /// Identifiers of the devices.
        candidates: Vec<String>,
    },
    /// A page or a sweep is not what its parser expects.
    Malformed {
        /// The file, or the identifier of a built-in page.
        origin: String,
        /// The parser's answer.
        detail: String,
    },
    /// A file that the request names cannot be read.
    Input {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        cause: std::io::Error,
    },
    /// A trace cannot be read.
    Trace {
        /// The file.
        path: PathBuf,
        /// What its reader found.
        cause: TraceError,
    },
    /// A trace is cut off or damaged.
    TraceDamaged {
        /// The file.
        path: PathBuf,
        /// Where and why its reader stopped.
        rest: Rest,
    },
    /// A trace is not the one that the task was made for.
    TraceChanged {
        /// The file.
        path: PathBuf,
        /// The digest that the task has.
        expected: String,
        /// The digest of the file.
        found: String,
    },
    /// A file of the lab's own cannot be read or written.
    File {
        /// The operation.
        action: FileAction,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        cause: std::io::Error,
    },
    /// The reader of standard output has gone (`| head`). The command ends without a message.
    OutputClosed,
    /// Standard output cannot be written.
    Output {
        /// The operating system's answer.
        cause: std::io::Error,
    },
    /// The command line makes no sense.
    Arguments(ArgumentError),
    /// An experiment can run none of the devices that were named.
    NoRunnableDevice {
        /// The experiment.
        experiment: &'static str,
    },
    /// A sweep's file describes no grid.
    Grid {
        /// The file.
        file: PathBuf,
        /// The fault.
        fault: GridError,
    },
    /// A merge of a sweep finds points that have not run.
    MissingPoints {
        /// Points that have not run.
        missing: usize,
        /// Points of the grid.
        total: usize,
        /// The first of the missing points.
        first: usize,
    },
    /// An outcome does not survive serialization.
    OutcomeUnreadable {
        /// The parser's answer.
        cause: serde_json::Error,
    },
    /// Checks of the experiments failed.
    ChecksFailed {
        /// Checks that failed.
        failed: usize,
        /// Checks in all.
        total: usize,
    },
    /// The pool over simulated drives failed.
    Pool(PoolError),
    /// A volume of the pool over simulated drives failed.
    Device(DeviceError),
}

/// An operation on a file of the lab's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Read it.
    Read,
    /// Write, replace or append to it.
    Write,
    /// Make a directory.
    MakeDir,
    /// List a directory.
    List,
}

/// A command line that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    /// `--show` prints TOML and takes no `--json`.
    ShowAsJson,
    /// The command line names no experiment.
    NoExperiment,
    /// No experiment has this name.
    UnknownExperiment {
        /// The name.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// A sweep or a run needs a file.
    NoTaskFile {
        /// `sweep` or `run`.
        experiment: &'static str,
    },
    /// An experiment takes no `--operations`.
    OperationsOnlyOfRun,
    /// `--operations` notes requests of a timeline only.
    OperationsOfTimeline,
    /// `--operations` names the file of the run itself.
    OperationsOverTask {
        /// The file.
        file: PathBuf,
    },
    /// `--operations` names a file that exists.
    OperationsExist {
        /// The file.
        file: PathBuf,
    },
    /// A run or a sweep has this in its file.
    NotBesideFile {
        /// `sweep` or `run`.
        experiment: &'static str,
        /// The option.
        option: &'static str,
    },
    /// An experiment takes no file.
    UnexpectedFile {
        /// The experiment.
        experiment: String,
        /// The file.
        file: PathBuf,
    },
    /// An experiment takes no `--shard` and no `--merge`.
    SweepOnly,
    /// An option that counts something is 0.
    Zero {
        /// The option.
        option: &'static str,
    },
    /// `--shard` is not I/N with I from 1 to N.
    Shard {
        /// The value.
        value: String,
    },
}

/// A sweep's file that describes no grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GridError {
    /// The file is not TOML, or a value has no JSON form.
    Malformed {
        /// The parser's answer.
        detail: String,
    },
    /// The file has a key that no sweep knows.
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key is absent or is not text.
    NotText {
        /// The key.
        key: &'static str,
    },
    /// The name has characters that a file name should not have.
    Name,
    /// The table `base` is absent.
    NoBase,
    /// `grid` is not a table.
    NotTable,
    /// A number is NaN or infinite.
    NotFinite {
        /// The field.
        path: String,
        /// The number.
        found: String,
    },
    /// A parameter of the grid is not a list of values.
    NotValues {
        /// The parameter.
        path: String,
    },
    /// The grid has more points than a sweep may have.
    TooManyPoints {
        /// Points that a sweep may have.
        limit: usize,
    },
    /// A parameter leads through a field that does not exist.
    NoField {
        /// The parameter.
        path: String,
        /// The field.
        name: String,
    },
    /// A parameter leads into a list with a name instead of a number.
    NotIndex {
        /// The parameter.
        path: String,
        /// The name.
        name: String,
    },
    /// A parameter leads past the end of a list.
    NoItem {
        /// The parameter.
        path: String,
        /// Items of the list.
        count: usize,
        /// The item that the parameter names.
        index: usize,
    },
    /// A parameter leads into a value that is neither a table nor a list.
    NotContainer {
        /// The parameter.
        path: String,
        /// The name that cannot be inside.
        name: String,
    },
    /// `run` takes a file of one point.
    NotOnePoint {
        /// Points of the grid.
        points: usize,
    },
    /// A point of the grid is no task.
    Point {
        /// The point.
        index: usize,
        /// The parser's answer.
        detail: String,
    },
}

impl LabError {
    /// A field of a task with a value outside its range.
    pub(crate) fn field(
        owner: &'static str,
        field: &'static str,
        found: impl fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Field { owner, field, found: found.to_string(), allowed }
    }

    /// The exit code of the command: 2 when the request is at fault, otherwise 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::File { .. }
            | Self::OutputClosed
            | Self::Output { .. }
            | Self::MissingPoints { .. }
            | Self::OutcomeUnreadable { .. }
            | Self::ChecksFailed { .. }
            | Self::Pool(_)
            | Self::Device(_) => 1,
            Self::Spec(_)
            | Self::Request(_)
            | Self::Field { .. }
            | Self::RequestTooLarge { .. }
            | Self::NoFlash { .. }
            | Self::UnknownDevice { .. }
            | Self::AmbiguousDevice { .. }
            | Self::Malformed { .. }
            | Self::Input { .. }
            | Self::Trace { .. }
            | Self::TraceDamaged { .. }
            | Self::TraceChanged { .. }
            | Self::Arguments(_)
            | Self::NoRunnableDevice { .. }
            | Self::Grid { .. } => 2,
        }
    }
}

/// A parser's answer spans several lines; an error is one.
pub(crate) fn one_line(text: impl fmt::Display) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(error) => error.fmt(f),
            Self::Request(error) => write!(f, "the load does not fit the device: {error}"),
            Self::Field { owner, field, found, allowed } => {
                write!(f, "{owner}: {field} is {found}; it must be {allowed}")
            }
            Self::RequestTooLarge { request_bytes, room_bytes } => {
                write!(f, "load: a request of {request_bytes} bytes does not fit in {room_bytes}")
            }
            Self::NoFlash { device } => write!(f, "device \"{device}\" has no flash to wear out"),
            Self::UnknownDevice { name, known } => write!(
                f,
                "unknown device '{name}'; `simulate --list` names all {known}, or give a TOML file"
            ),
            Self::AmbiguousDevice { name, candidates } => {
                write!(f, "device '{name}' could be {}; say which", candidates.join(", "))
            }
            Self::Malformed { origin, detail } => write!(f, "{origin}: {detail}"),
            Self::Input { path, cause } => write!(f, "cannot read {}: {cause}", path.display()),
            Self::Trace { path, cause } => write!(f, "{}: {cause}", path.display()),
            Self::TraceDamaged { path, rest } => {
                write!(f, "{}: {rest}; `trace convert` keeps what stands before it", path.display())
            }
            Self::TraceChanged { path, expected, found } => {
                write!(f, "{} has changed: its digest is {found}, not {expected}", path.display())
            }
            Self::File { action, path, cause } => {
                write!(f, "cannot {action} {}: {cause}", path.display())
            }
            Self::OutputClosed => Ok(()),
            Self::Output { cause } => write!(f, "standard output: {cause}"),
            Self::Arguments(error) => error.fmt(f),
            Self::NoRunnableDevice { experiment } => {
                write!(f, "{experiment}: none of the devices named can be run in it")
            }
            Self::Grid { file, fault } => write!(f, "{}: {fault}", file.display()),
            Self::MissingPoints { missing, total, first } => write!(
                f,
                "{missing} of {total} points are missing, the first is number {first}; run them, \
                 then merge"
            ),
            Self::OutcomeUnreadable { cause } => {
                write!(f, "an outcome does not survive serialization: {cause}")
            }
            Self::ChecksFailed { failed, total } => {
                write!(f, "{failed} of {total} checks failed; the report names them")
            }
            Self::Pool(error) => write!(f, "the simulated pool failed: {error}"),
            Self::Device(error) => write!(f, "the simulated volume failed: {error}"),
        }
    }
}

impl fmt::Display for FileAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::MakeDir => "make directory",
            Self::List => "list",
        })
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShowAsJson => {
                f.write_str("--show prints a TOML page; --list --json has all of them")
            }
            Self::NoExperiment => f.write_str("name an experiment; --help lists them"),
            Self::UnknownExperiment { name, known } => {
                let known = known.join(", ");
                write!(f, "unknown experiment '{name}'; there are {known}, all, run and sweep")
            }
            Self::NoTaskFile { experiment } => write!(f, "{experiment}: name its file"),
            Self::OperationsOnlyOfRun => f.write_str("--operations belongs to run"),
            Self::OperationsOfTimeline => {
                f.write_str("--operations notes the requests of a timeline, of no other task")
            }
            Self::OperationsOverTask { file } => {
                write!(f, "--operations would replace {}, the file of the run", file.display())
            }
            Self::OperationsExist { file } => {
                write!(f, "{} exists already; --force replaces it", file.display())
            }
            Self::NotBesideFile { experiment, option: "--fresh" } => {
                write!(f, "{experiment} takes no --fresh; another --out begins anew")
            }
            Self::NotBesideFile { experiment, option } => {
                write!(f, "{experiment} takes no {option}; its file says what runs")
            }
            Self::UnexpectedFile { experiment, file } => {
                write!(f, "{experiment} takes no file; remove '{}'", file.display())
            }
            Self::SweepOnly => f.write_str("--shard and --merge belong to sweep"),
            Self::Zero { option } => write!(f, "{option} must be at least 1"),
            Self::Shard { value } => {
                write!(f, "--shard {value}: write I/N with I from 1 to N")
            }
        }
    }
}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { detail } => f.write_str(detail),
            Self::UnknownKey { key } => {
                write!(f, "unknown key '{key}'; there are name, task, base, grid")
            }
            Self::NotText { key } => write!(f, "'{key}' must be a text"),
            Self::Name => f.write_str("'name' may have letters, digits, '-' and '_' only"),
            Self::NoBase => f.write_str("a [base] is needed"),
            Self::NotTable => f.write_str("[grid] must be a table"),
            Self::NotFinite { path, found } => {
                write!(f, "'{path}' is {found}, not a finite number")
            }
            Self::NotValues { path } => write!(f, "grid '{path}' must be a list of values"),
            Self::TooManyPoints { limit } => write!(f, "more than {limit} points"),
            Self::NoField { path, name } => {
                write!(f, "'{path}': there is no '{name}' in the base")
            }
            Self::NotIndex { path, name } => write!(f, "'{path}': '{name}' is not a number"),
            Self::NoItem { path, count, index } => {
                write!(f, "'{path}': there are {count} items, no {index}")
            }
            Self::NotContainer { path, name } => {
                write!(f, "'{path}': nothing can be inside '{name}'")
            }
            Self::NotOnePoint { points } => {
                write!(f, "its grid has {points} points; run takes one, sweep takes all")
            }
            Self::Point { index, detail } => write!(f, "point {index}: {detail}"),
        }
    }
}

impl std::error::Error for LabError {}

impl From<SpecError> for LabError {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}

impl From<RequestError> for LabError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<ArgumentError> for LabError {
    fn from(error: ArgumentError) -> Self {
        Self::Arguments(error)
    }
}

macro_rules! of_pool {
    ($($error:ty),*) => {
        $(impl From<$error> for LabError {
            fn from(error: $error) -> Self {
                Self::Pool(error.into())
            }
        })*
    };
}
of_pool!(AdminError, CloseError, CommitError, VolumeError);

impl From<DeviceError> for LabError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}
