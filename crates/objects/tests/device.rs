//! A device over simulated stores, calm and stormy, over crashes and takeovers.

mod common;

use std::ops::Range;
use std::rc::Rc;

use common::{SIZE_BYTES, fill, open, stormy, take};
use forebay_device::{
    BlockDevice, Cause, DeviceError, ErrorKind, IoBuf, IoBytes, ReservationChange, ReservationKey,
    StoreRequest,
};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed};
use forebay_units::Nanos;

use forebay_objects::{Answer, ObjectDevice, Store, StoreError};

async fn expect(device: &ObjectDevice, offset: u64, want: &[u8]) {
    let got = device.read(offset, IoBuf::zeroed(want.len())).await.unwrap();
    assert!(got[..] == *want, "other bytes at {offset}");
}

#[test]
fn what_was_flushed_is_there_when_it_is_opened_again() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        let (label, body, end) = (fill(8192, 1), fill(1 << 20, 2), fill(4096, 3));
        device.write(4096, label.clone(), true).await.unwrap();
        device.write(2 << 20, body.clone(), false).await.unwrap();
        device.write(SIZE_BYTES - 4096, end.clone(), false).await.unwrap();
        // Before the flush it is read from memory.
        expect(&device, 2 << 20, &body).await;
        device.flush().await.unwrap();
        device.write(8 << 20, body.clone(), false).await.unwrap();
        drop(device);
        let device = open(&bucket, 1).await;
        expect(&device, 4096, &label).await;
        expect(&device, 2 << 20, &body).await;
        expect(&device, SIZE_BYTES - 4096, &end).await;
        // What was not flushed is not there, and its object is deleted when the device is taken.
        expect(&device, 8 << 20, &vec![0; 1 << 20]).await;
        take(&device, 5, None).await;
        rt::sleep(Nanos::from_secs(5)).await;
        let objects = bucket.names().iter().filter(|name| name.starts_with("data/")).count();
        assert_eq!(objects, 1);
        device.discard(2 << 20, 1 << 20, true).await.unwrap();
        rt::sleep(Nanos::from_secs(5)).await;
        assert!(!bucket.names().iter().any(|name| name.starts_with("data/")));
    });
}

#[test]
fn what_is_written_anew_is_read_before_the_flush() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(1 << 20, 1), false).await.unwrap();
        device.flush().await.unwrap();
        // The beginning, a part in the middle, and the end of what an object has.
        for at in [2 << 20, (2 << 20) + 8192, (3 << 20) - 4096] {
            device.write(at, fill(4096, at), false).await.unwrap();
            expect(&device, at, &fill(4096, at)).await;
        }
        let mut want = fill(1 << 20, 1).to_vec();
        for at in [0usize, 8192, (1 << 20) - 4096] {
            want[at..at + 4096].copy_from_slice(&fill(4096, (2 << 20) + at as u64));
        }
        expect(&device, 2 << 20, &want).await;
    });
}

#[test]
fn what_is_written_where_it_was_discarded_is_there_after_the_flush() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        let (at, half) = (2 << 20, 32 << 10);
        // The second half goes on where the first one ends, but after the discard.
        device.write(at, fill(half, 1), false).await.unwrap();
        device.discard(at + half as u64, half as u64, false).await.unwrap();
        device.write(at + half as u64, fill(half, 2), false).await.unwrap();
        device.flush().await.unwrap();
        for device in [device, open(&bucket, 2).await] {
            expect(&device, at, &fill(half, 1)).await;
            expect(&device, at + half as u64, &fill(half, 2)).await;
        }
    });
}

#[test]
fn discards_need_no_flush() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(1 << 20, 1), false).await.unwrap();
        device.flush().await.unwrap();
        for part in 0..4 {
            device.discard((2 << 20) + (part << 18), 1 << 18, false).await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
        }
        rt::sleep(Nanos::from_secs(30)).await;
        let has_data = || bucket.names().iter().any(|name| name.starts_with("data/"));
        assert!(!has_data());
        // So do those that come later.
        device.write(2 << 20, fill(1 << 20, 2), false).await.unwrap();
        device.flush().await.unwrap();
        assert!(has_data());
        device.discard(2 << 20, 1 << 20, false).await.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        assert!(!has_data());
        // A device that is closed is not held open.
        device.discard(2 << 20, 1 << 18, false).await.unwrap();
        drop(device);
        let names = bucket.names();
        rt::sleep(Nanos::from_secs(30)).await;
        assert_eq!(bucket.names(), names);
    });
}

