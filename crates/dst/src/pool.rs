//! The product as a subject: adapts `forebay-pool` to the harness.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use forebay_device::layers::Counted;
use forebay_device::{Device, DeviceError, DramState, ErrorKind, Operation};
use forebay_pool::spec::{CloneSpec, GroupSpec, ImportOptions, LogSpec, Told, VolumeSpec};
use forebay_pool::status::{
    CacheDeviceStats, Health, PoolEvent, ScanKind, ScanPhase, VdevNote, VdevStatus, VolumeStatus,
};
use forebay_pool::{Answering, Opener, Opening};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, Layout, Nanos};

use crate::coverage::Activity;
use crate::pool_figures;
use crate::pool_streams::{self, streams_are_settled};
use crate::remote_log::RemoteLog;
use crate::scenario::Copying;
use crate::subject::{
    CLEANER_EVENT, Figures, Held, ImportMode, Manage, Pool, PoolSpec, Raid, Refusal, SERVICES,
    ScanJob, ScrubPhase, Scrubbed, Subject, Sync,
};

const POOL_NAME: &str = "tank";

/// The product, on a machine with a list of known pools that survives every crash.
#[derive(Default)]
pub struct Forebay {
    /// The pool, and the newest configuration that the list has seen: [`Subject::memory`].
    known: Rc<Cell<(u64, Told)>>,
    remote: RefCell<Vec<Rc<RemoteLog>>>,
    /// A machine that takes pools from their owners, and has no list of known pools.
    other_host: Option<u64>,
}

/// A running pool of the product. After a suspension it is followed by another one.
pub struct ForebayPool {
    current: RefCell<Rc<forebay_pool::Pool>>,
}

/// Disks by name. Like a file or block device with a lock, a disk can be open only once.
struct Shelf {
    disks: BTreeMap<String, Device>,
    remote: Vec<Rc<RemoteLog>>,
    open: RefCell<BTreeMap<String, Weak<Counted>>>,
    known: Rc<Cell<(u64, Told)>>,
    host: u64,
}

impl Opener for Shelf {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            if let Some(remote) = self.remote(path) {
                return remote.open().await;
            }
            let refuse = |kind| DeviceError::new(path, Operation::Open, 0, 0, kind);
            let disk = self.disks.get(path).cloned().ok_or_else(|| refuse(ErrorKind::Gone))?;
            let mut open = self.open.borrow_mut();
            if open.get(path).is_some_and(|handle| handle.strong_count() > 0) {
                return Err(refuse(ErrorKind::Busy));
            }
            // The layer only serves as a handle: while it is alive, the disk is open.
            let handle = Counted::new(disk);
            open.insert(path.to_owned(), Rc::downgrade(&handle));
            let device: Device = handle;
            Ok(device)
        })
    }

    fn host(&self) -> u64 {
        self.host
    }

    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        let remote = self.remote(path)?;
        Some(Box::pin(async move { remote.open().await.is_ok() }))
    }

    fn witness(
        &self,
        pool: u64,
        told: Told,
        _devices: Vec<String>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        let (known, before) = self.known.get();
        let newest = if pool == known { before.and_then(told) } else { told };
        self.known.set((pool, newest));
        Box::pin(std::future::ready(()))
    }
}

impl Shelf {
    fn remote(&self, name: &str) -> Option<&RemoteLog> {
        self.remote.iter().find(|remote| remote.name() == name).map(|remote| &**remote)
    }
}

impl Forebay {
    fn shelf(&self, disks: &[Device]) -> Rc<Shelf> {
        let disks = disks.iter().map(|disk| (disk.name().to_owned(), disk.clone())).collect();
        let (remote, known) = (self.remote.borrow().clone(), self.known.clone());
        let host = self.other_host.unwrap_or(1);
        Rc::new(Shelf { disks, remote, open: RefCell::default(), known, host })
    }
}

fn word_of(sync: Sync) -> &'static str {
    match sync {
        Sync::Standard => "standard",
        Sync::Always => "always",
        Sync::Disabled => "disabled",
    }
}

