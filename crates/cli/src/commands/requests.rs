//! Requests to one pool or to several, and what comes of them.

use std::collections::BTreeMap;

use forebay_rt as rt;

use super::outcome::Outcome;
use crate::args::NameList;
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::{PoolAccess, PoolHandle};

/// The failure of a reply of another kind than the request's: server and command differ.
pub fn unexpected(reply: &Reply) -> Failure {
    Failure::new(ErrorCode::Protocol, format!("the server sent another kind of reply ({reply:?})"))
        .with_hint("restart it with the same forebay")
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

/// The pools of `names` (`POOL`, `POOL/VOL` or `POOL/VOL@SNAP`), each once.
pub fn pools_of(names: &[String]) -> Vec<String> {
    let mut pools: Vec<String> = Vec::new();
    for name in names {
        let pool = name.split('/').next().unwrap_or(name).to_owned();
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    }
    pools
}

/// Collects `of` from each of the pools `wanted`, or from all when none is named. A named pool that
/// cannot be opened is a failure of the whole; the failure of another one is in its place.
pub async fn from_each<T>(
    access: &PoolAccess,
    wanted: &[String],
    of: impl AsyncFn(&PoolHandle) -> Result<T, Failure>,
) -> Result<Vec<(String, Result<T, Failure>)>, Failure> {
    let each = for_each(access, access.names(wanted)?, async |name| {
        let handle = access.open(name).await?;
        let outcome = of(&handle).await;
        handle.close_after(outcome).await
    });
    let mut out = Vec::new();
    for (name, outcome) in each.await? {
        match outcome {
            Err(failure) if wanted.contains(&name) => return Err(failure),
            outcome => out.push((name, outcome)),
        }
    }
    Ok(out)
}

/// What `work` gives for each of `names`, in order. Pools that other processes have are waited for
/// all at once. The others follow each other: an open pool takes memory, and a server answers one
/// request of a command at a time.
pub async fn for_each<T>(
    access: &PoolAccess,
    names: Vec<String>,
    work: impl AsyncFn(&str) -> T,
) -> Result<Vec<(String, T)>, Failure> {
    let turns = rt::sync::Mutex::new(());
    let all = names.into_iter().map(|name| {
        let (turns, work) = (&turns, &work);
        Box::pin(async move {
            let turn = match access.is_held(&name).await? {
                true => None,
                false => Some(turns.lock().await),
            };
            let value = work(&name).await;
            drop(turn);
            Ok((name, value))
        })
    });
    rt::join_all(all).await.into_iter().collect()
}

/// The values of the pools that could be asked, and whether these are all. Failures are reported.
pub fn good<T>(each: Vec<(String, Result<T, Failure>)>) -> (Vec<T>, bool) {
    let mut complete = true;
    let mut out = Vec::new();
    for (name, outcome) in each {
        match outcome {
            Ok(value) => out.push(value),
            Err(failure) => {
                complete = false;
                report_pool(&name, &failure);
            }
        }
    }
    (out, complete)
}

/// Reports that the pool `name` could not be asked.
pub fn report_pool(name: &str, failure: &Failure) {
    log::error(&format!("{name}: {}", failure.line()));
}

/// Properties by name. A property that is given twice is wrong usage.
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

/// The names of an optional list.
pub fn names_of(list: &Option<NameList>) -> &[String] {
    list.as_ref().map_or(&[], |list| &list.0)
}

/// Sends `actions` to one pool, one after the other, up to the first failure.
pub async fn ask_all(
    access: &PoolAccess,
    pool: &str,
    actions: impl IntoIterator<Item = Action>,
) -> Result<Outcome, Failure> {
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
    handle.close_after(outcome).await.map(|()| Outcome::done())
}
