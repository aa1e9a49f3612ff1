use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn unit(lba: u64, blocks: u8, len_bytes: usize) -> Unit {
    let bytes = (0..len_bytes).map(|at| (at as u64 * 7 + lba) as u8).collect();
    let codec = if lba % 2 == 0 { Codec::Lz4 } else { Codec::Zstd };
    Unit { volume: VolumeId(3), lba: Lba(lba), blocks, codec, bytes }
}

/// Packs units and reads each of them again.
fn check(lens: &[usize], is_free: impl Fn(u64) -> bool + Copy) -> usize {
    let mut packer = Packer::new(5);
    let (mut full, mut refs) = (Vec::new(), Vec::new());
    let units: Vec<Unit> =
        lens.iter().enumerate().map(|(at, len)| unit(at as u64, at as u8 % 4 + 1, *len)).collect();
    for unit in &units {
        refs.push(packer.push(unit, is_free, &mut full).unwrap());
    }
    full.extend(packer.flush());
    let blocks: BTreeMap<u64, Vec<u8>> =
        full.iter().map(|block| (block.number.0, block.bytes.clone())).collect();
    assert_eq!(blocks.len(), full.len(), "a number was given twice");
    assert!(blocks.keys().all(|number| is_free(*number)), "a number was not free");
    for (unit, at) in units.iter().zip(&refs) {
        assert_eq!(PackedRef::of(at.addr()), Some(*at));
        let span: Vec<&[u8]> =
            (at.block.0..at.block.0 + at.span()).map(|number| &blocks[&number][..]).collect();
        let (entry, bytes) = unit_in(&span, at.slot).unwrap();
        assert_eq!((entry.volume, entry.lba, entry.blocks), (unit.volume, unit.lba, unit.blocks));
        assert_eq!((entry.codec, &bytes), (unit.codec, &unit.bytes));
        assert!(PackedTable::read(span[0]).unwrap().units.contains(&entry));
        assert_eq!(unit_in(&span, 16).ok(), None, "there is no such slot");
    }
    full.len()
}

#[test]
fn units_fill_blocks_without_gaps() {
    // Headers and tables take 1 byte in 30 here.
    let lens = vec![1365; 300];
    assert_eq!(check(&lens, |_| true), 101);
    // None of these can begin in the last half block of another: each takes as many as it has.
    assert_eq!(check(&[MAX_UNIT_BYTES; 8], |_| true), 32);
    assert_eq!(check(&[4080], |_| true), 1);
    assert_eq!(check(&[4081], |_| true), 2);
    // Thirteen units begin in a block at most, and one that goes on.
    assert_eq!(check(&[10; 30], |_| true), 3);
}

#[test]
fn tables_say_how_many_blocks_would_fit() {
    let fitting = |lens: &[usize], blocks: u8| -> Vec<u64> {
        let (mut packer, mut full) = (Packer::new(0), Vec::new());
        for (at, len) in lens.iter().enumerate() {
            packer.push(&unit(at as u64, blocks, *len), |_| true, &mut full).unwrap();
        }
        full.extend(packer.flush());
        full.iter().map(|block| PackedTable::read(&block.bytes).unwrap().fitting_blocks()).collect()
    };
    // Three fit, also where there is one only.
    assert_eq!(fitting(&[1300; 3], 1), [3]);
    assert_eq!(fitting(&[1300], 1), [3]);
    // A unit that lies in two blocks counts in both.
    assert_eq!(fitting(&[1500; 4], 4), [12, 16]);
    // There are thirteen slots, however short the units are.
    assert_eq!(fitting(&[10; 13], 4), [52]);
    assert_eq!(fitting(&[10; 2], 4), [52]);
    // Nothing but the middle and the end of a unit.
    let ends = fitting(&[MAX_UNIT_BYTES], 4);
    assert_eq!(ends[..3], [4, 4, 4]);
    assert!(ends[3] > 4, "{ends:?}");
}

#[test]
fn numbers_in_use_are_not_given_again() {
    let sparse = |number: u64| number % 7 != 0;
    check(&[MAX_UNIT_BYTES; 40], sparse);
    check(&[3000; 40], sparse);
    let mut packer = Packer::new(0);
    let mut full = Vec::new();
    assert_eq!(packer.push(&unit(0, 1, 10), |number| number % 4 != 0, &mut full), None);
    assert_eq!(full, []);
}

#[test]
fn numbers_begin_again_at_zero() {
    let mut packer = Packer::new(MAX_PACKED_BLOCKS - 2);
    let mut full = Vec::new();
    let at = packer.push(&unit(0, 1, 10), |_| true, &mut full).unwrap();
    assert_eq!(at.block, Lba(0));
}

#[test]
fn references_are_addresses_of_their_own() {
    let last = PackedRef { block: Lba(MAX_PACKED_BLOCKS - 1), slot: 15, index: 3 };
    assert_eq!(last.addr().segment(), SegmentId(PACKED_REF_END.0 - 1));
    assert_eq!(PackedRef::of(last.addr()), Some(last));
    assert_eq!(PackedRef::of(last.addr()).map(PackedRef::span), Some(4));
    for segment in [0, PACKED_REF_SEGMENT.0 - 1, PACKED_REF_END.0] {
        assert_eq!(PackedRef::of(BlockAddr::new(SegmentId(segment), 9)), None);
    }
    let first = PackedRef { block: Lba(0), slot: 12, index: 0 };
    assert_eq!((first.span(), first.addr().block()), (1, 48));
}

proptest! {
    #[test]
    fn every_unit_is_found_again(
        lens in proptest::collection::vec(1..=MAX_UNIT_BYTES, 1..60),
        taken in 2_u64..40,
    ) {
        check(&lens, |_| true);
        check(&lens, |number| number % (taken + 5) != 0);
    }

    #[test]
    fn any_bytes_are_an_error_or_units(
        mut block in proptest::collection::vec(any::<u8>(), BLOCK_LEN),
        count in 0_u8..20,
        slot in any::<u8>(),
    ) {
        block[0] = 1;
        block[1] = count;
        let _ = unit_in(&[&block, &block], slot);
        let _ = unit_in(&[&block[..9]], slot);
        let _ = unit_in(&[], slot);
    }
}
