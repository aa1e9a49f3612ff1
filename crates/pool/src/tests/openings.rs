//! Devices whose opening hangs: their file system does not answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::layers::SingleWriter;
use forebay_device::{Device, IoBuf, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::Shelf;
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, forced, make, until_crash, write};
use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::labels::clear_label;
use crate::spec::{ImportOptions, Told};
use crate::status::{Health, PoolEvent};
use crate::{Answering, ImportError, ImportErrorKind, OpenWith, Opener, Opening, Pool};

/// Opens the devices of a rack; the opening of `b` does not return while `hangs` is set.
struct Stuck {
    inner: Rc<dyn Opener>,
    hangs: Rc<Cell<bool>>,
}

impl Opener for Stuck {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            if path == "b" && self.hangs.get() {
                std::future::pending::<()>().await;
            }
            self.inner.open(path).await
        })
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}

/// Opens devices alone, as files with locks are; the opening of one of them takes a while.
struct Alone {
    shelf: Rc<Shelf>,
    slow: &'static str,
}

impl Opener for Alone {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            if path == self.slow {
                rt::sleep(Nanos::from_millis(100)).await;
            }
            self.shelf.open_alone(path)
        })
    }
    fn open_to_look<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(std::future::ready(self.shelf.open(path)))
    }
    fn host(&self) -> u64 {
        1
    }
}

fn shelf() -> Rc<Shelf> {
    Shelf::new(["a", "b"].map(|name| Rc::new(MemoryDevice::new(name, SIZE)) as Device))
}

#[test]
fn imports_of_two_processes_do_not_each_go_on_with_half_of_a_mirror() {
    for seed in 1..9 {
        Runtime::simulated(seed).block_on(async move {
            let shelf = shelf();
            let opener = |slow| Rc::new(Alone { shelf: shelf.clone(), slow });
            let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(opener(""), "tank", &mirror).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            pool.export().await.unwrap();
            drop(pool);
            let imports = ["a", "b"].map(|slow| {
                let opener = opener(slow);
                rt::spawn(async move {
                    let options = ImportOptions::default();
                    let pool = Pool::import(opener, &names(&["a", "b"]), "tank", &options).await?;
                    assert_eq!(pool.summary().health, Health::Online);
                    write(&pool, 1).await;
                    check(&pool, 1).await;
                    rt::sleep(Nanos::from_secs(20)).await;
                    pool.export().await.unwrap();
                    Ok::<(), ImportError>(())
                })
            });
            let mut done = 0;
            for import in imports {
                match import.await {
                    Ok(()) => done += 1,
                    Err(error) => assert!(
                        matches!(
                            error.kind,
                            ImportErrorKind::HeldHere { .. } | ImportErrorKind::NotFound { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            assert_eq!(done, 1);
        });
    }
}

#[test]
fn import_with_an_old_list_finds_the_members_that_were_added_since() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.attach("l", "m", false).await.unwrap();
        pool.replace("b", Some("c"), false).await.unwrap();
        while pool.summary().health != Health::Online {
            rt::sleep(Nanos::from_secs(1)).await;
        }
    });
    Runtime::simulated(1).block_on(async move {
        let options = |known| ImportOptions { known, ..forced() };
        // As another command has read it before these commands.
        let list = names(&["a", "b", "l"]);
        let told = Some(Told { generation: 0, owner: 0 });
        let import = |options| {
            let (host, list) = (rack.host(1), list.clone());
            async move { Pool::import(host, &list, "tank", &options).await.unwrap() }
        };
        let pool = import(options(told)).await;
        check(&pool, 1).await;
        assert_eq!(pool.summary().health, Health::Online);
        assert_eq!(pool.status().logs[0].state, Health::Online);
        pool.export().await.unwrap();
        // Of a folder that an operator names nothing else is taken.
        let pool = import(options(None)).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        pool.export().await.unwrap();
    });
}

#[test]
fn import_goes_on_without_a_member_whose_lock_is_left_by_a_device_that_hangs() {
    Runtime::simulated(1).block_on(async move {
        let shelf = shelf();
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let all = || Rc::new(Alone { shelf: shelf.clone(), slow: "" });
        let pool = Pool::create(all(), "tank", &mirror).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        write(&pool, 1).await;
        pool.export().await.unwrap();
        drop(pool);
        let left = shelf.open_alone("b").unwrap();
        let import = || async { Pool::import(all(), &names(&["a", "b"]), "tank", &forced()).await };
        // As long as it can be read, its holder may write to it, and -f changes nothing.
        assert_kind!(import().await.err().unwrap().kind, HeldHere { .. });
        // A label that is another's, or that cannot be read.
        left.write(0, IoBuf::zeroed(1 << 20).freeze(), true).await.unwrap();
        let end = SIZE - (1 << 20);
        left.write(end, IoBuf::zeroed(1 << 20).freeze(), true).await.unwrap();
        let pool = import().await.unwrap();
        check(&pool, 1).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_whose_opening_hangs_is_missing_until_it_answers() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &[]).await.export().await.unwrap();
    });
    Runtime::simulated(1).block_on(async move {
        let hangs = Rc::new(Cell::new(true));
        let opener = Rc::new(Stuck { inner: rack.host(1), hangs: hangs.clone() });
        let begun = rt::now();
        let found = Pool::discover(opener.clone(), &names(&ALL)).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].paths, ["a"]);
        // The limit of one opening, not of one after the other.
        assert!(rt::now().since(begun) < Nanos::from_secs(40));

        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(opener, &names(&ALL), "tank", &options).await.unwrap();
        check(&pool, 1).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        assert!(pool.online("b").await.is_err(), "it still hangs");
        hangs.set(false);
        pool.online("b").await.unwrap();
        while pool.summary().health != Health::Online {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_is_found_is_shown_with_the_present_names_of_its_devices() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await.export().await.unwrap();
    });
    Runtime::simulated(1).block_on(async move {
        let opener = OpenWith::new(1, move |name| rack.open_here(name.trim_start_matches("new-")));
        let found = Pool::discover(opener, &names(&["new-b", "new-l"])).await.remove(0);
        let sides = found.groups[0].children.iter().map(|side| side.name.as_str());
        assert_eq!(sides.collect::<Vec<_>>(), ["a", "new-b"], "one is missing");
        assert_eq!(found.logs[0].name, "new-l");
    });
}

