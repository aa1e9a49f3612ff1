//! Writes beside the commits that must be durable at once, and fail: heartbeats and log marks.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{ErrorKind, IoBuf, Operation};
use forebay_format::label::{HEARTBEAT_OFFSET_BYTES, LOG_MARK_BYTES, LOG_MARK_OFFSET_BYTES};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, scripted};
use super::{spec, stamp, volume};
use crate::Pool;
use crate::status::{Health, PoolEvent};

const HEARTBEAT: Range<u64> = HEARTBEAT_OFFSET_BYTES..HEARTBEAT_OFFSET_BYTES + 4096;
const LOG_MARKS: Range<u64> = LOG_MARK_OFFSET_BYTES..LOG_MARK_OFFSET_BYTES + 2 * LOG_MARK_BYTES;

/// A device whose next write to a range fails once.
struct FailsOnce {
    device: &'static str,
    range: Range<u64>,
    is_armed: Cell<bool>,
}

impl Script for FailsOnce {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_meant = command.device == self.device
            && command.operation == Operation::Write
            && self.range.contains(&command.offset_bytes);
        let decision = match is_meant && self.is_armed.take() {
            true => Decision::Fail(ErrorKind::Os { errno: 5 }),
            false => Decision::Run,
        };
        Box::pin(std::future::ready(decision))
    }
}

/// A pool with a log, one of whose devices fails one write to `range`. Returns it afterwards.
async fn pool_after_failure(device: &'static str, range: Range<u64>, layout: Layout) -> Rc<Pool> {
    let rack = Rack::new(&["a", "b", "c", "l"], 64 << 20);
    let fails = Rc::new(FailsOnce { device, range, is_armed: Cell::new(false) });
    let members: &[&str] = if layout == Layout::Raid0 { &["a"] } else { &["a", "b", "c"] };
    let opener = scripted(rack.locked(), fails.clone());
    let pool = Pool::create(opener, "tank", &spec(layout, members, &["l"])).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    pool.sync().await.unwrap();
    let v = pool.open_volume("v").unwrap();
    fails.is_armed.set(true);
    for at in 0..200u64 {
        if !fails.is_armed.get() {
            break;
        }
        v.write((at % 64) << 12, stamp(4096, at), true).await.unwrap();
        rt::sleep(Nanos::from_millis(100)).await;
    }
    assert!(!fails.is_armed.get(), "no write came to {:?}", fails.range);
    rt::sleep(Nanos::from_secs(10)).await;
    pool
}

#[test]
fn device_that_fails_a_heartbeat_or_a_log_mark_once_is_faulted() {
    for range in [HEARTBEAT, LOG_MARKS] {
        Runtime::simulated(1).block_on(async {
            let pool = pool_after_failure("a", range, Layout::Raidz1).await;
            let device = &pool.status().groups[0].children[0];
            assert_eq!((device.state, device.write_errors), (Health::Faulted, 1));
            assert_eq!(pool.summary().health, Health::Degraded);
        });
    }
}

#[test]
fn only_device_that_fails_a_log_mark_once_is_degraded() {
    Runtime::simulated(2).block_on(async {
        let pool = pool_after_failure("a", LOG_MARKS, Layout::Raid0).await;
        let device = &pool.status().groups[0];
        assert_eq!((device.state, device.write_errors), (Health::Degraded, 1));
    });
}

#[test]
fn a_device_that_goes_is_told_of_although_nothing_is_written() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b", "c"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        rack.pull(&["c"]);
        for at in (0..1 << 20).step_by(4096) {
            v.read(at, IoBuf::zeroed(4096)).await.unwrap();
        }
        let tells = |event: &PoolEvent| match event {
            PoolEvent::StateChanged { device, .. } => device == "c",
            _ => false,
        };
        for _ in 0..1000 {
            if pool.events().iter().any(tells) {
                break;
            }
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert!(pool.events().iter().any(tells), "{:?}", pool.events());
        pool.export().await.unwrap();
    });
}
