//! Files that are mapped into memory: on tmpfs or hugetlbfs, or persistent memory through DAX.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use forebay_rt::sys;

use crate::pmem;

/// A file in memory that outlives the process.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    is_persistent: bool,
    /// Has the lock.
    file: File,
}

// SAFETY: the mapping belongs to this value alone, whichever thread has it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps an existing file, whole, and locks it for this process. Fails with `WouldBlock` if
    /// another process has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        lock(&file)?;
        let len = file.metadata()?.len();
        Self::of(file, len)
    }

    /// Makes a file of `len_bytes` zeros, instead of one that is there, and maps it. All of it is
    /// allocated: a mapping whose file system is full kills the process that writes to it.
    pub fn create(path: &Path, len_bytes: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path)?;
        lock(&file)?;
        file.set_len(0)?;
        let allocated = sys::preallocate(&file, len_bytes).and_then(|()| file.set_len(len_bytes));
        if let Err(error) = allocated {
            // A part of the memory would be kept for nothing.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Self::of(file, len_bytes)
    }

    fn of(file: File, len_bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(len_bytes).map_err(io::Error::other)?;
        if len == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // A file system without DAX refuses a synchronous mapping.
        let synchronous = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
        let (start, is_persistent) = match map(&file, len, synchronous) {
            Ok(start) if pmem::can_write_back() => (start, true),
            Ok(start) => (start, false),
            Err(_) => (map(&file, len, libc::MAP_SHARED)?, false),
        };
        // Memory that was swapped out is slow, and right: a refusal changes nothing.
        // SAFETY: the range is the mapping that was just made.
        let _ = unsafe { libc::mlock(start.as_ptr().cast(), len) };
        Ok(Self { start, len, is_persistent, file })
    }

    /// Bytes of the mapping.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len as u64
    }

    /// Whether what was written is still there after a loss of power.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Whether the file has not been deleted since.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    fn check(&self, offset_bytes: u64, len: usize) -> usize {
        let at = usize::try_from(offset_bytes).expect("inside the mapping");
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        at
    }

    /// Copies out of the mapping. Panics if the range is not inside.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        let at = self.check(offset_bytes, out.len());
        // SAFETY: the offset is inside the mapping.
        let from = unsafe { self.start.as_ptr().add(at) };
        // SAFETY: the range is inside the mapping, of which no reference is given out; `out` is
        // memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Copies into the mapping. Persistent memory has it when this returns. Panics if the range is
    /// not inside.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        let at = self.check(offset_bytes, bytes.len());
        // SAFETY: the offset is inside the mapping.
        let to = unsafe { self.start.as_ptr().add(at) };
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        if self.is_persistent {
            // SAFETY: the range is inside the mapping.
            unsafe { pmem::write_back(to, bytes.len()) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing refers to it.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn lock(file: &File) -> io::Result<()> {
    match sys::try_lock(file)? {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn map(file: &File, len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the place; nothing else is mapped there.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_outlives_the_mapping_and_a_new_file_is_zeros() {
        let path = std::env::temp_dir().join(format!("forebay-mapping-{}", std::process::id()));
        let first = Mapping::create(&path, 10_000).unwrap();
        first.write(4_090, b"over the page");
        assert_eq!(Mapping::open(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        let second = Mapping::open(&path).unwrap();
        let mut back = [0; 15];
        second.read(4_089, &mut back);
        assert_eq!(&back, b"\0over the page\0");
        assert_eq!((second.len_bytes(), second.is_persistent()), (10_000, false));
        drop(second);
        let third = Mapping::create(&path, 5_000).unwrap();
        third.read(4_089, &mut back);
        assert_eq!((back, third.len_bytes()), ([0; 15], 5_000));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn file_that_cannot_be_as_long_is_not_left_behind() {
        let path =
            std::env::temp_dir().join(format!("forebay-mapping-long-{}", std::process::id()));
        let error = Mapping::create(&path, 1 << 62).err().expect("no file system has it");
        assert!(!path.exists(), "{error}");
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn range_past_the_end_is_refused() {
        let path = std::env::temp_dir().join(format!("forebay-mapping-end-{}", std::process::id()));
        let mapping = Mapping::create(&path, 4_096).unwrap();
        std::fs::remove_file(&path).unwrap();
        mapping.write(4_000, &[1; 97]);
    }
}