#[test]
fn discards_after_a_flush_of_earlier_ones_need_none_either() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(1 << 20, 1), true).await.unwrap();
        device.discard(2 << 20, 1 << 19, false).await.unwrap();
        device.flush().await.unwrap();
        device.discard(5 << 19, 1 << 19, false).await.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        assert!(!bucket.names().iter().any(|name| name.starts_with("data/")));
    });
}

/// A writer that waits for memory waits for objects on their way, and cuts none short: what follows
/// would come in objects of a write each.
#[test]
fn a_store_that_is_slower_than_its_writer_gets_large_objects() {
    Runtime::simulated(1).block_on(async {
        let slow = BucketConfig { least_latency: Nanos::from_millis(200), ..BucketConfig::calm() };
        let bucket = Bucket::new(slow, Seed(1));
        let store = bucket.client("objects");
        let device = ObjectDevice::open(store, 1, 1 << 30).await.unwrap();
        let (piece, total) = (fill(1 << 20, 1), 400);
        for at in 0..total {
            device.write((2 + at) << 20, piece.clone(), false).await.unwrap();
            let waiting = device.stats().waiting_bytes;
            assert!(waiting <= 128 << 20, "{waiting} bytes wait in memory");
        }
        device.flush().await.unwrap();
        let objects = bucket.names().iter().filter(|name| name.starts_with("data/")).count();
        assert_eq!(objects, 400 / 16);
        for at in 0..total {
            expect(&device, (2 + at) << 20, &piece).await;
        }
    });
}

/// Many places are written at once, and none of them fills an object before memory is full.
#[test]
fn runs_are_cut_short_when_they_alone_fill_the_memory() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = ObjectDevice::open(bucket.client("objects"), 1, 1 << 30).await.unwrap();
        let piece = fill(1 << 20, 1);
        for at in 0..12 {
            for place in 0..20 {
                device.write((2 + place * 16 + at) << 20, piece.clone(), false).await.unwrap();
            }
        }
        device.flush().await.unwrap();
        for at in 0..12 {
            for place in 0..20 {
                expect(&device, (2 + place * 16 + at) << 20, &piece).await;
            }
        }
    });
}

/// A store that takes every put, as some servers do that do not know conditions.
struct Careless(Rc<dyn Store>);

impl Store for Careless {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, _: bool) -> Answer<'a, ()> {
        self.0.put(name, parts, false)
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        self.0.get(name, range)
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        self.0.delete(names)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        self.0.list(prefix)
    }
}

#[test]
fn a_store_that_takes_every_put_is_refused() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        // New, and where a device is already.
        for is_new in [true, false] {
            let careless = Rc::new(Careless(bucket.client("objects")));
            let device = ObjectDevice::open(careless, 1, SIZE_BYTES).await.unwrap();
            let before = bucket.names();
            let refused = device.write(0, fill(4096, 1), true).await.unwrap_err();
            assert!(refused.to_string().contains("use a store with conditional puts"), "{refused}");
            let key = ReservationKey(7);
            let change = ReservationChange::Register { key };
            assert!(device.change_reservations(change).await.is_err());
            drop(device);
            if is_new {
                let device = open(&bucket, 1).await;
                device.write(0, fill(4096, 2), true).await.unwrap();
            } else {
                assert_eq!(bucket.names(), before);
                expect(&*open(&bucket, 1).await, 0, &fill(4096, 2)).await;
            }
        }
    });
}

#[test]
fn objects_of_something_else_are_left_alone() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let client = bucket.client("objects");
        Store::put(&*client, "holiday.jpg", vec![fill(4096, 1)], true).await.unwrap();
        let error = ObjectDevice::open(client, 1, SIZE_BYTES).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("holiday.jpg"), "{error}");
    });
}

