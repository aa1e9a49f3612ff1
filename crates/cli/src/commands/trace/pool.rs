//! `forebay trace pool`: records the devices of a pool that a server has open.
//!
//! What enters: a pool's name, and what the server's recording layers saw. What leaves: a trace in
//! the own format. What always holds: events are in the order of their times, but for commands that
//! took longer than a second. Who calls: `crate::run`.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use forebay_trace::{CompactWriter, DeviceIndex, Event, Flags, Names, Op, Stage};
use forebay_units::{Nanos, format_bytes};
use serde::Serialize;

use super::super::outcome::Outcome;
use super::super::output;
use super::super::requests::reply_as;
use super::convert::written_len;
use crate::args::RecordPoolArgs;
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::PoolAccess;
use crate::render::document;
use crate::taps::{Command, Kind, Recording};
use crate::terminal::Screen;

/// Between two polls of the server.
const POLL_INTERVAL: Nanos = Nanos::from_millis(100);
/// Events wait for as long, for earlier ones whose command takes longer.
const HOLD_BACK: Nanos = Nanos::from_secs(1);
/// A recording that is killed loses no more than this, and what is held back.
const CHUNK_INTERVAL: Nanos = Nanos::from_secs(1);

/// Events on their way to the file.
struct Sorter<W: Write> {
    writer: CompactWriter<W>,
    names: Names,
    /// By time and order of arrival.
    waiting: BTreeMap<(u64, u64), Event>,
    arrived: u64,
    events: u64,
}

impl<W: Write> Sorter<W> {
    /// Takes the commands of a reply: each is an event at its issue, and one at its completion.
    fn take(&mut self, recording: &Recording) {
        let wall_zero =
            recording.unix_s.saturating_mul(1_000_000_000).checked_sub(recording.now_ns);
        self.names.set_first_wall_zero(wall_zero);
        for (path, commands) in &recording.devices {
            let device = self.names.add_device(path);
            for &Command(issued, completed, kind, offset_bytes, len_bytes, is_fua) in commands {
                let op = match kind {
                    Kind::Read => Op::Read,
                    Kind::Write => Op::Write,
                    Kind::Discard => Op::Discard,
                    Kind::Flush => Op::Flush,
                };
                let flags = if is_fua { Flags::FUA } else { Flags::default() };
                let base = event(device, op, flags, (offset_bytes, len_bytes));
                let (time, stage) = (Nanos(issued), Stage::Issued);
                self.wait(Event { time, stage, ..base });
                let (time, stage) = (Nanos(completed), Stage::Completed);
                let latency = Some(time.since(Nanos(issued)));
                self.wait(Event { time, stage, latency, ..base });
            }
        }
    }

    fn wait(&mut self, event: Event) {
        self.waiting.insert((event.time.0, self.arrived), event);
        self.arrived += 1;
    }

    /// Writes the events before `until`.
    fn write(&mut self, until: Nanos) -> std::io::Result<()> {
        let later = self.waiting.split_off(&(until.0, 0));
        for event in std::mem::replace(&mut self.waiting, later).into_values() {
            self.writer.event(&event, &self.names)?;
            self.events += 1;
        }
        Ok(())
    }
}

fn event(
    device: DeviceIndex,
    op: Op,
    flags: Flags,
    (offset_bytes, len_bytes): (u64, u64),
) -> Event {
    Event {
        time: Nanos::ZERO,
        latency: None,
        offset_bytes,
        len_bytes,
        device,
        pid: 0,
        op,
        stage: Stage::Issued,
        flags,
    }
}

/// The result, for `--json`.
#[derive(Serialize)]
struct Body<'a> {
    pool: &'a str,
    mechanism: &'a str,
    output: String,
    devices: usize,
    events: u64,
    dropped: u64,
    seconds: f64,
    complete: bool,
}

