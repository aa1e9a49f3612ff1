//! Arguments of `forebay qualify`, `forebay witness` and `forebay report`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use forebay_qualify::power_cut::CutSync;
use forebay_qualify::{MIN_SPAN_BYTES, Part, Procedure, Profile, Protection, Purge, Purpose};
use forebay_trace::{Format, TimeUnit};
use forebay_units::{format_bytes, parse_bytes};

use super::trace::{format_parser, unit_parser};

/// What `qualify` takes.
#[derive(Args, Clone, Debug)]
pub struct QualifyArgs {
    /// Block device, file, nbd:// URI, or sim:NAME for a device of the catalogue in virtual time.
    /// A FILE that does not exist is created, and removed at the end.
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// The log that the device is to hold: sets the load and the limits of the verdict.
    #[arg(long = "for", value_name = "PURPOSE", value_parser = purpose_parser(),
        default_value = "forebay")]
    pub purpose: Purpose,
    /// How thorough: two minutes, an hour, or a day.
    #[arg(long, value_parser = profile_parser(), default_value = "quick")]
    pub profile: Profile,
    /// Repeat a published measurement on the whole device instead: the talks of 2010 and 2012, the
    /// review of 2015, SNIA's tests, or the comparison of engines of 2013. It measures, and does
    /// not judge.
    #[arg(long, value_name = "NAME", value_parser = procedure_parser(),
        conflicts_with_all = ["profile", "purpose", "read_only"])]
    pub procedure: Option<Procedure>,
    /// Run one part of the profile's steps alone, behind the fill.
    #[arg(long, value_name = "PART", value_parser = part_parser(),
        conflicts_with_all = ["procedure", "read_only"])]
    pub only: Option<Part>,
    /// Purge the device first, which destroys all that it holds: 'discard' suits files, exports and
    /// models too, the others are commands of whole drives. A procedure purges by discard without
    /// it.
    #[arg(long, value_name = "WAY", value_parser = purge_parser(), conflicts_with = "read_only")]
    pub purge: Option<Purge>,
    /// How the program waits for a request: it sleeps, as databases and kernels do, or polls for up
    /// to 400 microseconds first [default: poll for forebay, whose server does; else sleep].
    #[arg(long, value_enum)]
    pub wait: Option<Wait>,
    /// Only read: nothing is written, and there is no verdict.
    #[arg(long, conflicts_with = "destroy")]
    pub read_only: bool,
    /// Allow writes, which destroy what TARGET holds: repeat its name.
    #[arg(long, value_name = "TARGET")]
    pub destroy: Option<String>,
    /// Size of a FILE that is created, at least 16M.
    #[arg(long, value_name = "SIZE", value_parser = parse_file_size, default_value = "1G")]
    pub size: u64,
    /// Result log to write [default: qualify-TARGET.fbq, in this folder].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Go on with the qualification whose log is there: steps that were done are kept.
    #[arg(long, conflicts_with = "force")]
    pub resume: bool,
    /// Replace the log when it exists.
    #[arg(short, long)]
    pub force: bool,
    /// Print the plan, and do nothing.
    #[arg(long, conflicts_with = "resume")]
    pub plan: bool,
    /// Divide the times of all steps, for a trial.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
        default_value_t = 1)]
    pub shrink: u32,
    /// Seed of places and data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Of sim:NAME: run the device at 1/N of its size [default: small enough to be quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub scale: Option<u32>,
    /// What documents say of its power-loss protection: of user data, of its map only, or none
    /// [default: unknown].
    #[arg(long, value_name = "WHAT", value_parser = protection_parser())]
    pub plp: Option<Protection>,
    /// Terabytes (10^12 bytes) of writes it is rated for [default: unknown].
    #[arg(long, value_name = "TB", value_parser = positive)]
    pub rated_tb: Option<f64>,
    /// Block devices below TARGET whose traffic is counted meanwhile; of a volume, its pool's
    /// devices [default: the disk of TARGET].
    #[arg(long, value_name = "DEV,...", value_delimiter = ',')]
    pub below: Vec<PathBuf>,
    /// Progress in one line, also on a terminal.
    #[arg(long)]
    pub plain: bool,
    /// Its price in dollars [default: unknown].
    #[arg(long, value_name = "USD", value_parser = positive)]
    pub price: Option<f64>,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// How a program waits for its requests.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Asleep.
    Sleep,
    /// Polling first.
    Poll,
}

