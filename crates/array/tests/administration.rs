//! What administration tells of members, refuses, counts and closes.

mod common;

use std::rc::Rc;

use common::{FaultyDevice, Rig, addr, block, geometry, segment, simulate};
use forebay_array::{
    Array, ArrayError, ArrayEvent, ErrorCounts, GroupSpec, Health, MemberSpec, MemberState,
};
use forebay_device::{DeviceError, ErrorKind, MemoryDevice, Operation};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, DeviceId, Layout, Nanos};

fn state(rig: &Rig, at: usize) -> MemberState {
    rig.array.status()[at].state
}

/// The changes of state that were told.
fn changes(rig: &Rig) -> Vec<(u32, MemberState, bool)> {
    let change = |event| match event {
        ArrayEvent::StateChanged { device, to, cause, .. } => Some((device.0, to, cause.is_some())),
        _ => None,
    };
    rig.array.events().take().into_iter().filter_map(change).collect()
}

const UNKNOWN: DeviceId = DeviceId(77);

#[test]
fn status_tells_members_from_their_replacements() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.array.replace(DeviceId(1), DeviceId(5), rig.spare("spare").device()).expect("fits");
        let told: Vec<_> =
            rig.array.status().into_iter().map(|m| (m.id.0, m.column, m.replacement)).collect();
        assert_eq!(told, [(0, 0, false), (1, 1, false), (5, 1, true), (2, 2, false)]);
        let device = rig.array.device(DeviceId(5)).expect("a member").expect("open");
        assert_eq!(device.name(), "spare");
    });
}

#[test]
fn a_state_that_does_not_change_is_no_event() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.online(DeviceId(0), None).expect("it has its device");
        assert_eq!(changes(&rig), []);
        for _ in 0..2 {
            rig.array.fault(DeviceId(1), None).expect("one is enough");
        }
        assert_eq!(changes(&rig), [(1, MemberState::Faulted, false)]);
    });
}

#[test]
fn a_device_that_does_not_answer_in_time_is_faulted() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 1);
        rig.fill(segment(0), 1).await;
        rig.devices[0].failure.replace(ErrorKind::TimedOut { after_secs: 30 });
        rig.devices[0].fail_reads.set(true);
        rig.array.read(addr(0), 1).await.expect_err("it does not answer");
        assert_eq!(changes(&rig), [(0, MemberState::Faulted, true)]);
    });
}

#[test]
fn a_member_that_is_offline_stays_so_when_its_device_goes() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.devices[1].write_takes.set(Nanos::from_millis(1));
        let meanwhile = async {
            rt::sleep(Nanos(1)).await;
            rig.array.close(DeviceId(1)).expect("two are enough");
            rig.devices[1].gone.set(true);
        };
        rt::join(rig.fill(segment(0), 1), meanwhile).await;
        assert_eq!(changes(&rig), [(1, MemberState::Offline, false)]);
    });
}

// What it holds unflushed cannot be relied on after a failed flush.
#[test]
fn a_member_whose_heartbeat_fails_lacks_what_is_not_flushed() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.flush().await.expect("healthy");
        rig.fill(segment(1), 1).await;
        let kind = ErrorKind::Os { errno: 5 };
        let cause = DeviceError::new("d1", Operation::Write, 0, 4096, kind);
        let device = rig.array.device(DeviceId(1)).expect("a member").expect("open");
        rig.array.durable_write_failed(DeviceId(1), &device, &cause).expect("a member");
        assert_eq!(changes(&rig), [(1, MemberState::Faulted, true)]);
        let member = &rig.array.status()[1];
        assert_eq!(member.durable_stale, vec![segment(1).0..segment(2).0]);
        assert_eq!(member.errors, ErrorCounts { write: 1, ..ErrorCounts::default() });
        let unknown = Err(ArrayError::NoSuchDevice { device: UNKNOWN });
        assert_eq!(rig.array.durable_write_failed(UNKNOWN, &device, &cause), unknown);
    });
}

