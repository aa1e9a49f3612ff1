mod versions;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf, MemoryDevice};
use forebay_pool::spec::{CloneSpec, GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::{OpenWith, ReceiveOptions, SendOptions};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::Shelf;
use forebay_units::Layout;

use super::*;
use crate::pool_access::{KNOWN_POOL_OPTIONS, SERVE_WAIT, import_known};

/// A device in memory that one holder at a time can open.
fn shelf() -> Rc<dyn Opener> {
    let device: Device = Rc::new(MemoryDevice::new("/a", 64 << 20));
    let shelf = Shelf::new([device]);
    OpenWith::new(1, move |name| shelf.open_alone(name))
}

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("forebay-pools-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn ask(set: &PoolSet, action: Action) -> Result<(), Failure> {
    let (pool, typed) = ("tank".to_owned(), String::new());
    set.perform(&Request { version: PROTOCOL_VERSION, pool, typed, action }).await.map(|_| ())
}

fn create() -> Action {
    let group = GroupSpec { layout: Layout::Raid0, devices: vec!["/a".to_owned()] };
    Action::Create { spec: PoolSpec { groups: vec![group], ..PoolSpec::default() } }
}

fn create_volume() -> Action {
    let (name, properties) = ("v".to_owned(), BTreeMap::new());
    Action::VolumeCreate {
        spec: VolumeSpec { name, size_bytes: 1 << 20, sparse: false, properties },
    }
}

fn peer() -> Peer {
    Peer { address: "client".to_owned(), ..Peer::default() }
}

/// Performs `action` while a client keeps trying to open the volume. Returns its handles.
async fn while_a_client_returns(set: &Rc<PoolSet>, action: Action) -> Vec<ExportHandle> {
    let running = rt::spawn({
        let set = set.clone();
        async move { ask(&set, action).await }
    });
    let mut handles = Vec::new();
    while !running.is_finished() {
        handles.extend(set.open("tank/v", &peer()).ok());
        rt::yield_now().await;
    }
    running.await.unwrap();
    handles
}

async fn write(handle: &ExportHandle) -> Result<(), DeviceError> {
    handle.device.write(0, IoBuf::zeroed(4096).freeze(), false).await
}

#[test]
fn client_that_returns_during_export_holds_no_device() {
    let folder = Folder::new("export");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(1).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        let handles = while_a_client_returns(&set, Action::Export { force: true }).await;
        let (paths, options) = (vec!["/a".to_owned()], ImportOptions::default());
        ask(&set, Action::Import { paths, options }).await.unwrap();
        for handle in &handles {
            write(handle).await.unwrap_err();
        }
        write(&set.open("tank/v", &peer()).ok().unwrap()).await.unwrap();
        set.close().await.unwrap();
    });
}

#[test]
fn export_answers_when_the_devices_are_closed() {
    let folder = Folder::new("closed");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(4).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        let looking = set.pools();
        rt::spawn(async move {
            rt::sleep(forebay_units::Nanos::from_secs(1)).await;
            drop(looking);
        });
        ask(&set, Action::Export { force: false }).await.unwrap();
        let (paths, options) = (vec!["/a".to_owned()], ImportOptions::default());
        ask(&set, Action::Import { paths, options }).await.unwrap();
        set.close().await.unwrap();
    });
}

// A device elsewhere has no lock that the kernel tells of.
#[test]
fn a_start_waits_for_a_pool_whose_devices_another_process_has_though_none_is_seen_to_be_locked() {
    const FAR: &str = "nbd://far/a";
    let folder = Folder::new("far");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(6).block_on(async move {
        let device: Device = Rc::new(MemoryDevice::new(FAR, 64 << 20));
        let shelf = Shelf::new([device]);
        let opener = || {
            let shelf = shelf.clone();
            OpenWith::new(1, move |name| shelf.open_alone(name))
        };
        let other = PoolSet::new(opener(), state.clone(), None);
        let group = GroupSpec { layout: Layout::Raid0, devices: vec![FAR.to_owned()] };
        let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
        ask(&other, Action::Create { spec }).await.unwrap();
        let mine = state.known_pools().unwrap().remove(0);
        let set = PoolSet::new(opener(), state, None);
        let begun = rt::now();
        let second = forebay_units::Nanos::from_secs(1);
        let refused = import_known(&set, &mine, &KNOWN_POOL_OPTIONS, second).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::DeviceInUse, "{refused:?}");
        assert!(rt::now().since(begun).0 < 10 * second.0);
        rt::spawn(async move {
            rt::sleep(forebay_units::Nanos(4 * second.0)).await;
            other.close().await.unwrap();
        });
        import_known(&set, &mine, &KNOWN_POOL_OPTIONS, SERVE_WAIT).await.unwrap();
        set.close().await.unwrap();
    });
}

