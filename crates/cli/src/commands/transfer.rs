//! `forebay volume send` and `forebay volume receive`.

use std::io::{self, IsTerminal, Read, Write};

use forebay_pool::{ReceiveOptions, SendOptions};
use forebay_rt::{self as rt, sys};
use forebay_units::{Nanos, format_bytes};

use super::outcome::Outcome;
use super::requests::{ask_all, reply_as};
use crate::args::VolumeName;
use crate::control::{Action, ReceivedStream, Reply, SendSize};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::{PoolAccess, PoolSink, PoolStream};
use crate::terminal::Screen;

/// What is read from standard input at once.
const READ_BYTES: usize = 256 << 10;
/// A transfer that takes longer shows how far it is.
const QUIET_FOR: Nanos = Nanos::from_secs(2);
const REDRAW_INTERVAL: Nanos = Nanos::from_millis(500);
/// Between two lines of -v when standard error is no terminal.
const LINE_INTERVAL: Nanos = Nanos::from_secs(1);

/// Arguments of `volume send`.
pub struct Sending {
    pub base: Option<String>,
    pub as_stored: bool,
    pub dry_run: bool,
    pub verbose: bool,
    pub token: Option<String>,
    pub snapshot: Option<VolumeName>,
}

/// Arguments of `volume receive`.
pub struct Receiving {
    pub options: ReceiveOptions,
    pub verbose: bool,
    pub abandon: bool,
    pub volume: VolumeName,
}

/// `volume send`.
pub async fn send(args: Sending, access: &PoolAccess) -> Result<Outcome, Failure> {
    if !args.dry_run && io::stdout().is_terminal() {
        return Err(Failure::usage("a stream is not written to a terminal").with_hint(
            "redirect standard output: '>FILE' or '| ssh HOST forebay volume receive …'",
        ));
    }
    if !args.dry_run {
        sys::stdout().map_err(|error| Failure::io("standard output", &error))?;
    }
    let (pool, options) = options(&args)?;
    let handle = access.open(&pool).await?;
    let begun = async {
        let size = match args.dry_run || args.verbose {
            true => {
                let asked = Action::SendSize { options: options.clone() };
                Some(reply_as!(handle.ask(asked).await, Reply::SendSize)?)
            }
            false => None,
        };
        if args.dry_run {
            let size = size.map(|size| sentence(&size)).unwrap_or_default();
            return Ok(Outcome::text(format!("would send {size}\n")));
        }
        if let Some(size) = size.as_ref() {
            log::notice(&format!("sending {}", sentence(size)));
        }
        let total = size.map(|size| size.len_bytes);
        let mut stream = handle.open_send(options).await?;
        let mut progress = Progress::new("sent", args.verbose, total);
        let stop = access.stop();
        let writing = write_all(&mut stream, &mut progress);
        let written = stop.unless_asked(writing).await;
        stream.end().await;
        progress.end();
        written.unwrap_or_else(|| {
            Err(Failure::new(ErrorCode::Interrupted, "interrupted: the stream is not whole"))
        })?;
        Ok(Outcome::done())
    };
    let outcome = begun.await;
    handle.close_after(outcome).await
}

/// The pool, and what is sent of it.
fn options(args: &Sending) -> Result<(String, SendOptions), Failure> {
    let token = args.token.clone();
    let named = match (&args.snapshot, &token) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(token)) => {
            let pool = forebay_pool::source_of_token(token);
            let pool = pool.ok_or_else(|| Failure::from(forebay_pool::TransferError::Token))?;
            let pool = pool.split('/').next().unwrap_or_default().to_owned();
            let (token, is_as_stored) = (Some(token.clone()), args.as_stored);
            return Ok((pool, SendOptions { token, is_as_stored, ..Default::default() }));
        }
        (None, None) => None,
    };
    let Some(VolumeName { pool, volume }) = named else {
        return Err(Failure::usage("name a snapshot, POOL/VOL@SNAP"));
    };
    let Some((own, _)) = volume.split_once('@') else {
        return Err(Failure::usage(format!("'{pool}/{volume}' is no snapshot"))
            .with_hint("take one with 'forebay volume snapshot', and send POOL/VOL@SNAP"));
    };
    let base = args.base.as_deref().map(|base| match base.split_once('@') {
        Some((of, name)) if of.is_empty() || of == format!("{pool}/{own}") => Ok(name.to_owned()),
        Some(_) => Err(Failure::usage(format!("'{base}' is not of the volume '{pool}/{own}'"))),
        None => Ok(base.to_owned()),
    });
    let base = base.transpose()?;
    let is_as_stored = args.as_stored;
    Ok((pool, SendOptions { snapshot: Some(volume), base, token, is_as_stored }))
}

fn sentence(size: &SendSize) -> String {
    let SendSize { name, base, start_bytes, len_bytes } = size;
    let since = base.as_ref().map_or(String::new(), |base| format!(" since @{base}"));
    let from = match start_bytes {
        0 => String::new(),
        start => format!(" from byte {start} on"),
    };
    format!("{name}{since}{from}: {len_bytes} bytes ({})", format_bytes(*len_bytes))
}

