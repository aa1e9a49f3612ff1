//! `forebay serve`.

use std::path::Path;
use std::rc::Rc;

use forebay_pool::spec::{ImportOptions, Told};
use forebay_rt as rt;
use forebay_rt::net::Listener;
use forebay_units::Nanos;

use super::late_pools::open_late;
use super::outcome::Outcome;
use crate::args::{SecurityArgs, ServeArgs, StandbyArgs};
use crate::devices::{FileOpener, search};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::log;
use crate::notify::{Notify, authorities};
use crate::pool_access::{KNOWN_POOL_OPTIONS, PoolAccess, SERVE_WAIT, import_known};
use crate::pools::PoolSet;
use crate::service_config::{DEFAULT_PATH, ServiceConfig, limit_values};
use crate::serving::{Serving, page_access, refuse_exposed, refuse_long, tls_config};
use crate::state::{Environment, KnownPool, StateDir, locate};
use crate::terminal::with_waiting_line;

/// How long a standby waits before it looks again.
const STANDBY_PAUSE: Nanos = Nanos::from_secs(2);

/// Serves until a signal comes.
pub async fn serve(
    args: ServeArgs,
    inherited: Vec<Listener>,
    access: PoolAccess,
) -> Result<Outcome, Failure> {
    let config = settings(&args)?;
    let chosen = choose(&config, &access).await?;
    serve_with(config, Opening::Now(chosen), inherited, access).await
}

/// Serves until a signal comes, as soon as the pools may be imported.
pub async fn standby(
    args: StandbyArgs,
    inherited: Vec<Listener>,
    access: PoolAccess,
) -> Result<Outcome, Failure> {
    let config = settings(&args.serve)?;
    if config.pools.is_empty() {
        return Err(Failure::usage("a standby needs the names of its pools")
            .with_hint("for example 'forebay standby tank -d /dev/disk/by-id'"));
    }
    let opening = Opening::Standby { take_over: args.take_over };
    serve_with(config, opening, inherited, access).await
}

/// When the pools are opened.
enum Opening {
    /// At once, those that were found.
    Now(Vec<KnownPool>),
    /// When no other machine uses them.
    Standby { take_over: bool },
}

async fn serve_with(
    config: ServiceConfig,
    opening: Opening,
    inherited: Vec<Listener>,
    access: PoolAccess,
) -> Result<Outcome, Failure> {
    let state = access.state().clone();
    let every = config.pools.is_empty();
    let takes_more = every && config.directories.is_empty();
    let stop = access.stop();
    stop.ignore_hangup_without_terminal();
    let set = PoolSet::new(Rc::new(FileOpener), state.clone(), Some(stop.clone()));
    check_places(&config).await?;
    let notify = Notify::new(&config.notify);
    let mut serving = Serving::new(set, &state, stop.clone())?;
    serving = serving.telling(notify).inheriting(inherited).secured(
        &config.security,
        config.allow.clone(),
        config.limits,
    )?;
    serving.check_free(&config.listen, &state).await?;
    if let Some(address) = config.metrics {
        serving.tell_metrics(address)?;
    }
    serving.show_page(&config.web)?;
    if let Some(folder) = &config.vhost_user {
        serving.serve_machines(folder)?;
    }
    let opened = match &opening {
        Opening::Now(chosen) => {
            let is_known = config.directories.is_empty();
            let options = if is_known { KNOWN_POOL_OPTIONS } else { ImportOptions::default() };
            stop.unless_asked(open_all(&serving, chosen, every, &options)).await
        }
        Opening::Standby { take_over } => {
            let waiting = open_when_free(&serving, &config, &access, *take_over);
            stop.unless_asked(waiting).await
        }
    };
    let left_out = match opened {
        None => return serving.end().await.map(|()| Outcome::done()),
        Some(Err(failure)) => {
            // The pools that were opened before are closed; the first failure is reported.
            let _ = serving.set.close().await;
            return Err(failure);
        }
        Some(Ok(left_out)) => left_out,
    };
    serving.set.set_takes_more(takes_more);
    let listeners = match serving.listen(&config.listen, &state) {
        Ok(listeners) => listeners,
        Err(failure) => {
            let _ = serving.set.close().await;
            return Err(failure);
        }
    };
    ready(&serving, &state, listeners.len());
    if takes_more {
        let (set, stop) = (serving.set.clone(), stop.clone());
        rt::spawn(async move { stop.unless_asked(open_late(set, left_out)).await });
    }
    serving.run().await.map(|()| Outcome::done())
}

