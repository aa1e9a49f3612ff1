use super::{Bucket, SeekKey, SeekOptions, Seeks};
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use forebay_units::Nanos;

fn event(pid: u32, sector: u64, sectors: u64) -> Event {
    Event {
        time: Nanos::ZERO,
        latency: None,
        offset_bytes: sector * 512,
        len_bytes: sectors * 512,
        device: DeviceIndex(0),
        pid,
        op: Op::Read,
        stage: Stage::Queued,
        flags: Flags::default(),
    }
}

fn seeks(key: SeekKey, is_signed: bool, events: &[Event]) -> Seeks {
    let (stage, only) = (Stage::Queued, None);
    let mut seeks = Seeks::new(SeekOptions { key, is_signed, stage, only, counts_empty: false });
    events.iter().for_each(|event| seeks.event(event));
    seeks
}

fn filled(buckets: &[Bucket]) -> Vec<(i64, u64)> {
    buckets.iter().filter(|b| b.count > 0).map(|b| (b.sectors, b.count)).collect()
}

#[test]
fn distances_fall_into_the_buckets_of_quantize() {
    // Ends at 108; then seeks of 0, 1, 7, 8 and 100 sectors, and 37 back.
    let events = [
        event(1, 100, 8),
        event(1, 108, 8),
        event(1, 117, 8),
        event(1, 132, 8),
        event(1, 148, 8),
        event(1, 256, 8),
        event(1, 227, 8),
    ];
    let unsigned = seeks(SeekKey::ThreadAndDevice, false, &events).total();
    assert_eq!(filled(&unsigned), [(0, 1), (1, 1), (4, 1), (8, 1), (32, 1), (64, 1)]);
    let signed = seeks(SeekKey::ThreadAndDevice, true, &events).total();
    assert_eq!(filled(&signed), [(-32, 1), (0, 1), (1, 1), (4, 1), (8, 1), (64, 1)]);
    assert_eq!(signed.first().unwrap().sectors, -32);
    assert_eq!(signed.len(), 6 + 1 + 7, "from the first bucket to the last, gaps included");
}

#[test]
fn each_thread_has_its_own_position_in_seeksize() {
    let events = [event(1, 100, 8), event(2, 900, 8), event(1, 108, 8), event(2, 908, 8)];
    let by_thread = seeks(SeekKey::ThreadAndDevice, false, &events);
    assert_eq!(filled(&by_thread.total()), [(0, 2)]);
    assert_eq!(by_thread.groups().len(), 2);
    let by_device = seeks(SeekKey::Device, false, &events);
    assert_eq!(filled(&by_device.total()), [(512, 3)]);
}

#[test]
fn seeksize_treats_position_zero_as_none() {
    let mut empty_at_zero = event(1, 0, 0);
    empty_at_zero.op = Op::Read;
    let options = SeekOptions {
        key: SeekKey::ThreadAndDevice,
        is_signed: false,
        stage: Stage::Queued,
        only: None,
        counts_empty: true,
    };
    let mut seeks = Seeks::new(options);
    for event in [event(1, 100, 8), empty_at_zero, event(1, 200, 8)] {
        seeks.event(&event);
    }
    assert_eq!(filled(&seeks.total()), [(64, 1)], "the seek to 0, and none away from it");
}

#[test]
fn seeksize_looks_at_the_sign_of_the_lower_32_bits() {
    // 2^31 sectors forward: the int is negative, so the distance is taken the other way round.
    let events = [event(1, 100, 8), event(1, 108 + (1 << 31), 8)];
    let original = seeks(SeekKey::ThreadAndDevice, false, &events).total();
    assert_eq!(filled(&original), [(-(1 << 31), 1)]);
    let plain = seeks(SeekKey::Device, false, &events).total();
    assert_eq!(filled(&plain), [(1 << 31, 1)]);
}

#[test]
fn groups_come_in_the_order_of_their_sums() {
    let events =
        [event(7, 100, 8), event(3, 100, 8), event(7, 4204, 8), event(3, 108, 8), event(3, 116, 8)];
    let groups = seeks(SeekKey::ThreadAndDevice, false, &events).groups();
    let pids: Vec<_> = groups.iter().map(|group| group.pid.unwrap()).collect();
    assert_eq!(pids, [3, 7]);
}
