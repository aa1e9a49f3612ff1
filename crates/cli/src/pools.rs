//! The set of pools that this process has open.
//!
//! What enters: requests of a control socket or a command; NBD clients that open exports. What
//! leaves: replies; volumes on lease. What always holds: changing requests run one after the other;
//! a pool in the set is in the list of known pools.

mod actions;
mod changes;
mod listed;
mod opener;
mod places;
mod transfers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_attach::Volume;
use forebay_nbd::{ExportEntry, ExportHandle, Exports, Peer, Refusal};
use forebay_pool::spec::{ImportOptions, PoolSpec};
use forebay_pool::status::{PoolStatus, VdevStatus};
use forebay_pool::{CloseError, Opener, Pool};
use forebay_rt::net::Stream;
use forebay_rt::sync::Mutex;

use crate::attachments::KernelConnections;
use crate::client_classes::{Class, ClientClasses};
use crate::control::{
    Action, Handler, Hello, KernelFront, PROTOCOL_VERSION, Reply, Request, Response, StatusReport,
};
use crate::devices::is_elsewhere;
use crate::drives::Drives;
use crate::explain::advice;
use crate::failure::{ErrorCode, Failure};
use crate::fault_reason::explain_faults;
use crate::leases::Leases;
use crate::members::by_known_names;
use crate::signals::Stop;
use crate::state::{KnownPool, StateDir};
use crate::state_writer::StateWriter;
use crate::taps::Taps;
use crate::transfer::{Transfers, serve_receive, serve_send};
use crate::ublk_fronts::UblkFronts;

use actions::{
    change, changes_devices, check_take_away, look, remember_command, take_away, taken_away,
    takes_away, until_closed,
};
use changes::ChangesOf;
use opener::ReportingOpener;

/// Serves the kernel's NBD client on streams.
type SharedFront = dyn Fn(Stream);

/// Open pools by name.
type OpenPools = Rc<RefCell<BTreeMap<String, Rc<Pool>>>>;

/// The pools of this process.
pub struct PoolSet {
    opener: Rc<dyn Opener>,
    taps: Rc<Taps>,
    writer: Rc<StateWriter>,
    pools: OpenPools,
    leases: Rc<Leases>,
    transfers: Rc<Transfers>,
    kernel: Rc<KernelConnections>,
    /// Serves the kernel's NBD client, once there is a server.
    kernel_front: RefCell<Option<Rc<SharedFront>>>,
    /// Held by each request that changes something: two of them never interleave.
    changing: Mutex<()>,
    /// The kernel's ublk devices that are served here.
    ublk: UblkFronts,
    /// Set when the process is about to end: nothing more is begun.
    is_leaving: Cell<bool>,
    takes_more: Cell<bool>,
    listeners: RefCell<Vec<String>>,
    drives: Drives,
}

impl PoolSet {
    /// A set without pools. `stop` is how the operator ends this process, when it is watched for.
    #[must_use]
    pub fn new(opener: Rc<dyn Opener>, state: StateDir, stop: Option<Rc<Stop>>) -> Rc<Self> {
        let (writer, taps) = (StateWriter::new(state), Rc::<Taps>::default());
        let reporting =
            ReportingOpener { opener, writer: writer.clone(), stop, taps: taps.clone() };
        Rc::new(Self {
            opener: Rc::new(reporting),
            taps,
            writer,
            pools: OpenPools::default(),
            leases: Rc::default(),
            transfers: Transfers::new(),
            kernel: Rc::default(),
            kernel_front: RefCell::default(),
            changing: Mutex::new(()),
            ublk: UblkFronts::default(),
            is_leaving: Cell::new(false),
            takes_more: Cell::new(true),
            listeners: RefCell::default(),
            drives: Drives::default(),
        })
    }

    /// The open pools.
    #[must_use]
    pub fn pools(&self) -> Vec<Rc<Pool>> {
        self.pools.borrow().values().cloned().collect()
    }

    /// Whether further pools may be created and imported into the set; at first they may.
    pub fn set_takes_more(&self, takes_more: bool) {
        self.takes_more.set(takes_more);
    }

