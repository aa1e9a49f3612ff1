//! `forebay log-target`: serves devices to pools of other hosts, as sides of their logs.
//!
//! What enters: names and devices, NBD clients. What leaves: durable writes, messages on who
//! writes. What always holds: one client at a time writes to a device. Who calls: `crate::run`.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};

use forebay_device::Device;
use forebay_device::layers::{SingleWriter, WriterOpening};
use forebay_nbd::{ExportEntry, ExportHandle, Exports, Limits, Peer, Refusal, Server};
use forebay_rt::Runtime;
use forebay_units::{Nanos, format_bytes};

use super::outcome::Outcome;
use crate::args::{ListenAddress, LogTargetArgs, Target};
use crate::devices::{DEVICE_MIN_BYTES, resolve_new, wait_until_free};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::log_memory;
use crate::open_files;
use crate::serving::watch::Watch;
use crate::serving::{NBD_PORT, REPLY_TIMEOUT, bind, refuse_exposed, tls_config, wait_for_address};
use crate::signals::Signals;
use crate::terminal::Screen;

/// Between two looks at who writes.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(1);

/// A device that is served.
struct Served {
    name: String,
    device: Device,
    writers: Rc<SingleWriter>,
    /// Openings that have not written yet, with their clients' addresses.
    openings: RefCell<Vec<(String, Weak<WriterOpening>)>>,
}

/// The devices as NBD exports.
struct Targets(Vec<Served>);

impl Exports for Targets {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        let entry =
            |served: &Served| ExportEntry { name: served.name.clone(), description: String::new() };
        self.0.iter().map(entry).collect()
    }

    fn open(&self, name: &str, peer: &Peer) -> Result<ExportHandle, Refusal> {
        let served = self.0.iter().find(|served| served.name == name).ok_or(Refusal::Unknown)?;
        let opening = served.writers.open();
        let mut openings = served.openings.borrow_mut();
        openings.retain(|(_, opening)| opening.strong_count() > 0);
        openings.push((peer.address.clone(), Rc::downgrade(&opening)));
        // Another connection of the same client could not write.
        Ok(ExportHandle { multi_conn: false, ..ExportHandle::new(opening) })
    }
}

impl Targets {
    /// What has happened since the last look.
    fn look(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for served in &self.0 {
            served.openings.borrow_mut().retain(|(address, opening)| {
                let Some(opening) = opening.upgrade() else { return false };
                if opening.is_writer() {
                    lines.push(format!("'{}' is written by {address}", served.name));
                }
                !opening.is_writer()
            });
            for change in served.device.take_dram_changes() {
                lines.push(format!("memory of '{}' went {change}", served.name));
            }
        }
        lines
    }
}

/// Runs the command.
pub fn log_target(
    args: LogTargetArgs,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    // Before the runtime has threads: they inherit the signal mask.
    let signals = Signals::take()?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async move { serve(args, signals).await });
    let left = runtime.finish();
    if left > 0 {
        log::warning(&format!("{left} commands to devices that do not answer are left behind"));
    }
    outcome
}

async fn serve(args: LogTargetArgs, signals: Signals) -> Result<Outcome, Failure> {
    let tls = tls_config(&args.security, None)?;
    let mut addresses = args.listen.clone();
    if addresses.is_empty() {
        addresses.push(ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, NBD_PORT))));
    }
    for address in &addresses {
        refuse_exposed(address, tls.is_some(), args.security.plaintext)?;
        wait_for_address(address).await?;
    }
    let mut targets = Vec::new();
    for (at, target) in args.targets.iter().enumerate() {
        if args.targets[..at].iter().any(|other| other.name == target.name) {
            return Err(Failure::usage(format!("'{}' is named twice", target.name)));
        }
        targets.push(open(target).await?);
    }
    log::become_server();
    let stop = signals.watch();
    stop.ignore_hangup_without_terminal();
    let (targets, limits) = (Rc::new(Targets(targets)), open_files::within(Limits::default()));
    let server = match tls {
        Some(tls) => Server::with_tls(targets.clone(), limits, tls),
        None => Server::new(targets.clone(), limits),
    };
    let screen = Screen::stdout();
    for address in &addresses {
        screen.say(&format!("listening on {}", bind(&server, address)?));
    }
    for served in &targets.0 {
        let (name, size) = (&served.name, format_bytes(served.device.geometry().size_bytes));
        screen.say(&format!("'{name}' is {} ({size})", served.device.name()));
    }
    let count = targets.0.len();
    let devices = if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
    screen.say(&format!("ready: serving {devices}; Ctrl-C ends"));
    let mut watch = Watch::default();
    while stop.unless_asked(forebay_rt::sleep(LOOK_INTERVAL)).await.is_some() {
        targets.look().iter().for_each(|line| log::notice(line));
        let offenses = || server.take_offenses();
        if let Some(line) = watch.clients(offenses, limits.connections_max, forebay_rt::now()) {
            log::warning(&line);
        }
    }
    screen.say(&format!("stopping ({})", stop.by()));
    server.stop(REPLY_TIMEOUT).await;
    let mut saved = Ok(());
    for served in &targets.0 {
        saved = saved.and(served.device.save().await);
        targets.look().iter().for_each(|line| log::notice(line));
    }
    saved?;
    screen.say("stopped: everything is on the devices");
    Ok(Outcome::done())
}

async fn open(target: &Target) -> Result<Served, Failure> {
    let device = match log_memory::is_name(&target.device) {
        true => log_memory::open_or_make(&target.device).await?,
        false => {
            let path = resolve_new(&target.device)?;
            wait_until_free(std::slice::from_ref(&path)).await;
            log_memory::open(&path).await?
        }
    };
    let size_bytes = device.geometry().size_bytes;
    if size_bytes < DEVICE_MIN_BYTES {
        let (device, size) = (&target.device, format_bytes(size_bytes));
        let message = format!("{device} has {size}; a log device needs 64M at least");
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    let (name, writers) = (target.name.clone(), SingleWriter::new(device.clone()));
    Ok(Served { name, device, writers, openings: RefCell::default() })
}
