//! Completion: commands and options from the command table, and names of pools, volumes and devices
//! from the state folder and its servers. `crate::run` calls it when a shell asks.
//!
//! It opens no pool and creates no folder. A server that does not answer within a second is
//! skipped.

use std::ffi::OsStr;

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use forebay_rt::Runtime;
use forebay_units::Nanos;

use crate::control::{Action, Link, PROTOCOL_VERSION, Reply, Request};
use crate::failure::Failure;
use crate::state::{Environment, StateDir, locate};

/// The variable by which a shell's script asks for completions.
pub const VARIABLE: &str = "COMPLETE";
/// How long one server may take to name its volumes.
const SERVER_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The script that a shell loads.
pub fn script(shell: Shell) -> Result<String, Failure> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&name) else {
        return Err(Failure::usage(format!("there are no completions for {name}")));
    };
    let mut text = Vec::new();
    completer
        .write_registration(VARIABLE, "forebay", "forebay", "forebay", &mut text)
        .map_err(|e| Failure::io("the script cannot be made", &e))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `command` with completers of its arguments that name pools, volumes and devices.
#[must_use]
pub fn with_names(command: Command) -> Command {
    let is_create = command.get_name() == "create";
    let add = |arg: Arg| -> Arg {
        let completer = match arg.get_id().as_str() {
            "pool" | "pools" if !is_create => ArgValueCompleter::new(pools),
            "volume" | "volumes" if !is_create => ArgValueCompleter::new(volumes),
            "names" => ArgValueCompleter::new(pools_and_volumes),
            "device" | "devices" => ArgValueCompleter::new(devices),
            _ => return arg,
        };
        arg.add(completer)
    };
    command.mut_args(add).mut_subcommands(with_names)
}

fn pools(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, pool_names())
}

fn volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, volume_names())
}

fn pools_and_volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, pool_names().into_iter().chain(volume_names()).collect())
}

fn devices(current: &OsStr) -> Vec<CompletionCandidate> {
    let pools = state().and_then(|state| state.known_pools().ok()).unwrap_or_default();
    let names = pools.into_iter().flat_map(|pool| pool.devices);
    // Other shells quote what they insert.
    let is_bash = std::env::var_os(VARIABLE).is_some_and(|shell| shell == "bash");
    candidates(current, names.map(|name| if is_bash { quoted(&name) } else { name }).collect())
}

/// The name as one word of bash.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%".contains(c);
    let mut word = String::new();
    for c in name.chars() {
        if !is_plain(c) {
            word.push('\\');
        }
        word.push(c);
    }
    word
}

/// The names that begin with `current`.
fn candidates(current: &OsStr, names: Vec<String>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fits = names.into_iter().filter(|name| name.starts_with(&*current));
    fits.map(CompletionCandidate::new).collect()
}

/// The state folder, if it exists.
fn state() -> Option<StateDir> {
    let path = locate(&Environment::current()).ok()?;
    path.is_dir().then(|| StateDir::open_at(path).ok()).flatten()
}

fn pool_names() -> Vec<String> {
    let pools = state().and_then(|state| state.known_pools().ok()).unwrap_or_default();
    pools.into_iter().map(|pool| pool.name).collect()
}

/// The volumes of the pools that are being served. Those of other pools are not known without
/// opening the pool.
fn volume_names() -> Vec<String> {
    let sockets = state().and_then(|state| state.control_sockets().ok()).unwrap_or_default();
    let Some(runtime) = Runtime::real().ok().filter(|_| !sockets.is_empty()) else {
        return Vec::new();
    };
    runtime.block_on(async move {
        let mut names = Vec::new();
        for (_, path) in sockets {
            let asking = Box::pin(async move { volumes_of(&path).await });
            let named = forebay_rt::timeout(SERVER_TIMEOUT, asking).await;
            names.extend(named.ok().flatten().unwrap_or_default());
        }
        names
    })
}

async fn volumes_of(socket: &std::path::Path) -> Option<Vec<String>> {
    let link = Link::connect(socket).await.ok()??;
    let mut names = Vec::new();
    for pool in link.hello.pools.clone() {
        let (version, typed) = (PROTOCOL_VERSION, String::new());
        let request = Request { version, pool, typed, action: Action::Volumes };
        if let Ok(Reply::Volumes(volumes)) = link.ask(&request).await {
            names.extend(volumes.into_iter().map(|volume| volume.name));
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn device_names_are_one_word_of_bash() {
        assert_eq!(quoted("/dev/disk/by-id/wwn-0x5:1=a"), "/dev/disk/by-id/wwn-0x5:1=a");
        assert_eq!(quoted("/srv/my disk&(1)"), "/srv/my\\ disk\\&\\(1\\)");
        assert_eq!(quoted("s3://b/p?size=2T"), "s3://b/p\\?size=2T");
    }
}
