//! Devices that come back at another path, and are known by their labels.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Layout, Nanos};

use super::compression::scan_ended;
use super::imports::{SIZE, check, make, write};
use super::rack::{Rack, paced};
use super::{names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::Health;
use crate::{AdminError, OpenWith, Opener, Opening, Pool};

const DEVICES: [&str; 8] = ["a", "b", "l", "m", "there", "copy", "other", "empty"];

/// A mirror of two with a log mirror, and 8 MiB of data.
async fn mirror(rack: &Rc<Rack>) -> Rc<Pool> {
    let pool = make(rack, Layout::Mirror, &["a", "b"], &["l", "m"]).await;
    let v = pool.open_volume("v").unwrap();
    v.write(1 << 20, stamp(8 << 20, 7), false).await.unwrap();
    pool.sync().await.unwrap();
    pool
}

/// What was at `from` is at `to` from here on.
async fn moves(rack: &Rc<Rack>, from: &str, to: &str) {
    copy(rack, from, to).await;
    rack.pull(&[from]);
}

async fn copy(rack: &Rc<Rack>, from: &str, to: &str) {
    let content = rack.device(from).read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
    rack.device(to).write(0, content.freeze(), true).await.unwrap();
}

fn states(pool: &Pool) -> Vec<(String, Health)> {
    let status = pool.status();
    let vdevs = status.groups.iter().chain(&status.logs);
    let leaves = vdevs.flat_map(|vdev| &vdev.children);
    leaves.map(|leaf| (leaf.name.clone(), leaf.state)).collect()
}

fn all_online(names: [&str; 4]) -> Vec<(String, Health)> {
    names.map(|name| (name.to_owned(), Health::Online)).to_vec()
}

#[test]
fn a_data_device_comes_back_at_another_path_and_only_misses_what_it_missed() {
    let rack = Rack::new(&DEVICES, SIZE);
    let mine = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let pool = mirror(&mine).await;
        pool.offline("b").await.unwrap();
        write(&pool, 2).await;
        pool.sync().await.unwrap();
        moves(&mine, "b", "there").await;
        pool.online("there").await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(states(&pool), all_online(["a", "there", "l", "m"]));
        let repaired_bytes = pool.status().scan.unwrap().repaired_bytes;
        assert!((1..4 << 20).contains(&repaired_bytes), "{repaired_bytes}");
        pool.export().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["a"]);
        let paths = names(&["there", "l", "m"]);
        let pool =
            Pool::import(rack.host(1), &paths, "tank", &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_replacement_comes_back_at_another_path() {
    Runtime::simulated(9).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let pool = mirror(&rack).await;
        pool.set("scan_rate", "1M").await.unwrap();
        pool.replace("a", Some("other"), false).await.unwrap();
        pool.offline("other").await.unwrap();
        moves(&rack, "other", "there").await;
        pool.online("there").await.unwrap();
        let replacing = pool.status().groups.remove(0).children.remove(0);
        let both: Vec<String> = replacing.children.into_iter().map(|child| child.name).collect();
        assert_eq!(both, ["a", "there"]);
        scan_ended(&pool).await;
        assert_eq!(states(&pool), all_online(["there", "b", "l", "m"]));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_side_comes_back_at_another_path() {
    let rack = Rack::new(&DEVICES, SIZE);
    let mine = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let pool = mirror(&mine).await;
        mine.pull(&["l"]);
        write(&pool, 2).await;
        assert_eq!(pool.status().logs[0].children[0].state, Health::Faulted);
        mine.put_back(&["l"]);
        moves(&mine, "l", "there").await;
        pool.online("there").await.unwrap();
        assert_eq!(states(&pool), all_online(["a", "b", "there", "m"]));
        write(&pool, 3).await;
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["m"]);
        let paths = names(&["a", "b", "there", "m"]);
        let pool =
            Pool::import(rack.host(1), &paths, "tank", &ImportOptions::default()).await.unwrap();
        check(&pool, 3).await;
        pool.export().await.unwrap();
    });
}

/// A machine on which each device is in two folders, and held by one opening at a time.
struct TwoFolders {
    rack: Rc<Rack>,
    alone: Rc<dyn Opener>,
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Opener for TwoFolders {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.alone.open(last(path))
    }
    fn open_to_look<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move { self.rack.open_here(last(path)) })
    }
    fn host(&self) -> u64 {
        1
    }
}

