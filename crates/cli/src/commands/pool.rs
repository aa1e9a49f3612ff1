//! `forebay pool …`: one function for each verb.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::spec::ImportOptions;
use forebay_pool::{AdminError, Opener, Pool};

use super::outcome::Outcome;
use super::requests::{ask_all, from_each, good, names_of, property_map, reply_as, report_pool};
use super::{events, import, iostat, scan, status};
use crate::args::{Listing, NameList, PoolCommand, Report, ScanVerb};
use crate::attachments::{devices_of, refuse_attached, take_away_all};
use crate::control::{Action, Reply};
use crate::devices::{FileOpener, is_elsewhere, resolve_member, resolve_new, resolve_spec};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::log_memory::{self, Made};
use crate::object_stores;
use crate::pool_access::PoolAccess;
use crate::remote_log;
use crate::render;
use crate::vdevs::parse_vdevs;

/// Runs the command.
pub async fn pool(command: PoolCommand, access: &PoolAccess) -> Result<Outcome, Failure> {
    match command {
        PoolCommand::Create { force, dry_run, options, pool, vdevs } => {
            create(access, &pool, &vdevs, options, Creation { force, dry_run }).await
        }
        PoolCommand::List { listing, verbose, fields, pools } => {
            list(access, &pools, &fields, listing, verbose).await
        }
        PoolCommand::Status { report, unhealthy, verbose, pools } => {
            status::status(access, &pools, status::Options { report, unhealthy, verbose }).await
        }
        PoolCommand::Stats { report, polls, pools } => stats(access, &pools, (report, polls)).await,
        PoolCommand::Iostat { listing, verbose, skip_first, header_once, words } => {
            let options = iostat::Options { listing, verbose, skip_first, header_once };
            iostat::iostat(access, &words, options).await
        }
        PoolCommand::Import { dirs, all, force, accept_log_loss, rewind, keep, json, pool } => {
            let options = ImportOptions {
                force,
                accept_log_loss,
                rewind_groups: u64::from(rewind),
                keep: keep.as_deref().map(resolve_member).transpose()?,
                ..Default::default()
            };
            import::import(access, import::Wanted::new(pool, all, json), &dirs, options).await
        }
        PoolCommand::Export { force, pools } => export_all(access, &pools, force).await,
        PoolCommand::Destroy { force, pool } => {
            let devices = devices_of(access, &pool).await?;
            if !force {
                refuse_attached(&devices)?;
            }
            access.ask(&pool, Action::Destroy { force }).await?;
            take_away_all(devices).await;
            Ok(Outcome::done())
        }
        PoolCommand::Get { listing, fields, properties, pools } => {
            get(access, &pools, &properties, &fields, listing).await
        }
        PoolCommand::Set { property, pool } => set(access, &pool, property).await,
        PoolCommand::History { json, pools } => history(access, &pools, json).await,
        PoolCommand::Events { follow, json, pools } => {
            events::events(access, &pools, follow, json).await
        }
        PoolCommand::Sync { pools } => sync(access, &pools).await,
        PoolCommand::Upgrade { pools } => upgrade(access, &pools).await,
        PoolCommand::Labelclear { force, devices } => clear_labels(&devices, force).await,
        PoolCommand::Scrub { pause, stop, wait, pools } => {
            let verb = match (pause, stop) {
                (true, _) => ScanVerb::Pause,
                (_, true) => ScanVerb::Stop,
                _ => ScanVerb::Start,
            };
            access.names(&pools)?;
            scan::scrub(access, &pools, verb, wait).await
        }
        PoolCommand::Resilver { wait, pools } => {
            access.names(&pools)?;
            for pool in pools {
                scan::act_and_wait(access, &pool, [Action::Resilver], wait).await?;
            }
            Ok(Outcome::done())
        }
        PoolCommand::Wait { activities, pool } => {
            scan::wait(access, &pool, names_of(&activities)).await
        }
        change => Box::pin(change_devices(access, change)).await,
    }
}

