//! Memory that is free, given back to the system.

// The library that the function below is in, and the binary's allocator.
use mimalloc as _;

unsafe extern "C" {
    /// Of the allocator: gives what is free back to the system, all of it when forced.
    fn mi_collect(force: bool);
}

/// An import holds the checksums of the whole map for a moment, ten bytes a block, and lets go of
/// those that footers hold. The allocator would keep that memory until it is asked for as much again.
pub fn give_back_what_is_free() {
    // It may be called at any time, by any thread.
    unsafe { mi_collect(true) }
}
