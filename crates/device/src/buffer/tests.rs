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
