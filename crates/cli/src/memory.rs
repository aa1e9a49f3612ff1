//! Free memory, given back to the system.

// Links the allocator of the binary, which has the function below.
use mimalloc as _;

unsafe extern "C" {
    /// Of mimalloc: gives free memory back to the system, all of it with `force`.
    fn mi_collect(force: bool);
}

/// Gives free memory back. An import holds the checksums of the whole map for a moment, ten bytes a
/// block, and then drops those that footers hold. The allocator would keep that memory.
pub fn release_free_memory() {
    // SAFETY: the allocator allows the call at any time, on any thread.
    unsafe { mi_collect(true) }
}
