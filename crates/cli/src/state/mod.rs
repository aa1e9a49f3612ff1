//! The state folder: which pools are known, and where servers can be reached.
//!
//! What enters: the environment, and pools as they are created, imported, changed and exported.
//! What leaves: the list of known pools, and paths for sockets.
//! What always holds: the folder is for its owner alone; the list is replaced whole (written
//! aside, synced, renamed), under a lock, so that a crash leaves the old list or the new one.
//! Who calls me: every command but `completions` and `man`.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use forebay_pool::spec::Told;

/// Version of `pools.json`.
const LIST_VERSION: u32 = 1;
/// A list larger than this is not one that we wrote.
const LIST_MAX_BYTES: u64 = 16 << 20;

/// A pool that this state folder knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// Its id.
    pub guid: u64,
    /// Absolute paths of its devices.
    pub devices: Vec<String>,
    /// The newest configuration of it that this machine has seen: what tells an old half of a
    /// mirror from one that is all there is.
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

/// The parts of the environment that decide where the folder is.
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
    /// Of this process.
    #[must_use]
    pub fn current() -> Self {
        Self {
            override_dir: std::env::var_os("FOREBAY_STATE_DIR"),
            xdg_state_home: std::env::var_os("XDG_STATE_HOME"),
            home: std::env::var_os("HOME"),
            uid: own_uid(),
        }
    }
}

/// The effective user id of this process.
#[must_use]
pub fn own_uid() -> u32 {
    // Cannot fail.
    unsafe { libc::geteuid() }
}

/// Where the state folder is. An empty variable counts as unset, as the XDG rules say.
pub fn locate(environment: &Environment) -> Result<PathBuf, Failure> {
    let set = |value: &Option<OsString>| value.clone().filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(&environment.override_dir) {
        return std::path::absolute(&dir)
            .map_err(|e| Failure::new(format!("FOREBAY_STATE_DIR={}: {e}", dir.display())));
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
        None => Err(Failure::new(
            "no place for the state folder: set FOREBAY_STATE_DIR, XDG_STATE_HOME or HOME",
        )),
    }
}

impl StateDir {
    /// Opens the folder of this process's environment, and makes it when missing.
    pub fn open() -> Result<Self, Failure> {
        Self::open_at(locate(&Environment::current())?)
    }

    /// Opens the folder at `path`, and makes it (mode 0700) when missing. Fails when it belongs
    /// to somebody else, or when others may enter it.
    pub fn open_at(path: PathBuf) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let fail = |e: std::io::Error| {
            Failure::new(format!("state folder {shown}: {e}; set FOREBAY_STATE_DIR to another"))
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
            return Err(Failure::new(format!("state folder {shown} is not a folder")));
        }
        if meta.uid() != own_uid() {
            return Err(Failure::new(format!(
                "state folder {shown} belongs to user {}; set FOREBAY_STATE_DIR to one of yours",
                meta.uid()
            )));
        }
        if meta.mode() & 0o077 != 0 {
            // An empty folder was made for us a moment ago; one with contents may be anything.
            let empty = std::fs::read_dir(&path).map_err(fail)?.next().is_none();
            if !empty {
                return Err(Failure::new(format!(
                    "state folder {shown} is open to others (mode {:o}); run chmod 700 on it, or \
                     set FOREBAY_STATE_DIR to another",
                    meta.mode() & 0o777
                )));
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

    /// The control sockets that are there, live or not, lowest process id first.
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

    /// Removes the socket of a server that is gone.
    pub fn forget_socket(&self, path: &Path) {
        // Somebody else may have done it already.
        let _ = std::fs::remove_file(path);
    }

    /// The socket that servers offer volumes on when none is named.
    #[must_use]
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// The known pools, by name.
    pub fn known_pools(&self) -> Result<Vec<KnownPool>, Failure> {
        let path = self.list_path();
        let mut text = String::new();
        match File::options().read(true).open(&path) {
            Ok(file) => file.take(LIST_MAX_BYTES).read_to_string(&mut text),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.failed(&e)),
        }
        .map_err(|e| self.failed(&e))?;
        let broken = |what: String| {
            Failure::new(format!(
                "{}: {what}; move it away and import the pools again",
                path.display()
            ))
        };
        let list: List = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
        if list.version != LIST_VERSION {
            return Err(broken(format!("version {} is not {LIST_VERSION}", list.version)));
        }
        Ok(list.pools)
    }

    /// Adds `pool`, or replaces the entry with its guid; the newest generation that was told of it
    /// stays. Fails when another pool has its name.
    pub fn remember(&self, pool: KnownPool) -> Result<(), Failure> {
        self.put(pool, false)
    }

    /// The same for a pool that was taken back to an older state: what was told of it counts no
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
                give_names(pools, &pool, &before.devices);
            }
            pools.push(pool);
            Ok(())
        })
    }

    /// Keeps what is told of the newest configuration of a pool that is on the list.
    pub fn witness(&self, guid: u64, told: Told) -> Result<(), Failure> {
        self.change(|pools| {
            for pool in pools.iter_mut().filter(|p| p.guid == guid) {
                pool.told = pool.told.and_then(told);
            }
            Ok(())
        })
    }

    /// Fails when a pool named `name` is known, other than the one with `guid`.
    pub fn check_name_free(&self, name: &str, guid: Option<u64>) -> Result<(), Failure> {
        match self.known_pools()?.iter().find(|p| p.name == name && Some(p.guid) != guid) {
            Some(other) => Err(name_taken(name, other.guid)),
            None => Ok(()),
        }
    }

    /// Takes the pool with `guid` off the list.
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
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.path.join("lock"))
            .map_err(io)?;
        // Held for the few instructions below; it goes when the file is closed.
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
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)
            .map_err(io)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&aside, self.list_path()).map_err(io)?;
        let dir = File::options().read(true).open(&self.path).map_err(io)?;
        dir.sync_all().map_err(io)
    }

    fn list_path(&self) -> PathBuf {
        self.path.join("pools.json")
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::new(format!("state folder {}: {error}", self.path.display()))
    }
}

/// Takes the lock, or fails after a while: a process that was stopped in the middle may hold it for ever.
#[allow(clippy::disallowed_methods)] // A server calls this aside; elsewhere nobody else wants to run.
fn take_lock(lock: &File) -> std::io::Result<()> {
    const TRIES: u32 = 200;
    const EACH: std::time::Duration = std::time::Duration::from_millis(10);
    for _ in 0..TRIES {
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != ErrorKind::WouldBlock {
            return Err(error);
        }
        std::thread::sleep(EACH);
    }
    let said =
        "another forebay process holds its lock and does not let go; see whether one is stopped";
    Err(std::io::Error::new(ErrorKind::WouldBlock, said))
}

/// Disks change their names: when `pool` is found where one of the other `pools` was, that one may be where it was
/// (`before`). Nobody else would know of that place any more.
fn give_names(pools: &mut [KnownPool], pool: &KnownPool, before: &[String]) {
    let left = || before.iter().filter(|path| !pool.devices.contains(path)).cloned();
    for other in pools {
        let all = other.devices.len();
        other.devices.retain(|path| !pool.devices.contains(path));
        if other.devices.len() < all {
            other.devices.extend(left());
        }
    }
}

fn name_taken(name: &str, guid: u64) -> Failure {
    Failure::new(format!(
        "a pool named '{name}' (guid {guid}) is known already; export it first \
         (forebay pool export {name}), or set FOREBAY_STATE_DIR to another folder"
    ))
}

#[cfg(test)]
mod tests;
