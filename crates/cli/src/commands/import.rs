//! `forebay pool import`.

use std::path::{Path, PathBuf};

use forebay_pool::spec::ImportOptions;
use forebay_pool::status::FoundPool;
use forebay_rt::sys::effective_uid;

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::attachments::refuse_left_behind;
use crate::control::{Action, Reply};
use crate::devices::{is_locked, out_of_reach, search};
use crate::failure::{ErrorCode, Failure};
use crate::path_probe::probe_each;
use crate::pool_access::PoolAccess;
use crate::render;
use crate::state::KnownPool;

/// What the command line asks for.
pub enum Wanted {
    /// Import the pool with this name or guid.
    Pool(String),
    /// Import every pool that is found.
    All,
    /// List what could be imported, as JSON or as text.
    List { json: bool },
}

impl Wanted {
    /// From the arguments, which exclude each other.
    #[must_use]
    pub fn new(pool: Option<String>, all: bool, json: bool) -> Self {
        match pool {
            Some(pool) => Self::Pool(pool),
            None if all => Self::All,
            None => Self::List { json },
        }
    }
}

/// Imports or lists what `wanted` says, looking in `dirs`.
pub async fn import(
    access: &PoolAccess,
    wanted: Wanted,
    dirs: &[PathBuf],
    options: ImportOptions,
) -> Result<Outcome, Failure> {
    let known = access.state().known_pools()?;
    if let Wanted::Pool(name) = &wanted {
        if let Some(pool) = known.iter().find(|pool| is_named(&pool.name, pool.guid, name)) {
            return import_again(access, pool, dirs, options).await.map(Outcome::text);
        }
    }
    let paths = search(dirs).await?;
    let mut found = access.discover(&paths).await?;
    found.retain(|pool| known.iter().all(|k| k.guid != pool.guid));
    found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    match wanted {
        Wanted::Pool(name) => {
            let pool = choose(&found, &name, dirs).await?;
            refuse_left_behind(pool.guid).await?;
            import_one(access, pool, options).await.map(Outcome::text)
        }
        Wanted::All => {
            let mut text = String::new();
            for pool in &found {
                refuse_left_behind(pool.guid).await?;
                text.push_str(&import_one(access, pool, options.clone()).await?);
            }
            Ok(Outcome::text(text))
        }
        Wanted::List { json: true } => Ok(Outcome::text(render::found_json(&found))),
        Wanted::List { .. } if found.is_empty() => {
            Ok(Outcome::text(nothing_found(&paths, dirs).await))
        }
        Wanted::List { .. } => Ok(Outcome::text(render::found_text(&found))),
    }
}

/// Imports a known pool once more: from where its devices are now, or without what is missing.
async fn import_again(
    access: &PoolAccess,
    pool: &KnownPool,
    dirs: &[PathBuf],
    options: ImportOptions,
) -> Result<String, Failure> {
    let name = &pool.name;
    if let Some(pid) = access.server_of(name) {
        let message = format!("'{name}' is imported already, and served by process {pid}");
        return Err(Failure::new(ErrorCode::PoolServed, message));
    }
    if options.accept_log_loss || options.rewind_groups > 0 || options.keep.is_some() {
        refuse_left_behind(pool.guid).await?;
    }
    // A server of all pools may take back a pool that it could not open before.
    let is_asked_again = options != ImportOptions::default() || access.has_server_for_more();
    let already = || {
        Failure::new(ErrorCode::PoolExists, format!("'{name}' is imported already"))
            .with_hint(format!("'forebay serve {name}' serves it"))
    };
    if !is_asked_again && dirs.is_empty() {
        return Err(already());
    }
    let mut paths = pool.devices.clone();
    paths.extend(search_named(dirs).await?);
    paths.sort();
    paths.dedup();
    let found = access.discover(&paths).await?;
    let Some(found) = found.iter().find(|found| found.guid == pool.guid) else {
        let message = format!("no device of '{name}' was found");
        return Err(Failure::new(ErrorCode::DeviceNotFound, message)
            .with_hint("name the folder of its devices with -d"));
    };
    // A device of another pool may be at the path of a device: the names of disks change.
    let gone = any_is_gone(&pool.devices).await;
    let moved = found.paths.iter().any(|path| !pool.devices.contains(path));
    if !is_asked_again && !gone && !moved {
        return Err(already());
    }
    import_one(access, found, ImportOptions { known: Some(pool.told), ..options }).await
}