#[test]
fn what_was_renamed_while_the_pool_had_it_open_is_opened_anew() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "l", "m"], SIZE);
        let host = Rc::new(TwoFolders { rack: rack.clone(), alone: rack.locked() });
        let shape = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(host, "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        for (device, path) in [("b", "there/b"), ("m", "there/m")] {
            rack.switches.unwritable.borrow_mut().insert(device.to_owned());
            write(&pool, 2).await;
            pool.sync().await.unwrap();
            rack.switches.unwritable.borrow_mut().clear();
            pool.online(path).await.unwrap();
            scan_ended(&pool).await;
        }
        assert_eq!(states(&pool), all_online(["a", "there/b", "l", "there/m"]));
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_failed_device_whose_copy_another_process_has_stays_as_it_was() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "l", "m", "copy"], SIZE);
        let host = Rc::new(TwoFolders { rack: rack.clone(), alone: rack.locked() });
        let shape = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(host.clone(), "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        for device in ["b", "m"] {
            rack.switches.unwritable.borrow_mut().insert(device.to_owned());
            write(&pool, 2).await;
            pool.sync().await.unwrap();
            rack.switches.unwritable.borrow_mut().clear();
            copy(&rack, device, "copy").await;
            let of_another = host.open("copy").await.unwrap();
            let before = states(&pool);
            let refused = pool.online("there/copy").await.unwrap_err();
            assert!(matches!(refused, AdminError::Device(_)), "{refused}");
            assert_eq!(states(&pool), before);
            drop(of_another);
            pool.online(device).await.unwrap();
            scan_ended(&pool).await;
        }
        assert_eq!(states(&pool), all_online(["a", "b", "l", "m"]));
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_side_that_fails_as_the_log_starts_on_it_is_not_told_to_be_back() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let pool = mirror(&rack).await;
        rack.pull(&["l"]);
        write(&pool, 2).await;
        rack.put_back(&["l"]);
        rack.switches.unconfigurable.borrow_mut().insert("l".to_owned());
        let refused = pool.online("l").await.unwrap_err();
        let (name, device) = ("tank".into(), "l".into());
        assert_eq!(refused, AdminError::SideFailed { pool: name, device });
        rack.switches.unconfigurable.borrow_mut().clear();
        pool.online("l").await.unwrap();
        assert_eq!(states(&pool), all_online(["a", "b", "l", "m"]));
        write(&pool, 3).await;
        check(&pool, 3).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_no_device_of_the_pool_or_a_copy_of_one_in_use_is_not_brought_online() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let pool = mirror(&rack).await;
        let shape = spec(Layout::Raid0, &["other"], &[]);
        let other = Pool::create(rack.host(1), "o", &shape).await.unwrap();
        other.export().await.unwrap();
        for path in ["other", "empty", "nothing"] {
            let refused = pool.online(path).await.unwrap_err();
            assert!(matches!(refused, AdminError::UnknownDevice { .. }), "{path}: {refused}");
        }
        for of in ["b", "l"] {
            copy(&rack, of, "copy").await;
            let refused = pool.online("copy").await.unwrap_err();
            let (pool, device, path) = ("tank".into(), of.into(), "copy".into());
            assert_eq!(refused, AdminError::CopyOfOneInUse { pool, device, path });
        }
        assert_eq!(states(&pool), all_online(["a", "b", "l", "m"]));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_is_not_replaced_by_itself_from_another_path_unless_forced() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let pool = mirror(&rack).await;
        pool.offline("b").await.unwrap();
        moves(&rack, "b", "there").await;
        let refused = pool.replace("b", Some("there"), false).await.unwrap_err();
        let (pool_name, device, path) = ("tank".into(), "b".into(), "there".into());
        assert_eq!(refused, AdminError::IsItself { pool: pool_name, device, path });
        // A copy of the other device.
        copy(&rack, "a", "copy").await;
        let refused = pool.replace("b", Some("copy"), false).await.unwrap_err();
        assert!(matches!(refused, AdminError::Candidate(_)), "{refused}");
        pool.replace("b", Some("there"), true).await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(states(&pool), all_online(["a", "there", "l", "m"]));
        pool.export().await.unwrap();
    });
}

/// So that a few more writes to a device do not count.
async fn write_much(pool: &Rc<Pool>) {
    for salt in 0..40 {
        write(pool, salt).await;
        pool.sync().await.unwrap();
    }
}

