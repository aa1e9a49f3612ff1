//! Devices that are attached, detached, replaced and returned while the array serves.

mod common;

use std::rc::Rc;

use common::{FaultyDevice, Rig, SEGMENTS, block, segment, simulate};
use forebay_array::{Array, ArrayError, BlockVerdict, GroupSpec, Health, MemberSpec, MemberState};
use forebay_rt as rt;
use forebay_units::{BlockAddr, DeviceId, Layout, Nanos};

fn version_one(addr: BlockAddr, data: &[u8]) -> BlockVerdict {
    if data == block(addr, 1) { BlockVerdict::Good } else { BlockVerdict::Bad }
}

/// Resilvers as a pool does: rebuilds live segments and resets free ones.
async fn resilver(rig: &Rig, live: u32) {
    for stale in rig.array.stale_segments() {
        if stale.0 - common::FIRST_SEGMENT < live {
            let rows = rig.geometry().rows();
            let rebuilt = rig.rebuild(stale, rows, &version_one).await;
            assert_eq!(rebuilt.expect("readable").damaged, vec![]);
        } else {
            rig.array.reset_segment(stale).expect("exists");
        }
    }
    rig.array.flush().await.expect("healthy");
}

// What was rebuilt counts as outdated after a crash until a flush, unless nothing of it is live.
#[test]
fn a_rebuilt_segment_that_is_reset_is_not_outdated_after_a_crash() {
    simulate(4, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.offline(DeviceId(1)).await.expect("it can be spared");
        rig.fill(segment(1), 1).await;
        rig.fill(segment(2), 1).await;
        rig.array.online(DeviceId(1), Some(rig.devices[1].device())).expect("fits");
        for index in [1, 2] {
            let rebuilt = rig.rebuild(segment(index), 4, &version_one).await;
            assert_eq!(rebuilt.expect("readable").members, vec![DeviceId(1)]);
        }
        rig.array.reset_segment(segment(1)).expect("exists");
        let stale = rig.array.status()[1].durable_stale.clone();
        assert_eq!(stale, vec![segment(2).0..segment(3).0]);
    });
}

// A copy attached during a write lacks these rows; the write still succeeds.
#[test]
fn attach_and_detach_during_a_write_do_not_fail_the_write() {
    for attached in [true, false] {
        simulate(3, async move {
            let rig = Rig::new(Layout::Mirror, if attached { 2 } else { 3 });
            rig.array.offline(DeviceId(1)).await.expect("it can be spared");
            let meanwhile = async {
                rt::yield_now().await;
                match attached {
                    true => rig.array.attach(DeviceId(0), DeviceId(9), rig.spare("spare").device()),
                    false => rig.array.detach(DeviceId(1)).map(drop),
                }
            };
            let (written, changed) = rt::join(rig.write_rows(segment(2), 0, 4, 1), meanwhile).await;
            changed.expect("it can");
            written.expect("the other copies took the write");
            rig.array.flush().await.expect("healthy");
            rig.expect_segment(segment(2), 1).await;
        });
    }
}

#[test]
fn replacement_completes_while_writes_continue() {
    for (layout, members) in [(Layout::Raidz1, 4), (Layout::Mirror, 2), (Layout::Raid0, 2)] {
        simulate(7, async move {
            let rig = Rig::new(layout, members);
            for index in 0..3 {
                rig.fill(segment(index), 1).await;
            }
            let spare = rig.spare("spare");
            rig.array.replace(DeviceId(1), DeviceId(7), spare.device()).expect("fits");
            assert_eq!(rig.array.replaced(), vec![], "it holds nothing yet");
            let status = rig.array.status();
            let new = status.iter().find(|member| member.id == DeviceId(7)).expect("there");
            assert!(new.replacement && new.column == 1);
            assert_eq!(new.stale_segments, SEGMENTS);

            rig.array.reset_segment(segment(3)).expect("exists");
            rig.fill(segment(3), 1).await;
            let written = spare.writes.get();
            assert_eq!(written, 1, "writes go to both");
            resilver(&rig, 4).await;
            assert_eq!(rig.array.replaced(), vec![DeviceId(1)]);
            rig.array.detach(DeviceId(1)).expect("its successor has everything");
            rig.devices[1].gone.set(true);
            assert_eq!(rig.array.health(), vec![Health::Online]);
            for index in 0..4 {
                rig.expect_segment(segment(index), 1).await;
            }
            assert!(spare.reads.get() > 0);
        });
    }
}

