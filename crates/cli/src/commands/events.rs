//! `forebay pool events`.

use forebay_pool::status::EventRecord;
use forebay_units::Nanos;

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::control::{Action, Reply};
use crate::failure::{ErrorCode, Failure};
use crate::pool_access::{PoolAccess, PoolHandle};
use crate::render;
use crate::terminal::print;

/// Between two looks at what is new.
const FOLLOW_INTERVAL: Nanos = Nanos::from_millis(500);

/// Prints the events of pools that are served; with `follow` also those that come.
pub async fn events(
    access: &PoolAccess,
    pools: &[String],
    follow: bool,
    json: bool,
) -> Result<Outcome, Failure> {
    let names = access.names(pools)?;
    let mut watched = Vec::new();
    for name in names {
        if access.server_of(&name).is_some() {
            watched.push((access.open(&name).await?, 0));
        } else if !pools.is_empty() {
            let message = format!("'{name}' is not being served: it has no events");
            return Err(Failure::new(ErrorCode::PoolNotServed, message)
                .with_hint(format!("'forebay serve {name}' serves it")));
        }
    }
    loop {
        let text = new_events(&mut watched, json).await?;
        if !follow {
            return Ok(Outcome::text(text));
        }
        if !text.is_empty() {
            print(&text)?;
        }
        forebay_rt::sleep(FOLLOW_INTERVAL).await;
    }
}

/// What has happened since the last call, as lines in order of time.
async fn new_events(watched: &mut [(PoolHandle, u64)], json: bool) -> Result<String, Failure> {
    let mut found: Vec<EventRecord> = Vec::new();
    for (handle, after) in watched {
        let ask = handle.ask(Action::Events { after: *after }).await;
        let new = reply_as!(ask, Reply::Events)?;
        *after = new.last().map_or(*after, |event| event.sequence);
        found.extend(new);
    }
    found.sort_by_key(|event| event.time_secs);
    let line = if json { render::event_json } else { render::event_text };
    Ok(found.iter().map(line).collect())
}
