//! `forebay serve`.

use std::rc::Rc;

use forebay_pool::spec::{ImportOptions, Told};

use super::outcome::Outcome;
use crate::args::ServeArgs;
use crate::devices::{FileOpener, search};
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::pool_access::{KNOWN_POOL_OPTIONS, PoolAccess, SERVE_WAIT, import_known};
use crate::pools::PoolSet;
use crate::serving::Serving;
use crate::state::{KnownPool, StateDir};
use crate::terminal::with_waiting_line;

/// Serves until a signal comes.
pub async fn serve(args: ServeArgs, access: PoolAccess) -> Result<Outcome, Failure> {
    let state = access.state().clone();
    let chosen = choose(&args, &access).await?;
    let every = args.pools.is_empty();
    let options = if args.dirs.is_empty() { KNOWN_POOL_OPTIONS } else { ImportOptions::default() };
    let stop = access.stop();
    let set = PoolSet::new(Rc::new(FileOpener), state.clone(), Some(stop.clone()));
    let serving = Serving::new(set, &state, stop.clone())?.secured(&args.security)?;
    serving.check_free(&args.listen, &state).await?;
    if let Some(address) = args.metrics {
        serving.tell_metrics(address)?;
    }
    let opened = stop.unless_asked(open_all(&serving.set, &chosen, every, &options)).await;
    match opened {
        None => return serving.end().await.map(|()| Outcome::done()),
        Some(Err(failure)) => {
            // The pools that were opened before are closed; the first failure is reported.
            let _ = serving.set.close().await;
            return Err(failure);
        }
        Some(Ok(())) => serving.set.set_takes_more(every && args.dirs.is_empty()),
    }
    let listeners = match serving.listen(&args.listen, &state) {
        Ok(listeners) => listeners,
        Err(failure) => {
            let _ = serving.set.close().await;
            return Err(failure);
        }
    };
    ready(&serving, &state, listeners.len());
    serving.run().await.map(|()| Outcome::done())
}

/// Reports what is being served.
pub fn ready(serving: &Serving, state: &StateDir, listeners: usize) {
    let pools: Vec<String> = serving
        .set
        .pools()
        .iter()
        .map(|pool| {
            let volumes = pool.volumes().len();
            format!("{} ({volumes} volume{})", pool.name(), if volumes == 1 { "" } else { "s" })
        })
        .collect();
    let pools = if pools.is_empty() {
        "no pool yet (pools are served when they are created or imported)".to_owned()
    } else {
        pools.join(", ")
    };
    serving.screen.say(&format!(
        "ready: serving {pools} on {listeners} listener{}; state in {}; Ctrl-C ends",
        if listeners == 1 { "" } else { "s" },
        state.path().display()
    ));
}

/// The pools to serve: known ones, or those found with `-d`; all, or the named ones.
async fn choose(args: &ServeArgs, access: &PoolAccess) -> Result<Vec<KnownPool>, Failure> {
    let mut chosen = access.state().known_pools()?;
    if !args.dirs.is_empty() {
        let paths = search(&args.dirs).await?;
        let found = access.discover(&paths).await?;
        let entry = |p: forebay_pool::status::FoundPool| KnownPool {
            name: p.name,
            guid: p.guid,
            devices: p.paths,
            told: Told::default(),
        };
        chosen = found.into_iter().map(entry).collect();
    }
    if let Some(name) = args.pools.iter().find(|name| chosen.iter().all(|p| p.name != **name)) {
        return Err(match args.dirs.is_empty() {
            true => not_found(format!("no pool named '{name}' is known")).with_hint(format!(
                "'forebay pool import -d DIR {name}' or 'forebay serve -d DIR {name}' looks for it"
            )),
            false => not_found(format!("no pool named '{name}' was found in the places of -d")),
        });
    }
    chosen.retain(|p| args.pools.is_empty() || args.pools.contains(&p.name));
    for pool in &chosen {
        if let Some(pid) = access.server_of(&pool.name) {
            let message = format!("'{}' is being served already, by process {pid}", pool.name);
            return Err(Failure::new(ErrorCode::PoolServed, message).with_hint("end that first"));
        }
    }
    if chosen.is_empty() && !args.dirs.is_empty() {
        return Err(not_found("no pool was found in the places of -d".to_owned()));
    }
    Ok(chosen)
}

fn not_found(message: String) -> Failure {
    Failure::new(ErrorCode::PoolNotFound, message)
}

/// Imports all of `chosen`. A pool that cannot be imported is a failure, unless `every` known pool
/// is to be served: then it is reported, and the others are served.
async fn open_all(
    set: &PoolSet,
    chosen: &[KnownPool],
    every: bool,
    options: &ImportOptions,
) -> Result<(), Failure> {
    for pool in chosen {
        let importing = import_known(set, pool, options, SERVE_WAIT);
        match with_waiting_line(&format!("opening '{}'", pool.name), false, importing).await {
            Ok(()) => {}
            Err(failure) if every => log::error(&format!("{}: {}", pool.name, failure.line())),
            Err(failure) => return Err(failure),
        }
    }
    if !chosen.is_empty() && set.pools().is_empty() {
        let message = "none of the known pools can be served";
        return Err(Failure::new(ErrorCode::PoolUnavailable, message));
    }
    Ok(())
}
