use forebay_units::SegmentId;

use super::*;

#[test]
fn each_segment_has_places_markers_or_references_of_one_kind() {
    #[derive(Debug, PartialEq)]
    enum Is {
        Place,
        Shared,
        Packed,
        Marker,
    }
    use Is::{Marker, Packed, Place, Shared};
    let expected = [
        (0, Place),
        (DEDUP_REF_SEGMENT.0 - 1, Place),
        (DEDUP_REF_SEGMENT.0, Shared),
        (DEDUP_REF_END.0 - 1, Shared),
        (DEDUP_REF_END.0, Packed),
        (PACKED_REF_END.0 - 1, Packed),
        (PACKED_REF_END.0, Place),
        (ORIGIN_SEGMENT.0 - 1, Place),
        (ORIGIN_SEGMENT.0, Marker),
        (HOLE_SEGMENT.0, Marker),
        (HOLE_SEGMENT.0 + 1, Place),
    ];
    for (segment, is) in expected {
        for block in [0, BlockAddr::MAX_BLOCKS - 1] {
            let addr = BlockAddr::new(SegmentId(segment), block);
            let found = (is_place(addr), is_shared(addr), is_ref(addr), is_marker(addr));
            let right = (is == Place, is == Shared, is == Shared || is == Packed, is == Marker);
            assert_eq!(found, right, "{is:?} {addr}");
        }
    }
}

#[test]
fn freed_addresses_are_joined_within_a_segment_and_markers_are_not_reported() {
    let at = |segment: u32, block: u32| BlockAddr::new(SegmentId(segment), block);
    let last = BlockAddr::MAX_BLOCKS - 1;
    let mut reported = Vec::new();
    let mut report = |addr, blocks| reported.push((addr, blocks));
    let mut freed = Freed::new(&mut report);
    for (addr, blocks) in [
        (at(1, 5), 2),
        (at(1, 7), 1),
        (at(HOLE_SEGMENT.0, 8), 4),
        (at(1, 8), 3),
        (at(1, 12), 1),
        (at(1, 11), 1),
        (at(2, last), 1),
        (at(3, 0), 1),
        (at(DEDUP_REF_SEGMENT.0, 1), 6),
        (at(ORIGIN_SEGMENT.0, 1), 1),
    ] {
        freed.add(addr, blocks);
    }
    assert_eq!((freed.markers, freed.refs), (5, 6));
    freed.finish();
    let expected = [
        (at(1, 5), 6),
        (at(1, 12), 1),
        (at(1, 11), 1),
        (at(2, last), 1),
        (at(3, 0), 1),
        (at(DEDUP_REF_SEGMENT.0, 1), 6),
    ];
    assert_eq!(reported, expected);
}
