use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, FenceLoss, IoBuf, Layer,
    MemoryDevice, Operation, ReservationChange, ReservationKey, Reservations,
};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::SharedDisk;
use forebay_units::{Nanos, OwnerNonce};

use super::{key_of, release, reserve};
use crate::error::MultihostError;
use crate::monitor::Monitor;
use crate::timing::clock;

const OLD: ReservationKey = ReservationKey(5);
const NEW: ReservationKey = ReservationKey(7);
const THIRD: ReservationKey = ReservationKey(9);

fn shared() -> Rc<SharedDisk> {
    SharedDisk::new(Rc::new(MemoryDevice::new("d", 1 << 20)))
}

async fn holder(disk: &Rc<SharedDisk>) -> Option<ReservationKey> {
    disk.initiator(99).reservations().await.expect("readable").holder
}

async fn write(device: &Device) -> Result<(), ErrorKind> {
    device.write(0, IoBuf::zeroed(4096).freeze(), true).await.map_err(|error| error.kind)
}

fn never(_: ReservationKey) -> bool {
    false
}

#[test]
fn owner_that_ended_is_replaced_on_its_own_machine_without_a_question() {
    Runtime::simulated(1).block_on(async {
        let disk = shared();
        assert_eq!(reserve(&disk.initiator(1), OLD, never).await, Ok(true));
        assert_eq!(reserve(&disk.initiator(1), NEW, never).await, Ok(true));
        assert_eq!(holder(&disk).await, Some(NEW));
    });
}

#[test]
fn holder_on_another_machine_is_replaced_only_with_permission() {
    Runtime::simulated(1).block_on(async {
        let disk = shared();
        let [old, new] = [1, 2].map(|number| disk.initiator(number));
        assert_eq!(reserve(&old, OLD, never).await, Ok(true));
        let refused = MultihostError::Reserved { device: "d".to_owned(), holder: OLD };
        assert_eq!(reserve(&new, NEW, never).await, Err(refused));
        assert_eq!(
            (write(&old).await, write(&new).await),
            (Ok(()), Err(ErrorKind::ReservationConflict),)
        );
        assert_eq!(reserve(&new, NEW, |holder| holder == OLD).await, Ok(true));
        assert_eq!(
            (write(&old).await, write(&new).await),
            (Err(ErrorKind::ReservationConflict), Ok(()),)
        );
        // The old owner ends late: it must not end the new owner's reservation.
        release(&old, OLD).await;
        assert_eq!(holder(&disk).await, Some(NEW));
        release(&new, NEW).await;
        assert_eq!(write(&old).await, Ok(()));
    });
}

// The device has accepted a write of the old owner, and executes it later.
#[test]
fn write_that_the_device_holds_for_the_old_owner_takes_no_effect() {
    Runtime::simulated(1).block_on(async {
        let disk = shared();
        let old = disk.initiator(1);
        assert_eq!(reserve(&old, OLD, never).await, Ok(true));
        disk.set_delay(Nanos::from_secs(1));
        let held = rt::spawn(async move { write(&old).await });
        rt::sleep(Nanos::from_millis(10)).await;
        let taken = reserve(&disk.initiator(2), NEW, |holder| holder == OLD).await;
        assert_eq!(taken, Ok(true));
        assert_eq!(held.await, Err(ErrorKind::ReservationConflict));
        assert_eq!(disk.writes(1), (0, 1));
    });
}

/// A device on which another import is faster, just before the first preemption.
struct Raced {
    inner: Device,
    rival: Device,
    is_over: Cell<bool>,
}

impl Layer for Raced {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let preempts = matches!(change, ReservationChange::Preempt { .. });
            if preempts && !self.is_over.replace(true) {
                let taken = reserve(&self.rival, THIRD, |holder| holder == OLD).await;
                assert_eq!(taken, Ok(true));
            }
            self.inner.change_reservations(change).await
        })
    }
}

