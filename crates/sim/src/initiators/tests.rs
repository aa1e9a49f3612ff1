use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{
    Device, ErrorKind, IoBuf, MemoryDevice, ReservationChange, ReservationKey, Reservations,
};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::SharedDisk;

const A: ReservationKey = ReservationKey(0xa);
const B: ReservationKey = ReservationKey(0xb);

fn shared() -> (Rc<SharedDisk>, Device, Device) {
    let disk = SharedDisk::new(Rc::new(MemoryDevice::new("d", 1 << 20)));
    let (a, b) = (disk.initiator(1), disk.initiator(2));
    (disk, a, b)
}

async fn change(device: &Device, change: ReservationChange) -> Result<(), ErrorKind> {
    device.change_reservations(change).await.map_err(|error| error.kind)
}

async fn write(device: &Device, byte: u8) -> Result<(), ErrorKind> {
    let data = IoBuf::copy_of(&[byte; 4096]).freeze();
    device.write(0, data, true).await.map_err(|error| error.kind)
}

async fn first_byte(device: &Device) -> u8 {
    device.read(0, IoBuf::zeroed(4096)).await.expect("all may read")[0]
}

async fn reserve(device: &Device, key: ReservationKey) {
    change(device, ReservationChange::Register { key }).await.expect("registered");
    change(device, ReservationChange::Reserve { key }).await.expect("reserved");
}

#[test]
fn only_registered_initiators_write_to_a_reserved_device() {
    Runtime::simulated(1).block_on(async {
        let (disk, a, b) = shared();
        assert_eq!((write(&a, 1).await, write(&b, 2).await), (Ok(()), Ok(())));
        reserve(&a, A).await;
        assert_eq!(write(&b, 3).await, Err(ErrorKind::ReservationConflict));
        assert_eq!(b.flush().await.map_err(|e| e.kind), Err(ErrorKind::ReservationConflict));
        assert_eq!(disk.writes(2), (1, 2));
        assert_eq!(first_byte(&b).await, 2);
        let conflict = Err(ErrorKind::ReservationConflict);
        assert_eq!(change(&b, ReservationChange::Reserve { key: B }).await, conflict);
        change(&b, ReservationChange::Register { key: B }).await.expect("registered");
        assert_eq!(change(&b, ReservationChange::Reserve { key: B }).await, conflict);
        assert_eq!(write(&b, 4).await, Ok(()));
        let known = Reservations { keys: vec![A, B], holder: Some(A) };
        assert_eq!(b.reservations().await, Ok(known));
        change(&b, ReservationChange::Unregister { key: B }).await.expect("unregistered");
        assert_eq!(write(&b, 5).await, conflict);
        change(&a, ReservationChange::Clear { key: A }).await.expect("cleared");
        assert_eq!(write(&b, 6).await, Ok(()));
        assert_eq!(a.reservations().await, Ok(Reservations::default()));
    });
}

#[test]
fn new_key_of_the_holder_keeps_the_reservation() {
    Runtime::simulated(1).block_on(async {
        let (_disk, a, b) = shared();
        reserve(&a, A).await;
        change(&a, ReservationChange::Register { key: B }).await.expect("registered");
        assert_eq!(a.reservations().await.expect("readable").holder, Some(B));
        assert_eq!(write(&b, 1).await, Err(ErrorKind::ReservationConflict));
    });
}

#[test]
fn preemption_needs_the_holders_key() {
    Runtime::simulated(1).block_on(async {
        let (_disk, a, b) = shared();
        reserve(&a, A).await;
        change(&b, ReservationChange::Register { key: B }).await.expect("registered");
        let preempt = |victim| ReservationChange::Preempt { key: B, victim, abort: true };
        let conflict = Err(ErrorKind::ReservationConflict);
        assert_eq!(change(&b, preempt(ReservationKey(0xc))).await, conflict);
        change(&b, preempt(A)).await.expect("preempted");
        assert_eq!(write(&a, 1).await, conflict);
        let known = Reservations { keys: vec![B], holder: Some(B) };
        assert_eq!(a.reservations().await, Ok(known));
        assert_eq!(change(&a, ReservationChange::Clear { key: A }).await, conflict);
    });
}

// The device holds a write of the old owner while it is preempted.
#[test]
fn accepted_write_lands_after_a_preemption_unless_it_is_aborted() {
    for abort in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let (disk, a, b) = shared();
            reserve(&a, A).await;
            disk.set_delay(Nanos::from_secs(1));
            let outcome = Rc::new(Cell::new(None));
            let (told, old) = (outcome.clone(), a.clone());
            drop(rt::spawn(async move { told.set(Some(write(&old, 1).await.is_ok())) }));
            rt::sleep(Nanos::from_millis(10)).await;
            change(&b, ReservationChange::Register { key: B }).await.expect("registered");
            let preempt = ReservationChange::Preempt { key: B, victim: A, abort };
            change(&b, preempt).await.expect("preempted");
            rt::sleep(Nanos::from_secs(2)).await;
            assert_eq!(outcome.get(), Some(!abort));
            assert_eq!(first_byte(&b).await, u8::from(!abort));
            assert_eq!(write(&a, 2).await, Err(ErrorKind::ReservationConflict));
        });
    }
}
