//! Which packed blocks are worth packing anew, what gaps take, and what is freed.

use forebay_units::SegmentId;

use super::*;

/// Packed blocks of which `count` of `fitting` blocks are in use; 0 when it is not known how many
/// would fit.
fn packed(blocks: &[(u64, u64)]) -> Packed {
    let (packed, _) = Packed::restored(&Map::new());
    for (number, (count, fitting)) in (0..).zip(blocks) {
        let mut density = packed.density.borrow_mut();
        (0..*count).for_each(|_| density.add(number, 1));
        density.set_fitting(number, *fitting);
    }
    packed
}

fn found(sparse: Sparse) -> (Vec<u64>, Vec<u64>) {
    (sparse.repacked, sparse.unknown)
}

#[test]
fn gaps_of_a_quarter_stay_and_of_more_half_empty_blocks_are_taken() {
    let quarter = packed(&[(4, 4), (4, 4), (2, 4), (2, 4)]);
    assert_eq!(found(quarter.next_sparse(10, 0, false)), (vec![], vec![]));
    assert_eq!(quarter.gap_bytes(), BLOCK_BYTES);
    let more = packed(&[(4, 4), (4, 4), (2, 4), (1, 4)]);
    assert_eq!(found(more.next_sparse(10, 0, false)), (vec![2, 3], vec![]));
    assert_eq!(more.gap_bytes(), BLOCK_BYTES * 5 / 4);
    // Blocks of which three quarters are in use are left alone while there is room.
    let many = packed(&[(1, 4), (3, 4), (1, 4), (1, 4), (3, 4), (1, 4)]);
    assert_eq!(found(many.next_sparse(10, 0, false)).0, [0, 2, 3, 5]);
}

#[test]
fn when_space_is_short_a_quarter_of_the_blocks_has_to_be_gained() {
    for (blocks, is_worth_it) in [(3, false), (4, true), (5, false), (8, true)] {
        let sparse = || packed(&vec![(3, 4); blocks]).next_sparse(100, 0, true).repacked;
        let all: Vec<u64> = (0..blocks as u64).collect();
        assert_eq!(sparse(), if is_worth_it { all } else { vec![] }, "{blocks}");
        let not_short = packed(&vec![(3, 4); blocks]).next_sparse(100, 0, false).repacked;
        assert!(not_short.is_empty());
    }
    let full = packed(&[(4, 4), (7, 8), (4, 4)]);
    assert_eq!(found(full.next_sparse(100, 0, true)), (vec![], vec![]));
}

#[test]
fn the_search_goes_on_where_it_ended_and_around() {
    let all = packed(&[(1, 4); 8]);
    for expected in [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7], vec![0, 1, 2]] {
        assert_eq!(found(all.next_sparse(3, 0, false)), (expected, vec![]));
    }
    // Nothing is looked for.
    assert_eq!(found(all.next_sparse(0, 10, false)), (vec![], vec![]));
}

#[test]
fn blocks_of_which_nothing_is_known_are_looked_for_as_well() {
    let all = packed(&[(1, 4), (1, 4), (1, 4), (1, 0), (1, 4), (1, 0), (1, 0), (1, 4), (1, 4)]);
    assert_eq!(found(all.next_sparse(2, 2, false)), (vec![0, 1], vec![3, 5]));
    assert_eq!(found(all.next_sparse(2, 5, false)), (vec![7, 8], vec![6]));
    assert_eq!(found(all.next_sparse(100, 1, false)), (vec![0, 1, 2, 4, 7, 8], vec![3]));
    // Without gaps too.
    let dense = packed(&[(4, 4), (2, 0), (4, 4), (2, 0)]);
    assert_eq!(found(dense.next_sparse(100, 1, false)), (vec![], vec![1]));
    assert_eq!(found(dense.next_sparse(100, 9, false)), (vec![], vec![3]));
    assert_eq!(found(dense.next_sparse(0, 9, true)), (vec![], vec![1, 3]));
}

#[test]
fn a_long_row_of_full_blocks_is_searched_in_parts() {
    let mut blocks = vec![(1, 1); MAX_LOOKED_AT];
    blocks.extend([(1, 4); 4]);
    let all = packed(&blocks);
    assert!(all.next_sparse(10, 0, true).repacked.is_empty());
    let first = MAX_LOOKED_AT as u64;
    assert_eq!(all.next_sparse(10, 0, true).repacked, [first, first + 1, first + 2, first + 3]);
}

#[test]
fn numbers_without_references_are_told_once_and_in_order() {
    let all = packed(&[(1, 1); 3]);
    all.unused.borrow_mut().extend([9, 5, 1, 9, 7]);
    assert_eq!(all.take_unused(), [5, 7, 9]);
    assert!(all.take_unused().is_empty());
}

#[test]
fn references_are_counted_in_each_packed_block_of_their_units() {
    let (all, _) = Packed::restored(&Map::new());
    assert!(!all.is_used());
    // A unit of three blocks in two packed blocks, and one of two blocks in one.
    let long = PackedRef { block: Lba(4), slot: 13, index: 0 }.addr();
    let short = PackedRef { block: Lba(5), slot: 0, index: 1 }.addr();
    all.refer(long, 3);
    all.refer(short, 2);
    let counts = || [3, 4, 5, 6].map(|number| all.count(number));
    assert_eq!((counts(), all.is_used()), ([0, 3, 5, 0], true));
    all.release(long, 3);
    assert_eq!((counts(), all.take_unused()), ([0, 0, 2, 0], vec![4]));
    assert!(all.is_unused(4) && !all.is_unused(5) && all.is_used());
    all.release(short, 2);
    assert_eq!((all.take_unused(), all.is_used()), (vec![5], false));
}

#[test]
fn an_import_counts_what_the_map_refers_to() {
    let mut map = Map::new();
    map.create_volume(PACKED_VOLUME).unwrap();
    map.create_volume(VolumeId(3)).unwrap();
    let place = BlockAddr::new(SegmentId(1), 0);
    map.set_run(PACKED_VOLUME, Lba(5), place, &[1, 2, 3], false, &mut |_, _| {}).unwrap();
    let unit = PackedRef { block: Lba(6), slot: 2, index: 0 }.addr();
    map.set_refs(VolumeId(3), Lba(40), unit, 2, &mut |_, _| {});
    let (all, _) = Packed::restored(&map);
    assert_eq!([5, 6, 7].map(|number| all.count(number)), [0, 2, 0]);
    assert_eq!(all.take_unused(), [5, 7]);
}

#[test]
fn blocks_that_became_smaller_are_counted_apart_from_others() {
    let (all, _) = Packed::restored(&Map::new());
    let counts = || (all.packed.get(), all.plain.get(), all.repacked.get());
    assert_eq!(counts(), (0, 0, 0));
    all.count_written(3, true);
    all.count_written(2, false);
    all.count_written(4, true);
    all.count_repacked();
    all.count_repacked();
    assert_eq!(counts(), (7, 2, 2));
}
