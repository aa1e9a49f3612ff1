use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_format::label::{
    CONFIG_SLOT_BYTES, HEARTBEAT_OFFSET_BYTES, Heartbeat, LABEL_BYTES, SUPERBLOCK_SLOTS,
};
use forebay_multihost::write_heartbeat;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{CommitId, Layout};

use super::*;
use crate::SuspendReason;
use crate::labels::{read_label, write_config};
use crate::spec::ImportOptions;
use crate::status::{Health, PoolCondition};
use crate::tests::rack::{Rack, paced, scripted};
use crate::tests::{expect, names, spec, stamp, volume};

const SIZE: u64 = 64 << 20;
const ALL: [&str; 5] = ["a", "b", "c", "d", "l"];
/// Two intervals, and the time of a root.
const SOON: Nanos = Nanos::from_secs(12);

async fn overwrite(rack: &Rc<Rack>, name: &str, areas: &[u64]) {
    let device = rack.device(name);
    for area in areas {
        let junk = IoBuf::copy_of(&vec![0xa5; LABEL_BYTES as usize]).freeze();
        device.write(*area, junk, true).await.unwrap();
    }
}

/// A raidz1 of four with a log device.
async fn made(rack: &Rc<Rack>) -> Rc<Pool> {
    let options = spec(Layout::Raidz1, &ALL[..4], &["l"]);
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    pool.sync().await.unwrap();
    rt::sleep(SOON).await;
    pool
}

fn damaged(pool: &Pool, name: &str) -> usize {
    let of_it = |event: &&PoolEvent| match event {
        PoolEvent::LabelDamaged { device, .. } => device == name,
        _ => false,
    };
    pool.events().iter().filter(of_it).count()
}

#[test]
fn lost_labels_are_written_anew_and_the_device_counts_again() {
    const AREAS: [u64; 2] = [0, SIZE - LABEL_BYTES];
    for areas in [&AREAS[..], &AREAS[..1], &AREAS[1..]] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        // The power fails at the end of this run: nothing is exported.
        let _ = Runtime::simulated(1).run(async move {
            let pool = made(&mine).await;
            overwrite(&mine, "b", areas).await;
            overwrite(&mine, "l", areas).await;
            rt::sleep(SOON).await;
            assert_eq!((damaged(&pool, "b"), damaged(&pool, "l")), (1, 1), "{:?}", pool.events());
            assert_eq!(pool.status().state, Health::Online);
            assert_eq!(pool.condition(), PoolCondition::DeviceErrors);
            rt::halt();
            rt::yield_now().await;
        });
        Runtime::simulated(2).block_on(async move {
            rack.pull(&["a"]);
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
            assert_eq!(pool.status().state, Health::Degraded);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn scrub_finds_and_repairs_labels() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        overwrite(&rack, "c", &label_offsets(SIZE)).await;
        pool.scrub().await.unwrap();
        let scan = loop {
            rt::sleep(Nanos::from_millis(10)).await;
            match pool.status().scan {
                Some(scan) if scan.state == crate::status::ScanPhase::Completed => break scan,
                _ => {}
            }
        };
        assert!(scan.repaired_bytes > 0 && scan.errors == 0, "{scan:?}");
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(pool.check_labels().await, LabelFaults::default(), "they are whole again");
        pool.export().await.unwrap();
    });
}

#[test]
fn another_configuration_of_the_same_number_is_damage() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        let device = rack.device("c");
        let (envelope, mut config) = read_label(&device).await.configs.remove(0);
        config.history.push("what another owner has done".into());
        write_config(&device, envelope.device, &config).await.unwrap();
        assert_eq!(pool.check_labels().await.damaged, 1);
        pool.sync().await.unwrap();
        assert_eq!(pool.check_labels().await, LabelFaults::default(), "it is written anew");
        pool.export().await.unwrap();
    });
}