#[test]
fn of_two_imports_that_replace_one_owner_one_gets_the_device() {
    Runtime::simulated(1).block_on(async {
        let disk = shared();
        assert_eq!(reserve(&disk.initiator(1), OLD, never).await, Ok(true));
        let (inner, rival) = (disk.initiator(2), disk.initiator(3));
        let slow: Device =
            Rc::new(Raced { inner, rival: rival.clone(), is_over: Cell::new(false) });
        let outcome = reserve(&slow, NEW, |holder| holder == OLD).await;
        assert_eq!(outcome, Err(MultihostError::Lost));
        let known = rival.reservations().await.expect("readable");
        assert_eq!(known, Reservations { keys: vec![THIRD], holder: Some(THIRD) });
        assert_eq!(write(&rival).await, Ok(()));
        assert_eq!(write(&slow).await, Err(ErrorKind::ReservationConflict));
    });
}

#[test]
fn import_that_gave_up_halfway_loses_its_registration() {
    Runtime::simulated(1).block_on(async {
        let disk = shared();
        let [halfway, owner] = [1, 2].map(|number| disk.initiator(number));
        let register = ReservationChange::Register { key: OLD };
        halfway.change_reservations(register).await.expect("registered");
        assert_eq!(reserve(&owner, NEW, never).await, Ok(true));
        assert_eq!(write(&halfway).await, Err(ErrorKind::ReservationConflict));
    });
}

#[test]
fn device_without_reservations_is_left_to_heartbeats() {
    Runtime::simulated(1).block_on(async {
        let device: Device = Rc::new(MemoryDevice::new("d", 1 << 20));
        assert_eq!(reserve(&device, NEW, never).await, Ok(false));
        let monitor = Monitor::new();
        monitor.set_owner(OwnerNonce(7));
        assert_eq!(monitor.reserve(&device, false).await, Ok(()));
        assert!(!monitor.has_reserved("d"));
    });
}

/// A device of `monitor`, reserved and behind its armed fence, and how often the pool was lost.
async fn reserved(monitor: &Rc<Monitor>, device: Device) -> (Device, Rc<Cell<u32>>) {
    monitor.set_owner(OwnerNonce(OLD.0));
    let guarded = monitor.fence().guard(device);
    monitor.reserve(&guarded, false).await.expect("reserved");
    monitor.fence().confirm(clock());
    let lost = Rc::new(Cell::new(0));
    let count = lost.clone();
    monitor.fence().on_loss(move || count.set(count.get() + 1));
    (guarded, lost)
}

#[test]
fn conflict_on_a_device_of_the_pool_shuts_the_fence() {
    Runtime::simulated(1).block_on(async {
        for by_flush in [false, true] {
            let (disk, monitor) = (shared(), Monitor::new());
            let (device, lost) = reserved(&monitor, disk.initiator(1)).await;
            assert!(monitor.has_reserved("d"));
            assert_eq!(write(&device).await, Ok(()));
            let taken = reserve(&disk.initiator(2), NEW, |holder| holder == OLD).await;
            assert_eq!((taken, lost.get()), (Ok(true), 0));
            let outcome = match by_flush {
                true => device.flush().await.map_err(|error| error.kind),
                false => write(&device).await,
            };
            assert_eq!(outcome, Err(ErrorKind::FenceLost(FenceLoss::TakenOver)));
            assert_eq!((monitor.fence().is_lost(), lost.get()), (true, 1));
            assert!(!monitor.has_reserved("d"));
            // Other devices of the pool get nothing more, and the loss is told once.
            let other = monitor.fence().guard(Rc::new(MemoryDevice::new("other", 1 << 20)));
            let outcome = write(&other).await;
            assert_eq!(outcome, Err(ErrorKind::FenceLost(FenceLoss::TakenOver)));
            assert_eq!(lost.get(), 1);
        }
    });
}