fn names(disks: &[Device]) -> Vec<String> {
    disks.iter().map(|disk| disk.name().to_owned()).collect()
}

fn layout_of(raid: Raid) -> Layout {
    match raid {
        Raid::Raid0 => Layout::Raid0,
        Raid::Mirror => Layout::Mirror,
        Raid::Z1 => Layout::Raidz1,
        Raid::Z2 => Layout::Raidz2,
        Raid::Z3 => Layout::Raidz3,
    }
}

impl Subject for Forebay {
    type Pool = ForebayPool;

    async fn create(&self, disks: &[Device], spec: &PoolSpec) -> Result<ForebayPool, Refusal> {
        let of = |range: std::ops::Range<usize>| names(&disks[range]);
        let groups = spec
            .groups_with_raid()
            .map(|(range, raid)| GroupSpec { layout: layout_of(raid), devices: of(range) });
        let logs = spec.ring_ranges().map(|r| LogSpec { devices: of(r) });
        let (groups, logs) = (groups.collect(), logs.collect());
        let (spares, caches) = (of(spec.hot_spare_range()), of(spec.cache_range()));
        let mut properties = spec.properties.clone();
        // A client whose requests waited for an operator would look like one that hangs.
        properties.entry("failmode".into()).or_insert_with(|| "continue".into());
        // Reads from memory would hide what the disks hold.
        properties.entry("cache_size".into()).or_insert_with(|| "off".into());
        // Groups of different kinds.
        let force = spec.last_group.is_some();
        let wanted =
            forebay_pool::spec::PoolSpec { groups, logs, caches, spares, properties, force };
        self.known.set((0, Told::default()));
        let pool = forebay_pool::Pool::create(self.shelf(disks), POOL_NAME, &wanted).await?;
        Ok(ForebayPool::new(pool))
    }

    async fn import(
        &self,
        disks: &[Device],
        _spec: &PoolSpec,
        mode: ImportMode,
    ) -> Result<ForebayPool, Refusal> {
        let options = ImportOptions {
            accept_log_loss: matches!(mode, ImportMode::AcceptLoss | ImportMode::GiveUp),
            rewind_groups: if let ImportMode::Rewind(groups) = mode { groups } else { 0 },
            force: matches!(mode, ImportMode::Force | ImportMode::GiveUp),
            keep: match mode {
                ImportMode::Keep(disk) => names(disks).into_iter().nth(disk),
                _ => None,
            },
            known: self.other_host.is_none().then(|| self.known.get().1),
            ..ImportOptions::default()
        };
        let opener = self.shelf(disks);
        let pool = forebay_pool::Pool::import(opener, &names(disks), POOL_NAME, &options).await?;
        streams_are_settled(&pool).await;
        Ok(ForebayPool::new(pool))
    }

    fn connect(&self, remote: Vec<Rc<RemoteLog>>) {
        *self.remote.borrow_mut() = remote;
    }

    fn other_machine(&self, host: u64) -> Option<Rc<Self>> {
        Some(Rc::new(Self { other_host: Some(host), ..Self::default() }))
    }

    fn atomic_bytes(&self) -> u64 {
        1 << 20 // of the smallest dirty limit; a running pool knows better
    }

    fn memory(&self) -> [u64; 3] {
        let (pool, Told { generation, owner }) = self.known.get();
        [pool, generation, owner]
    }

    fn remember(&self, [pool, generation, owner]: [u64; 3]) {
        self.known.set((pool, Told { generation, owner }));
    }
}

impl ForebayPool {
    fn new(pool: Rc<forebay_pool::Pool>) -> Self {
        Self { current: RefCell::new(pool) }
    }

    fn pool(&self) -> Rc<forebay_pool::Pool> {
        self.current.borrow().clone()
    }

    /// Names of volumes, without the pool's.
    fn volumes_that(&self, has: impl Fn(&VolumeStatus) -> bool) -> Vec<String> {
        let all = self.pool().volumes();
        let short = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        all.iter().filter(|volume| has(volume)).map(|volume| short(&volume.name)).collect()
    }

