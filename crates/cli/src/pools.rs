//! The pools that this process has open, and what may be asked of them.
//!
//! One set does the work in both cases: in a serving process (asked over the control socket) and
//! in a command of its own (when nobody serves the pool).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use forebay_nbd::{ExportEntry, ExportHandle, Exports, Peer, Refusal};
use forebay_pool::spec::Told;
use forebay_pool::status::{PoolStatus, VdevStatus};
use forebay_pool::{Opener, Pool};
use forebay_rt::sync::Mutex;

use crate::args::ScanVerb;
use crate::control::{Action, Handler, Hello, PROTOCOL_VERSION, Reply, Request, Response, Sample};
use crate::failure::Failure;
use crate::leases::Leases;
use crate::members::by_known_names;
use crate::signals::Stop;
use crate::state::{KnownPool, StateDir};
use crate::state_writer::StateWriter;

/// Open pools by name.
pub struct PoolSet {
    opener: Rc<dyn Opener>,
    writer: Rc<StateWriter>,
    pools: RefCell<BTreeMap<String, Rc<Pool>>>,
    leases: Leases,
    /// Held by whoever changes something, so that two commands never interleave.
    changing: Mutex<()>,
    /// Set when the process is about to end: nothing more is begun.
    leaving: Cell<bool>,
    takes_more: Cell<bool>,
    listeners: RefCell<Vec<String>>,
}

impl PoolSet {
    /// A set without pools. `stop` is how the user ends this process, when it is watched for.
    #[must_use]
    pub fn new(opener: Rc<dyn Opener>, state: StateDir, stop: Option<Rc<Stop>>) -> Rc<Self> {
        let writer = StateWriter::new(state);
        Rc::new(Self {
            opener: Rc::new(Witness { opener, writer: writer.clone(), stop }),
            writer,
            pools: RefCell::default(),
            leases: Leases::default(),
            changing: Mutex::new(()),
            leaving: Cell::new(false),
            takes_more: Cell::new(true),
            listeners: RefCell::default(),
        })
    }

    /// The open pools.
    #[must_use]
    pub fn pools(&self) -> Vec<Rc<Pool>> {
        self.pools.borrow().values().cloned().collect()
    }

    /// Whether further pools may be created and imported into it; at first they may.
    pub fn set_takes_more(&self, takes_more: bool) {
        self.takes_more.set(takes_more);
    }

    /// Says where volumes can be reached, for [`Hello`].
    pub fn announce(&self, listeners: Vec<String>) {
        *self.listeners.borrow_mut() = listeners;
    }

    /// Does what is asked.
    pub async fn perform(&self, request: &Request) -> Result<Reply, Failure> {
        let Request { pool: name, action, typed, .. } = request;
        if *action == Action::Hello {
            return Ok(Reply::Hello(self.hello()));
        }
        if action.is_read_only() {
            return look(&*self.pool(name)?, action);
        }
        let _alone = self.changing.lock().await;
        if self.leaving.get() {
            return Err(Failure::new("the server is about to end; try again in a moment"));
        }
        match action {
            Action::Create { spec } => {
                self.check_takes_more(name)?;
                let free = name.clone();
                self.writer.ask(move |state| state.check_name_free(&free, None)).await?;
                let pool = Pool::create(self.opener.clone(), name, spec).await?;
                if let Err(unknown) = self.adopt(pool.clone(), false).await {
                    pool.export().await?;
                    return Err(unknown);
                }
                remember_command(&pool, typed).await?;
            }
            Action::Import { paths, options } => {
                self.check_takes_more(name)?;
                let pool = Pool::import(self.opener.clone(), paths, name, options).await?;
                crate::memory::give_back_what_is_free();
                // Forced, it may be older than what was known of it.
                let older = options.force || options.rewind_groups > 0 || options.keep.is_some();
                if let Err(taken) = self.adopt(pool.clone(), older).await {
                    pool.export().await?;
                    return Err(taken);
                }
                remember_command(&pool, typed).await?;
            }
            Action::Export { force } => {
                let pool = self.release(name, *force)?;
                remember_command(&pool, typed).await?;
                let outcome = pool.export().await;
                self.drop_pool(&pool, outcome).await?;
            }
            Action::Destroy { force } => {
                let pool = self.release(name, *force)?;
                let outcome = pool.destroy().await;
                self.drop_pool(&pool, outcome).await?;
            }
            Action::VolumeDestroy { volume, force } => {
                let pool = self.pool(name)?;
                self.check_unused(&format!("{name}/{volume}"), *force)?;
                self.leases.revoke(&format!("{name}/{volume}"));
                let outcome = pool.destroy_volume(volume).await;
                // Whoever came back meanwhile would stand for the next volume of that name.
                self.leases.revoke(&format!("{name}/{volume}"));
                outcome?;
                remember_command(&pool, typed).await?;
            }
            other => {
                let pool = self.pool(name)?;
                let other = &by_known_names(&pool.status(), other.clone())?;
                change(&pool, other).await?;
                if changes_devices(other) {
                    let known = known(&pool);
                    self.writer.ask(|state| state.remember(known)).await?;
                }
                remember_command(&pool, typed).await?;
            }
        }
        Ok(Reply::Done)
    }