/// What `report` takes.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Result logs of 'forebay qualify', and traces. Several are shown side by side; of two logs,
    /// the differences are shown too.
    #[arg(value_name = "RESULT", required = true)]
    pub results: Vec<PathBuf>,
    /// Page to write [default: the first RESULT with .html]; - for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the page when it exists.
    #[arg(short, long)]
    pub force: bool,
    /// Format of the traces [default: found out].
    #[arg(long, value_parser = format_parser())]
    pub format: Option<Format>,
    /// Unit of times in traces whose format leaves it open.
    #[arg(long, value_name = "UNIT", value_parser = unit_parser())]
    pub time_unit: Option<TimeUnit>,
    /// Print the results as JSON instead of writing a page.
    #[arg(long, group = "form")]
    pub json: bool,
    /// Print every value as CSV.
    #[arg(long, group = "form")]
    pub csv: bool,
    /// Print findings and tables as Markdown.
    #[arg(long, group = "form")]
    pub markdown: bool,
}

/// A number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "write a number such as 600 or 0.5".to_owned())?;
    if number > 0.0 && number.is_finite() {
        return Ok(number);
    }
    Err("it must be above 0".to_owned())
}

fn purpose_parser() -> impl TypedValueParser<Value = Purpose> {
    PossibleValuesParser::new(Purpose::ALL.map(Purpose::name)).map(|name| {
        let found = Purpose::ALL.into_iter().find(|purpose| purpose.name() == name);
        found.expect("the name of a purpose")
    })
}

fn profile_parser() -> impl TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::ALL.map(Profile::name)).map(|name| {
        let found = Profile::ALL.into_iter().find(|profile| profile.name() == name);
        found.expect("the name of a profile")
    })
}

fn procedure_parser() -> impl TypedValueParser<Value = Procedure> {
    PossibleValuesParser::new(Procedure::ALL.map(Procedure::name)).map(|name| {
        let found = Procedure::ALL.into_iter().find(|procedure| procedure.name() == name);
        found.expect("the name of a procedure")
    })
}

fn part_parser() -> impl TypedValueParser<Value = Part> {
    PossibleValuesParser::new(Part::ALL.map(Part::name)).map(|name| {
        let found = Part::ALL.into_iter().find(|part| part.name() == name);
        found.expect("the name of a part")
    })
}

fn purge_parser() -> impl TypedValueParser<Value = Purge> {
    PossibleValuesParser::new(Purge::ALL.map(Purge::name)).map(|name| {
        let found = Purge::ALL.into_iter().find(|way| way.name() == name);
        found.expect("the name of a way")
    })
}

fn protection_parser() -> impl TypedValueParser<Value = Protection> {
    PossibleValuesParser::new(["data", "map", "none"]).map(|name| match name.as_str() {
        "data" => Protection::UserData,
        "map" => Protection::MapOnly,
        _ => Protection::No,
    })
}

/// `forebay qualify`: of a device, or by a verb.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct QualifyCommand {
    /// Another test than the usual one.
    #[command(subcommand)]
    pub verb: Option<QualifyVerb>,
    /// The usual one.
    #[command(flatten)]
    pub device: Option<QualifyArgs>,
}

/// Tests of their own.
#[derive(Clone, Debug, Subcommand)]
pub enum QualifyVerb {
    /// Write records whose acknowledgements a witness keeps, until the power is cut.
    #[command(after_help = "Example:\n  \
        forebay witness --listen 0.0.0.0:10811 --key-file key             on another host\n  \
        forebay qualify power-cut /dev/sdx --witness hostb --key-file key --destroy /dev/sdx\n  \
        forebay qualify power-cut verify /dev/sdx --witness hostb --key-file key\n\n\
        The first command also verifies what the last cut left, before it writes: as a service \
        that starts with the machine it runs one cycle a boot. It writes until the power is cut; \
        Ctrl-C ends the cycle without a cut. The exit code is 1 when something durable was lost.")]
    PowerCut(PowerCutCommand),
}

/// `forebay qualify power-cut`: a cycle, or its verification alone.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct PowerCutCommand {
    /// The verification alone.
    #[command(subcommand)]
    pub verb: Option<PowerCutVerb>,
    /// A cycle.
    #[command(flatten)]
    pub cycle: Option<PowerCutArgs>,
}

