//! Devices that fail before, during and after writes, in every combination that a layout covers.

mod common;

use std::collections::BTreeSet;

use common::{Rig, SEGMENTS, block, choose, segment, shapes, simulate};
use forebay_array::{ArrayError, ArrayEvent, BlockVerdict, Health, MemberState};
use forebay_rt as rt;
use forebay_units::{BLOCK_LEN, BlockAddr, DeviceId, Layout, Nanos};

/// Runs a test for every layout and every set of `parity + more` of its devices.
fn each_loss<F: Future<Output = ()> + 'static>(
    more: usize,
    test: impl Fn(Rig, Vec<usize>) -> F + Copy + 'static,
) {
    let mut seed = 0;
    for (layout, members) in shapes() {
        let parity = common::geometry(layout, members).parity_columns();
        for lost in choose(members, (parity + more).min(members)) {
            seed += 1;
            simulate(seed, async move { test(Rig::new(layout, members), lost).await });
        }
    }
}

fn id(at: usize) -> DeviceId {
    DeviceId(at as u32)
}

fn state(rig: &Rig, at: usize) -> MemberState {
    let status = rig.array.status();
    status.iter().find(|member| member.id == id(at)).expect("a member").state
}

#[test]
fn reads_survive_every_loss_that_parity_covers() {
    for loss in 0..3 {
        each_loss(0, move |rig, lost| async move {
            for index in 0..SEGMENTS {
                rig.fill(segment(index), 1).await;
            }
            for at in &lost {
                match loss {
                    0 => rig.devices[*at].gone.set(true),
                    1 => rig.devices[*at].fail_reads.set(true),
                    _ => rig.array.offline(id(*at)).await.expect("it can be spared"),
                }
            }
            for index in 0..SEGMENTS {
                rig.expect_segment(segment(index), 1).await;
            }
            for at in lost {
                let want = [MemberState::Removed, MemberState::Online, MemberState::Offline][loss];
                assert_eq!(state(&rig, at), want, "device {at}");
            }
        });
    }
}

#[test]
fn a_member_that_is_out_of_use_stays_in_its_state_when_it_is_faulted() {
    simulate(4, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        rig.devices[0].gone.set(true);
        rig.fill(segment(1), 1).await;
        assert_eq!(state(&rig, 0), MemberState::Removed);
        rig.array.fault(id(0), None).expect("it is not in use");
        assert_eq!(state(&rig, 0), MemberState::Removed);
    });
}

#[test]
fn one_loss_beyond_parity_is_an_error_and_not_wrong_data() {
    each_loss(1, |rig, lost| async move {
        let g = rig.geometry();
        rig.fill(segment(1), 1).await;
        lost.iter().for_each(|at| rig.devices[*at].gone.set(true));
        for start in 0..g.blocks_per_segment() {
            let addr = BlockAddr::new(segment(1), start);
            match rig.array.read(addr, 1).await {
                Ok(got) => assert!(got[..] == block(addr, 1)[..]),
                Err(ArrayError::Unreadable { addr: at, have, need, .. }) => {
                    assert_eq!(at, addr);
                    assert!(have < need);
                }
                Err(other) => panic!("{other}"),
            }
        }
        let whole = rig.read_rows(segment(1), 0, g.rows()).await;
        assert!(matches!(whole, Err(ArrayError::Unreadable { .. })));
        assert_eq!(rig.array.health(), vec![Health::Unavail]);
        let refused = rig.array.check_writable();
        assert!(matches!(refused, Err(ArrayError::NotWritable { .. })));
        let refused = rig.write_rows(segment(2), 0, 1, 1).await;
        assert!(matches!(refused, Err(ArrayError::NotWritable { .. })));
    });
}

