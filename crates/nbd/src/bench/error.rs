//! Errors of a run.

use std::fmt;

use forebay_device::DeviceError;
use forebay_units::format_bytes;

use super::overwrite::DataFound;
use crate::client::ClientError;

/// Why a run gives no report.
#[derive(Debug)]
pub enum BenchError {
    /// A connection cannot be opened.
    Client(ClientError),
    /// A request failed.
    Device(DeviceError),
    /// There is no connection to run on.
    NoConnections,
    /// The blocks do not fit the connections and the export.
    BlocksDoNotFit {
        /// Bytes of each request.
        block_bytes: u64,
        /// Number of connections.
        connections: u32,
        /// Bytes of the export that the run may use.
        span_bytes: u64,
    },
    /// The block size is not a multiple of the export's.
    MisalignedBlocks {
        /// Block size of the export.
        export_block_bytes: u32,
    },
    /// The export is read-only, and the load writes.
    ReadOnlyExport,
    /// The run would have no time and no requests.
    EmptyRun,
    /// The load writes, and `--overwrite` was not given. Nothing has been written.
    WouldOverwrite {
        /// The export, as the client names it.
        export: String,
        /// The load writes anywhere in this many first bytes of the export.
        len_bytes: u64,
        /// What the server reports about data in these bytes.
        found: DataFound,
    },
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(e) => e.fmt(f),
            Self::Device(e) => e.fmt(f),
            Self::NoConnections => f.write_str("there are no connections"),
            Self::BlocksDoNotFit { block_bytes, connections, span_bytes } => write!(
                f,
                "blocks of {block_bytes} bytes do not fit {connections} connections and \
                 {span_bytes} bytes of export"
            ),
            Self::MisalignedBlocks { export_block_bytes } => write!(
                f,
                "the block size must be a multiple of the export's {export_block_bytes} bytes"
            ),
            Self::ReadOnlyExport => f.write_str("the export is read-only: use --read-percent 100"),
            Self::EmptyRun => f.write_str("a run needs a time or a count above 0"),
            Self::WouldOverwrite { export, len_bytes, found } => write!(
                f,
                "writes would destroy the first {} of {export} ({found}): give --overwrite to \
                 allow them, or --read-percent 100 to only read",
                format_bytes(*len_bytes)
            ),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<ClientError> for BenchError {
    fn from(e: ClientError) -> Self {
        Self::Client(e)
    }
}
