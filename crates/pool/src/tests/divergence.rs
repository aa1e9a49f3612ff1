//! Divergence: halves of a pool that were written apart from each other.

use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, forced, import, make, refused, until_crash, write};
use super::rack::Rack;
use super::{names, spec, volume};
use crate::spec::{ImportOptions, LogSpec};
use crate::status::{Health, Importable};
use crate::{AdminError, Pool};

fn keep(path: &str) -> ImportOptions {
    ImportOptions { keep: Some(path.into()), ..Default::default() }
}

/// A mirror whose halves were each imported with force, alone, and written.
fn two_halves() -> Rc<Rack> {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        pool.sync().await.unwrap();
    });
    let mine = rack.clone();
    Runtime::simulated(2).block_on(async move {
        for (gone, salt, roots) in [("b", 2, 1), ("a", 3, 40)] {
            mine.pull(&[gone]);
            let pool = import(&mine, 1, &forced()).await.unwrap();
            write(&pool, salt).await;
            for _ in 0..roots {
                pool.sync().await.unwrap();
            }
            pool.export().await.unwrap();
            mine.put_back(&[gone]);
        }
    });
    rack
}

#[test]
fn diverged_halves_are_refused_until_one_is_kept() {
    for (kept, other, salt) in [("a", "b", 2), ("b", "a", 3)] {
        let rack = two_halves();
        Runtime::simulated(3).block_on(async move {
            for options in [ImportOptions::default(), forced()] {
                let kind = refused(&rack, 1, &options).await;
                assert_kind!(kind, Diverged { newest, others, .. }
                    if others.len() == 1 && *newest != others[0]);
            }
            let kind = refused(&rack, 1, &keep("x")).await;
            assert_kind!(kind, NotKept { device } if device == "x");
            let found = Pool::discover(rack.host(1), &names(&ALL)).await;
            let Importable::Refused(kind) = &found[0].importable else { panic!("{found:?}") };
            assert_kind!(kind, Diverged { .. });
            let pool = import(&rack, 1, &keep(kept)).await.unwrap();
            check(&pool, salt).await;
            assert_eq!(pool.summary().health, Health::Degraded);
            // The half that was left behind does not come back, neither by itself nor by command.
            let error = pool.online(other).await.unwrap_err();
            let (pool_name, device) = ("tank".to_owned(), other.to_owned());
            assert_eq!(error, AdminError::Diverged { pool: pool_name, device });
            write(&pool, 9).await;
            pool.export().await.unwrap();
            drop(pool);
            // The choice was made once.
            let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
            check(&pool, 9).await;
            assert_eq!(pool.summary().health, Health::Degraded);
            pool.replace(other, None, false).await.unwrap();
            while pool.summary().health != Health::Online {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            pool.export().await.unwrap();
            drop(pool);
            // The half that was taken in anew is as good as the other.
            rack.pull(&[kept]);
            let pool = import(&rack, 1, &forced()).await.unwrap();
            check(&pool, 9).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_half_that_crashed_is_told_from_the_half_that_was_forced() {
    // One owner continues with 'a' alone and ends; then 'b' is forced, from an older state.
    for roots in [0, 1, 5] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
            pool.sync().await.unwrap();
            mine.pull(&["b"]);
            write(&pool, 2).await;
            for _ in 0..roots {
                pool.sync().await.unwrap();
            }
            mine.put_back(&["b"]);
        });
        Runtime::simulated(2).block_on(async move {
            rack.pull(&["a"]);
            let pool = import(&rack, 1, &forced()).await.unwrap();
            check(&pool, 1).await;
            pool.export().await.unwrap();
            drop(pool);
            rack.put_back(&["a"]);
            let kind = refused(&rack, 1, &ImportOptions::default()).await;
            assert_kind!(kind, Diverged { .. });
        });
    }
}

#[test]
fn devices_that_were_away_rejoin_after_any_number_of_imports() {
    let rack = Rack::new(&ALL, SIZE);
    Runtime::simulated(4).block_on(async move {
        let pool = make(&rack, Layout::Raidz2, &["a", "b", "c", "d"], &["l"]).await;
        pool.export().await.unwrap();
        drop(pool);
        // Each device in turn is away for one import or for many, so their last roots are of many
        // owners.
        for round in 0..12 {
            let away = ["a", "b", "c", "d"][round % 4];
            rack.pull(&[away]);
            for _ in 0..1 + round % 3 {
                let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
                write(&pool, 10 + round as u64).await;
                pool.export().await.unwrap();
            }
            rack.put_back(&[away]);
            let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
            check(&pool, 10 + round as u64).await;
            while pool.summary().health != Health::Online {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            pool.export().await.unwrap();
        }
        // A device that was left out on purpose is away like any other; -F goes back for it too.
        rack.pull(&["a"]);
        let back = ImportOptions { rewind_groups: 2, ..Default::default() };
        let pool = import(&rack, 1, &back).await.unwrap();
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        rack.put_back(&["a"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn an_import_that_is_cut_short_sets_no_device_apart() {
    // The power fails at every command of an import without 'a'. With 'a' back, the pool is
    // imported.
    let start = || {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
            pool.sync().await.unwrap();
            write(&pool, 2).await;
        });
        rack
    };
    let short = |power: Option<u64>, away: &'static str| {
        let rack = start();
        let mine = rack.clone();
        let changes = Runtime::simulated(2).block_on(async move {
            mine.switches.power.set(power);
            let before = mine.changes();
            // Without power it may fail.
            let _ = import(&mine, 1, &ImportOptions::default()).await;
            mine.changes() - before
        });
        rack.switches.power.set(None);
        let mine = rack.clone();
        Runtime::simulated(3).block_on(async move {
            mine.pull(&[away]);
            let pool = import(&mine, 1, &ImportOptions::default()).await;
            let pool = pool.unwrap_or_else(|e| panic!("power {power:?} without {away}: {e}"));
            check(&pool, 2).await;
            write(&pool, 3).await;
            pool.export().await.unwrap();
            mine.put_back(&[away]);
            drop(pool);
            let pool = import(&mine, 1, &ImportOptions::default()).await;
            let pool = pool.unwrap_or_else(|e| panic!("power {power:?}, {away} is back: {e}"));
            check(&pool, 3).await;
            pool.export().await.unwrap();
        });
        changes
    };
    let commands = short(None, "a");
    for power in 0..=commands {
        short(Some(power), "a");
        short(Some(power), "b");
    }
}

#[test]
fn a_log_that_one_half_wrote_is_that_halfs() {
    for (kept, salt, gone) in [("a", 3, false), ("b", 4, true)] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
            pool.sync().await.unwrap();
        });
        let mine = rack.clone();
        until_crash(async move {
            mine.pull(&["b"]);
            let pool = import(&mine, 1, &forced()).await.unwrap();
            pool.sync().await.unwrap();
            // Only the log has it.
            write(&pool, 3).await;
        });
        let mine = rack.clone();
        until_crash(async move {
            mine.put_back(&["b"]);
            mine.pull(&["a", "l"]);
            let options = ImportOptions { accept_log_loss: true, ..forced() };
            let pool = import(&mine, 1, &options).await.unwrap();
            write(&pool, 4).await;
            pool.sync().await.unwrap();
        });
        Runtime::simulated(4).block_on(async move {
            rack.put_back(&["a", "l"]);
            let kind = refused(&rack, 1, &ImportOptions::default()).await;
            assert_kind!(kind, Diverged { .. });
            let pool = import(&rack, 1, &keep(kept)).await.unwrap();
            check(&pool, salt).await;
            let log = pool.status().logs.remove(0);
            assert_eq!(log.state != Health::Online, gone, "{log:?}");
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_half_that_was_left_behind_may_be_kept_after_all() {
    let rack = two_halves();
    Runtime::simulated(5).block_on(async move {
        let pool = import(&rack, 1, &keep("a")).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack, 1, &keep("b")).await.unwrap();
        check(&pool, 3).await;
        write(&pool, 7).await;
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 7).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn the_list_of_owners_keeps_the_last_ones_and_does_not_grow() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Mirror, &["a", "b"], &[]).await;
        let mut config = pool.config.borrow().clone();
        let mut before = 0;
        for owner in 1..1000 {
            let after = forebay_units::CommitId(owner);
            crate::import::divergence::begin(&mut config, owner + 7, after);
            let owners = &config.lineage.owners;
            let last = owners.last().unwrap();
            assert_eq!((last.nonce, last.after), (owner + 7, owner));
            assert!(owners.len() > before || owners.len() == 256);
            before = owners.len();
        }
        assert_eq!(config.lineage.owners[0].nonce, 1000 - 256 + 7);
        pool.export().await.unwrap();
    });
}

/// A mirror with a log mirror, of which each half was imported alone and has writes that only its
/// side of the log has, after so many roots.
fn halves_with_logs(roots: u64) -> Rc<Rack> {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let mut mirrored = spec(Layout::Mirror, &["a", "b"], &[]);
        mirrored.logs.push(LogSpec { devices: names(&["l", "m"]) });
        let pool = Pool::create(mine.host(1), "tank", &mirrored).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        write(&pool, 1).await;
        pool.sync().await.unwrap();
    });
    for (gone, salt) in [(["b", "m"], 2), (["a", "l"], 3)] {
        let mine = rack.clone();
        Runtime::simulated(20 + salt).block_on(async move {
            mine.pull(&gone);
            let pool = import(&mine, 1, &forced()).await.unwrap();
            for _ in 0..roots {
                pool.sync().await.unwrap();
            }
            write(&pool, salt).await;
            mine.put_back(&gone);
        });
    }
    rack
}

#[test]
fn a_log_side_of_a_half_that_was_left_behind_stays_as_it_is() {
    for roots in [0, 1] {
        let rack = halves_with_logs(roots);
        Runtime::simulated(6).block_on(async move {
            for options in [keep("a"), ImportOptions::default()] {
                let pool = import(&rack, 1, &options).await.unwrap();
                check(&pool, 2).await;
                let sides = pool.status().logs.remove(0).children;
                let is_used: Vec<bool> = sides.iter().map(|s| s.state == Health::Online).collect();
                assert_eq!(is_used, [true, false], "{roots} {options:?}");
                pool.export().await.unwrap();
            }
            if roots == 0 {
                let pool = import(&rack, 1, &keep("b")).await.unwrap();
                check(&pool, 3).await;
                pool.export().await.unwrap();
                return;
            }
            // Once it is taken in, what it had is gone, and the other half cannot do without.
            let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
            pool.online("m").await.unwrap();
            pool.export().await.unwrap();
            drop(pool);
            let kind = refused(&rack, 1, &keep("b")).await;
            assert_kind!(kind, LogMissing { missing, lost_after: Some(_), unopened, apart }
                if missing == apart && *apart == ["m"] && unopened.is_empty());
            let options = ImportOptions { accept_log_loss: true, ..keep("b") };
            let pool = import(&rack, 1, &options).await.unwrap();
            check(&pool, 1).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_choice_that_is_cut_short_keeps_the_log_of_its_half() {
    let short = |power: Option<u64>| {
        let rack = halves_with_logs(0);
        let mine = rack.clone();
        let changes = Runtime::simulated(7).block_on(async move {
            mine.switches.power.set(power);
            let before = mine.changes();
            // Without power it may fail.
            let _ = import(&mine, 1, &keep("a")).await;
            mine.changes() - before
        });
        rack.switches.power.set(None);
        Runtime::simulated(8).block_on(async move {
            let pool = import(&rack, 1, &keep("a")).await;
            let pool = pool.unwrap_or_else(|e| panic!("power {power:?}: {e}"));
            check(&pool, 2).await;
            pool.export().await.unwrap();
        });
        changes
    };
    let commands = short(None);
    assert!(commands > 5, "{commands}");
    for power in 0..=commands {
        short(Some(power));
    }
}

#[test]
fn a_log_that_a_missing_half_has_begun_anew_is_not_taken_for_that_of_the_kept_half() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
        pool.sync().await.unwrap();
        write(&pool, 2).await;
    });
    let mine = rack.clone();
    Runtime::simulated(2).block_on(async move {
        mine.pull(&["a"]);
        let pool = import(&mine, 1, &forced()).await.unwrap();
        pool.sync().await.unwrap();
        mine.put_back(&["a"]);
    });
    Runtime::simulated(3).block_on(async move {
        rack.pull(&["b"]);
        for options in [ImportOptions::default(), keep("a")] {
            let kind = refused(&rack, 1, &options).await;
            assert_kind!(kind, RootNotNewest { .. });
        }
        let options = ImportOptions { force: true, ..keep("a") };
        let pool = import(&rack, 1, &options).await.unwrap();
        // The new epoch has overwritten none of its frames.
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}