#[test]
fn bad_sectors_in_different_places_leave_every_block_readable() {
    simulate(5, async {
        let rig = Rig::new(Layout::Raidz1, 4);
        let g = rig.geometry();
        rig.fill(segment(2), 1).await;
        // Each row has one bad block, each in another column.
        for (at, device) in rig.devices.iter().enumerate() {
            let column = g.column_start_bytes(2) / BLOCK_LEN as u64;
            device.bad_blocks.borrow_mut().insert(column + 2 * at as u64);
        }
        rig.expect_segment(segment(2), 1).await;
        let failed = rig.array.events().take();
        assert!(failed.iter().any(|event| matches!(event, ArrayEvent::ReadFailed { .. })));
        let judge = |addr: BlockAddr, data: &[u8]| match data == block(addr, 1) {
            true => BlockVerdict::Good,
            false => BlockVerdict::Bad,
        };
        let scrubbed = rig.array.scrub_rows(segment(2), 0, g.rows(), &judge).await.expect("good");
        assert_eq!(scrubbed.damaged, vec![]);
        assert!(rig.devices.iter().all(|device| device.bad_blocks.borrow().is_empty()));
        let again = rig.array.scrub_rows(segment(2), 0, g.rows(), &judge).await.expect("good");
        assert_eq!((again.mismatches, again.repaired_bytes), (vec![], 0));
    });
}

#[test]
fn writes_survive_losses_and_missed_columns_are_never_read() {
    each_loss(0, |rig, lost| async move {
        let g = rig.geometry();
        for index in 0..3 {
            rig.fill(segment(index), 1).await;
        }
        rig.array.flush().await.expect("healthy");
        lost.iter().for_each(|at| rig.devices[*at].fail_writes.set(true));

        // Segment 1 is reused; segment 3 is new. The devices fail during the writes.
        rig.array.reset_segment(segment(1)).expect("exists");
        rig.fill(segment(1), 2).await;
        rig.fill(segment(3), 2).await;
        rig.array.flush().await.expect("enough columns are left");
        for (index, version) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            rig.expect_segment(segment(index), version).await;
        }
        let events = rig.array.events().take();
        for at in &lost {
            assert_eq!(state(&rig, *at), MemberState::Faulted, "device {at}");
            let faulted = |event: &&ArrayEvent| {
                matches!(event, ArrayEvent::StateChanged { device, to: MemberState::Faulted,
                    cause: Some(_), .. } if *device == id(*at))
            };
            assert_eq!(events.iter().filter(faulted).count(), 1);
        }

        // The devices return with outdated columns, which must not be read.
        for at in &lost {
            rig.devices[*at].heal();
            rig.array.online(id(*at), None).expect("it has its device");
        }
        for index in [1, 3] {
            rig.expect_segment(segment(index), 2).await;
        }
        if lost.is_empty() {
            return;
        }
        assert_eq!(rig.array.stale_segments(), vec![segment(1), segment(3)]);
        assert_eq!(rig.array.health(), vec![Health::Degraded]);

        let judge = |addr: BlockAddr, data: &[u8]| {
            let version = if [segment(1), segment(3)].contains(&addr.segment()) { 2 } else { 1 };
            if data == block(addr, version) { BlockVerdict::Good } else { BlockVerdict::Bad }
        };
        for stale in rig.array.stale_segments() {
            let rebuilt = rig.rebuild(stale, g.rows(), &judge).await.expect("good");
            assert_eq!(rebuilt.members.len(), lost.len());
            assert_eq!(rebuilt.written_bytes, lost.len() as u64 * g.column_bytes);
            assert_eq!((rebuilt.recovered, rebuilt.damaged), (vec![], vec![]));
        }
        assert_eq!(rig.array.health(), vec![Health::Online]);
        // Until a flush, a crash could lose the rebuilt columns.
        let durable =
            |rig: &Rig| rig.array.status().iter().all(|member| member.durable_stale.is_empty());
        assert!(!durable(&rig));
        rig.array.flush().await.expect("healthy");
        assert!(durable(&rig));

        // The rebuilt columns are used: other devices fail instead.
        let others = (0..g.members).filter(|at| !lost.contains(at)).take(g.parity_columns());
        others.for_each(|at| rig.devices[at].gone.set(true));
        for (index, version) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            rig.expect_segment(segment(index), version).await;
        }
    });
}

