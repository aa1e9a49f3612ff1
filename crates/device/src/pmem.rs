//! Persistent memory: writing cache lines back to it.

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Whether this processor can write cache lines back.
#[cfg(target_arch = "x86_64")]
pub fn can_write_back() -> bool {
    true
}

/// Whether this processor can write cache lines back.
#[cfg(not(target_arch = "x86_64"))]
pub fn can_write_back() -> bool {
    false
}

/// Writes the cache lines of a range back, and waits until the memory has them.
///
/// # Safety
/// The range must be mapped.
#[cfg(target_arch = "x86_64")]
pub unsafe fn write_back(start: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm_clflush, _mm_sfence};
    if len == 0 {
        return;
    }
    let first = start as usize / LINE_BYTES * LINE_BYTES;
    for line in (first..start as usize + len).step_by(LINE_BYTES) {
        // SAFETY: the line holds a byte of the range, which is mapped.
        unsafe { _mm_clflush(line as *const u8) };
    }
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() };
}

/// Never called: [`can_write_back`] says so.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn write_back(_start: *mut u8, _len: usize) {
    unreachable!("this processor cannot write cache lines back")
}
