use forebay_units::SegmentId;

use super::*;

fn addr(segment: u32, block: u32) -> BlockAddr {
    BlockAddr::new(SegmentId(segment), block)
}

/// The highest block number and the highest segment of so many bits. A segment is one less than
/// all ones, so that no address is all ones.
fn highest(block_bits: u32, segment_bits: u32) -> BlockAddr {
    addr((1 << segment_bits) - 2, (1 << block_bits) - 1)
}

#[test]
fn a_shape_takes_addresses_up_to_its_limits_and_none_above() {
    for (block_bits, segment_bits) in (0..=20).flat_map(|b| (1..=20).map(move |s| (b, s))) {
        let most = highest(block_bits, segment_bits);
        let shape = Shape::of([most.raw()].into_iter());
        assert_eq!(Shape::of([addr(0, most.block()).raw(), most.raw()].into_iter()), shape);
        assert!(shape.takes(most, 1) && shape.takes(addr(0, 0), 1));
        let Some(spare) = 32u32.checked_sub(block_bits + segment_bits) else {
            assert_eq!(shape, Shape::WIDE, "{block_bits} and {segment_bits} bits");
            assert!(shape.takes(addr(BlockAddr::MAX_SEGMENTS - 2, BlockAddr::MAX_BLOCKS - 9), 9));
            continue;
        };
        // Half of the spare bits is for higher blocks, the rest for higher segments.
        let (blocks, segments) = (20.min(block_bits + spare / 2), 32);
        let most = highest(blocks, (segments - blocks).min(20));
        for count in [1, 2, 7].into_iter().filter(|count| most.block() + 1 >= *count) {
            let last = addr(most.segment().0, most.block() + 1 - count);
            assert!(shape.takes(last, count), "{count} blocks at {last}");
            assert!(!shape.takes(last, count + 1), "{count} and another at {last}");
        }
        if segments - blocks < 20 {
            assert!(!shape.takes(addr(most.segment().0 + 1, 0), 1), "a segment above {most}");
        }
    }
    let both = [addr(6, 0).raw(), addr(0, 9).raw()];
    assert_eq!(Shape::of(both.into_iter()), Shape::of([addr(6, 9).raw()].into_iter()));
}

#[test]
fn an_array_holds_what_was_put_into_it_and_no_more() {
    const SUMS: [Option<u64>; 4] = [Some(0), Some(77), Some((1 << 40) - 1), None];
    let far = addr(BlockAddr::MAX_SEGMENTS - 2, BlockAddr::MAX_BLOCKS - 1);
    for most in [highest(20, 12), highest(12, 20), highest(5, 2), highest(16, 16), far] {
        let shape = Shape::of([most.raw()].into_iter());
        let mut entries = vec![0xff; shape.array_len()];
        let all = [0, 1, 2, 255, 510, 511];
        let put = |index: usize| {
            let addrs = [most, addr(0, most.block()), addr(most.segment().0, 0), addr(0, 0)];
            // A sealed block may have any address.
            let sum = SUMS[index % 4];
            (if sum.is_none() { far.raw() - 1 } else { addrs[index % 3].raw() }, sum)
        };
        for round in [0, 1] {
            for index in all {
                let (addr, sum) = put(index + round);
                shape.put(&mut entries, index, addr, sum);
            }
            for index in 0..LEAF_BLOCKS as usize {
                let expected = all.contains(&index).then(|| put(index + round));
                assert_eq!(shape.entry(&entries, index), expected, "entry {index}, {most}");
                if let Some((_, Some(sum))) = expected {
                    let at = &entries[shape.sum_at(index)..][..5];
                    assert_eq!(at, &sum.to_le_bytes()[..5], "sum {index}, {most}");
                }
            }
        }
    }
}

#[test]
fn the_rank_of_a_block_is_how_many_set_bits_are_below_it() {
    for pattern in
        [|_| true, |block| block % 3 == 1, |block| block == 511, |block| block / 64 % 2 == 1]
    {
        let pattern: fn(u32) -> bool = pattern;
        let mut bitmap = [0; BITMAP_LEN];
        (0..LEAF_BLOCKS).filter(|block| pattern(*block)).for_each(|at| set_bit(&mut bitmap, at));
        let mut below = 0;
        for block in 0..LEAF_BLOCKS {
            assert_eq!((bit(&bitmap, block), rank(&bitmap, block)), (pattern(block), below));
            below += usize::from(pattern(block));
        }
        assert_eq!(rank(&bitmap, LEAF_BLOCKS), below);
    }
}
