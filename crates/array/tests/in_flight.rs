//! Commands that wait for a device, or are on their way to it, while it goes or is replaced.

mod common;

use common::{Rig, block, segment, simulate};
use forebay_array::{ArrayEvent, MemberState};
use forebay_device::{Deadline, Device, ErrorKind};
use forebay_rt as rt;
use forebay_units::{BlockAddr, DeviceId, Layout, Nanos};

fn id(at: usize) -> DeviceId {
    DeviceId(at as u32)
}

fn state(rig: &Rig, at: usize) -> MemberState {
    let status = rig.array.status();
    status.iter().find(|member| member.id == id(at)).expect("a member").state
}

/// Reads single blocks in parallel and checks each.
async fn flood(rig: &Rig, reads: u32) {
    let reads = (0..reads).map(|i| async move {
        let addr = BlockAddr::new(segment(0), i % rig.geometry().blocks_per_segment());
        assert!(rig.array.read(addr, 1).await.expect("readable")[..] == block(addr, 1)[..]);
    });
    rt::join_all(reads).await;
}

// The disks seek for each block. Reads that wait for their turn do not count towards the deadline.
#[test]
fn flood_of_reads_faults_no_device() {
    simulate(1, async {
        let deadline = |device| Deadline::new(device, Nanos::from_secs(30)) as Device;
        let rig = Rig::with(Layout::Mirror, 2, deadline);
        rig.fill(segment(0), 1).await;
        rig.devices.iter().for_each(|device| device.seek.set(Nanos::from_millis(10)));
        let begun = rt::now();
        let soon = async {
            rt::sleep(Nanos::from_secs(1)).await;
            rig.fill(segment(1), 1).await;
        };
        rt::join(flood(&rig, 10_000), soon).await;
        assert!(rt::now().since(begun) > Nanos::from_secs(45), "the disks seek");
        assert!([0, 1].iter().all(|at| state(&rig, *at) == MemberState::Online));
        rig.expect_segment(segment(1), 1).await;
    });
}

#[test]
fn reads_queued_on_a_removed_device_are_served_by_others() {
    simulate(2, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        rig.devices.iter().for_each(|device| device.seek.set(Nanos::from_millis(10)));
        let goes = async {
            rt::sleep(Nanos::from_secs(1)).await;
            rig.devices[0].gone.set(true);
        };
        rt::join(flood(&rig, 1_000), goes).await;
        assert_eq!(state(&rig, 0), MemberState::Removed);
        assert!(rig.devices[1].reads.get() > 800);
    });
}

// What they waited for was another device, and the one that is there now has not failed.
#[test]
fn reads_that_waited_for_a_device_that_was_closed_accuse_none() {
    simulate(2, async {
        for is_back in [false, true] {
            let rig = Rig::new(Layout::Mirror, 2);
            rig.fill(segment(0), 1).await;
            rig.devices.iter().for_each(|device| device.seek.set(Nanos::from_millis(10)));
            let leaves = async {
                rt::sleep(Nanos::from_secs(1)).await;
                rig.array.close(id(0)).expect("the other has all");
                if is_back {
                    rig.array.online(id(0), Some(rig.devices[0].device())).expect("fits");
                }
            };
            rt::join(flood(&rig, 1_000), leaves).await;
            let failed = |event: &ArrayEvent| matches!(event, ArrayEvent::ReadFailed { .. });
            assert!(!rig.array.events().take().iter().any(failed));
            let expected = if is_back { MemberState::Online } else { MemberState::Offline };
            assert_eq!(state(&rig, 0), expected);
        }
    });
}

// The old device may take long to say that it is gone.
#[test]
fn a_write_or_flush_of_a_device_that_was_replaced_accuses_none() {
    let timed_out = ErrorKind::TimedOut { after_secs: 30 };
    for failure in [ErrorKind::Gone, timed_out] {
        for is_flush in [false, true] {
            let failure = failure.clone();
            simulate(3, async move {
                let rig = Rig::new(Layout::Mirror, 2);
                rig.fill(segment(0), 1).await;
                let old = &rig.devices[0];
                old.write_takes.set(Nanos::from_secs(1));
                old.flush_takes.set(Nanos::from_secs(1));
                *old.failure.borrow_mut() = failure;
                old.fail_writes.set(true);
                old.fail_flushes.set(true);
                let spare = rig.spare("new");
                let returns = async {
                    rt::sleep(Nanos::from_millis(1)).await;
                    rig.array.close(id(0)).expect("the other has all");
                    rig.array.online(id(0), Some(spare.device())).expect("it is as large");
                };
                let work = async {
                    match is_flush {
                        true => rig.array.flush().await.expect("the other has all"),
                        false => rig.fill(segment(1), 1).await,
                    }
                };
                rt::join(work, returns).await;
                assert_eq!(state(&rig, 0), MemberState::Online);
                assert_eq!(rig.array.status()[0].errors.write, 0);
                // What was on its way to the old device is on neither.
                let missed = if is_flush { segment(0) } else { segment(1) };
                assert!(rig.array.stale_segments().contains(&missed));
            });
        }
    }
}

// A repair reads back what it wrote where nothing could be read.
#[test]
fn a_repair_that_ends_on_a_device_that_was_replaced_accuses_none() {
    simulate(4, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        let old = &rig.devices[0];
        old.fail_reads.set(true);
        old.seek.set(Nanos::from_secs(1));
        let spare = rig.spare("new");
        let returns = async {
            rt::sleep(Nanos::from_millis(1500)).await;
            *old.failure.borrow_mut() = ErrorKind::Gone;
            rig.array.close(id(0)).expect("the other has all");
            rig.array.online(id(0), Some(spare.device())).expect("it is as large");
        };
        let addr = BlockAddr::new(segment(0), 0);
        let right = block(addr, 1);
        let (repaired, ()) = rt::join(rig.array.repair(addr, &right), returns).await;
        assert_eq!((repaired, state(&rig, 0)), (Ok(0), MemberState::Online));
    });
}

#[test]
fn events_of_a_bad_device_are_limited_and_changes_of_state_are_kept() {
    simulate(10, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        rig.devices[0].fail_reads.set(true);
        flood(&rig, 5_000).await;
        rig.array.fault(id(0), None).expect("the other has all");
        let events = rig.array.events().take();
        let is_read = |event: &&ArrayEvent| matches!(event, ArrayEvent::ReadFailed { .. });
        let reads = events.iter().filter(is_read).count();
        assert!((100..=1024).contains(&reads), "{reads} events of reads");
        let last = events.last();
        assert!(matches!(last, Some(ArrayEvent::StateChanged { .. })), "{last:?}");
    });
}