#[test]
fn readers_of_drives_hold_no_pool() {
    let folder = Folder::new("drives");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(5).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        let pool = Rc::downgrade(&set.pools()[0]);
        let second = forebay_units::Nanos::from_secs(1);
        rt::sleep(second).await;
        // The set, and the pool's own tasks.
        let owners = pool.strong_count();
        rt::spawn(crate::drives::keep_reading(set.clone()));
        rt::sleep(second).await;
        assert_eq!(pool.strong_count(), owners);
        set.close().await.unwrap();
    });
}

#[test]
fn client_that_returns_during_destroy_does_not_hold_new_volume() {
    let folder = Folder::new("destroy");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(2).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        let destroy =
            Action::VolumeDestroy { volume: "v".to_owned(), force: true, recursive: false };
        // The destruction is checked after the first and waits for the second, when the client is
        // cut off already.
        let others = [("w", 0), ("x", 5)].map(|(name, turns)| {
            let pool = set.pools().remove(0);
            let (name, properties) = (name.to_owned(), BTreeMap::new());
            let other = VolumeSpec { name, size_bytes: 1 << 20, sparse: false, properties };
            rt::spawn(async move {
                for _ in 0..turns {
                    rt::yield_now().await;
                }
                pool.create_volume(&other).await
            })
        });
        let handles = while_a_client_returns(&set, destroy).await;
        rt::join_all(others).await.into_iter().for_each(Result::unwrap);
        ask(&set, create_volume()).await.unwrap();
        write(&set.open("tank/v", &peer()).ok().unwrap()).await.unwrap();
        for handle in &handles {
            write(handle).await.unwrap_err();
        }
        // It has no part in the new volume, so nothing has to be forced.
        let volume = "v".to_owned();
        let destroy = Action::VolumeDestroy { volume, force: false, recursive: false };
        ask(&set, destroy).await.unwrap();
        drop(handles);
        set.close().await.unwrap();
    });
}

#[test]
fn writes_of_a_client_that_was_cut_off_do_not_come_after_a_rollback() {
    let folder = Folder::new("cut-off");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(6).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        let (volume, property, value) = ("v".into(), "iops_limit".into(), "1".into());
        ask(&set, Action::VolumeSet { volume, property, value }).await.unwrap();
        let snapshots = vec!["v@s".to_owned()];
        ask(&set, Action::SnapshotTake { snapshots }).await.unwrap();
        let handle = Rc::new(set.open("tank/v", &peer()).ok().unwrap());
        let writes: Vec<_> = (0..20)
            .map(|at| {
                let (handle, mut data) = (handle.clone(), IoBuf::zeroed(4096));
                data.fill(1);
                rt::spawn(async move { handle.device.write(at * 4096, data.freeze(), false).await })
            })
            .collect();
        rt::sleep(forebay_units::Nanos::from_secs(3)).await;
        let snapshot = "v@s".to_owned();
        let back = Action::VolumeRollback { snapshot, recursive: false, force: true };
        ask(&set, back).await.unwrap();
        rt::sleep(forebay_units::Nanos::from_secs(60)).await;
        let mut answered = 0;
        for write in writes {
            answered += usize::from(write.await.is_ok());
        }
        assert!((1..10).contains(&answered), "{answered}");
        let again = set.open("tank/v", &peer()).ok().unwrap();
        let held = again.device.read(0, IoBuf::zeroed(20 * 4096)).await.unwrap();
        assert!(held.iter().all(|byte| *byte == 0), "a write came late");
        set.close().await.unwrap();
    });
}