/// Whether nothing is at one of `paths`. A path that does not answer is there.
async fn any_is_gone(paths: &[String]) -> bool {
    let paths = paths.iter().map(PathBuf::from).collect();
    probe_each(paths, Path::exists).await.iter().any(|(_, exists)| *exists == Ok(false))
}

async fn nothing_found(paths: &[String], dirs: &[PathBuf]) -> String {
    let mut held = 0;
    for path in paths {
        held += usize::from(is_locked(path).await);
    }
    let mut text = format!("no pools available to import in {}", places(dirs));
    if held > 0 {
        let (are, s) = if held == 1 { ("is", "") } else { ("are", "s") };
        text.push_str(&format!("; {held} device{s} there {are} in use by another process"));
    }
    text.push_str(&out_of_reach(dirs).await);
    text + "\n"
}

fn is_named(name: &str, guid: u64, wanted: &str) -> bool {
    name == wanted || guid.to_string() == wanted
}

/// As [`search`], but nothing without folders.
async fn search_named(dirs: &[PathBuf]) -> Result<Vec<String>, Failure> {
    if dirs.is_empty() { Ok(Vec::new()) } else { search(dirs).await }
}

async fn choose<'a>(
    found: &'a [FoundPool],
    wanted: &str,
    dirs: &[PathBuf],
) -> Result<&'a FoundPool, Failure> {
    let matching: Vec<&FoundPool> =
        found.iter().filter(|pool| is_named(&pool.name, pool.guid, wanted)).collect();
    match matching[..] {
        [pool] => Ok(pool),
        [] => {
            let unreadable = out_of_reach(dirs).await;
            let message = format!("no pool '{wanted}' was found in {}{unreadable}", places(dirs));
            Err(Failure::new(ErrorCode::PoolNotFound, message).with_hint(
                "name the folder of its devices with -d; a pool that another process serves is \
                 not found",
            ))
        }
        _ => {
            let guids: Vec<String> = matching.iter().map(|p| p.guid.to_string()).collect();
            let message = format!("several pools are named '{wanted}'");
            Err(Failure::new(ErrorCode::PoolAmbiguous, message)
                .with_hint(format!("import one by its guid: {}", guids.join(", "))))
        }
    }
}

/// Imports a pool that was found; what was done, in words.
async fn import_one(
    access: &PoolAccess,
    pool: &FoundPool,
    options: ImportOptions,
) -> Result<String, Failure> {
    access.state().check_name_free(&pool.name, Some(pool.guid))?;
    let handle = access.for_new_pool(&pool.guid.to_string());
    let options = ImportOptions { for_command: handle.is_local(), ..options };
    let action = Action::Import { paths: pool.paths.clone(), options };
    let outcome = async {
        handle.ask(action).await?;
        // From now on the pool goes by its name.
        let imported = handle.renamed(&pool.name);
        reply_as!(imported.ask(Action::Summary).await, Reply::Summary)
    }
    .await;
    let served = handle.server_pid();
    let summary = handle.close_after(outcome).await?;
    let (name, health) = (&pool.name, summary.health.as_str());
    Ok(match served {
        Some(pid) => format!("imported '{name}' ({health}); process {pid} serves it\n"),
        None => format!(
            "imported '{name}' ({health}); it is known here and closed until 'forebay serve \
             {name}' serves it\n"
        ),
    })
}

fn places(dirs: &[PathBuf]) -> String {
    if dirs.is_empty() {
        return match effective_uid() {
            0 => "/dev".to_owned(),
            _ => "/dev, as far as you may open its devices".to_owned(),
        };
    }
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ")
}
