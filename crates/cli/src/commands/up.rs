//! `forebay up`: from nothing to a served volume.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, Redundancy, Told, VolumeSpec};
use forebay_rt::Either;
use forebay_units::{BLOCK_BYTES, Nanos, format_bytes};

use super::outcome::Outcome;
use super::requests::reply_as;
use super::serve::ready;
use crate::args::UpArgs;
use crate::control::{Action, Reply};
use crate::devices::{FileOpener, wait_until_free};
use crate::failure::Failure;
use crate::pool_access::{KNOWN_POOL_OPTIONS, PoolAccess, import_known};
use crate::pools::PoolSet;
use crate::serving::{Serving, connect_hints};
use crate::state::{KnownPool, StateDir};
use crate::terminal::{Screen, with_waiting_line, written_bytes};

/// Name of the pool that it makes.
const POOL: &str = "forebay";
/// Name of the volume.
const VOLUME: &str = "vol0";
const DATA_FILES: usize = 4;
const LOG_FILES: usize = 2;
const MIB: u64 = 1 << 20;
/// Of the volume, when nobody says another size.
const VOLUME_BYTES: u64 = 8 << 30;
const VOLUME_MIN_BYTES: u64 = 64 * MIB;
const VOLUME_MAX_BYTES: u64 = 64 << 40;
/// Left over on the file system after the log files, for the first data.
const SPARE_BYTES: u64 = 256 * MIB;

/// The files under DIR, and how large they are.
struct Layout {
    dir: PathBuf,
    data_bytes: u64,
    log_bytes: u64,
    /// The marker, locked, while this process makes the files.
    making: RefCell<Option<File>>,
}

impl Layout {
    /// For a volume of `size_bytes`: with one parity column of four, the data files hold one and
    /// a half times that, so that the cleaner has room.
    fn new(dir: &Path, size_bytes: u64) -> Result<Self, Failure> {
        let dir = std::path::absolute(dir)
            .map_err(|e| Failure::new(format!("{}: {e}", dir.display())))?;
        if dir.to_str().is_none() {
            return Err(Failure::new(format!("{}: the path is not UTF-8", dir.display())));
        }
        let data_bytes = (size_bytes / 2).next_multiple_of(64 * MIB).max(1024 * MIB);
        let log_bytes = (size_bytes / 8).next_multiple_of(64 * MIB).clamp(256 * MIB, 1024 * MIB);
        Ok(Self { dir, data_bytes, log_bytes, making: RefCell::default() })
    }

    fn data(&self) -> Vec<String> {
        (0..DATA_FILES).map(|at| self.path(&format!("data{at}.img"))).collect()
    }

    fn logs(&self) -> Vec<String> {
        (0..LOG_FILES).map(|at| self.path(&format!("log{at}.img"))).collect()
    }

    fn all(&self) -> Vec<String> {
        self.data().into_iter().chain(self.logs()).collect()
    }

    /// Present from before the first file is made until the volume is there.
    fn marker(&self) -> String {
        self.path("unfinished")
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("the folder's path was checked").to_owned()
    }

