//! Commands that devices have not ended: what waits for them when a pool goes on elsewhere.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceFuture, Layer, MemoryDevice, Operation, ReservationChange,
};
use forebay_format::label::{HEARTBEAT_OFFSET_BYTES, LABEL_BYTES};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::SharedDisk;
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::status::Health;
use crate::{OpenWith, Opener, Pool, ResumeError};

const SIZE: u64 = 64 << 20;

/// Has writes to the body of `a` hang while it is told to.
#[derive(Default)]
struct Hangs {
    is_on: Cell<bool>,
    hanging: Cell<u64>,
}

impl Script for Hangs {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            let is_body = command.offset_bytes >= LABEL_BYTES && command.device == "a";
            if command.operation == Operation::Write && is_body && self.is_on.get() {
                self.hanging.set(self.hanging.get() + 1);
                while self.is_on.get() {
                    rt::sleep(Nanos::from_millis(10)).await;
                }
                self.hanging.set(self.hanging.get() - 1);
            }
            Decision::Run
        })
    }
}

/// A pool that is suspended because `a` hangs, with a block in memory alone.
async fn suspended(opener: Rc<dyn Opener>, hangs: &Hangs) -> (Rc<Pool>, Device) {
    let mut options = spec(Layout::Raid0, &["a"], &["l"]);
    options.properties.insert("device_timeout".to_owned(), "1".to_owned());
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(0, stamp(4096, 1), true).await.unwrap();
    hangs.is_on.set(true);
    pool.sync().await.unwrap_err();
    assert_eq!(pool.summary().health, Health::Suspended);
    assert!(hangs.hanging.get() > 0);
    (pool, v)
}

// A command that a device executes later would lie over what the next pool writes.
#[test]
fn a_pool_is_not_resumed_before_commands_that_were_given_up_have_ended() {
    for ends_meanwhile in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(&["a", "l"], SIZE);
            let hangs = Rc::new(Hangs::default());
            let (pool, v) = suspended(scripted(rack.host(1), hangs.clone()), &hangs).await;
            let all = names(&["a", "l"]);
            let before = rack.changes();
            if ends_meanwhile {
                let hangs = hangs.clone();
                drop(rt::spawn(async move {
                    rt::sleep(Nanos::from_secs(2)).await;
                    hangs.is_on.set(false);
                }));
            } else {
                let error = pool.resume(&all).await.err().expect("a command is under way");
                let (device, commands) = ("a".to_owned(), hangs.hanging.get());
                assert_eq!(error, ResumeError::CommandsUnderWay { device, commands });
                assert_eq!(rack.changes(), before, "the next pool writes nothing yet");
                assert!(pool.is_resumable());
                hangs.is_on.set(false);
            }
            let next = pool.resume(&all).await.unwrap();
            assert_eq!(hangs.hanging.get(), 0);
            expect(&v, 0, &stamp(4096, 1)).await;
            v.write(0, stamp(4096, 2), true).await.unwrap();
            drop((pool, v));
            next.export().await.unwrap();
        });
    }
}

/// A device that notes when its reservation is given up beside a write.
struct Reserved {
    inner: Device,
    writes: Rc<Writes>,
}

#[derive(Default)]
struct Writes {
    under_way: Cell<u64>,
    /// By device: whether a write began after the reservation was given up, or was under way.
    cleared: RefCell<Vec<String>>,
    /// How long a heartbeat takes.
    heartbeat_takes: Cell<Nanos>,
    late: Cell<u64>,
}

impl Script for Writes {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.changes_data() {
                let is_cleared = self.cleared.borrow().iter().any(|name| name == command.device);
                self.late.set(self.late.get() + u64::from(is_cleared));
                self.under_way.set(self.under_way.get() + 1);
                if command.offset_bytes == HEARTBEAT_OFFSET_BYTES {
                    rt::sleep(self.heartbeat_takes.get()).await;
                }
            }
            Decision::Run
        })
    }

    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        let ended = u64::from(command.changes_data());
        self.under_way.set(self.under_way.get() - ended);
        Box::pin(std::future::ready(()))
    }
}

impl Layer for Reserved {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        if matches!(change, ReservationChange::Clear { .. }) {
            assert_eq!(self.writes.under_way.get(), 0, "a write may land over the next owner's");
            self.writes.cleared.borrow_mut().push(self.inner.name().to_owned());
        }
        self.inner.change_reservations(change)
    }
}

// From then on another machine may write to the devices. A heartbeat takes longer than the time
// between two of them.
#[test]
fn devices_are_given_up_when_the_last_heartbeat_has_ended() {
    for span_ms in (0..3000).step_by(130) {
        Runtime::simulated(span_ms).block_on(async move {
            let disks = ["a", "b", "l"]
                .map(|name| (name, SharedDisk::new(Rc::new(MemoryDevice::new(name, SIZE)))));
            let writes = Rc::new(Writes::default());
            let of_writes = writes.clone();
            let opener = OpenWith::new(1, move |name| {
                let (_, disk) = disks.iter().find(|(other, _)| *other == name).expect("a disk");
                let inner: Device = Probe::new(disk.initiator(1), of_writes.clone());
                Ok(Rc::new(Reserved { inner, writes: of_writes.clone() }) as Device)
            });
            let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            writes.heartbeat_takes.set(Nanos::from_millis(1700));
            rt::sleep(Nanos::from_millis(5000 + span_ms)).await;
            let ended = async {
                match span_ms % 20 {
                    0 => pool.export().await.unwrap(),
                    _ => pool.destroy().await.unwrap(),
                }
            };
            let ended = rt::timeout(Nanos::from_secs(60), Box::pin(ended)).await;
            assert!(ended.is_ok(), "heartbeats follow each other without end");
            assert_eq!(writes.cleared.borrow().len(), 3);
            rt::sleep(Nanos::from_secs(10)).await;
            assert_eq!(writes.late.get(), 0, "a write followed");
        });
    }
}
