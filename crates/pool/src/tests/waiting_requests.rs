//! Requests that wait for the limits of their volume keep neither it nor the pool once those end.

use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf};
use forebay_rt::{self as rt, JoinHandle, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::memory;
use super::transfers::{receive, sent, since, snapshot, whole};
use super::{expect, names, spec, stamp, volume};
use crate::{Pool, ReceiveOptions};

const BLOCK: usize = 4096;
/// As many as take minutes, each a second.
const REQUESTS: u64 = 600;

const IOPS: (&str, &str) = ("iops_limit", "1");

type Waiting = Vec<JoinHandle<Result<(), DeviceError>>>;

async fn limited((property, value): (&str, &str)) -> Rc<Pool> {
    let opener = memory(&["a", "l"], 64 << 20);
    let options = spec(Layout::Raid0, &["a"], &["l"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    let mut v = volume(4 << 20);
    v.properties.insert(property.to_owned(), value.to_owned());
    pool.create_volume(&v).await.unwrap();
    pool
}

/// Requests of `len` bytes that are there at once.
async fn many(device: Device, len: usize) -> Waiting {
    let data = stamp(len, 1);
    let requests: Waiting = (0..REQUESTS)
        .map(|number| {
            let (device, data) = (device.clone(), data.clone());
            let at = number * len as u64 % device.geometry().size_bytes;
            rt::spawn(async move {
                match device.geometry().read_only || number % 2 == 0 {
                    true => device.read(at, IoBuf::zeroed(data.len())).await.map(|_| ()),
                    false => device.write(at, data, false).await,
                }
            })
        })
        .collect();
    rt::sleep(Nanos::from_secs(3)).await;
    assert!(requests.iter().filter(|request| !request.is_finished()).count() > 500);
    requests
}

/// How many requests have failed, all of which must have ended.
async fn failed(requests: Waiting) -> u64 {
    rt::sleep(Nanos::from_millis(10)).await;
    assert!(requests.iter().all(|request| request.is_finished()), "some wait on");
    let mut failed = 0;
    for request in requests {
        failed += u64::from(request.await.is_err());
    }
    failed
}

#[test]
fn requests_that_wait_for_their_turn_end_with_the_pool() {
    for (limit, len) in [(IOPS, BLOCK), (("bandwidth_limit", "1M"), 1 << 20)] {
        for of_snapshot in [false, true] {
            Runtime::simulated(1).block_on(async move {
                let pool = limited(limit).await;
                snapshot(&pool, "v@s").await;
                let device = match of_snapshot {
                    true => pool.open_snapshot("v@s"),
                    false => pool.open_volume("v"),
                };
                let requests = many(device.unwrap(), len).await;
                let devices = pool.open_devices();
                pool.export().await.unwrap();
                drop(pool);
                // What the pool still has can be read until it has ended.
                let failed = failed(requests).await;
                assert!(of_snapshot || failed > 250, "{failed}");
                assert!(devices.iter().all(|device| device.strong_count() == 0));
            });
        }
    }
}

#[test]
fn requests_that_wait_for_their_turn_end_with_their_volume_or_snapshot() {
    Runtime::simulated(2).block_on(async {
        let pool = limited(IOPS).await;
        snapshot(&pool, "v@s").await;
        let of_snapshot = many(pool.open_snapshot("v@s").unwrap(), BLOCK).await;
        pool.destroy_snapshots(&names(&["v@s"])).await.unwrap();
        assert!(failed(of_snapshot).await > 500);
        let of_volume = many(pool.open_volume("v").unwrap(), BLOCK).await;
        pool.destroy_volume("v", false).await.unwrap();
        assert!(failed(of_volume).await > 500);
        pool.export().await.unwrap();
    });
}

#[test]
fn requests_that_wait_for_their_turn_end_when_a_stream_takes_their_volume() {
    Runtime::simulated(3).block_on(async {
        let tank = limited(("weight", "1")).await;
        snapshot(&tank, "v@a").await;
        snapshot(&tank, "v@b").await;
        let first = sent(&tank, &whole("v@a")).await;
        let second = sent(&tank, &since("a", "v@b")).await;
        let opener = memory(&["a", "l"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let back = Pool::create(opener, "back", &options).await.unwrap();
        let plain = ReceiveOptions::default();
        receive(&back, &first, plain).await.unwrap();
        back.set_volume("w", "iops_limit", "1").await.unwrap();
        let reads = many(back.open_volume("w").unwrap(), BLOCK).await;
        let options = ReceiveOptions { roll_back: true, ..plain };
        receive(&back, &second, options).await.unwrap();
        assert!(failed(reads).await > 500);
        // The volume that the stream leaves has its limit.
        let _ = many(back.open_volume("w").unwrap(), BLOCK).await;
        tank.export().await.unwrap();
        back.end().await.unwrap();
    });
}

#[test]
fn a_write_that_waited_for_room_while_its_volume_shrank_is_refused() {
    Runtime::simulated(3).block_on(async {
        let pool = limited(("iops_limit", "none")).await;
        let v = pool.open_volume("v").unwrap();
        let throttle = &pool.dirty.throttle;
        let all = throttle.limit_bytes();
        let demand = pool.volumes.borrow().values().next().expect("it has one").demand(all, false);
        let room = throttle.admit(demand).await.unwrap();
        let device = v.clone();
        let waiting = rt::spawn(async move { device.write(3 << 20, stamp(BLOCK, 2), false).await });
        rt::sleep(Nanos::from_millis(1)).await;
        pool.resize_volume("v", 2 << 20, true).await.unwrap();
        assert!(!waiting.is_finished());
        drop(room);
        let refused = waiting.await.unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::OutOfRange { .. }), "{refused}");
        assert_eq!(throttle.dirty_bytes(), 0);
        pool.resize_volume("v", 4 << 20, false).await.unwrap();
        expect(&v, 3 << 20, &[0; BLOCK]).await;
        drop(v);
        pool.export().await.unwrap();
    });
}
