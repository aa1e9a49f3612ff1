//! Arguments of `forebay trace …`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use forebay_trace::{Format, Policy, Rules, Stage, Target, TimeUnit};
use forebay_units::Nanos;

use forebay_units::parse_bytes;

/// The verbs of `forebay trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record a live block device into a file.
    #[command(
        after_help = "Example:\n  forebay trace record /dev/sdb --seconds 60 --out sdb.fbt\n\n\
        The kernel's tracing (tracefs) tells when each request is queued, issued and completed. It \
        needs root. Nothing is read from the device or written to it. OUT should lie on another \
        one, or its own writes are in the recording. Ctrl-C ends it; what was recorded up to then \
        is kept."
    )]
    Record(RecordArgs),
    /// Record the devices of a pool that is served.
    #[command(after_help = "Example:\n  forebay trace pool tank --seconds 60 --out tank.fbt\n\n\
        The server itself records what it asks of its devices: it needs no root and no kernel \
        tracing, and sees FUA and flushes as the pool means them. Ctrl-C ends it. Then for example \
        'forebay trace iopattern -d /dev/nvme0n1 tank.fbt' shows the log device.")]
    Pool(RecordPoolArgs),
    /// Random or sequential, a line per second: the DTrace toolkit's iopattern.
    #[command(after_help = "Example:\n  forebay trace iopattern sdb.blkparse.txt.gz\n  \
        forebay trace iopattern sdb 10 6     the first minute, of blktrace's sdb.blktrace.*\n  \
        forebay trace iopattern --total --as bcc trace.csv\n  \
        forebay trace iopattern /dev/sdb 1     live, as root, until Ctrl-C\n\n\
        A request is random unless it begins where the one before it on its device ended, in the \
        order of completions. A column of bytes has bytes, KR and KW have KiB. Flushes and empty \
        requests have no place on the device: they are not counted unless --count-flushes asks \
        for it. Discards count as requests, but move no bytes.")]
    Iopattern(IopatternArgs),
    /// Seek distances in sectors, by process: the DTrace toolkit's seeksize.
    #[command(after_help = "Example:\n  forebay trace seeksize sdb.blkparse.txt.gz\n  \
        forebay trace seeksize --as bcc --signed trace.csv\n  \
        forebay trace seeksize /dev/sdb       live, as root, until Ctrl-C\n\n\
        The distance is from the end of the request before: of the same thread on the same device, \
        or with --as bcc of any thread on that device. A row 2^n holds distances from 2^n up to \
        2^(n+1) - 1.")]
    Seeksize(SeeksizeArgs),
    /// Sizes, times, flushes, queue depth and latency.
    #[command(after_help = "Example:\n  forebay trace summary --json web_0.csv.gz")]
    Summary(SummaryArgs),
    /// Write a trace in another format.
    #[command(after_help = "Example:\n  forebay trace convert sdb.blkparse.txt.gz sdb.fbt\n  \
        forebay trace convert --to fio web_0.csv.gz web_0.iolog\n\n\
        The own format (forebay) keeps everything, in some eight bytes an event. The others keep \
        one stage of each request, and lose what they have no column for.")]
    Convert(ConvertArgs),
    /// Issue the requests of a trace to a device, and measure how it serves them.
    #[command(after_help = "Example:\n  forebay trace replay --overwrite sdb.fbt /dev/sdx\n  \
        forebay trace replay --reads --speed max sdb.fbt /dev/sdx\n  \
        forebay trace replay --overwrite sdb.fbt nbd://127.0.0.1:10809/tank/scratch\n  \
        forebay trace replay --speed max sdb.fbt sim:ddrdrive-x1\n\n\
        Writes destroy what TARGET holds: without --overwrite only --reads is run. Written data is \
        pseudo-random. At --speed max a flush waits for the requests before it, as the program \
        that asked for it did; at the trace's own pace every request begins at its time. Requests \
        of all devices go to one TARGET; --device chooses one.")]
    Replay(ReplayArgs),
    /// Miss ratio of a cache in front of the device, by policy and size.
    #[command(after_help = "Example:\n  forebay trace cache --reads-only web_0.csv.gz\n  \
        forebay trace cache --size 1G,4G --policy lru,arc web_0.csv.gz\n\n\
        Sizes in percent are shares of the distinct blocks that the trace touches. s3fifo moves a \
        block to its main queue after two hits, s3fifo-1 after one.")]
    Cache(CacheArgs),
}

/// What `trace record` takes.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    /// Block device: a whole disk, or a loop device.
    #[arg(value_name = "DEV")]
    pub device: PathBuf,
    /// Where to, and for how long.
    #[command(flatten)]
    pub recording: RecordingArgs,
}

/// What `trace pool` takes.
#[derive(Args, Clone, Debug)]
pub struct RecordPoolArgs {
    /// Pool that a server has open.
    #[arg(value_name = "POOL")]
    pub pool: String,
    /// Where to, and for how long.
    #[command(flatten)]
    pub recording: RecordingArgs,
}

