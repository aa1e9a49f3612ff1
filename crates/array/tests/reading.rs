//! Reads and alternatives where devices fail: what is read, counted and told.

mod common;

use common::{Rig, addr, block, judge, segment, simulate};
use forebay_array::{ArrayError, ArrayEvent, BlockVerdict, MemberState};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout, Nanos};

fn read_errors(rig: &Rig) -> Vec<u64> {
    rig.array.status().iter().map(|member| member.errors.read).collect()
}

#[test]
fn a_read_of_no_blocks_is_empty() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        assert_eq!(rig.array.read(addr(0), 0).await.expect("in range").len(), 0);
    });
}

#[test]
fn a_read_that_fails_is_counted_and_told_once() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 1);
        rig.fill(segment(0), 1).await;
        rig.spoil(0, 2);
        for count in 1..3 {
            let failed = rig.array.read(addr(2), 1).await.expect_err("it is bad");
            let ArrayError::Unreadable { addr: at, blocks: 1, have: 0, need: 1, causes } = failed
            else {
                panic!("{failed:?}")
            };
            assert_eq!((at, causes.len()), (addr(2), 1));
            assert_eq!(rig.array.events().take().len(), 1);
            rig.array.read(addr(1), 1).await.expect("readable");
            assert_eq!(read_errors(&rig), [count]);
        }
        // Of a long read the block is named that cannot be read.
        let failed = rig.array.read(addr(0), 5).await.expect_err("block 2 is bad");
        assert!(
            matches!(failed, ArrayError::Unreadable { addr: at, blocks: 1, .. } if at == addr(2)),
            "{failed:?}"
        );
    });
}

#[test]
fn a_read_for_which_members_are_away_names_its_range() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 2);
        rig.fill(segment(0), 1).await;
        rig.devices[0].gone.set(true);
        rig.array.read(addr(0), 1).await.expect_err("it is gone");
        let failed = rig.array.read(addr(1), 4).await.expect_err("it is gone");
        let ArrayError::Unreadable { addr: at, blocks: 4, causes, .. } = failed else {
            panic!("{failed:?}")
        };
        assert_eq!((at, causes.len()), (addr(1), 0));
    });
}

#[test]
fn two_blocks_are_read_when_bad_sectors_leave_parity_for_each() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        // Block 1 is the second of the first column's row, block 2 the first of the second's.
        rig.spoil(0, 1);
        rig.spoil(1, 0);
        let got = rig.array.read(addr(1), 2).await.expect("each has its parity");
        assert!(got[..BLOCK_LEN] == block(addr(1), 1)[..]);
        assert!(got[BLOCK_LEN..] == block(addr(2), 1)[..]);
    });
}

#[test]
fn a_member_that_missed_a_write_while_another_was_read_is_not_read() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.write_rows(segment(0), 0, 2, 1).await.expect("healthy");
        rig.devices[0].seek.set(Nanos::from_millis(10));
        rig.devices[0].fail_reads.set(true);
        let meanwhile = async {
            rig.devices[1].fail_writes.set(true);
            rig.write_rows(segment(0), 2, 2, 1).await.expect("one is enough");
            assert_eq!(rig.array.status()[1].state, MemberState::Faulted);
        };
        let (read, ()) = rt::join(rig.array.read(addr(0), 1), meanwhile).await;
        assert!(matches!(read, Err(ArrayError::Unreadable { .. })), "{:?}", read.map(|_| ()));
        assert_eq!(rig.devices[1].reads.get(), 0);
    });
}

#[test]
fn a_failed_read_names_a_block_of_its_range_or_row() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        for (device, row) in (0..3).flat_map(|device| (0..4).map(move |row| (device, row))) {
            rig.devices[device].heal();
            rig.spoil(device, 2 * u64::from(row));
            let dead = |_: BlockAddr, _: &[u8]| BlockVerdict::Dead;
            rig.array.freeze();
            rig.array.scrub_rows(segment(0), row, 1, &dead).await.expect("readable");
            rig.devices[device].heal();
            let first = row * g.blocks_per_row();
            // Parity, which is on device 2, is named by its row.
            let expected = addr(if device == 2 { first } else { first + 2 * device as u32 });
            for event in rig.array.events().take() {
                let ArrayEvent::ReadFailed { device: at, addr, .. } = event else {
                    panic!("{event:?}")
                };
                assert_eq!((at, addr), (DeviceId(device as u32), expected), "row {row}");
            }
        }
    });
}

#[test]
fn alternatives_read_each_device_once() {
    simulate(1, async {
        for (layout, members) in [(Layout::Mirror, 3), (Layout::Raidz1, 3), (Layout::Raid0, 1)] {
            let rig = Rig::new(layout, members);
            rig.fill(segment(0), 1).await;
            let all = rig.array.alternatives(addr(0)).await.expect("readable");
            // The block itself, and for parity also what each other column leaves of it.
            assert_eq!(all.count(), if layout == Layout::Raidz1 { 2 } else { 1 }, "{layout}");
            assert!(rig.devices.iter().all(|device| device.reads.get() == 1), "{layout}");
        }
    });
}

#[test]
fn alternatives_without_enough_columns_are_the_block_itself_or_an_error() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        [1, 2].iter().for_each(|at: &usize| rig.devices[*at].gone.set(true));
        for _ in 0..2 {
            let all = rig.array.alternatives(addr(0)).await.expect("device 0 has it");
            let all: Vec<_> = all.collect();
            assert!(all.len() == 1 && all[0][..] == block(addr(0), 1)[..]);
            let failed = rig.array.alternatives(addr(2)).await.map(|_| ()).expect_err("gone");
            let ArrayError::Unreadable { addr: at, blocks: 1, have: 1, need: 2, .. } = failed
            else {
                panic!("{failed:?}")
            };
            assert_eq!(at, addr(2));
            // Devices that are gone are not asked again.
            assert_eq!(read_errors(&rig), [0, 1, 1]);
        }
    });
}

#[test]
fn what_a_failed_member_holds_is_a_version_of_its_own_column() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.fault(DeviceId(0), None).expect("two are enough");
        rig.devices[2].corrupt(rig.geometry().column_start_bytes(0), BLOCK_BYTES).await;
        let mut all = rig.array.alternatives(addr(0)).await.expect("readable");
        assert!(all.any(|data| data[..] == block(addr(0), 1)[..]));
    });
}

#[test]
fn both_versions_of_the_first_column_are_tried() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        let spare = rig.spare("spare");
        rig.array.replace(DeviceId(0), DeviceId(5), spare.device()).expect("fits");
        rig.rebuild(segment(0), g.rows(), &judge).await.expect("readable");
        // The old one of the first column is wrong, and so is what is asked for.
        for at in [0, 1] {
            rig.devices[at].corrupt(g.column_start_bytes(0), BLOCK_BYTES).await;
        }
        let mut all = rig.array.alternatives(addr(2)).await.expect("readable");
        assert!(all.any(|data| data[..] == block(addr(2), 1)[..]));
    });
}
