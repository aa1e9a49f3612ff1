//! `forebay up`: creates a pool of files when there is none, and serves it.

use std::cell::RefCell;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_nbd::Limits;
use forebay_pool::Pool;
use forebay_pool::spec::{GroupSpec, LogSpec, PoolSpec, Told, VolumeSpec};
use forebay_rt::{Either, sys};
use forebay_units::{BLOCK_BYTES, Layout, Nanos, format_bytes};

use super::outcome::Outcome;
use super::requests::reply_as;
use super::serve::ready;
use crate::args::UpArgs;
use crate::control::{Action, Reply};
use crate::devices::{FileOpener, wait_until_free};
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::pool_access::{KNOWN_POOL_OPTIONS, PoolAccess, SERVE_WAIT, import_known};
use crate::pools::PoolSet;
use crate::serving::{Serving, connect_hints};
use crate::state::{KnownPool, StateDir};
use crate::terminal::{Screen, with_waiting_line, written_bytes};

/// Name of the pool that it creates.
const POOL: &str = "forebay";
/// Name of the volume.
const VOLUME: &str = "vol0";
const DATA_FILES: usize = 4;
const LOG_FILES: usize = 2;
const MIB: u64 = 1 << 20;
/// Size of the volume without --size.
const VOLUME_BYTES: u64 = 8 << 30;
const VOLUME_MIN_BYTES: u64 = 64 * MIB;
const VOLUME_MAX_BYTES: u64 = 64 << 40;
/// Free space that must remain on the file system beside the log files, for the first data.
const SPARE_BYTES: u64 = 256 * MIB;

/// The files under DIR and their sizes.
struct Folder {
    dir: PathBuf,
    data_bytes: u64,
    log_bytes: u64,
    /// The locked marker, while this process creates the files.
    making: RefCell<Option<File>>,
}