#[test]
fn whole_labels_cause_no_root() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        let before = pool.sync.commit.get();
        rt::sleep(Nanos::from_secs(60)).await;
        assert_eq!(pool.sync.commit.get(), before);
        assert_eq!(pool.events(), []);
        pool.export().await.unwrap();
    });
}

// The slots of configurations and roots are used again before they are read.
#[test]
fn labels_that_are_written_while_they_are_read_are_whole() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let machine = paced(rack.host(1), |_, operation, at| {
            let is_label = !(LABEL_BYTES..SIZE - LABEL_BYTES).contains(&at);
            (operation == Operation::Read && is_label).then_some(Nanos::from_millis(50))
        });
        let options = spec(Layout::Raidz1, &ALL[..4], &["l"]);
        let pool = Pool::create(machine, "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        let checking = rt::spawn({
            let pool = pool.clone();
            async move { pool.check_labels().await }
        });
        rt::sleep(Nanos::from_millis(10)).await;
        for _ in 0..SUPERBLOCK_SLOTS {
            pool.log_history("a command");
            pool.sync().await.unwrap();
        }
        assert!(!checking.is_finished());
        assert_eq!(checking.await, LabelFaults::default(), "{:?}", pool.events());
        assert_eq!(pool.events(), []);
        pool.export().await.unwrap();
    });
}

#[test]
fn device_of_another_pool_is_left_alone() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "x"], SIZE);
        let other = spec(Layout::Raid0, &["x"], &[]);
        Pool::create(rack.host(1), "other", &other).await.unwrap().export().await.unwrap();
        let foreign = rack.device("x").read(0, IoBuf::zeroed(LABEL_BYTES as usize)).await.unwrap();
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        rt::sleep(SOON).await;
        let foreign = foreign.freeze();
        for area in label_offsets(SIZE) {
            rack.device("b").write(area, foreign.clone(), true).await.unwrap();
        }
        rt::sleep(SOON).await;
        assert_eq!(pool.status().groups[0].children[1].state, Health::Faulted);
        let held = rack.device("b").read(0, IoBuf::zeroed(LABEL_BYTES as usize)).await.unwrap();
        assert!(held[..384 << 10] == foreign[..384 << 10], "its label was overwritten");
        pool.export().await.unwrap();
    });
}

/// A device that loses its end, or whose file is deleted.
struct Ends(&'static str, ErrorKind);

impl Script for Ends {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        use forebay_device::Operation::{Check, Read};
        let is_touched = match self.1 {
            ErrorKind::Deleted => command.operation == Check,
            _ => command.operation == Read && command.end_bytes() > SIZE / 2,
        };
        let is_gone = command.device == self.0 && is_touched && rt::now() > Nanos::from_secs(30);
        let decision = match is_gone {
            true => Decision::Fail(self.1.clone()),
            false => Decision::Run,
        };
        Box::pin(std::future::ready(decision))
    }
}

