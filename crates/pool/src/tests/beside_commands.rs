//! What changes beside a command that waits for devices: the command goes on from the pool as it is
//! then.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory, paced};
use super::transfers::{make, snapshot, whole};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{GroupSpec, ImportOptions, PoolSpec};
use crate::status::Health;
use crate::{Pool, TransferError};

const SIZE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

// The labels of the new devices are cleared meanwhile.
#[test]
fn member_that_fails_beside_an_add_is_left_behind() {
    let rack = Rack::new(&["a", "b", "c", "d", "l"], SIZE);
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let opener = paced(rack.host(1), move |device, operation, _| {
        let is_new = matches!(device, "c" | "d") && operation == Operation::Write;
        (told.get() && is_new).then_some(Nanos::from_millis(100))
    });
    let here = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 * MIB)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(65536, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        is_slow.set(true);
        let adding = rt::spawn({
            let pool = pool.clone();
            let group = GroupSpec { layout: Layout::Mirror, devices: names(&["c", "d"]) };
            let more = PoolSpec { groups: vec![group], ..PoolSpec::default() };
            async move { pool.add(&more).await }
        });
        rt::sleep(Nanos::from_millis(500)).await;
        here.pull(&["b"]);
        v.write(0, stamp(65536, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.log_history("a line beside it");
        assert!(!adding.is_finished());
        adding.await.unwrap();
        assert!(pool.history().iter().any(|line| line.ends_with("a line beside it")));
        v.write(65536, stamp(65536, 3), false).await.unwrap();
        pool.sync().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        rack.put_back(&["b"]);
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c", "d", "l"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        assert_eq!(pool.summary().health, Health::Degraded);
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(65536, 2)).await;
        expect(&v, 65536, &stamp(65536, 3)).await;
        pool.export().await.unwrap();
    });
}

// What a read finds while a snapshot goes may be of a newer version.
#[test]
fn snapshot_that_is_destroyed_while_its_data_is_read_ends_the_stream() {
    Runtime::simulated(2).block_on(async {
        let is_slow = Rc::new(Cell::new(false));
        let told = is_slow.clone();
        let shelf = paced(memory(&["a", "l"], SIZE), move |device, operation, _| {
            let is_read = device == "a" && operation == Operation::Read;
            (told.get() && is_read).then_some(Nanos::from_secs(1))
        });
        let tank = make(shelf, "tank").await;
        tank.create_volume(&volume(8 * MIB)).await.unwrap();
        let v = tank.open_volume("v").unwrap();
        v.write(0, stamp(4 << 20, 1), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        let mut sender = tank.send(&whole("v@a")).unwrap();
        sender.next().await.unwrap();
        is_slow.set(true);
        let sending = rt::spawn(async move {
            let next = sender.next().await;
            sender.end().await;
            next.map(|bytes| bytes.is_some())
        });
        rt::sleep(Nanos::from_millis(10)).await;
        tank.destroy_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(4 << 20, 2), false).await.unwrap();
        assert!(!sending.is_finished(), "its data was not read from a device");
        let error = sending.await.expect_err("the snapshot is gone");
        assert!(matches!(error, TransferError::Gone { .. }), "{error}");
        is_slow.set(false);
        let held = v.read(0, IoBuf::zeroed(4096)).await.unwrap();
        assert!(held[..] == stamp(4096, 2)[..]);
        drop(v);
        tank.export().await.unwrap();
    });
}