    /// Takes an open pool into the set and the list of known pools, `older` than what that knew of it
    /// or not.
    async fn adopt(&self, pool: Rc<Pool>, older: bool) -> Result<(), Failure> {
        let known = known(&pool);
        let remember = move |state: &StateDir| match older {
            true => state.remember_anew(known),
            false => state.remember(known),
        };
        self.writer.ask(remember).await?;
        self.pools.borrow_mut().insert(pool.name(), pool);
        Ok(())
    }

    /// Lets go of a pool that has ended, well or not. One that could not be closed well stays
    /// known: the next import goes on with it. One that refused to end stays here.
    async fn drop_pool(
        &self,
        pool: &Pool,
        outcome: Result<(), forebay_pool::PoolError>,
    ) -> Result<(), Failure> {
        if !pool.has_ended() {
            return Ok(outcome?);
        }
        self.pools.borrow_mut().remove(&pool.name());
        // Whoever came back meanwhile would keep its devices open.
        self.leases.revoke(&pool.name());
        outcome?;
        let guid = pool.guid();
        self.writer.ask(move |state| state.forget(guid)).await
    }

    /// Fails when the name of `pool` belongs to another one, here or in the list of known pools.
    pub async fn check_name_free(&self, pool: &KnownPool) -> Result<(), Failure> {
        if self.pools.borrow().contains_key(&pool.name) {
            return Err(Failure::new(format!("a pool named '{}' is imported already", pool.name)));
        }
        let (name, guid) = (pool.name.clone(), Some(pool.guid));
        self.writer.ask(move |state| state.check_name_free(&name, guid)).await
    }

    /// Devices of a known pool that are where another one's were: disks change their names.
    pub async fn found_elsewhere(&self, known: &KnownPool) -> Result<Vec<String>, Failure> {
        // As the list is now: an import a moment ago may have changed it.
        let all = self.writer.ask(StateDir::known_pools).await?;
        let others: BTreeSet<String> = all.into_iter().flat_map(|pool| pool.devices).collect();
        let others: Vec<String> =
            others.into_iter().filter(|path| !known.devices.contains(path)).collect();
        if others.is_empty() {
            return Ok(others);
        }
        let here = self.devices_of(known.guid, &known.devices).await;
        if here.len() >= known.devices.len() {
            return Ok(Vec::new());
        }
        Ok(self.devices_of(known.guid, &others).await)
    }

    async fn devices_of(&self, guid: u64, paths: &[String]) -> Vec<String> {
        let found = Pool::discover(self.opener.clone(), paths).await;
        found.into_iter().filter(|pool| pool.guid == guid).flat_map(|pool| pool.paths).collect()
    }

