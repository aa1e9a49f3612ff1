//! Two machines: one that stands still at any command, or whose devices do not answer, and another that
//! takes its pool meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, DeviceError, DeviceFuture, IoBuf, IoBytes, Layer};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, Redundancy};
use crate::{Opener, Pool, PoolError};

const SIZE: u64 = 64 << 20;
const DEVICES: &[&str] = &["a", "b", "l"];

/// What one machine sees of devices that several can reach.
#[derive(Default)]
struct View {
    /// Commands so far.
    commands: Cell<u64>,
    /// The machine stands still after so many.
    stop_after: Cell<Option<u64>>,
    /// Devices that do not answer this machine.
    hung: RefCell<BTreeSet<String>>,
    /// How long a device takes to answer a read.
    read_takes: Cell<Nanos>,
}

struct Seen {
    inner: Device,
    view: Rc<View>,
}

impl Seen {
    async fn answer(&self) {
        let here = || !self.view.hung.borrow().contains(self.inner.name());
        while !here() {
            rt::sleep(Nanos::from_millis(10)).await;
        }
    }

    /// The device has done it; the machine hears of it when it goes on.
    async fn done(&self) {
        let commands = self.view.commands.get() + 1;
        self.view.commands.set(commands);
        if self.view.stop_after.get() == Some(commands) {
            // Before anything else runs: time has gone on when it does.
            rt::suspend(Nanos::from_secs(60));
            rt::halt();
            rt::yield_now().await;
        }
    }
}

impl Layer for Seen {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, at: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.answer().await;
            rt::sleep(self.view.read_takes.get()).await;
            let read = self.inner.read(at, buf).await;
            self.done().await;
            read
        })
    }
    fn write(&self, at: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.answer().await;
            self.inner.write(at, data, fua).await?;
            self.done().await;
            Ok(())
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.answer().await;
            self.inner.flush().await?;
            self.done().await;
            Ok(())
        })
    }
}

struct Machine {
    inner: Rc<dyn Opener>,
    view: Rc<View>,
}

impl Opener for Machine {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        Ok(Rc::new(Seen { inner: self.inner.open(path)?, view: self.view.clone() }))
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}

fn machine(rack: &Rc<Rack>, host: u64) -> (Rc<dyn Opener>, Rc<View>) {
    let view = Rc::new(View::default());
    (Rc::new(Machine { inner: rack.host(host), view: view.clone() }), view)
}

