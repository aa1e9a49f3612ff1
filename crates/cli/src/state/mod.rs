//! State folder: the list of known pools, and the sockets of servers.
//!
//! What enters: the environment, and pools as they are created, imported, changed and exported.
//! What always holds: only its owner may enter the folder. A crash leaves the old list or the new
//! one: it is written aside, synced and renamed, under a lock.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_rt::sys::effective_uid;
use serde::{Deserialize, Serialize};

use crate::failure::{ErrorCode, Failure};
use crate::files;
use forebay_pool::spec::Told;

/// Version of `pools.json`.
const LIST_VERSION: u32 = 1;
/// The longest list that is read: a larger file is not a list of pools.
const LIST_MAX_BYTES: u64 = 16 << 20;

/// A pool in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// Its id.
    pub guid: u64,
    /// Absolute paths of its devices.
    pub devices: Vec<String>,
    /// The newest configuration that this machine has seen: it tells an old half of a mirror from
    /// the only half.
    #[serde(flatten)]
    pub told: Told,
}

#[derive(Serialize, Deserialize)]
struct List {
    version: u32,
    pools: Vec<KnownPool>,
}

/// The state folder.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// The parts of the environment that locate the folder.
pub struct Environment {
    /// `FOREBAY_STATE_DIR`.
    pub override_dir: Option<OsString>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// Effective user id.
    pub uid: u32,
}

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn current() -> Self {
        Self {
            override_dir: std::env::var_os("FOREBAY_STATE_DIR"),
            xdg_state_home: std::env::var_os("XDG_STATE_HOME"),
            home: std::env::var_os("HOME"),
            uid: effective_uid(),
        }
    }
}

/// Where the state folder is. An empty variable counts as unset, as the XDG rules say.
pub fn locate(environment: &Environment) -> Result<PathBuf, Failure> {
    let set = |value: &Option<OsString>| value.clone().filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(&environment.override_dir) {
        let failed = |e| state_failure(format!("FOREBAY_STATE_DIR={}: {e}", dir.display()));
        return std::path::absolute(&dir).map_err(failed);
    }
    if environment.uid == 0 {
        return Ok(PathBuf::from("/var/lib/forebay"));
    }
    // The XDG rules say that a relative path is to be ignored.
    if let Some(base) = set(&environment.xdg_state_home).filter(|p| p.is_absolute()) {
        return Ok(base.join("forebay"));
    }
    match set(&environment.home).filter(|p| p.is_absolute()) {
        Some(home) => Ok(home.join(".local/state/forebay")),
        None => Err(state_failure("no place for the state folder".to_owned())
            .with_hint("set FOREBAY_STATE_DIR, XDG_STATE_HOME or HOME")),
    }
}

impl StateDir {
    /// Opens the folder of this process's environment. Creates it when it is missing.
    pub fn open() -> Result<Self, Failure> {
        Self::open_at(locate(&Environment::current())?)
    }