    /// Keeps where volumes can be reached, for [`Hello`].
    pub fn announce(&self, listeners: Vec<String>) {
        *self.listeners.borrow_mut() = listeners;
    }

    /// Hands connections of the kernel's NBD client to `front` from now on.
    pub fn set_kernel_front(&self, front: impl Fn(Stream) + 'static) {
        *self.kernel_front.borrow_mut() = Some(Rc::new(front));
    }

    /// The operations of clients, by class.
    #[must_use]
    pub fn classes(&self) -> &ClientClasses {
        self.leases.classes()
    }

    /// The kernel's ublk devices that are served here.
    pub fn ublk(&self) -> &UblkFronts {
        &self.ublk
    }

    /// The drives below the pools.
    pub fn drives(&self) -> &Drives {
        &self.drives
    }

    /// The connections of the kernel's NBD client.
    #[must_use]
    pub fn kernel_connections(&self) -> &KernelConnections {
        &self.kernel
    }

    /// The name and the size of a volume that is open here.
    #[must_use]
    pub fn volume_of(&self, volume: Volume) -> Option<(String, u64)> {
        let pools = self.pools.borrow();
        let pool = pools.values().find(|pool| pool.guid() == volume.pool_guid)?;
        let found = pool.volumes().into_iter().find(|v| v.id == volume.volume_id)?;
        Some((found.name, found.size_bytes))
    }

    /// Performs `request`.
    pub async fn perform(&self, request: &Request) -> Result<Reply, Failure> {
        let Request { pool: name, action, typed, .. } = request;
        match action {
            Action::Hello => return Ok(Reply::Hello(self.hello())),
            Action::Status => return self.status(name).await,
            Action::Ublk { volume, index } => return self.serve_ublk(volume, *index).await,
            _ => {}
        }
        if let Action::Record { goes_on } = action {
            let devices = known(&*self.pool(name)?).devices;
            let recording = goes_on.then(|| self.taps.poll(name, devices));
            return Ok(Reply::Recording(recording.unwrap_or_else(|| self.taps.end(name))));
        }
        if let Action::SendSize { options } = action {
            return Ok(Reply::SendSize(self.send_size(name, options).await?));
        }
        if action.is_read_only() {
            return look(&*self.pool(name)?, action).await;
        }
        let _alone = self.changing.lock().await;
        if self.is_leaving.get() {
            return Err(about_to_end());
        }
        match action {
            Action::Create { spec } => self.create(name, spec, typed).await?,
            Action::Import { paths, options } => self.import(name, paths, options, typed).await?,
            Action::Export { force } => {
                let pool = self.release(name, *force).await?;
                remember_command(&pool, typed);
                let outcome = pool.export().await;
                self.drop_pool(pool, outcome).await?;
            }
            Action::Destroy { force } => {
                let pool = self.release(name, *force).await?;
                let outcome = pool.destroy().await;
                self.drop_pool(pool, outcome).await?;
            }
            action if takes_away(action) => {
                let pool = self.pool(name)?;
                self.without_clients(&pool, action).await?;
                remember_command(&pool, typed);
            }
            Action::Clear { .. } if self.pool(name)?.is_resumable() => {
                let pool = self.resume(name).await?;
                change(&pool, action).await?;
                remember_command(&pool, typed);
            }
            other => {
                let pool = self.pool(name)?;
                let other = &by_known_names(&pool.status(), other.clone()).await?;
                places::check(&pool.status(), other)?;
                change(&pool, other).await?;
                if changes_devices(other) {
                    self.writer.forget_devices_that_left(known(&pool)).await;
                }
                remember_command(&pool, typed);
            }
        }
        Ok(Reply::Done)
    }

    async fn serve_ublk(&self, volume: &str, index: u32) -> Result<Reply, Failure> {
        self.ublk.serve(self, volume, index).await.map(|()| Reply::Done)
    }

