//! Hooks: programs of the operator that are run for each event of a served pool, one at a time.
//!
//! Neither a hook nor the file system of its folder delays the server: a hook that does not end
//! within [`HOOK_TIMEOUT`] is killed. At most [`MAX_WAITING`] events wait; later ones are counted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::EventRecord;
use forebay_rt as rt;
use forebay_rt::sys::effective_uid;
use forebay_units::Nanos;

use crate::log;
use crate::render::event_json;

/// How long a hook may run, and its file system may take to start it.
const HOOK_TIMEOUT: Nanos = Nanos::from_secs(30);
/// Between two looks at whether a hook has ended.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);
/// Events that wait for hooks.
const MAX_WAITING: usize = 256;

/// What is new in pools.
#[derive(Default)]
pub struct EventFeed {
    /// The last event of each pool that was taken, by the pool's id.
    seen: BTreeMap<u64, u64>,
}

impl EventFeed {
    /// The events since the last call.
    pub fn new_events(&mut self, pools: &[Rc<Pool>]) -> Vec<EventRecord> {
        self.seen.retain(|guid, _| pools.iter().any(|pool| pool.guid() == *guid));
        let mut all = Vec::new();
        for pool in pools {
            let seen = self.seen.entry(pool.guid()).or_default();
            let new = pool.events_after(*seen);
            *seen = new.last().map_or(*seen, |last| last.sequence);
            all.extend(new);
        }
        all
    }
}

/// Runs the hooks of a server.
pub struct Hooks {
    folder: PathBuf,
    waiting: RefCell<VecDeque<EventRecord>>,
    /// Events that were left out since the last one that hooks were run for.
    missed: Cell<u64>,
    is_running: Cell<bool>,
    timeout: Nanos,
}

impl Hooks {
    /// The programs in `folder`, which need not exist.
    #[must_use]
    pub fn new(folder: PathBuf) -> Rc<Self> {
        Self::with_timeout(folder, HOOK_TIMEOUT)
    }

    fn with_timeout(folder: PathBuf, timeout: Nanos) -> Rc<Self> {
        Rc::new(Self {
            folder,
            waiting: RefCell::default(),
            missed: Cell::new(0),
            is_running: Cell::new(false),
            timeout,
        })
    }

    /// Runs the hooks for these events, after those that wait.
    pub fn offer(self: &Rc<Self>, events: Vec<EventRecord>) {
        for event in events {
            if self.waiting.borrow().len() < MAX_WAITING {
                self.waiting.borrow_mut().push_back(event);
            } else {
                self.missed.set(self.missed.get() + 1);
            }
        }
        if !self.waiting.borrow().is_empty() && !self.is_running.replace(true) {
            rt::spawn_detached(Box::pin(self.clone().run_waiting()));
        }
    }

    async fn run_waiting(self: Rc<Self>) {
        loop {
            let Some(event) = self.waiting.borrow_mut().pop_front() else { break };
            let folder = self.folder.clone();
            let listing = Box::pin(rt::aside(move || programs(&folder)));
            let Ok(programs) = rt::timeout(self.timeout, listing).await else {
                log::warning(&format!("hooks: {} does not answer", self.folder.display()));
                continue;
            };
            let missed = self.missed.replace(0);
            for program in programs {
                if let Err(why) = self.run(&program, &event, missed).await {
                    log::warning(&format!("hook {}: {why}", program.display()));
                }
            }
        }
        self.is_running.set(false);
    }

    /// Runs one program to its end, or to the end of its time.
    async fn run(&self, program: &Path, event: &EventRecord, missed: u64) -> Result<(), String> {
        let (path, given) = (program.to_owned(), event.clone());
        let starting = Box::pin(rt::aside(move || start(&path, &given, missed)));
        let late = |_| format!("did not start within {} s", self.timeout.0 / 1_000_000_000);
        let started = rt::timeout(self.timeout, starting).await.map_err(late)?;
        let mut child = started.map_err(|e| format!("cannot be started: {e}"))?;
        let end = rt::now() + self.timeout;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("ended with {status}")),
                Ok(None) if rt::now() < end => rt::sleep(POLL_INTERVAL).await,
                Ok(None) => break,
                Err(e) => return Err(format!("cannot be waited for: {e}")),
            }
        }
        let _ = child.kill();
        // The kernel may keep a process that it cannot kill yet; nothing waits for that here.
        rt::spawn_detached(Box::pin(async move {
            let _ = rt::aside(move || child.wait()).await;
        }));
        let secs = self.timeout.0 / 1_000_000_000;
        Err(format!("was killed, because it did not end within {secs} s"))
    }
}

/// The programs of a folder in order of their names: executable files of this user or root, which
/// other users may not write. A folder that others may write has none.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let is_own = |path: &Path| {
        let trusted = |meta: &std::fs::Metadata| {
            let owner = meta.uid();
            (owner == 0 || owner == effective_uid()) && meta.permissions().mode() & 0o022 == 0
        };
        path.metadata().ok().filter(trusted)
    };
    if is_own(folder).is_none() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    let mut paths: Vec<PathBuf> =
        entries.filter(|entry| !is_hidden(&entry.file_name())).map(|entry| entry.path()).collect();
    let may_run = |path: &PathBuf| {
        is_own(path).is_some_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    paths.retain(may_run);
    paths.sort();
    paths
}

fn start(program: &Path, event: &EventRecord, missed: u64) -> std::io::Result<Child> {
    let mut child = Command::new(program)
        .env("FOREBAY_POOL", &event.pool)
        .env("FOREBAY_POOL_GUID", event.guid.to_string())
        .env("FOREBAY_EVENT", event.event.as_str())
        .env("FOREBAY_DEVICE", event.device.as_deref().unwrap_or(""))
        .env("FOREBAY_TEXT", event.text.replace('\0', ""))
        .env("FOREBAY_TIME", event.time_secs.to_string())
        .env("FOREBAY_SEQUENCE", event.sequence.to_string())
        .env("FOREBAY_MISSED", missed.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // A hook need not read it. A line is shorter than a pipe is long, so this does not block.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(event_json(event).as_bytes());
    }
    Ok(child)
}

#[cfg(test)]
mod tests;
