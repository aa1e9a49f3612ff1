//! What a machine deletes of earlier owners, step by step beside other machines and failures.

mod common;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use common::{SIZE_BYTES, fill, open, stormy, take};
use forebay_device::{BlockDevice, IoBuf, IoBytes, ReservationChange, ReservationKey};
use forebay_objects::{Answer, ObjectDevice, Store, StoreError};
use forebay_rt::sync::Notify;
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketConfig, Seed};
use forebay_units::Nanos;

/// A store that holds back listings of one prefix, and refuses to delete the names of another.
struct Gate {
    store: Rc<dyn Store>,
    held: RefCell<Option<&'static str>>,
    kept: RefCell<Option<&'static str>>,
    opened: Rc<Notify>,
}

impl Gate {
    fn over(bucket: &Rc<Bucket>) -> Rc<Self> {
        let (held, kept) = (RefCell::default(), RefCell::default());
        Rc::new(Self { store: bucket.client("objects"), held, kept, opened: Notify::new() })
    }

    fn open(&self) {
        self.held.take();
        self.opened.notify_all();
    }
}

impl Store for Gate {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()> {
        self.store.put(name, parts, only_new)
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        self.store.get(name, range)
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        let is_kept = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
        if !self.kept.borrow().is_some_and(is_kept) {
            return self.store.delete(names);
        }
        // Of several names the store has deleted those before the one that it does not delete,
        // and those behind it.
        let kept = self.kept.borrow().unwrap_or_default();
        let others = names.into_iter().filter(|name| !name.starts_with(kept)).collect();
        Box::pin(async move {
            self.store.delete(others).await?;
            Err(StoreError::Refused { text: "403 AccessDenied".to_owned() })
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            self.opened.until(|| *self.held.borrow() != Some(prefix)).await;
            self.store.list(prefix).await
        })
    }
}

async fn opened(gate: &Rc<Gate>, host: u64) -> Rc<ObjectDevice> {
    ObjectDevice::open(gate.clone(), host, SIZE_BYTES).await.unwrap()
}

async fn expect(device: &ObjectDevice, offset: u64, want: &[u8]) {
    let got = device.read(offset, IoBuf::zeroed(want.len())).await.unwrap();
    assert!(got[..] == *want, "other bytes at {offset}");
}

/// A network that was cut lets the request of an old owner through after another machine has taken
/// the device: what it lists then is the new owner's.
#[test]
fn a_sweep_that_was_delayed_leaves_the_objects_of_a_new_owner() {
    // The old owner may have looked at the chain just before.
    for looks in [false, true] {
        Runtime::simulated(1).block_on(async move {
            let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
            let gate = Gate::over(&bucket);
            let old = opened(&gate, 1).await;
            gate.held.replace(Some("data/"));
            take(&old, 11, None).await;
            let new = open(&bucket, 2).await;
            if looks {
                // From now on the last entry is another machine's.
                let change = ReservationChange::Register { key: ReservationKey(22) };
                new.change_reservations(change).await.unwrap();
                rt::sleep(Nanos::from_secs(1)).await;
                expect(&old, 0, &[0; 4096]).await;
            }
            take(&new, 22, Some(11)).await;
            let (recorded, waiting) = (fill(1 << 20, 1), fill(1 << 20, 2));
            new.write(4 << 20, recorded.clone(), false).await.unwrap();
            new.flush().await.unwrap();
            // The store has these, and the chain has not yet.
            new.write(8 << 20, waiting.clone(), false).await.unwrap();
            gate.open();
            rt::sleep(Nanos::from_secs(30)).await;
            expect(&new, 4 << 20, &recorded).await;
            new.flush().await.unwrap();
            for device in [new, open(&bucket, 3).await] {
                expect(&device, 4 << 20, &recorded).await;
                expect(&device, 8 << 20, &waiting).await;
            }
        });
    }
}

