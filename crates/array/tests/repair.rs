//! Wrong data: alternatives, repair and scrub.

mod common;

use common::{Rig, block, choose, judge, segment, shapes, simulate};
use forebay_array::{ArrayError, ArrayEvent, BlockVerdict};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout};

/// Number of columns that may be wrong; in a mirror, all but one.
fn spare(layout: Layout, members: usize) -> usize {
    common::geometry(layout, members).parity_columns()
}

#[test]
fn alternatives_include_the_right_version() {
    for (layout, members) in shapes() {
        for wrong in choose(members, spare(layout, members)) {
            simulate(1, async move {
                let rig = Rig::new(layout, members);
                let g = rig.geometry();
                rig.fill(segment(1), 1).await;
                for at in &wrong {
                    rig.devices[*at].corrupt(g.column_start_bytes(1), g.column_bytes).await;
                }
                for index in 0..g.blocks_per_segment() {
                    let addr = BlockAddr::new(segment(1), index);
                    let mut all = rig.array.alternatives(addr).await.expect("readable");
                    let right = all.find(|data| judge(addr, data) == BlockVerdict::Good);
                    let right = right.unwrap_or_else(|| panic!("{addr}: none is right"));
                    rig.array.repair(addr, &right).await.expect("writable");
                    let got = rig.array.read(addr, 1).await.expect("readable");
                    assert!(got[..] == block(addr, 1)[..]);
                }
                // Every data column is right again.
                rig.expect_segment(segment(1), 1).await;
                let errors: u64 = rig.array.status().iter().map(|m| m.errors.checksum).sum();
                let repaired = rig.array.events().take();
                let repaired =
                    repaired.iter().filter(|event| matches!(event, ArrayEvent::Repaired { .. }));
                assert_eq!(errors, repaired.count() as u64);
            });
        }
    }
}

#[test]
fn alternatives_recover_with_missing_and_wrong_columns() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz3, 6);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        rig.devices[1].gone.set(true);
        for at in [0, 4] {
            rig.devices[at].corrupt(g.column_start_bytes(0), g.column_bytes).await;
        }
        for index in 0..g.blocks_per_segment() {
            let addr = BlockAddr::new(segment(0), index);
            let mut all = rig.array.alternatives(addr).await.expect("readable");
            assert!(all.any(|data| judge(addr, &data) == BlockVerdict::Good), "{addr}");
        }
        // With one more wrong column no version is right, but the iteration ends.
        rig.devices[2].corrupt(g.column_start_bytes(0), g.column_bytes).await;
        let (role, _) = g.locate(0);
        assert_eq!(g.column_of(0, role), 0);
        let addr = BlockAddr::new(segment(0), 0);
        let all: Vec<_> = rig.array.alternatives(addr).await.expect("readable").collect();
        assert!(!all.is_empty() && all.iter().all(|data| judge(addr, data) == BlockVerdict::Bad));
    });
}

#[test]
fn read_can_exclude_members() {
    simulate(1, async {
        for (layout, members) in [(Layout::Raidz2, 5), (Layout::Mirror, 3)] {
            let rig = Rig::new(layout, members);
            let g = rig.geometry();
            rig.fill(segment(0), 1).await;
            let bad = [DeviceId(0), DeviceId(2)];
            for at in [0, 2] {
                rig.devices[at].corrupt(g.column_start_bytes(0), g.column_bytes).await;
            }
            for index in 0..g.blocks_per_segment() {
                let addr = BlockAddr::new(segment(0), index);
                let got = rig.array.read_reconstructed(addr, 1, &bad).await.expect("readable");
                assert!(got[..] == block(addr, 1)[..]);
            }
            let all = [DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3), DeviceId(4)];
            let addr = BlockAddr::new(segment(0), 0);
            let refused = rig.array.read_reconstructed(addr, 1, &all).await;
            assert!(matches!(refused, Err(ArrayError::Unreadable { have: 0, .. })));
        }
    });
}

#[test]
fn scrub_repairs_every_wrong_column() {
    for (layout, members) in shapes() {
        let spare = spare(layout, members);
        if spare == 0 {
            continue;
        }
        for wrong in choose(members, spare) {
            simulate(2, async move {
                let rig = Rig::new(layout, members);
                let g = rig.geometry();
                let rows = g.rows();
                rig.fill(segment(2), 1).await;
                assert_eq!(rig.array.check_parity(segment(2), 0, rows).await, Ok(vec![]));
                let start_bytes = g.column_start_bytes(2);
                let mut before = Vec::new();
                for device in &rig.devices {
                    before.push(device.peek(start_bytes, g.column_bytes).await);
                }
                // The second row of each.
                for at in &wrong {
                    rig.devices[*at].corrupt(start_bytes + g.unit_bytes, g.unit_bytes).await;
                }
                let found = rig.array.check_parity(segment(2), 0, rows).await.expect("readable");
                assert!(!found.is_empty() && found.iter().all(|mismatch| mismatch.row == 1));
                let fine = rig.array.check_parity(segment(2), 2, 2).await;
                assert_eq!(fine, Ok(vec![]));

                let scrubbed =
                    rig.array.scrub_rows(segment(2), 0, rows, &judge).await.expect("readable");
                assert_eq!(scrubbed.damaged, vec![]);
                assert_eq!(scrubbed.repaired_bytes, g.unit_bytes * wrong.len() as u64);
                let named: Vec<usize> =
                    scrubbed.mismatches.iter().map(|m| m.device.0 as usize).collect();
                assert_eq!(named, wrong, "the scrub names exactly the wrong columns");
                for (at, member) in rig.array.status().iter().enumerate() {
                    let blocks = g.unit_bytes / BLOCK_BYTES;
                    let want = if wrong.contains(&at) { blocks } else { 0 };
                    assert_eq!(member.errors.checksum, want);
                }
                for (device, before) in rig.devices.iter().zip(before) {
                    let now = device.peek(start_bytes, g.column_bytes).await;
                    assert!(now[..] == before[..], "the scrub restores every bit");
                }
            });
        }
    }
}

