//! Sides of the log that have left it: they are free, and written no more.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{check, write};
use super::rack::{Rack, paced};
use super::{names, spec, volume};
use crate::labels::read_label;
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::Health;
use crate::{AdminError, Opener, Pool};

const SIZE: u64 = 64 << 20;

async fn mirrored(opener: Rc<dyn Opener>) -> Rc<Pool> {
    let options = spec(Layout::Raid0, &["a"], &["l", "m"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    write(&pool, 1).await;
    pool
}

async fn whole(device: &Device) -> IoBuf {
    device.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap()
}

#[test]
fn a_side_that_has_left_or_rests_is_free_and_written_no_more() {
    for is_detached in [false, true] {
        Runtime::simulated(104).block_on(async move {
            let rack = Rack::new(&["a", "l", "m"], SIZE);
            let pool = mirrored(rack.locked()).await;
            match is_detached {
                true => pool.detach("m").await.unwrap(),
                false => pool.offline("m").await.unwrap(),
            }
            drop(rack.locked().open("m").await.expect("another process may have it"));
            let before = whole(&rack.device("m")).await;
            for salt in 2..40 {
                write(&pool, salt).await;
            }
            pool.sync().await.unwrap();
            assert!(whole(&rack.device("m")).await[..] == before[..], "it was written");
            check(&pool, 39).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_side_that_failed_is_replaced_by_itself() {
    let rack = Rack::new(&["a", "l", "m"], SIZE);
    let mine = rack.clone();
    Runtime::simulated(105).block_on(async move {
        let pool = mirrored(mine.locked()).await;
        mine.switches.unwritable.borrow_mut().insert("m".to_owned());
        write(&pool, 2).await;
        mine.switches.unwritable.borrow_mut().clear();
        assert_eq!(pool.status().logs[0].children[1].state, Health::Faulted);
        pool.replace("m", None, true).await.unwrap();
        let sides = pool.status().logs[0].children.clone();
        assert_eq!(sides.iter().map(|side| side.state).collect::<Vec<_>>(), [Health::Online; 2]);
        write(&pool, 3).await;
    });
    Runtime::simulated(106).block_on(async move {
        rack.pull(&["l"]);
        let paths = names(&["a", "m"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &ImportOptions::default()).await;
        let pool = pool.unwrap();
        check(&pool, 3).await;
        pool.export().await.unwrap();
    });
}

// They would lie over what the log writes there later.
#[test]
fn a_side_with_commands_under_way_is_not_replaced_by_itself() {
    Runtime::simulated(107).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let hangs = Rc::new(Cell::new(false));
        let told = hangs.clone();
        let opener = paced(rack.host(1), move |device, operation, _| {
            let is_late = told.get() && device == "m" && operation == Operation::Write;
            is_late.then_some(Nanos::from_secs(600))
        });
        let pool = mirrored(opener).await;
        hangs.set(true);
        write(&pool, 2).await;
        rt::sleep(Nanos::from_secs(1)).await;
        hangs.set(false);
        assert_eq!(pool.status().logs[0].children[1].state, Health::Faulted);
        let refused = pool.replace("m", None, true).await.unwrap_err();
        assert!(
            matches!(&refused, AdminError::LateCommands { device, commands }
                if device == "m" && *commands > 0),
            "{refused:?}"
        );
        rt::sleep(Nanos::from_secs(700)).await;
        pool.replace("m", None, true).await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn devices_of_an_earlier_pool_keep_nothing_of_its_label() {
    Runtime::simulated(108).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "m"], SIZE);
        let mut guids = Vec::new();
        for device in ["a", "b", "c", "l", "m"] {
            let old = spec(Layout::Raid0, &[device], &[]);
            let pool = Pool::create(rack.host(1), "old", &old).await.unwrap();
            guids.push(pool.guid);
            pool.sync().await.unwrap();
            pool.export().await.unwrap();
        }
        guids.sort_unstable();
        guids.dedup();
        assert_eq!(guids.len(), 5, "each pool has a number of its own");
        let new = PoolSpec { force: true, ..spec(Layout::Mirror, &["a", "b"], &["l"]) };
        let pool = Pool::create(rack.host(1), "tank", &new).await.unwrap();
        pool.attach("a", "c", true).await.unwrap();
        pool.attach("l", "m", true).await.unwrap();
        pool.export().await.unwrap();
        for device in ["a", "b", "c", "l", "m"] {
            let label = read_label(&rack.device(device)).await;
            let of_pool = label.configs.iter().all(|(envelope, _)| envelope.pool == pool.guid)
                && label.roots.iter().all(|root| root.pool == pool.guid);
            assert!(of_pool && !label.configs.is_empty(), "{device}: {label:?}");
            assert_eq!(label.roots.is_empty(), device == "l" || device == "m");
        }
    });
}