#[test]
fn errors_are_counted_until_they_are_cleared_or_the_member_returns() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        let (unknown, none) =
            (Err(ArrayError::NoSuchDevice { device: UNKNOWN }), ErrorCounts::default());
        assert_eq!(rig.array.count_checksum_error(UNKNOWN), unknown);
        assert_eq!(rig.array.clear_errors(UNKNOWN), unknown);
        for is_returned in [false, true] {
            rig.array.count_checksum_error(DeviceId(1)).expect("a member");
            rig.array.count_write_error(DeviceId(1)).expect("a member");
            let counted = ErrorCounts { read: 0, write: 1, checksum: 1 };
            assert_eq!(rig.array.status()[1].errors, counted);
            match is_returned {
                true => rig.array.online(DeviceId(1), None).expect("it has its device"),
                false => rig.array.clear_errors(DeviceId(1)).expect("a member"),
            }
            assert_eq!(rig.array.status()[1].errors, none);
        }
        rig.fill(segment(0), 1).await;
        rig.devices[1].fail_flushes.set(true);
        rig.array.flush().await.expect("one is enough");
        assert_eq!(rig.array.status()[1].errors.write, 1);
    });
}

#[test]
fn a_member_that_is_taken_offline_is_flushed_if_need_be_and_closed() {
    simulate(1, async {
        for (is_written, fails) in [(false, false), (true, false), (true, true)] {
            let rig = Rig::new(Layout::Mirror, 2);
            if is_written {
                rig.fill(segment(0), 1).await;
            }
            rig.devices[1].fail_flushes.set(fails);
            rig.array.offline(DeviceId(1)).await.expect("one is enough");
            assert_eq!(rig.devices[1].flushes.get(), u64::from(is_written));
            assert!(rig.array.device(DeviceId(1)).expect("a member").is_none());
            let failed = fails.then_some((1, MemberState::Faulted, true));
            let told: Vec<_> =
                failed.into_iter().chain([(1, MemberState::Offline, false)]).collect();
            assert_eq!(changes(&rig), told);
            let stale = rig.array.status()[1].stale_segments;
            assert_eq!(stale, u32::from(fails));
        }
        // A flush of a device that failed one proves nothing.
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        rig.devices[1].fail_flushes.set(true);
        rig.array.flush().await.expect("one is enough");
        rig.array.offline(DeviceId(1)).await.expect("one is enough");
        assert_eq!(rig.devices[1].flushes.get(), 1);
    });
}

#[test]
fn the_device_of_a_member_is_closed_only_while_it_is_not_in_use() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        let is_open = || rig.array.device(DeviceId(1)).expect("a member").is_some();
        rig.array.close_unused(DeviceId(1)).expect("a member");
        assert!(is_open());
        rig.array.fault(DeviceId(1), None).expect("one is enough");
        assert!(is_open());
        rig.array.close_unused(DeviceId(1)).expect("a member");
        assert!(!is_open());
        assert_eq!(state(&rig, 1), MemberState::Faulted);
    });
}

#[test]
fn devices_that_do_not_fit_are_refused_wherever_they_come() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        let needed_bytes = rig.geometry().needed_bytes();
        let small = FaultyDevice::new("small", needed_bytes - BLOCK_BYTES);
        let too_small = |device| {
            let size_bytes = needed_bytes - BLOCK_BYTES;
            Err(ArrayError::TooSmall { device, size_bytes, needed_bytes })
        };
        let (second, new) = (DeviceId(1), DeviceId(5));
        assert_eq!(rig.array.online(second, Some(small.device())), too_small(second));
        assert_eq!(rig.array.attach(DeviceId(0), new, small.device()), too_small(new));
        let in_use = Err(ArrayError::DeviceInUse { device: second });
        assert_eq!(rig.array.attach(DeviceId(0), second, rig.spare("x").device()), in_use);
        let shape = geometry(Layout::Mirror, 2);
        let group = |members| GroupSpec::healthy(shape, members);
        let opened = Array::new(vec![group(vec![(new, small.device())])]).map(|_| ());
        assert_eq!(opened, too_small(new));
        // The same device twice in one group.
        let device = |id| (DeviceId(id), rig.spare("x").device());
        for ids in [&[8, 8][..], &[8, 9, 8]] {
            let members = ids.iter().map(|id| device(*id)).collect();
            let opened = Array::new(vec![group(members)]).map(|_| ());
            assert_eq!(opened, Err(ArrayError::DeviceInUse { device: DeviceId(8) }));
        }
    });
}

#[test]
fn a_copy_is_not_attached_to_stripes() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 2);
        let refused = rig.array.attach(DeviceId(0), DeviceId(5), rig.spare("x").device());
        let not_mirror = ArrayError::NotMirror { device: DeviceId(0), layout: Layout::Raid0 };
        assert_eq!(refused, Err(not_mirror));
    });
}