/// The verbs that change the devices of a pool.
async fn change_devices(access: &PoolAccess, command: PoolCommand) -> Result<Outcome, Failure> {
    match command {
        PoolCommand::Add { force, pool, vdevs } => {
            let mut spec = parse_vdevs(&vdevs)?;
            spec.force = force;
            resolve_spec(&mut spec).await?;
            access.names(std::slice::from_ref(&pool))?;
            let made = log_memory::make_all(&mut spec).await?;
            kept_or_undone(made, ask_all(access, &pool, [Action::Add { spec }]).await).await
        }
        PoolCommand::Remove { pool, devices } => {
            let devices = members(&devices)?.into_iter();
            ask_all(access, &pool, devices.map(|device| Action::Remove { device })).await
        }
        PoolCommand::Attach { force, wait, pool, device, new_device } => {
            let device = resolve_member(&device)?;
            access.names(std::slice::from_ref(&pool))?;
            let (new_device, made) = log_memory::make_or_resolve(&new_device, force).await?;
            let action = Action::Attach { device, new_device, force };
            kept_or_undone(made, scan::act_and_wait(access, &pool, [action], wait).await).await
        }
        PoolCommand::Detach { pool, device } => {
            let device = resolve_member(&device)?;
            ask_all(access, &pool, [Action::Detach { device }]).await
        }
        PoolCommand::Replace { force, wait, pool, device, new_device } => {
            let device = resolve_member(&device)?;
            access.names(std::slice::from_ref(&pool))?;
            let (new_device, made) = match new_device {
                Some(word) => {
                    let (path, made) = log_memory::make_or_resolve(&word, force).await?;
                    (Some(path), made)
                }
                None => (None, Made::default()),
            };
            let action = Action::Replace { device, new_device, force };
            kept_or_undone(made, scan::act_and_wait(access, &pool, [action], wait).await).await
        }
        PoolCommand::Offline { pool, devices } => {
            let devices = members(&devices)?.into_iter();
            ask_all(access, &pool, devices.map(|device| Action::Offline { device })).await
        }
        PoolCommand::Online { wait, pool, devices } => {
            let devices = members(&devices)?.into_iter();
            let actions = devices.map(|device| Action::Online { device });
            scan::act_and_wait(access, &pool, actions, wait).await
        }
        PoolCommand::Clear { pool, devices } => {
            let mut devices: Vec<Option<String>> =
                members(&devices)?.into_iter().map(Some).collect();
            if devices.is_empty() {
                devices.push(None);
            }
            let actions = devices.into_iter().map(|device| Action::Clear { device });
            ask_all(access, &pool, actions).await
        }
        other => unreachable!("{other:?} changes no devices"),
    }
}

/// Takes log devices in memory back if the command that they were made for has failed.
async fn kept_or_undone<T>(made: Made, outcome: Result<T, Failure>) -> Result<T, Failure> {
    if outcome.is_err() {
        made.undo().await;
    }
    outcome
}

/// How long a store may be away before the pool is suspended, unless the operator says otherwise.
const OBJECTS_TIMEOUT_SECS: u32 = 3600;

/// Switches of `pool create`.
struct Creation {
    force: bool,
    dry_run: bool,
}

async fn create(
    access: &PoolAccess,
    pool: &str,
    vdevs: &[String],
    options: Vec<(String, String)>,
    Creation { force, dry_run }: Creation,
) -> Result<Outcome, Failure> {
    let mut spec = parse_vdevs(vdevs)?;
    if spec.groups.is_empty() {
        return Err(Failure::usage("a pool needs a data device, before 'log'"));
    }
    spec.properties = property_map(options)?;
    spec.force = force;
    if access.names(&[])?.iter().any(|name| name == pool) {
        let message = format!("a pool named '{pool}' exists already");
        return Err(Failure::new(ErrorCode::PoolExists, message).with_hint(format!(
            "choose another name, or destroy it first (forebay pool destroy {pool})"
        )));
    }
    resolve_spec(&mut spec).await?;
    object_stores::check_log(&spec)?;
    if object_stores::has_any(&spec) {
        // A store that is away comes back, and the log takes what is written meanwhile.
        let patience = spec.properties.entry("device_timeout".to_owned());
        patience.or_insert_with(|| OBJECTS_TIMEOUT_SECS.to_string());
    }
    if dry_run {
        Pool::check_new(Rc::new(FileOpener), pool, &spec).await?;
        return Ok(Outcome::text(render::layout(pool, &spec)));
    }
    let made = log_memory::make_all(&mut spec).await?;
    let handle = access.for_new_pool(pool);
    let outcome = handle.ask(Action::Create { spec }).await;
    kept_or_undone(made, handle.close_after(outcome).await).await?;
    Ok(Outcome::done())
}