impl Folder {
    /// For a volume of `size_bytes`. With one parity column of four, the data files hold one and a
    /// half times that: the cleaner needs the room.
    fn new(dir: &Path, size_bytes: u64) -> Result<Self, Failure> {
        let dir = std::path::absolute(dir).map_err(|e| Failure::io(dir.display(), &e))?;
        if dir.to_str().is_none() {
            let message = format!("{}: the path is not UTF-8", dir.display());
            return Err(Failure::new(ErrorCode::DeviceUnusable, message));
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

    /// Creates the marker and locks it: the process with the lock may create and remove the files.
    /// Fails when another process has the lock.
    fn claim(&self) -> Result<(), Failure> {
        let path = self.marker();
        let failed = |e: std::io::Error| Failure::io(&path, &e);
        let marker = files::open_lock(&path).map_err(failed)?;
        let taken = forebay_rt::sys::try_lock(&marker).is_ok_and(|taken| taken);
        // Another process may have removed it since this one opened it.
        let id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let is_there = std::fs::metadata(&path).map(id).ok() == marker.metadata().map(id).ok();
        if !taken || !is_there {
            let message = format!("another process is making a pool in {}", self.dir.display());
            return Err(Failure::new(ErrorCode::DeviceInUse, message)
                .with_hint("wait until it serves, or use another --dir"));
        }
        *self.making.borrow_mut() = Some(marker);
        Ok(())
    }

    /// Removes the marker: everything is created, or nothing is left.
    fn finish(&self) -> Result<(), Failure> {
        let path = self.marker();
        std::fs::remove_file(&path).map_err(|e| Failure::io(&path, &e))?;
        // The lock goes last: until now no other process may create files.
        self.making.borrow_mut().take();
        Ok(())
    }

    /// Removes the files of an unfinished start. The marker stays.
    fn remove_files(&self) -> Result<(), Failure> {
        for path in self.all() {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(Failure::io(&path, &e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Creates the pool when there is none, and serves it until a signal comes.
pub async fn up(args: UpArgs, access: PoolAccess) -> Result<Outcome, Failure> {
    let size_bytes = args.size_bytes.unwrap_or(VOLUME_BYTES);
    let layout = checked_layout(&args, size_bytes)?;
    let state = access.state().clone();
    check_not_served(&access, &layout)?;
    let stop = access.stop();
    stop.ignore_hangup_without_terminal();
    let set = PoolSet::new(Rc::new(FileOpener), state.clone(), Some(stop.clone()));
    let mut serving = Serving::new(set.clone(), &state, stop.clone())?.secured(
        &args.security,
        None,
        Limits::default(),
    )?;
    serving.check_free(&args.listen, &state).await?;
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
            let message = "stopped before the pool was ready";
            return Err(Failure::new(ErrorCode::Interrupted, message).with_hint("run it again"));
        }
    }
    serving.show_page(&args.web)?;
    let listeners = match serving.listen(&args.listen, &state) {
        Ok(listeners) => listeners,
        Err(failure) => {
            let _ = set.close().await;
            return Err(failure);
        }
    };
    announce_volumes(&serving, &args, &listeners);
    ready(&serving, &state, listeners.len());
    if serving.screen.is_terminal() && !args.view {
        serving.screen.say("'forebay top' in another terminal shows what the pool does");
    }
    serving.viewed(args.view).run().await.map(|()| Outcome::done())
}

/// The files of a pool for a volume of `size_bytes`. Fails when they cannot be created.
fn checked_layout(args: &UpArgs, size_bytes: u64) -> Result<Folder, Failure> {
    let in_range = (VOLUME_MIN_BYTES..=VOLUME_MAX_BYTES).contains(&size_bytes);
    if !in_range || size_bytes % BLOCK_BYTES != 0 {
        let message = format!("a volume of {size_bytes} bytes cannot be made");
        return Err(Failure::new(ErrorCode::VolumeSize, message).with_hint(format!(
            "choose a --size between 64M and 64T, a multiple of {BLOCK_BYTES}"
        )));
    }
    let layout = Folder::new(&args.dir, size_bytes)?;
    if layout.dir.exists() && !layout.dir.is_dir() {
        let message = format!("{} is not a folder", layout.dir.display());
        return Err(Failure::new(ErrorCode::Io, message)
            .with_hint("name a folder with --dir, or one that is to be made"));
    }
    Ok(layout)
}

/// Reports the commands that connect a client to each pool's first volume.
fn announce_volumes(serving: &Serving, args: &UpArgs, listeners: &[String]) {
    for pool in serving.set.pools() {
        let made = pool.get_volume(VOLUME);
        if let Some((asked, volume)) = args.size_bytes.zip(made) {
            if asked != volume.size_bytes {
                serving.screen.say(&format!(
                "{} has {} and keeps it, whatever --size says; 'forebay volume resize -V {} {0}' \
                 changes it",
                volume.name,
                format_bytes(volume.size_bytes),
                format_bytes(asked)
            ));
            }
        }
        if let Some(volume) = pool.volumes().first() {
            serving.screen.say("");
            for line in connect_hints(listeners, &volume.name, serving.demands_tls()) {
                serving.screen.say(&line);
            }
            serving.screen.say("");
        }
    }
}

/// After a failure or Ctrl-C: closes what is open, and removes the files if this process was
/// creating them.
async fn give_up(set: &PoolSet, state: &StateDir, layout: &Folder) -> Result<(), Failure> {
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

fn known_here(state: &StateDir, layout: &Folder) -> Result<Vec<KnownPool>, Failure> {
    let files = layout.all();
    let mut known = state.known_pools()?;
    known.retain(|pool| pool.devices.iter().any(|device| files.contains(device)));
    Ok(known)
}

fn check_not_served(access: &PoolAccess, layout: &Folder) -> Result<(), Failure> {
    for pool in known_here(access.state(), layout)? {
        if let Some(pid) = access.server_of(&pool.name) {
            let (name, dir) = (&pool.name, layout.dir.display());
            let message =
                format!("the pool '{name}' in {dir} is being served already, by process {pid}");
            return Err(Failure::new(ErrorCode::PoolServed, message)
                .with_hint(format!("'forebay pool status {name}' shows it")));
        }
    }
    Ok(())
}

async fn open_or_make(
    access: &PoolAccess,
    set: &Rc<PoolSet>,
    layout: &Folder,
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

async fn open(set: &Rc<PoolSet>, layout: &Folder, screen: &Screen) -> Result<(), Failure> {
    let shown = layout.dir.display();
    let present: Vec<String> = layout.all().into_iter().filter(|path| exists(path)).collect();
    wait_until_free(&present).await;
    let found = Pool::discover(Rc::new(FileOpener), &present).await;
    let [pool] = &found[..] else {
        return Err(match found.len() {
            0 => Failure::new(
                ErrorCode::PoolNotFound,
                format!("{shown} has device files, but no pool was found on them"),
            )
            .with_hint(
                "end the process that has them open, remove them when their pool was destroyed, \
                 or use another --dir",
            ),
            several => Failure::new(
                ErrorCode::PoolAmbiguous,
                format!("{shown} has devices of {several} pools"),
            )
            .with_hint("use another --dir"),
        });
    };
    screen.say(&format!("importing the pool '{}' from {shown}", pool.name));
    let known = KnownPool {
        name: pool.name.clone(),
        guid: pool.guid,
        devices: pool.paths.clone(),
        told: Told::default(),
    };
    let importing = import_known(set, &known, &KNOWN_POOL_OPTIONS, SERVE_WAIT);
    with_waiting_line("opening it", false, importing).await
}

async fn make(
    access: &PoolAccess,
    set: &Rc<PoolSet>,
    layout: &Folder,
    size_bytes: u64,
    screen: &Screen,
) -> Result<(), Failure> {
    let shown = layout.dir.display();
    let need_bytes = layout.log_bytes * LOG_FILES as u64 + SPARE_BYTES;
    // A folder that is yet to be made has the free space of the folder above it.
    let above = layout.dir.ancestors().find(|dir| dir.exists()).unwrap_or(&layout.dir);
    let free_bytes = free_space(above)?;
    if free_bytes < need_bytes {
        let (free, need) = (format_bytes(free_bytes), format_bytes(need_bytes));
        let message = format!("{shown} has {free} free, and {need} are needed to begin with");
        return Err(Failure::new(ErrorCode::NoSpace, message)
            .with_hint("use a smaller --size or another --dir"));
    }
    std::fs::create_dir_all(&layout.dir)
        .map_err(|e| Failure::io(&shown, &e).with_hint("use another --dir"))?;
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
        groups: vec![GroupSpec { layout: Layout::Raidz1, devices: layout.data() }],
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
    // The command is in the history already.
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
    let failed = |e: std::io::Error| Failure::io(path, &e);
    let file = files::create_new_private(path).map_err(failed)?;
    file.set_len(len_bytes).map_err(failed)
}

/// Shows how many bytes of the log files are written, while `work` creates the pool.
async fn with_progress<T>(work: impl Future<Output = T>, total_bytes: u64, screen: &Screen) -> T {
    const REDRAW_INTERVAL: Nanos = Nanos::from_millis(200);
    let mut work = std::pin::pin!(work);
    let begun_bytes = written_bytes();
    loop {
        let tick = std::pin::pin!(forebay_rt::sleep(REDRAW_INTERVAL));
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

/// Allocates all blocks of the file at once, so that they lie together. The pool writes them when
/// it is created: no commit to the log waits for the file system later.
fn preallocate(path: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io(path, &e);
    let file = files::open_to_write(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    match sys::preallocate(&file, len) {
        // An optimization only.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        outcome => outcome.map_err(failed),
    }
}

fn free_space(dir: &Path) -> Result<u64, Failure> {
    sys::free_bytes(dir).map_err(|e| Failure::io(dir.display(), &e))
}
