//! `forebay trace replay`: the requests of a trace on a device, at its own pace or at full speed.
//!
//! What enters: events in the order of their starts, and a device. What leaves: a summary. What
//! always holds: nothing is written without `--overwrite`. At full speed a flush waits for what
//! came before it, as the traced program did.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, FileDevice, IoBuf, IoBytes, OpenOptions};
use forebay_lab::is_same_file;
use forebay_nbd::Client;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_trace::{DeviceIndex, Event, Flags, Op, Stage, Summary, SummaryBuilder};
use forebay_units::Nanos;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use super::super::outcome::Outcome;
use super::super::scale_refusal;
use super::open::Reading;
use super::{ISSUE_FIRST, stage_name};
use crate::args::{ReplayArgs, Speed};
use crate::failure::{ErrorCode, Failure};
use crate::holders::refuse_used_file;
use crate::log;
use crate::render::{self, TraceHead, document};
use crate::signals::Stop;
use crate::terminal::Screen;

/// Bytes of pseudo-random data that writes take their data from.
const DATA_BYTES: usize = 16 << 20;
/// Longer reads and writes are left out: no block layer issues one.
const MAX_TRANSFER_BYTES: u64 = 8 << 20;
/// Places are folded back by a multiple of this.
const FOLD_BYTES: u64 = 4096;
/// Writes take their data from places this far apart, so that memory stays aligned.
const DATA_STEP_BYTES: usize = 4096;
/// The command is silent for as long.
const QUIET_FOR: Nanos = Nanos::from_secs(2);
const REDRAW_INTERVAL: Nanos = Nanos::from_millis(500);

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// At which pace.
    pub speed: Speed,
    /// Requests in flight, at most.
    pub queue_depth: usize,
    /// Leave out what is no read.
    pub reads_only: bool,
    /// Fold places beyond the device's end back into it.
    pub wraps: bool,
    /// The stage at which a request of the trace starts.
    pub stage: Stage,
}

/// Requests that were not replayed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// They end behind the device's end.
    pub beyond_end: u64,
    /// They do not begin and end at the device's blocks.
    pub unaligned: u64,
    /// Of another kind than asked for, empty, or too long.
    pub other: u64,
}

/// How a replay went.
pub struct Replayed {
    /// How the device served it.
    pub summary: Summary,
    /// What was not replayed.
    pub left_out: LeftOut,
    /// The most that a request began after its time.
    pub max_delay: Nanos,
    /// From the first request to the last completion.
    pub span: Nanos,
}

/// What the tasks of a replay share.
struct Shared {
    device: Device,
    data: IoBytes,
    begun: Nanos,
    in_flight: Cell<usize>,
    ended_one: Rc<Notify>,
    builder: RefCell<SummaryBuilder>,
    error: RefCell<Option<DeviceError>>,
}

/// Replays the events that `next` gives, until it gives none, a request fails, or `is_stopped`.
pub async fn replay(
    device: Device,
    plan: Plan,
    mut next: impl FnMut(u64) -> Option<Event>,
    is_stopped: impl Fn() -> bool,
) -> Result<Replayed, DeviceError> {
    let shared = Rc::new(Shared {
        device,
        data: pseudo_random(),
        begun: rt::now(),
        in_flight: Cell::new(0),
        ended_one: Notify::new(),
        builder: RefCell::new(SummaryBuilder::new(Stage::Issued)),
        error: RefCell::default(),
    });
    let (mut left_out, mut max_delay) = (LeftOut::default(), Nanos::ZERO);
    let (mut first, mut count) = (None, 0);
    while let Some(event) = next(count) {
        if is_stopped() || shared.error.borrow().is_some() {
            break;
        }
        if event.stage != plan.stage && event.stage != Stage::Request {
            continue;
        }
        let Some(event) = shared.fit(event, plan, &mut left_out) else { continue };
        if let Speed::Times(factor) = plan.speed {
            let since = event.time.since(*first.get_or_insert(event.time));
            let due = shared.begun + Nanos((since.0 as f64 / factor) as u64);
            shared.wait_until(due, &is_stopped).await;
            shared.wait_for(plan.queue_depth).await;
            max_delay = max_delay.max(rt::now().since(due));
        } else {
            let is_barrier = event.op == Op::Flush || event.flags.has(Flags::PREFLUSH);
            shared.wait_for(if is_barrier { 1 } else { plan.queue_depth }).await;
        }
        shared.start(event, count);
        count += 1;
    }
    shared.wait_for(1).await;
    let span = rt::now().since(shared.begun);
    if let Some(error) = shared.error.borrow_mut().take() {
        return Err(error);
    }
    let builder = shared.builder.replace(SummaryBuilder::new(Stage::Issued));
    Ok(Replayed { summary: builder.finish(), left_out, max_delay, span })
}

