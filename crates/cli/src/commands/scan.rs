//! Scrubs and resilvers: start, control and wait.

use forebay_pool::status::{ScanKind, ScanPhase, ScanStatus};
use forebay_units::{Nanos, format_bytes};

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::ScanVerb;
use crate::clock::duration;
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::{PoolAccess, PoolHandle};
use crate::render::scan_text;
use crate::terminal::Screen;

/// Between two requests for the state of a running scan.
const POLL_INTERVAL: Nanos = Nanos::from_millis(250);

/// `pool scrub`. On a pool without a server, the scrub runs in this process, to its end.
pub async fn scrub(
    access: &PoolAccess,
    pools: &[String],
    verb: ScanVerb,
    wait: bool,
) -> Result<Outcome, Failure> {
    let mut text = String::new();
    for pool in pools {
        let handle = access.open(pool).await?;
        let outcome = async {
            let before = scan_of(&handle).await?;
            handle.ask(Action::Scrub { verb }).await?;
            let mut said = String::new();
            if verb == ScanVerb::Start && (wait || handle.is_local()) {
                if handle.is_local() {
                    log::notice(&format!(
                        "'{pool}' is not being served: the scrub runs in this command; Ctrl-C \
                         pauses it"
                    ));
                }
                until_begun(&handle, before.as_ref()).await?;
                said = result(pool, until_over(access, &handle, pool).await?)?;
            }
            Ok(said)
        }
        .await;
        text.push_str(&handle.close_after(outcome).await?);
    }
    Ok(Outcome::text(text))
}

/// Sends `actions`, which start a resilver. Waits for its end with `wait`.
pub async fn act_and_wait(
    access: &PoolAccess,
    pool: &str,
    actions: impl IntoIterator<Item = Action>,
    wait: bool,
) -> Result<Outcome, Failure> {
    let handle = access.open(pool).await?;
    let outcome = async {
        let before = scan_of(&handle).await?;
        for action in actions {
            access.check_not_interrupted()?;
            handle.ask(action).await?;
        }
        if wait || handle.is_local() {
            until_begun(&handle, before.as_ref()).await?;
        }
        if wait {
            let ended = until_over(access, &handle, pool).await?;
            return result(pool, ended).map(Outcome::text);
        }
        if handle.is_local() && scan_of(&handle).await?.is_some_and(|s| is_running(&s)) {
            log::notice(&format!(
                "'{pool}' is not being served: the resilver goes on when it is ('forebay pool \
                 resilver -w {pool}' runs it here)"
            ));
        }
        Ok(Outcome::done())
    }
    .await;
    handle.close_after(outcome).await
}

/// `pool wait`: waits for the running scan if it is one of `kinds`, or for any when none is named.
pub async fn wait(access: &PoolAccess, pool: &str, kinds: &[String]) -> Result<Outcome, Failure> {
    const KINDS: [&str; 2] = [ScanKind::Scrub.as_str(), ScanKind::Resilver.as_str()];
    if let Some(other) = kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(Failure::usage(format!(
            "'{other}' is not an activity; use {}",
            KINDS.join(", ")
        )));
    }
    let handle = access.open(pool).await?;
    let outcome = async {
        let meant = |scan: &ScanStatus| {
            kinds.is_empty() || kinds.iter().any(|kind| kind == scan.kind.as_str())
        };
        if handle.is_local() {
            // A resilver that is due begins when the pool is opened.
            until_begun(&handle, None).await?;
        }
        if scan_of(&handle).await?.is_some_and(|scan| is_running(&scan) && meant(&scan)) {
            until_over(access, &handle, pool).await?;
        }
        Ok(Outcome::done())
    }
    .await;
    handle.close_after(outcome).await
}

