use std::collections::BTreeMap;

use forebay_units::{BLOCK_BYTES, BlockAddr, Layout, SegmentId};
use proptest::prelude::*;

use super::{GeometryError, GroupGeometry, MAX_MEMBERS};

fn geometry(layout: Layout, members: usize) -> GroupGeometry {
    GroupGeometry {
        layout,
        members,
        unit_bytes: 16 << 10,
        column_bytes: 1 << 20,
        data_start_bytes: 1 << 20,
        first_segment: 10,
        segments: 100,
    }
}

fn any_geometry() -> impl Strategy<Value = GroupGeometry> {
    let layout = prop::sample::select(vec![
        Layout::Raid0,
        Layout::Mirror,
        Layout::Raidz1,
        Layout::Raidz2,
        Layout::Raidz3,
    ]);
    (layout, 4usize..=MAX_MEMBERS, 1u64..6, 1u64..9, 0u64..5, 0u32..1000, 1u32..1000).prop_map(
        |(layout, members, unit, rows, start, first_segment, segments)| GroupGeometry {
            layout,
            members,
            unit_bytes: unit * BLOCK_BYTES,
            column_bytes: unit * rows * BLOCK_BYTES,
            data_start_bytes: start * BLOCK_BYTES,
            first_segment,
            segments,
        },
    )
}

proptest! {
    #[test]
    fn every_block_has_one_place_and_every_data_place_one_block(g in any_geometry()) {
        g.check().expect("in range");
        let mut places = BTreeMap::new();
        for block in 0..g.blocks_per_segment() {
            let (role, offset_bytes) = g.locate(block);
            prop_assert!(role < g.data_columns());
            prop_assert!(offset_bytes + BLOCK_BYTES <= g.column_bytes);
            prop_assert_eq!(g.block_at(role, offset_bytes), block);
            prop_assert!(places.insert((role, offset_bytes), block).is_none());
        }
        let all = g.data_columns() as u64 * g.column_bytes / BLOCK_BYTES;
        prop_assert_eq!(places.len() as u64, all);
    }

    #[test]
    fn roles_rotate_with_the_segment_and_invert(g in any_geometry(), index: u32) {
        let mut seen = vec![false; g.members];
        for column in 0..g.members {
            let role = g.role_of(index, column);
            prop_assert!(!std::mem::replace(&mut seen[role], true));
            prop_assert_eq!(g.column_of(index, role), column);
            if g.layout != Layout::Mirror {
                let next = g.role_of(index.wrapping_add(1) , column);
                if index % g.members as u32 + 1 < g.members as u32 {
                    prop_assert_eq!(next, (role + 1) % g.members);
                }
            }
        }
    }

    #[test]
    fn runs_cover_a_range_and_column_parts_are_contiguous(
        g in any_geometry(), from: prop::sample::Index, len: prop::sample::Index,
    ) {
        let total = g.blocks_per_segment();
        let block = from.index(total as usize) as u32;
        let blocks = 1 + len.index((total - block) as usize) as u32;
        let mut at_bytes = 0;
        for run in g.runs(block, blocks) {
            prop_assert_eq!(run.logical_bytes, at_bytes);
            for step in (0..run.len_bytes).step_by(BLOCK_BYTES as usize) {
                let at = block + ((run.logical_bytes + step) / BLOCK_BYTES) as u32;
                prop_assert_eq!(g.locate(at), (run.role, run.column_offset_bytes + step));
            }
            at_bytes += run.len_bytes;
        }
        prop_assert_eq!(at_bytes, u64::from(blocks) * BLOCK_BYTES);
        let ranges = g.column_ranges(block, blocks);
        let sum: u64 = ranges.iter().map(|r| r.end_bytes - r.start_bytes).sum();
        prop_assert_eq!(sum, at_bytes);
    }

    #[test]
    fn copies_are_on_other_columns_and_distinct(g in any_geometry(), block: u32) {
        let filled = g.doubled_rows() * g.blocks_per_row();
        let block = block % g.blocks_per_segment();
        let Some(copy) = g.copy_of(block) else {
            prop_assert!(block >= filled);
            return Ok(());
        };
        prop_assert!(block < filled && copy >= filled && copy < 2 * filled);
        let ((role, at), (of_copy, at_copy)) = (g.locate(block), g.locate(copy));
        prop_assert!(role != of_copy || g.data_columns() == 1);
        prop_assert_eq!(at_copy - at, u64::from(g.doubled_rows()) * g.unit_bytes);
        // The copy alone determines its block.
        let back = (of_copy + g.data_columns() - 1) % g.data_columns();
        prop_assert_eq!(g.block_at(back, at), block);
    }

    #[test]
    fn columns_of_segments_never_overlap(g in any_geometry(), a: u32, b: u32) {
        let (a, b) = (a % g.segments, b % g.segments);
        let (low, high) = (a.min(b), a.max(b));
        prop_assert!(g.column_start_bytes(low) >= g.data_start_bytes);
        prop_assert!(g.column_start_bytes(high) + g.column_bytes <= g.needed_bytes());
        if low < high {
            let end = g.column_start_bytes(low) + g.column_bytes;
            prop_assert!(end <= g.column_start_bytes(high));
        }
        prop_assert_eq!(g.index_of(g.segment_at(a)), a);
        prop_assert!(g.owns(g.segment_at(a)));
        prop_assert!(!g.owns(SegmentId(g.first_segment + g.segments)));
    }
}

