//! What is relied on of members that fail, return and are replaced.

mod common;

use common::{Rig, block, judge, segment, simulate};
use forebay_array::{ArrayError, MemberState};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BlockAddr, DeviceId, Layout, Nanos};

// What it was given before may be lost with its cache.
#[test]
fn member_that_fails_and_returns_during_a_rebuild_is_not_rebuilt() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 3);
        for at in [1, 2] {
            rig.array.offline(DeviceId(at)).await.expect("it can be spared");
        }
        rig.fill(segment(0), 1).await;
        for at in [1, 2] {
            let device = rig.devices[at as usize].device();
            rig.array.online(DeviceId(at), Some(device)).expect("fits");
        }
        rig.devices[2].write_takes.set(Nanos(20_000));
        let second_failure = async {
            rt::sleep(Nanos(8_000)).await;
            assert_eq!(rig.devices[1].writes.get(), 1, "it has its column");
            rig.devices[1].fail_flushes.set(true);
            rig.array.flush().await.expect("two are enough");
            assert_eq!(rig.array.status()[1].state, MemberState::Faulted);
            rig.devices[1].heal();
            rig.array.online(DeviceId(1), None).expect("it has its device");
        };
        let (rebuilt, ()) = rt::join(rig.rebuild(segment(0), 4, &judge), second_failure).await;
        assert_eq!(rebuilt.expect("readable").members, [DeviceId(2)]);
        assert_eq!(rig.array.status()[1].stale_segments, 1);
    });
}

#[test]
fn replacement_counts_once_it_is_durable() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        let spare = rig.spare("spare");
        rig.array.replace(DeviceId(0), DeviceId(5), spare.device()).expect("fits");
        for stale in rig.array.stale_segments() {
            match stale == segment(0) {
                true => drop(rig.rebuild(stale, 4, &judge).await.expect("readable")),
                false => rig.array.reset_segment(stale).expect("exists"),
            }
        }
        assert_eq!(rig.array.status()[1].stale_segments, 0);
        assert_eq!(rig.array.replaced(), [], "a power cut would lose what it has");
        rig.array.flush().await.expect("healthy");
        assert_eq!(rig.array.replaced(), [DeviceId(0)]);
    });
}

#[test]
fn faulted_member_is_a_source_when_no_other_is_right() {
    for layout in [Layout::Mirror, Layout::Raidz1] {
        simulate(1, async move {
            let rig = Rig::new(layout, 2);
            rig.fill(segment(0), 1).await;
            rig.array.fault(DeviceId(1), None).expect("it can be spared");
            let start_bytes = rig.geometry().column_start_bytes(0);
            rig.devices[0].corrupt(start_bytes, BLOCK_BYTES).await;
            let addr = BlockAddr::new(segment(0), 0);
            let mut all = rig.array.alternatives(addr).await.expect("something is there");
            assert!(all.any(|data| data[..] == block(addr, 1)));
        });
    }
}

#[test]
fn nothing_is_repaired_on_a_member_that_is_only_read() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 1);
        rig.fill(segment(0), 1).await;
        rig.array.flush().await.expect("healthy");
        rig.devices[0].fail_writes.set(true);
        let lost = rig.write_rows(segment(1), 0, 1, 1).await;
        assert!(matches!(lost, Err(ArrayError::SegmentLost { .. })), "{lost:?}");
        assert_eq!(rig.array.status()[0].state, MemberState::Degraded);
        rig.devices[0].heal();
        let start_bytes = rig.geometry().column_start_bytes(0);
        rig.devices[0].corrupt(start_bytes, BLOCK_BYTES).await;
        let written = rig.devices[0].writes.get();
        let addr = BlockAddr::new(segment(0), 0);
        assert_eq!(rig.array.repair(addr, &block(addr, 1)).await, Ok(0));
        assert_eq!(rig.devices[0].writes.get(), written);
    });
}

// A resilver of it would begin again and again.
#[test]
fn nothing_is_to_be_rebuilt_on_a_member_that_is_only_read() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.devices[1].fail_writes.set(true);
        rig.fill(segment(1), 1).await;
        rig.array.flush().await.expect("one is enough");
        rig.devices[1].heal();
        rig.array.online(DeviceId(1), None).expect("it has its device");
        // The other one alone has the first segment, so this one stays.
        rig.devices[0].fail_writes.set(true);
        rig.fill(segment(2), 1).await;
        assert_eq!(rig.array.status()[0].state, MemberState::Degraded);
        assert_eq!(rig.array.status()[0].stale_segments, 1);
        assert_eq!(rig.array.stale_segments(), [segment(1)]);
    });
}