    fn pool(&self, name: &str) -> Result<Rc<Pool>, Failure> {
        let missing = || Failure::new(format!("the pool '{name}' is not open here"));
        self.pools.borrow().get(name).cloned().ok_or_else(missing)
    }

    fn check_takes_more(&self, name: &str) -> Result<(), Failure> {
        if !self.takes_more.get() {
            return Err(Failure::new(format!("this server was not told to serve '{name}'")));
        }
        if self.pools.borrow().contains_key(name) {
            return Err(Failure::new(format!("a pool named '{name}' is imported already")));
        }
        Ok(())
    }

    fn check_unused(&self, name: &str, force: bool) -> Result<(), Failure> {
        let held = self.leases.who_holds(name);
        if force || held.is_empty() {
            return Ok(());
        }
        let line = |(volume, who): (&String, &Vec<String>)| format!("{volume} by {}", few(who));
        let held: Vec<String> = held.iter().map(line).collect();
        Err(Failure::new(format!(
            "'{name}' is busy: clients hold {}; disconnect them, or use -f to cut them off",
            few(&held)
        )))
    }

    /// A pool that is about to leave, taken away from its clients.
    fn release(&self, name: &str, force: bool) -> Result<Rc<Pool>, Failure> {
        let pool = self.pool(name)?;
        self.check_unused(name, force)?;
        self.leases.revoke(name);
        Ok(pool)
    }

    fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            pid: std::process::id(),
            pools: self.pools.borrow().keys().cloned().collect(),
            takes_more: self.takes_more.get() && !self.leaving.get(),
            listeners: self.listeners.borrow().clone(),
        }
    }

    /// Connections that hold a volume.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.pools.borrow().keys().map(|name| self.leases.holders(name)).sum()
    }

    /// Closes every pool, after what is being done now. They stay known. All are tried; the
    /// first failure is told.
    pub async fn close(&self) -> Result<(), Failure> {
        self.leaving.set(true);
        let _alone = self.changing.lock().await;
        let pools = std::mem::take(&mut *self.pools.borrow_mut());
        let mut outcome = Ok(());
        for (name, pool) in pools {
            self.leases.revoke(&name);
            if let Err(e) = pool.end().await {
                outcome = outcome.and(Err(e.into()));
            }
        }
        outcome
    }
}

impl Handler for PoolSet {
    fn handle(self: Rc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response>>> {
        Box::pin(async move {
            match self.perform(&request).await {
                Ok(reply) => Response::Ok(reply),
                Err(failure) => Response::Error(failure.message),
            }
        })
    }
}

impl Exports for PoolSet {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        let entry = |volume: forebay_pool::status::VolumeStatus| ExportEntry {
            name: volume.name,
            description: String::new(),
        };
        self.pools().iter().flat_map(|pool| pool.volumes()).map(entry).collect()
    }

    fn open(&self, name: &str, peer: &Peer) -> Result<ExportHandle, Refusal> {
        if self.leaving.get() {
            return Err(Refusal::Unknown);
        }
        let (pool, volume) = name.split_once('/').ok_or(Refusal::Unknown)?;
        let pool = self.pool(pool).map_err(|_| Refusal::Unknown)?;
        let lease = self.leases.take(name, &peer.address, || pool.open_volume(volume));
        let (device, hold) = lease.ok_or(Refusal::Unknown)?;
        let revocation = device.revocation();
        let mut handle = ExportHandle::new(device);
        handle.revocation = Some(revocation);
        handle.hold = Some(Box::new(hold));
        Ok(handle)
    }
}

/// Opens devices, keeps in the state folder what pools tell of their configurations, and tells
/// pools when the user has had enough.
struct Witness {
    opener: Rc<dyn Opener>,
    writer: Rc<StateWriter>,
    stop: Option<Rc<Stop>>,
}