#[test]
fn new_rows_may_be_written_during_a_rebuild_of_their_segment() {
    for seed in 0..30 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Raidz1, 3);
            rig.write_rows(segment(0), 0, 2, 1).await.expect("healthy");
            let spare = rig.spare("spare");
            rig.array.replace(DeviceId(0), DeviceId(5), spare.device()).expect("fits");
            let rebuild = rig.rebuild(segment(0), 2, &version_one);
            let (rebuilt, written) =
                forebay_rt::join(rebuild, rig.write_rows(segment(0), 2, 2, 1)).await;
            assert_eq!(rebuilt.expect("readable").members, vec![DeviceId(5)]);
            written.expect("healthy");
            rig.devices[0].gone.set(true);
            rig.devices[2].gone.set(true);
            rig.expect_segment(segment(0), 1).await;
        });
    }
}

#[test]
fn member_that_returns_during_a_write_stays_outdated() {
    for seed in 0..60 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Mirror, 2);
            rig.write_rows(segment(0), 0, 1, 1).await.expect("healthy");
            rig.array.offline(DeviceId(1)).await.expect("it can be spared");
            // Rows that the pool knows as written.
            let rows = std::cell::Cell::new(1);
            let back = async {
                // Rows 1.. are in flight to device 0 alone when device 1 returns and is rebuilt.
                forebay_rt::sleep(forebay_units::Nanos(forebay_rt::random_below(600))).await;
                rig.array.online(DeviceId(1), Some(rig.devices[1].device())).expect("fits");
                let rebuilt = rig.rebuild(segment(0), rows.get(), &version_one).await;
                rebuilt.expect("readable");
            };
            let write = async {
                rig.write_rows(segment(0), 1, 3, 1).await.expect("one side is enough");
                rows.set(4);
            };
            forebay_rt::join(write, back).await;
            rig.expect_segment(segment(0), 1).await;
            // If device 1 claims to be up to date, it must be.
            if rig.array.stale_segments().is_empty() {
                rig.devices[0].gone.set(true);
                rig.expect_segment(segment(0), 1).await;
            }
        });
    }
}

#[test]
fn member_that_fails_a_write_and_returns_before_its_end_stays_outdated() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.write_rows(segment(0), 0, 1, 1).await.expect("healthy");
        rig.devices[0].write_takes.set(Nanos(10_000));
        rig.devices[1].fail_writes.set(true);
        let back = async {
            rt::sleep(Nanos(3_000)).await;
            assert_eq!(rig.array.status()[1].state, MemberState::Faulted);
            rig.devices[1].heal();
            rig.array.online(DeviceId(1), None).expect("it has its device");
            let rebuilt = rig.rebuild(segment(0), 1, &version_one).await.expect("readable");
            assert_eq!(rebuilt.members, [DeviceId(1)], "the rows that were answered");
        };
        let write = async {
            rig.write_rows(segment(0), 1, 3, 1).await.expect("one side is enough");
            assert_eq!(rig.array.stale_segments(), [segment(0)]);
        };
        rt::join(write, back).await;
        rig.expect_segment(segment(0), 1).await;
    });
}

#[test]
fn replacement_added_during_a_write_lacks_its_rows() {
    for seed in 0..60 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Raidz1, 3);
            rig.write_rows(segment(0), 0, 1, 1).await.expect("healthy");
            let rows = std::cell::Cell::new(1);
            let replace = async {
                forebay_rt::sleep(forebay_units::Nanos(forebay_rt::random_below(600))).await;
                rig.array
                    .replace(DeviceId(1), DeviceId(5), rig.spare("new").device())
                    .expect("fits");
                let rebuilt = rig.rebuild(segment(0), rows.get(), &version_one).await;
                rebuilt.expect("readable");
            };
            let write = async {
                rig.write_rows(segment(0), 1, 3, 1).await.expect("healthy");
                rows.set(4);
            };
            forebay_rt::join(write, replace).await;
            let new = rig.array.status().into_iter().find(|m| m.id == DeviceId(5)).expect("there");
            let lacks = new.durable_stale.first().is_some_and(|range| range.start == segment(0).0);
            rig.devices[1].gone.set(true);
            rig.devices[2].gone.set(!lacks && rig.array.stale_segments()[0] != segment(0));
            rig.expect_segment(segment(0), 1).await;
        });
    }
}