/// Runs the command.
pub async fn record_pool(args: RecordPoolArgs, access: PoolAccess) -> Result<Outcome, Failure> {
    let pool = args.pool.as_str();
    if access.server_of(pool).is_none() {
        access.names(&[pool.to_owned()])?;
        let message = format!("'{pool}' is not served: there is nothing to record");
        return Err(Failure::new(ErrorCode::PoolNotServed, message)
            .with_hint(format!("'forebay serve {pool}' serves it")));
    }
    // A reply that is given up is lost: the server has handed those commands over.
    let handle = access.open(pool).await?.not_interrupted();
    let out = args.recording.out.clone().unwrap_or_else(|| PathBuf::from(format!("{pool}.fbt")));
    output::refuse_json_beside(&out, args.recording.json)?;
    let file = BufWriter::new(output::recording(&out, args.recording.force)?);
    let mut sorter = Sorter {
        writer: CompactWriter::new(file, true),
        names: Names::default(),
        waiting: BTreeMap::new(),
        arrived: 0,
        events: 0,
    };
    if !args.recording.json {
        log::notice(&format!("recording '{pool}' to {}; Ctrl-C ends", out.display()));
    }
    let begun = forebay_rt::now();
    let polled = poll_all(&args, &access, &handle, &mut sorter, &out).await;
    let ended = handle.ask(Action::Record { goes_on: false }).await.map(|_| ());
    let failed = |e| Failure::io(out.display(), &e);
    sorter.write(Nanos(u64::MAX)).map_err(failed)?;
    sorter.writer.finish(&sorter.names).map_err(failed)?;
    let dropped = handle.close_after(polled.and_then(|dropped| ended.map(|()| dropped))).await?;
    let seconds = forebay_rt::now().since(begun).as_secs_f64();
    if dropped > 0 {
        log::warning(&format!("{dropped} commands were dropped: they came faster than polls"));
    }
    let (events, devices) = (sorter.events, sorter.names.devices().len());
    let (name, complete) = (out.display().to_string(), dropped == 0);
    let text = match args.recording.json {
        true => {
            let (mechanism, output) = ("recorded layer of the server", name);
            let body =
                Body { pool, mechanism, output, devices, events, dropped, seconds, complete };
            document("trace pool", body)
        }
        false => {
            format!("{events} events of {devices} devices of '{pool}' in {seconds:.1} s: {name}\n")
        }
    };
    Ok(output::recorded(&out, text, complete))
}

/// Polls until the end. Returns how many commands were dropped.
async fn poll_all<W: Write>(
    args: &RecordPoolArgs,
    access: &PoolAccess,
    handle: &crate::pool_access::PoolHandle,
    sorter: &mut Sorter<W>,
    out: &Path,
) -> Result<u64, Failure> {
    let failed = |e| Failure::io(out.display(), &e);
    let (screen, stop) = (Screen::stderr(), access.stop());
    let (begun, mut chunk_at, mut dropped) = (forebay_rt::now(), forebay_rt::now(), 0);
    let end = args.recording.seconds.map(|span| begun + span);
    let mut is_over = false;
    loop {
        let reply = handle.ask(Action::Record { goes_on: true }).await;
        let recording = reply_as!(reply, Reply::Recording)?;
        dropped += recording.dropped;
        sorter.take(&recording);
        let until = recording.now_ns.saturating_sub(HOLD_BACK.0);
        sorter.write(Nanos(until)).map_err(failed)?;
        if is_over {
            screen.clear();
            return Ok(dropped);
        }
        let now = forebay_rt::now();
        if now.since(chunk_at) >= CHUNK_INTERVAL {
            chunk_at = now;
            sorter.writer.end_chunk().map_err(failed)?;
            let span = crate::clock::duration(now.since(begun).0 / 1_000_000_000);
            let len = format_bytes(written_len(out));
            screen.show(&format!("{span}, {} events, {len}", sorter.events));
        }
        let left = end.map_or(POLL_INTERVAL, |end| end.since(now).min(POLL_INTERVAL));
        let is_asked = stop.unless_asked(forebay_rt::sleep(left)).await.is_none();
        is_over = is_asked || end.is_some_and(|end| forebay_rt::now() >= end);
    }
}
