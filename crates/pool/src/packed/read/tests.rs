//! Units in packed blocks: which of them are read, what they hold, and what is refused.

use forebay_compress::{Compression, compress};
use forebay_format::packed::{PackedBlock, Packer, Unit};

use super::*;
use crate::tests::compression::blocks;

const VOLUME: VolumeId = VolumeId(3);

/// Packed blocks by number.
#[derive(Default)]
struct Shelf {
    packer: Packer,
    full: Vec<PackedBlock>,
}

/// A unit and the reference to its first block.
struct Stored {
    lba: Lba,
    blocks: u8,
    data: Vec<u8>,
    at: PackedRef,
}

impl Shelf {
    fn pack(&mut self, lba: u64, blocks: u8, (codec, bytes): (Codec, Vec<u8>)) -> PackedRef {
        let unit = Unit { volume: VOLUME, lba: Lba(lba), blocks, codec, bytes };
        self.packer.push(&unit, |_| true, &mut self.full).unwrap()
    }

    /// Packs a unit whose content follows from its place.
    fn store(&mut self, lba: u64, count: u8) -> Stored {
        let data = blocks(lba, count.into(), 1500).to_vec();
        let smaller = compress(Compression::Lz4, &data).unwrap();
        let at = self.pack(lba, count, smaller);
        Stored { lba: Lba(lba), blocks: count, data, at }
    }

    /// The buffer of a plan.
    fn read(&mut self, plan: &PackedPlan) -> Vec<u8> {
        self.full.extend(self.packer.flush());
        let mut buf = vec![0; plan.end_bytes()];
        for (number, needed) in &plan.needed {
            let found = self.full.iter().find(|block| block.number.0 == *number).unwrap();
            buf[needed.at_bytes..][..BLOCK_LEN].copy_from_slice(&found.bytes);
        }
        buf
    }
}

impl Stored {
    /// Some of its blocks, from `first` on.
    fn part(&self, at_bytes: usize, first: u8, blocks: u8) -> PackedPart {
        let from = PackedRef { index: first, ..self.at };
        let bound = Lba(self.lba.0 + u64::from(first));
        let lba = Lba(1000 + bound.0);
        PackedPart { at_bytes, lba, home: VOLUME, bound, addr: from.addr(), blocks: blocks.into() }
    }

    fn whole(&self, at_bytes: usize) -> PackedPart {
        self.part(at_bytes, 0, self.blocks)
    }

    fn block(&self, index: usize) -> Vec<u8> {
        self.data[index * BLOCK_LEN..][..BLOCK_LEN].to_vec()
    }
}

fn plan_of(parts: &[PackedPart]) -> PackedPlan {
    PackedPlan::of(parts, 0, Bindings::default())
}

#[test]
fn blocks_of_units_in_one_and_several_packed_blocks_are_read() {
    let mut shelf = Shelf::default();
    let units: Vec<Stored> = [4, 1, 4, 3, 2, 4, 4]
        .into_iter()
        .zip((0..).step_by(10))
        .map(|(n, at)| shelf.store(at, n))
        .collect();
    assert!(units.iter().any(|unit| unit.at.span() > 1));
    // Some of each, in another order than they were written in, behind three blocks of a reader.
    let (mut parts, mut expected) = (Vec::new(), Vec::new());
    for (place, unit) in units.iter().rev().enumerate() {
        let at_bytes = (3 + 4 * place) * BLOCK_LEN;
        let first = unit.blocks / 2;
        parts.push(unit.part(at_bytes, first, unit.blocks - first));
        for index in first..unit.blocks {
            let at_bytes = at_bytes + usize::from(index - first) * BLOCK_LEN;
            expected.push((at_bytes, unit.block(index.into())));
        }
    }
    let from_bytes = 100 * BLOCK_LEN;
    let plan = PackedPlan::of(&parts, from_bytes, Bindings::default());
    let numbers: Vec<u64> = plan.needed.keys().copied().collect();
    assert_eq!(plan.end_bytes(), from_bytes + numbers.len() * BLOCK_LEN);
    let places: Vec<usize> = plan.needed.values().map(|needed| needed.at_bytes).collect();
    let in_order: Vec<usize> = (0..numbers.len()).map(|at| from_bytes + at * BLOCK_LEN).collect();
    assert_eq!(places, in_order);
    // The first block of the reader that needs a packed block.
    for (number, needed) in &plan.needed {
        let needs = |piece: &&Piece| {
            let from = piece.from;
            (from.block.0..from.block.0 + from.span()).contains(number)
        };
        let first = plan.pieces.iter().find(needs).unwrap();
        assert_eq!(needed.lba.0, 1000 + first.bound.0);
    }
    let buf = shelf.read(&plan);
    assert_eq!(plan.unpack(&buf), Ok(expected));
}

