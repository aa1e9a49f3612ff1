//! Pools of the list of known ones: how they are imported, and what is waited for.
//!
//! What enters: a pool as the list has it, and the set that is to have it. What leaves: the open
//! pool, or why it cannot be opened. Who calls: commands without a server, and servers that start.

use std::path::{Path, PathBuf};

use forebay_pool::spec::{ImportOptions, Told};
use forebay_units::Nanos;

use super::no_such_pool;
use crate::control::{Action, PROTOCOL_VERSION, Request};
use crate::devices::{is_elsewhere, out_of_reach, wait_until_free, wait_until_free_for};
use crate::failure::{ErrorCode, Failure};
use crate::holders::{Holder, holders};
use crate::log;
use crate::path_probe::probe_each;
use crate::pools::PoolSet;
use crate::state::KnownPool;

/// How a pool of the list is imported. The list says that the pool belongs to this machine, even
/// after a change of the host id. A pool that another host uses is refused all the same.
pub const KNOWN_POOL_OPTIONS: ImportOptions = ImportOptions {
    force: false,
    known: Some(Told { generation: 0, owner: 0 }),
    accept_log_loss: false,
    rewind_groups: 0,
    keep: None,
    for_command: false,
};

/// How long a server that starts waits for a command that has a pool open. A command that waits for
/// its own user holds no pool open.
pub const SERVE_WAIT: Nanos = Nanos::from_secs(10);
/// How long a command waits for another one: the kernel drops the locks of a killed process a
/// little after its end.
pub(super) const COMMAND_WAIT: Nanos = Nanos::from_secs(2);
/// A wait that is longer than this is reported, with whom it is for.
const QUIET_WAIT: Nanos = Nanos::from_secs(1);

/// Waits for `at_most` until no other process has the devices of a known pool locked. Returns the
/// processes that still have.
async fn wait_for_holders(
    known: &KnownPool,
    at_most: Nanos,
) -> Result<Option<Vec<Holder>>, Failure> {
    let quiet = at_most.min(QUIET_WAIT);
    if wait_until_free_for(&known.devices, quiet).await {
        return Ok(None);
    }
    if at_most > COMMAND_WAIT {
        let by = named(&holders(&known.devices).await);
        log::notice(&format!("waiting for {by}, which has the pool '{}' open", known.name));
    }
    let is_free = wait_until_free_for(&known.devices, at_most.since(quiet)).await;
    Ok(if is_free { None } else { Some(holders(&known.devices).await) })
}

