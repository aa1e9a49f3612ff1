//! A cache device by itself, for tests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_cache::{BlockKey, DeviceIndex, Indexed};
use forebay_device::{Device, DeviceError, ErrorKind, MemoryDevice, Operation};
use forebay_format::config::{CacheConfig, MemberUse};
use forebay_rt as rt;
use forebay_testkit::{Answer, Command, Decision, Probe, Script};
use forebay_units::{BlockAddr, Nanos, SegmentId};

use super::device::{CacheDevice, CacheState};
use crate::OpenWith;
use crate::opener::{FencedOpener, OpenDevice};

pub(super) const SIZE_BYTES: u64 = 64 << 20;
pub(super) const ADDED_AT: u64 = 1000;

pub(super) fn config() -> CacheConfig {
    CacheConfig {
        device: 3,
        path: "k".into(),
        size_bytes: SIZE_BYTES,
        state: MemberUse::Online,
        nonce: 7,
        added_at: ADDED_AT,
    }
}

/// What reads and writes of the device do.
#[derive(Default)]
pub(super) struct Behavior {
    pub reads_take: Cell<Nanos>,
    pub writes_take: Cell<Nanos>,
    /// Reads fail so.
    pub failure: RefCell<Option<ErrorKind>>,
}

impl Script for Behavior {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            let is_read = command.operation == Operation::Read;
            rt::sleep(if is_read { self.reads_take.get() } else { self.writes_take.get() }).await;
            match self.failure.borrow().clone().filter(|_| is_read) {
                Some(kind) => Decision::Fail(kind),
                None => Decision::Run,
            }
        })
    }
}

/// A device in use that has nothing yet, and no task.
pub(super) async fn online(behavior: Rc<Behavior>) -> Rc<CacheDevice> {
    let open = move |name: &str| -> Result<Device, DeviceError> {
        Ok(Probe::new(Rc::new(MemoryDevice::new(name, SIZE_BYTES)), behavior.clone()))
    };
    let guarded = FencedOpener::new(OpenWith::new(1, open)).open("k").await.unwrap();
    let device = CacheDevice::new(&config(), Some(OpenDevice::new("k", guarded)));
    device.index.replace(DeviceIndex::new(device.shape().capacity_blocks()));
    device.state.set(CacheState::Online);
    device
}

/// The block that `put` has at a position, and others.
pub(super) fn block(number: u32) -> Indexed {
    let addr = BlockAddr::new(SegmentId(2), number);
    Indexed { key: BlockKey { addr, birth: 5 }, sum: 100 + u64::from(number) }
}

pub(super) fn put(device: &CacheDevice, position: u32) {
    device.index.borrow_mut().put(position, block(position));
}