impl Shared {
    /// The request as this device can take it; `None` when it cannot.
    fn fit(&self, event: Event, plan: Plan, left_out: &mut LeftOut) -> Option<Event> {
        let geometry = self.device.geometry();
        let is_transfer = event.op.is_data();
        let is_too_long = is_transfer && event.len_bytes > MAX_TRANSFER_BYTES;
        let is_unwanted = plan.reads_only && event.op != Op::Read;
        let is_empty = event.len_bytes == 0 && event.op != Op::Flush;
        if is_too_long || is_unwanted || is_empty || event.op == Op::Other {
            left_out.other += 1;
            return None;
        }
        if event.op == Op::Flush {
            return Some(Event { device: DeviceIndex(0), ..event });
        }
        let block = u64::from(geometry.block_bytes.max(1));
        if (event.offset_bytes | event.len_bytes) % block != 0 {
            left_out.unaligned += 1;
            return None;
        }
        let mut offset_bytes = event.offset_bytes;
        if event.end_bytes() > geometry.size_bytes {
            if !plan.wraps || event.len_bytes > geometry.size_bytes {
                left_out.beyond_end += 1;
                return None;
            }
            // Runs stay runs, and the place within a block of 4 KiB stays what it was.
            let whole = geometry.size_bytes - geometry.size_bytes % FOLD_BYTES;
            offset_bytes = offset_bytes.checked_rem(whole).unwrap_or(0);
            if offset_bytes + event.len_bytes > geometry.size_bytes {
                offset_bytes = 0;
            }
        }
        Some(Event { offset_bytes, device: DeviceIndex(0), ..event })
    }

    /// Waits for a time, but no longer than the operator does.
    async fn wait_until(&self, due: Nanos, is_stopped: &impl Fn() -> bool) {
        const STEP: Nanos = Nanos::from_millis(200);
        while rt::now() < due && !is_stopped() {
            rt::sleep_until(due.min(rt::now() + STEP)).await;
        }
    }

    /// Waits until fewer than `limit` requests are in flight, or one has failed.
    async fn wait_for(&self, limit: usize) {
        let has_room = || self.in_flight.get() < limit.max(1);
        let has_failed = || limit > 1 && self.error.borrow().is_some();
        self.ended_one.until(|| has_room() || has_failed()).await;
    }

    fn start(self: &Rc<Self>, event: Event, number: u64) {
        let shared = self.clone();
        shared.in_flight.set(shared.in_flight.get() + 1);
        let started = rt::now();
        let issued = Event {
            time: started.since(shared.begun),
            latency: None,
            stage: Stage::Issued,
            ..event
        };
        shared.builder.borrow_mut().event(&issued);
        rt::spawn(async move {
            let outcome = shared.perform(&event, number).await;
            let latency = Some(rt::now().since(started));
            match outcome {
                Ok(()) => {
                    let (time, stage) = (rt::now().since(shared.begun), Stage::Completed);
                    let completed = Event { time, latency, stage, ..issued };
                    shared.builder.borrow_mut().event(&completed);
                }
                Err(error) => {
                    shared.error.borrow_mut().get_or_insert(error);
                }
            }
            shared.in_flight.set(shared.in_flight.get() - 1);
            shared.ended_one.notify_all();
        });
    }

    async fn perform(&self, event: &Event, number: u64) -> Result<(), DeviceError> {
        let len = event.len_bytes as usize;
        if event.op == Op::Write && event.flags.has(Flags::PREFLUSH) {
            self.device.flush().await?;
        }
        let is_fua = event.flags.has(Flags::FUA);
        match event.op {
            Op::Read => self.device.read(event.offset_bytes, IoBuf::recycled(len)).await.map(drop),
            Op::Write => {
                let places = (self.data.len() - len) / DATA_STEP_BYTES + 1;
                let at = (number as usize % places) * DATA_STEP_BYTES;
                self.device.write(event.offset_bytes, self.data.slice(at, len), is_fua).await
            }
            Op::Discard => self.device.discard(event.offset_bytes, event.len_bytes, is_fua).await,
            Op::Flush | Op::Other => self.device.flush().await,
        }
    }
}

/// Data that no controller compresses.
fn pseudo_random() -> IoBytes {
    let mut data = IoBuf::recycled(DATA_BYTES);
    SplitMix64::seed_from_u64(1).fill_bytes(&mut data);
    data.freeze()
}

