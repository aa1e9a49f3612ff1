//! `forebay top`: a full screen of what served pools do.

use std::io::IsTerminal;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::iostat;
use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::{Listing, TopArgs};
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::pool_access::{PoolAccess, PoolHandle};
use crate::top::{KEYS_INTERVAL, Key, Moment, Track, View};

/// Between two looks at the pools.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(1);

/// Shows the pools until the operator has seen enough. Without a terminal the lines of 'pool
/// iostat' come out.
pub async fn top(args: TopArgs, access: &PoolAccess) -> Result<Outcome, Failure> {
    let view = if std::io::stdout().is_terminal() { View::open() } else { None };
    let Some(mut view) = view else {
        let listing = Listing { scripted: false, exact: false, json: false };
        let options =
            iostat::Options { listing, verbose: false, skip_first: true, header_once: false };
        let words: Vec<String> = args.pools.into_iter().chain(["1".to_owned()]).collect();
        let lines = access.stop().unless_asked(iostat::iostat(access, &words, options)).await;
        return lines.unwrap_or_else(|| Ok(Outcome::done()));
    };
    let mut handles = Vec::new();
    for name in access.names(&args.pools)? {
        if access.server_of(&name).is_some() {
            handles.push((access.open(&name).await?, Track::default()));
        } else if !args.pools.is_empty() {
            return Err(not_served(&name));
        }
    }
    if handles.is_empty() {
        let message = "no pool is being served: there is nothing to watch";
        return Err(Failure::new(ErrorCode::PoolNotServed, message)
            .with_hint("'forebay serve' serves all known pools"));
    }
    watch(access, &mut handles, &mut view).await?;
    Ok(Outcome::done())
}

fn not_served(name: &str) -> Failure {
    let message = format!("'{name}' is not being served: there is no traffic to watch");
    Failure::new(ErrorCode::PoolNotServed, message)
        .with_hint(format!("'forebay serve {name}' serves it"))
}

/// Draws a screen a second, and follows the keys.
async fn watch(
    access: &PoolAccess,
    handles: &mut [(PoolHandle, Track)],
    view: &mut View,
) -> Result<(), Failure> {
    let stop = access.stop();
    let mut chosen = 0;
    loop {
        for (handle, track) in handles.iter_mut() {
            let begun = rt::now();
            let Some(moment) = stop.unless_asked(look(handle, track.last_event())).await else {
                return Ok(());
            };
            track.add(moment?, rt::now());
            if rt::now() > begun + LOOK_INTERVAL {
                // A line of a request that took long may stand on the screen.
                view.forget();
            }
        }
        let next = rt::now() + LOOK_INTERVAL;
        while rt::now() < next {
            let (_, track) = &handles[chosen];
            view.show(track, (chosen, handles.len()));
            match view.key() {
                Some(Key::Leave | Key::Interrupt) => return Ok(()),
                Some(Key::Next) => chosen = (chosen + 1) % handles.len(),
                Some(Key::Before) => chosen = (chosen + handles.len() - 1) % handles.len(),
                Some(Key::Resized) => {}
                None if stop.unless_asked(rt::sleep(KEYS_INTERVAL)).await.is_none() => {
                    return Ok(());
                }
                None => {}
            }
        }
    }
}

/// What the pool is now. `after`: the number of the last event that is known.
async fn look(handle: &PoolHandle, after: u64) -> Result<Moment, Failure> {
    let status = *reply_as!(handle.ask(Action::Status).await, Reply::Status)?;
    let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
    let stats = *reply_as!(handle.ask(Action::Stats).await, Reply::Stats)?;
    let pulse = *reply_as!(handle.ask(Action::Pulse).await, Reply::Pulse)?;
    let events = reply_as!(handle.ask(Action::Events { after }).await, Reply::Events)?;
    Ok(Moment { status, summary, stats, pulse, events })
}
