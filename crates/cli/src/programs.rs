//! Programs of the operator that the server runs: hooks, and what takes its mail.
//!
//! What always holds: neither such a program nor its file system delays the server. One that takes
//! too long is killed, with what it has started.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use forebay_rt as rt;
use forebay_rt::sys;
use forebay_units::Nanos;

/// Between two looks at whether a program has ended.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);

/// Runs a program with `input` to its end, or to the end of its time. What it prints is lost. The
/// error begins with a verb: the caller names the program.
pub async fn run(mut command: Command, input: Vec<u8>, time: Nanos) -> Result<(), String> {
    // Ctrl-C in the terminal of the server is not for them.
    command.process_group(0).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let end = rt::now() + time;
    let secs = time.0 / 1_000_000_000;
    let starting = Box::pin(rt::aside(move || command.spawn()));
    let late = |_| format!("did not start within {secs} s");
    let started = rt::timeout(time, starting).await.map_err(late)?;
    let mut child = started.map_err(|e| format!("cannot be started: {e}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It need not read it.
        rt::spawn_detached(Box::pin(async move {
            let _ = rt::aside(move || stdin.write_all(&input)).await;
        }));
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("ended with {status}")),
            Ok(None) if rt::now() < end => rt::sleep(POLL_INTERVAL).await,
            Ok(None) => break,
            Err(e) => return Err(format!("cannot be waited for: {e}")),
        }
    }
    kill(child);
    Err(format!("was killed, because it did not end within {secs} s"))
}

/// Kills a program, which has not been waited for, and what it has started.
fn kill(mut child: Child) {
    sys::kill_group(child.id());
    // The kernel may keep a process that it cannot kill yet; nothing waits for that here.
    rt::spawn_detached(Box::pin(async move {
        let _ = rt::aside(move || child.wait()).await;
    }));
}
