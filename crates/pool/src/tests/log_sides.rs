//! Sides of logs that are attached, given up or let go of, and what a log's region takes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer, MemoryDevice,
    Operation,
};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, import, make, until_crash, write};
use super::rack::{Rack, memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::labels::read_label;
use crate::spec::{ImportOptions, LogSpec, PoolSpec};
use crate::status::{Health, PoolCondition};
use crate::{AdminError, ImportErrorKind, OpenWith, Opener, Opening, Pool};

fn without_log() -> ImportOptions {
    ImportOptions { accept_log_loss: true, ..Default::default() }
}

/// What was written last is there although the first side of the log is not.
fn holds_without_the_first_side(rack: Rc<Rack>) {
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["l"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn an_attached_side_holds_what_is_durable_from_then_on() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.attach("l", "m", false).await.unwrap();
        write(&pool, 2).await;
    });
    holds_without_the_first_side(rack);
}

#[test]
fn a_log_that_an_import_went_on_without_is_not_asked_for_again() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.sync().await.unwrap();
    });
    rack.pull(&["l"]);
    let mine = rack.clone();
    until_crash(async move {
        let kind = import(&mine, 1, &ImportOptions::default()).await.err().unwrap();
        assert!(matches!(kind, ImportErrorKind::LogMissing { .. }), "{kind}");
        let pool = import(&mine, 1, &without_log()).await.unwrap();
        assert_eq!(pool.status().logs[0].state, Health::Faulted);
        write(&pool, 2).await;
    });
    Runtime::simulated(3).block_on(async move {
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_was_replaced_belongs_to_no_pool() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &["l"]).await;
        let other = spec(Layout::Raid0, &["b"], &[]);
        let error = Pool::create(rack.host(1), "other", &other).await.err().unwrap();
        assert!(error.to_string().contains("tank"), "{error}");
        pool.replace("b", Some("c"), false).await.unwrap();
        let members = || {
            let group = pool.status().groups.remove(0);
            group.children.into_iter().map(|child| child.name).collect::<Vec<String>>()
        };
        while members() != ["a", "c"] || pool.open_devices().len() != 3 {
            assert!(rt::now() < Nanos::from_secs(600), "{:?}", members());
            rt::sleep(Nanos::from_secs(1)).await;
        }
        let other = Pool::create(rack.host(1), "other", &other).await.unwrap();
        other.export().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A device whose content is in memory until it is saved.
struct Unsaved {
    memory: Device,
    image: Device,
}

impl Layer for Unsaved {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.memory
    }
    fn save(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let content = self.memory.read(0, IoBuf::zeroed(SIZE as usize)).await?;
            self.image.write(0, content.freeze(), true).await
        })
    }
}

// Memory is lost with the power, and the image would still name the pool.
#[test]
fn a_log_device_in_memory_that_has_left_belongs_to_no_pool_after_a_loss_of_power() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let memory: Device = Rc::new(MemoryDevice::new("l", SIZE));
        let mine = rack.clone();
        let opener = OpenWith::new(1, move |name| {
            let device = mine.open_here(name)?;
            let is_memory = name == "l";
            let unsaved = || Rc::new(Unsaved { memory: memory.clone(), image: device.clone() });
            Ok(if is_memory { unsaved() } else { device })
        });
        let with_log = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(opener.clone(), "tank", &with_log).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let label = || async { read_label(&rack.device("l")).await.configs };
        assert!(!label().await.is_empty(), "an export saves it");
        let options = ImportOptions::default();
        let pool = Pool::import(opener, &names(&ALL), "tank", &options).await.unwrap();
        pool.remove("l").await.unwrap();
        assert!(label().await.is_empty());
        pool.export().await.unwrap();
    });
}

/// A file: it takes space when it is written.
struct File {
    inner: MemoryDevice,
    written_bytes: Cell<u64>,
    /// Where its file system has no room any more, but for the label at the end.
    room_bytes: Cell<u64>,
    given_back: RefCell<Vec<(u64, u64)>>,
}

impl File {
    fn new(name: &str) -> Rc<Self> {
        Rc::new(Self {
            inner: MemoryDevice::new(name, SIZE),
            written_bytes: Cell::new(0),
            room_bytes: Cell::new(u64::MAX),
            given_back: RefCell::default(),
        })
    }
}

