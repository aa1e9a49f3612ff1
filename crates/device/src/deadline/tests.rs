use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use super::Deadline;
use crate::{BlockDevice, Device, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, MemoryDevice};

/// Hangs while it is told to; what hung happens when it is let go.
struct Hanging {
    inner: MemoryDevice,
    hangs: Cell<bool>,
    released: Rc<Notify>,
}

impl Hanging {
    fn new() -> Rc<Self> {
        let inner = MemoryDevice::new("slow", 1 << 20);
        Rc::new(Self { inner, hangs: Cell::new(false), released: Notify::new() })
    }

    fn release(&self) {
        self.hangs.set(false);
        self.released.notify_all();
    }
}

impl BlockDevice for Hanging {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.released.until(|| !self.hangs.get()).await;
            self.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.released.until(|| !self.hangs.get()).await;
            self.inner.write(offset, data, fua).await
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner.discard(offset, len, fua)
    }
}

fn block(salt: u8) -> IoBytes {
    IoBuf::copy_of(&[salt; 4096]).freeze()
}

const SPAN: Nanos = Nanos::from_secs(8);

#[test]
fn a_device_that_hangs_is_given_up_and_taken_back_when_all_has_ended() {
    Runtime::simulated(1).block_on(async {
        let hanging = Hanging::new();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        let device: Device = deadline.clone();
        device.write(0, block(1), true).await.unwrap();
        hanging.hangs.set(true);
        let begun = rt::now();
        // One that hangs, and one that came later and is given up with it.
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

        // Nothing more reaches it, whatever it could do by now.
        assert!(deadline.is_given_up());
        let begun = rt::now();
        assert!(device.flush().await.is_err());
        assert!(device.write(8192, block(3), false).await.is_err());
        assert_eq!(rt::now(), begun);
        assert_eq!(deadline.revive(), Err(2));

        // What was given up happens late; only then may newer data be written.
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
fn many_slow_commands_are_not_one_that_hangs() {
    Runtime::simulated(2).block_on(async {
        let hanging = Hanging::new();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        let device: Device = deadline.clone();
        // There is always one under way, for ten times the span, but none takes that long.
        for i in 0..20 {
            hanging.hangs.set(true);
            let one = rt::spawn({
                let device = device.clone();
                async move { device.write(4096, block(i), false).await }
            });
            rt::sleep(Nanos::from_secs(4)).await;
            hanging.release();
            one.await.unwrap();
        }
        // Without a deadline nothing is given up; with one that is set meanwhile, it is.
        deadline.set_span(Nanos(0));
        hanging.hangs.set(true);
        let one = rt::spawn({
            let device = device.clone();
            async move { device.write(4096, block(9), false).await }
        });
        rt::sleep(Nanos::from_secs(1000)).await;
        assert!(!one.is_finished() && !deadline.is_given_up());
        deadline.set_span(SPAN);
        assert!(one.await.is_err());
    });
}

#[test]
fn nobody_keeps_a_device_that_is_not_used() {
    Runtime::simulated(3).block_on(async {
        let hanging = Hanging::new();
        let deadline = Deadline::new(hanging.clone(), SPAN);
        deadline.write(0, block(1), true).await.unwrap();
        drop(deadline);
        assert_eq!(Rc::strong_count(&hanging), 1);
    });
}

// A device is given up for one command: those of others count from that instant, and not only from
// when their tasks are told.
#[test]
fn a_device_is_not_taken_back_while_tasks_have_yet_to_hear_of_it() {
    for seed in 0..32 {
        Runtime::simulated(seed).block_on(async {
            let hanging = Hanging::new();
            let deadline = Deadline::new(hanging.clone(), SPAN);
            let device: Device = deadline.clone();
            hanging.hangs.set(true);
            let all: Vec<_> = (0..6u8)
                .map(|i| {
                    let device = device.clone();
                    rt::spawn(async move { device.write(4096, block(i), true).await })
                })
                .collect();
            // Whoever is told first asks for it back at once.
            let first = device.write(0, block(7), true).await;
            assert!(first.is_err() && deadline.is_given_up());
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