    /// Opens the folder at `path`. Creates it (mode 0700) when it is missing. Fails when another
    /// user owns it or may enter it.
    pub fn open_at(path: PathBuf) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let fail = |e: std::io::Error| {
            state_failure(format!("state folder {shown}: {e}"))
                .with_hint("set FOREBAY_STATE_DIR to another")
        };
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).create(parent).map_err(fail)?;
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(fail(e)),
        }
        let meta = std::fs::metadata(&path).map_err(fail)?;
        if !meta.is_dir() {
            return Err(state_failure(format!("state folder {shown} is not a folder")));
        }
        if meta.uid() != effective_uid() {
            let message = format!("state folder {shown} belongs to user {}", meta.uid());
            return Err(state_failure(message).with_hint("set FOREBAY_STATE_DIR to one of yours"));
        }
        if meta.mode() & 0o077 != 0 {
            // An empty folder was created for this purpose; one with contents may be anything.
            let empty = std::fs::read_dir(&path).map_err(fail)?.next().is_none();
            if !empty {
                let mode = meta.mode() & 0o777;
                let message = format!("state folder {shown} is open to others (mode {mode:o})");
                return Err(state_failure(message)
                    .with_hint("run chmod 700 on it, or set FOREBAY_STATE_DIR to another"));
            }
            std::fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(fail)?;
        }
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control socket of the server with this process id.
    #[must_use]
    pub fn control_socket(&self, pid: u32) -> PathBuf {
        self.path.join(format!("control-{pid}.sock"))
    }

    /// The control sockets that exist, lowest process id first. Their servers may have ended.
    pub fn control_sockets(&self) -> Result<Vec<(u32, PathBuf)>, Failure> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|e| self.failed(&e))? {
            let entry = entry.map_err(|e| self.failed(&e))?;
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|n| n.strip_prefix("control-")?.strip_suffix(".sock")?.parse().ok());
            if let Some(pid) = pid {
                found.push((pid, entry.path()));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes the socket of a server that has ended.
    pub fn forget_socket(&self, path: &Path) {
        // Another command may have removed it.
        let _ = std::fs::remove_file(path);
    }

    /// The NBD socket of a server that is given no address.
    #[must_use]
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// The known pools, by name.
    pub fn known_pools(&self) -> Result<Vec<KnownPool>, Failure> {
        let path = self.list_path();
        let mut text = String::new();
        match files::open_to_read(&path) {
            Ok(file) => file.take(LIST_MAX_BYTES).read_to_string(&mut text),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.failed(&e)),
        }
        .map_err(|e| self.failed(&e))?;
        let broken = |what: String| {
            state_failure(format!("{}: {what}", path.display()))
                .with_hint("move it away and import the pools again")
        };
        let list: List = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
        if list.version != LIST_VERSION {
            return Err(broken(format!("version {} is not {LIST_VERSION}", list.version)));
        }
        Ok(list.pools)
    }

    /// Adds `pool`, or replaces the entry with its guid and keeps the newest generation. Fails when
    /// another pool has its name.
    pub fn remember(&self, pool: KnownPool) -> Result<(), Failure> {
        self.put(pool, false)
    }

    /// The same for a pool that went back to an older state: the generation in the list counts no
    /// more.
    pub fn remember_anew(&self, pool: KnownPool) -> Result<(), Failure> {
        self.put(pool, true)
    }

    fn put(&self, pool: KnownPool, anew: bool) -> Result<(), Failure> {
        self.change(|pools| {
            if let Some(other) = pools.iter().find(|p| p.name == pool.name && p.guid != pool.guid) {
                return Err(name_taken(&other.name, other.guid));
            }
            let mut pool = pool;
            let before = pools.iter().position(|p| p.guid == pool.guid).map(|at| pools.remove(at));
            if let Some(before) = before {
                if !anew {
                    pool.told = before.told.and_then(pool.told);
                }
                hand_over_paths(pools, &pool, &before.devices);
            }
            pools.push(pool);
            Ok(())
        })
    }

    /// Keeps a newer generation of a pool in the list, and where `devices` are that the list does
    /// not have. Those that have left stay until [`Self::remember`]: after a power cut an older
    /// configuration may count.
    pub fn witness(&self, guid: u64, told: Told, devices: &[String]) -> Result<(), Failure> {
        self.change(|pools| {
            for pool in pools.iter_mut().filter(|p| p.guid == guid) {
                pool.told = pool.told.and_then(told);
                let new = devices.iter().filter(|path| !pool.devices.contains(path));
                let new: Vec<String> = new.cloned().collect();
                pool.devices.extend(new);
            }
            Ok(())
        })
    }

    /// Fails when another pool than `guid` is known as `name`.
    pub fn check_name_free(&self, name: &str, guid: Option<u64>) -> Result<(), Failure> {
        match self.known_pools()?.iter().find(|p| p.name == name && Some(p.guid) != guid) {
            Some(other) => Err(name_taken(name, other.guid)),
            None => Ok(()),
        }
    }

    /// Removes the pool with `guid` from the list.
    pub fn forget(&self, guid: u64) -> Result<(), Failure> {
        self.change(|pools| {
            pools.retain(|p| p.guid != guid);
            Ok(())
        })
    }

    fn change(
        &self,
        edit: impl FnOnce(&mut Vec<KnownPool>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let io = |e: std::io::Error| self.failed(&e);
        let lock = files::open_lock(self.path.join("lock")).map_err(io)?;
        // Held until the file is closed at the end of this function.
        take_lock(&lock).map_err(io)?;
        let before = self.known_pools()?;
        let mut pools = before.clone();
        edit(&mut pools)?;
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        if pools == before {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(&List { version: LIST_VERSION, pools })
            .expect("plain data");
        let aside = self.path.join("pools.json.new");
        let mut file = files::create_private(&aside).map_err(io)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&aside, self.list_path()).map_err(io)?;
        files::sync_name(self.list_path()).map_err(io)
    }

    fn list_path(&self) -> PathBuf {
        self.path.join("pools.json")
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        state_failure(format!("state folder {}: {error}", self.path.display()))
    }
}

/// Takes the lock, or fails after two seconds: a stopped process may hold it for ever.
#[allow(clippy::disallowed_methods)] // A server calls this on another thread; a command may block.
fn take_lock(lock: &File) -> std::io::Result<()> {
    const TRIES_MAX: u32 = 200;
    const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);
    for _ in 0..TRIES_MAX {
        if forebay_rt::sys::try_lock(lock)? {
            return Ok(());
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    let said = "another forebay process holds its lock; see whether one is stopped";
    Err(std::io::Error::new(ErrorKind::WouldBlock, said))
}

/// Keeps the paths that `pool` has left (`before`) for the other `pools` whose paths it has taken:
/// when disks swap names, the device of another pool is at such a path.
fn hand_over_paths(pools: &mut [KnownPool], pool: &KnownPool, before: &[String]) {
    let left = || before.iter().filter(|path| !pool.devices.contains(path)).cloned();
    for other in pools {
        let all = other.devices.len();
        other.devices.retain(|path| !pool.devices.contains(path));
        if other.devices.len() < all {
            other.devices.extend(left());
        }
    }
}

fn state_failure(message: String) -> Failure {
    Failure::new(ErrorCode::StateFolder, message)
}

fn name_taken(name: &str, guid: u64) -> Failure {
    let message = format!("a pool named '{name}' (guid {guid}) is known already");
    Failure::new(ErrorCode::PoolExists, message).with_hint(format!(
        "export it first (forebay pool export {name}), or set FOREBAY_STATE_DIR to another folder"
    ))
}

#[cfg(test)]
mod tests;
