//! Aligned, owned memory that can be lent to the kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Alignment of every buffer: what O_DIRECT asks of the strictest devices.
pub const BUFFER_ALIGN: usize = 4096;

/// Default limit of the freed memory that each thread keeps for its next buffers. A transaction
/// group frees tens of MiB at once and allocates them again in the next seconds. A general
/// allocator spends more on merging and splitting aligned pages than the log spends on a write.
const FREE_LIST_BYTES: usize = 256 << 20;
/// Size classes: every number of pages up to this one, then [`STEPS`] in each doubling.
const EXACT_PAGES: usize = 16;
const STEPS: usize = 8;
/// Longer memory (more than 8 MiB) is not kept.
const MAX_KEPT_PAGES: usize = 2048;
const CLASSES: usize = EXACT_PAGES + STEPS * (MAX_KEPT_PAGES / EXACT_PAGES).ilog2() as usize;

/// Freed memory by size class.
struct FreeList {
    used: [Vec<Memory>; CLASSES],
    /// Memory that is all zeros: a buffer of zeros made of it need not be cleared.
    zeros: [Vec<Memory>; CLASSES],
    bytes: usize,
    limit_bytes: usize,
}

impl Default for FreeList {
    fn default() -> Self {
        let lists = || std::array::from_fn(|_| Vec::new());
        Self { used: lists(), zeros: lists(), bytes: 0, limit_bytes: FREE_LIST_BYTES }
    }
}

thread_local! {
    static FREE: RefCell<FreeList> = RefCell::default();
}

impl FreeList {
    /// Memory of `class`, and whether it is all zeros. `prefer_zeros` chooses where both kinds are
    /// kept.
    fn take(&mut self, class: usize, prefer_zeros: bool) -> Option<(Memory, bool)> {
        let found = match (self.used[class].pop(), self.zeros[class].pop()) {
            (Some(used), Some(zeros)) if prefer_zeros => {
                self.used[class].push(used);
                Some((zeros, true))
            }
            (Some(used), zeros) => {
                self.zeros[class].extend(zeros);
                Some((used, false))
            }
            (None, zeros) => zeros.map(|zeros| (zeros, true)),
        };
        let (memory, is_zeros) = found?;
        self.bytes -= memory.layout.size();
        Some((memory, is_zeros))
    }

    fn give(&mut self, class: usize, memory: Memory, is_zeros: bool) {
        let (size, limit) = (memory.layout.size(), self.limit_bytes);
        let lists = if is_zeros { &self.zeros } else { &self.used };
        if lists[class].len() * size >= limit / 2 {
            return;
        }
        // The size class that takes the most memory gives way.
        while self.bytes + size > limit {
            if !self.free_one() {
                return;
            }
        }
        self.bytes += size;
        let lists = if is_zeros { &mut self.zeros } else { &mut self.used };
        lists[class].push(memory);
    }

    /// Frees one block of the size class that takes the most; `false` when the list is empty.
    fn free_one(&mut self) -> bool {
        let held =
            |list: &&mut Vec<Memory>| list.len() * list.first().map_or(0, |m| m.layout.size());
        let lists = self.used.iter_mut().chain(&mut self.zeros);
        let Some(memory) = lists.max_by_key(held).and_then(Vec::pop) else { return false };
        self.bytes -= memory.layout.size();
        true
    }
}

/// Sets how much freed memory the calling thread keeps for its next buffers (default 256 MiB). For
/// a thread whose buffers are the disks of one simulation after the other.
pub fn keep_freed(limit_bytes: usize) {
    FREE.with(|free| free.borrow_mut().limit_bytes = limit_bytes);
}

