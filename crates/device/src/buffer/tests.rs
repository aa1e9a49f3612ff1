use super::*;

// The dirty limit of a pool counts what was asked for.
#[test]
fn memory_is_hardly_more_than_was_asked_for_and_comes_round() {
    let longer = [127, 128, 129, 255, 257, 300, 513, 1000, 1025, 2047, 2048, 2049, 5000];
    for pages in (1..70usize).chain(longer) {
        for len in [pages * 4096 - 4095, pages * 4096] {
            let buf = IoBuf::recycled(len);
            let capacity = buf.memory().layout.size();
            assert!(capacity >= len && capacity.is_multiple_of(4096), "{capacity} for {len}");
            assert!(capacity <= (len + len / 8).max(len + 4095), "{capacity} for {len}");
            let at = buf.as_ptr();
            drop(buf);
            let again = IoBuf::recycled(len);
            assert_eq!(again.memory().layout.size(), capacity);
            assert!(len > 8 << 20 || again.as_ptr() == at, "{len} bytes are not kept");
        }
    }
}