impl Opener for Witness {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        self.opener.open(path)
    }

    fn host(&self) -> u64 {
        self.opener.host()
    }

    fn witness(&self, pool: u64, told: Told) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.writer.tell(pool, told))
    }

    fn is_unwanted(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_asked())
    }
}

/// The first few of a list, in words.
fn few(all: &[String]) -> String {
    const NAMED: usize = 5;
    let mut text = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > NAMED {
        text.push_str(&format!(" and {} more", all.len() - NAMED));
    }
    text
}

/// What the state folder keeps of a pool.
#[must_use]
pub fn known(pool: &Pool) -> KnownPool {
    fn leaves(vdev: &VdevStatus, paths: &mut Vec<String>) {
        // A device that is missing may be shown by something else than a path.
        if vdev.children.is_empty() && vdev.name.starts_with('/') {
            paths.push(vdev.name.clone());
        }
        vdev.children.iter().for_each(|child| leaves(child, paths));
    }
    let status: PoolStatus = pool.status();
    let mut devices = Vec::new();
    status.groups.iter().chain(&status.logs).for_each(|v| leaves(v, &mut devices));
    KnownPool { name: status.name, guid: status.guid, devices, told: pool.told() }
}

fn look(pool: &Pool, action: &Action) -> Result<Reply, Failure> {
    Ok(match action {
        Action::Status => Reply::Status(Box::new(pool.status())),
        Action::Summary => Reply::Summary(pool.summary()),
        Action::Stats => Reply::Stats(Box::new(pool.stats())),
        Action::Sample => Reply::Sample(Box::new(Sample {
            status: pool.status(),
            summary: pool.summary(),
            uptime_secs: pool.stats().uptime_secs,
        })),
        Action::History => Reply::History(pool.history()),
        Action::Properties => Reply::Properties(pool.get()),
        Action::Volumes => Reply::Volumes(pool.volumes()),
        other => unreachable!("{other:?} does not only look"),
    })
}

/// Puts the command into the pool's history, when there is one.
async fn remember_command(pool: &Pool, typed: &str) -> Result<(), Failure> {
    if !typed.is_empty() {
        pool.log_history(typed).await?;
    }
    Ok(())
}

fn changes_devices(action: &Action) -> bool {
    matches!(
        action,
        Action::Add { .. }
            | Action::Remove { .. }
            | Action::Attach { .. }
            | Action::Detach { .. }
            | Action::Replace { .. }
    )
}

async fn change(pool: &Rc<Pool>, action: &Action) -> Result<(), Failure> {
    match action {
        Action::Set { property, value } => pool.set(property, value).await?,
        Action::Add { spec } => pool.add(spec).await?,
        Action::Remove { device } => pool.remove(device).await?,
        Action::Attach { device, new_device, force } => {
            pool.attach(device, new_device, *force).await?;
        }
        Action::Detach { device } => pool.detach(device).await?,
        Action::Replace { device, new_device, force } => {
            pool.replace(device, new_device.as_deref(), *force).await?;
        }
        Action::Offline { device } => pool.offline(device).await?,
        Action::Online { device } => pool.online(device).await?,
        Action::Clear { device } => pool.clear(device.as_deref()).await?,
        Action::Scrub { verb: ScanVerb::Start } => pool.scrub().await?,
        Action::Scrub { verb: ScanVerb::Pause } => pool.scrub_pause().await?,
        Action::Scrub { verb: ScanVerb::Stop } => pool.scrub_stop().await?,
        Action::Resilver => pool.resilver().await?,
        Action::Sync => pool.sync().await?,
        Action::VolumeCreate { spec } => pool.create_volume(spec).await?,
        Action::VolumeResize { volume, size_bytes, force } => {
            pool.resize_volume(volume, *size_bytes, *force).await?;
        }
        Action::VolumeSet { volume, property, value } => {
            pool.set_volume(volume, property, value).await?;
        }
        other => unreachable!("{other:?} is done by the set itself"),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
