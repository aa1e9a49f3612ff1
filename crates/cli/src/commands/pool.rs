//! `forebay pool …`

use std::collections::BTreeMap;
use std::rc::Rc;

use super::outcome::Outcome;
use super::requests::{ask_all, from_each, good, names_of, property_map, reply_as};
use super::{import, iostat, scan, status};
use crate::args::{PoolCommand, ScanVerb};
use crate::control::{Action, Reply};
use crate::devices::{FileOpener, resolve_member, resolve_new, resolve_spec};
use crate::failure::{Failure, report};
use crate::pool_access::PoolAccess;
use crate::render;
use crate::vdevs::parse_vdevs;

/// Does it.
pub async fn pool(command: PoolCommand, access: &PoolAccess) -> Result<Outcome, Failure> {
    match command {
        PoolCommand::Create { force, dry_run, options, pool, vdevs } => {
            let mut spec = parse_vdevs(&vdevs)?;
            if spec.groups.is_empty() {
                return Err(Failure::usage("a pool needs a data device, before 'log'"));
            }
            spec.properties = property_map(options)?;
            spec.force = force;
            if access.names(&[])?.contains(&pool) {
                return Err(Failure::new(format!(
                    "a pool named '{pool}' exists already; choose another name, or destroy it \
                     first (forebay pool destroy {pool})"
                )));
            }
            resolve_spec(&mut spec)?;
            if dry_run {
                forebay_pool::Pool::check_new(Rc::new(FileOpener), &pool, &spec).await?;
                return Ok(Outcome::text(render::layout(&pool, &spec)));
            }
            let handle = access.for_new_pool(&pool);
            let outcome = handle.ask(Action::Create { spec }).await;
            handle.close_after(outcome).await?;
            Ok(Outcome::done())
        }
        PoolCommand::List { listing, verbose, fields, pools } => {
            let each = from_each(access, &pools, async |handle| {
                if verbose {
                    let sample = reply_as!(handle.ask(Action::Sample).await, Reply::Sample)?;
                    let (summary, status) = (sample.summary, sample.status);
                    let vdevs = Some(render::Vdevs::new(&status.groups, &status.logs));
                    return Ok(render::Listed { summary, vdevs });
                }
                let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
                Ok(render::Listed { summary, vdevs: None })
            })
            .await?;
            let mut rows = Vec::new();
            let mut complete = true;
            for (name, outcome) in each {
                let listed = match outcome {
                    Ok(listed) => Some(listed),
                    Err(failure) => {
                        complete = false;
                        report(&format!("{name}: {}", failure.message));
                        None
                    }
                };
                rows.push((name, listed));
            }
            let text = render::pool_list(&rows, names_of(&fields), listing)?;
            Ok(Outcome { text, complete })
        }
        PoolCommand::Status { report, unhealthy, verbose, pools } => {
            status::status(access, &pools, status::Options { report, unhealthy, verbose }).await
        }
        PoolCommand::Stats { report, pool } => {
            let stats = reply_as!(access.ask(&pool, Action::Stats).await, Reply::Stats)?;
            Ok(Outcome::text(if report.json {
                render::stats_json(&stats)
            } else {
                render::stats_text(&stats, report.exact)
            }))
        }
        PoolCommand::Iostat { listing, verbose, skip_first, header_once, words } => {
            let options = iostat::Options { listing, verbose, skip_first, header_once };
            iostat::iostat(access, &words, options).await
        }
        PoolCommand::Import { dirs, all, force, accept_log_loss, rewind, keep, json, pool } => {
            let options = forebay_pool::spec::ImportOptions {
                force,
                accept_log_loss,
                rewind_groups: u64::from(rewind),
                keep: keep.as_deref().map(resolve_member).transpose()?,
                ..Default::default()
            };
            import::import(access, &dirs, pool.as_deref(), all, json, options).await
        }
        PoolCommand::Export { force, pools } => {
            access.names(&pools)?;
            for pool in pools {
                export(access, &pool, force).await?;
            }
            Ok(Outcome::done())
        }
        PoolCommand::Destroy { force, pool } => {
            access.ask(&pool, Action::Destroy { force }).await?;
            Ok(Outcome::done())
        }
        PoolCommand::Get { listing, fields, properties, pools } => {
            let each = from_each(access, &pools, async |handle| {
                let summary = reply_as!(handle.ask(Action::Summary).await, Reply::Summary)?;
                let all = reply_as!(handle.ask(Action::Properties).await, Reply::Properties)?;
                Ok((summary, all))
            })
            .await?;
            let (pools, complete) = good(each);
            if pools.is_empty() && !complete {
                return Ok(Outcome { text: String::new(), complete });
            }
            let text = render::pool_get(&pools, &properties.0, names_of(&fields), listing)?;
            Ok(Outcome { text, complete })
        }
        PoolCommand::Set { property: (property, value), pool } => {
            if render::is_computed_of_pool(&property) {
                access.names(std::slice::from_ref(&pool))?;
                return Err(Failure::new(format!("'{property}' is read-only")));
            }
            ask_all(access, &pool, [Action::Set { property, value }]).await?;
            Ok(Outcome::done())
        }
        PoolCommand::History { json, pools } => {
            let each = from_each(access, &pools, async |handle| {
                reply_as!(handle.ask(Action::History).await, Reply::History)
            })
            .await?;
            let names: Vec<String> = each.iter().map(|(name, _)| name.clone()).collect();
            let mut histories = BTreeMap::new();
            let mut complete = true;
            for (name, outcome) in names.into_iter().zip(each) {
                let (mut lines, fine) = good(vec![outcome]);
                complete &= fine;
                if let Some(lines) = lines.pop() {
                    histories.insert(name, lines);
                }
            }
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
        PoolCommand::Add { force, pool, vdevs } => {
            let mut spec = parse_vdevs(&vdevs)?;
            spec.force = force;
            resolve_spec(&mut spec)?;
            ask_all(access, &pool, [Action::Add { spec }]).await?;
            Ok(Outcome::done())
        }
        PoolCommand::Remove { pool, devices } => {
            let devices = members(&devices)?;
            let actions = devices.into_iter().map(|device| Action::Remove { device });
            ask_all(access, &pool, actions).await?;
            Ok(Outcome::done())
        }
        PoolCommand::Attach { force, wait, pool, device, new_device } => {
            let device = resolve_member(&device)?;
            let new_device = resolve_new(&new_device)?;
            let action = Action::Attach { device, new_device, force };
            scan::act_and_wait(access, &pool, [action], wait).await
        }
        PoolCommand::Detach { pool, device } => {
            let device = resolve_member(&device)?;
            ask_all(access, &pool, [Action::Detach { device }]).await?;
            Ok(Outcome::done())
        }
        PoolCommand::Replace { force, wait, pool, device, new_device } => {
            let device = resolve_member(&device)?;
            let new_device = new_device.as_deref().map(resolve_new).transpose()?;
            let action = Action::Replace { device, new_device, force };
            scan::act_and_wait(access, &pool, [action], wait).await
        }
        PoolCommand::Offline { pool, devices } => {
            let devices = members(&devices)?;
            let actions = devices.into_iter().map(|device| Action::Offline { device });
            ask_all(access, &pool, actions).await?;
            Ok(Outcome::done())
        }
        PoolCommand::Online { wait, pool, devices } => {
            let devices = members(&devices)?;
            let actions = devices.into_iter().map(|device| Action::Online { device });
            scan::act_and_wait(access, &pool, actions, wait).await
        }
        PoolCommand::Clear { pool, devices } => {
            let mut devices: Vec<Option<String>> =
                members(&devices)?.into_iter().map(Some).collect();
            if devices.is_empty() {
                devices.push(None);
            }
            let actions = devices.into_iter().map(|device| Action::Clear { device });
            ask_all(access, &pool, actions).await?;
            Ok(Outcome::done())
        }
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
        PoolCommand::Sync { pools } => {
            for pool in access.names(&pools)? {
                // Nobody writes to a pool that nobody serves.
                if access.server_of(&pool).is_some() {
                    ask_all(access, &pool, [Action::Sync]).await?;
                }
            }
            Ok(Outcome::done())
        }
        PoolCommand::Labelclear { force, devices } => {
            let devices: Vec<String> =
                devices.iter().map(|device| resolve_new(device)).collect::<Result<_, _>>()?;
            for device in devices {
                forebay_pool::Pool::clear_label(Rc::new(FileOpener), &device, force).await?;
            }
            Ok(Outcome::done())
        }
    }
}

/// `pool export`. With force, a pool that cannot be opened any more is taken off the list of known
/// pools: nothing is done to its devices, wherever they are.
async fn export(access: &PoolAccess, pool: &str, force: bool) -> Result<(), Failure> {
    let handle = match access.open(pool).await {
        Err(failure) if force && access.server_of(pool).is_none() => {
            let known = access.state().known_pools()?;
            let Some(known) = known.iter().find(|known| known.name == pool) else {
                return Err(failure);
            };
            access.state().forget(known.guid)?;
            report(&format!(
                "'{pool}' is no longer known here; it was not opened: {}",
                failure.message
            ));
            return Ok(());
        }
        other => other?,
    };
    let outcome = handle.ask(Action::Export { force }).await.map(|_| ());
    handle.close_after(outcome).await
}

fn members(words: &[String]) -> Result<Vec<String>, Failure> {
    words.iter().map(|word| resolve_member(word)).collect()
}