/// Waits until a scan that was just requested has begun, in a task of its own. Not every request
/// starts one, so the wait is short.
async fn until_begun(handle: &PoolHandle, before: Option<&ScanStatus>) -> Result<(), Failure> {
    const BEGIN_TIMEOUT: Nanos = Nanos::from_millis(300);
    const POLL_INTERVAL: Nanos = Nanos::from_millis(10);
    let deadline = forebay_rt::now() + BEGIN_TIMEOUT;
    while scan_of(handle).await?.as_ref() == before && forebay_rt::now() < deadline {
        forebay_rt::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn is_running(scan: &ScanStatus) -> bool {
    scan.state == ScanPhase::InProgress
}

async fn scan_of(handle: &PoolHandle) -> Result<Option<ScanStatus>, Failure> {
    let status = reply_as!(handle.ask(Action::Status).await, Reply::Status)?;
    Ok(status.pool.scan)
}

/// What the scan that a command waited for did, in words; a failure if another command ended it.
fn result(pool: &str, ended: Option<ScanStatus>) -> Result<String, Failure> {
    let Some(scan) = ended else { return Ok(String::new()) };
    let (how, next) = match scan.state {
        ScanPhase::InProgress | ScanPhase::Completed => return Ok(scan_text(&scan)),
        ScanPhase::Paused => ("paused", "goes on with it"),
        ScanPhase::Stopped => ("stopped", "begins anew"),
    };
    let kind = scan.kind.as_str();
    let (scanned, total) = (format_bytes(scan.done_bytes), format_bytes(scan.total_bytes));
    let message = format!("the {kind} of '{pool}' was {how} after {scanned} of {total}");
    let hint = format!("'forebay pool {kind} {pool}' {next}");
    Err(Failure::new(ErrorCode::Interrupted, message).with_hint(hint))
}

/// Waits for the end of the running scan. On Ctrl-C a scrub in this process is paused; any other
/// scan goes on in its server, or at the next import.
async fn until_over(
    access: &PoolAccess,
    handle: &PoolHandle,
    pool: &str,
) -> Result<Option<ScanStatus>, Failure> {
    let stop = access.stop();
    let screen = Screen::stderr();
    let mut last: Option<ScanStatus> = None;
    let outcome = loop {
        let found = match scan_of(handle).await {
            Ok(found) => found,
            Err(failure) => break Err(cut_off(pool, last.as_ref(), failure)),
        };
        match found {
            Some(scan) if is_running(&scan) => {
                screen.show(&progress(pool, &scan));
                if stop.unless_asked(forebay_rt::sleep(POLL_INTERVAL)).await.is_none() {
                    break Err(interrupted(handle, pool, &scan).await?);
                }
                last = Some(scan);
            }
            Some(scan) if scan.errors > 0 => {
                let (kind, errors) = (scan.kind.as_str(), scan.errors);
                let message = format!("the {kind} of '{pool}' found {errors} blocks beyond repair");
                break Err(Failure::new(ErrorCode::Unrepairable, message)
                    .with_hint(format!("'forebay pool status -v {pool}' lists them")));
            }
            ended => break Ok(ended),
        }
    };
    screen.clear();
    outcome
}

/// The failure of a command that waited for a scan, which its server can no longer tell of.
fn cut_off(pool: &str, last: Option<&ScanStatus>, failure: Failure) -> Failure {
    use ErrorCode::{PoolNotFound, ServerStopping, ServerUnreachable};
    let Some(scan) = last else { return failure };
    let what = match failure.code {
        ServerStopping | ServerUnreachable => "the server ended",
        PoolNotFound => "the pool was exported or destroyed",
        _ => return failure,
    };
    let (kind, done) = (scan.kind.as_str(), format_bytes(scan.done_bytes));
    let total = format_bytes(scan.total_bytes);
    let message = format!("{what} when the {kind} of '{pool}' was at {done} of {total}");
    Failure::new(failure.code, message).with_hint("it goes on when the pool is opened again")
}

/// What Ctrl-C does to a running scan, as the failure that the command ends with.
async fn interrupted(
    handle: &PoolHandle,
    pool: &str,
    scan: &ScanStatus,
) -> Result<Failure, Failure> {
    let kind = scan.kind.as_str();
    if handle.is_local() && scan.kind == ScanKind::Scrub {
        handle.ask(Action::Scrub { verb: ScanVerb::Pause }).await?;
        let message = format!("the scrub of '{pool}' is paused");
        return Ok(Failure::new(ErrorCode::Interrupted, message)
            .with_hint(format!("'forebay pool scrub {pool}' goes on with it")));
    }
    let message = match handle.is_local() {
        true => format!("the {kind} of '{pool}' goes on when the pool is opened again"),
        false => format!("the {kind} of '{pool}' goes on in its server"),
    };
    Ok(Failure::new(ErrorCode::Interrupted, message))
}

fn progress(pool: &str, scan: &ScanStatus) -> String {
    let share = (scan.done_bytes * 100).checked_div(scan.total_bytes).unwrap_or(100);
    format!(
        "{pool}: {} {share}% | {} of {} | {} repaired | {}",
        scan.kind.as_str(),
        format_bytes(scan.done_bytes),
        format_bytes(scan.total_bytes),
        format_bytes(scan.repaired_bytes),
        duration(scan.elapsed_secs),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_another_command_ended_is_a_failure_of_the_one_that_waited() {
        let ended = |kind, state| ScanStatus {
            kind,
            state,
            started_at: 0,
            elapsed_secs: 3,
            done_bytes: 1 << 30,
            total_bytes: 2 << 30,
            repaired_bytes: 0,
            errors: 0,
        };
        for (kind, state, expected) in [
            (ScanKind::Scrub, ScanPhase::Paused, "the scrub of 'p' was paused after 1G of 2G"),
            (ScanKind::Scrub, ScanPhase::Stopped, "the scrub of 'p' was stopped after 1G of 2G"),
            (ScanKind::Resilver, ScanPhase::Stopped, "the resilver of 'p' was stopped after"),
        ] {
            let failure = result("p", Some(ended(kind, state))).unwrap_err();
            assert!(failure.message.starts_with(expected), "{}", failure.message);
        }
        let running = ended(ScanKind::Resilver, ScanPhase::InProgress);
        for (code, expected) in [
            (
                ErrorCode::ServerStopping,
                "the server ended when the resilver of 'p' was at 1G of 2G",
            ),
            (ErrorCode::ServerUnreachable, "the server ended when"),
            (ErrorCode::PoolNotFound, "the pool was exported or destroyed when"),
            (ErrorCode::Io, "not open here"),
        ] {
            let failure = cut_off("p", Some(&running), Failure::new(code, "not open here"));
            assert!(failure.message.starts_with(expected), "{}", failure.message);
            assert_eq!(failure.code, code);
        }
        let text = result("p", Some(ended(ScanKind::Scrub, ScanPhase::Completed))).unwrap();
        assert!(text.contains("scrub repaired"), "{text}");
    }
}