#[test]
fn device_that_became_smaller_or_was_deleted_is_taken_out() {
    let short = ErrorKind::Short { got_bytes: 0 };
    let kinds = [short, ErrorKind::Deleted];
    let cases = kinds.into_iter().flat_map(|kind| [("b", false, kind.clone()), ("m", true, kind)]);
    for (name, is_log, kind) in cases {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(&["a", "b", "l", "m"], SIZE);
            let machine = scripted(rack.host(1), Rc::new(Ends(name, kind)));
            let options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
            let pool = Pool::create(machine, "tank", &options).await.unwrap();
            pool.sync().await.unwrap();
            rt::sleep(Nanos::from_secs(45)).await;
            let status = pool.status();
            let vdev = if is_log { &status.logs[0] } else { &status.groups[0] };
            assert_eq!(vdev.children[1].state, Health::Faulted, "{:?}", pool.events());
            assert_eq!(status.state, Health::Degraded);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn log_device_that_forgot_its_last_frame_is_taken_out() {
    for logs in [&["l", "m"][..], &["l"]] {
        let rack = Rack::new(&["a", "b", "l", "m"], SIZE);
        let mine = rack.clone();
        let _ = Runtime::simulated(1).run(async move {
            let options = spec(Layout::Mirror, &["a", "b"], logs);
            let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(4096, 1), true).await.unwrap();
            rt::sleep(SOON).await;
            assert_eq!(pool.events(), []);
            // All of the ring, so that the next import could not read it either.
            let junk = IoBuf::copy_of(&vec![0xa5; 1 << 20]).freeze();
            mine.device("l").write(LABEL_BYTES, junk, true).await.unwrap();
            rt::sleep(SOON).await;
            let side = match logs.len() {
                1 => pool.status().logs[0].clone(),
                _ => pool.status().logs[0].children[0].clone(),
            };
            assert_eq!(side.state, Health::Faulted, "{:?}", pool.events());
            let written = v.write(4096, stamp(4096, 2), true).await;
            assert!(written.is_ok(), "the log goes on without it");
            rt::halt();
            rt::yield_now().await;
        });
        Runtime::simulated(2).block_on(async move {
            let (paths, options) = (names(&["a", "b", "l", "m"]), ImportOptions::default());
            let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            expect(&v, 0, &stamp(4096, 1)).await;
            expect(&v, 4096, &stamp(4096, 2)).await;
            pool.export().await.unwrap();
        });
    }
}

// The next owner has written over labels and log, and this one has not polled the heartbeat since.
#[test]
fn replaced_owner_blames_no_device_for_what_the_next_one_wrote() {
    for (checks_log, checks_labels) in [(true, false), (false, true), (true, true)] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(&ALL, SIZE);
            let pool = made(&rack).await;
            let v = volume(4 << 20);
            pool.create_volume(&v).await.unwrap();
            pool.open_volume("v").unwrap().write(0, stamp(4096, 1), true).await.unwrap();
            let next = Heartbeat { pool: pool.guid, nonce: pool.nonce ^ 1, host: 2, beat: 0 };
            for name in ALL {
                write_heartbeat(&rack.device(name), &next).await.unwrap();
            }
            let log = rack.device("l");
            let junk = IoBuf::copy_of(&vec![0xa5; 4 << 20]).freeze();
            log.write(LABEL_BYTES, junk, true).await.unwrap();
            overwrite(&rack, "b", &[0]).await;
            if checks_log {
                pool.check_log().await;
            }
            if checks_labels {
                pool.check_labels().await;
            }
            let status = pool.status();
            assert_eq!(pool.condition(), PoolCondition::Suspended(SuspendReason::TakenOver));
            assert_eq!(status.logs[0].state, Health::Online, "{:?}", pool.events());
            assert_eq!(damaged(&pool, "b"), 0, "{:?}", pool.events());
        });
    }
}

#[test]
fn a_device_that_is_taken_offline_while_its_label_is_read_is_not_judged_by_it() {
    Runtime::simulated(11).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        rack.switches.reads_take.set(Nanos::from_secs(1));
        let checking = rt::spawn({
            let pool = pool.clone();
            async move { pool.check_labels().await }
        });
        rt::sleep(Nanos::from_millis(10)).await;
        assert!(!checking.is_finished());
        pool.offline("b").await.unwrap();
        // It is used for something else.
        overwrite(&rack, "b", &label_offsets(SIZE)).await;
        assert!(!checking.is_finished(), "the labels were read before");
        let found = checking.await;
        assert_eq!((found.damaged, found.failed), (0, 0));
        assert_eq!(damaged(&pool, "b"), 0, "{:?}", pool.events());
        rack.switches.reads_take.set(Nanos::ZERO);
        pool.export().await.unwrap();
    });
}

