//! A pool that was written, and rot in it.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, Nanos, SegmentId};

use crate::status::ScanStatus;
use crate::tests::rack::memory;
use crate::tests::{spec, stamp, volume};
use crate::{Opener, Pool};

pub(in crate::scrub) async fn written() -> Rc<Pool> {
    written_on(memory(&["a"], 64 << 20)).await
}

pub(in crate::scrub) async fn written_on(opener: Rc<dyn Opener>) -> Rc<Pool> {
    let mut options = spec(Layout::Raid0, &["a"], &[]);
    options.properties.insert("scan_rate".to_owned(), "1M".to_owned());
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..4 {
        v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

/// The first segment for which `is_wanted`.
pub(in crate::scrub) fn segment(
    pool: &Pool,
    is_wanted: fn(SegmentKind, SegmentState) -> bool,
) -> SegmentId {
    let mut found = None;
    pool.store.table.for_each(|segment, info| {
        if is_wanted(info.kind, info.state) {
            found.get_or_insert(segment);
        }
    });
    found.expect("there is one")
}

/// Spoils the first block of each 64 KiB of `written` on `device`. Returns how many there are.
pub(in crate::scrub) async fn spoil(device: &Device, written: &[IoBytes]) -> u64 {
    let parts = written.iter().flat_map(|part| part.chunks(4096).step_by(16));
    let mut left: BTreeSet<&[u8]> = parts.collect();
    let count = left.len() as u64;
    for offset in (1 << 20..1 << 30).step_by(4096) {
        let held = device.read(offset, IoBuf::zeroed(4096)).await.unwrap();
        if left.remove(&held[..]) {
            let rot = IoBuf::copy_of(&[0xee; 4096]).freeze();
            device.write(offset, rot, false).await.unwrap();
            if left.is_empty() {
                return count;
            }
        }
    }
    panic!("{} blocks are nowhere", left.len());
}

/// Waits until the scan is as `is_wanted`.
pub(in crate::scrub) async fn until(
    pool: &Pool,
    is_wanted: impl Fn(&ScanStatus) -> bool,
) -> ScanStatus {
    loop {
        let scan = pool.scan_status().expect("there is one");
        if is_wanted(&scan) {
            return scan;
        }
        rt::sleep(Nanos::from_millis(50)).await;
    }
}