#[test]
fn a_rollback_takes_the_snapshots_that_it_destroys_from_their_clients_with_force_alone() {
    let folder = Folder::new("newer");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(9).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        let take = |name: &str| Action::SnapshotTake { snapshots: vec![name.to_owned()] };
        for name in ["v@a", "v@b"] {
            ask(&set, take(name)).await.unwrap();
        }
        let back = |force| {
            let snapshot = "v@a".to_owned();
            ask(&set, Action::VolumeRollback { snapshot, recursive: true, force })
        };
        let read = async |client: &ExportHandle| {
            client.device.read(0, IoBuf::zeroed(4096)).await.map(drop)
        };
        let options = SendOptions { snapshot: Some("v@b".to_owned()), ..SendOptions::default() };
        let sent = set.begin_send("tank", &options).unwrap();
        assert_eq!(back(false).await.unwrap_err().code, ErrorCode::PoolBusy);
        sent.end().await;
        let [older, newer] =
            ["tank/v@a", "tank/v@b"].map(|name| set.open(name, &peer()).expect("it is there"));
        assert_eq!(back(false).await.unwrap_err().code, ErrorCode::PoolBusy);
        read(&newer).await.unwrap();
        back(true).await.unwrap();
        read(&newer).await.unwrap_err();
        read(&older).await.unwrap();
        // The next snapshot of that name is another one.
        ask(&set, take("v@b")).await.unwrap();
        read(&set.open("tank/v@b", &peer()).ok().unwrap()).await.unwrap();
        drop((older, newer));
        set.close().await.unwrap();
    });
}

/// What `action` is refused with while the list of known pools cannot be written.
async fn refused_without_list(set: &PoolSet, folder: &std::path::Path, action: Action) -> Failure {
    let lock = folder.join("lock");
    let _ = std::fs::remove_file(&lock);
    std::fs::create_dir(&lock).unwrap();
    let refused = ask(set, action).await.unwrap_err();
    std::fs::remove_dir(&lock).unwrap();
    // The tasks of the closed log end in their turn.
    rt::sleep(forebay_units::Nanos::from_millis(1)).await;
    refused
}

#[test]
fn imported_pool_that_cannot_be_remembered_is_closed() {
    let folder = Folder::new("import");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    let path = folder.0.clone();
    Runtime::simulated(3).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, Action::Export { force: false }).await.unwrap();
        let import = || {
            let (paths, options) = (vec!["/a".to_owned()], ImportOptions::default());
            Action::Import { paths, options }
        };
        let refused = refused_without_list(&set, &path, import()).await;
        assert_eq!(refused.code, ErrorCode::StateFolder);
        assert!(set.pools().is_empty());
        ask(&set, import()).await.unwrap();
        set.close().await.unwrap();
    });
}

#[test]
fn new_pool_that_cannot_be_remembered_leaves_its_devices_free() {
    let folder = Folder::new("create");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    let path = folder.0.clone();
    Runtime::simulated(3).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        let refused = refused_without_list(&set, &path, create()).await;
        assert_eq!(refused.code, ErrorCode::StateFolder);
        assert!(set.pools().is_empty());
        ask(&set, create()).await.unwrap();
        set.close().await.unwrap();
    });
}

// One thread serves all pools: it must not wait for the lock.
#[test]
fn late_state_folder_stops_no_pool_and_gets_newest_generation() {
    let folder = Folder::new("late");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::real().unwrap().block_on(async move {
        let set = PoolSet::new(shelf(), state.clone(), None);
        ask(&set, create()).await.unwrap();
        let held = std::fs::File::options().write(true).open(state.path().join("lock")).unwrap();
        held.lock().unwrap();
        // Each change of the configuration is reported to the folder.
        ask(&set, create_volume()).await.unwrap();
        write(&set.open("tank/v", &peer()).ok().unwrap()).await.unwrap();
        let told = || state.known_pools().unwrap()[0].told;
        let newest = set.pools()[0].told();
        assert_ne!(told(), newest);
        drop(held);
        while told() != newest {
            rt::sleep(forebay_units::Nanos::from_millis(100)).await;
        }
        set.close().await.unwrap();
    });
}