async fn list(
    access: &PoolAccess,
    pools: &[String],
    fields: &Option<NameList>,
    listing: Listing,
    verbose: bool,
) -> Result<Outcome, Failure> {
    render::check_pool_fields(names_of(fields))?;
    let each = from_each(access, pools, async |handle| {
        let server_pid = handle.server_pid();
        if verbose {
            let sample = reply_as!(handle.ask(Action::Sample).await, Reply::Sample)?;
            let (summary, status) = (sample.summary, sample.status);
            let vdevs = Some(render::Vdevs::new(&status));
            return Ok(render::Listed { summary, server_pid, vdevs });
        }
        let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
        Ok(render::Listed { summary, server_pid, vdevs: None })
    })
    .await?;
    let complete = each.iter().all(|(_, outcome)| outcome.is_ok());
    for (name, outcome) in &each {
        if let Err(failure) = outcome {
            report_pool(name, failure);
        }
    }
    let text = render::pool_list(&each, names_of(fields), listing)?;
    Ok(Outcome { text, complete })
}

async fn stats(
    access: &PoolAccess,
    pools: &[String],
    (report, polls): (Report, bool),
) -> Result<Outcome, Failure> {
    let each = from_each(access, pools, async |handle| {
        reply_as!(handle.ask(Action::Stats).await, Reply::Stats)
    })
    .await?;
    let (stats, complete) = good(each);
    let text = if report.json {
        render::stats_json(&stats)
    } else if stats.is_empty() && complete {
        "no pools available\n".to_owned()
    } else {
        let each = stats.iter().map(|stats| match polls {
            true => render::polls_text(stats),
            false => render::stats_text(stats, report.exact),
        });
        each.collect::<Vec<_>>().join("\n")
    };
    Ok(Outcome { text, complete })
}

async fn get(
    access: &PoolAccess,
    pools: &[String],
    properties: &NameList,
    fields: &Option<NameList>,
    listing: Listing,
) -> Result<Outcome, Failure> {
    render::get_columns(names_of(fields))?;
    let each = from_each(access, pools, async |handle| {
        let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
        let all = reply_as!(handle.ask(Action::Properties).await, Reply::Properties)?;
        Ok((summary, all))
    })
    .await?;
    let (pools, complete) = good(each);
    if pools.is_empty() && !complete {
        return Ok(Outcome { text: String::new(), complete });
    }
    let text = render::pool_get(&pools, &properties.0, names_of(fields), listing)?;
    Ok(Outcome { text, complete })
}

async fn set(
    access: &PoolAccess,
    pool: &str,
    (property, value): (String, String),
) -> Result<Outcome, Failure> {
    if render::is_computed_of_pool(&property) {
        access.names(&[pool.to_owned()])?;
        let message = format!("'{property}' is read-only");
        return Err(Failure::new(ErrorCode::PropertyReadOnly, message));
    }
    ask_all(access, pool, [Action::Set { property, value }]).await
}