    /// The status of a pool, with the reason of each fault.
    async fn status(&self, name: &str) -> Result<Reply, Failure> {
        let open = self.pool(name)?;
        open.look_at_spares().await;
        let (mut pool, advice) = (open.status(), advice(name, &open.condition()));
        for vdev in pool.groups.iter_mut().chain(&mut pool.logs) {
            explain_faults(&self.opener, pool.guid, vdev).await;
        }
        let drives = self.drives.of(&pool);
        Ok(Reply::Status(Box::new(StatusReport { pool, advice, drives })))
    }

    async fn create(&self, name: &str, spec: &PoolSpec, typed: &str) -> Result<(), Failure> {
        self.check_takes_more(name)?;
        let free = name.to_owned();
        self.writer.run(move |state| state.check_name_free(&free, None)).await?;
        let pool = Pool::create(self.opener.clone(), name, spec).await?;
        if let Err(failure) = self.adopt(pool.clone(), false).await {
            // It has held nothing yet. Exported, it would keep its devices from the next attempt.
            pool.destroy().await?;
            return Err(failure);
        }
        remember_command(&pool, typed);
        Ok(())
    }

    async fn import(
        &self,
        name: &str,
        paths: &[String],
        options: &ImportOptions,
        typed: &str,
    ) -> Result<(), Failure> {
        self.check_takes_more(name)?;
        let imported = Pool::import(self.opener.clone(), paths, name, options).await;
        let pool = imported.map_err(|error| match options.known {
            // The devices of a pool of the list are looked for nowhere else.
            Some(_) if error.is_held_here() => {
                Failure { code: ErrorCode::DeviceInUse, ..Failure::from(error) }
            }
            _ => Failure::from(error),
        })?;
        crate::memory::release_free_memory();
        if options.known.is_some_and(|told| told.generation > 0) {
            self.check_still_listed(&pool).await?;
        }
        // A forced import may go back behind the generation that the list has.
        let may_be_older = options.force || options.rewind_groups > 0 || options.keep.is_some();
        self.adopt_or_export(&pool, may_be_older).await?;
        remember_command(&pool, typed);
        Ok(())
    }

    /// Goes on with a suspended pool. Its volumes stay open.
    async fn resume(&self, name: &str) -> Result<Rc<Pool>, Failure> {
        let suspended = self.pool(name)?;
        let known = known(&suspended);
        let known = self.as_known_now(&known).await?.unwrap_or(known);
        let mut paths = known.devices.clone();
        paths.extend(self.found_elsewhere(&known).await?);
        let next = suspended.resume(&paths).await?;
        crate::memory::release_free_memory();
        self.adopt(next.clone(), false).await?;
        Ok(next)
    }

    /// Lets requests fail that wait for suspended pools: the process is about to end.
    pub fn give_up_suspended(&self) {
        self.pools().iter().for_each(|pool| pool.give_up());
    }

    /// Performs an action that takes volumes or snapshots from their clients. One that is refused
    /// leaves them alone.
    async fn without_clients(&self, pool: &Pool, action: &Action) -> Result<(), Failure> {
        let (names, force) = taken_away(pool, action)?;
        check_take_away(pool, action).await?;
        for name in &names {
            self.check_unused(name, force)?;
        }
        for name in &names {
            self.leases.revoke(name);
            self.transfers.end(name).await;
        }
        let outcome = take_away(pool, action).await;
        // A client that came back meanwhile would hold the next volume of that name.
        names.iter().for_each(|name| self.leases.revoke(name));
        outcome
    }

    /// Adopts an open pool, or exports it again when it cannot be remembered.
    async fn adopt_or_export(&self, pool: &Rc<Pool>, may_be_older: bool) -> Result<(), Failure> {
        if let Err(failure) = self.adopt(pool.clone(), may_be_older).await {
            pool.export().await?;
            return Err(failure);
        }
        Ok(())
    }

    /// Takes an open pool into the set and the list of known pools. `may_be_older`: than the
    /// generation that the list has, which then counts no more.
    async fn adopt(&self, pool: Rc<Pool>, may_be_older: bool) -> Result<(), Failure> {
        let known = known(&pool);
        let remember = move |state: &StateDir| match may_be_older {
            true => state.remember_anew(known),
            false => state.remember(known),
        };
        self.writer.run(remember).await?;
        self.pools.borrow_mut().insert(pool.name(), pool);
        Ok(())
    }