#[test]
fn a_block_of_another_place_is_refused() {
    let mut shelf = Shelf::default();
    let unit = shelf.store(20, 3);
    let other = PackedFault::OtherUnit { volume: VOLUME, lba: Lba(20) };
    let good = unit.whole(8192);
    for (part, at_bytes) in [
        (PackedPart { home: VolumeId(4), ..good }, 8192),
        (PackedPart { bound: Lba(21), ..good }, 8192),
        (PackedPart { bound: Lba(19), ..good }, 8192),
        // One more than the unit has.
        (PackedPart { blocks: 4, ..good }, 8192 + 3 * BLOCK_LEN),
    ] {
        let plan = plan_of(&[part]);
        let buf = shelf.read(&plan);
        assert_eq!(plan.unpack(&buf), Err((at_bytes, other.clone())));
    }
    let plan = plan_of(&[good]);
    let buf = shelf.read(&plan);
    assert_eq!(plan.unpack(&buf).map(|all| all.len()), Ok(3));
}

#[test]
fn what_is_no_unit_is_refused_at_its_first_block() {
    let mut shelf = Shelf::default();
    let good = shelf.store(10, 2);
    let at = shelf.pack(20, 2, (Codec::Lz4, vec![0xff; 300]));
    let bad = Stored { lba: Lba(20), blocks: 2, data: Vec::new(), at };
    let plan = plan_of(&[good.whole(0), bad.whole(8192)]);
    let mut buf = shelf.read(&plan);
    assert_eq!(plan.unpack(&buf), Err((8192, PackedFault::NotAUnit)));
    // Zeros are no packed block.
    buf.fill(0);
    assert!(matches!(plan.unpack(&buf), Err((0, PackedFault::Format(_)))));
}

#[test]
fn units_are_taken_as_they_are_if_all_of_their_blocks_are_wanted_in_order() {
    let mut shelf = Shelf::default();
    let [first, one, last] = [(10, 4), (20, 1), (30, 4)].map(|(at, n)| shelf.store(at, n));
    let mut taken = |parts: &[PackedPart]| -> Vec<(usize, u8)> {
        let plan = plan_of(parts);
        let buf = shelf.read(&plan);
        let units = plan.whole_units(&buf).unwrap();
        for unit in &units {
            let data = decompress(unit.codec, &unit.bytes, unit.blocks.into()).unwrap();
            let from = [&first, &one, &last].into_iter().find(|stored| stored.data == data);
            assert_eq!(from.map(|stored| stored.blocks), Some(unit.blocks));
        }
        units.iter().map(|unit| (unit.at_bytes, unit.blocks)).collect()
    };
    let at = |block: usize| block * BLOCK_LEN;
    let all = [first.whole(at(2)), one.whole(at(7)), last.whole(at(9))];
    assert_eq!(taken(&all), [(at(2), 4), (at(7), 1), (at(9), 4)]);
    // A part of one.
    assert_eq!(taken(&[first.part(0, 0, 3), one.whole(at(3))]), [(at(3), 1)]);
    assert_eq!(taken(&[first.part(0, 1, 3), one.whole(at(3))]), [(at(3), 1)]);
    // All of one in another order.
    assert_eq!(taken(&[first.part(at(2), 0, 2), first.part(0, 2, 2)]), []);
    assert_eq!(taken(&[first.part(0, 0, 2), first.part(at(2), 2, 2)]), [(0, 4)]);
    let swapped = [(1, 0), (0, 1), (2, 2), (3, 3)].map(|(index, place): (u8, u64)| {
        let bound = Lba(10 + place);
        PackedPart { bound, ..first.part(at(place as usize), index, 1) }
    });
    assert_eq!(taken(&swapped), []);
    // One of another place or volume.
    assert_eq!(taken(&[PackedPart { bound: Lba(11), ..first.whole(0) }]), []);
    assert_eq!(taken(&[PackedPart { home: VolumeId(9), ..last.whole(0) }]), []);
}
