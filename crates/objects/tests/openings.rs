//! Devices in stores that fail, while they are opened and later.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{BlockDevice, Cause, ErrorKind, IoBuf, IoBytes};
use forebay_objects::{Answer, ObjectDevice, Store, StoreError};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::{Bucket, BucketClient, BucketConfig, Seed};
use forebay_units::Nanos;

const SIZE_BYTES: u64 = 64 << 20;
const AT_MOST: Nanos = Nanos::from_secs(25);

/// A store that answers each request with one error, while there is one.
struct Failing {
    inner: Rc<BucketClient>,
    error: RefCell<Option<StoreError>>,
}

impl Failing {
    fn new(bucket: &Rc<Bucket>, error: Option<StoreError>) -> Rc<Self> {
        Rc::new(Self { inner: bucket.client("objects"), error: RefCell::new(error) })
    }

    fn or_error<'a, T: 'a>(&'a self, answer: Answer<'a, T>) -> Answer<'a, T> {
        match &*self.error.borrow() {
            Some(error) => Box::pin(std::future::ready(Err(error.clone()))),
            None => answer,
        }
    }
}

impl Store for Failing {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()> {
        self.or_error(self.inner.put(name, parts, only_new))
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        self.or_error(self.inner.get(name, range))
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        self.or_error(self.inner.delete(names))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        self.or_error(self.inner.list(prefix))
    }
}

fn unreachable(text: &str) -> StoreError {
    StoreError::Unreachable { text: text.to_owned() }
}

fn unavailable(text: &str) -> StoreError {
    StoreError::Unavailable { text: text.to_owned() }
}

/// What opening a device in a store that fails with `error` says, and how long it takes.
fn opening(error: StoreError) -> (ErrorKind, Nanos) {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let store = Failing::new(&bucket, Some(error));
        let begun = rt::now();
        let opened = ObjectDevice::open_within(store, 1, SIZE_BYTES, AT_MOST).await;
        (opened.map(|_| ()).unwrap_err().kind, rt::now().since(begun))
    })
}

#[test]
fn store_that_no_request_reaches_is_given_up_soon_and_says_why() {
    let refused = unreachable("Connection refused");
    let (kind, took) = opening(refused.clone());
    assert_eq!(kind, ErrorKind::Layer(Cause::new(refused)));
    assert!(took < Nanos::from_secs(3), "{took:?}");
}

#[test]
fn store_that_fails_for_as_long_as_an_opening_may_take_says_why() {
    let busy = unavailable("503 Slow Down");
    let (kind, took) = opening(busy.clone());
    assert_eq!(kind, ErrorKind::Layer(Cause::new(busy)));
    assert!(took >= AT_MOST && took < AT_MOST + Nanos::from_secs(5), "{took:?}");
}

#[test]
fn store_that_is_silent_for_longer_than_an_opening_may_take_is_waited_for() {
    Runtime::simulated(1).block_on(async {
        let slow = BucketConfig { least_latency: AT_MOST + AT_MOST, ..BucketConfig::calm() };
        let bucket = Bucket::new(slow, Seed(1));
        let store = bucket.client("objects");
        ObjectDevice::open_within(store, 1, SIZE_BYTES, AT_MOST).await.unwrap();
    });
}

#[test]
fn device_that_is_open_waits_for_a_store_that_no_request_reaches() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let store = Failing::new(&bucket, None);
        let device =
            ObjectDevice::open_within(store.clone(), 1, SIZE_BYTES, AT_MOST).await.unwrap();
        let written = IoBuf::copy_of(&[7; 4096]).freeze();
        device.write(2 << 20, written.clone(), false).await.unwrap();
        store.error.replace(Some(unreachable("Connection refused")));
        let flush = rt::spawn(async move { device.flush().await });
        rt::sleep(AT_MOST + AT_MOST).await;
        store.error.take();
        flush.await.unwrap();
        let client = bucket.client("objects");
        let device = ObjectDevice::open(client, 2, SIZE_BYTES).await.unwrap();
        let read = device.read(2 << 20, IoBuf::zeroed(written.len())).await.unwrap();
        assert!(read[..] == written[..]);
    });
}

// The chain's next entries would be taken, and lack what the refused one had.
#[test]
fn device_whose_entry_was_refused_makes_nothing_durable_any_more() {
    Runtime::simulated(1).block_on(async {
        let bucket = Bucket::new(BucketConfig::calm(), Seed(1));
        let store = Failing::new(&bucket, None);
        let device = ObjectDevice::open(store.clone(), 1, SIZE_BYTES).await.unwrap();
        device.write(1 << 20, IoBuf::zeroed(4096).freeze(), true).await.unwrap();
        // An object of the greatest length is stored without a flush.
        let written = IoBuf::copy_of(&[7; 16 << 20]).freeze();
        device.write(2 << 20, written, false).await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        store.error.replace(Some(StoreError::Refused { text: "403 Forbidden".to_owned() }));
        assert!(device.flush().await.is_err());
        store.error.take();
        assert!(device.flush().await.is_err(), "what it should cover is in no entry");
        assert!(device.write(2 << 20, IoBuf::zeroed(4096).freeze(), true).await.is_err());
    });
}