#[test]
fn failed_replacement_leaves_the_old_member_in_service() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 2);
        rig.fill(segment(0), 1).await;
        let spare = rig.spare("spare");
        rig.array.replace(DeviceId(0), DeviceId(5), spare.device()).expect("fits");
        spare.fail_writes.set(true);
        let rebuilt = rig.rebuild(segment(0), 4, &version_one).await;
        assert_eq!(rebuilt.expect("readable").members, vec![]);
        rig.fill(segment(1), 1).await;
        rig.expect_segment(segment(0), 1).await;
        rig.expect_segment(segment(1), 1).await;
        let refused = rig.array.detach(DeviceId(0));
        assert!(matches!(refused, Err(ArrayError::WouldLose { .. })), "{refused:?}");
        rig.array.detach(DeviceId(5)).expect("it is not needed");
        assert_eq!(rig.array.health(), vec![Health::Online]);
    });
}

// What only a device has that went away is not lost. Nothing may be written in its place.
#[test]
fn a_source_that_goes_while_its_rows_are_read_is_missing_and_not_lost() {
    let missed = Rc::new(std::cell::Cell::new(0));
    for seed in 0..40 {
        let missed = missed.clone();
        simulate(seed, async move {
            let rig = Rig::new(Layout::Raidz1, 3);
            rig.array.offline(DeviceId(2)).await.expect("it can be spared");
            rig.fill(segment(0), 1).await;
            rig.array.flush().await.expect("two are enough");
            rig.array.online(DeviceId(2), Some(rig.devices[2].device())).expect("fits");
            let leave = async {
                rt::sleep(Nanos(rt::random_below(1500))).await;
                rig.devices[0].gone.set(true);
            };
            let (rebuilt, ()) = rt::join(rig.rebuild(segment(0), 4, &version_one), leave).await;
            match rebuilt {
                Ok(rebuilt) => assert_eq!(rebuilt.damaged, vec![], "seed {seed}"),
                Err(ArrayError::SourcesMissing { .. }) => missed.set(missed.get() + 1),
                Err(other) => panic!("{other}"),
            }
            rig.devices[0].gone.set(false);
            if rig.array.status()[0].state != MemberState::Online {
                rig.array.online(DeviceId(0), Some(rig.devices[0].device())).expect("it is back");
            }
            rig.expect_segment(segment(0), 1).await;
        });
    }
    assert!((5..40).contains(&missed.get()), "{} of 40 went in time", missed.get());
}

#[test]
fn single_device_becomes_a_mirror_and_back() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 1);
        rig.fill(segment(0), 1).await;
        let second = rig.spare("second");
        rig.array.attach(DeviceId(0), DeviceId(1), second.device()).expect("fits");
        assert_eq!(rig.geometry().layout, Layout::Mirror);
        let refused = rig.array.detach(DeviceId(0));
        assert!(matches!(refused, Err(ArrayError::WouldLose { .. })), "{refused:?}");
        resilver(&rig, 1).await;
        rig.array.detach(DeviceId(0)).expect("the other has everything");
        rig.expect_segment(segment(0), 1).await;
        let refused = rig.array.detach(DeviceId(1));
        assert!(matches!(refused, Err(ArrayError::NotMirror { .. })), "{refused:?}");
    });
}

