//! The real memory of containers, allocator included.

/// Bytes that a common allocator takes for a request: one more word, in multiples of 16.
pub(crate) fn heap_bytes(len: usize) -> u64 {
    if len == 0 { 0 } else { ((len as u64 + 8).next_multiple_of(16)).max(32) }
}

/// Bytes of a standard B-tree with `len` items of `item_len` bytes, with half-full nodes.
pub(crate) fn btree_bytes(len: usize, item_len: usize) -> u64 {
    // A node has eleven items, at least five in use; an inner node adds twelve links. An emptied
    // tree keeps a node.
    let leaves = len.div_ceil(5).max(1) as u64;
    let inner = if leaves > 1 { leaves.div_ceil(5) } else { 0 };
    leaves * heap_bytes(11 * item_len + 16) + inner * heap_bytes(11 * item_len + 16 + 12 * 8)
}

/// As [`btree_bytes`], for a tree that is replaced when it is empty.
pub(crate) fn used_btree_bytes(len: usize, item_len: usize) -> u64 {
    if len == 0 { 0 } else { btree_bytes(len, item_len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_a_word_more_in_multiples_of_16() {
        let sizes = [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64), (5120, 5136)];
        for (len, bytes) in sizes {
            assert_eq!(heap_bytes(len), bytes, "{len} bytes");
        }
        // Nodes of 104 and of 200 bytes.
        assert_eq!((btree_bytes(1, 8), btree_bytes(6, 8)), (112, 2 * 112 + 208));
    }

    // In the worst case every node has the fewest items, and every fifth leaf an inner node.
    #[test]
    fn trees_count_with_their_inner_nodes() {
        let (leaf, inner) = (heap_bytes(11 * 12 + 16), heap_bytes(11 * 12 + 16 + 96));
        for (len, nodes) in
            [(1, leaf), (5, leaf), (6, 2 * leaf + inner), (26, 6 * leaf + 2 * inner)]
        {
            assert_eq!(btree_bytes(len, 12), nodes, "{len} items");
            assert_eq!(used_btree_bytes(len, 12), nodes, "{len} items");
        }
        assert_eq!((btree_bytes(0, 12), used_btree_bytes(0, 12)), (leaf, 0));
    }
}