#[test]
fn scrub_does_not_rewrite_unrecoverable_rows() {
    simulate(2, async {
        let rig = Rig::new(Layout::Raidz1, 5);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        for at in [0, 1, 2] {
            rig.devices[at].corrupt(g.column_start_bytes(0), BLOCK_BYTES).await;
        }
        let scrubbed = rig.array.scrub_rows(segment(0), 0, 4, &judge).await.expect("readable");
        let damaged: Vec<u32> = scrubbed.damaged.iter().map(|addr| addr.block()).collect();
        assert_eq!(damaged, vec![0, 2, 4], "the first blocks of three data columns");
        assert_eq!(scrubbed.repaired_bytes, 0);
        // With two columns restored the third is recoverable, because nothing was rewritten.
        for at in [0, 1] {
            rig.devices[at].corrupt(g.column_start_bytes(0), BLOCK_BYTES).await;
        }
        let scrubbed = rig.array.scrub_rows(segment(0), 0, 4, &judge).await.expect("readable");
        assert_eq!((scrubbed.damaged, scrubbed.repaired_bytes), (vec![], BLOCK_BYTES));
        rig.expect_segment(segment(0), 1).await;
    });
}

// The rotten block is dead, so its parity, on other members, does not fit it. They are not at
// fault.
#[test]
fn parity_over_a_dead_block_accuses_no_member() {
    for (layout, members) in [(Layout::Raidz1, 3), (Layout::Raidz2, 5), (Layout::Raidz3, 6)] {
        simulate(2, async move {
            let rig = Rig::new(layout, members);
            let g = rig.geometry();
            rig.fill(segment(0), 1).await;
            let member = g.column_of(0, 0);
            rig.devices[member].corrupt(g.column_start_bytes(0), BLOCK_BYTES).await;
            let judge = |addr: BlockAddr, data: &[u8]| match addr.block() {
                0 => BlockVerdict::Dead,
                _ => judge(addr, data),
            };
            let scrubbed = rig.array.scrub_rows(segment(0), 0, 4, &judge).await.expect("readable");
            let parity = g.parity_columns() as u64;
            assert_eq!(scrubbed.damaged, vec![]);
            assert_eq!(scrubbed.repaired_bytes, parity * BLOCK_BYTES, "parity fits again");
            assert!(rig.array.status().iter().all(|member| member.errors.checksum == 0));
            let accuses =
                |event: &ArrayEvent| matches!(event, ArrayEvent::Repaired { is_proved: true, .. });
            assert!(!rig.array.events().take().iter().any(accuses));
            // Wrong parity of live blocks alone is its member's fault.
            let parity_member = g.column_of(0, g.data_columns());
            let last = g.column_start_bytes(0) + 3 * g.unit_bytes;
            rig.devices[parity_member].corrupt(last, BLOCK_BYTES).await;
            rig.array.scrub_rows(segment(0), 0, 4, &judge).await.expect("readable");
            let status = rig.array.status();
            let blamed = status.iter().filter(|member| member.errors.checksum > 0);
            assert_eq!(blamed.map(|m| m.id.0 as usize).collect::<Vec<_>>(), [parity_member]);
            assert!(rig.array.events().take().iter().any(accuses));
        });
    }
}

#[test]
fn wrong_dead_blocks_are_no_damage() {
    simulate(2, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        rig.devices[0].corrupt(g.column_start_bytes(0), g.column_bytes).await;
        let dead = |_: BlockAddr, _: &[u8]| BlockVerdict::Dead;
        let scrubbed = rig.array.scrub_rows(segment(0), 0, 4, &dead).await.expect("readable");
        assert_eq!(scrubbed.damaged, vec![]);
        assert_eq!(rig.array.check_parity(segment(0), 0, 4).await, Ok(vec![]));
        assert!(rig.array.status().iter().all(|member| member.errors.checksum == 0));
    });
}

#[test]
fn rebuild_does_not_spread_wrong_data() {
    simulate(2, async {
        let rig = Rig::new(Layout::Raidz2, 5);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        let spare = rig.spare("spare");
        rig.devices[3].gone.set(true);
        rig.read_rows(segment(0), 0, 4).await.expect("readable");
        rig.array.replace(DeviceId(3), DeviceId(9), spare.device()).expect("fits");
        // Data column 0 is wrong, and so would be every column computed from it.
        rig.devices[0].corrupt(g.column_start_bytes(0), g.column_bytes).await;
        let rebuilt = rig.rebuild(segment(0), 4, &judge).await.expect("readable");
        assert_eq!((rebuilt.members, rebuilt.damaged), (vec![DeviceId(9)], vec![]));
        assert_eq!(rebuilt.recovered.len(), g.column_bytes as usize / BLOCK_LEN);
        let right = rig.devices[3].peek(g.column_start_bytes(0), g.column_bytes).await;
        assert!(spare.peek(g.column_start_bytes(0), g.column_bytes).await[..] == right[..]);
    });
}