async fn history(access: &PoolAccess, pools: &[String], json: bool) -> Result<Outcome, Failure> {
    let each = from_each(access, pools, async |handle| {
        reply_as!(handle.ask(Action::History).await, Reply::History)
    })
    .await?;
    let each: Vec<_> =
        each.into_iter().map(|(name, lines)| (name.clone(), lines.map(|l| (name, l)))).collect();
    let (histories, complete) = good(each);
    let histories: BTreeMap<String, Vec<String>> = histories.into_iter().collect();
    let text = if json {
        render::history_json(&histories)
    } else if histories.is_empty() && complete {
        "no pools available\n".to_owned()
    } else {
        let each = histories.iter().map(|(name, lines)| render::history_text(name, lines));
        each.collect::<Vec<_>>().join("\n")
    };
    Ok(Outcome { text, complete })
}

async fn upgrade(access: &PoolAccess, pools: &[String]) -> Result<Outcome, Failure> {
    for pool in pools {
        ask_all(access, pool, [Action::Upgrade]).await?;
    }
    Ok(Outcome::done())
}

async fn sync(access: &PoolAccess, pools: &[String]) -> Result<Outcome, Failure> {
    for pool in access.names(pools)? {
        // A pool without a server has nothing to write: it was closed with all on its devices.
        if access.server_of(&pool).is_some() {
            ask_all(access, &pool, [Action::Sync]).await?;
        }
    }
    Ok(Outcome::done())
}

async fn clear_labels(devices: &[String], force: bool) -> Result<Outcome, Failure> {
    let mut resolved = Vec::new();
    for device in devices {
        resolved.push(match remote_log::is_name(device) {
            true => remote_log::resolve(device).await?,
            false if object_stores::is_name(device) => object_stores::resolve(device)?,
            false => resolve_new(device)?,
        });
    }
    for device in resolved {
        clear_device(&device, force).await?;
    }
    Ok(Outcome::done())
}

/// Clears the label of a device, and the header that makes it the backup device of a log device in
/// memory. One whose memory is lost has a header only.
async fn clear_device(device: &str, force: bool) -> Result<(), Failure> {
    match Pool::clear_label(Rc::new(FileOpener), device, force).await {
        Ok(()) if is_elsewhere(device) => {}
        Ok(()) => log_memory::clear_header(device).await.map(drop)?,
        Err(error) => {
            let is_open = FileOpener.open(device).await.is_ok();
            let may_clear = !is_elsewhere(device)
                && (force || (is_open && matches!(error, AdminError::NoLabel { .. })));
            if !may_clear || !log_memory::clear_header(device).await? {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

async fn export_all(
    access: &PoolAccess,
    pools: &[String],
    force: bool,
) -> Result<Outcome, Failure> {
    access.names(pools)?;
    let mut text = String::new();
    for pool in pools {
        if !force {
            refuse_attached(&devices_of(access, pool).await?)?;
        }
        text.push_str(&export(access, pool, force).await?);
    }
    Ok(Outcome::text(text))
}

/// `pool export` of one pool; what it did, in words. With force, a pool that cannot be opened is
/// removed from the list of known pools, and its devices are not touched.
async fn export(access: &PoolAccess, pool: &str, force: bool) -> Result<String, Failure> {
    let handle = match access.open(pool).await {
        Err(failure) if force && access.server_of(pool).is_none() => {
            let known = access.state().known_pools()?;
            let Some(known) = known.iter().find(|known| known.name == pool) else {
                return Err(failure);
            };
            access.state().forget(known.guid)?;
            log::notice(&format!(
                "'{pool}' is no longer known here; it was not opened: {}",
                failure.line()
            ));
            return Ok(String::new());
        }
        other => other?,
    };
    let served = handle.server_pid();
    let outcome = handle.ask(Action::Export { force }).await.map(|_| ());
    handle.close_after(outcome).await?;
    let left = served.map_or(String::new(), |pid| format!(", and process {pid} serves it no more"));
    Ok(format!(
        "exported '{pool}': it is no longer known here{left}; 'forebay pool import -d DIR {pool}' \
         brings it back, here or on another machine\n"
    ))
}

fn members(words: &[String]) -> Result<Vec<String>, Failure> {
    words.iter().map(|word| resolve_member(word)).collect()
}
