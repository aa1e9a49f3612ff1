//! Aligned, owned memory that can be lent to the kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer: what O_DIRECT asks of the strictest devices.
pub const BUFFER_ALIGN: usize = 4096;

/// Freed memory that each thread keeps for its next buffers. A transaction group gives back tens
/// of MiB at once, and takes them again in the next seconds: a general allocator spends more on
/// merging and splitting aligned pages than the log does on a write.
const KEPT_BYTES: usize = 256 << 20;
const CLASSES: usize = 12; // 4 KiB to 8 MiB

#[derive(Default)]
struct Kept {
    classes: [Vec<Memory>; CLASSES],
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl Kept {
    fn take(&mut self, class: usize) -> Option<Memory> {
        let memory = self.classes[class].pop()?;
        self.bytes -= memory.layout.size();
        Some(memory)
    }

    fn give(&mut self, class: usize, memory: Memory) {
        let (size, list) = (memory.layout.size(), &mut self.classes[class]);
        if self.bytes + size <= KEPT_BYTES && list.len() * size < KEPT_BYTES / 2 {
            self.bytes += size;
            list.push(memory);
        }
    }
}

struct Memory {
    ptr: NonNull<u8>,
    layout: Layout,
}

// Plain bytes, owned by whoever holds the value.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    fn new(capacity: usize) -> Self {
        let layout = Layout::from_size_align(capacity, BUFFER_ALIGN).expect("capacity is sane");
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

/// Memory owned by one holder, aligned to 4096 bytes, never uninitialised.
pub struct IoBuf {
    memory: Option<Memory>,
    len: usize,
}

fn class_of(len: usize) -> usize {
    (len.max(BUFFER_ALIGN).next_power_of_two().trailing_zeros() - BUFFER_ALIGN.trailing_zeros())
        as usize
}

impl IoBuf {
    /// `len` bytes of whatever an earlier buffer left behind: for memory that is about to be
    /// filled whole.
    #[must_use]
    pub fn recycled(len: usize) -> Self {
        let class = class_of(len);
        let kept =
            if class < CLASSES { KEPT.with(|kept| kept.borrow_mut().take(class)) } else { None };
        let memory = kept.unwrap_or_else(|| Memory::new(BUFFER_ALIGN << class));
        Self { memory: Some(memory), len }
    }

    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::recycled(len);
        buf.fill(0);
        buf
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::recycled(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Makes the buffer shorter.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Gives up writing, so that it can be shared.
    #[must_use]
    pub fn freeze(self) -> IoBytes {
        let len = self.len;
        IoBytes { buf: Arc::new(self), start: 0, len }
    }

    #[inline]
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("present until drop")
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let class = class_of(memory.layout.size());
        if class >= CLASSES {
            return;
        }
        // After the thread's storage is gone the memory is simply freed.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().give(class, memory));
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

// Heap memory: moving the owner does not move it.
unsafe impl forebay_rt::net::StableBuf for IoBuf {
    fn stable_ptr(&mut self) -> *mut u8 {
        self.memory().ptr.as_ptr()
    }
    fn stable_len(&self) -> usize {
        self.len
    }
}

/// A shared, read-only part of a buffer. Cloning and slicing copy nothing.
#[derive(Clone)]
pub struct IoBytes {
    buf: Arc<IoBuf>,
    start: usize,
    len: usize,
}

impl IoBytes {
    /// `len` bytes from `start` of this part. Panics when it reaches past the end.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "slice past the end of a buffer");
        Self { buf: self.buf.clone(), start: self.start + start, len }
    }

    /// Whether the memory starts where O_DIRECT wants it.
    #[must_use]
    pub fn is_aligned_to(&self, bytes: usize) -> bool {
        self.start.is_multiple_of(bytes)
    }
}

impl Deref for IoBytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }
}

impl fmt::Debug for IoBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBytes({} bytes)", self.len)
    }
}

// The kernel only reads through this pointer; the Arc keeps the memory where it is.
unsafe impl forebay_rt::net::StableBuf for IoBytes {
    fn stable_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
    fn stable_len(&self) -> usize {
        self.len
    }
}