    /// The properties of sparse volumes that say how they are de-duplicated and compressed.
    fn services(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let size = self.pool().get().remove("dedup_index_size").unwrap_or_default();
        let found = SERVICES.iter().find(|(drawn, _)| *drawn == size);
        let properties = found.map_or(&[][..], |(_, properties)| properties);
        properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    }

    /// Log devices on other hosts that came back since the import.
    fn returned_logs(&self) -> u64 {
        let is_back = |event: &&PoolEvent| matches!(event, PoolEvent::LogDeviceReturned { .. });
        self.pool().events().iter().filter(is_back).count() as u64
    }

    /// Spares that the pool has taken since its import.
    fn spares_taken(&self) -> u64 {
        let is_taken = |event: &&PoolEvent| matches!(event, PoolEvent::SpareTaken { .. });
        self.pool().events().iter().filter(is_taken).count() as u64
    }

    /// Waits until no scan runs and returns the status of the last one.
    async fn scan_ended(&self) -> Option<forebay_pool::status::ScanStatus> {
        loop {
            let scan = self.pool().status().scan;
            match &scan {
                Some(scan) if scan.state == ScanPhase::InProgress => {
                    rt::sleep(Nanos::from_millis(50)).await
                }
                _ => return scan,
            }
        }
    }
}

impl Pool for ForebayPool {
    fn volumes(&self) -> Vec<String> {
        self.volumes_that(|volume| !volume.is_receiving)
    }

    fn receiving(&self) -> Vec<String> {
        self.volumes_that(|volume| volume.is_receiving)
    }

    fn volume(&self, name: &str) -> Option<Device> {
        self.pool().open_volume(name)
    }

