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
/// Sizes of memory that is kept: every number of pages up to this one, then [`STEPS`] in each doubling.
const EXACT_PAGES: usize = 16;
const STEPS: usize = 8;
/// The longest that is kept: 8 MiB.
const MOST_PAGES: usize = 2048;
const CLASSES: usize = EXACT_PAGES + STEPS * (MOST_PAGES / EXACT_PAGES).ilog2() as usize;

struct Kept {
    classes: [Vec<Memory>; CLASSES],
    /// Those that hold nothing but zeros: whoever wants zeros need not clear them.
    clear: [Vec<Memory>; CLASSES],
    bytes: usize,
    most_bytes: usize,
}

impl Default for Kept {
    fn default() -> Self {
        let lists = || std::array::from_fn(|_| Vec::new());
        Self { classes: lists(), clear: lists(), bytes: 0, most_bytes: KEPT_BYTES }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl Kept {
    /// Memory, and whether it holds nothing but zeros; that kind first when it is asked for.
    fn take(&mut self, class: usize, clear: bool) -> Option<(Memory, bool)> {
        let found = match (self.classes[class].pop(), self.clear[class].pop()) {
            (Some(used), Some(zeros)) if clear => {
                self.classes[class].push(used);
                Some((zeros, true))
            }
            (Some(used), zeros) => {
                self.clear[class].extend(zeros);
                Some((used, false))
            }
            (None, zeros) => zeros.map(|zeros| (zeros, true)),
        };
        let (memory, zeros) = found?;
        self.bytes -= memory.layout.size();
        Some((memory, zeros))
    }

    fn give(&mut self, class: usize, memory: Memory, clear: bool) {
        let (size, most) = (memory.layout.size(), self.most_bytes);
        let lists = if clear { &self.clear } else { &self.classes };
        if lists[class].len() * size >= most / 2 {
            return;
        }
        // Sizes that nobody asks for any more give way.
        while self.bytes + size > most {
            if !self.forget_one() {
                return;
            }
        }
        self.bytes += size;
        let lists = if clear { &mut self.clear } else { &mut self.classes };
        lists[class].push(memory);
    }

    /// Frees a piece of memory of the size that takes the most; says whether there was one.
    fn forget_one(&mut self) -> bool {
        let held =
            |list: &&mut Vec<Memory>| list.len() * list.first().map_or(0, |m| m.layout.size());
        let lists = self.classes.iter_mut().chain(&mut self.clear);
        let Some(memory) = lists.max_by_key(held).and_then(Vec::pop) else { return false };
        self.bytes -= memory.layout.size();
        true
    }
}

/// How much freed memory the calling thread keeps for its next buffers, in bytes; 256 MiB unless it
/// says so. For a thread whose buffers are the disks of one simulation after the other.
pub fn keep_freed(most_bytes: usize) {
    KEPT.with(|kept| kept.borrow_mut().most_bytes = most_bytes);
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
    /// All of the memory holds zeros: it was cleared, and nobody has been able to write since.
    clear: bool,
}

/// The list that memory for `len` bytes is kept in, and how much of it there is: an eighth more than
/// was asked for at most, because limits count what was asked for. Memory of [`CLASSES`] and beyond is
/// not kept.
fn class_of(len: usize) -> (usize, usize) {
    let pages = len.max(1).div_ceil(BUFFER_ALIGN);
    if pages <= EXACT_PAGES {
        return (pages - 1, pages * BUFFER_ALIGN);
    }
    if pages > MOST_PAGES {
        return (CLASSES, pages * BUFFER_ALIGN);
    }
    let doubling = (pages - 1).ilog2() as usize;
    let (first, step) = (1 << doubling, (1 << doubling) / STEPS);
    let steps = (pages - first).div_ceil(step);
    let before = STEPS * (doubling - EXACT_PAGES.ilog2() as usize);
    (EXACT_PAGES + before + steps - 1, (first + steps * step) * BUFFER_ALIGN)
}

impl IoBuf {
    /// `len` bytes of whatever an earlier buffer left behind: for memory that is about to be
    /// filled whole.
    #[must_use]
    pub fn recycled(len: usize) -> Self {
        Self::of(len, false)
    }

    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::of(len, true);
        if !buf.clear {
            buf.fill(0);
            buf.clear = len == buf.memory().layout.size();
        }
        buf
    }

    fn of(len: usize, clear: bool) -> Self {
        let (class, capacity) = class_of(len);
        let kept = match class < CLASSES {
            true => KEPT.with(|kept| kept.borrow_mut().take(class, clear)),
            false => None,
        };
        let (memory, clear) = kept.unwrap_or_else(|| (Memory::new(capacity), true));
        Self { memory: Some(memory), len, clear }
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
        let (class, _) = class_of(memory.layout.size());
        if class >= CLASSES {
            return;
        }
        // After the thread's storage is gone the memory is simply freed.
        let _ = KEPT.try_with(|kept| kept.borrow_mut().give(class, memory, self.clear));
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
        self.clear = false;
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
        self.clear = false;
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

#[cfg(test)]
mod tests;