impl Layer for File {
    fn inner(&self) -> &dyn BlockDevice {
        &self.inner
    }
    fn allocates_on_write(&self) -> bool {
        true
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.written_bytes.set(self.written_bytes.get() + data.len() as u64);
        let end_bytes = offset_bytes + data.len() as u64;
        if (self.room_bytes.get()..SIZE - (4 << 20)).contains(&end_bytes) {
            let (operation, kind) = (Operation::Write, ErrorKind::NoSpace);
            let len_bytes = data.len() as u64;
            let error =
                DeviceError::new(self.inner.name(), operation, offset_bytes, len_bytes, kind);
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.write(offset_bytes, data, fua)
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.given_back.borrow_mut().push((offset_bytes, len_bytes));
        self.inner.discard(offset_bytes, len_bytes, fua)
    }
}

#[test]
fn a_log_in_a_file_has_its_space_before_it_is_used() {
    Runtime::simulated(5).block_on(async {
        let (data, log) = (File::new("a"), File::new("l"));
        let files = (data.clone(), log.clone());
        let opener = OpenWith::new(1, move |name| {
            let file = if name == "l" { &files.1 } else { &files.0 };
            Ok(file.clone() as Device)
        });
        let pool = Pool::create(opener, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let add =
            PoolSpec { logs: vec![LogSpec { devices: names(&["l"]) }], ..PoolSpec::default() };
        // What a log that does not fit has taken is given back.
        log.room_bytes.set(SIZE / 2);
        let refused = pool.add(&add).await.unwrap_err();
        assert!(matches!(refused, AdminError::LogPlace(_)), "{refused}");
        let given_back: u64 = log.given_back.borrow().iter().map(|(_, len_bytes)| len_bytes).sum();
        assert!(given_back > SIZE / 2, "{:?}", log.given_back.borrow());
        log.room_bytes.set(u64::MAX);
        log.written_bytes.set(0);
        pool.add(&add).await.unwrap();
        let len_bytes = pool.config.borrow().logs[0].len_bytes;
        assert!(len_bytes > SIZE / 2 && log.written_bytes.get() >= len_bytes);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_in_a_file_gives_its_space_back_where_its_pool_cannot_be_created() {
    Runtime::simulated(14).block_on(async {
        let files = ["a", "b", "l"].map(File::new);
        let [_, other, log] = files.clone();
        let opener = OpenWith::new(1, move |name| {
            let found = files.iter().find(|file| file.inner.name() == name);
            Ok(found.expect("there are three").clone() as Device)
        });
        let mirror = spec(Layout::Mirror, &["a", "b"], &["l"]);
        other.room_bytes.set(0);
        assert!(Pool::create(opener.clone(), "tank", &mirror).await.is_err());
        let given_back: u64 = log.given_back.borrow().iter().map(|(_, len_bytes)| len_bytes).sum();
        assert!(given_back > SIZE / 2, "{:?}", log.given_back.borrow());
        other.room_bytes.set(u64::MAX);
        Pool::create(opener, "tank", &mirror).await.unwrap().export().await.unwrap();
    });
}

#[test]
fn a_log_in_a_file_gives_its_space_back_where_a_device_beside_it_cannot_be_added() {
    Runtime::simulated(13).block_on(async {
        let files = ["a", "b", "l"].map(File::new);
        let [_, other, log] = files.clone();
        let opener = OpenWith::new(1, move |name| {
            let found = files.iter().find(|file| file.inner.name() == name);
            Ok(found.expect("there are three").clone() as Device)
        });
        let pool = Pool::create(opener, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let add = spec(Layout::Raid0, &["b"], &["l"]);
        other.room_bytes.set(0);
        pool.add(&add).await.unwrap_err();
        let given_back: u64 = log.given_back.borrow().iter().map(|(_, len_bytes)| len_bytes).sum();
        assert!(given_back > SIZE / 2, "{:?}", log.given_back.borrow());
        other.room_bytes.set(u64::MAX);
        pool.add(&add).await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A machine with files. Its operator cancels a command once a file was written as much as this.
struct Files {
    files: Vec<Rc<File>>,
    unwanted_from_bytes: Cell<u64>,
}

impl Files {
    fn new(files: &[Rc<File>]) -> Rc<Self> {
        Rc::new(Self { files: files.to_vec(), unwanted_from_bytes: Cell::new(u64::MAX) })
    }
}

impl Opener for Files {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        let found = self.files.iter().find(|file| file.inner.name() == path);
        let file: Device = found.expect("it is there").clone();
        Box::pin(std::future::ready(Ok(file)))
    }
    fn host(&self) -> u64 {
        1
    }
    fn is_unwanted(&self) -> bool {
        let most = self.files.iter().map(|file| file.written_bytes.get()).max();
        most >= Some(self.unwanted_from_bytes.get())
    }
}

fn given_back_bytes(file: &File) -> u64 {
    file.given_back.borrow().iter().map(|(_, len_bytes)| len_bytes).sum()
}

#[test]
fn the_log_of_a_new_pool_has_its_space_before_it_is_used() {
    Runtime::simulated(101).block_on(async {
        let files = ["a", "b", "l", "m"].map(File::new);
        let [alone, data, log, side] = files.clone();
        let opener = Files::new(&files);
        let pool = Pool::create(opener.clone(), "one", &spec(Layout::Raid0, &["a"], &[])).await;
        let len_bytes = pool.unwrap().config.borrow().reserve_bytes;
        assert!(alone.written_bytes.get() >= len_bytes, "it is on the data device");
        let with_log = spec(Layout::Raid0, &["b"], &["l"]);
        let pool = Pool::create(opener, "two", &with_log).await.unwrap();
        let len_bytes = pool.config.borrow().logs[0].len_bytes;
        assert!(len_bytes > SIZE / 2 && log.written_bytes.get() >= len_bytes);
        assert!(data.written_bytes.get() < alone.written_bytes.get());
        assert_eq!(given_back_bytes(&log), 0);
        pool.attach("l", "m", false).await.unwrap();
        assert!(side.written_bytes.get() >= len_bytes, "nor does a side that is attached lack any");
        assert_eq!(given_back_bytes(&side), 0);
    });
}

#[test]
fn a_pool_that_is_not_created_gives_back_the_space_of_its_log() {
    Runtime::simulated(102).block_on(async {
        let files = ["a", "l", "m"].map(File::new);
        let [data, log, side] = files.clone();
        let with_log = spec(Layout::Raid0, &["a"], &["l", "m"]);
        // The data device fails as its label is cleared, the second side before that.
        for (full, room_bytes) in [(&data, 0), (&side, SIZE / 2)] {
            log.given_back.borrow_mut().clear();
            full.room_bytes.set(room_bytes);
            Pool::create(Files::new(&files), "tank", &with_log).await.err().expect("no room");
            assert!(given_back_bytes(&log) > SIZE / 2, "{:?}", log.given_back.borrow());
            full.room_bytes.set(u64::MAX);
        }
        log.given_back.borrow_mut().clear();
        let pool = Pool::create(Files::new(&files), "tank", &with_log).await.unwrap();
        assert_eq!(given_back_bytes(&log), 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_command_that_is_canceled_while_it_writes_the_place_of_the_log_changes_nothing() {
    for (room_bytes, unwanted_from_bytes) in [
        (u64::MAX, 10 << 20),
        // The write that finds no room is the last one that the operator waits for.
        (SIZE / 2, 34 << 20),
    ] {
        Runtime::simulated(103).block_on(async move {
            let files = ["a", "b", "l"].map(File::new);
            let [_, added, log] = files.clone();
            let opener = Files::new(&files);
            let options = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(opener.clone(), "tank", &options).await.unwrap();
            log.room_bytes.set(room_bytes);
            opener.unwanted_from_bytes.set(unwanted_from_bytes);
            let add = spec(Layout::Raid0, &["b"], &["l"]);
            assert_eq!(pool.add(&add).await, Err(AdminError::Interrupted));
            assert!(given_back_bytes(&log) > SIZE / 2);
            assert_eq!(added.written_bytes.get(), 0);
            assert_eq!((pool.status().groups.len(), pool.status().logs.len()), (1, 0));
            assert!(pool.log_in_pool());
            opener.unwanted_from_bytes.set(u64::MAX);
            log.room_bytes.set(u64::MAX);
            log.given_back.borrow_mut().clear();
            pool.add(&add).await.unwrap();
            assert_eq!(given_back_bytes(&log), 0);
            assert!(!pool.log_in_pool(), "it is used at once");
            pool.export().await.unwrap();
        });
    }
}

/// A mirror whose side `m` of the log has failed a write, and works again.
async fn with_a_failed_side(rack: &Rc<Rack>) -> Rc<Pool> {
    let pool = make(rack, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
    rack.switches.unwritable.borrow_mut().insert("m".into());
    write(&pool, 2).await;
    rt::sleep(Nanos::from_secs(1)).await;
    rack.switches.unwritable.borrow_mut().clear();
    pool
}

#[test]
fn errors_of_a_log_device_are_counted_until_they_are_cleared() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = with_a_failed_side(&rack).await;
        let side = || {
            let side = pool.status().logs[0].children[1].clone();
            (side.state, side.write_errors)
        };
        assert_eq!(side(), (Health::Faulted, 1));
        pool.clear(None).await.unwrap();
        assert_eq!(side(), (Health::Online, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn the_log_stops_for_a_commit_only_to_start_anew_and_never_while_it_is_read() {
    Runtime::simulated(7).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        pool.sync().await.unwrap();
        let still = pool.writers.lock().await;
        pool.quiet_log().await;
        assert_eq!(pool.quiet_request(), None, "no task wants it to start anew");
        // Durable writes go on.
        write(&pool, 2).await;
        // A side that fails while an import reads the log: groups that are committed meanwhile
        // have only a part of what the log holds.
        *pool.health.replaying.borrow_mut() = Some(pool.log.state(pool.sync.committed.get()));
        pool.health.replayed.set(false);
        let wanted = pool.restart_log_wanted();
        pool.quiet_log().await;
        assert_eq!(pool.quiet_request(), None, "the rest of the log would be lost");
        pool.health.replayed.set(true);
        pool.quiet_log().await;
        assert_eq!(pool.quiet_request(), Some(wanted));
        drop(still);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_has_no_more_log_devices_than_there_are_numbers_for() {
    Runtime::simulated(8).block_on(async {
        let all: Vec<String> = (0..33).map(|number| format!("l{number}")).collect();
        let devices: Vec<&str> = ["a"].into_iter().chain(all.iter().map(String::as_str)).collect();
        let rack = Rack::new(&devices, SIZE);
        let logs = all.iter().map(|name| LogSpec { devices: vec![name.clone()] });
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        options.logs = logs.collect();
        let refused = Pool::create(rack.host(1), "tank", &options).await.err().unwrap();
        assert_eq!(refused, AdminError::TooManyLogs { limit: 32 });
        options.logs.pop();
        Pool::create(rack.host(1), "tank", &options).await.unwrap().export().await.unwrap();
    });
}

#[test]
fn a_side_that_is_attached_while_the_log_starts_anew_holds_what_is_durable_from_then_on() {
    let rack = Rack::new(&ALL, SIZE);
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let opener = paced(rack.host(1), move |name, operation, _| {
        let waits = told.get() && name == "a" && operation == Operation::Write;
        waits.then_some(Nanos::from_millis(100))
    });
    until_crash(async move {
        let spec = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(opener, "tank", &spec).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        is_slow.set(true);
        let before = pool.sync.config_written.get();
        let restart = rt::spawn({
            let pool = pool.clone();
            async move { pool.restart_log(true).await.unwrap() }
        });
        // From here on its root says on which devices the log starts.
        while pool.sync.config_written.get() == before {
            rt::sleep(Nanos::from_millis(1)).await;
        }
        pool.attach("l", "m", false).await.unwrap();
        is_slow.set(false);
        restart.await;
        write(&pool, 2).await;
    });
    holds_without_the_first_side(rack);
}

#[test]
fn a_side_that_the_operator_took_offline_is_offline_after_an_import() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        pool.offline("m").await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        let side = || pool.status().logs[0].children[1].state;
        assert_eq!(side(), Health::Offline);
        assert!(matches!(pool.condition(), PoolCondition::DevicesOffline));
        // It did not fail, so this does not take it back.
        pool.clear(None).await.unwrap();
        assert_eq!(side(), Health::Offline);
        write(&pool, 2).await;
        pool.online("m").await.unwrap();
        assert_eq!(side(), Health::Online);
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

// What the log alone had is in memory as well.
#[test]
fn a_suspended_pool_goes_on_without_its_log() {
    Runtime::simulated(9).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let mut options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), true).await.unwrap();
        rack.switches.works_for.set(Some(0));
        let _ = pool.sync().await;
        assert_eq!(pool.summary().health, Health::Suspended);
        rack.switches.works_for.set(None);
        rack.pull(&["l"]);
        let next = pool.resume(&names(&["a", "b", "l"])).await.unwrap();
        drop(pool);
        assert_eq!(next.status().logs[0].state, Health::Faulted);
        v.write(4096, stamp(4096, 2), true).await.unwrap();
        drop(v);
        next.export().await.unwrap();
        drop(next);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.locked(), &names(&["a", "b"]), "tank", &options).await;
        let pool = pool.unwrap();
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(8192, 1)[..4096]).await;
        expect(&v, 4096, &stamp(4096, 2)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_side_that_was_attached_is_waited_for_as_long_as_any_other() {
    Runtime::simulated(12).block_on(async {
        let hangs = Rc::new(Cell::new(false));
        let told = hangs.clone();
        let opener = paced(memory(&["a", "l", "m"], 64 << 20), move |device, operation, _| {
            let is_late = told.get() && device == "m" && operation == Operation::Write;
            is_late.then_some(Nanos::from_secs(3600))
        });
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        // A group would make it durable too.
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        pool.attach("l", "m", false).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        hangs.set(true);
        let begun = rt::now();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        let took = rt::now().since(begun);
        assert!(took < Nanos::from_secs(10), "{took:?}");
    });
}