#[test]
fn one_failed_write_beyond_parity_loses_only_its_segment() {
    each_loss(1, |rig, lost| async move {
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        rig.write_rows(segment(1), 0, 2, 1).await.expect("healthy");
        rig.array.flush().await.expect("healthy");
        lost.iter().for_each(|at| rig.devices[*at].fail_writes.set(true));
        let refused = rig.write_rows(segment(1), 2, 1, 1).await;
        let Err(ArrayError::SegmentLost { segment: named, causes }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((named, causes.len()), (segment(1), lost.len()));
        // Durable data stay readable: the last devices to fail are kept for reading.
        rig.expect_segment(segment(0), 1).await;
        assert_eq!(rig.array.health().len(), 1);
        let kept = lost.iter().filter(|at| state(&rig, **at) == MemberState::Degraded).count();
        assert!(kept >= 1);
        let Err(ArrayError::NotWritable { causes, .. }) = rig.array.check_writable() else {
            panic!("too many devices have failed")
        };
        assert_eq!(causes.len(), lost.len(), "what failed is named: {causes:?}");
        // Alternatives still have the earlier rows of the lost segment.
        for index in 0..2 * g.blocks_per_row() {
            let addr = BlockAddr::new(segment(1), index);
            let mut all = rig.array.alternatives(addr).await.expect("something is there");
            assert!(all.any(|data| data[..] == block(addr, 1)[..]), "{addr}");
        }
        // No batch has succeeded since the last flush, so this flush loses nothing.
        rig.array.flush().await.expect("no successful batch is lost");
    });
}

#[test]
fn a_batch_names_what_failed_on_a_batch_beside_it() {
    each_loss(1, |rig, lost| async move {
        lost.iter().for_each(|at| rig.devices[*at].fail_writes.set(true));
        let heal = async {
            // Commands take 1 to 1000 ns: some fail, and some of the other batch do not.
            rt::sleep(Nanos(500)).await;
            lost.iter().for_each(|at| rig.devices[*at].heal());
        };
        let batch = |row| rig.write_rows(segment(0), row, 1, 1);
        let (batches, ()) = rt::join(rt::join(batch(0), batch(1)), heal).await;
        for outcome in [batches.0, batches.1] {
            if let Err(ArrayError::SegmentLost { causes, .. }) = outcome {
                let named: BTreeSet<_> = causes.iter().map(|cause| &cause.device).collect();
                assert!(named.len() > rig.geometry().parity_columns(), "too few: {causes:?}");
            }
        }
    });
}

#[test]
fn failed_flush_is_not_retried() {
    each_loss(0, |rig, lost| async move {
        rig.fill(segment(0), 1).await;
        rig.array.flush().await.expect("healthy");
        rig.fill(segment(1), 1).await;
        rig.fill(segment(2), 1).await;
        lost.iter().for_each(|at| rig.devices[*at].fail_flushes.set(true));
        rig.array.flush().await.expect("enough columns are durable");
        for at in &lost {
            assert_eq!(state(&rig, *at), MemberState::Faulted);
            let status = rig.array.status();
            let range = segment(1).0..segment(3).0;
            assert_eq!(status[*at].durable_stale, vec![range], "since its last good flush");
            assert_eq!(status[*at].errors.write, 1);
            // A volatile cache may have dropped these columns: they must not be read.
            let g = rig.geometry();
            rig.devices[*at].corrupt(g.column_start_bytes(1), 2 * g.column_bytes).await;
            assert_eq!(rig.devices[*at].flushes.get(), 2);
            rig.devices[*at].heal();
        }
        rig.array.flush().await.expect("still enough");
        assert!(lost.iter().all(|at| rig.devices[*at].flushes.get() == 2));
        for at in &lost {
            rig.array.online(id(*at), None).expect("it has its device");
        }
        for index in 0..3 {
            rig.expect_segment(segment(index), 1).await;
        }
    });
}

#[test]
fn flush_that_loses_segments_fails_until_they_are_reset() {
    each_loss(1, |rig, lost| async move {
        rig.fill(segment(0), 1).await;
        rig.array.flush().await.expect("healthy");
        rig.fill(segment(1), 1).await;
        rig.fill(segment(2), 1).await;
        lost.iter().for_each(|at| rig.devices[*at].fail_flushes.set(true));
        for _ in 0..2 {
            // A later success of the devices proves nothing about the earlier writes.
            let refused = rig.array.flush().await;
            let Err(ArrayError::FlushLost { segments, causes }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(segments, vec![segment(1), segment(2)]);
            assert_eq!(causes.len(), lost.len(), "what failed is named: {causes:?}");
            rig.devices.iter().for_each(|device| device.heal());
        }
        rig.expect_segment(segment(0), 1).await;
        rig.array.reset_segment(segment(1)).expect("exists");
        rig.array.discard_segment(segment(2)).await.expect("exists");
        rig.array.flush().await.expect("the lost segments were reset");
    });
}

#[test]
fn overlapping_flushes_all_report_lost_writes() {
    simulate(3, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.devices[0].fail_flushes.set(true);
        rig.devices[2].fail_flushes.set(true);
        let (first, second) = forebay_rt::join(rig.array.flush(), rig.array.flush()).await;
        for refused in [first, second] {
            assert!(matches!(refused, Err(ArrayError::FlushLost { .. })), "{refused:?}");
        }
    });
}

#[test]
fn flush_covers_only_writes_that_ended_before_it() {
    for seed in 0..20 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Raidz1, 3);
            rig.fill(segment(0), 1).await;
            // The flush starts first; the write ends during the flush or later.
            let (flushed, ()) = forebay_rt::join(rig.array.flush(), rig.fill(segment(1), 1)).await;
            flushed.expect("healthy");
            rig.devices[0].fail_flushes.set(true);
            rig.devices[1].fail_flushes.set(true);
            let refused = rig.array.flush().await;
            let Err(ArrayError::FlushLost { segments, causes }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!((segments, causes.len()), (vec![segment(1)], 2));
            rig.expect_segment(segment(0), 1).await;
        });
    }
}