#[test]
fn refused_commands_leave_clients_alone() {
    let folder = Folder::new("refused");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(6).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        for name in ["v@a", "v@b"] {
            let snapshots = vec![name.to_owned()];
            ask(&set, Action::SnapshotTake { snapshots }).await.unwrap();
        }
        let (name, properties) = ("c".to_owned(), BTreeMap::new());
        let spec = CloneSpec { name, properties };
        ask(&set, Action::VolumeClone { snapshot: "v@a".to_owned(), spec }).await.unwrap();
        ask(&set, Action::SnapshotTake { snapshots: vec!["c@a".to_owned()] }).await.unwrap();
        let clients: Vec<ExportHandle> = ["tank/v", "tank/v@a", "tank/c"]
            .map(|name| set.open(name, &peer()).ok().unwrap())
            .into();
        let (v, a) = (|| "v".to_owned(), || "v@a".to_owned());
        for action in [
            // There is a newer snapshot, and a clone.
            Action::VolumeRollback { snapshot: a(), force: true, recursive: false },
            Action::VolumeDestroy { volume: v(), force: true, recursive: false },
            Action::VolumeDestroy { volume: v(), force: true, recursive: true },
            Action::SnapshotDestroy { spec: "v@%".to_owned(), force: true },
            // The names are taken.
            Action::VolumeRename { volume: v(), new_name: "c".to_owned(), force: true },
            Action::SnapshotRename { snapshot: a(), new_name: "b".to_owned(), force: true },
            Action::VolumePromote { volume: "c".to_owned(), force: true },
        ] {
            let said = format!("{action:?}");
            ask(&set, action).await.expect_err(&said);
            for client in &clients {
                let read = client.device.read(0, IoBuf::zeroed(4096)).await;
                assert!(read.is_ok(), "{said} took {} away", client.device.name());
            }
        }
        drop(clients);
        set.close().await.unwrap();
    });
}

#[test]
fn commands_for_which_the_pool_has_no_space_leave_clients_alone() {
    let folder = Folder::new("no-space");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(8).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        let (name, properties) = ("v".to_owned(), BTreeMap::new());
        let spec = VolumeSpec { name, size_bytes: 4 << 20, sparse: false, properties };
        ask(&set, Action::VolumeCreate { spec }).await.unwrap();
        let v = set.open("tank/v", &peer()).ok().unwrap();
        // More runs than one block of the map journal has entries for.
        for at in 0..256 {
            v.device.write(at * 8192, IoBuf::zeroed(4096).freeze(), false).await.unwrap();
        }
        drop(v);
        ask(&set, Action::SnapshotTake { snapshots: vec!["v@s".to_owned()] }).await.unwrap();
        let (name, properties) = ("c".to_owned(), BTreeMap::new());
        let spec = CloneSpec { name, properties };
        ask(&set, Action::VolumeClone { snapshot: "v@s".to_owned(), spec }).await.unwrap();
        let (volume, size_bytes) = ("v".to_owned(), 3 << 20);
        ask(&set, Action::VolumeResize { volume, size_bytes, force: true }).await.unwrap();
        let (name, properties) = ("w".to_owned(), BTreeMap::new());
        let size_bytes = set.pools()[0].summary().available_bytes;
        let spec = VolumeSpec { name, size_bytes, sparse: false, properties };
        ask(&set, Action::VolumeCreate { spec }).await.unwrap();

        let clients = ["tank/v", "tank/v@s"].map(|name| set.open(name, &peer()).ok().unwrap());
        for action in [
            Action::VolumeRollback { snapshot: "v@s".to_owned(), force: true, recursive: false },
            Action::VolumePromote { volume: "c".to_owned(), force: true },
        ] {
            let said = format!("{action:?}");
            let refused = ask(&set, action).await.expect_err(&said);
            assert_eq!(refused.code, ErrorCode::NoSpace, "{said}: {refused:?}");
            for client in &clients {
                let read = client.device.read(0, IoBuf::zeroed(4096)).await;
                assert!(read.is_ok(), "{said} took {} away", client.device.name());
            }
        }
        drop(clients);
        set.close().await.unwrap();
    });
}

/// A request to receive into volume `v`, which takes it from its clients.
fn receive() -> Request {
    let options = ReceiveOptions { roll_back: true, ..ReceiveOptions::default() };
    let action = Action::Receive { volume: "v".to_owned(), options };
    let (pool, typed) = ("tank".to_owned(), String::new());
    Request { version: PROTOCOL_VERSION, pool, typed, action }
}