    /// Puts the marker there, and takes it for this process alone: whoever has it may make and
    /// remove the files. Fails when another process has it.
    fn claim(&self) -> Result<(), Failure> {
        let path = self.marker();
        let failed = |e: std::io::Error| Failure::new(format!("{path}: {e}"));
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let marker = options.open(&path).map_err(failed)?;
        let taken = unsafe { libc::flock(marker.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        // Another one may have finished, and removed it, since we opened it.
        let id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let is_there = std::fs::metadata(&path).map(id).ok() == marker.metadata().map(id).ok();
        if !taken || !is_there {
            return Err(Failure::new(format!(
                "another process is making a pool in {}; wait until it serves, or use another --dir",
                self.dir.display()
            )));
        }
        *self.making.borrow_mut() = Some(marker);
        Ok(())
    }

    /// Takes the marker away: everything is made, or nothing is left.
    fn finish(&self) -> Result<(), Failure> {
        let path = self.marker();
        std::fs::remove_file(&path).map_err(|e| Failure::new(format!("{path}: {e}")))?;
        // Only now may others have it.
        self.making.borrow_mut().take();
        Ok(())
    }

    /// Removes what a start that did not finish has left, but for the marker.
    fn remove_files(&self) -> Result<(), Failure> {
        for path in self.all() {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(Failure::new(format!("{path}: {e}")));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes the pool when there is none, and serves it until a signal comes.
pub async fn up(args: UpArgs, access: PoolAccess) -> Result<Outcome, Failure> {
    let size_bytes = args.size_bytes.unwrap_or(VOLUME_BYTES);
    let in_range = (VOLUME_MIN_BYTES..=VOLUME_MAX_BYTES).contains(&size_bytes);
    if !in_range || !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(Failure::new(format!(
            "a volume of {size_bytes} bytes cannot be made; choose a --size between 64M and 64T, \
             a multiple of {BLOCK_BYTES}"
        )));
    }
    let layout = Layout::new(&args.dir, size_bytes)?;
    if layout.dir.exists() && !layout.dir.is_dir() {
        return Err(Failure::new(format!(
            "{} is no folder; name one with --dir, or one that is to be made",
            layout.dir.display()
        )));
    }
    let state = access.state().clone();
    check_not_served(&access, &layout)?;
    let stop = access.stop();
    let set = PoolSet::new(Rc::new(FileOpener), state.clone(), Some(stop.clone()));
    let serving = Serving::new(set.clone(), &state, stop.clone())?.secured(&args.security)?;
    serving.check_free(&args.listen).await?;
    let begun =
        stop.unless_asked(open_or_make(&access, &set, &layout, size_bytes, &serving.screen));
    match begun.await {
        Some(Ok(())) => {}
        Some(Err(failure)) => {
            give_up(&set, &state, &layout).await?;
            return Err(failure);
        }
        None => {
            serving.screen.clear();
            give_up(&set, &state, &layout).await?;
            return Err(Failure::new("stopped before the pool was ready; run it again"));
        }
    }
    let listeners = match serving.listen(&args.listen, &state) {
        Ok(listeners) => listeners,
        Err(failure) => {
            let _ = set.close().await;
            return Err(failure);
        }
    };
    for pool in set.pools() {
        let made = pool.get_volume(VOLUME);
        if let Some((asked, volume)) = args.size_bytes.zip(made)
            && asked != volume.size_bytes
        {
            serving.screen.say(&format!(
                "{} has {} and keeps it, whatever --size says; 'forebay volume resize -V {} {0}' \
                 changes it",
                volume.name,
                format_bytes(volume.size_bytes),
                format_bytes(asked)
            ));
        }
        if let Some(volume) = pool.volumes().first() {
            serving.screen.say("");
            for line in connect_hints(&listeners, &volume.name, serving.demands_tls()) {
                serving.screen.say(&line);
            }
            serving.screen.say("");
        }
    }
    ready(&serving, &state, listeners.len());
    serving.run().await.map(|()| Outcome::done())
}

/// After a failure or Ctrl-C: closes what is open, and removes files only when they were being
/// made.
async fn give_up(set: &PoolSet, state: &StateDir, layout: &Layout) -> Result<(), Failure> {
    let guids: Vec<u64> = set.pools().iter().map(|pool| pool.status().guid).collect();
    let closed = set.close().await;
    if layout.making.borrow().is_some() {
        for guid in guids {
            state.forget(guid)?;
        }
        layout.remove_files()?;
        return layout.finish();
    }
    closed
}

fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

fn known_here(state: &StateDir, layout: &Layout) -> Result<Vec<KnownPool>, Failure> {
    let files = layout.all();
    let mut known = state.known_pools()?;
    known.retain(|pool| pool.devices.iter().any(|device| files.contains(device)));
    Ok(known)
}

fn check_not_served(access: &PoolAccess, layout: &Layout) -> Result<(), Failure> {
    for pool in known_here(access.state(), layout)? {
        if let Some(pid) = access.server_of(&pool.name) {
            return Err(Failure::new(format!(
                "the pool '{}' in {} is being served already, by process {pid}; 'forebay pool \
                 status {}' shows it",
                pool.name,
                layout.dir.display(),
                pool.name
            )));
        }
    }
    Ok(())
}

async fn open_or_make(
    access: &PoolAccess,
    set: &Rc<PoolSet>,
    layout: &Layout,
    size_bytes: u64,
    screen: &Screen,
) -> Result<(), Failure> {
    let shown = layout.dir.display();
    if exists(&layout.marker()) {
        layout.claim()?;
        screen.say(&format!("{shown}: an earlier start did not finish; starting over"));
        for pool in known_here(access.state(), layout)? {
            access.state().forget(pool.guid)?;
        }
        layout.remove_files()?;
    }
    for pool in known_here(access.state(), layout)? {
        if !pool.devices.iter().any(|path| exists(path)) {
            screen.say(&format!("the files of the pool '{}' in {shown} are gone", pool.name));
            access.state().forget(pool.guid)?;
        }
    }
    if layout.all().iter().any(|path| exists(path)) {
        return open(set, layout, screen).await;
    }
    access.state().check_name_free(POOL, None)?;
    make(access, set, layout, size_bytes, screen).await
}

async fn open(set: &Rc<PoolSet>, layout: &Layout, screen: &Screen) -> Result<(), Failure> {
    let shown = layout.dir.display();
    let present: Vec<String> = layout.all().into_iter().filter(|path| exists(path)).collect();
    wait_until_free(&present).await;
    let found = Pool::discover(Rc::new(FileOpener), &present).await;
    let [pool] = &found[..] else {
        return Err(Failure::new(match found.len() {
            0 => format!(
                "{shown} has device files, but no pool was found on them: end the process that has \
                 them open, remove them when their pool was destroyed, or use another --dir"
            ),
            several => format!("{shown} has devices of {several} pools; use another --dir"),
        }));
    };
    screen.say(&format!("importing the pool '{}' from {shown}", pool.name));
    let known = KnownPool {
        name: pool.name.clone(),
        guid: pool.guid,
        devices: pool.paths.clone(),
        told: Told::default(),
    };
    with_waiting_line("opening it", false, import_known(set, &known, &KNOWN_POOL_OPTIONS)).await
}

async fn make(
    access: &PoolAccess,
    set: &Rc<PoolSet>,
    layout: &Layout,
    size_bytes: u64,
    screen: &Screen,
) -> Result<(), Failure> {
    let shown = layout.dir.display();
    let need_bytes = layout.log_bytes * LOG_FILES as u64 + SPARE_BYTES;
    // The folder is made when nothing is in the way: its free space is that of what is above it.
    let above = layout.dir.ancestors().find(|dir| dir.exists()).unwrap_or(&layout.dir);
    let free_bytes = free_space(above)?;
    if free_bytes < need_bytes {
        return Err(Failure::new(format!(
            "{shown} has {} free, and {} are needed to begin with; use a smaller --size or \
             another --dir",
            format_bytes(free_bytes),
            format_bytes(need_bytes)
        )));
    }
    std::fs::create_dir_all(&layout.dir)
        .map_err(|e| Failure::new(format!("{shown}: {e}; use another --dir")))?;
    if layout.making.borrow().is_none() {
        layout.claim()?;
    }
    screen.say(&format!(
        "making the pool '{POOL}' in {shown}: {DATA_FILES} data files of {} (raidz1, sparse), \
         {LOG_FILES} log files of {} (mirrored)",
        format_bytes(layout.data_bytes),
        format_bytes(layout.log_bytes)
    ));
    for path in layout.data() {
        new_file(&path, layout.data_bytes)?;
    }
    for path in layout.logs() {
        new_file(&path, layout.log_bytes)?;
    }
    for path in layout.logs() {
        preallocate(&path)?;
    }
    let log_bytes = layout.log_bytes * LOG_FILES as u64;
    screen.say(&format!("writing {} of log files through once", format_bytes(log_bytes)));
    let spec = PoolSpec {
        groups: vec![GroupSpec { redundancy: Redundancy::Raidz1, devices: layout.data() }],
        logs: vec![LogSpec { devices: layout.logs() }],
        ..PoolSpec::default()
    };
    let create = access.request(POOL, Action::Create { spec });
    with_progress(set.perform(&create), log_bytes, screen).await?;
    let spec = VolumeSpec {
        name: VOLUME.to_owned(),
        size_bytes,
        sparse: false,
        properties: std::collections::BTreeMap::new(),
    };
    let mut volume = access.request(POOL, Action::VolumeCreate { spec });
    // One command was typed, and is in the history already.
    volume.typed.clear();
    set.perform(&volume).await?;
    let volumes =
        reply_as!(set.perform(&access.request(POOL, Action::Volumes)).await, Reply::Volumes)?;
    layout.finish()?;
    for volume in volumes {
        screen.say(&format!("made the volume {} of {}", volume.name, format_bytes(size_bytes)));
    }
    Ok(())
}

fn new_file(path: &str, len_bytes: u64) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{path}: {e}"));
    let file =
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(path).map_err(failed)?;
    file.set_len(len_bytes).map_err(failed)
}

/// Shows how far the writing through of the log files is, while `work` does it.
async fn with_progress<T>(work: impl Future<Output = T>, total_bytes: u64, screen: &Screen) -> T {
    const LOOK_EVERY: Nanos = Nanos::from_millis(200);
    let mut work = std::pin::pin!(work);
    let begun_bytes = written_bytes();
    loop {
        let tick = std::pin::pin!(forebay_rt::sleep(LOOK_EVERY));
        if let Either::Left((out, _)) = forebay_rt::select(work.as_mut(), tick).await {
            screen.clear();
            return out;
        }
        if let (Some(begun), Some(now)) = (begun_bytes, written_bytes()) {
            let done_bytes = now.saturating_sub(begun).min(total_bytes);
            let share = done_bytes * 100 / total_bytes;
            let (done, total) = (format_bytes(done_bytes), format_bytes(total_bytes));
            screen.show(&format!("  {share}% | {done} of {total}"));
        }
    }
}

/// Asks the file system for all blocks at once: they lie together then. (The pool writes them
/// through when it is created, so that no commit to the log waits for the file system later.)
fn preallocate(path: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{path}: {e}"));
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let outcome = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
    if outcome == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        // It is an improvement only.
        Some(libc::EOPNOTSUPP) => Ok(()),
        _ => Err(failed(error)),
    }
}

fn free_space(dir: &Path) -> Result<u64, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", dir.display()));
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())
        .map_err(|e| failed(std::io::Error::other(e)))?;
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } != 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    Ok(stat.f_bavail * stat.f_frsize)
}