/// What every recording takes.
#[derive(Args, Clone, Debug)]
pub struct RecordingArgs {
    /// End after this many seconds [default: with Ctrl-C].
    #[arg(long, value_name = "N", value_parser = parse_interval)]
    pub seconds: Option<Nanos>,
    /// File to write [default: the name of the device or pool with .fbt, in this folder].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the file when it exists.
    #[arg(short, long)]
    pub force: bool,
    /// Versioned JSON of what was recorded.
    #[arg(long)]
    pub json: bool,
}

/// A trace, and how to read it.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// Trace, packed by gzip or xz or not; - for standard input. NAME also stands for the files
    /// NAME.blktrace.0, NAME.blktrace.1 and so on. iopattern, seeksize and summary record a block
    /// device live, as root.
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// Format of the trace [default: found out].
    #[arg(long, value_parser = format_parser())]
    pub format: Option<Format>,
    /// Unit of times, for formats that leave it open: fio (us by default) and DiskSim.
    #[arg(long, value_name = "UNIT", value_parser = unit_parser())]
    pub time_unit: Option<TimeUnit>,
    /// Only this device, as 'trace summary' names it.
    #[arg(short = 'd', long = "device", value_name = "DEVICE")]
    pub only_device: Option<String>,
    /// Count a request when it is queued, issued to the driver, or completed [default: as the
    /// command needs it].
    #[arg(long, value_parser = stage_parser())]
    pub at: Option<Stage>,
}

/// Only reads, or only writes.
#[derive(Args, Clone, Copy, Debug)]
pub struct OnlyArgs {
    /// Only reads.
    #[arg(short, long, conflicts_with = "writes")]
    pub reads: bool,
    /// Only writes.
    #[arg(short, long)]
    pub writes: bool,
}

/// What `trace iopattern` takes.
#[derive(Args, Clone, Debug)]
pub struct IopatternArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Seconds a line stands for [default: 1; with --as bcc the whole trace].
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    pub interval: Option<Nanos>,
    /// Lines to print [default: all].
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Whose rules and columns: iopattern's, or those of bcc's biopattern.
    #[arg(long = "as", value_name = "RULES", value_parser = rules_parser(),
        default_value = "dtrace")]
    pub rules: Rules,
    /// One line for the whole trace.
    #[arg(long, conflicts_with = "interval")]
    pub total: bool,
    /// Which requests.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// Count flushes and empty requests as requests at sector 0, as the originals do.
    #[arg(long)]
    pub count_flushes: bool,
    /// Put the time in front of each line.
    #[arg(short = 'v', long)]
    pub time: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `trace seeksize` takes.
#[derive(Args, Clone, Debug)]
pub struct SeeksizeArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Whose rules: seeksize.d (position of each thread), or bcc's (position of the device).
    #[arg(long = "as", value_name = "RULES", value_parser = rules_parser(),
        default_value = "dtrace")]
    pub rules: Rules,
    /// Negative distances for seeks backwards.
    #[arg(long)]
    pub signed: bool,
    /// One histogram for all threads and devices.
    #[arg(long)]
    pub total: bool,
    /// Which requests.
    #[command(flatten)]
    pub only: OnlyArgs,
    /// Count flushes and empty requests as requests at sector 0, as the originals do.
    #[arg(long)]
    pub count_flushes: bool,
    /// Of a live device: end after this many seconds [default: with Ctrl-C].
    #[arg(long, value_name = "N", value_parser = parse_interval)]
    pub seconds: Option<Nanos>,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `trace summary` takes.
#[derive(Args, Clone, Debug)]
pub struct SummaryArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Of a live device: end after this many seconds [default: with Ctrl-C].
    #[arg(long, value_name = "N", value_parser = parse_interval)]
    pub seconds: Option<Nanos>,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `trace convert` takes.
#[derive(Args, Clone, Debug)]
pub struct ConvertArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// File to write; - for standard output.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Format to write.
    #[arg(long, value_name = "FORMAT", value_parser = target_parser(), default_value = "forebay")]
    pub to: Target,
    /// Replace OUT when it exists.
    #[arg(short, long)]
    pub force: bool,
    /// Versioned JSON of what was written; not with OUT -.
    #[arg(long)]
    pub json: bool,
}

