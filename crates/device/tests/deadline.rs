//! Command timeouts: a hung device is abandoned, and taken back when its late commands have ended.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::layers::Counted;
use forebay_device::{
    BlockDevice, Deadline, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer,
    MemoryDevice, Operation,
};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_rt::sync::Notify;
use forebay_sim::faults::{Hung, Ops};
use forebay_units::Nanos;

/// A device that can be made to hang.
fn device() -> Rc<Hung> {
    Hung::new(Rc::new(MemoryDevice::new("slow", 1 << 20)))
}

fn block(salt: u8) -> IoBytes {
    IoBuf::copy_of(&[salt; 4096]).freeze()
}

const SPAN: Nanos = Nanos::from_secs(8);

#[test]
fn hung_device_is_abandoned_until_late_commands_end() {
    Runtime::simulated(1).block_on(async {
        let hanging = device();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        let device: Device = deadline.clone();
        device.write(0, block(1), true).await.unwrap();
        hanging.hang(Ops::ALL);
        let begun = rt::now();
        // One command hangs; another is issued later and is abandoned with it.
        let later = rt::spawn({
            let device = device.clone();
            async move {
                rt::sleep(Nanos::from_secs(5)).await;
                device.read(4096, IoBuf::zeroed(4096)).await.unwrap_err().kind
            }
        });
        let error = device.write(0, block(2), true).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TimedOut { after_secs: 8 });
        assert!(error.to_string().contains("slow: write of 4096 bytes at offset 0: no answer"));
        let took = rt::now().since(begun);
        assert!(took >= SPAN && took <= Nanos::from_secs(10), "{took:?}");
        assert_eq!(later.await, ErrorKind::TimedOut { after_secs: 8 });

        // No further command reaches the device, although it would answer a flush.
        let begun = rt::now();
        assert!(device.flush().await.is_err());
        assert!(device.write(8192, block(3), false).await.is_err());
        assert_eq!(rt::now(), begun);
        assert_eq!(deadline.revive(), Err(2));

        // The abandoned commands happen late; only then may newer data be written.
        hanging.release();
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(device.read(0, IoBuf::zeroed(4096)).await.is_err());
        assert_eq!(deadline.revive(), Ok(()));
        let held = device.read(0, IoBuf::zeroed(4096)).await.unwrap();
        assert_eq!(held[..], block(2)[..]);
        let held = device.read(8192, IoBuf::zeroed(4096)).await.unwrap();
        assert_eq!(held[..], [0; 4096]);
    });
}

#[test]
fn slow_commands_below_limit_do_not_time_out() {
    Runtime::simulated(2).block_on(async {
        let hanging = device();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        let device: Device = deadline.clone();
        // A command is always under way, for ten times the span, but none takes that long.
        for i in 0..20 {
            hanging.hang(Ops::ALL);
            let one = rt::spawn({
                let device = device.clone();
                async move { device.write(4096, block(i), false).await }
            });
            rt::sleep(Nanos::from_secs(4)).await;
            hanging.release();
            one.await.unwrap();
        }
        // Without a span nothing times out; with a span that is set meanwhile, the command does.
        deadline.set_span(Nanos(0));
        hanging.hang(Ops::ALL);
        let one = rt::spawn({
            let device = device.clone();
            async move { device.write(4096, block(9), false).await }
        });
        rt::sleep(Nanos::from_secs(1000)).await;
        assert!(!one.is_finished());
        deadline.set_span(SPAN);
        assert!(one.await.is_err());
    });
}

#[test]
fn dropped_deadline_releases_device() {
    Runtime::simulated(3).block_on(async {
        let hanging = device();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        deadline.write(0, block(1), true).await.unwrap();
        drop(deadline);
        assert_eq!(Rc::strong_count(&hanging), 1);
    });
}

// One late command abandons the device. From that instant the commands of other tasks count as
// late, before those tasks are polled.
#[test]
fn revive_waits_for_commands_not_yet_polled() {
    for seed in 0..32 {
        Runtime::simulated(seed).block_on(async {
            let hanging = device();
            let deadline = Deadline::new(hanging.clone(), SPAN);
            let device: Device = deadline.clone();
            hanging.hang(Ops::ALL);
            let all: Vec<_> = (0..6u8)
                .map(|i| {
                    let device = device.clone();
                    rt::spawn(async move { device.write(4096, block(i), true).await })
                })
                .collect();
            // The first task that is told tries to revive the device at once.
            let first = device.write(0, block(7), true).await;
            assert!(first.is_err());
            assert_eq!(deadline.revive(), Err(7));
            rt::yield_now().await;
            assert_eq!(deadline.revive(), Err(7));
            for one in all {
                assert!(one.await.is_err());
            }
            assert_eq!(deadline.revive(), Err(7));
            hanging.release();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(deadline.revive(), Ok(()));
        });
    }
}

/// A device that fails the writes under way when it is told that they are not waited for, as a
/// connection does that is closed.
struct Ends {
    inner: Rc<Hung>,
    is_abandoned: Cell<bool>,
    told: Rc<Notify>,
}

impl Layer for Ends {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let told = Box::pin(self.told.until(|| self.is_abandoned.get()));
            let write = BlockDevice::write(&*self.inner, offset, data, fua);
            match rt::select(write, told).await {
                rt::Either::Left((outcome, _)) => outcome,
                rt::Either::Right(_) => {
                    let (op, kind) = (Operation::Write, ErrorKind::Gone);
                    Err(DeviceError::new("slow", op, offset, 4096, kind))
                }
            }
        })
    }
    fn abandon(&self) {
        self.is_abandoned.set(true);
        self.told.notify_all();
    }
}

#[test]
fn abandoned_device_is_told_and_its_commands_fail_as_late_ones() {
    for seed in 0..16 {
        Runtime::simulated(seed).block_on(async {
            let hanging = device();
            let told = Notify::new();
            let ends = Ends { inner: hanging.clone(), is_abandoned: Cell::new(false), told };
            let deadline = Deadline::new(Rc::new(ends), SPAN);
            let counted = Counted::new(deadline.clone());
            hanging.hang(Ops::WRITE);
            let writes = (0..4).map(|i| BlockDevice::write(&*counted, 0, block(i), true));
            for outcome in rt::join_all(writes).await {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind, ErrorKind::TimedOut { after_secs: 8 });
            }
            // They have ended, so nothing comes late.
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(deadline.revive(), Ok(()));
            assert_eq!(counted.counts().errors, 4);
        });
    }
}

#[test]
fn a_device_with_commands_under_way_is_not_let_go() {
    Runtime::simulated(1).block_on(async {
        let hanging = device();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        hanging.hang(Ops::WRITE);
        // A command whose caller goes is not waited for, and abandons no device.
        let gone = BlockDevice::write(&*deadline, 0, block(1), false);
        assert!(rt::timeout(Nanos::from_secs(1), gone).await.is_err());
        rt::sleep(Nanos::from_secs(100)).await;
        assert_eq!(BlockDevice::flush(&*deadline).await, Ok(()));
        let device = deadline.clone();
        let late = rt::spawn(async move { BlockDevice::write(&*device, 0, block(3), false).await });
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(deadline.close(), Err(1), "it is under way");
        assert!(late.await.is_err());
        assert_eq!(deadline.close(), Err(1), "it was abandoned and has not ended");
        hanging.release();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(deadline.close(), Ok(()));
        assert_eq!(BlockDevice::flush(&*deadline).await.unwrap_err().kind, ErrorKind::Gone);
    });
}
