//! Imports whose power fails between the roots that they write: the log that is being replayed
//! counts to the end, and members that are left behind and roots that a rewind leaves behind stay
//! so.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{ErrorKind, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::copies::scrub;
use super::rack::{Rack, paced, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::import::error::{ImportErrorKind, RecoveryError};
use crate::labels::read_label;
use crate::spec::ImportOptions;
use crate::status::Health;

const ALL: &[&str] = &["a", "b", "l"];
const SIZE: u64 = 64 << 20;
/// Longer than a frame of the log, so that some records are in several.
const PART: u64 = 384 << 10;
const PARTS: u64 = 9;

async fn import(rack: &Rc<Rack>, options: &ImportOptions) -> Rc<Pool> {
    Pool::import(rack.host(1), &names(ALL), "tank", options).await.unwrap()
}

async fn made(rack: &Rc<Rack>, is_slow: Rc<Cell<bool>>) -> Rc<Pool> {
    let opener = paced(rack.host(1), move |name, operation, at| {
        let is_body = operation == Operation::Write && at >= 5 << 20;
        (is_slow.get() && name != "l" && is_body).then_some(Nanos::from_secs(3600))
    });
    let pool =
        Pool::create(opener, "tank", &spec(Layout::Mirror, &["a", "b"], &["l"])).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    pool.sync().await.unwrap();
    pool
}

/// A crash with more in the log than the groups of a replay hold, so that it writes several roots.
fn much_in_the_log() -> Rc<Rack> {
    much_in_the_log_of("auto")
}

/// The same in a pool of this dirty limit, of which an import keeps no more of the log in memory.
fn much_in_the_log_of(dirty_limit: &'static str) -> Rc<Rack> {
    let rack = Rack::new(ALL, SIZE);
    let mine = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let is_slow = Rc::new(Cell::new(false));
        let pool = made(&mine, is_slow.clone()).await;
        pool.set("dirty_limit", dirty_limit).await.unwrap();
        is_slow.set(true);
        let v = pool.open_volume("v").unwrap();
        let written = (0..PARTS).map(|part| v.write(part * PART, stamp(PART as usize, part), true));
        rt::join_all(written).await.into_iter().for_each(|written| written.unwrap());
        assert!(PARTS * PART > 2 * pool.limits.get().txg_bytes);
    });
    rack
}

async fn has_all(pool: &Rc<Pool>) {
    let v = pool.open_volume("v").unwrap();
    for part in 0..PARTS {
        expect(&v, part * PART, &stamp(PART as usize, part)).await;
    }
}

/// Imports without device `b`, with power for so many changes. Returns whether it failed.
fn cut_import(rack: &Rc<Rack>, cut: u64) -> bool {
    let mine = rack.clone();
    rack.pull(&["b"]);
    rack.switches.power.set(Some(cut));
    Runtime::simulated(2).block_on(async move {
        // Without power it may fail.
        let _ = Pool::import(mine.host(1), &names(ALL), "tank", &ImportOptions::default()).await;
    });
    rack.put_back(&["b"]);
    let failed = rack.switches.power.get() == Some(0);
    rack.switches.power.set(None);
    failed
}