/// What can be done without writing.
#[derive(Clone, Debug, Subcommand)]
pub enum PowerCutVerb {
    /// Read what the last power cut left, and tell the witness.
    #[command(after_help = "Example:\n  \
        forebay qualify power-cut verify /dev/sdx --witness hostb --key-file key\n\n\
        It writes nothing to the device.")]
    Verify(CutDeviceArgs),
}

/// The device under test, and its witness.
#[derive(Args, Clone, Debug)]
pub struct CutDeviceArgs {
    /// Block device, file or nbd:// URI.
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Where 'forebay witness' listens [default port: 10811].
    #[arg(long, value_name = "HOST[:PORT]")]
    pub witness: String,
    /// File with the key of the witness, mode 0600 [default: what FOREBAY_WITNESS_KEY says].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The supply of the drive alone is cut, and this machine goes on: a cycle counts without a
    /// new start of the machine.
    #[arg(long)]
    pub drive_only: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// What a cycle takes.
#[derive(Args, Clone, Debug)]
pub struct PowerCutArgs {
    // The fields of CutDeviceArgs: clap cannot tell whether a group within a group was given.
    /// Block device, file or nbd:// URI.
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Where 'forebay witness' listens [default port: 10811].
    #[arg(long, value_name = "HOST[:PORT]")]
    pub witness: String,
    /// File with the key of the witness, mode 0600 [default: what FOREBAY_WITNESS_KEY says].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The supply of the drive alone is cut, and this machine goes on: a cycle counts without a
    /// new start of the machine.
    #[arg(long)]
    pub drive_only: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
    /// Allow writes, which destroy what TARGET holds: repeat its name.
    #[arg(long, value_name = "TARGET")]
    pub destroy: Option<String>,
    /// Bytes from the start of the device that are written, and read afterwards.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "256M")]
    pub span: u64,
    /// How records are made durable.
    #[arg(long, value_parser = cut_sync_parser(), default_value = "both")]
    pub sync: CutSync,
    /// Begin no cycle when so many power cuts have been verified.
    #[arg(long, value_name = "N")]
    pub cuts: Option<u64>,
}

impl PowerCutArgs {
    /// The device and the witness.
    #[must_use]
    pub fn on(&self) -> CutDeviceArgs {
        CutDeviceArgs {
            target: self.target.clone(),
            witness: self.witness.clone(),
            key_file: self.key_file.clone(),
            drive_only: self.drive_only,
            json: self.json,
        }
    }
}

/// What `witness` takes.
#[derive(Args, Clone, Debug)]
pub struct WitnessArgs {
    /// File that keeps the acknowledgements; it is made when it is missing.
    #[arg(value_name = "FILE", default_value = "witness.fbw")]
    pub file: PathBuf,
    /// Address to listen on. One that other machines reach takes a key.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10811")]
    pub listen: SocketAddr,
    /// File with the key that machines under test must have, mode 0600 [default: what
    /// FOREBAY_WITNESS_KEY says].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Command that cuts the power and restores it, run by /bin/sh once the device is filled.
    #[arg(long, value_name = "COMMAND")]
    pub cut_command: Option<String>,
    /// Seconds from then to the cut: a number between these two is drawn each time.
    #[arg(long, value_name = "FROM-TO", value_parser = seconds_range, default_value = "5-60")]
    pub cut_after: SecondsRange,
    /// Print what FILE has, and end.
    #[arg(long)]
    pub show: bool,
    /// With --show: versioned JSON.
    #[arg(long, requires = "show")]
    pub json: bool,
}

/// The size of a file that is qualified.
fn parse_file_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text).map_err(|e| e.to_string())? {
        few if few < MIN_SPAN_BYTES => {
            Err(format!("a qualification needs {} or more", format_bytes(MIN_SPAN_BYTES)))
        }
        bytes => Ok(bytes),
    }
}

/// Two numbers of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondsRange {
    /// The lower.
    pub from: u64,
    /// The upper.
    pub to: u64,
}

/// Reads `5-60`, or one number for both.
fn seconds_range(text: &str) -> Result<SecondsRange, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to => Ok(SecondsRange { from, to }),
        _ => Err("write it as FROM-TO in seconds, for example 5-60".to_owned()),
    }
}

fn cut_sync_parser() -> impl TypedValueParser<Value = CutSync> {
    PossibleValuesParser::new(CutSync::ALL.map(CutSync::name)).map(|name| {
        let found = CutSync::ALL.into_iter().find(|sync| sync.name() == name);
        found.expect("the name of a way")
    })
}