/// The settings of the file that `args` name, where they name one, and of `args` themselves. Fails
/// when a file that will be read is a pipe, which would be waited for.
fn settings(args: &ServeArgs) -> Result<ServiceConfig, Failure> {
    let path = args.config.as_deref().or(args.check.then_some(Path::new(DEFAULT_PATH)));
    refuse_pipes(path)?;
    let mut config = path.map(ServiceConfig::read).transpose()?.unwrap_or_default();
    config.metrics = args.metrics.or(config.metrics);
    config.web.address = args.web.address.or(config.web.address);
    config.web.token = args.web.token.clone().or(config.web.token);
    config.vhost_user = args.vhost_user.clone().or(config.vhost_user);
    config.override_with(&args.listen, &args.security, &args.pools, &args.dirs)?;
    let SecurityArgs { tls_cert, tls_key, tls_ca, tls_allow, .. } = &config.security;
    let named = [tls_cert, tls_key, tls_ca, tls_allow, &config.web.token];
    let named = named.into_iter().flatten().chain([&config.notify.webhook_ca]);
    refuse_pipes(named.map(|path| path.as_path()))?;
    Ok(config)
}

fn refuse_pipes<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    match paths.into_iter().find(|path| files::is_named_pipe(path)) {
        None => Ok(()),
        Some(path) => {
            let message = format!("{} is a pipe, and not a file", path.display());
            Err(Failure::new(ErrorCode::ServiceConfig, message))
        }
    }
}

/// `forebay serve --check`: reads all that a server reads before it opens pools, and changes
/// nothing.
pub async fn check_service(args: &ServeArgs) -> Result<Outcome, Failure> {
    let config = settings(args)?;
    let tls = tls_config(&config.security, config.allow.clone()).map_err(|failure| {
        match args.security.tls_cert {
            Some(_) => failure,
            None => config.tls_failure(&failure.message),
        }
    })?;
    for (index, address) in config.listen.iter().enumerate() {
        refuse_long(address).map_err(|error| match config.lists_addresses() {
            true => config.listen_failure(index, &error.to_string()),
            false => Failure::usage(format!("{address}: {error}")),
        })?;
        refuse_exposed(address, tls.is_some(), config.security.plaintext).map_err(|failure| {
            match config.lists_addresses() {
                true => config.listen_failure(
                    index,
                    &format!("{}; name tls.cert and tls.key, or plaintext = true", failure.message),
                ),
                false => failure,
            }
        })?;
    }
    page_access(&config.web).map_err(|failure| match args.web.address {
        Some(_) => failure,
        None if config.web.token.is_some() => config.web_failure(&failure.message),
        None => config.web_failure(&format!("{}; name web_token", failure.message)),
    })?;
    check_places(&config).await?;
    check_pools(&config)?;
    let path = args.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
    Ok(Outcome::text(match args.json {
        true => settings_json(path, &config, tls.is_some()),
        false => format!("{}: in order\n", path.display()),
    }))
}

