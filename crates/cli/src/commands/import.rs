//! `forebay pool import`.

use std::path::PathBuf;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::spec::ImportOptions;
use forebay_pool::status::FoundPool;

use super::Outcome;
use crate::control::Action;
use crate::devices::{FileOpener, search};
use crate::failure::Failure;
use crate::reach::Reach;
use crate::show;

/// Imports `wanted` (a name or guid), or all; without either, lists what could be imported.
pub async fn import(
    reach: &Reach,
    dirs: &[PathBuf],
    wanted: Option<&str>,
    all: bool,
    json: bool,
    options: ImportOptions,
) -> Result<Outcome, Failure> {
    let known = reach.state().known_pools()?;
    if let Some(pool) = known.iter().find(|p| Some(p.name.as_str()) == wanted) {
        return Err(Failure::new(format!(
            "'{}' is imported already; 'forebay serve {}' serves it",
            pool.name, pool.name
        )));
    }
    let paths = search(dirs)?;
    let mut found = Pool::discover(Rc::new(FileOpener), &paths).await;
    found.retain(|pool| known.iter().all(|k| k.guid != pool.guid));
    found.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    if let Some(wanted) = wanted {
        let pool = choose(&found, wanted, dirs)?;
        import_one(reach, pool, options).await?;
        return Ok(Outcome::done());
    }
    if all {
        for pool in &found {
            import_one(reach, pool, options.clone()).await?;
        }
        return Ok(Outcome::done());
    }
    if json {
        return Ok(Outcome::text(show::found_json(&found)));
    }
    if found.is_empty() {
        return Ok(Outcome::text(format!("no pools available to import in {}\n", places(dirs))));
    }
    Ok(Outcome::text(show::found_text(&found)))
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
             that another process serves is not found)",
            places(dirs)
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
    reach: &Reach,
    pool: &FoundPool,
    options: ImportOptions,
) -> Result<(), Failure> {
    reach.state().check_name_free(&pool.name, Some(pool.guid))?;
    let access = reach.access_new(&pool.guid.to_string());
    let action = Action::Import { paths: pool.paths.clone(), options };
    let outcome = access.ask(action).await;
    access.close_after(outcome).await.map(|_| ())
}

fn places(dirs: &[PathBuf]) -> String {
    if dirs.is_empty() {
        return "/dev".to_owned();
    }
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ")
}