/// What `trace replay` takes.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Block device, file, nbd:// URI, or sim:NAME for a device of the catalogue in virtual time.
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Of sim:NAME: run the device at 1/N of its size [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub scale: Option<u32>,
    /// Allow writes and discards, which destroy what TARGET holds.
    #[arg(long, conflicts_with = "reads")]
    pub overwrite: bool,
    /// Only reads.
    #[arg(short, long)]
    pub reads: bool,
    /// Pace: a multiple of the trace's own, or max for as fast as TARGET answers.
    #[arg(long, value_name = "N|max", value_parser = parse_speed, default_value = "1")]
    pub speed: Speed,
    /// Requests in flight, at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096),
        default_value_t = 128)]
    pub queue_depth: u32,
    /// Fold places beyond TARGET's end back into it, instead of leaving them out.
    #[arg(long)]
    pub wrap: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// The pace of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// As often as the trace, times this.
    Times(f64),
    /// As fast as the device answers.
    Max,
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Times(factor) => write!(f, "{factor}"),
            Self::Max => f.write_str("max"),
        }
    }
}

fn parse_speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    let factor: f64 = text.parse().map_err(|_| "write a factor such as 2, or max".to_owned())?;
    if !(0.001..=1e6).contains(&factor) {
        return Err("a factor lies between 0.001 and 1000000".to_owned());
    }
    Ok(Speed::Times(factor))
}

/// What `trace cache` takes.
#[derive(Args, Clone, Debug)]
pub struct CacheArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Sizes, separated by commas: 1% of the blocks that the trace touches, or 4G.
    #[arg(long = "size", value_name = "SIZE,...", value_delimiter = ',',
        value_parser = parse_cache_size, default_value = "1%,10%")]
    pub sizes: Vec<CacheSize>,
    /// Policies, separated by commas [default: all].
    #[arg(long = "policy", value_name = "POLICY,...", value_delimiter = ',',
        value_parser = policy_parser())]
    pub policies: Vec<Policy>,
    /// Bytes of a block.
    #[arg(long = "block", value_name = "SIZE", value_parser = parse_bytes, default_value = "4K")]
    pub block_bytes: u64,
    /// Writes neither count nor enter the cache.
    #[arg(long)]
    pub reads_only: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// The size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    /// Millionths of the footprint.
    OfFootprint(u32),
    /// Bytes.
    Bytes(u64),
}

impl CacheSize {
    /// In blocks, cut off; at least one.
    #[must_use]
    pub fn blocks(self, footprint_blocks: u64, block_bytes: u64) -> u64 {
        let blocks = match self {
            Self::OfFootprint(ppm) => {
                (u128::from(footprint_blocks) * u128::from(ppm) / 1_000_000) as u64
            }
            Self::Bytes(bytes) => bytes / block_bytes.max(1),
        };
        blocks.max(1)
    }
}

fn parse_cache_size(text: &str) -> Result<CacheSize, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return match parse_bytes(text).map_err(|e| e.to_string())? {
            0 => Err("a cache of no bytes holds nothing".to_owned()),
            bytes => Ok(CacheSize::Bytes(bytes)),
        };
    };
    let share: f64 = percent.parse().map_err(|_| "write a share as 1% or 0.5%".to_owned())?;
    if !(share > 0.0 && share <= 100.0) {
        return Err("a share lies above 0% and is at most 100%".to_owned());
    }
    Ok(CacheSize::OfFootprint((share * 10_000.0).round() as u32))
}

/// Seconds, also with a fraction, as nanoseconds.
fn parse_interval(text: &str) -> Result<Nanos, String> {
    let secs: f64 = text.parse().map_err(|_| "write the interval in seconds".to_owned())?;
    if !(0.001..=1e9).contains(&secs) {
        return Err("an interval lies between 0.001 and 1000000000 seconds".to_owned());
    }
    Ok(Nanos((secs * 1e9).round() as u64))
}

pub(super) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = Format::ALL.map(Format::name);
    PossibleValuesParser::new(names).map(|name| name.parse().expect("the name of a format"))
}

fn target_parser() -> impl TypedValueParser<Value = Target> {
    let names = Target::ALL.map(Target::name);
    PossibleValuesParser::new(names).map(|name| name.parse().expect("the name of a format"))
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    let names = Policy::ALL.map(Policy::name);
    PossibleValuesParser::new(names).map(|name| name.parse().expect("the name of a policy"))
}

pub(super) fn unit_parser() -> impl TypedValueParser<Value = TimeUnit> {
    PossibleValuesParser::new(["s", "ms", "us", "ns"]).map(|name| match name.as_str() {
        "s" => TimeUnit::S,
        "ms" => TimeUnit::Ms,
        "us" => TimeUnit::Us,
        _ => TimeUnit::Ns,
    })
}

fn stage_parser() -> impl TypedValueParser<Value = Stage> {
    PossibleValuesParser::new(["queue", "issue", "complete"]).map(|name| match name.as_str() {
        "queue" => Stage::Queued,
        "issue" => Stage::Issued,
        _ => Stage::Completed,
    })
}

fn rules_parser() -> impl TypedValueParser<Value = Rules> {
    PossibleValuesParser::new(["dtrace", "bcc"]).map(|name| match name.as_str() {
        "dtrace" => Rules::Dtrace,
        _ => Rules::Bcc,
    })
}
