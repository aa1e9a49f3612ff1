//! `forebay pool import`.

use std::path::{Path, PathBuf};

use forebay_pool::spec::ImportOptions;
use forebay_pool::status::FoundPool;

use super::outcome::Outcome;
use crate::control::Action;
use crate::devices::{is_locked, out_of_reach, search};
use crate::failure::Failure;
use crate::pool_access::PoolAccess;
use crate::render;
use crate::state::{KnownPool, own_uid};

/// Imports `wanted` (a name or guid), or all; without either, lists what could be imported.
pub async fn import(
    access: &PoolAccess,
    dirs: &[PathBuf],
    wanted: Option<&str>,
    all: bool,
    json: bool,
    options: ImportOptions,
) -> Result<Outcome, Failure> {
    let known = access.state().known_pools()?;
    if let Some(pool) = known.iter().find(|p| named(p, wanted)) {
        if let Some(pid) = access.server_of(&pool.name) {
            return Err(Failure::new(format!(
                "'{}' is imported already, and served by process {pid}",
                pool.name
            )));
        }
        // A server that is there for every pool may take back one that it had to let go.
        let again = options != ImportOptions::default() || access.has_server_for_more();
        let already = || {
            Failure::new(format!(
                "'{0}' is imported already; 'forebay serve {0}' serves it",
                pool.name
            ))
        };
        if !again && dirs.is_empty() {
            return Err(already());
        }
        // Once more, from where its devices are now, or without what is missing.
        let mut paths = pool.devices.clone();
        paths.extend(search_named(dirs)?);
        paths.sort();
        paths.dedup();
        let found = access.discover(&paths).await?;
        let Some(found) = found.iter().find(|found| found.guid == pool.guid) else {
            return Err(Failure::new(format!(
                "no device of '{}' was found; name the folder of its devices with -d",
                pool.name
            )));
        };
        // Where one of its devices was there may be another's now: disks change their names.
        let gone = pool.devices.iter().any(|path| !Path::new(path).exists());
        let moved = found.paths.iter().any(|path| !pool.devices.contains(path));
        if !again && !gone && !moved {
            return Err(already());
        }
        import_one(access, found, ImportOptions { known: Some(pool.told), ..options }).await?;
        return Ok(Outcome::done());
    }
    let paths = search(dirs)?;
    let mut found = access.discover(&paths).await?;
    found.retain(|pool| known.iter().all(|k| k.guid != pool.guid));
    found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    if let Some(wanted) = wanted {
        let pool = choose(&found, wanted, dirs)?;
        import_one(access, pool, options).await?;
        return Ok(Outcome::done());
    }
    if all {
        for pool in &found {
            import_one(access, pool, options.clone()).await?;
        }
        return Ok(Outcome::done());
    }
    if json {
        return Ok(Outcome::text(render::found_json(&found)));
    }
    if found.is_empty() {
        let held = paths.iter().filter(|path| is_locked(path)).count();
        let mut text = format!("no pools available to import in {}", places(dirs));
        if held > 0 {
            let (are, s) = if held == 1 { ("is", "") } else { ("are", "s") };
            text.push_str(&format!("; {held} device{s} there {are} in use by another process"));
        }
        text.push_str(&out_of_reach(dirs));
        return Ok(Outcome::text(text + "\n"));
    }
    Ok(Outcome::text(render::found_text(&found)))
}

fn named(pool: &KnownPool, wanted: Option<&str>) -> bool {
    wanted.is_some_and(|wanted| pool.name == wanted || pool.guid.to_string() == wanted)
}

/// As [`search`], but without a name nothing is looked at.
fn search_named(dirs: &[PathBuf]) -> Result<Vec<String>, Failure> {
    if dirs.is_empty() { Ok(Vec::new()) } else { search(dirs) }
}

fn choose<'a>(
    found: &'a [FoundPool],
    wanted: &str,
    dirs: &[PathBuf],
) -> Result<&'a FoundPool, Failure> {
    let matching: Vec<&FoundPool> =
        found.iter().filter(|p| p.name == wanted || p.guid.to_string() == wanted).collect();
    match matching[..] {
        [pool] => Ok(pool),
        [] => Err(Failure::new(format!(
            "no pool '{wanted}' was found in {}; name the folder of its devices with -d (a pool \
             that another process serves is not found){}",
            places(dirs),
            out_of_reach(dirs)
        ))),
        _ => {
            let guids: Vec<String> = matching.iter().map(|p| p.guid.to_string()).collect();
            Err(Failure::new(format!(
                "several pools are named '{wanted}'; import one by its guid: {}",
                guids.join(", ")
            )))
        }
    }
}

async fn import_one(
    access: &PoolAccess,
    pool: &FoundPool,
    options: ImportOptions,
) -> Result<(), Failure> {
    access.state().check_name_free(&pool.name, Some(pool.guid))?;
    let handle = access.for_new_pool(&pool.guid.to_string());
    let action = Action::Import { paths: pool.paths.clone(), options };
    let outcome = handle.ask(action).await;
    handle.close_after(outcome).await.map(|_| ())
}

fn places(dirs: &[PathBuf]) -> String {
    if dirs.is_empty() {
        return match own_uid() {
            0 => "/dev".to_owned(),
            _ => "/dev, as far as you may open its devices".to_owned(),
        };
    }
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ")
}
