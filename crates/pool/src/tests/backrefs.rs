//! Several owners, several groups, and rewinds.

use forebay_device::{IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;

const SIZE: u64 = 64 << 20;

#[test]
fn groups_of_different_sizes_take_endless_overwrites() {
    Runtime::simulated(4).block_on(async move {
        let many: Vec<String> = (0..16).map(|i| format!("d{i}")).collect();
        let mut all: Vec<&str> = many.iter().map(String::as_str).collect();
        all.push("z");
        let shelf = memory(&all, SIZE);
        let wide = spec(Layout::Raid0, &all[..16], &[]);
        let pool = Pool::create(shelf, "tank", &wide).await.unwrap();
        pool.add(&spec(Layout::Raid0, &["z"], &[])).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let blocks = size / 65536;
        for i in 0..blocks * 3 {
            let block = if i < blocks { i } else { rt::random_below(blocks) };
            v.write(block * 65536, stamp(65536, i), false).await.unwrap();
        }
        v.flush().await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_rewind_gives_a_prefix() {
    let all = ["a", "b", "c", "l"];
    let rack = Rack::new(&all, SIZE);
    let mine = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let data = spec(Layout::Raidz1, &all[..3], &["l"]);
        let pool = Pool::create(mine.host(1), "tank", &data).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        v.write(4096, stamp(4096, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(8192, stamp(4096, 3), true).await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        let back = ImportOptions { rewind_groups: 1, ..Default::default() };
        let pool = Pool::import(rack.host(1), &names(&all), "tank", &back).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        let second = v.read(4096, IoBuf::zeroed(4096)).await.unwrap();
        let third = v.read(8192, IoBuf::zeroed(4096)).await.unwrap();
        let there = |buf: &IoBuf| buf.iter().any(|b| *b != 0);
        assert!(there(&second) || !there(&third), "the third write without the second");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_another_machine_is_importing_is_refused() {
    let all = ["a", "b", "l"];
    let rack = Rack::new(&all, SIZE);
    let mine = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let data = spec(Layout::Mirror, &all[..2], &["l"]);
        let pool = Pool::create(mine.host(1), "tank", &data).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        v.write(4096, stamp(4096, 2), true).await.unwrap();
    });
    let mine = rack.clone();
    let acknowledged = Runtime::simulated(2).block_on(async move {
        // Reads of the main store take long.
        let pace = |name: &str, operation: Operation, at: u64| {
            let body = (5 << 20..SIZE - (1 << 20)).contains(&at);
            (operation == Operation::Read && name != "l" && body).then(|| Nanos::from_secs(10))
        };
        let slow = paced(mine.host(2), pace);
        let before = mine.changes();
        let taking = rt::spawn(async move {
            let forced = ImportOptions { force: true, ..Default::default() };
            Pool::import(slow, &names(&all), "tank", &forced).await
        });
        while mine.changes() == before {
            rt::sleep(Nanos::from_millis(10)).await;
        }
        // After it has looked whether its mark is still there.
        rt::sleep(Nanos::from_secs(6)).await;
        // The machine that had it last is back.
        let default = ImportOptions::default();
        let again = Pool::import(mine.host(1), &names(&all), "tank", &default).await;
        let Ok(pool) = again else { return None };
        let v = pool.open_volume("v").unwrap();
        let second = taking.await.ok();
        let w = second.as_ref().map(|p| p.open_volume("v").unwrap());
        let (mut first, mut other) = (0, 0);
        for i in 0..200u64 {
            first += u64::from(v.write(4096 * (2 + i), stamp(4096, 100 + i), true).await.is_ok());
            if let Some(w) = &w {
                let at = (8 << 20) + 4096 * i;
                other += u64::from(w.write(at, stamp(4096, 100 + i), true).await.is_ok());
            }
            rt::sleep(Nanos::from_millis(100)).await;
        }
        Some((first, other))
    });
    let Some((first, other)) = acknowledged else { return };
    panic!("imported twice, and both acknowledged writes: {first}, {other}");
}

#[test]
fn a_block_that_the_cleaner_cannot_read_is_noted_as_lost() {
    Runtime::simulated(33).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in (0..size).step_by(4096) {
            v.write(at, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let (device, bad) = (rack.device("a"), size / 2 / 4096 * 4096);
        let wanted = stamp(4096, bad);
        for at in (0..64 << 20).step_by(4096) {
            let held = device.read(at, IoBuf::zeroed(4096)).await.unwrap();
            if held[..] == wanted[..] {
                rack.switches.bad_blocks.borrow_mut().insert(("a".into(), at));
            }
        }
        assert_eq!((rack.switches.bad_blocks.borrow().len(), pool.status().lost_count), (1, 0));
        // The cleaner moves what is not overwritten.
        for _ in 0..2 * size / 4096 {
            let at = rt::random_below(size / 4096) * 4096;
            if at != bad {
                v.write(at, stamp(4096, at), false).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        assert!(pool.stats().segments.cleaned > 0);
        assert_eq!(pool.status().lost_count, 1);
        v.read(bad, IoBuf::zeroed(4096)).await.unwrap_err();
        pool.end().await.unwrap();
    });
}