/// Writes a stream to standard output. The next bytes are made while the last ones are written.
async fn write_all(stream: &mut PoolStream, progress: &mut Progress) -> Result<(), Failure> {
    let mut next = stream.next().await?;
    while let Some(bytes) = next.take() {
        let len = bytes.len() as u64;
        let writing = rt::aside(move || {
            let mut out = io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush())
        });
        let (written, following) = rt::join(Box::pin(writing), Box::pin(stream.next())).await;
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => {
                Failure::new(ErrorCode::OutputClosed, "the reader of the stream has ended")
            }
            _ => Failure::io("standard output", &error),
        })?;
        progress.add(len);
        next = following?;
    }
    Ok(())
}

/// `volume receive`.
pub async fn receive(args: Receiving, access: &PoolAccess) -> Result<Outcome, Failure> {
    let VolumeName { pool, volume } = args.volume;
    if volume.contains('@') {
        return Err(Failure::usage("name the volume alone: the stream has the snapshot's name"));
    }
    if args.abandon {
        return ask_all(access, &pool, [Action::ReceiveAbandon { volume }]).await;
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage("a stream is not read from a terminal")
            .with_hint("redirect standard input: '<FILE' or 'forebay volume send … |'"));
    }
    // Waits for the first bytes before the pool is opened: a sender may need it until then.
    let first = access.stop().unless_asked(read_some()).await;
    let first = first.ok_or_else(|| interrupted("nothing was done"))??;
    let handle = access.open(&pool).await?;
    let begun = async {
        let mut sink = handle.open_receive(&volume, args.options).await?;
        let mut progress = Progress::new("received", args.verbose, None);
        let stop = access.stop();
        let taken = stop.unless_asked(take_all(&mut sink, first, &mut progress)).await;
        let outcome = match taken {
            Some(Ok(())) => sink.finish().await,
            Some(Err(failure)) => Err(sink.give_up(failure).await),
            None => Err(sink.give_up(interrupted("the stream is not whole")).await),
        };
        progress.end();
        outcome
    };
    let outcome = begun.await;
    let ReceivedStream { name, data_bytes, hole_bytes } = handle.close_after(outcome).await?;
    if args.verbose {
        log::notice(&format!(
            "{name} is there: {} of data, {} of holes",
            format_bytes(data_bytes),
            format_bytes(hole_bytes)
        ));
    }
    Ok(Outcome::done())
}

fn interrupted(what: &str) -> Failure {
    Failure::new(ErrorCode::Interrupted, format!("interrupted; {what}"))
}

/// Hands standard input on to its end.
async fn take_all(
    sink: &mut PoolSink,
    first: Vec<u8>,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut bytes = first;
    while !bytes.is_empty() {
        let len = bytes.len() as u64;
        sink.feed(bytes).await?;
        progress.add(len);
        bytes = sink.unless_ended(Box::pin(read_some())).await??;
    }
    Ok(())
}

/// The next bytes of standard input; none at its end.
async fn read_some() -> Result<Vec<u8>, Failure> {
    let reading = rt::aside(|| {
        let mut bytes = Vec::with_capacity(READ_BYTES);
        io::stdin().lock().take(READ_BYTES as u64).read_to_end(&mut bytes).map(|_| bytes)
    });
    reading.await.map_err(|error| Failure::io("standard input", &error))
}

/// How far a transfer is, on standard error.
struct Progress {
    verb: &'static str,
    verbose: bool,
    total_bytes: Option<u64>,
    done_bytes: u64,
    begun: Nanos,
    shown_at: Nanos,
    screen: Screen,
}

impl Progress {
    fn new(verb: &'static str, verbose: bool, total_bytes: Option<u64>) -> Self {
        let (begun, screen) = (rt::now(), Screen::stderr());
        Self { verb, verbose, total_bytes, done_bytes: 0, begun, shown_at: begun, screen }
    }

    fn add(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        let now = rt::now();
        let since_shown = now.since(self.shown_at);
        if self.screen.is_terminal() {
            let is_due = since_shown >= REDRAW_INTERVAL;
            if is_due && (self.verbose || now.since(self.begun) >= QUIET_FOR) {
                self.shown_at = now;
                self.screen.show(&self.line());
            }
        } else if self.verbose && since_shown >= LINE_INTERVAL {
            self.shown_at = now;
            log::notice(&self.line());
        }
    }

    fn line(&self) -> String {
        let secs = rt::now().since(self.begun).as_secs_f64();
        let rate = (self.done_bytes as f64 / secs.max(0.001)) as u64;
        let of = self.total_bytes.map_or(String::new(), |total| {
            let percent = self.done_bytes * 100 / total.max(1);
            format!(" of {} ({percent} %)", format_bytes(total))
        });
        let done = format_bytes(self.done_bytes);
        format!("{} {done}{of} in {secs:.1} s, {}/s", self.verb, format_bytes(rate))
    }

    /// Takes the live line away; with -v says the whole.
    fn end(&self) {
        self.screen.clear();
        if self.verbose {
            log::notice(&self.line());
        }
    }
}
