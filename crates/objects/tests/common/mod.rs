//! Stores that are calm or fail in every way, and devices in them.

use std::rc::Rc;

use forebay_device::{BlockDevice, IoBuf, IoBytes, ReservationChange, ReservationKey};
use forebay_objects::ObjectDevice;
use forebay_sim::{Bucket, BucketConfig};
use forebay_units::Nanos;

pub const SIZE_BYTES: u64 = 64 << 20;

/// A store that fails in every way it can, often.
pub fn stormy() -> BucketConfig {
    BucketConfig {
        least_latency: Nanos::from_millis(10),
        latency_span: Nanos::from_millis(50),
        refused: 60,
        unanswered: 40,
        late: 30,
        repeated: 40,
        listing_lag: Nanos::from_secs(2),
        down: false,
    }
}

pub fn fill(len: usize, seed: u64) -> IoBytes {
    let mut buf = IoBuf::zeroed(len);
    for (at, block) in buf.chunks_mut(4096).enumerate() {
        let stamp = (seed << 20) + at as u64 + 1;
        block.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    }
    buf.freeze()
}

pub async fn open(bucket: &Rc<Bucket>, host: u64) -> Rc<ObjectDevice> {
    ObjectDevice::open(bucket.client("objects"), host, SIZE_BYTES).await.unwrap()
}

pub async fn take(device: &ObjectDevice, key: u64, victim: Option<u64>) {
    let key = ReservationKey(key);
    device.change_reservations(ReservationChange::Register { key }).await.unwrap();
    let change = match victim {
        None => ReservationChange::Reserve { key },
        Some(victim) => {
            ReservationChange::Preempt { key, victim: ReservationKey(victim), abort: true }
        }
    };
    device.change_reservations(change).await.unwrap();
}