#[test]
fn a_device_in_use_that_is_brought_online_stays_as_it_is() {
    Runtime::simulated(122).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let shape = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(rack.locked(), "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        write_much(&pool).await;
        for device in ["b", "m"] {
            let before = pool.stats().devices_since_creation[device].writes;
            assert!(before > 30, "{before}");
            pool.online(device).await.unwrap();
            let after = pool.stats().devices_since_creation[device].writes;
            assert!((before..2 * before).contains(&after), "{device}: {before}, then {after}");
        }
        assert_eq!(states(&pool), all_online(["a", "b", "l", "m"]));
        // Nor is it replaced by its copy.
        copy(&rack, "b", "copy").await;
        let refused = pool.replace("b", Some("copy"), false).await.unwrap_err();
        assert!(matches!(refused, AdminError::Candidate(_)), "{refused}");
        write(&pool, 3).await;
        check(&pool, 3).await;
        pool.export().await.unwrap();
    });
}

// The pool holds it open, and reads that the label is gone.
#[test]
fn a_failed_device_without_its_label_is_said_to_have_lost_it() {
    Runtime::simulated(123).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let shape = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(rack.locked(), "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        for device in ["b", "m"] {
            rack.switches.unwritable.borrow_mut().insert(device.to_owned());
            write(&pool, 2).await;
            pool.sync().await.unwrap();
            rack.switches.unwritable.borrow_mut().clear();
            let empty = IoBuf::zeroed(SIZE as usize).freeze();
            rack.device(device).write(0, empty, true).await.unwrap();
            let refused = pool.online(device).await.unwrap_err();
            assert_eq!(refused, AdminError::LabelGone { device: device.to_owned() });
        }
        write(&pool, 3).await;
        check(&pool, 3).await;
        pool.export().await.unwrap();
    });
}

/// All commands fail once the device is unplugged, whatever is plugged in later.
#[derive(Default)]
struct Plug(Cell<bool>);

impl Script for Plug {
    fn before<'a>(&'a self, _: Command<'a>) -> Answer<'a, Decision> {
        let is_out = self.0.get();
        Box::pin(
            async move { if is_out { Decision::Fail(ErrorKind::Gone) } else { Decision::Run } },
        )
    }
}

#[test]
fn commands_before_a_device_was_unplugged_count_when_it_is_back() {
    Runtime::simulated(124).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let plugs: Rc<RefCell<Vec<Rc<Plug>>>> = Rc::default();
        let (mine, all) = (rack.clone(), plugs.clone());
        let opener = OpenWith::new(1, move |name| {
            let device = mine.open_here(name)?;
            if name != "b" {
                return Ok(device);
            }
            let plug = Rc::<Plug>::default();
            all.borrow_mut().push(plug.clone());
            Ok(Probe::new(device, plug) as Device)
        });
        let shape = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(opener, "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        write_much(&pool).await;
        let before = pool.stats().devices_since_creation["b"].writes;
        assert!(before > 100, "{before}");
        plugs.borrow().iter().for_each(|plug| plug.0.set(true));
        write(&pool, 3).await;
        pool.sync().await.unwrap();
        pool.online("b").await.unwrap();
        scan_ended(&pool).await;
        let after = pool.stats().devices_since_creation["b"].writes;
        assert!((before..3 * before).contains(&after), "{before}, then {after}");
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

// A command that the device executes later would lie over what is written then.
#[test]
fn a_device_with_commands_under_way_is_not_brought_online() {
    Runtime::simulated(125).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let hangs = Rc::new(Cell::new(""));
        let told = hangs.clone();
        let opener = paced(rack.host(1), move |device, operation, _| {
            let is_late = device == told.get() && operation == Operation::Write;
            is_late.then_some(Nanos::from_secs(600))
        });
        let shape = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(opener, "tank", &shape).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        for device in ["b", "m"] {
            hangs.set(device);
            write(&pool, 2).await;
            pool.sync().await.unwrap();
            hangs.set("");
            let late = pool.online(device).await.unwrap_err();
            assert!(matches!(late, AdminError::LateCommands { .. }), "{late:?}");
            rt::sleep(Nanos::from_secs(700)).await;
            pool.online(device).await.unwrap();
            scan_ended(&pool).await;
            assert_eq!(states(&pool), all_online(["a", "b", "l", "m"]));
        }
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}