/// The names of entries and of checkpoints that a store has, as places in the chain.
fn places(bucket: &Bucket, prefix: &str) -> Vec<u64> {
    let of = |name: &String| u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
    bucket.names().iter().filter_map(of).collect()
}

/// A machine that knows an old checkpoint takes the first entry that is gone for the end of the
/// chain, unless that checkpoint is gone as well.
#[test]
fn entries_are_there_as_long_as_a_checkpoint_before_them() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let gate = Gate::over(&bucket);
        let device = opened(&gate, 1).await;
        take(&device, 1, None).await;
        let whole = |bucket: &Bucket| {
            let (checkpoints, entries) = (places(bucket, "checkpoint/"), places(bucket, "chain/"));
            let newest = *entries.last().expect("there are entries");
            let gap = (checkpoints[0] + 1..=newest).find(|entry| !entries.contains(entry));
            assert_eq!(gap, None, "after the checkpoints {checkpoints:?}");
        };
        gate.kept.replace(Some("checkpoint/"));
        for beat in 0..600 {
            device.write(786_432, fill(4096, beat), true).await.unwrap();
        }
        rt::sleep(Nanos::from_secs(10)).await;
        whole(&bucket);
        // A later owner deletes what is left, in the same order.
        drop(device);
        let next = opened(&gate, 1).await;
        take(&next, 2, None).await;
        rt::sleep(Nanos::from_secs(10)).await;
        whole(&bucket);
        let before = places(&bucket, "chain/").len();
        gate.kept.take();
        let last = opened(&gate, 1).await;
        take(&last, 3, None).await;
        rt::sleep(Nanos::from_secs(10)).await;
        whole(&bucket);
        assert!(places(&bucket, "chain/").len() < before - 200);
    });
}

/// A machine that goes on after its own last entry meets the first one of another there.
#[test]
fn the_first_entry_of_an_owner_is_there_for_ever() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let mut firsts = Vec::new();
        let mut victim = None;
        for (host, key) in [(1, 11), (2, 22), (3, 33)] {
            let device = open(&bucket, host).await;
            firsts.push(places(&bucket, "chain/").last().map_or(1, |last| last + 1));
            take(&device, key, victim.replace(key)).await;
            for beat in 0..300 {
                device.write(786_432, fill(4096, beat), true).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(10)).await;
        }
        let left = places(&bucket, "chain/");
        assert!(left.len() < 600, "entries that checkpoints cover are deleted");
        assert!(firsts.iter().all(|first| left.contains(first)), "{firsts:?} of {left:?}");
    });
}

/// A flush whose caller has gone may have taken changes with it. The next flush answers for all of
/// them. A change of reservations whose caller has gone may have the place of the next entry.
#[test]
fn a_request_that_is_dropped_leaves_its_changes_to_the_next() {
    for step in 0..24 {
        Runtime::simulated(step).block_on(async move {
            let (config, millis) = match step % 2 {
                0 => (BucketConfig::calm(), step / 2),
                _ => (stormy(), step * 10),
            };
            let bucket = Bucket::new(config, Seed(step));
            let device = open(&bucket, 1).await;
            take(&device, 1, None).await;
            device.write(4 << 20, fill(65_536, 1), false).await.unwrap();
            device.discard(8 << 20, 4096, false).await.unwrap();
            let _ = rt::timeout(Nanos::from_millis(millis), device.flush()).await;
            let change = ReservationChange::Register { key: ReservationKey(5) };
            let changed = device.change_reservations(change);
            let _ = rt::timeout(Nanos::from_millis(millis), changed).await;
            device.write(6 << 20, fill(65_536, 2), true).await.unwrap();
            device.flush().await.unwrap();
            let other = open(&bucket, 2).await;
            let shown = device.reservations().await.unwrap();
            assert_eq!(other.reservations().await.unwrap(), shown);
            for device in [device, other] {
                expect(&device, 4 << 20, &fill(65_536, 1)).await;
                expect(&device, 6 << 20, &fill(65_536, 2)).await;
            }
        });
    }
}