#[test]
fn a_copy_that_was_detached_is_no_member() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 3);
        rig.array.detach(DeviceId(1)).expect("two are enough");
        let ids: Vec<u32> = rig.array.status().iter().map(|member| member.id.0).collect();
        assert_eq!((ids, rig.geometry().members), (vec![0, 2], 2));
        rig.fill(segment(0), 1).await;
        assert_eq!(rig.devices[1].writes.get(), 0);
        assert_eq!(rig.array.health(), [Health::Online]);
        let unknown = Err(ArrayError::NoSuchDevice { device: DeviceId(1) });
        assert_eq!(rig.array.detach(DeviceId(1)), unknown);
    });
}

#[test]
fn outdated_segments_of_other_groups_are_passed_over() {
    let shape = geometry(Layout::Mirror, 2);
    let member = |id, stale| {
        let device = Rc::new(MemoryDevice::new("m", shape.needed_bytes()));
        vec![MemberSpec { stale, ..MemberSpec::healthy(DeviceId(id), device) }]
    };
    let (first, end) = (shape.first_segment, shape.first_segment + shape.segments);
    let stale = vec![0..first + 1, end - 1..end + 70];
    let slots = vec![member(0, stale), member(1, Vec::new())];
    let array = Array::new(vec![GroupSpec { geometry: shape, slots }]).expect("sound");
    let lacks = array.status()[0].durable_stale.clone();
    assert_eq!(lacks, [first..first + 1, end - 1..end]);
}

#[test]
fn health_tells_groups_that_lack_a_member_from_those_that_are_only_read() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.fault(DeviceId(1), None).expect("one is enough");
        assert_eq!(rig.array.health(), [Health::Degraded], "nothing is outdated");
        rig.fill(segment(0), 1).await;
        rig.array.online(DeviceId(1), None).expect("it has its device");
        assert_eq!(rig.array.health(), [Health::Degraded], "all can be written");
        let rig = Rig::new(Layout::Raid0, 1);
        rig.devices[0].fail_writes.set(true);
        rig.write_rows(segment(2), 0, 1, 1).await.expect_err("it fails");
        rig.array.reset_segment(segment(2)).expect("exists");
        assert_eq!(rig.array.health(), [Health::ReadOnly]);
        let Err(ArrayError::NotWritable { segment: named, .. }) = rig.array.check_writable() else {
            panic!("it is only read")
        };
        assert_eq!(named, segment(0));
    });
}

#[test]
fn a_wait_for_events_ends_with_the_next_one() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        let (waiting, ()) =
            rt::join(rt::timeout(Nanos::from_secs(2), rig.array.events().wait()), async {
                rt::sleep(Nanos::from_secs(1)).await;
                rig.array.fault(DeviceId(1), None).expect("one is enough");
            })
            .await;
        assert!(waiting.is_ok());
        assert_eq!(rt::now(), Nanos::from_secs(1));
        let again = rt::timeout(Nanos::from_secs(1), rig.array.events().wait()).await;
        assert!(again.is_ok(), "it was not taken");
        assert_eq!(changes(&rig).len(), 1);
        let none = rt::timeout(Nanos::from_secs(1), rig.array.events().wait()).await;
        assert!(none.is_err());
    });
}

// Reads that wait for their turn go to another member; those that the device has end there.
#[test]
fn a_device_that_is_closed_gets_none_of_the_reads_that_waited() {
    simulate(1, async {
        for is_detached in [false, true] {
            let rig = Rig::new(Layout::Mirror, 2);
            rig.fill(segment(0), 1).await;
            rig.devices.iter().for_each(|device| device.seek.set(Nanos::from_millis(10)));
            let reads = (0..1_000).map(|_| async {
                let got = rig.array.read(addr(3), 1).await.expect("one has it");
                assert!(got[..] == block(addr(3), 1)[..]);
            });
            let leaves = async {
                rt::sleep(Nanos::from_secs(1)).await;
                match is_detached {
                    true => rig.array.detach(DeviceId(0)).expect("one is enough"),
                    false => rig.array.close(DeviceId(0)).expect("one is enough"),
                }
            };
            rt::join(rt::join_all(reads), leaves).await;
            let read = rig.devices[0].reads.get();
            assert!((100..250).contains(&read), "{read} reads");
        }
    });
}
