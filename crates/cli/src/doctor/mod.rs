//! What of a machine and its devices is not as a pool wants it, and what to do.
//!
//! What enters: the kernel's files below a root folder, devices with their purposes. What leaves:
//! findings. What always holds: nothing is written, and no device is opened.
//! Who calls: `commands::doctor`.

mod devices;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::files;

pub use devices::{Examined, Purpose, of_devices};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It works, and could be better.
    Advice,
    /// It costs speed or safety.
    Warning,
    /// Pools cannot be used so.
    Failure,
}

impl Grade {
    /// The word in the listing.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Warning => "WARNING",
            Self::Failure => "FAILURE",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: `kernel`, `io_uring`, a device's path.
    pub subject: String,
    /// How much it matters.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// Why it matters; empty when all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: &'static str,
    /// What changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    #[must_use]
    pub fn ok(subject: &str, found: impl Into<String>) -> Self {
        let (subject, found) = (subject.to_owned(), found.into());
        Self { subject, grade: Grade::Ok, found, why: "", fix: None }
    }

    /// Something that is not.
    #[must_use]
    pub fn of(grade: Grade, subject: &str, found: impl Into<String>, why: &'static str) -> Self {
        Self { grade, why, ..Self::ok(subject, found) }
    }

    /// The same, with what changes it.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// The kernel's files, below a folder that is `/` but in tests.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// Files below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn text(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        let file = files::open_to_read(self.path(name)).ok()?;
        file.take(1 << 16).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The first line of a file.
    fn line(&self, name: &str) -> Option<String> {
        let text = self.text(name)?;
        text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
    }
}

/// Limits of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits {
    /// Files that may be open, once a server has raised its limit.
    pub files: u64,
    /// Bytes that may be locked in memory.
    pub locked_bytes: u64,
}

impl ProcessLimits {
    /// Those of this process.
    #[must_use]
    pub fn own() -> Self {
        let limit = |resource| {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` is one structure and outlives the call.
            let outcome = unsafe { libc::getrlimit(resource, &raw mut limit) };
            if outcome == 0 { (limit.rlim_cur, limit.rlim_max) } else { (0, 0) }
        };
        // A server raises its limit on files to the hard one.
        Self { files: limit(libc::RLIMIT_NOFILE).1, locked_bytes: limit(libc::RLIMIT_MEMLOCK).0 }
    }
}

/// What is found of the machine.
#[must_use]
pub fn of_machine(kernel: &Kernel, limits: ProcessLimits) -> Vec<Finding> {
    let all = [
        Some(version(kernel)),
        Some(io_uring(kernel)),
        Some(open_files(limits)),
        Some(locked_memory(limits)),
        clock(kernel),
        swap(kernel),
    ];
    all.into_iter().flatten().collect()
}

fn version(kernel: &Kernel) -> Finding {
    /// With `IORING_REGISTER_RING_FDS` and cancellation by descriptor.
    const OLDEST: (u32, u32) = (5, 19);
    let release = kernel.line("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => Finding::of(
            Grade::Failure,
            "kernel",
            format!("Linux {release}"),
            "io_uring lacks commands that every pool needs",
        )
        .fix("use Linux 5.19 or newer"),
        (Some(Ok(_)), Some(Ok(_))) => Finding::ok("kernel", format!("Linux {release}")),
        _ => Finding::of(
            Grade::Advice,
            "kernel",
            "its version is not known",
            "Linux 5.19 or newer is needed",
        ),
    }
}

fn io_uring(kernel: &Kernel) -> Finding {
    match kernel.line("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("2") => Finding::of(
            Grade::Failure,
            "io_uring",
            "kernel.io_uring_disabled is 2: no process may use it",
            "every command on a pool needs it",
        )
        .fix("sysctl -w kernel.io_uring_disabled=0"),
        Some("1") => {
            let group = kernel.line("proc/sys/kernel/io_uring_group").unwrap_or("-1".to_owned());
            Finding::of(
                Grade::Advice,
                "io_uring",
                format!("kernel.io_uring_disabled is 1: root and group {group} may use it"),
                "a server under another user cannot start",
            )
            .fix("put that user into the group, or sysctl -w kernel.io_uring_disabled=0")
        }
        // Kernels before 6.6 have no such switch.
        _ => Finding::ok("io_uring", "allowed"),
    }
}

fn open_files(limits: ProcessLimits) -> Finding {
    /// 256 connections, with sockets of virtual machines, devices and listeners beside them.
    const ENOUGH: u64 = 1024;
    let found = match limits.files {
        libc::RLIM_INFINITY => "no limit".to_owned(),
        files => format!("{files}"),
    };
    if limits.files >= ENOUGH {
        return Finding::ok("open files", found);
    }
    Finding::of(
        Grade::Warning,
        "open files",
        found,
        "a server takes fewer connections than 256 when it has no descriptors for them",
    )
    .fix("ulimit -n 65536, or LimitNOFILE=65536 in the unit")
}

fn locked_memory(limits: ProcessLimits) -> Finding {
    /// What a ring of each thread took before Linux 5.12 counted it to the control group.
    const ENOUGH: u64 = 8 << 20;
    let found = match limits.locked_bytes {
        libc::RLIM_INFINITY => "no limit".to_owned(),
        bytes => forebay_units::format_bytes(bytes),
    };
    if limits.locked_bytes >= ENOUGH {
        return Finding::ok("locked memory", found);
    }
    Finding::of(
        Grade::Advice,
        "locked memory",
        found,
        "some kernels count the rings of io_uring to it, and refuse to make them",
    )
    .fix("ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit")
}

fn clock(kernel: &Kernel) -> Option<Finding> {
    const FOLDER: &str = "sys/devices/system/clocksource/clocksource0";
    let current = kernel.line(&format!("{FOLDER}/current_clocksource"))?;
    if !matches!(current.as_str(), "hpet" | "acpi_pm" | "jiffies") {
        return Some(Finding::ok("clock", current));
    }
    let others = kernel.line(&format!("{FOLDER}/available_clocksource")).unwrap_or_default();
    let better = others.split(' ').find(|name| matches!(*name, "tsc" | "kvm-clock"));
    let finding = Finding::of(
        Grade::Advice,
        "clock",
        current,
        "each look at it is slow, and each request looks several times",
    );
    Some(match better {
        Some(name) => finding.fix(format!("echo {name} > /{FOLDER}/current_clocksource")),
        None => finding,
    })
}

fn swap(kernel: &Kernel) -> Option<Finding> {
    let text = kernel.text("proc/swaps")?;
    let count = text.lines().skip(1).filter(|line| !line.is_empty()).count();
    if count == 0 {
        return Some(Finding::ok("swap", "none"));
    }
    let swappiness = kernel.line("proc/sys/vm/swappiness").unwrap_or_default();
    if swappiness == "0" || swappiness == "1" {
        return Some(Finding::ok("swap", format!("vm.swappiness is {swappiness}")));
    }
    Some(
        Finding::of(
            Grade::Advice,
            "swap",
            format!("vm.swappiness is {swappiness}"),
            "a server whose memory is on a disk answers as slowly as that disk",
        )
        .fix("sysctl -w vm.swappiness=1"),
    )
}

#[cfg(test)]
mod tests;