#[test]
fn checkpoints_keep_the_chain_short() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        take(&device, 1, None).await;
        for beat in 0..1000 {
            device.write(786_432, fill(4096, beat), true).await.unwrap();
        }
        rt::sleep(Nanos::from_secs(5)).await;
        let names = bucket.names();
        let with = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(with("checkpoint/"), 2);
        // Requests cost money: one for each entry, and a checkpoint for a hundred of them.
        assert!(device.stats().puts < 1050, "{:?}", device.stats());
        assert!(with("chain/") < 300, "{} entries", with("chain/"));
        // A listing that lags shows the older of both, and the entries after that one go on.
        let numbers = |prefix: &str| -> Vec<u64> {
            let of = |name: &String| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
            names.iter().filter_map(of).collect()
        };
        let (oldest, entries) = (numbers("checkpoint/")[0], numbers("chain/"));
        let newest = *entries.last().expect("there are entries");
        assert!((oldest + 1..=newest).all(|entry| entries.contains(&entry)), "{oldest}");
        // Another opening reads few of them, and finds the last.
        let again = open(&bucket, 2).await;
        assert!(again.stats().gets < 150, "{:?}", again.stats());
        expect(&again, 786_432, &fill(4096, 999)).await;
    });
}

#[test]
fn a_machine_that_was_replaced_writes_nothing_more() {
    for seed in 0..8 {
        Runtime::simulated(seed).block_on(async move {
            let config = if seed % 2 == 0 { BucketConfig::calm() } else { stormy() };
            let bucket = Bucket::new(config, Seed(seed));
            let old = open(&bucket, 1).await;
            take(&old, 11, None).await;
            old.write(4 << 20, fill(1 << 20, 1), false).await.unwrap();
            old.flush().await.unwrap();
            let new = open(&bucket, 2).await;
            // It goes on while the other one takes the device.
            let late = old.clone();
            let writes = rt::spawn(async move {
                for round in 2..10_000 {
                    late.write(4 << 20, fill(1 << 20, round), false).await?;
                    late.flush().await?;
                }
                Ok::<(), DeviceError>(())
            });
            rt::sleep(Nanos::from_millis(700)).await;
            take(&new, 22, Some(11)).await;
            // The old owner reads the new owner's heartbeat, and not its own, which never will be
            // recorded.
            old.write(786_432, fill(4096, 1), false).await.unwrap();
            new.write(786_432, fill(4096, 2), true).await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            expect(&old, 786_432, &fill(4096, 2)).await;
            let after = new.read(4 << 20, IoBuf::zeroed(1 << 20)).await.unwrap();
            let error = writes.await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::ReservationConflict, "{error}");
            // Nor when it tries again, long after the entries that it missed are covered.
            for beat in 0..400 {
                new.write(786_432, fill(4096, beat), true).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(20)).await;
            let error = old.write(0, fill(4096, 9), true).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::ReservationConflict, "{error}");
            expect(&new, 4 << 20, &after).await;
            expect(&*open(&bucket, 3).await, 4 << 20, &after).await;
        });
    }
}

#[test]
fn an_owner_goes_on_when_another_machine_has_looked_in() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        take(&device, 1, None).await;
        let other = open(&bucket, 2).await;
        for round in 0..600 {
            device.write(786_432, fill(4096, round), true).await.unwrap();
            if round % 200 == 199 {
                // An import that is refused.
                let key = ReservationKey(2);
                let change = ReservationChange::Register { key };
                other.change_reservations(change).await.unwrap();
                let change = ReservationChange::Unregister { key };
                other.change_reservations(change).await.unwrap();
                device.write((4 + round) << 16, fill(65_536, round), false).await.unwrap();
                device.flush().await.unwrap();
            }
        }
        rt::sleep(Nanos::from_secs(20)).await;
        for device in [device, open(&bucket, 3).await] {
            for round in [199, 399, 599] {
                expect(&device, (4 + round) << 16, &fill(65_536, round)).await;
            }
        }
    });
}