#[test]
fn worked_example_of_addresses() {
    let g = geometry(Layout::Raidz2, 6);
    assert_eq!((g.data_columns(), g.parity_columns(), g.rows()), (4, 2, 64));
    assert_eq!((g.blocks_per_row(), g.blocks_per_segment()), (16, 1024));
    // Block 21: row 1, second unit, second block of it.
    assert_eq!(g.locate(21), (1, (16 << 10) + 4096));
    // Index 3: role 0 sits on column 3 and P (role 4) on column 1.
    assert_eq!((g.column_of(3, 0), g.column_of(3, 4)), (3, 1));
}

// Frozen: pools on disk have copies there. A change here changes the on-disk format.
#[test]
fn worked_example_of_copies() {
    let g = geometry(Layout::Raid0, 3);
    assert_eq!((g.rows(), g.doubled_rows(), g.blocks_per_row()), (64, 32, 12));
    // Block 21: row 1, third unit, second block of it. Its copy: row 33, first unit.
    assert_eq!(g.copy_of(21), Some(33 * 12 + 1));
    assert_eq!((g.copy_of(32 * 12 - 1), g.copy_of(32 * 12)), (Some(63 * 12 + 3), None));
}

#[test]
fn only_stripes_and_single_copies_have_no_redundancy() {
    for (layout, members, is_redundant) in [
        (Layout::Raid0, 3, false),
        (Layout::Mirror, 1, false),
        (Layout::Mirror, 2, true),
        (Layout::Mirror, 3, true),
        (Layout::Raidz1, 2, true),
        (Layout::Raidz3, 6, true),
    ] {
        assert_eq!(geometry(layout, members).has_redundancy(), is_redundant, "{layout}");
    }
}

#[test]
fn every_limit_is_checked() {
    let good = geometry(Layout::Raidz1, 5);
    good.check().expect("the example is sound");
    let refuses = |change: fn(&mut GroupGeometry)| {
        let mut g = good;
        change(&mut g);
        g.check().expect_err("must be refused")
    };
    let members = |g: GroupGeometry| matches!(g.check(), Err(GeometryError::Members { .. }));
    assert!(members(geometry(Layout::Raid0, 0)));
    assert!(members(geometry(Layout::Raid0, 25)));
    assert!(members(geometry(Layout::Raidz1, 1)));
    assert!(members(geometry(Layout::Raidz2, 2)));
    assert!(members(geometry(Layout::Raidz3, 3)));
    assert!(matches!(refuses(|g| g.unit_bytes = 0), GeometryError::Unaligned { .. }));
    assert!(matches!(refuses(|g| g.unit_bytes = 6144), GeometryError::Unaligned { .. }));
    assert!(matches!(refuses(|g| g.column_bytes = 24 << 10), GeometryError::Unaligned { .. }));
    assert!(matches!(refuses(|g| g.column_bytes = 0), GeometryError::Unaligned { .. }));
    assert!(matches!(refuses(|g| g.data_start_bytes = 512), GeometryError::Unaligned { .. }));
    assert!(matches!(refuses(|g| g.column_bytes = 2 << 30), GeometryError::TooManyBlocks { .. }));
    assert!(matches!(refuses(|g| g.segments = 0), GeometryError::Segments { .. }));
    let past = |g: &mut GroupGeometry| g.first_segment = BlockAddr::MAX_SEGMENTS - 99;
    assert!(matches!(refuses(past), GeometryError::Segments { .. }));
    let huge = |g: &mut GroupGeometry| g.data_start_bytes = (i64::MAX as u64) & !4095;
    assert_eq!(refuses(huge), GeometryError::TooLarge);
}

#[test]
fn every_limit_may_be_reached() {
    let takes = |g: GroupGeometry| g.check().is_ok();
    let layouts = [
        (Layout::Raid0, 1),
        (Layout::Mirror, 1),
        (Layout::Raidz1, 2),
        (Layout::Raidz2, 3),
        (Layout::Raidz3, 4),
    ];
    for (layout, least) in layouts {
        for members in 0..=MAX_MEMBERS + 2 {
            let is_right = (least..=MAX_MEMBERS).contains(&members);
            assert_eq!(takes(geometry(layout, members)), is_right, "{layout} of {members}");
        }
    }
    let good = geometry(Layout::Raidz1, 5);
    assert!(takes(GroupGeometry { data_start_bytes: 0, ..good }));
    assert!(takes(GroupGeometry { column_bytes: good.unit_bytes, ..good }));
    let most_bytes = u64::from(BlockAddr::MAX_BLOCKS) / 4 * BLOCK_BYTES;
    assert!(takes(GroupGeometry { column_bytes: most_bytes, ..good }));
    assert!(!takes(GroupGeometry { column_bytes: most_bytes + good.unit_bytes, ..good }));
    let last = BlockAddr::MAX_SEGMENTS - good.segments;
    assert!(takes(GroupGeometry { first_segment: last, ..good }));
    assert!(takes(GroupGeometry { segments: 1, ..good }));
    let past = (1 << 63) - u64::from(good.segments) * good.column_bytes;
    assert!(takes(GroupGeometry { data_start_bytes: past - BLOCK_BYTES, ..good }));
    assert!(!takes(GroupGeometry { data_start_bytes: past, ..good }));
    let owned = [9, 10, 109, 110].map(|segment| good.owns(SegmentId(segment)));
    assert_eq!(owned, [false, true, true, false]);
}