#[test]
fn a_replay_that_is_cut_short_loses_nothing_and_remembers_who_missed_it() {
    for cut in (0..).step_by(9) {
        let rack = much_in_the_log();
        let failed = cut_import(&rack, cut);
        Runtime::simulated(3).block_on(async move {
            let pool = import(&rack, &ImportOptions::default()).await;
            has_all(&pool).await;
            while pool.summary().health != Health::Online {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            pool.export().await.unwrap();
            drop(pool);
            // The device that missed a part of it has all of it now.
            rack.pull(&["a"]);
            let forced = ImportOptions { force: true, ..ImportOptions::default() };
            let pool = import(&rack, &forced).await;
            has_all(&pool).await;
            pool.export().await.unwrap();
        });
        if !failed {
            break;
        }
    }
}

/// A crash with three groups. The newest has plain writes, a durable one that its log has, and
/// perhaps a configuration of its own.
fn three_groups(has_config: bool) -> Rc<Rack> {
    let rack = Rack::new(ALL, SIZE);
    let mine = rack.clone();
    Runtime::simulated(4).block_on(async move {
        let pool = made(&mine, Rc::default()).await;
        let v = pool.open_volume("v").unwrap();
        for salt in [1, 2] {
            v.write(0, stamp(1 << 20, salt), false).await.unwrap();
            pool.sync().await.unwrap();
        }
        v.write(8 << 20, stamp(1 << 20, 9), true).await.unwrap();
        v.write(0, stamp(1 << 20, 3), false).await.unwrap();
        match has_config {
            true => pool.set("autotrim", "off").await.unwrap(),
            false => pool.sync().await.unwrap(),
        }
    });
    rack
}

// What the newest root alone uses is free for the root that was gone back to.
#[test]
fn a_rewind_that_is_cut_short_leaves_a_whole_root() {
    cut_rewinds(false);
}

// The next configuration takes the place of the newest one.
#[test]
fn a_rewind_over_a_change_that_is_cut_short_leaves_a_root_with_its_configuration() {
    cut_rewinds(true);
}

fn cut_rewinds(has_config: bool) {
    let back = |rewind_groups| ImportOptions { rewind_groups, ..ImportOptions::default() };
    for cut in 0.. {
        let rack = three_groups(has_config);
        let mine = rack.clone();
        rack.switches.power.set(Some(cut));
        Runtime::simulated(5).block_on(async move {
            let _ = Pool::import(mine.host(1), &names(ALL), "tank", &back(1)).await;
        });
        let failed = rack.switches.power.get() == Some(0);
        rack.switches.power.set(None);
        Runtime::simulated(6).block_on(async move {
            let pool = import(&rack, &back(0)).await;
            let v = pool.open_volume("v").unwrap();
            let held = v.read(0, IoBuf::zeroed(1 << 20)).await.unwrap();
            let is = |salt| held[..] == stamp(1 << 20, salt)[..];
            assert!(is(2) || is(3), "cut after {cut}");
            assert!(failed || is(2), "the import was not cut");
            expect(&v, 8 << 20, &stamp(1 << 20, 9)).await;
            assert_eq!(scrub(&pool).await.1, 0, "cut after {cut}");
            pool.export().await.unwrap();
        });
        if !failed {
            break;
        }
    }
}

#[test]
fn a_rewind_overwrites_every_root_that_it_leaves_behind() {
    const BACK: usize = 6;
    let rack = Rack::new(ALL, SIZE);
    let mine = rack.clone();
    Runtime::simulated(7).block_on(async move {
        let pool = made(&mine, Rc::default()).await;
        let v = pool.open_volume("v").unwrap();
        for salt in 0..10 {
            v.write(0, stamp(4096, salt), false).await.unwrap();
            pool.sync().await.unwrap();
        }
    });
    Runtime::simulated(8).block_on(async move {
        let before = read_label(&rack.device("a")).await.roots;
        let back = ImportOptions { rewind_groups: BACK as u64, ..ImportOptions::default() };
        let pool = import(&rack, &back).await;
        for name in ["a", "b"] {
            let now = read_label(&rack.device(name)).await.roots;
            let has = |at: usize| now.iter().any(|root| root.commit == before[at].commit);
            assert!((0..BACK).all(|at| !has(at)) && has(BACK), "{name}");
        }
        pool.export().await.unwrap();
    });
}

/// Device "l" can be read until the import claims it.
#[derive(Default)]
struct ReadOnce(Cell<bool>);

impl Script for ReadOnce {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.device != "l" {
                return Decision::Run;
            }
            self.0.set(self.0.get() || command.operation == Operation::Write);
            match command.operation == Operation::Read && self.0.get() {
                true => Decision::Fail(ErrorKind::Os { errno: 5 }),
                false => Decision::Run,
            }
        })
    }
}

// It is too long to be kept, and was whole when it was judged.
#[test]
fn a_log_that_cannot_be_read_a_second_time_ends_the_import() {
    let rack = much_in_the_log_of("1M");
    let mine = rack.clone();
    Runtime::simulated(2).block_on(async move {
        let opener = scripted(mine.host(1), Rc::new(ReadOnce::default()));
        let options = ImportOptions::default();
        let refused = Pool::import(opener, &names(ALL), "tank", &options).await;
        let kind = refused.err().expect("records are missing").kind;
        let ImportErrorKind::Recovery { error, .. } = kind else { panic!("{kind:?}") };
        assert!(matches!(*error, RecoveryError::LogChanged { .. }), "{error:?}");
    });
    Runtime::simulated(3).block_on(async move {
        let pool = import(&rack, &ImportOptions::default()).await;
        has_all(&pool).await;
        pool.export().await.unwrap();
    });
}
