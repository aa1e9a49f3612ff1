//! `forebay qualify power-cut`: records whose acknowledgements a witness keeps.
//!
//! What enters: a device, a witness. What leaves: the verdict on the last cycle, and a new cycle.
//! What always holds: a cycle begins only after the one before was verified. Who calls: `qualify`.

use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use forebay_device::{Device, OpenOptions};
use forebay_nbd::Client;
use forebay_qualify::power_cut::{
    CutFindings, CutPlan, Cycle, LoadEnd, Message, Reply, Tally, Witness, WitnessFuture,
    WitnessLost, verify_records, write_records,
};
use forebay_qualify::{Observer, Progress};
use forebay_rt::Runtime;
use forebay_rt::net::{Stream, resolve};
use forebay_rt::sync::Mutex;
use forebay_units::format_bytes;
use serde::Serialize;

use super::target::{may_destroy, open_file};
use crate::args::{CutDeviceArgs, PowerCutArgs, PowerCutCommand, PowerCutVerb};
use crate::commands::Outcome;
use crate::control::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::holders::refuse_used_file;
use crate::render::{cut_findings_text, cut_tally_text, document};
use crate::sealed::{Channel, Key, SealError};
use crate::signals::{Signals, Stop};
use crate::terminal::Screen;

/// The port of 'forebay witness'.
const WITNESS_PORT: u16 = 10811;

/// Runs the command.
pub fn power_cut(
    command: PowerCutCommand,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    // Before the runtime has threads: they inherit the signal mask.
    let signals = Signals::take()?;
    runtime()?.block_on(async move {
        let stop = signals.watch();
        match (command.verb, command.cycle) {
            (Some(PowerCutVerb::Verify(on)), _) => verify_alone(&on).await,
            (None, Some(args)) => cycle(&args, &stop).await,
            (None, None) => unreachable!("TARGET is required without a verb"),
        }
    })
}

/// A connection to the witness.
struct Link {
    channel: Channel,
    address: String,
    /// Reports of several writers go one after the other.
    sending: Mutex<()>,
}

impl Link {
    async fn connect(witness: &str, key_file: Option<&Path>) -> Result<Self, Failure> {
        let key = Key::find(key_file)?;
        let lost = |e: std::io::Error| {
            Failure::new(ErrorCode::ServerUnreachable, format!("the witness at {witness}: {e}"))
                .with_hint("'forebay witness' must run there, and listen on that address")
        };
        let (host, port) = match witness.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') => match port.parse() {
                Ok(port) => (host, port),
                Err(_) => (witness, WITNESS_PORT),
            },
            _ => (witness, WITNESS_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut last = std::io::ErrorKind::AddrNotAvailable.into();
        for address in resolve(host, port).map_err(lost)? {
            match Stream::connect_tcp(address).await {
                Ok(stream) => {
                    let channel = Channel::connect(Rc::new(stream), key.as_ref()).await;
                    let channel = channel.map_err(|e| e.failure(witness))?;
                    let address = witness.to_owned();
                    return Ok(Self { channel, address, sending: Mutex::new(()) });
                }
                Err(e) => last = e,
            }
        }
        Err(lost(last))
    }

    fn lost(&self, why: &SealError) -> Failure {
        let message = format!("the witness at {} is lost: {why}", self.address);
        Failure::new(ErrorCode::ServerUnreachable, message)
    }

    async fn tell(&self, message: &Message) -> Result<(), SealError> {
        let _turn = self.sending.lock().await;
        self.channel.send(message, REQUEST_MAX_BYTES).await
    }

    /// Tells the witness, and waits until it has it in its file.
    async fn ask(&self, message: &Message) -> Result<(Option<Cycle>, Tally), Failure> {
        self.tell(message).await.map_err(|e| self.lost(&e))?;
        let reply = self.channel.receive::<Reply>(REPLY_MAX_BYTES).await;
        match reply.map_err(|e| self.lost(&e))? {
            Reply::State { cycle, tally } => Ok((cycle.map(|cycle| *cycle), tally)),
            Reply::OtherDevice(other) => {
                let message = format!("the witness's file is about another device: {other}");
                Err(Failure::new(ErrorCode::Qualify, message)
                    .with_hint("start 'forebay witness' there with another FILE"))
            }
            Reply::OutOfTurn => {
                let message = "the witness is in the middle of another test";
                Err(Failure::new(ErrorCode::Qualify, message)
                    .with_hint("only one machine at a time reports to a witness"))
            }
        }
    }
}