    /// Removes a pool that has ended. One whose end failed stays known: the next import goes on
    /// with it. One that refused to end stays in the set. Then its devices can be opened again.
    async fn drop_pool(
        &self,
        pool: Rc<Pool>,
        outcome: Result<(), CloseError>,
    ) -> Result<(), Failure> {
        if !pool.has_ended() {
            return Ok(outcome?);
        }
        self.pools.borrow_mut().remove(&pool.name());
        // A client that came back meanwhile would keep the devices open.
        self.leases.revoke(&pool.name());
        outcome?;
        let (guid, name, devices) = (pool.guid(), pool.name(), pool.open_devices());
        // While the devices are locked: a command that waits for them finds the pool gone.
        let forgotten = self.writer.run(move |state| state.forget(guid)).await;
        drop(pool);
        until_closed(&name, &devices).await;
        forgotten
    }

    /// Fails when the name of `pool` belongs to another one, here or in the list of known pools.
    pub async fn check_name_free(&self, pool: &KnownPool) -> Result<(), Failure> {
        if self.pools.borrow().contains_key(&pool.name) {
            return Err(imported_already(&pool.name));
        }
        let (name, guid) = (pool.name.clone(), Some(pool.guid));
        self.writer.run(move |state| state.check_name_free(&name, guid)).await
    }

    fn pool(&self, name: &str) -> Result<Rc<Pool>, Failure> {
        let missing = || match self.is_leaving.get() {
            true => about_to_end(),
            false => {
                let message = format!("the pool '{name}' is not open here");
                Failure::new(ErrorCode::PoolNotFound, message)
            }
        };
        self.pools.borrow().get(name).cloned().ok_or_else(missing)
    }

    fn check_takes_more(&self, name: &str) -> Result<(), Failure> {
        if !self.takes_more.get() {
            let message = format!("this server was not told to serve '{name}'");
            return Err(Failure::new(ErrorCode::PoolNotServed, message));
        }
        if self.pools.borrow().contains_key(name) {
            return Err(imported_already(name));
        }
        Ok(())
    }

    fn check_unused(&self, name: &str, force: bool) -> Result<(), Failure> {
        let held = self.leases.who_holds(name);
        let line = |(volume, who): (&String, &Vec<String>)| format!("{volume} by {}", few(who));
        let mut held: Vec<String> = held.iter().map(line).collect();
        held.extend(self.transfers.of(name));
        if force || held.is_empty() {
            return Ok(());
        }
        let message = format!("'{name}' is busy: clients hold {}", few(&held));
        Err(Failure::new(ErrorCode::PoolBusy, message)
            .with_hint("disconnect them, or use -f to cut them off"))
    }

    /// The pool `name`, taken away from its clients: it is about to leave the set.
    async fn release(&self, name: &str, force: bool) -> Result<Rc<Pool>, Failure> {
        let pool = self.pool(name)?;
        self.check_unused(name, force)?;
        self.leases.revoke(name);
        self.transfers.end(name).await;
        Ok(pool)
    }

    fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            pid: std::process::id(),
            pools: self.pools.borrow().keys().cloned().collect(),
            takes_more: self.takes_more.get() && !self.is_leaving.get(),
            listeners: self.listeners.borrow().clone(),
        }
    }

    /// Connections that hold a volume.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.pools.borrow().keys().map(|name| self.leases.holders(name)).sum()
    }

    /// Closes every pool, after the request that runs now. The pools stay known. A failure does
    /// not keep the others open; the first one is returned.
    pub async fn close(&self) -> Result<(), Failure> {
        self.is_leaving.set(true);
        let _alone = self.changing.lock().await;
        let pools = std::mem::take(&mut *self.pools.borrow_mut());
        let mut outcome = Ok(());
        for (name, pool) in pools {
            self.leases.revoke(&name);
            self.transfers.end(&name).await;
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
                Err(failure) => Response::Error(failure),
            }
        })
    }

    fn transfer<'a>(
        self: Rc<Self>,
        request: Request,
        stream: &'a Stream,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(async move {
            match request.action {
                Action::Send { .. } => serve_send(self, &request, stream).await,
                _ => serve_receive(self, &request, stream).await,
            }
        })
    }

    fn kernel_front(&self) -> Result<KernelFront, Failure> {
        match self.kernel_front.borrow().clone() {
            Some(front) => Ok(Box::new(move |stream| front(stream))),
            None => {
                let message = "the server has not begun to serve yet; try again in a moment";
                Err(Failure::new(ErrorCode::PoolNotServed, message))
            }
        }
    }
}

