//! Machines beside the owner of a device: what they read of it, and when they are refused.

mod common;

use common::{fill, open, stormy, take};
use forebay_device::{BlockDevice, ErrorKind, IoBuf, ReservationChange, ReservationKey};
use forebay_objects::ObjectDevice;
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed};
use forebay_units::Nanos;

const HEARTBEAT: u64 = 786_432;

async fn expect(device: &ObjectDevice, offset: u64, want: &[u8]) {
    let got = device.read(offset, IoBuf::zeroed(want.len())).await.unwrap();
    assert!(got[..] == *want, "other bytes at {offset}");
}

/// A machine that only reads learns that a block has moved from the object that is gone, also when
/// it looked at the chain just before.
#[test]
fn an_object_that_its_owner_freed_just_now_is_not_lost() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let owner = open(&bucket, 1).await;
        take(&owner, 11, None).await;
        owner.write(4 << 20, fill(65_536, 1), false).await.unwrap();
        owner.flush().await.unwrap();
        let reader = open(&bucket, 2).await;
        for round in 2..12 {
            rt::sleep(Nanos::from_secs(1)).await;
            // Looks at the chain.
            reader.read(0, IoBuf::zeroed(4096)).await.unwrap();
            owner.write(4 << 20, fill(65_536, round), false).await.unwrap();
            owner.flush().await.unwrap();
            rt::sleep(Nanos::from_millis(10)).await;
            expect(&reader, 4 << 20, &fill(65_536, round)).await;
        }
    });
}

/// The entries after the last one that a machine knows may be covered and deleted. It would take an
/// owner whose heartbeat goes on for one that is silent.
#[test]
fn a_machine_that_looks_again_after_long_sees_the_last_heartbeat() {
    for stormily in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let config = if stormily { stormy() } else { BucketConfig::calm() };
            let bucket = Bucket::new(config, Seed(1));
            let owner = open(&bucket, 1).await;
            take(&owner, 11, None).await;
            let (once, new) = (open(&bucket, 2).await, open(&bucket, 3).await);
            expect(&once, HEARTBEAT, &[0; 4096]).await;
            for beat in 0..600 {
                owner.write(HEARTBEAT, fill(4096, beat), true).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(20)).await;
            for device in [once, new] {
                expect(&device, HEARTBEAT, &fill(4096, 599)).await;
                // What it knows of the owner is of now.
                let shown = device.reservations().await.unwrap();
                assert_eq!(shown.holder, Some(ReservationKey(11)));
                let key = ReservationKey(22);
                let change = ReservationChange::Register { key };
                device.change_reservations(change).await.unwrap();
                let reserve = device.change_reservations(ReservationChange::Reserve { key }).await;
                assert_eq!(reserve.unwrap_err().kind, ErrorKind::ReservationConflict);
                let change = ReservationChange::Unregister { key };
                device.change_reservations(change).await.unwrap();
            }
            owner.write(HEARTBEAT, fill(4096, 600), true).await.unwrap();
        });
    }
}

/// Without a reservation any machine may write. One that missed entries finds the place after those
/// that it knows free again, and has not appended by an entry there.
#[test]
fn a_flush_counts_also_where_covered_entries_were_deleted() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let first = open(&bucket, 1).await;
        for (known, more) in [(1, 600), (300, 600), (5, 130), (1, 300)] {
            for beat in 0..known {
                first.write(HEARTBEAT, fill(4096, beat), true).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(20)).await;
            let second = open(&bucket, 2).await;
            for beat in 0..more {
                first.write(HEARTBEAT, fill(4096, 10_000 + beat), true).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(20)).await;
            let (at, body) = ((4 << 20) + known * 4096, fill(4096, 20_000 + more));
            second.write(at, body.clone(), false).await.unwrap();
            second.flush().await.unwrap();
            for device in [second, open(&bucket, 3).await] {
                expect(&device, at, &body).await;
                expect(&device, HEARTBEAT, &fill(4096, 10_000 + more - 1)).await;
            }
        }
    });
}

/// What was read of the device before is not what it has then.
#[test]
fn a_late_request_of_an_earlier_process_refuses_the_first_of_the_next_one() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let earlier = open(&bucket, 1).await;
        take(&earlier, 11, None).await;
        let next = open(&bucket, 1).await;
        earlier.write(HEARTBEAT, fill(4096, 1), true).await.unwrap();
        let refused = next.write(HEARTBEAT, fill(4096, 2), true).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Overtaken);
        let again = open(&bucket, 1).await;
        expect(&again, HEARTBEAT, &fill(4096, 1)).await;
        again.write(HEARTBEAT, fill(4096, 3), true).await.unwrap();
    });
}

/// A victim that is not registered is no victim, and what a machine does not hold it does not give
/// to another.
#[test]
fn a_reservation_passes_from_its_holder_alone() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let devices = [1, 2, 3].map(|host| {
            let bucket = bucket.clone();
            async move { open(&bucket, host).await }
        });
        let devices = rt::join_all(devices).await;
        for (device, key) in devices.iter().zip([11, 22, 33]) {
            let change = ReservationChange::Register { key: ReservationKey(key) };
            device.change_reservations(change).await.unwrap();
        }
        let preempt = |by: usize, key: u64, victim: u64| {
            let (key, victim) = (ReservationKey(key), ReservationKey(victim));
            let change = ReservationChange::Preempt { key, victim, abort: true };
            let device = devices[by].clone();
            async move { device.change_reservations(change).await.map_err(|error| error.kind) }
        };
        let holder = async || devices[2].reservations().await.unwrap().holder;
        let conflict = Err(ErrorKind::ReservationConflict);
        assert_eq!(preempt(0, 11, 44).await, conflict, "no machine has this key");
        assert_eq!(preempt(0, 12, 22).await, conflict, "its own key is another");
        let reserve = ReservationChange::Reserve { key: ReservationKey(11) };
        devices[0].change_reservations(reserve).await.unwrap();
        // The reservation is not that of the victim.
        assert_eq!(preempt(1, 22, 33).await, Ok(()));
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(holder().await, Some(ReservationKey(11)));
        let shown = devices[2].reservations().await.unwrap();
        assert_eq!(shown.keys, [ReservationKey(11), ReservationKey(22)]);
        assert_eq!(preempt(1, 22, 11).await, Ok(()));
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(holder().await, Some(ReservationKey(22)));
        // It ends with the registration of its holder.
        let change = ReservationChange::Unregister { key: ReservationKey(22) };
        devices[1].change_reservations(change).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let shown = devices[2].reservations().await.unwrap();
        assert_eq!((shown.keys, shown.holder), (Vec::new(), None));
        devices[2].write(HEARTBEAT, fill(4096, 1), true).await.unwrap();
    });
}
