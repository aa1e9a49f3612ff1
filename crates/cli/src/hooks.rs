//! Hooks: programs of the operator that are run for each event of a served pool, one at a time.
//!
//! Neither a hook nor the file system of its folder delays the server: a hook that does not end
//! within [`HOOK_TIMEOUT`] is killed. At most [`MAX_WAITING`] events wait; later ones are counted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::status::EventRecord;
use forebay_rt as rt;
use forebay_rt::sys::effective_uid;
use forebay_units::Nanos;

use crate::log;
use crate::programs;
use crate::render::event_json;

/// How long a hook may run, and its file system may take to start it.
const HOOK_TIMEOUT: Nanos = Nanos::from_secs(30);
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
    /// Lists a folder.
    find: fn(&Path) -> Found,
    /// What the operator was warned of: it is passed over.
    warned: RefCell<BTreeSet<PathBuf>>,
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
            find,
            warned: RefCell::default(),
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
            let find = self.find;
            let listing = Box::pin(rt::aside(move || find(&folder)));
            let Ok(found) = rt::timeout(self.timeout, listing).await else {
                log::warning(&format!("hooks: {} does not answer", self.folder.display()));
                self.missed.set(self.missed.get() + 1);
                continue;
            };
            self.warn(found.refused);
            let missed = self.missed.replace(0);
            for program in found.programs {
                let input = event_json(&event).into_bytes();
                let running = programs::run(command(&program, &event, missed), input, self.timeout);
                if let Err(why) = Box::pin(running).await {
                    log::warning(&format!("hook {}: {why}", program.display()));
                }
            }
        }
        self.is_running.set(false);
    }

    /// Warns of what is passed over, once.
    fn warn(&self, refused: Vec<(PathBuf, &'static str)>) {
        let mut warned = self.warned.borrow_mut();
        for (path, why) in &refused {
            if !warned.contains(path) {
                log::warning(&format!("hook {} is not run: {why}", path.display()));
            }
        }
        *warned = refused.into_iter().map(|(path, _)| path).collect();
    }
}

/// What a folder has: programs in order of their names, which are run, and what is passed over
/// because of who may write it, with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    programs: Vec<PathBuf>,
    refused: Vec<(PathBuf, &'static str)>,
}

/// The executable files of this user or root in a folder, which other users may not write. A folder
/// that others may write has none.
fn find(folder: &Path) -> Found {
    let mut found = Found::default();
    let Ok(meta) = folder.metadata() else { return found };
    if let Some(why) = distrust(&meta) {
        found.refused.push((folder.to_owned(), why));
        return found;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    let mut paths: Vec<PathBuf> =
        entries.filter(|entry| !is_hidden(&entry.file_name())).map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(meta) = path.metadata() else { continue };
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            continue;
        }
        match distrust(&meta) {
            Some(why) => found.refused.push((path, why)),
            None => found.programs.push(path),
        }
    }
    found
}

/// Why what a file or folder holds is not run.
fn distrust(meta: &Metadata) -> Option<&'static str> {
    if meta.uid() != 0 && meta.uid() != effective_uid() {
        return Some("it belongs to another user");
    }
    (meta.permissions().mode() & 0o022 != 0).then_some("other users may write it")
}

fn command(program: &Path, event: &EventRecord, missed: u64) -> Command {
    let mut command = Command::new(program);
    command
        .env("FOREBAY_POOL", &event.pool)
        .env("FOREBAY_POOL_GUID", event.guid.to_string())
        .env("FOREBAY_EVENT", event.event.as_str())
        .env("FOREBAY_DEVICE", event.device.as_deref().unwrap_or(""))
        .env("FOREBAY_TEXT", event.text.replace('\0', ""))
        .env("FOREBAY_TIME", event.time_secs.to_string())
        .env("FOREBAY_SEQUENCE", event.sequence.to_string())
        .env("FOREBAY_MISSED", missed.to_string());
    command
}

#[cfg(test)]
mod tests;
