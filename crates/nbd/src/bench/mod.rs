//! Load generator for any NBD server, with FUA and flushes, which fio's NBD engine lacks.
//!
//! Each connection keeps its share of requests in flight. Data is pseudo-random and never repeats,
//! because compressible or repeated data flatters some servers. Nothing is written unless the
//! arguments allow overwriting.

pub(crate) mod args;
mod error;
mod load;
mod overwrite;
mod report;

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{BlockDevice, Geometry};
use forebay_rt as rt;
use forebay_rt::sync::Notify;

use crate::client::Client;
pub use args::{BenchArgs, Pattern, TimeError};
pub use error::BenchError;
use load::Load;
pub use overwrite::DataFound;
pub use report::{BenchReport, LatencyReport, RESULT_FORMAT};

/// Bytes of one request.
const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// A request to end a run early; the run reports what it has measured.
#[derive(Default)]
pub struct Cancellation {
    is_cancelled: Cell<bool>,
    changed: Notify,
}

impl Cancellation {
    /// A cancellation that is not requested yet.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self::default())
    }

    /// Ends the run.
    pub fn cancel(&self) {
        self.is_cancelled.set(true);
        self.changed.notify_all();
    }

    async fn cancelled(&self) {
        self.changed.until(|| self.is_cancelled.get()).await;
    }
}

/// Connects to the server and runs the load, until its end or until `cancellation`.
pub async fn run(args: BenchArgs, cancellation: &Cancellation) -> Result<BenchReport, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(Rc::new(Client::connect(&args.uri).await?));
    }
    run_on(args, clients, cancellation).await
}

/// Runs the load over connected clients, one for each connection.
pub async fn run_on(
    args: BenchArgs,
    clients: Vec<Rc<Client>>,
    cancellation: &Cancellation,
) -> Result<BenchReport, BenchError> {
    let first = clients.first().ok_or(BenchError::NoConnections)?;
    let geometry = first.geometry();
    let span_bytes = check(&args, &geometry)?;
    if args.writes() && !args.overwrite {
        let found = overwrite::find_data(first, span_bytes).await;
        let export = first.name().to_owned();
        return Err(BenchError::WouldOverwrite { export, len_bytes: span_bytes, found });
    }
    let blocks = span_bytes / args.block_size;
    let load = Load::new(args, blocks);
    for (connection, client) in clients.iter().enumerate() {
        load.start(connection as u64, client);
    }
    let finished = std::pin::pin!(load.finished());
    let cancelled = std::pin::pin!(cancellation.cancelled());
    let interrupted = matches!(rt::select(finished, cancelled).await, rt::Either::Right(_));
    load.end().map_err(BenchError::Device)?;
    Ok(load.report(geometry.size_bytes, interrupted))
}

/// Checks the arguments against the export; returns the bytes of it that the run uses.
fn check(args: &BenchArgs, geometry: &Geometry) -> Result<u64, BenchError> {
    let block_bytes = args.block_size;
    let span_bytes = args.span.unwrap_or(geometry.size_bytes).min(geometry.size_bytes);
    let blocks = span_bytes.checked_div(block_bytes).unwrap_or(0);
    if blocks < u64::from(args.connections) || block_bytes > MAX_BLOCK_BYTES {
        let connections = args.connections;
        return Err(BenchError::BlocksDoNotFit { block_bytes, connections, span_bytes });
    }
    if block_bytes % u64::from(geometry.block_bytes) != 0 {
        let export_block_bytes = geometry.block_bytes;
        return Err(BenchError::MisalignedBlocks { export_block_bytes });
    }
    if geometry.read_only && args.writes() {
        return Err(BenchError::ReadOnlyExport);
    }
    if args.count.map_or(args.seconds <= 0.0, |count| count == 0) {
        return Err(BenchError::EmptyRun);
    }
    Ok(span_bytes)
}
