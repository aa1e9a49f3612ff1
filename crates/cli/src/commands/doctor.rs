//! `forebay doctor`: looks at the machine and the devices of its pools, and says what to change.
//!
//! What enters: names of pools, paths of devices. What leaves: findings, for people or as JSON.
//! What always holds: nothing is changed, and no pool is imported. Who calls: `crate::run`.

use std::path::Path;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::VdevStatus;
use serde::Serialize;

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::DoctorArgs;
use crate::control::{Action, Reply};
use crate::devices::FileOpener;
use crate::doctor::{
    Examined, Finding, Grade, Kernel, ProcessLimits, Purpose, of_devices, of_machine,
};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::pool_access::PoolAccess;
use crate::render::document;

/// The result, for `--json`.
#[derive(Serialize)]
struct Body {
    worst: Grade,
    findings: Vec<Finding>,
}

/// What is found before anything of the program is used.
#[must_use]
pub fn machine() -> Vec<Finding> {
    of_machine(&Kernel::below(Path::new("/")), ProcessLimits::own())
}

/// The findings when pools cannot be looked at: `why` keeps this program from working at all.
#[must_use]
pub fn doctor_without_pools(args: &DoctorArgs, why: Failure) -> Outcome {
    let mut findings = machine();
    if findings.iter().all(|finding| finding.grade != Grade::Failure) {
        let fix = Some(why.hint).filter(|hint| !hint.is_empty());
        let failure = Finding::of(
            Grade::Failure,
            "io_uring",
            why.message,
            "every command on a pool needs it",
        );
        findings.push(Finding { fix, ..failure });
    }
    outcome(args, findings)
}

/// Runs the command.
pub async fn doctor(args: DoctorArgs, access: PoolAccess) -> Result<Outcome, Failure> {
    let mut findings = machine();
    findings.extend(state_folder(&access));
    let known = access.names(&[])?;
    let (pools, paths): (Vec<String>, Vec<String>) =
        args.names.iter().cloned().partition(|name| known.contains(name));
    if let Some(name) = paths.iter().find(|path| !Path::new(path).exists()) {
        if name.contains('/') {
            let message = format!("{name}: no such device");
            return Err(Failure::new(ErrorCode::DeviceNotFound, message));
        }
        access.names(std::slice::from_ref(name))?;
    }
    let pools = if args.names.is_empty() { known } else { pools };
    let mut devices: Vec<Examined> =
        paths.iter().map(|path| Examined::at(path, Purpose::Any, None, size_of(path))).collect();
    for pool in &pools {
        devices.extend(devices_of(&access, pool).await?);
    }
    findings.extend(of_devices(&Kernel::below(Path::new("/")), &devices));
    Ok(outcome(&args, findings))
}

fn outcome(args: &DoctorArgs, findings: Vec<Finding>) -> Outcome {
    let worst = findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Ok);
    let complete = worst < Grade::Warning;
    let text = match args.json {
        true => document("doctor", Body { worst, findings }),
        false => listing(&findings),
    };
    Outcome { text, complete }
}

fn listing(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { subject, grade, found, why, fix } in findings {
        let subject = crate::escape::visible(subject);
        text.push_str(&format!("{:<7}  {subject:<width$}  {found}\n", grade.as_str()));
        if !why.is_empty() {
            text.push_str(&format!("         {why}\n"));
        }
        if let Some(fix) = fix {
            text.push_str(&format!("         do: {fix}\n"));
        }
    }
    let count = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    let counts = [(Grade::Failure, "failure"), (Grade::Warning, "warning")].map(|(grade, name)| {
        let count = count(grade);
        format!("{count} {name}{}", if count == 1 { "" } else { "s" })
    });
    text.push_str(&format!("\n{}, advice on {}\n", counts.join(", "), count(Grade::Advice)));
    text
}

fn size_of(path: &str) -> Option<u64> {
    forebay_device::probe_size_bytes(Path::new(path)).ok()
}

/// The devices of a pool, with what they are for: as its server says, or as their labels do.
async fn devices_of(access: &PoolAccess, pool: &str) -> Result<Vec<Examined>, Failure> {
    let mut devices = Vec::new();
    let mut add = |vdevs: &[VdevStatus], purpose| {
        for vdev in vdevs {
            leaves(vdev, &mut |device| {
                let size = Some(device.size_bytes).filter(|size| *size > 0);
                devices.push(Examined::at(&device.name, purpose, Some(pool), size));
            });
        }
    };
    if access.server_of(pool).is_some() {
        let reply = access.ask(pool, Action::Status).await;
        let report = reply_as!(reply, Reply::Status)?;
        let status = &report.pool;
        add(&status.groups, Purpose::Data);
        add(&status.logs, Purpose::Log);
        add(&status.caches, Purpose::Cache);
        return Ok(devices);
    }
    let known = access.state().known_pools()?.into_iter().find(|known| known.name == pool);
    let Some(known) = known else { return Ok(devices) };
    let found = Pool::discover(Rc::new(FileOpener), &known.devices).await;
    for found in found.iter().filter(|found| found.guid == known.guid) {
        add(&found.groups, Purpose::Data);
        add(&found.logs, Purpose::Log);
    }
    Ok(devices)
}

/// Calls `take` for each device that is on this machine.
fn leaves(vdev: &VdevStatus, take: &mut impl FnMut(&VdevStatus)) {
    if vdev.children.is_empty() && vdev.name.starts_with('/') {
        take(vdev);
    }
    vdev.children.iter().for_each(|child| leaves(child, take));
}

/// The list of known pools must outlive a restart of the machine.
fn state_folder(access: &PoolAccess) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt;
    let path = access.state().path();
    let shown = path.display().to_string();
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let (found, why) = (format!("{shown} has mode {mode:03o}"), "others may reach its sockets");
        let finding = Finding::of(Grade::Warning, "state folder", found, why);
        return Some(finding.fix(format!("chmod 700 {shown}")));
    }
    if files::is_in_memory(path) {
        let why = "after a restart of the machine no pool is known, and none is served";
        let found = format!("{shown} is in memory");
        let finding = Finding::of(Grade::Warning, "state folder", found, why);
        return Some(finding.fix("set FOREBAY_STATE_DIR to a folder on a disk"));
    }
    Some(Finding::ok("state folder", shown))
}