#[test]
fn write_that_ends_after_its_member_failed_is_stale() {
    for seed in 0..50 {
        simulate(seed, async {
            let rig = Rig::new(Layout::Raidz2, 4);
            let g = rig.geometry();
            rig.devices[1].fail_writes.set(true);
            // Two writes to one segment in flight; one may end before device 1 fails.
            let (a, b) = forebay_rt::join(
                rig.write_rows(segment(0), 0, 2, 1),
                rig.write_rows(segment(0), 2, 2, 1),
            )
            .await;
            a.expect("two may be missing");
            b.expect("two may be missing");
            rig.devices[1].heal();
            rig.array.online(id(1), None).expect("it has its device");
            rig.expect_segment(segment(0), 1).await;
            assert_eq!(rig.array.stale_segments(), vec![segment(0)]);
            let good = |addr: BlockAddr, data: &[u8]| match data == block(addr, 1) {
                true => BlockVerdict::Good,
                false => BlockVerdict::Bad,
            };
            let rebuilt = rig.rebuild(segment(0), g.rows(), &good).await;
            assert_eq!(rebuilt.expect("good").members, vec![id(1)]);
            rig.devices[0].gone.set(true);
            rig.devices[3].gone.set(true);
            rig.expect_segment(segment(0), 1).await;
        });
    }
}

/// Writes a segment of three devices, of which device 1 is slow. `meanwhile` runs before device 1
/// executes its write.
async fn while_a_write_is_slow(rig: &Rig, meanwhile: impl Future<Output = ()>) {
    rig.devices[1].write_takes.set(Nanos::from_secs(1));
    let beside = async {
        rt::sleep(Nanos::from_millis(100)).await;
        rig.devices[1].write_takes.set(Nanos::ZERO);
        meanwhile.await;
    };
    rt::join(rig.fill(segment(0), 1), beside).await;
}