fn named(holders: &[Holder]) -> String {
    match holders {
        [] => "another process".to_owned(),
        some => some.iter().map(Holder::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Imports a known pool into `set`, without a line in its history. Waits for `at_most` while
/// another process has it open.
pub async fn import_known(
    set: &PoolSet,
    known: &KnownPool,
    options: &ImportOptions,
    at_most: Nanos,
) -> Result<(), Failure> {
    // Before the import takes the pool over: afterwards it would have to be given back.
    set.check_name_free(known).await?;
    // A pool that is served from a folder is not on the list.
    let is_listed = set.as_known_now(known).await?.is_some();
    let begun = forebay_rt::now();
    loop {
        let left = at_most.since(forebay_rt::now().since(begun));
        let imported = import_when_free(set, (known, is_listed), options, left).await;
        let Err(failure) = imported else { return Ok(()) };
        // Another command may have taken the devices after they were seen to be free, and may have
        // given them back by now.
        let held_by = holders(&known.devices).await;
        let is_held = failure.code == ErrorCode::DeviceInUse || !held_by.is_empty();
        if !is_held || is_listed && set.as_known_now(known).await?.is_none() {
            return Err(failure);
        }
        if forebay_rt::now().since(begun) >= at_most {
            return Err(if held_by.is_empty() { failure } else { devices_held(known, &held_by) });
        }
    }
}

/// As [`import_known`], once. Refused if the pool was on the list, and is no more.
async fn import_when_free(
    set: &PoolSet,
    (known, is_listed): (&KnownPool, bool),
    options: &ImportOptions,
    at_most: Nanos,
) -> Result<(), Failure> {
    // Not later: after a failed import the locks of this process are released a moment late.
    let held_by = wait_for_holders(known, at_most).await?;
    // A command may have changed its devices meanwhile, or exported it.
    let known = &match set.as_known_now(known).await? {
        Some(now) => now,
        None if is_listed => return Err(no_such_pool(&known.name)),
        None => known.clone(),
    };
    let mut paths = known.devices.clone();
    paths.extend(set.found_elsewhere(known).await?);
    // The look for other places may hold devices; those that others hold have been waited for.
    if held_by.is_none() {
        wait_until_free(&paths).await;
    }
    // By its id: another pool on these devices is not the known one.
    let mut options = options.clone();
    options.known = options.known.map(|_| known.told);
    let request = Request {
        version: PROTOCOL_VERSION,
        pool: known.guid.to_string(),
        typed: String::new(),
        action: Action::Import { paths, options },
    };
    let devices = known.devices.iter().map(PathBuf::from).collect();
    // A path that does not answer is there, and what is elsewhere is asked by the import.
    let is_there = |path: &Path| path.to_str().is_some_and(is_elsewhere) || path.exists();
    let looks = probe_each(devices, is_there).await;
    if looks.iter().all(|(_, exists)| *exists == Ok(false)) {
        return Err(devices_gone(known));
    }
    match (set.perform(&request).await, held_by) {
        (Ok(_), _) => Ok(()),
        // On devices that are locked nothing is found: the lock is the reason to report.
        (Err(_), Some(holders)) => Err(devices_held(known, &holders)),
        (Err(failure), None) => Err(cannot_open(&known.name, with_reason(known, failure).await)),
    }
}

/// The failure to import a pool, with why a device elsewhere cannot be opened.
async fn with_reason(known: &KnownPool, mut failure: Failure) -> Failure {
    // Where nothing of the pool was found, the import has said so of each device.
    if failure.code == ErrorCode::PoolUnavailable {
        let elsewhere = known.devices.iter().filter(|name| is_elsewhere(name));
        let elsewhere: Vec<PathBuf> = elsewhere.map(PathBuf::from).collect();
        failure.message += &out_of_reach(&elsewhere).await;
    }
    failure
}

fn devices_gone(known: &KnownPool) -> Failure {
    let name = &known.name;
    let first = known.devices.first().map_or("none is known", String::as_str);
    let message = format!("none of the devices of '{name}' is where it was ({first})");
    Failure::new(ErrorCode::DeviceNotFound, message).with_hint(format!(
        "bring them back, or look for them with 'forebay pool import -d DIR {name}', or forget \
         the pool with 'forebay pool export -f {name}'"
    ))
}

fn devices_held(known: &KnownPool, holders: &[Holder]) -> Failure {
    let by = named(holders);
    let message = format!("the devices of '{}' are in use by {by}", known.name);
    Failure::new(ErrorCode::DeviceInUse, message).with_hint(
        "it may be a server that is just starting, or one with another state folder: try again, \
         or end it first",
    )
}

/// `why` with the name of the pool, and what helps when files have no room to grow.
fn cannot_open(name: &str, why: Failure) -> Failure {
    let mut failure = why;
    // These name the pool themselves.
    let names_it = [ErrorCode::PoolUnavailable, ErrorCode::PoolNotExported, ErrorCode::PoolExists];
    let begins_with_it = failure.message.starts_with(&format!("pool '{name}'"));
    if !begins_with_it && !names_it.contains(&failure.code) {
        failure.message = format!("pool '{name}' cannot be opened: {}", failure.message);
    }
    if failure.code == ErrorCode::NoSpace && failure.hint.is_empty() {
        failure.hint = "make room where its device files lie, and try again".to_owned();
    }
    failure
}
