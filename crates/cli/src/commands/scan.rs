//! Scrubs and resilvers: starting them, and waiting for their end.

use forebay_pool::status::ScanStatus;
use forebay_units::{Nanos, format_bytes};

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::ScanVerb;
use crate::control::{Action, Reply};
use crate::failure::{Failure, report};
use crate::pool_access::{PoolAccess, PoolHandle};
use crate::render::{duration, scan_text};
use crate::terminal::Screen;

/// Between two looks at a running scan.
const LOOK_EVERY: Nanos = Nanos::from_millis(250);

/// `pool scrub`. On a pool that nobody serves, the scrub runs here, to its end.
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
                    report(&format!(
                        "'{pool}' is not being served: the scrub runs in this command; Ctrl-C \
                         pauses it"
                    ));
                }
                until_begun(&handle, before.as_ref()).await?;
                said = until_over(access, &handle, pool).await?;
            }
            Ok(said)
        }
        .await;
        text.push_str(&handle.close_after(outcome).await?);
    }
    Ok(Outcome::text(text))
}

/// Does `actions`, which make devices resilver, and waits for the end when asked to.
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
            return until_over(access, &handle, pool).await.map(Outcome::text);
        }
        if handle.is_local() && scan_of(&handle).await?.is_some_and(|s| is_running(&s)) {
            report(&format!(
                "'{pool}' is not being served: the resilver goes on whenever it is ('forebay \
                 pool resilver -w {pool}' runs it here)"
            ));
        }
        Ok(Outcome::done())
    }
    .await;
    handle.close_after(outcome).await
}

/// `pool wait`: for the scan that runs, when it is one of `kinds` (any, when none is named).
pub async fn wait(access: &PoolAccess, pool: &str, kinds: &[String]) -> Result<Outcome, Failure> {
    const KINDS: [&str; 2] = ["scrub", "resilver"];
    if let Some(other) = kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(Failure::usage(format!(
            "'{other}' is nothing that can be waited for; use {}",
            KINDS.join(", ")
        )));
    }
    let handle = access.open(pool).await?;
    let outcome = async {
        let meant = |scan: &ScanStatus| kinds.is_empty() || kinds.contains(&scan.kind);
        if handle.is_local() {
            // A resilver that is due begins with the pool.
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

/// Gives the scan that was just asked for the time to begin: it does so at once, in a task of its
/// own. Not every command makes one begin, so this ends soon in any case.
async fn until_begun(handle: &PoolHandle, before: Option<&ScanStatus>) -> Result<(), Failure> {
    const PATIENCE: Nanos = Nanos::from_millis(300);
    const LOOK_EVERY: Nanos = Nanos::from_millis(10);
    let deadline = forebay_rt::now() + PATIENCE;
    while scan_of(handle).await?.as_ref() == before && forebay_rt::now() < deadline {
        forebay_rt::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn is_running(scan: &ScanStatus) -> bool {
    scan.state == "in progress"
}

async fn scan_of(handle: &PoolHandle) -> Result<Option<ScanStatus>, Failure> {
    let status = reply_as!(handle.ask(Action::Status).await, Reply::Status)?;
    Ok(status.scan)
}

/// Waits for the end of the running scan; what it did, in words. Ctrl-C: a scrub that runs here is paused; anything else
/// goes on where it runs, or at the next import.
async fn until_over(
    access: &PoolAccess,
    handle: &PoolHandle,
    pool: &str,
) -> Result<String, Failure> {
    let stop = access.stop();
    let screen = Screen::stderr();
    let outcome = loop {
        match scan_of(handle).await? {
            Some(scan) if is_running(&scan) => {
                screen.show(&progress(pool, &scan));
                if stop.unless_asked(forebay_rt::sleep(LOOK_EVERY)).await.is_none() {
                    if handle.is_local() && scan.kind == "scrub" {
                        handle.ask(Action::Scrub { verb: ScanVerb::Pause }).await?;
                        break Err(Failure::new(format!(
                            "the scrub of '{pool}' is paused; 'forebay pool scrub {pool}' goes on"
                        )));
                    }
                    break Err(Failure::new(format!("the {} of '{pool}' goes on", scan.kind)));
                }
            }
            Some(scan) if scan.errors > 0 => {
                break Err(Failure::new(format!(
                    "the {} of '{pool}' found {} blocks that could not be repaired; 'forebay \
                     pool status -v {pool}' lists them",
                    scan.kind, scan.errors
                )));
            }
            Some(scan) => break Ok(scan_text(&scan)),
            None => break Ok(String::new()),
        }
    };
    screen.clear();
    outcome
}

fn progress(pool: &str, scan: &ScanStatus) -> String {
    let share = (scan.done_bytes * 100).checked_div(scan.total_bytes).unwrap_or(100);
    format!(
        "{pool}: {} {share}% | {} of {} | {} repaired | {}",
        scan.kind,
        format_bytes(scan.done_bytes),
        format_bytes(scan.total_bytes),
        format_bytes(scan.repaired_bytes),
        duration(scan.elapsed_secs),
    )
}
