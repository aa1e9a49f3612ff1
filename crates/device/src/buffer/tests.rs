use super::*;

// The dirty limit of a pool counts the bytes that were asked for.
#[test]
fn memory_is_reused_and_at_most_an_eighth_larger_than_asked_for() {
    let longer = [127, 128, 129, 255, 257, 300, 513, 1000, 1025, 2047, 2048, 2049, 5000];
    for pages in (1..70usize).chain(longer) {
        for len in [pages * 4096 - 4095, pages * 4096] {
            let buf = IoBuf::recycled(len);
            let capacity = buf.memory().layout.size();
            assert!(capacity >= len && capacity % 4096 == 0, "{capacity} for {len}");
            assert!(capacity <= (len + len / 8).max(len + 4095), "{capacity} for {len}");
            let at = buf.as_ptr();
            drop(buf);
            let again = IoBuf::recycled(len);
            assert_eq!(again.memory().layout.size(), capacity);
            assert!(len > 8 << 20 || again.as_ptr() == at, "{len} bytes are not kept");
        }
    }
}

/// A sum that counts how often it is computed.
fn counting(block: &[u8]) -> u64 {
    COMPUTED.with(|computed| computed.set(computed.get() + 1));
    block.iter().map(|byte| u64::from(*byte)).sum()
}

thread_local! {
    static COMPUTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[test]
fn sum_of_a_block_is_computed_once_for_all_parts_of_a_buffer() {
    let mut buf = IoBuf::zeroed(3 * 4096 + 100);
    for (block, bytes) in buf.chunks_mut(4096).enumerate() {
        bytes.fill(block as u8 + 1);
    }
    let whole = buf.freeze();
    let sum_of = |block: u64| (block + 1) * 4096;
    let part = whole.slice(4096, 8192);
    assert_eq!([0, 1].map(|block| part.block_sum(block, counting)), [sum_of(1), sum_of(2)]);
    assert_eq!([1, 2].map(|block| whole.block_sum(block, counting)), [sum_of(1), sum_of(2)]);
    assert_eq!(COMPUTED.get(), 2);
    // The end that is no whole block has no sum.
    whole.sum_blocks(counting);
    assert_eq!((whole.block_sum(0, counting), COMPUTED.get()), (sum_of(0), 3));
    // What is no block of the buffer is summed anew.
    let between = whole.slice(2048, 8192);
    for _ in 0..2 {
        assert_eq!(between.block_sum(0, counting), 2048 + 2 * 2048);
    }
    assert_eq!(COMPUTED.get(), 5);
}

#[test]
fn parts_of_one_buffer_that_follow_each_other_are_one() {
    let buf = IoBuf::copy_of(&[1, 2, 3, 4, 5, 6]).freeze();
    let same = IoBuf::copy_of(&[1, 2, 3, 4, 5, 6]).freeze();
    let (a, b) = (buf.slice(1, 2), buf.slice(3, 3));
    assert_eq!(&a.with_next(&b).unwrap()[..], [2, 3, 4, 5, 6]);
    for other in [&a, &buf.slice(4, 2), &buf.slice(2, 2), &same.slice(3, 3)] {
        assert!(a.with_next(other).is_none());
    }
    assert_eq!(&IoBytes::joined(vec![b, a, same])[..], [4, 5, 6, 2, 3, 1, 2, 3, 4, 5, 6]);
}