struct Memory {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a `Memory` is the only owner of plain bytes on the heap, from whichever thread.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` gives no access to its bytes; `IoBuf` guards them as a slice.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "the allocator takes no empty layout");
        let layout = Layout::from_size_align(capacity, BUFFER_ALIGN).expect("capacity is sane");
        // SAFETY: the layout is not empty.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `alloc_zeroed` gave this pointer for this layout, and it is freed only here.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

/// Memory owned by one holder, aligned to 4096 bytes, never uninitialized.
pub struct IoBuf {
    memory: Option<Memory>,
    len: usize,
    /// The whole memory is zeros: it was cleared, and has not been borrowed for writing since.
    is_zeros: bool,
    sums: BlockSums,
}

/// Checksums of the blocks of a buffer that changes no more; 0 where none is known.
#[derive(Default)]
struct BlockSums {
    /// Most buffers have one block.
    first: AtomicU64,
    rest: OnceLock<Box<[AtomicU64]>>,
}

impl BlockSums {
    fn of(&self, block: usize, blocks: usize) -> &AtomicU64 {
        match block {
            0 => &self.first,
            _ => &self.rest.get_or_init(|| (1..blocks).map(|_| AtomicU64::new(0)).collect())
                [block - 1],
        }
    }
}

/// The size class for `len` bytes, and its capacity: at most an eighth more than `len`, because
/// limits count what was asked for. Memory of class [`CLASSES`] is not kept.
fn class_of(len: usize) -> (usize, usize) {
    let pages = len.max(1).div_ceil(BUFFER_ALIGN);
    if pages <= EXACT_PAGES {
        return (pages - 1, pages * BUFFER_ALIGN);
    }
    if pages > MAX_KEPT_PAGES {
        return (CLASSES, pages * BUFFER_ALIGN);
    }
    let doubling = (pages - 1).ilog2() as usize;
    let (first, step) = (1 << doubling, (1 << doubling) / STEPS);
    let steps = (pages - first).div_ceil(step);
    let before = STEPS * (doubling - EXACT_PAGES.ilog2() as usize);
    (EXACT_PAGES + before + steps - 1, (first + steps * step) * BUFFER_ALIGN)
}

impl IoBuf {
    /// `len` bytes of what an earlier buffer left behind, for memory that is about to be filled
    /// whole.
    #[must_use]
    pub fn recycled(len: usize) -> Self {
        Self::of(len, false)
    }

    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::of(len, true);
        if !buf.is_zeros {
            buf.fill(0);
            buf.is_zeros = len == buf.memory().layout.size();
        }
        buf
    }

    fn of(len: usize, prefer_zeros: bool) -> Self {
        let (class, capacity) = class_of(len);
        let kept = match class < CLASSES {
            true => FREE.with(|free| free.borrow_mut().take(class, prefer_zeros)),
            false => None,
        };
        let (memory, is_zeros) = kept.unwrap_or_else(|| (Memory::new(capacity), true));
        Self { memory: Some(memory), len, is_zeros, sums: BlockSums::default() }
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

    /// Makes the buffer read-only, so that it can be shared.
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
        let _ = FREE.try_with(|free| free.borrow_mut().give(class, memory, self.is_zeros));
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is owned, initialized, and at least `len` bytes long.
        unsafe { std::slice::from_raw_parts(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.is_zeros = false;
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

// SAFETY: the bytes are on the heap until the buffer is dropped.
unsafe impl forebay_rt::net::StableBuf for IoBuf {}

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
        self.start % bytes == 0
    }

    /// This part and `next` as one, if `next` begins in the same buffer where this one ends.
    #[must_use]
    pub fn with_next(&self, next: &Self) -> Option<Self> {
        let follows = Arc::ptr_eq(&self.buf, &next.buf) && self.start + self.len == next.start;
        follows.then(|| Self { buf: self.buf.clone(), start: self.start, len: self.len + next.len })
    }

    /// `parts` one behind the other: the only part itself, or a copy of all.
    #[must_use]
    pub fn joined(mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 {
            return parts.swap_remove(0);
        }
        let mut whole = IoBuf::recycled(parts.iter().map(|part| part.len).sum());
        let mut at = 0;
        for part in parts {
            whole[at..at + part.len].copy_from_slice(&part);
            at += part.len;
        }
        whole.freeze()
    }

    /// Computes the [`IoBytes::block_sum`] of all whole blocks ahead.
    pub fn sum_blocks(&self, sum: fn(&[u8]) -> u64) {
        for index in 0..self.len / BUFFER_ALIGN {
            let _ = self.block_sum(index, sum);
        }
    }

    /// The checksum of block `index` (4096 bytes) of this part. It is computed once and stays with
    /// the data, so every caller must pass the same function. Panics past the end.
    #[must_use]
    pub fn block_sum(&self, index: usize, sum: fn(&[u8]) -> u64) -> u64 {
        let at = index * BUFFER_ALIGN;
        let block = &self[at..at + BUFFER_ALIGN];
        let from = self.start + at;
        if from % BUFFER_ALIGN != 0 {
            return sum(block);
        }
        let known = self.buf.sums.of(from / BUFFER_ALIGN, self.buf.len / BUFFER_ALIGN);
        // The sum is all that threads exchange here, and each of them would compute the same one.
        match known.load(Ordering::Relaxed) {
            0 => {
                let sum = sum(block);
                known.store(sum, Ordering::Relaxed);
                sum
            }
            sum => sum,
        }
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

// SAFETY: the `Arc` keeps the buffer, whose bytes are on the heap.
unsafe impl forebay_rt::net::StableBuf for IoBytes {}

#[cfg(test)]
mod tests;
