//! Requests to one pool or to several, and what comes of them.

use std::collections::BTreeMap;

use crate::args::NameList;
use crate::control::{Action, Reply};
use crate::failure::{Failure, report};
use crate::pool_access::{PoolAccess, PoolHandle};

/// A reply of another kind than was asked for: client and server are not of one make.
pub fn unexpected(reply: &Reply) -> Failure {
    Failure::new(format!("the server answered something else ({reply:?}); restart it"))
}

/// Takes one kind of reply out of [`Reply`].
macro_rules! reply_as {
    ($reply:expr, $kind:path) => {
        match $reply? {
            $kind(value) => Ok(value),
            other => Err($crate::commands::requests::unexpected(&other)),
        }
    };
}
pub(crate) use reply_as;

/// Collects `of` from each of the pools `wanted` (all when none is named). A pool that was named
/// and cannot be opened is a failure; else it is reported, and given as an error to `missing`.
pub async fn from_each<T>(
    access: &PoolAccess,
    wanted: &[String],
    of: impl AsyncFn(&PoolHandle) -> Result<T, Failure>,
) -> Result<Vec<(String, Result<T, Failure>)>, Failure> {
    let mut out = Vec::new();
    for name in access.names(wanted)? {
        let outcome = match access.open(&name).await {
            Ok(handle) => {
                let outcome = of(&handle).await;
                handle.close_after(outcome).await
            }
            Err(failure) => Err(failure),
        };
        match outcome {
            Err(failure) if wanted.contains(&name) => return Err(failure),
            outcome => out.push((name, outcome)),
        }
    }
    Ok(out)
}

/// The good ones; the others are reported, and make the exit code 1.
pub fn good<T>(each: Vec<(String, Result<T, Failure>)>) -> (Vec<T>, bool) {
    let mut all_good = true;
    let mut out = Vec::new();
    for (name, outcome) in each {
        match outcome {
            Ok(value) => out.push(value),
            Err(failure) => {
                all_good = false;
                report(&format!("{name}: {}", failure.message));
            }
        }
    }
    (out, all_good)
}

/// Properties by name; one that is given twice is an error.
pub fn property_map(pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Failure> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if map.contains_key(&name) {
            return Err(Failure::usage(format!("the property '{name}' is given twice")));
        }
        map.insert(name, value);
    }
    Ok(map)
}

/// The names of a list that may be left out.
pub fn names_of(list: &Option<NameList>) -> &[String] {
    list.as_ref().map_or(&[], |list| &list.0)
}

/// Asks the same of one pool for each of `actions`.
pub async fn ask_all(
    access: &PoolAccess,
    pool: &str,
    actions: impl IntoIterator<Item = Action>,
) -> Result<(), Failure> {
    let handle = access.open(pool).await?;
    let mut outcome = Ok(());
    for action in actions {
        outcome = access.check_not_interrupted();
        if outcome.is_ok() {
            outcome = handle.ask(action).await.map(|_| ());
        }
        if outcome.is_err() {
            break;
        }
    }
    handle.close_after(outcome).await
}