impl Witness for Link {
    fn durable(&self, writer: u16, sequence: u64) -> WitnessFuture<'_> {
        Box::pin(async move {
            self.tell(&Message::Durable(writer, sequence)).await.map_err(|_| WitnessLost)
        })
    }

    fn filled(&self) -> WitnessFuture<'_> {
        Box::pin(async { self.tell(&Message::Filled).await.map_err(|_| WitnessLost) })
    }
}

async fn open(target: &str, read_only: bool) -> Result<Device, Failure> {
    if target.starts_with("nbd") && target.contains("://") {
        let client = Client::connect(target).await;
        let client = client.map_err(|e| Failure::new(ErrorCode::ServerUnreachable, e))?;
        return Ok(Rc::new(client));
    }
    if !read_only {
        refuse_used_file(Path::new(target))?;
    }
    let options = OpenOptions { read_only, exclusive: !read_only };
    Ok(Rc::new(open_file(Path::new(target), options).await?))
}

/// The device's name that outlives a new start: its model and serial number where they are known.
fn identity(target: &str, device: &Device) -> String {
    let known = super::facts::identity(Path::new(target));
    let name = known.unwrap_or_else(|| target.to_owned());
    format!("{name}, {}", format_bytes(device.geometry().size_bytes))
}

/// A number that changes with each start of the machine.
fn boot() -> Result<String, Failure> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let mut text = String::new();
    let file = files::open_to_read(FILE).map_err(|e| Failure::io(FILE, &e))?;
    file.take(64).read_to_string(&mut text).map_err(|e| Failure::io(FILE, &e))?;
    Ok(text.trim().to_owned())
}

/// A verified cycle, for `--json` and for people.
#[derive(Serialize)]
struct Verified {
    cycle: u64,
    is_cut: bool,
    findings: CutFindings,
}

async fn verify_alone(on: &CutDeviceArgs) -> Result<Outcome, Failure> {
    let link = Link::connect(&on.witness, on.key_file.as_deref()).await?;
    let device = open(&on.target, true).await?;
    let (Some(last), _) = hello(&link, on, &device).await? else {
        let message = "the witness knows of no cycle that is not verified";
        return Err(Failure::new(ErrorCode::Qualify, message)
            .with_hint("'forebay qualify power-cut TARGET' begins one"));
    };
    let (verified, tally) = verify(&link, on, &device, last).await?;
    Ok(report(on, Some(&verified), &tally))
}

async fn hello(
    link: &Link,
    on: &CutDeviceArgs,
    device: &Device,
) -> Result<(Option<Cycle>, Tally), Failure> {
    link.ask(&Message::Hello { device: identity(&on.target, device) }).await
}

async fn verify(
    link: &Link,
    on: &CutDeviceArgs,
    device: &Device,
    last: Cycle,
) -> Result<(Verified, Tally), Failure> {
    let screen = Screen::stderr();
    let progress = |done_bytes: u64| {
        let (done, span) = (format_bytes(done_bytes), format_bytes(last.plan.span_bytes));
        screen.show(&format!("cycle {}: {done} of {span} read", last.number));
    };
    let found = verify_records(device, &last.plan, &last.durable, &progress).await;
    screen.clear();
    let findings = found?;
    let is_cut = !last.has_ended && (on.drive_only || last.boot != boot()?);
    let verdict = Message::Verdict { is_cut, findings: Box::new(findings.clone()) };
    let (_, tally) = link.ask(&verdict).await?;
    Ok((Verified { cycle: last.number, is_cut, findings }, tally))
}