#[test]
fn streams_cut_clients_off_once_they_fit() {
    let folder = Folder::new("streams");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(7).block_on(async move {
        let set = PoolSet::new(shelf(), state, None);
        ask(&set, create()).await.unwrap();
        ask(&set, create_volume()).await.unwrap();
        for name in ["v@a", "v@b"] {
            ask(&set, Action::SnapshotTake { snapshots: vec![name.to_owned()] }).await.unwrap();
        }
        let options = SendOptions { snapshot: Some("v@b".to_owned()), ..SendOptions::default() };
        let whole = sent(&set, options.clone()).await;
        let changes = sent(&set, SendOptions { base: Some("a".to_owned()), ..options }).await;
        ask(&set, Action::SnapshotDestroy { spec: "v@b".to_owned(), force: false }).await.unwrap();

        let client = set.open("tank/v", &peer()).ok().unwrap();
        // An empty stream, and one of a whole volume.
        for bytes in [&[][..], &whole] {
            let mut incoming = set.begin_receive(&receive()).await.unwrap();
            let fed = incoming.feed(bytes).await;
            let failed = match fed {
                Ok(()) => incoming.finish().await.unwrap_err(),
                Err(failure) => failure,
            };
            incoming.give_up(failed).await;
            write(&client).await.unwrap();
        }
        let mut incoming = set.begin_receive(&receive()).await.unwrap();
        incoming.feed(&changes).await.unwrap();
        assert_eq!(write(&client).await.unwrap_err().kind, ErrorKind::Gone);
        incoming.finish().await.unwrap();
        drop((client, incoming));
        write(&set.open("tank/v", &peer()).ok().unwrap()).await.unwrap();
        set.close().await.unwrap();
    });
}

async fn sent(set: &PoolSet, options: SendOptions) -> Vec<u8> {
    let mut outgoing = set.begin_send("tank", &options).unwrap();
    let mut bytes = Vec::new();
    while let Some(next) = outgoing.next().await.unwrap() {
        bytes.extend(next);
    }
    outgoing.end().await;
    bytes
}

// The command has changed the pool, and the next server must find it.
#[test]
fn new_device_is_kept_when_late_state_folder_answers() {
    let folder = Folder::new("late-device");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::real().unwrap().block_on(async move {
        let device = |name| -> Device { Rc::new(MemoryDevice::new(name, 64 << 20)) };
        let shelf = Shelf::new([device("/a"), device("/b")]);
        let opener = OpenWith::new(1, move |name| shelf.open_alone(name));
        let set = PoolSet::new(opener, state.clone(), None);
        ask(&set, create()).await.unwrap();
        let held = std::fs::File::options().write(true).open(state.path().join("lock")).unwrap();
        held.lock().unwrap();
        let (device, new_device) = ("/a".to_owned(), Some("/b".to_owned()));
        ask(&set, Action::Replace { device, new_device, force: false }).await.unwrap();
        let kept = || state.known_pools().unwrap()[0].devices.contains(&"/b".to_owned());
        assert!(!kept());
        drop(held);
        while !kept() {
            rt::sleep(forebay_units::Nanos::from_millis(100)).await;
        }
        set.close().await.unwrap();
    });
}

#[test]
fn a_pool_in_an_object_store_keeps_its_last_log_device() {
    const STORE: &str = "file:///a";
    let folder = Folder::new("last-log");
    let state = StateDir::open_at(folder.0.clone()).unwrap();
    Runtime::simulated(12).block_on(async move {
        let sized = |name, mib: u64| Rc::new(MemoryDevice::new(name, mib << 20)) as Device;
        let shelf = Shelf::new([sized(STORE, 64), sized("/l", 64), sized("/m", 64)]);
        let set = PoolSet::new(OpenWith::new(1, move |name| shelf.open_alone(name)), state, None);
        let group = GroupSpec { layout: Layout::Raid0, devices: vec![STORE.to_owned()] };
        let log = |name: &str| vec![LogSpec { devices: vec![name.to_owned()] }];
        let spec = PoolSpec { groups: vec![group], logs: log("/l"), ..PoolSpec::default() };
        ask(&set, Action::Create { spec }).await.unwrap();
        let remove = |device: &str| Action::Remove { device: device.to_owned() };
        let refused = ask(&set, remove("/l")).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Usage, "{refused:?}");
        let spec = PoolSpec { logs: log("/m"), ..PoolSpec::default() };
        ask(&set, Action::Add { spec }).await.unwrap();
        ask(&set, remove("/l")).await.unwrap();
        ask(&set, remove("/m")).await.unwrap_err();
        set.close().await.unwrap();
    });
}