#[test]
fn members_that_are_being_rebuilt_do_not_count_for_what_they_lack() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.offline(DeviceId(0)).await.expect("one can be spared");
        rig.fill(segment(1), 1).await;
        rig.array.online(DeviceId(0), Some(rig.devices[0].device())).expect("fits");
        rig.array.check_writable().expect("device 1 has everything");
        rig.devices[1].gone.set(true);
        let _ = rig.write_rows(segment(2), 0, 1, 1).await;
        let refused = Err(ArrayError::SourcesMissing { segment: segment(1) });
        assert_eq!(rig.array.check_writable(), refused);
        rig.array.give_up_sources();
        rig.array.check_writable().expect("the operator gave up segment 1");
        // No member that takes rows has the earlier ones of segment 1.
        assert!(!rig.array.can_extend(segment(1)) && rig.array.can_extend(segment(2)));
        rig.write_rows(segment(1), 1, 1, 1).await.expect_err("it would be whole nowhere");
        rig.array.reset_segment(segment(1)).expect("it is free");
        assert!(rig.array.can_extend(segment(1)));
    });
}

#[test]
fn what_is_given_up_is_missing_on_every_member() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.offline(DeviceId(0)).await.expect("one can be spared");
        rig.fill(segment(1), 1).await;
        rig.array.flush().await.expect("two have it");
        rig.array.online(DeviceId(0), Some(rig.devices[0].device())).expect("fits");
        assert_eq!(rig.array.missing_source(), None);
        rig.devices[2].gone.set(true);
        let _ = rig.write_rows(segment(2), 0, 1, 1).await;
        // Device 2 has segment 1, if it comes back.
        assert_eq!(rig.array.missing_source(), Some(segment(1)));
        rig.array.give_up_sources();
        assert_eq!(rig.array.missing_source(), None, "no member has it");
        let status = rig.array.status();
        let lacks =
            |at: usize| status[at].durable_stale.iter().cloned().flatten().collect::<Vec<_>>();
        let [one, two] = [segment(1), segment(2)].map(|segment| segment.0);
        assert_eq!([lacks(0), lacks(1), lacks(2)], [vec![one], vec![], vec![one, two]]);
        rig.expect_segment(segment(0), 1).await;
    });
}

#[test]
fn removal_that_would_lose_data_is_refused() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.offline(DeviceId(0)).await.expect("one can be spared");
        let refused = rig.array.offline(DeviceId(1)).await;
        assert!(matches!(refused, Err(ArrayError::WouldLose { device: DeviceId(1), .. })));
        assert!(matches!(rig.array.fault(DeviceId(1), None), Err(ArrayError::WouldLose { .. })));
        rig.fill(segment(1), 1).await;
        let back = Some(rig.devices[0].device());
        rig.array.online(DeviceId(0), back).expect("fits");
        // Device 0 lacks segment 1, so the group still needs the others.
        let refused = rig.array.offline(DeviceId(2)).await;
        let lost = Err(ArrayError::WouldLose { device: DeviceId(2), segment: segment(1) });
        assert_eq!(refused, lost);
        resilver(&rig, 2).await;
        rig.array.offline(DeviceId(2)).await.expect("now one can be spared");

        let unknown = DeviceId(77);
        assert_eq!(
            rig.array.count_write_error(unknown),
            Err(ArrayError::NoSuchDevice { device: unknown })
        );
        rig.array.count_write_error(DeviceId(1)).unwrap();
        let counted = rig.array.status().iter().find(|s| s.id == DeviceId(1)).unwrap().errors;
        assert_eq!(counted.write, 1);
        assert_eq!(
            rig.array.fault(unknown, None),
            Err(ArrayError::NoSuchDevice { device: unknown })
        );
        let raidz = rig.array.attach(DeviceId(0), unknown, rig.spare("x").device());
        assert!(matches!(raidz, Err(ArrayError::NotMirror { .. })));
        let small = FaultyDevice::new("small", 4096);
        let refused = rig.array.replace(DeviceId(0), unknown, small.device());
        assert!(matches!(refused, Err(ArrayError::TooSmall { .. })));
        let refused = rig.array.replace(DeviceId(0), DeviceId(1), rig.spare("x").device());
        assert_eq!(refused, Err(ArrayError::DeviceInUse { device: DeviceId(1) }));
        let refused = rig.array.online(DeviceId(2), None);
        assert_eq!(refused, Err(ArrayError::NotOpen { device: DeviceId(2) }));
    });
}