/// A mirror with a log device, and its volume.
async fn create(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = spec(Redundancy::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

async fn import(opener: Rc<dyn Opener>) -> Result<Rc<Pool>, PoolError> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::import(opener, &names(DEVICES), "tank", &options).await
}

/// A pool that was not exported, with records in its log.
fn left_behind(rack: &Rc<Rack>) {
    let opener = rack.host(1);
    Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(opener).await;
        v.write(0, stamp(65536, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        v.write(65536, stamp(65536, 2), true).await.unwrap();
    });
}

/// A second machine takes the pool, writes, and hears later what became of it.
struct Second {
    runtime: Runtime,
    pool: Rc<Pool>,
    v: Device,
}

fn take(rack: &Rc<Rack>, seed: u64) -> Result<Second, PoolError> {
    let runtime = Runtime::simulated(seed);
    let opener = rack.host(2);
    let (pool, v) = runtime.block_on(async move {
        let pool = import(opener).await?;
        let v = pool.open_volume("v").unwrap();
        for round in 0..4 {
            v.write(round << 16, stamp(65536, 10 + round), true).await.unwrap();
        }
        pool.sync().await.unwrap();
        v.write(4 << 16, stamp(65536, 14), true).await.unwrap();
        Ok::<_, PoolError>((pool, v))
    })?;
    Ok(Second { runtime, pool, v })
}

async fn holds_all(v: &Device) {
    for round in 0..5 {
        expect(v, round << 16, &stamp(65536, 10 + round)).await;
    }
}

/// The first machine has gone on: the second one's pool is what it was, and stays so.
fn judge(rack: &Rc<Rack>, second: Second, at: u64) {
    let Second { runtime, pool, v } = second;
    let crash = at.is_multiple_of(2);
    runtime.block_on(async move {
        rt::sleep(Nanos::from_secs(3)).await;
        holds_all(&v).await;
        assert_eq!(pool.summary().health, crate::status::Health::Online, "stopped after {at}");
        if !crash {
            drop(v);
            pool.export().await.unwrap();
        }
    });
    drop(runtime);
    let opener = rack.host(2);
    Runtime::simulated(at + 20_000).block_on(async move {
        let pool = import(opener).await.unwrap_or_else(|e| panic!("stopped after {at}: {e}"));
        holds_all(&pool.open_volume("v").unwrap()).await;
        pool.scrub().await.unwrap();
        while pool.scan_status().unwrap().state == "in progress" {
            rt::sleep(Nanos::from_millis(100)).await;
        }
        assert_eq!(pool.scan_status().unwrap().errors, 0, "stopped after {at}");
        pool.export().await.unwrap();
    });
}

// Who imports has no heartbeat of its own yet that could tell it.
#[test]
fn an_import_that_stands_still_at_any_command_does_not_harm_who_takes_the_pool() {
    let mut taken = 0;
    for at in (1..).step_by(7) {
        let rack = Rack::new(DEVICES, SIZE);
        left_behind(&rack);
        let (opener, view) = machine(&rack, 3);
        view.stop_after.set(Some(at));
        // Chance of its own: two owners never have one nonce.
        let first = Runtime::simulated(at + 10_000);
        if first.run(import(opener)).is_some() {
            break;
        }
        let Ok(second) = take(&rack, at) else { continue };
        taken += 1;
        for _ in 0..250 {
            first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
            second.runtime.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        }
        drop(first);
        judge(&rack, second, at);
    }
    assert!(taken > 10, "{taken}");
}

// Its kernel may have done what it was given; what it answers then is of no use to anybody.
#[test]
fn an_owner_that_stands_still_at_any_command_answers_nothing_that_the_next_one_lacks() {
    const STRIDE: u64 = 4096;
    let mut begun = 0;
    for at in (1..=240).step_by(7) {
        let rack = Rack::new(DEVICES, SIZE);
        let (opener, view) = machine(&rack, 1);
        let answered = Rc::new(Cell::new(0));
        let first = Runtime::simulated(at + 10_000);
        let (here, told) = (view.clone(), answered.clone());
        let owner = async move {
            let (pool, v) = create(opener).await;
            here.stop_after.set(Some(here.commands.get() + at));
            for round in 0.. {
                let (offset, data) = (round % 1000 * STRIDE, stamp(STRIDE as usize, 100 + round));
                if v.write(offset, data, true).await.is_err() {
                    break;
                }
                told.set(round + 1);
                if round % 10 == 9 {
                    pool.sync().await.ok();
                }
            }
        };
        assert!(first.run(owner).is_none(), "it stands still");
        let before = answered.get();
        begun += u64::from(before > 0);
        let opener = rack.host(2);
        let runtime = Runtime::simulated(at + 20_000);
        let (pool, v) = runtime.block_on(async move {
            let pool = import(opener).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for round in 0..before {
                expect(&v, round % 1000 * STRIDE, &stamp(STRIDE as usize, 100 + round)).await;
            }
            for round in 0..5 {
                v.write(round << 16, stamp(65536, 10 + round), true).await.unwrap();
            }
            (pool, v)
        });
        for _ in 0..100 {
            first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
            runtime.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        }
        assert_eq!(answered.get(), before, "stopped after {at}: the next owner has read the log");
        drop(first);
        judge(&rack, Second { runtime, pool, v }, at);
    }
    assert!(begun > 10, "{begun}");
}

#[test]
fn an_owner_whose_first_device_does_not_answer_is_seen_to_be_alive() {
    for hung in [&["a"][..], &["a", "b"]] {
        Runtime::simulated(1).block_on(async move {
            let rack = Rack::new(DEVICES, SIZE);
            let (opener, view) = machine(&rack, 1);
            let (pool, v) = create(opener).await;
            rt::sleep(Nanos::from_secs(5)).await;
            *view.hung.borrow_mut() = hung.iter().map(|name| (*name).to_owned()).collect();
            rt::sleep(Nanos::from_secs(5)).await;
            // Nobody needs them for this.
            let written = v.write(0, stamp(4096, 1), true).await;
            assert!(written.is_ok(), "{hung:?}: {}", pool.stop_reason());
            let refused = import(rack.host(2)).await.err().expect("refused").to_string();
            assert!(refused.contains("in use there"), "{refused}");
            v.write(4096, stamp(4096, 2), true).await.unwrap();
        });
    }
}

// Each answer comes after the look it was meant for.
#[test]
fn an_owner_whose_devices_are_always_slow_goes_on() {
    Runtime::simulated(1).block_on(async move {
        let rack = Rack::new(DEVICES, SIZE);
        let (opener, view) = machine(&rack, 1);
        let (pool, v) = create(opener).await;
        view.read_takes.set(Nanos::from_millis(1600));
        for round in 0..60 {
            let written = v.write(0, stamp(4096, round), true).await;
            assert!(written.is_ok(), "{}", pool.stop_reason());
            rt::sleep(Nanos::from_millis(500)).await;
        }
        // So slow that no look counts: writes wait, which is no fault of the devices they are for.
        view.read_takes.set(Nanos::from_secs(4));
        rt::sleep(Nanos::from_secs(10)).await;
        let late = rt::spawn({
            let v = v.clone();
            async move { v.write(0, stamp(4096, 99), true).await }
        });
        rt::sleep(Nanos::from_secs(60)).await;
        assert!(!late.is_finished());
        view.read_takes.set(Nanos::from_millis(1600));
        assert!(late.await.is_ok(), "{}", pool.stop_reason());
        expect(&v, 0, &stamp(4096, 99)).await;
        let refused = import(rack.host(2)).await.err().expect("refused").to_string();
        assert!(refused.contains("in use there"), "{refused}");
    });
}