/// The device behind a path or an NBD URI, for this process alone.
async fn open(target: &str, read_only: bool) -> Result<Device, Failure> {
    if target.starts_with("nbd") && target.contains("://") {
        let client = Client::connect(target).await;
        return Ok(Rc::new(client.map_err(|e| Failure::new(ErrorCode::ServerUnreachable, e))?));
    }
    if !read_only {
        refuse_used_file(Path::new(target))?;
    }
    let options = OpenOptions { read_only, exclusive: true };
    Ok(Rc::new(FileDevice::open(Path::new(target), options).await?))
}

/// The result of a replay, for `--json`.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    head: &'a TraceHead,
    target: &'a str,
    pace: String,
    queue_depth: usize,
    seconds: f64,
    max_delay_ns: Option<u64>,
    left_out: LeftOut,
    summary: &'a Summary,
}

/// Runs the command on a model of the catalogue, in virtual time. Ctrl-C ends the process: virtual
/// time leaves no room for signals.
pub fn on_model(args: ReplayArgs, name: &str) -> Result<Outcome, Failure> {
    let scale = args.scale.unwrap_or(1);
    let simulated = forebay_lab::catalogue::simulated(name, scale, 1)?;
    let device = simulated.device;
    rt::Runtime::simulated(1).block_on(async move { on_device(&args, device, &|| false).await })
}

/// Runs the command.
pub async fn command(args: &ReplayArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    if args.scale.is_some() {
        return Err(scale_refusal(&args.target));
    }
    if !args.reads && !args.overwrite {
        let message = format!("a replay writes to {} and destroys what it holds", args.target);
        return Err(
            Failure::usage(message).with_hint("--overwrite allows it; --reads replays reads only")
        );
    }
    if !args.reads && is_same_file(&args.source.source, &args.target) {
        return Err(Failure::usage(format!("{} is the trace itself", args.target)));
    }
    let device = open(&args.target, args.reads).await?;
    on_device(args, device, &|| stop.is_asked()).await
}

async fn on_device(
    args: &ReplayArgs,
    device: Device,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, Failure> {
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &ISSUE_FIRST)?;
    if !reading.has_times() && args.speed != Speed::Max {
        return Err(Failure::usage("the trace has no times to keep").with_hint("--speed max"));
    }
    let plan = Plan {
        speed: args.speed,
        queue_depth: args.queue_depth as usize,
        reads_only: args.reads,
        wraps: args.wrap,
        stage,
    };
    let screen = Screen::stderr();
    // The operator's time, which a model's is not.
    let now = rt::sys::boot_time;
    let (begun, mut shown_at) = (now(), now() + QUIET_FOR);
    let next = |count| {
        if now() >= shown_at {
            shown_at = now() + REDRAW_INTERVAL;
            let span = crate::clock::duration(now().since(begun).0 / 1_000_000_000);
            screen.show(&format!("replaying to {}: {span}, {count} requests", args.target));
        }
        reading.next()
    };
    let replayed = replay(device, plan, next, is_stopped).await;
    screen.clear();
    let replayed = replayed?;
    let (head, _) = reading.finish(stage);
    let interrupted = is_stopped();
    if interrupted {
        log::warning("interrupted: the trace was replayed in part");
    }
    let complete = head.complete && !interrupted;
    let head = TraceHead { stage: stage_name(Stage::Issued), complete, ..head };
    Ok(Outcome { text: report(args, &head, &replayed), complete })
}

fn report(args: &ReplayArgs, head: &TraceHead, replayed: &Replayed) -> String {
    let is_paced = args.speed != Speed::Max;
    if args.json {
        let body = Body {
            head,
            target: &args.target,
            pace: args.speed.to_string(),
            queue_depth: args.queue_depth as usize,
            seconds: replayed.span.as_secs_f64(),
            max_delay_ns: is_paced.then_some(replayed.max_delay.0),
            left_out: replayed.left_out,
            summary: &replayed.summary,
        };
        return document("trace replay", body);
    }
    let names = forebay_trace::Names::default();
    let secs = replayed.span.as_secs_f64();
    let mut text = format!("replayed to  {} in {secs:.3} s, pace {}\n", args.target, args.speed);
    if is_paced {
        let late_ms = replayed.max_delay.as_secs_f64() * 1e3;
        text.push_str(&format!("late by      {late_ms:.1} ms at most\n"));
    }
    let LeftOut { beyond_end, unaligned, other } = replayed.left_out;
    if beyond_end + unaligned + other > 0 {
        text.push_str(&format!(
            "left out     {beyond_end} beyond the end, {unaligned} unaligned, {other} others\n"
        ));
    }
    text + &render::summary_text(head, &replayed.summary, &names, true)
}

#[cfg(test)]
mod tests;