    async fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        sparse: bool,
    ) -> Result<(), Refusal> {
        // Every second volume has its writes cached, when the pool has a cache.
        let caches_writes = name.bytes().last().is_some_and(|byte| byte % 2 == 1);
        let cached = caches_writes.then(|| ("cache_writes".to_owned(), "on".to_owned()));
        let services = self.services().filter(|_| sparse);
        let properties = BTreeMap::from_iter(cached.into_iter().chain(services));
        let spec = VolumeSpec { name: name.to_owned(), size_bytes, sparse, properties };
        Ok(self.pool().create_volume(&spec).await?)
    }

    async fn destroy_volume(&self, name: &str) -> Result<(), Refusal> {
        Ok(self.pool().destroy_volume(name, true).await?)
    }

    async fn abandon_receive(&self, volume: &str) -> Result<(), Refusal> {
        Ok(self.pool().abandon_receive(volume).await?)
    }

    async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), Refusal> {
        Ok(self.pool().resize_volume(name, size_bytes, true).await?)
    }

    async fn rename_volume(&self, name: &str, new: &str) -> Result<(), Refusal> {
        Ok(self.pool().rename_volume(name, new).await?)
    }

    fn snapshots(&self) -> Vec<String> {
        let of = |volume: String| self.pool().snapshots_of_spec(&format!("{volume}@%"));
        self.volumes().into_iter().flat_map(|volume| of(volume).unwrap_or_default()).collect()
    }

    fn snapshot(&self, name: &str) -> Option<Device> {
        self.pool().open_snapshot(name)
    }

    async fn take_snapshots(&self, names: &[String]) -> Result<(), Refusal> {
        Ok(self.pool().take_snapshots(names).await?)
    }

    async fn destroy_snapshots(&self, names: &[String]) -> Result<(), Refusal> {
        Ok(self.pool().destroy_snapshots(names).await?)
    }

    async fn holds(&self) -> BTreeMap<String, Vec<String>> {
        let pool = self.pool();
        let short = |name: String| name.rsplit('/').next().unwrap_or(&name).to_owned();
        let held = pool.list_snapshots().await.into_iter().filter(|s| !s.holds.is_empty());
        held.map(|snapshot| (short(snapshot.name), snapshot.holds)).collect()
    }

    async fn hold_snapshot(&self, name: &str, tag: &str, release: bool) -> Result<(), Refusal> {
        Ok(self.pool().hold_snapshot(name, tag, release).await?)
    }

    async fn rename_snapshot(&self, name: &str, new: &str) -> Result<(), Refusal> {
        Ok(self.pool().rename_snapshot(name, new).await?)
    }

    async fn roll_back(&self, snapshot: &str) -> Result<(), Refusal> {
        Ok(self.pool().roll_back_volume(snapshot, true).await?)
    }

    async fn promote(&self, clone: &str) -> Result<(), Refusal> {
        Ok(self.pool().promote_volume(clone).await?)
    }

    async fn clone_snapshot(&self, snapshot: &str, volume: &str) -> Result<(), Refusal> {
        let properties = BTreeMap::from_iter(self.services());
        let spec = CloneSpec { name: volume.to_owned(), properties };
        Ok(self.pool().clone_snapshot(snapshot, &spec).await?)
    }

    async fn copy_snapshot(
        &self,
        snapshot: &str,
        base: Option<&str>,
        copy: &str,
        how: &Copying,
    ) -> Result<bool, Refusal> {
        pool_streams::copy(&self.pool(), (snapshot, base), copy, how).await
    }

    async fn set_sync(&self, name: &str, sync: Sync) -> Result<(), Refusal> {
        Ok(self.pool().set_volume(name, "sync", word_of(sync)).await?)
    }

    fn sync_of(&self, volume: &str) -> Option<Sync> {
        let found = self.pool().get_volume(volume)?.sync;
        [Sync::Standard, Sync::Always, Sync::Disabled].into_iter().find(|s| word_of(*s) == found)
    }

    async fn set_service(&self, volume: &str, name: &str, value: &str) -> Result<(), Refusal> {
        Ok(self.pool().set_volume(volume, name, value).await?)
    }

    async fn set(&self, property: &str, value: &str) -> Result<(), Refusal> {
        Ok(self.pool().set(property, value).await?)
    }

    fn atomic_bytes(&self) -> Option<u64> {
        let quarter = self.pool().stats().dirty_limit_bytes / 4;
        Some((quarter / BLOCK_BYTES).max(1) * BLOCK_BYTES)
    }

    async fn scrub(&self) -> Result<Scrubbed, Refusal> {
        self.scan_ended().await;
        self.pool().scrub().await?;
        let mut others = 0;
        loop {
            // The scrub starts when its task runs, after a pending resilver.
            rt::sleep(Nanos::from_millis(100)).await;
            match self.scan_ended().await {
                Some(scan)
                    if scan.kind == ScanKind::Scrub && scan.state == ScanPhase::Completed =>
                {
                    return Ok(Scrubbed { repaired: scan.repaired_bytes, unrepaired: scan.errors });
                }
                Some(scan) if scan.kind == ScanKind::Resilver && others < 100 => {
                    others += 1;
                    // The pool may have taken a spare when the scrub had ended.
                    if others % 20 == 0 {
                        self.pool().scrub().await?;
                    }
                }
                other => {
                    let message = format!("a scrub was requested, and the last scan is {other:?}");
                    return Err(Refusal::new(message));
                }
            }
        }
    }

    async fn scan(&self, job: ScanJob) -> Result<(), Refusal> {
        match job {
            ScanJob::Begin => self.pool().scrub().await?,
            ScanJob::Pause => self.pool().scrub_pause().await?,
            ScanJob::Stop => self.pool().scrub_stop().await?,
        }
        Ok(())
    }

    fn scrub_phase(&self) -> Option<ScrubPhase> {
        let Some(scan) = self.pool().status().scan else { return Some(ScrubPhase::Other) };
        Some(match (scan.kind, scan.state) {
            (ScanKind::Resilver, ScanPhase::InProgress) => ScrubPhase::Resilver,
            (ScanKind::Resilver, _) => ScrubPhase::Other,
            (ScanKind::Scrub, ScanPhase::InProgress) => ScrubPhase::Running,
            (ScanKind::Scrub, ScanPhase::Paused) => ScrubPhase::Paused,
            (ScanKind::Scrub, ScanPhase::Stopped) => ScrubPhase::Stopped,
            (ScanKind::Scrub, ScanPhase::Completed) => ScrubPhase::Completed,
        })
    }

    async fn manage(&self, disks: &[Device], what: &Manage) -> Result<(), Refusal> {
        let name = |disk: usize| disks[disk].name().to_owned();
        match what.clone() {
            Manage::Offline(disk) => self.pool().offline(&name(disk)).await?,
            Manage::Online(disk) => self.pool().online(&name(disk)).await?,
            Manage::Replace(old, new) => {
                self.pool().replace(&name(old), Some(&name(new)), true).await?;
            }
            Manage::RemoveLog(disk) => {
                // A mirror is removed as a whole, by its own name.
                let (logs, side) = (self.pool().status().logs, name(disk));
                let whole =
                    logs.iter().find(|log| log.children.iter().any(|child| child.name == side));
                self.pool().remove(whole.map_or(&side, |log| &log.name)).await?;
            }
            Manage::AddGroup(new) => {
                let layout = if new.len() == 1 { Layout::Raid0 } else { Layout::Mirror };
                let devices = new.into_iter().map(name).collect();
                let groups = vec![GroupSpec { layout, devices }];
                let spec =
                    forebay_pool::spec::PoolSpec { groups, force: true, ..Default::default() };
                self.pool().add(&spec).await?;
            }
            Manage::AddLog(disk) => {
                let logs = vec![LogSpec { devices: vec![name(disk)] }];
                let spec = forebay_pool::spec::PoolSpec { logs, force: true, ..Default::default() };
                self.pool().add(&spec).await?;
            }
            Manage::Attach(old, new) | Manage::AttachCopy(old, new) => {
                self.pool().attach(&name(old), &name(new), true).await?
            }
            Manage::Detach(disk) | Manage::DetachCopy(disk) => {
                self.pool().detach(&name(disk)).await?
            }
            Manage::CacheOffline(disk) => self.pool().offline(&name(disk)).await?,
            Manage::CacheOnline(disk) => self.pool().online(&name(disk)).await?,
            Manage::CacheRemove(disk) => self.pool().remove(&name(disk)).await?,
            Manage::CacheAdd(disk) => {
                let caches = vec![name(disk)];
                let spec =
                    forebay_pool::spec::PoolSpec { caches, force: true, ..Default::default() };
                self.pool().add(&spec).await?;
            }
            Manage::Renew(disk) => self.pool().replace(&name(disk), None, true).await?,
            Manage::Commit => self.pool().sync().await?,
            Manage::Clean => {}
        }
        Ok(())
    }

    async fn export(self) -> Result<(), Refusal> {
        Ok(self.pool().export().await?)
    }

    fn is_suspended(&self) -> bool {
        self.pool().summary().health == Health::Suspended
    }

    async fn clear(&self, disks: &[Device]) -> Result<(), Refusal> {
        let resumed = self.pool().resume(&names(disks)).await;
        *self.current.borrow_mut() = resumed.map_err(|e| Refusal::new(e.to_string()))?;
        Ok(())
    }

    fn give_up(&self) {
        self.pool().give_up();
    }

    fn lacking(&self, disks: &[Device]) -> Option<Vec<usize>> {
        let status = self.pool().status();
        let mut nodes: Vec<&VdevStatus> = status.groups.iter().chain(&status.logs).collect();
        let mut lacking = Vec::new();
        while let Some(node) = nodes.pop() {
            nodes.extend(&node.children);
            // Errors of the past make a device suspect; what it holds counts.
            let is_whole = match node.note {
                None => node.state == Health::Online,
                Some(VdevNote::TooManyErrors) => true,
                Some(_) => false,
            };
            let disk = disks.iter().position(|disk| disk.name() == node.name);
            lacking.extend(disk.filter(|_| !is_whole && node.children.is_empty()));
        }
        let is_scanning = status.scan.is_some_and(|scan| scan.state == ScanPhase::InProgress);
        (!is_scanning).then_some(lacking)
    }

    fn blamed(&self, disks: &[Device]) -> Vec<String> {
        let status = self.pool().status();
        let mut nodes: Vec<&VdevStatus> = status.groups.iter().chain(&status.logs).collect();
        let mut blamed = Vec::new();
        while let Some(node) = nodes.pop() {
            nodes.extend(&node.children);
            if node.state != Health::Online && disks.iter().any(|disk| disk.name() == node.name) {
                let VdevStatus { name, state, read_errors, write_errors, .. } = node;
                let errors = [*read_errors, *write_errors, node.checksum_errors];
                blamed.push(format!("{name} {state:?} {errors:?}"));
            }
        }
        blamed
    }

    fn wrong_blocks(&self, disks: &[Device]) -> Vec<(usize, u64)> {
        let status = self.pool().status();
        let mut nodes: Vec<&VdevStatus> = status.groups.iter().collect();
        let mut wrong = Vec::new();
        while let Some(node) = nodes.pop() {
            nodes.extend(&node.children);
            let disk = disks.iter().position(|disk| disk.name() == node.name);
            let count = node.checksum_errors;
            wrong.extend(disk.filter(|_| count > 0).map(|disk| (disk, count)));
        }
        wrong
    }

    fn activity(&self) -> Activity {
        let running = self.pool().status().scan.filter(|s| s.state == ScanPhase::InProgress);
        let scan = running.map_or("no scan", |scan| match scan.kind {
            ScanKind::Scrub => "scrub",
            ScanKind::Resilver => "resilver",
        });
        Activity { scan, cleans: self.pool().stats().since_import.segments_cleaned > 0 }
    }

    fn held(&self) -> Option<Held> {
        let dirty_bytes = self.pool().stats().dirty_bytes;
        Some(Held { dirty_bytes, available_bytes: self.pool().summary().available_bytes })
    }

    async fn figures(&self) -> Result<Option<Figures>, Refusal> {
        pool_figures::settled(&self.pool()).await
    }

    fn overdrawn_bytes(&self) -> u64 {
        self.pool().summary().overdrawn_bytes
    }

    fn events(&self) -> Vec<(String, u64)> {
        let stats = self.pool().stats();
        let of_caches = |count: fn(&CacheDeviceStats) -> u64| -> u64 {
            stats.cache_devices.iter().map(count).sum()
        };
        let wrong = self.pool().status().caches.iter().map(|cache| cache.checksum_errors).sum();
        let changes = |state: DramState| {
            let events = self.pool().events();
            let to_it = events.iter().filter(|event| match event {
                PoolEvent::LogMemoryChanged { change, .. } => change.to == state,
                _ => false,
            });
            to_it.count() as u64
        };
        vec![
            ("log on another host: back".to_owned(), self.returned_logs()),
            ("log memory: armed".to_owned(), changes(DramState::Armed)),
            ("log memory: saved".to_owned(), changes(DramState::Saved)),
            ("log memory: restored".to_owned(), changes(DramState::Restored)),
            ("log memory: not saved".to_owned(), changes(DramState::SaveFailed)),
            (CLEANER_EVENT.to_owned(), stats.since_import.segments_cleaned),
            ("boots with cleaning".to_owned(), stats.since_import.segments_cleaned.min(1)),
            ("blocks moved by the cleaner".to_owned(), stats.since_import.media.cleaning / 4096),
            ("packed blocks repacked".to_owned(), stats.compression.repacked_blocks),
            ("log records replayed".to_owned(), stats.last_import.log_records),
            ("spares taken".to_owned(), self.spares_taken()),
            ("remarks at import".to_owned(), stats.last_import.remarks.len() as u64),
            ("cache devices: blocks put on".to_owned(), of_caches(|device| device.admitted)),
            ("cache devices: blocks read".to_owned(), of_caches(|device| device.hits)),
            ("cache devices: blocks found at import".to_owned(), of_caches(|device| device.loaded)),
            ("cache devices: reads given up".to_owned(), of_caches(|device| device.slow_reads)),
            ("cache devices: wrong blocks".to_owned(), wrong),
        ]
    }
}
