//! Arguments of the load generator.

use std::fmt;

use clap::{Args, ValueEnum};
use forebay_units::parse_bytes;
use serde::{Deserialize, Serialize};

/// Seconds of the longest run; a longer time is a mistake in typing.
const MAX_SECONDS: f64 = 1e6;

/// The offsets of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Any whole block.
    Random,
    /// The next block; each connection in its own part of the export.
    Sequential,
}

/// A time that the load generator does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeError {
    /// The text is not a time.
    Malformed(String),
    /// The time is longer than the longest run.
    TooLong(String),
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => write!(
                f,
                "'{text}' is not a time; write seconds, or a number with ms, s, m or h: 0.5, 500ms"
            ),
            Self::TooLong(text) => write!(f, "'{text}' is longer than {MAX_SECONDS} seconds"),
        }
    }
}

impl std::error::Error for TimeError {}

/// Reads a time such as `10`, `0.5`, `500ms` or `2m`, in seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, TimeError> {
    let malformed = || TimeError::Malformed(text.to_owned());
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| malformed())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(malformed()),
    };
    if seconds > MAX_SECONDS {
        return Err(TimeError::TooLong(text.to_owned()));
    }
    Ok(seconds)
}

/// One run of the load generator: the server, the load and its length.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct BenchArgs {
    /// Server and export: nbd+unix:///EXPORT?socket=PATH or nbd://HOST:PORT/EXPORT
    pub uri: String,
    /// The offsets of requests.
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Pattern,
    /// Percent of requests that read; the others write and need --overwrite.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Allow writes, which destroy what the export holds.
    #[arg(long)]
    #[serde(default)]
    pub overwrite: bool,
    /// Bytes of each request.
    #[arg(long, default_value = "4K", value_parser = parse_bytes)]
    pub block_size: u64,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub queue_depth: u32,
    /// Number of connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// Writes are durable before their reply (FUA).
    #[arg(long)]
    pub fua: bool,
    /// A flush follows each write; its time counts in the latency of the write.
    #[arg(long)]
    pub flush_each: bool,
    /// How long to run, in seconds, or with a unit: 0.5, 500ms, 10s, 2m.
    #[arg(long, value_name = "TIME", default_value = "10", conflicts_with = "count",
        value_parser = parse_seconds)]
    pub seconds: f64,
    /// Requests to make, instead of a time.
    #[arg(long)]
    pub count: Option<u64>,
    /// Time of load before the measurement begins, in the same form.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_seconds)]
    pub warmup_seconds: f64,
    /// Begin at most so many requests a second, over all connections.
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(default)]
    pub rate: Option<u32>,
    /// Use only this many bytes from the start of the export.
    #[arg(long, value_parser = parse_bytes)]
    pub span: Option<u64>,
    /// Seed of the offsets and the data.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// Whether some requests write.
    pub(super) fn writes(&self) -> bool {
        self.read_percent < 100
    }
}