/// Opens the devices of a rack; log side `m` is on another host.
struct Far(Rc<Rack>);

impl Opener for Far {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move { self.0.open_here(path) })
    }
    fn host(&self) -> u64 {
        1
    }
    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        (path == "m").then(|| Box::pin(async { self.0.open_here("m").is_ok() }) as Answering<'_>)
    }
}

#[test]
fn a_log_side_on_another_host_is_back_soon_after_its_host_however_long_it_was_away() {
    for away in [5, 35, 70, 3640] {
        let mirrored = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let rack = Rack::new(&ALL, SIZE);
        Runtime::simulated(away).block_on(async move {
            let pool = Pool::create(Rc::new(Far(rack.clone())), "tank", &mirrored).await.unwrap();
            let pulled = &rack.switches.pulled;
            pool.create_volume(&volume(1 << 20)).await.unwrap();
            let volume = pool.open_volume("v").unwrap();
            pulled.borrow_mut().insert("m".to_owned());
            volume.write(0, stamp(4096, 1), true).await.unwrap();
            assert_eq!(pool.summary().health, Health::Degraded);
            rt::sleep(Nanos::from_secs(away)).await;
            assert_eq!(pool.summary().health, Health::Degraded);
            pulled.borrow_mut().remove("m");
            // Until then the log has one side less.
            rt::sleep(Nanos::from_secs(15)).await;
            assert_eq!(pool.summary().health, Health::Online, "away for {away} s");
            pool.export().await.unwrap();
        });
    }
}

/// As [`Far`]; notes when it was asked whether `m` answers.
struct Asked(Far, RefCell<Vec<Nanos>>);

impl Opener for Asked {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.0.open(path)
    }
    fn host(&self) -> u64 {
        1
    }
    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        self.1.borrow_mut().push(rt::now());
        self.0.answers(path)
    }
}

#[test]
fn a_host_that_is_away_is_tried_again_after_longer_and_longer_pauses() {
    let mirrored = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
    let rack = Rack::new(&ALL, SIZE);
    Runtime::simulated(9).block_on(async move {
        let opener = Rc::new(Asked(Far(rack.clone()), RefCell::default()));
        let pool = Pool::create(opener.clone(), "tank", &mirrored).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let volume = pool.open_volume("v").unwrap();
        for time in 0..2 {
            rack.pull(&["m"]);
            volume.write(0, stamp(4096, time), true).await.unwrap();
            opener.1.take();
            rt::sleep(Nanos::from_secs(60)).await;
            let asked = opener.1.take();
            let pauses = asked.windows(2).map(|two| two[1].since(two[0]).0 / 1_000_000_000);
            assert_eq!(pauses.collect::<Vec<_>>(), [2, 4, 8, 10, 10, 10, 10]);
            rack.put_back(&["m"]);
            rt::sleep(Nanos::from_secs(15)).await;
            assert_eq!(pool.summary().health, Health::Online);
        }
        // What the operator took offline is not asked for.
        pool.offline("m").await.unwrap();
        opener.1.take();
        rt::sleep(Nanos::from_secs(60)).await;
        assert_eq!(opener.1.take(), []);
        assert!(!pool.events().iter().any(|e| matches!(e, PoolEvent::LogDeviceRefused { .. })));
        pool.export().await.unwrap();
    });
}