#[test]
fn conflict_on_a_device_of_another_owner_is_an_error_of_that_device() {
    Runtime::simulated(1).block_on(async {
        let (disk, monitor) = (shared(), Monitor::new());
        let (device, lost) = reserved(&monitor, disk.initiator(1)).await;
        let foreign = SharedDisk::new(Rc::new(MemoryDevice::new("foreign", 1 << 20)));
        assert_eq!(reserve(&foreign.initiator(2), THIRD, never).await, Ok(true));
        let candidate = monitor.fence().guard(foreign.initiator(1));
        let refused = MultihostError::Reserved { device: "foreign".to_owned(), holder: THIRD };
        assert_eq!(monitor.reserve(&candidate, false).await, Err(refused));
        assert_eq!(write(&candidate).await, Err(ErrorKind::ReservationConflict));
        assert_eq!((write(&device).await, lost.get()), (Ok(()), 0));
        assert_eq!(monitor.reserve(&candidate, true).await, Ok(()));
        assert_eq!(write(&candidate).await, Ok(()));
        monitor.release(&candidate).await;
        assert_eq!(holder(&foreign).await, None);
    });
}

/// A device that fails questions about its reservations while it is told to.
struct Mute {
    inner: Device,
    is_mute: Cell<bool>,
}

impl Layer for Mute {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        if !self.is_mute.get() {
            return self.inner.reservations();
        }
        let (name, kind) = (self.inner.name(), ErrorKind::Os { errno: 5 });
        let error = DeviceError::new(name, Operation::Reservation, 0, 0, kind);
        Box::pin(std::future::ready(Err(error)))
    }
}

// Heartbeats protect it. Another machine that gets its reservation has the pool all the same.
#[test]
fn conflict_on_a_device_that_could_not_be_reserved_shuts_the_fence() {
    Runtime::simulated(1).block_on(async {
        let (disk, monitor) = (shared(), Monitor::new());
        let device = Rc::new(Mute { inner: disk.initiator(1), is_mute: Cell::new(true) });
        let (guarded, lost) = reserved(&monitor, device.clone()).await;
        device.is_mute.set(false);
        assert!(!monitor.has_reserved("d"));
        assert_eq!(write(&guarded).await, Ok(()));
        assert_eq!(reserve(&disk.initiator(2), NEW, never).await, Ok(true));
        assert_eq!(write(&guarded).await, Err(ErrorKind::FenceLost(FenceLoss::TakenOver)));
        assert_eq!((monitor.fence().is_lost(), lost.get()), (true, 1));
    });
}

/// A device that is slow to say that its reservation has ended.
struct SlowToClear(Device);

impl Layer for SlowToClear {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let clears = matches!(change, ReservationChange::Clear { .. });
            self.0.change_reservations(change).await?;
            if clears {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            Ok(())
        })
    }
}

// Another machine has the device as soon as its reservation has ended.
#[test]
fn conflict_on_a_device_that_is_being_given_up_does_not_lose_the_pool() {
    Runtime::simulated(1).block_on(async {
        let (disk, monitor) = (shared(), Monitor::new());
        let slow = Rc::new(SlowToClear(disk.initiator(1)));
        let (device, lost) = reserved(&monitor, slow).await;
        let giving_up = rt::spawn({
            let (monitor, device) = (monitor.clone(), device.clone());
            async move { monitor.release(&device).await }
        });
        rt::sleep(Nanos::from_millis(10)).await;
        assert_eq!(reserve(&disk.initiator(2), NEW, never).await, Ok(true));
        assert!(!giving_up.is_finished());
        assert_eq!(write(&device).await, Err(ErrorKind::ReservationConflict));
        assert_eq!((monitor.fence().is_lost(), lost.get()), (false, 0));
        giving_up.await;
        assert_eq!(holder(&disk).await, Some(NEW));
    });
}

#[test]
fn nonce_of_zero_has_a_key() {
    assert_eq!(key_of(OwnerNonce(0)), ReservationKey(1));
    assert_eq!(key_of(OwnerNonce(u64::MAX)), ReservationKey(u64::MAX));
}