#[test]
fn stored_member_status_is_enough_to_reopen() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz2, 4);
        rig.fill(segment(0), 1).await;
        rig.array.flush().await.expect("healthy");
        rig.devices[1].fail_writes.set(true);
        rig.fill(segment(1), 1).await;
        rig.array.flush().await.expect("two may be missing");
        let status = rig.array.status();
        let open = |devices: &[Option<Rc<FaultyDevice>>]| {
            let member = |(device, kept): (&Option<Rc<FaultyDevice>>, _)| {
                let kept: &forebay_array::MemberStatus = kept;
                let device = device.as_ref().map(FaultyDevice::device);
                let (state, stale) = (kept.state, kept.durable_stale.clone());
                vec![MemberSpec { id: kept.id, device, state, stale, errors: kept.errors }]
            };
            let slots = devices.iter().zip(&status).map(member).collect();
            Array::new(vec![GroupSpec { geometry: rig.geometry(), slots }]).expect("sound")
        };
        let some: Vec<_> = rig.devices.iter().cloned().map(Some).collect();
        let array = open(&some);
        assert_eq!(array.status()[1].state, MemberState::Faulted);
        assert_eq!(array.status()[1].errors.write, 1);
        rig.devices[1].heal();
        array.online(DeviceId(1), None).expect("open");
        assert_eq!(array.stale_segments(), vec![segment(1)]);
        let again = Rig { array, devices: rig.devices.clone() };
        again.expect_segment(segment(0), 1).await;
        again.expect_segment(segment(1), 1).await;

        // One device cannot be opened.
        let mut fewer = some;
        fewer[3] = None;
        let again = Rig { array: open(&fewer), devices: rig.devices.clone() };
        assert_eq!(again.array.status()[3].state, MemberState::Unavail);
        again.expect_segment(segment(1), 1).await;
        assert_eq!(again.array.health(), vec![Health::Degraded]);
    });
}

#[test]
fn groups_are_independent() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let geometry = forebay_array::GroupGeometry {
            first_segment: 100,
            ..common::geometry(Layout::Mirror, 2)
        };
        let device = |name| FaultyDevice::new(name, geometry.needed_bytes());
        let (a, b) = (device("a"), device("b"));
        let group = |geometry, first: u32| {
            let members: Vec<(DeviceId, forebay_device::Device)> =
                vec![(DeviceId(first), a.device()), (DeviceId(first + 1), b.device())];
            GroupSpec::healthy(geometry, members)
        };
        let taken = forebay_array::GroupGeometry { first_segment: 9, ..geometry };
        let refused = rig.array.add_group(group(taken, 10));
        assert!(matches!(refused, Err(ArrayError::Geometry(_))), "{refused:?}");
        let refused = rig.array.add_group(group(geometry, 2));
        assert_eq!(refused, Err(ArrayError::DeviceInUse { device: DeviceId(2) }));
        assert_eq!(rig.array.add_group(group(geometry, 10)), Ok(1));
        let far = forebay_units::SegmentId(102);
        rig.fill(segment(0), 1).await;
        rig.write_rows(far, 0, 4, 1).await.expect("healthy");
        a.gone.set(true);
        rig.devices[1].gone.set(true);
        rig.expect_segment(segment(0), 1).await;
        let got = rig.array.read(BlockAddr::new(far, 3), 1).await.expect("one side is there");
        assert!(got[..] == block(BlockAddr::new(far, 3), 1)[..]);
        assert_eq!(rig.array.health().len(), 2);
    });
}

#[test]
fn mirror_spreads_reads_over_its_members() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 3);
        rig.fill(segment(0), 1).await;
        let reads = (0..30).map(|index| {
            let addr = BlockAddr::new(segment(0), (index * 5) % 8);
            rig.array.read(addr, 1)
        });
        assert!(forebay_rt::join_all(reads).await.iter().all(Result::is_ok));
        assert!(rig.devices.iter().all(|device| device.reads.get() == 10));
    });
}