#[test]
fn an_import_without_a_side_takes_it_back_and_leaves_the_others_alone() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &["l", "m"]).await.export().await.unwrap();
    });
    Runtime::simulated(3).block_on(async move {
        rack.pull(&["m"]);
        let opener: Rc<dyn Opener> = Rc::new(Far(rack.clone()));
        let options = ImportOptions::default();
        let pool = Pool::import(opener, &names(&ALL), "tank", &options).await.unwrap();
        assert_eq!(pool.status().logs[0].children[1].state, Health::Unavail);
        rt::sleep(Nanos::from_secs(20)).await;
        rack.put_back(&["m"]);
        rt::sleep(Nanos::from_secs(15)).await;
        assert_eq!(pool.summary().health, Health::Online, "{:?}", pool.events());
        rt::sleep(Nanos::from_secs(60)).await;
        let returns = |event: &PoolEvent| {
            matches!(
                event,
                PoolEvent::LogDeviceReturned { .. } | PoolEvent::LogDeviceRefused { .. }
            )
        };
        assert_eq!(pool.events().iter().filter(|event| returns(event)).count(), 1);
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

// What was told before it was back is news when it comes again.
#[test]
fn a_log_side_that_is_refused_again_after_it_was_back_is_told_of_again() {
    let mirrored = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
    let rack = Rack::new(&ALL, SIZE);
    Runtime::simulated(8).block_on(async move {
        let pool = Pool::create(Rc::new(Far(rack.clone())), "tank", &mirrored).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let volume = pool.open_volume("v").unwrap();
        for times in 1..=2 {
            let m = rack.device("m");
            let label = m.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap().freeze();
            rack.pull(&["m"]);
            volume.write(0, stamp(4096, times), true).await.unwrap();
            rack.put_back(&["m"]);
            clear_label(&m).await.unwrap();
            rt::sleep(Nanos::from_secs(20)).await;
            let refused = |event: &PoolEvent| matches!(event, PoolEvent::LogDeviceRefused { .. });
            let told = pool.events().iter().filter(|event| refused(event)).count();
            assert_eq!(told as u64, times, "{:?}", pool.events());
            m.write(0, label, true).await.unwrap();
            rt::sleep(Nanos::from_secs(20)).await;
            assert_eq!(pool.summary().health, Health::Online);
        }
        pool.export().await.unwrap();
    });
}

/// As [`Far`]; one client at a time writes to side `m`, as `forebay log-target` has it.
struct Fenced(Far, Rc<SingleWriter>);

impl Opener for Fenced {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        match path {
            "m" => Box::pin(async { Ok(self.1.open() as Device) }),
            other => self.0.open(other),
        }
    }
    fn host(&self) -> u64 {
        1
    }
    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        self.0.answers(path)
    }
}

#[test]
fn a_side_that_another_client_has_written_to_is_opened_anew() {
    let mirrored = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
    let rack = Rack::new(&ALL, SIZE);
    Runtime::simulated(7).block_on(async move {
        let target = SingleWriter::new(rack.open_here("m").unwrap());
        let opener = Rc::new(Fenced(Far(rack.clone()), target.clone()));
        let pool = Pool::create(opener, "tank", &mirrored).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let volume = pool.open_volume("v").unwrap();
        // The last write of the owner before, which came after this one had connected.
        let before: Device = target.open();
        let held = before.read(0, IoBuf::zeroed(4096)).await.unwrap().freeze();
        before.write(0, held, true).await.unwrap();
        volume.write(0, stamp(4096, 1), true).await.unwrap();
        rt::sleep(Nanos::from_secs(15)).await;
        volume.write(0, stamp(4096, 2), true).await.unwrap();
        assert_eq!(pool.summary().health, Health::Online, "{:?}", pool.events());
        let fails = |event: &PoolEvent| matches!(event, PoolEvent::LogDeviceFailed { .. });
        assert_eq!(pool.events().iter().filter(|event| fails(event)).count(), 1);
        pool.export().await.unwrap();
    });
}