impl Exports for PoolSet {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        let entry = |volume: forebay_pool::status::VolumeStatus| ExportEntry {
            name: volume.name,
            description: String::new(),
        };
        let all = self.pools().into_iter().flat_map(|pool| pool.volumes());
        all.filter(|volume| !volume.is_receiving).map(entry).collect()
    }

    fn open(&self, name: &str, peer: &Peer) -> Result<ExportHandle, Refusal> {
        self.open_as(name, peer, Class::of(peer))
    }
}

impl PoolSet {
    /// Opens an export for a client of `class`.
    pub fn open_as(&self, name: &str, peer: &Peer, class: Class) -> Result<ExportHandle, Refusal> {
        if self.is_leaving.get() {
            return Err(Refusal::Unknown);
        }
        let (owner, volume) = name.split_once('/').ok_or(Refusal::Unknown)?;
        let pool = self.pool(owner).map_err(|_| Refusal::Unknown)?;
        let who = if peer.is_kernel { "this machine's kernel" } else { &peer.address };
        let open = || match volume.contains('@') {
            true => pool.open_snapshot(volume),
            false => pool.open_volume(volume),
        };
        let lease = self.leases.take(name, (who, class), open);
        let (device, hold) = lease.ok_or(Refusal::Unknown)?;
        let revocation = device.revocation();
        let mut handle = ExportHandle::new(device);
        handle.revocation = Some(revocation);
        let (pools, pool, version) = (self.pools.clone(), owner.to_owned(), volume.to_owned());
        handle.bitmaps = Some(Rc::new(ChangesOf::new(pools, pool, version)));
        handle.hold = match peer.is_kernel {
            true => Some(Box::new((hold, self.kernel.add(name)))),
            false => Some(Box::new(hold)),
        };
        // The kernel goes on with the next server and knows nothing of the end of this one: writes
        // that it was told have completed must be there.
        handle.write_through = peer.is_kernel;
        Ok(handle)
    }
}

fn about_to_end() -> Failure {
    let message = "the server is about to end; try again in a moment";
    Failure::new(ErrorCode::ServerStopping, message)
}

fn imported_already(name: &str) -> Failure {
    Failure::new(ErrorCode::PoolExists, format!("a pool named '{name}' is imported already"))
}

/// The first of a list, and how many more there are.
fn few(all: &[String]) -> String {
    const NAMED: usize = 5;
    let mut text = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > NAMED {
        text.push_str(&format!(" and {} more", all.len() - NAMED));
    }
    text
}

/// The entry of a pool in the list of known pools.
#[must_use]
pub fn known(pool: &Pool) -> KnownPool {
    let status: PoolStatus = pool.status();
    let mut devices = BTreeSet::new();
    let all = status.groups.iter().chain(&status.logs).chain(&status.caches);
    all.for_each(|v| leaves(v, &mut devices));
    let devices = devices.into_iter().collect();
    KnownPool { name: status.name, guid: status.guid, devices, told: pool.told() }
}

/// The paths of the devices of a group or log device.
fn leaves(vdev: &VdevStatus, paths: &mut BTreeSet<String>) {
    // A missing device may be shown by another name than its path.
    if vdev.children.is_empty() && (vdev.name.starts_with('/') || is_elsewhere(&vdev.name)) {
        paths.insert(vdev.name.clone());
    }
    vdev.children.iter().for_each(|child| leaves(child, paths));
}

#[cfg(test)]
mod tests;