// It cannot be done without, and the operator must know.
#[test]
fn the_only_device_is_needed_although_it_has_the_label_of_another_pool() {
    Runtime::simulated(4056).block_on(async {
        let rack = Rack::new(&["a", "x"], SIZE);
        let other = spec(Layout::Raid0, &["x"], &[]);
        Pool::create(rack.host(1), "other", &other).await.unwrap().export().await.unwrap();
        let (envelope, _) = read_label(&rack.device("x")).await.configs.remove(0);
        let config = IoBuf::copy_of(&envelope.encode().unwrap()).freeze();
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        rt::sleep(SOON).await;
        for area in label_offsets(SIZE) {
            for slot in 0..2 {
                let at = area + slot * CONFIG_SLOT_BYTES;
                rack.device("a").write(at, config.clone(), true).await.unwrap();
            }
        }
        rt::sleep(SOON).await;
        let is_needed = |event: &PoolEvent| {
            matches!(event, PoolEvent::StillNeeded { device, .. } if device == "a")
        };
        assert!(damaged(&pool, "a") > 0 && pool.events().iter().any(is_needed));
        assert_eq!(pool.check_labels().await, LabelFaults { damaged: 0, failed: 1 });
        assert_eq!(pool.status().state, Health::Online, "{:?}", pool.events());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_root_that_is_older_or_of_another_pool_is_damage() {
    Runtime::simulated(4081).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        // No root replaces what is there.
        let commits = pool.writers.lock().await;
        let device = rack.device("c");
        let root = read_label(&device).await.roots.remove(0);
        let place = SUPERBLOCK_OFFSET_BYTES + root.slot() * SUPERBLOCK_BYTES;
        let older = Superblock { commit: CommitId(root.commit.0 - 1), ..root.clone() };
        let other = Superblock { pool: root.pool ^ 1, ..root.clone() };
        let newer = Superblock { commit: CommitId(root.commit.0 + 64), ..root };
        for (in_place, count) in [(older, 1), (other, 1), (newer, 0)] {
            for area in label_offsets(SIZE) {
                let block = IoBuf::copy_of(&in_place.encode()).freeze();
                device.write(area + place, block, true).await.unwrap();
            }
            assert_eq!(pool.check_labels().await, LabelFaults { damaged: count, failed: 0 });
        }
        drop(commits);
    });
}

/// Forgets what is written to the labels of one device, from some time on.
struct Forgets(&'static str);

impl Script for Forgets {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_label = command.operation == Operation::Write
            && !(LABEL_BYTES..SIZE - LABEL_BYTES).contains(&command.offset_bytes)
            && command.len_bytes < 1 << 20;
        let is_lost = command.device == self.0 && is_label && rt::now() > Nanos::from_secs(20);
        let is_heartbeat = command.offset_bytes == HEARTBEAT_OFFSET_BYTES;
        let is_lost = is_lost && !is_heartbeat;
        Box::pin(std::future::ready(if is_lost { Decision::Drop } else { Decision::Run }))
    }
}

#[test]
fn a_device_that_forgets_its_labels_causes_a_root_each_five_minutes_at_most() {
    Runtime::simulated(4082).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let machine = scripted(rack.host(1), Rc::new(Forgets("b")));
        let options = spec(Layout::Raidz1, &ALL[..4], &["l"]);
        let pool = Pool::create(machine, "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        pool.log_history("a command");
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(3600)).await;
        let found = damaged(&pool, "b");
        // After 5, 10, 20, 40, 80 and 160 seconds, and then each 300.
        assert!((14..=20).contains(&found), "{found}");
        pool.export().await.unwrap();
    });
}

#[test]
fn labels_are_looked_at_as_often_after_an_hour_without_damage() {
    Runtime::simulated(4083).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack).await;
        rt::sleep(Nanos::from_secs(3700)).await;
        overwrite(&rack, "b", &label_offsets(SIZE)).await;
        rt::sleep(SOON).await;
        assert_eq!(damaged(&pool, "b"), 1);
        pool.export().await.unwrap();
    });
}