#[test]
fn of_two_that_take_it_at_once_one_has_it() {
    for seed in 0..16 {
        Runtime::simulated(seed).block_on(async move {
            let bucket = Bucket::new(stormy(), Seed(seed));
            let old = open(&bucket, 1).await;
            take(&old, 11, None).await;
            let (a, b) = (open(&bucket, 2).await, open(&bucket, 3).await);
            let preempt = async |device: Rc<ObjectDevice>, key: u64| {
                let (key, victim) = (ReservationKey(key), ReservationKey(11));
                device.change_reservations(ReservationChange::Register { key }).await.unwrap();
                let change = ReservationChange::Preempt { key, victim, abort: true };
                device.change_reservations(change).await
            };
            let outcomes =
                rt::join_all([(a.clone(), 22), (b.clone(), 33)].map(|(d, k)| preempt(d, k)));
            let won = outcomes.await.iter().filter(|outcome| outcome.is_ok()).count();
            assert_eq!(won, 1);
            let holders =
                [a.reservations().await.unwrap().holder, b.reservations().await.unwrap().holder];
            assert_eq!(holders[0], holders[1]);
            assert_ne!(holders[0], Some(ReservationKey(11)));
            old.flush().await.unwrap();
            old.write(0, fill(4096, 1), true).await.unwrap_err();
        });
    }
}

#[test]
fn a_store_that_is_down_is_waited_for_until_nobody_waits() {
    Runtime::simulated(3).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(3));
        let device = open(&bucket, 1).await;
        bucket.set_config(BucketConfig { down: true, ..BucketConfig::calm() });
        device.write(2 << 20, fill(4096, 1), false).await.unwrap();
        let flushing = device.clone();
        let flush = rt::spawn(async move { flushing.flush().await });
        rt::sleep(Nanos::from_secs(600)).await;
        bucket.set_config(BucketConfig::calm());
        flush.await.unwrap();
        assert!(device.stats().retries > 10);
        bucket.set_config(BucketConfig { down: true, ..BucketConfig::calm() });
        device.write(3 << 20, fill(4096, 2), false).await.unwrap();
        let flushing = device.clone();
        let flush = rt::spawn(async move { flushing.flush().await });
        rt::sleep(Nanos::from_secs(60)).await;
        device.abandon();
        flush.await.unwrap_err();
        // It takes no more writes: those before are unknown.
        bucket.set_config(BucketConfig::calm());
        device.write(4 << 20, fill(4096, 3), false).await.unwrap_err();
        device.flush().await.unwrap_err();
    });
}

#[test]
fn a_request_that_fails_alone_is_named_and_an_outage_is_not() {
    Runtime::simulated(3).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(3));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(4096, 1), true).await.unwrap();
        let beats = device.clone();
        let _beats = rt::spawn(async move {
            for beat in 0.. {
                // Reads of labels, as a heartbeat's.
                let _ = beats.read(786_432, IoBuf::zeroed(4096)).await;
                assert!(beat < 10_000);
                rt::sleep(Nanos::from_secs(1)).await;
            }
        });
        // The store is away as a whole: it is silent, and no request is to blame.
        bucket.set_config(BucketConfig { down: true, ..BucketConfig::calm() });
        device.write(3 << 20, fill(4096, 2), false).await.unwrap();
        let flushing = device.clone();
        let flush = rt::spawn(async move { flushing.flush().await });
        for _ in 0..60 {
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(device.stats().failing, []);
        }
        let stats = device.stats();
        assert!(stats.silent_for.unwrap() >= Nanos::from_secs(55));
        assert!(stats.silent_error.is_some_and(|error| !error.is_empty()));
        bucket.set_config(BucketConfig::calm());
        for _ in 0..60 {
            assert_eq!(device.stats().failing, []);
            rt::sleep(Nanos::from_secs(1)).await;
        }
        flush.await.unwrap();
        assert_eq!(device.stats().silent_for, None);
        // One object alone.
        bucket.refuse(Some("data/"));
        device.write(4 << 20, fill(4096, 3), false).await.unwrap();
        let flushing = device.clone();
        let flush = rt::spawn(async move { flushing.flush().await });
        rt::sleep(Nanos::from_secs(60)).await;
        let stats = device.stats();
        assert_eq!(stats.silent_for, None);
        let [failing] = &stats.failing[..] else { panic!("{stats:?}") };
        assert_eq!(failing.request, StoreRequest::Put);
        assert!(failing.object.starts_with("data/") && failing.attempts > 3, "{failing:?}");
        assert!(failing.failing_for >= Nanos::from_secs(55), "{failing:?}");
        assert_eq!(failing.error, "500 Internal Server Error");
        bucket.refuse(None);
        flush.await.unwrap();
        assert_eq!(device.stats().failing, []);
        expect(&device, 4 << 20, &fill(4096, 3)).await;
    });
}

