//! What containers really take.

/// Bytes that a common allocator sets aside for a request: a word before it, multiples of 16.
pub(crate) fn heap_bytes(len: usize) -> u64 {
    if len == 0 { 0 } else { ((len as u64 + 8).next_multiple_of(16)).max(32) }
}

/// Bytes of a standard B-tree with `len` items of `item_len` bytes, were its nodes half full.
pub(crate) fn btree_bytes(len: usize, item_len: usize) -> u64 {
    // Eleven items a node, at least five in use; inner nodes add twelve links. A tree that has been
    // emptied keeps a node.
    let leaves = len.div_ceil(5).max(1) as u64;
    let inner = if leaves > 1 { leaves.div_ceil(5) } else { 0 };
    leaves * heap_bytes(11 * item_len + 16) + inner * heap_bytes(11 * item_len + 16 + 12 * 8)
}
