//! Programs that read a drive's counters or purge it: found, run, given a time limit.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use forebay_rt as rt;
use forebay_units::Nanos;

/// What a program printed.
pub struct Printed {
    /// On standard output.
    pub text: String,
    /// The first line on standard error.
    pub complaint: String,
    /// Its exit code was 0.
    pub is_success: bool,
}

/// Why a program printed nothing.
#[derive(Debug)]
pub enum ToolError {
    /// It is not installed.
    Missing,
    /// It cannot be started.
    Io(io::Error),
    /// It takes longer than it may.
    Late,
}

impl std::fmt::Display for ToolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("is not installed"),
            Self::Io(e) => write!(f, "cannot be started: {e}"),
            Self::Late => f.write_str("does not answer"),
        }
    }
}

impl std::error::Error for ToolError {}

/// Administrators' programs are not on every user's path.
fn path() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    format!("{own}:/usr/sbin:/sbin")
}

/// Runs a program in a process group of its own, so that Ctrl-C does not reach it.
pub async fn run(program: &str, words: &[&str], limit: Nanos) -> Result<Printed, ToolError> {
    let mut command = Command::new(program);
    command.args(words).env("PATH", path()).env("LC_ALL", "C");
    command.stdin(Stdio::null()).process_group(0);
    let output = rt::timeout(limit, rt::aside(move || command.output()));
    let output = output.await.map_err(|_| ToolError::Late)?.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => ToolError::Missing,
        _ => ToolError::Io(e),
    })?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    Ok(Printed {
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
        complaint: complaint.lines().next().unwrap_or_default().trim().to_owned(),
        is_success: output.status.success(),
    })
}