#[test]
fn write_from_before_a_failure_is_stale_when_it_ends_after_a_rebuild() {
    simulate(4, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        while_a_write_is_slow(&rig, async {
            rig.array.fault(id(1), None).expect("two others hold all");
            rig.array.online(id(1), None).expect("it has its device");
            assert_eq!(rig.array.stale_segments(), vec![segment(0)]);
            let good = |_: BlockAddr, _: &[u8]| BlockVerdict::Good;
            let rebuilt = rig.rebuild(segment(0), rig.geometry().rows(), &good).await;
            assert_eq!(rebuilt.expect("good").members, vec![id(1)]);
            assert_eq!(rig.array.stale_segments(), vec![]);
        })
        .await;
        // It may have come over what was rebuilt.
        assert_eq!(rig.array.stale_segments(), vec![segment(0)]);
    });
}

#[test]
fn member_that_left_stays_as_it_left_when_its_last_write_fails() {
    simulate(5, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        while_a_write_is_slow(&rig, async {
            rig.array.close(id(1)).expect("two others hold all");
            rig.devices[1].fail_writes.set(true);
        })
        .await;
        assert_eq!(state(&rig, 1), MemberState::Offline);
        rig.expect_segment(segment(0), 1).await;
    });
}

#[test]
fn member_that_is_needed_is_not_flushed_to_take_it_offline() {
    simulate(6, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.array.offline(id(2)).await.expect("two others hold all");
        rig.fill(segment(0), 1).await;
        rig.devices[0].fail_flushes.set(true);
        let refused = rig.array.offline(id(0)).await;
        assert!(matches!(refused, Err(ArrayError::WouldLose { .. })), "{refused:?}");
        assert_eq!((state(&rig, 0), rig.devices[0].flushes.get()), (MemberState::Online, 0));
        rig.expect_segment(segment(0), 1).await;
    });
}

#[test]
fn member_that_is_gone_is_closed_in_a_group_that_lacks_segments() {
    simulate(7, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.offline(id(1)).await.expect("the other holds all");
        rig.fill(segment(0), 1).await;
        rig.devices[0].gone.set(true);
        rig.array.read(BlockAddr::new(segment(0), 0), 1).await.unwrap_err();
        assert_eq!(state(&rig, 0), MemberState::Removed);
        rig.array.close(id(0)).expect("nothing more is lost with it");
        assert_eq!(state(&rig, 0), MemberState::Offline);
    });
}

#[test]
fn member_that_became_needed_while_it_was_flushed_stays_online() {
    simulate(8, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        let meanwhile = async { rig.array.close(id(1)).expect("two others hold all") };
        let (refused, ()) = rt::join(rig.array.offline(id(0)), meanwhile).await;
        let lost = ArrayError::WouldLose { device: id(0), segment: segment(0) };
        assert_eq!((refused, state(&rig, 0)), (Err(lost), MemberState::Online));
        rig.expect_segment(segment(0), 1).await;
    });
}

#[test]
fn member_that_cannot_read_what_it_wrote_is_faulted_unless_it_is_needed() {
    simulate(9, async {
        for (layout, members, to) in [
            (Layout::Raidz1, 3, MemberState::Faulted),
            (Layout::Mirror, 2, MemberState::Faulted),
            (Layout::Raid0, 2, MemberState::Online),
        ] {
            let rig = Rig::new(layout, members);
            rig.fill(segment(0), 1).await;
            rig.devices[0].fail_reads.set(true);
            let addr = BlockAddr::new(segment(0), 0);
            assert_eq!(rig.array.repair(addr, &block(addr, 1)).await, Ok(0));
            assert_eq!(state(&rig, 0), to, "{layout}");
        }
    });
}

#[test]
fn member_that_is_needed_is_not_closed() {
    simulate(11, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.close(id(2)).expect("two others hold all");
        for at in [0, 1] {
            let lost = ArrayError::WouldLose { device: id(at), segment: segment(0) };
            assert_eq!(rig.array.close(id(at)), Err(lost));
        }
        rig.expect_segment(segment(0), 1).await;
    });
}