/// Fails when events cannot be told where the configuration says.
async fn check_places(config: &ServiceConfig) -> Result<(), Failure> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let notify = &config.notify;
    let failed = |key: &str, what: &str| Err(config.events_failure(key, what));
    if let Some(path) = &notify.syslog {
        if !std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            return failed("syslog", &format!("there is no socket at {}", path.display()));
        }
    }
    let is_program =
        |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    if notify.mail.is_some() && !std::fs::metadata(&notify.sendmail).is_ok_and(is_program) {
        let what = format!("{} is no program; name sendmail", notify.sendmail.display());
        return failed("mail", &what);
    }
    match &notify.webhook {
        Some(url) if url.is_https => match authorities(&notify.webhook_ca).await {
            Err(why) => failed("webhook", &format!("{why}; name webhook_ca")),
            Ok(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Fails when a pool is neither known nor looked for. The state folder is not made.
fn check_pools(config: &ServiceConfig) -> Result<(), Failure> {
    if !config.lists_pools() || !config.directories.is_empty() {
        return Ok(());
    }
    let folder = locate(&Environment::current())?;
    let known = match folder.exists() {
        true => StateDir::open_at(folder)?.known_pools()?,
        false => Vec::new(),
    };
    match config.pools.iter().position(|name| known.iter().all(|pool| pool.name != *name)) {
        None => Ok(()),
        Some(index) => {
            let message = format!("no pool named '{}' is known", config.pools[index]);
            Err(config.pool_failure(index, &message).with_hint(format!(
                "'forebay pool import -d DIR {}' looks for it",
                config.pools[index]
            )))
        }
    }
}

/// The settings as versioned JSON.
fn settings_json(path: &Path, config: &ServiceConfig, tls: bool) -> String {
    let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
    let limits: serde_json::Map<String, serde_json::Value> =
        limit_values(&config.limits).map(|(key, value)| (key.to_owned(), value.into())).collect();
    let document = serde_json::json!({
        "version": 1,
        "config": path,
        "listen": listen,
        "metrics": config.metrics.map(|address| address.to_string()),
        "web": config.web.address.map(|address| address.to_string()),
        "web_token": config.web.token.is_some(),
        "vhost_user": config.vhost_user,
        "events": {
            "syslog": config.notify.syslog,
            "mail": config.notify.mail,
            "webhook": config.notify.webhook.is_some(),
            "level": config.notify.least.as_str(),
        },
        "plaintext": config.security.plaintext,
        "tls": tls,
        "pools": config.pools,
        "directories": config.directories,
        "limits": limits,
    });
    format!("{document:#}\n")
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
        "no pool yet (pools are served when they are created, imported, or can be opened)"
            .to_owned()
    } else {
        pools.join(", ")
    };
    serving.ready();
    serving.screen.say(&format!(
        "ready: serving {pools} on {listeners} listener{}; state in {}; Ctrl-C ends",
        if listeners == 1 { "" } else { "s" },
        state.path().display()
    ));
}

/// The pools to serve: known ones, or those found with `-d`; all, or the named ones.
async fn choose(config: &ServiceConfig, access: &PoolAccess) -> Result<Vec<KnownPool>, Failure> {
    let mut chosen = access.state().known_pools()?;
    let is_search = !config.directories.is_empty();
    if is_search {
        let paths = search(&config.directories).await?;
        let found = access.discover(&paths).await?;
        let entry = |p: forebay_pool::status::FoundPool| KnownPool {
            name: p.name,
            guid: p.guid,
            devices: p.paths,
            told: Told::default(),
        };
        chosen = found.into_iter().map(entry).collect();
    }
    let wanted = &config.pools;
    if let Some(name) = wanted.iter().find(|name| chosen.iter().all(|p| p.name != **name)) {
        return Err(match is_search {
            false => not_found(format!("no pool named '{name}' is known")).with_hint(format!(
                "'forebay pool import -d DIR {name}' or 'forebay serve -d DIR {name}' looks for it"
            )),
            true => not_found(format!("no pool named '{name}' was found in the places of -d")),
        });
    }
    chosen.retain(|p| wanted.is_empty() || wanted.contains(&p.name));
    for pool in &chosen {
        if let Some(pid) = access.server_of(&pool.name) {
            let message = format!("'{}' is being served already, by process {pid}", pool.name);
            return Err(Failure::new(ErrorCode::PoolServed, message).with_hint("end that first"));
        }
    }
    if chosen.is_empty() && is_search {
        return Err(not_found("no pool was found in the places of -d".to_owned()));
    }
    Ok(chosen)
}

fn not_found(message: String) -> Failure {
    Failure::new(ErrorCode::PoolNotFound, message)
}

/// Imports the pools once no other machine uses them; with `take_over` also from a machine that is
/// silent. Reports why it waits, whenever the reason changes.
async fn open_when_free(
    serving: &Serving,
    config: &ServiceConfig,
    access: &PoolAccess,
    take_over: bool,
) -> Result<Vec<KnownPool>, Failure> {
    let options = ImportOptions { force: take_over, ..ImportOptions::default() };
    let mut reported = String::new();
    loop {
        let opened = match choose(config, access).await {
            Ok(chosen) => open_all(serving, &chosen, false, &options).await,
            Err(failure) => Err(failure),
        };
        let failure = match opened {
            Err(failure) if !is_final(failure.code) => failure,
            other => return other,
        };
        if failure.message != reported {
            let hint = match failure.code {
                ErrorCode::PoolNotExported => "; --take-over would import it",
                _ => "",
            };
            log::notice(&format!("standing by: {}{hint}", failure.message));
            reported = failure.message;
        }
        rt::sleep(STANDBY_PAUSE).await;
    }
}

/// Whether waiting does not help.
fn is_final(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Usage | ErrorCode::PoolAmbiguous | ErrorCode::PoolServed)
}

/// Imports all of `chosen`. A pool that cannot be imported is a failure, unless `every` known pool
/// is to be served: then it is reported and returned, and the others are served.
async fn open_all(
    serving: &Serving,
    chosen: &[KnownPool],
    every: bool,
    options: &ImportOptions,
) -> Result<Vec<KnownPool>, Failure> {
    let set = &serving.set;
    let mut left_out = Vec::new();
    for pool in chosen {
        serving.status(&format!("opening '{}'", pool.name));
        let importing = import_known(set, pool, options, SERVE_WAIT);
        match with_waiting_line(&format!("opening '{}'", pool.name), false, importing).await {
            Ok(()) => {}
            Err(failure) if every => {
                log::error(&format!("{}: {}", pool.name, failure.line()));
                left_out.push(pool.clone());
            }
            Err(failure) => return Err(failure),
        }
    }
    // The known pools are looked for again; what was found in the places of -d is not.
    if options.known.is_none() && !chosen.is_empty() && set.pools().is_empty() {
        let message = "none of the pools in the places of -d can be served";
        return Err(Failure::new(ErrorCode::PoolUnavailable, message));
    }
    Ok(left_out)
}