#[test]
fn a_lost_object_is_an_error_that_names_it_and_its_blocks() {
    Runtime::simulated(3).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(3));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(1 << 20, 1), false).await.unwrap();
        device.flush().await.unwrap();
        let object = bucket.names().into_iter().find(|name| name.starts_with("data/")).unwrap();
        device.write(3 << 20, fill(1 << 20, 2), false).await.unwrap();
        device.flush().await.unwrap();
        assert!(bucket.lose(&object));
        // The read reaches into an object that is there.
        let error = device.read((3 << 20) - 8192, IoBuf::zeroed(16384)).await.unwrap_err();
        let (offset_bytes, len_bytes) = ((3 << 20) - 8192, 8192);
        let (lost, text) = (object.clone(), error.to_string());
        let kind = ErrorKind::LostObject { object: lost, offset_bytes, len_bytes };
        assert_eq!(error.kind, kind);
        assert!(text.contains(&object), "{text}");
        expect(&device, 3 << 20, &fill(1 << 20, 2)).await;
        // What is written anew is there.
        device.write(2 << 20, fill(1 << 20, 3), false).await.unwrap();
        device.flush().await.unwrap();
        drop(device);
        let device = open(&bucket, 1).await;
        expect(&device, 2 << 20, &fill(1 << 20, 3)).await;
    });
}

/// An entry that is lost would be taken for the end of the chain, and what came after it for
/// something that never was.
#[test]
fn a_chain_that_lost_an_entry_is_refused() {
    Runtime::simulated(3).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(3));
        let device = open(&bucket, 1).await;
        for turn in 0..4 {
            device.write(2 << 20, fill(4096, turn), false).await.unwrap();
            device.flush().await.unwrap();
        }
        drop(device);
        let entries: Vec<String> =
            bucket.names().into_iter().filter(|name| name.starts_with("chain/")).collect();
        assert!(bucket.lose(&entries[2]));
        let opened = ObjectDevice::open(bucket.client("objects"), 1, SIZE_BYTES).await;
        let Err(error) = opened else { panic!("it was opened without one of its entries") };
        let lost = StoreError::Lost { object: entries[2].clone() };
        assert_eq!(error.kind, ErrorKind::Layer(Cause::new(lost)));
        assert_eq!(
            bucket.names().iter().filter(|name| name.starts_with("chain/")).count(),
            entries.len() - 1,
            "nothing takes its place"
        );
    });
}

// A bucket that is emptied, or replaced by an empty one, takes every entry.
#[test]
fn entries_without_what_they_follow_end_within_minutes() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(4096, 1), true).await.unwrap();
        bucket.names().iter().for_each(|name| assert!(bucket.lose(name)));
        let error = loop {
            rt::sleep(Nanos::from_secs(10)).await;
            match device.write(0, fill(4096, 2), true).await {
                Ok(()) => assert!(rt::now() < Nanos::from_secs(180)),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("has lost the object 'device'"), "{error}");
        assert!(device.write(0, fill(4096, 3), true).await.is_err());
    });
}

// Labels are made durable alone, also between the writes of a group and its flush.
#[test]
fn a_flush_after_a_durable_label_covers_what_was_written_before_the_label() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let device = open(&bucket, 1).await;
        device.write(2 << 20, fill(1 << 20, 1), false).await.unwrap();
        device.write(4096, fill(4096, 2), true).await.unwrap();
        device.flush().await.unwrap();
        drop(device);
        let device = open(&bucket, 1).await;
        expect(&device, 2 << 20, &fill(1 << 20, 1)).await;
        expect(&device, 4096, &fill(4096, 2)).await;
    });
}