async fn cycle(args: &PowerCutArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let on = &args.on();
    let link = Rc::new(Link::connect(&on.witness, on.key_file.as_deref()).await?);
    let device = open(&on.target, false).await?;
    may_destroy(&device, &on.target, args.destroy.as_deref()).await?;
    let (last, mut tally) = hello(&link, on, &device).await?;
    let mut verified = None;
    if let Some(last) = last {
        let (done, now) = verify(&link, on, &device, last).await?;
        (verified, tally) = (Some(done), now);
    }
    if args.cuts.is_some_and(|cuts| tally.cuts >= cuts) {
        return Ok(report(on, verified.as_ref(), &tally));
    }
    let screen = Screen::stderr();
    if let Some(done) = &verified {
        screen.say(cut_findings_text(done.cycle, done.is_cut, &done.findings).trim_end());
        screen.say(cut_tally_text(&tally).trim_end());
    }
    let plan = new_plan(args, &device)?;
    let (begun, _) = link.ask(&Message::Begin { boot: boot()?, plan: plan.clone() }).await?;
    let number = begun.map_or(0, |cycle| cycle.number);
    screen.say(&format!(
        "cycle {number} writes to {} of {}; cut the power when each place is written, or end the \
         cycle with Ctrl-C",
        format_bytes(plan.span_bytes),
        on.target
    ));
    let watch = Watch { screen: &screen, stop, number };
    let load = write_records(&device, &plan, link.clone(), &watch).await;
    screen.clear();
    match load.ended {
        LoadEnd::Stopped => {
            link.tell(&Message::End).await.map_err(|e| link.lost(&e))?;
            if on.json {
                return Ok(report(on, verified.as_ref(), &tally));
            }
            let text = format!(
                "cycle {number} ended without a power cut; {} records durable\n",
                load.records
            );
            Ok(Outcome { text, complete: is_whole(verified.as_ref()) })
        }
        LoadEnd::WitnessLost => {
            let message = format!("the witness at {} is lost", on.witness);
            Err(Failure::new(ErrorCode::ServerUnreachable, message).with_hint(
                "the same command verifies what was reported up to then, and begins anew",
            ))
        }
        LoadEnd::DeviceFailed(error) => {
            Err(Failure::from(error)
                .with_hint("when its power is back, the same command verifies it"))
        }
    }
}

/// What a new cycle writes.
fn new_plan(args: &PowerCutArgs, device: &Device) -> Result<CutPlan, Failure> {
    let id = forebay_rt::random_u64();
    let geometry = device.geometry();
    CutPlan::new(id, &geometry, args.span, args.sync).ok_or_else(|| {
        let record_bytes = CutPlan::RECORD_BYTES.max(geometry.block_bytes);
        let least_bytes = u64::from(record_bytes) * u64::from(CutPlan::WRITERS);
        let least = format_bytes(least_bytes);
        if geometry.size_bytes >= least_bytes {
            let span = format_bytes(args.span);
            let message = format!("--span {span} is too little: a power-cut test needs {least}");
            return Failure::usage(message);
        }
        let message = format!("{}: a power-cut test needs {least}", args.target);
        Failure::new(ErrorCode::DeviceUnusable, message)
    })
}

/// Whether the last cycle lost nothing.
fn is_whole(last: Option<&Verified>) -> bool {
    last.is_none_or(|last| last.findings.damaged() == 0)
}

/// The operator's side of a cycle.
struct Watch<'a> {
    screen: &'a Screen,
    stop: &'a Stop,
    number: u64,
}

impl Observer for Watch<'_> {
    fn goes_on(&self, progress: Progress) -> bool {
        let seconds = progress.elapsed.0 / 1_000_000_000;
        let time = crate::clock::duration(seconds);
        let (number, iops) = (self.number, progress.iops);
        self.screen.show(&format!("cycle {number}: {iops:.0} durable records a second, {time}"));
        !self.stop.is_asked()
    }
}

/// The result, for `--json`.
#[derive(Serialize)]
struct Body<'a> {
    last: Option<&'a Verified>,
    tally: &'a Tally,
    bound: Option<forebay_qualify::power_cut::LossBound>,
}

fn report(on: &CutDeviceArgs, last: Option<&Verified>, tally: &Tally) -> Outcome {
    let complete = is_whole(last);
    if on.json {
        let body = Body { last, tally, bound: tally.bound() };
        return Outcome { text: document("qualify power-cut", body), complete };
    }
    let mut text = String::new();
    if let Some(last) = last {
        text.push_str(&cut_findings_text(last.cycle, last.is_cut, &last.findings));
    }
    text.push_str(&cut_tally_text(tally));
    Outcome { text, complete }
}
