//! A file or block device through io_uring with O_DIRECT.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_rt::sync::Semaphore;
use forebay_rt::{sys, uring};
use io_uring::{opcode, squeue, types};

use crate::reservation::kernel;
use crate::submission::may_block;
use crate::{
    BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    ReservationChange, Reservations, ZeroOptions, check_range, write_zeroes_as_data,
};

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Only read.
    pub read_only: bool,
    /// Take an exclusive lock that lasts as long as the device is open. Opening fails with
    /// [`ErrorKind::Busy`] when another process holds the lock.
    pub exclusive: bool,
}

/// A file or block device. All I/O is O_DIRECT.
pub struct FileDevice {
    /// `None` only while it is dropped.
    file: Option<File>,
    name: String,
    geometry: Geometry,
    is_block_device: bool,
    /// See [`syncs_queued_writes`].
    syncs_queued_writes: bool,
    /// Places for operations under way, when a submission may block ([`crate::submission`]). `None`
    /// when the kernel queues what it cannot do at once.
    aside: Option<Rc<Semaphore>>,
}

/// What opening a file finds out about it. It is made on another thread.
struct Opened {
    file: File,
    geometry: Geometry,
    is_block_device: bool,
    syncs_queued_writes: bool,
    may_block: bool,
}

/// Operations under way on one file whose submission may block: as many worker threads of the
/// kernel are blocked when the file system hangs, of the [`uring::WORKERS_MAX`] that all files
/// share.
const ASIDE_MAX: u64 = 32;

/// Requests longer than this are split: the kernel's own limit is just below 2 GiB.
const MAX_REQUEST_BYTES: usize = 1 << 30;

/// Parts of a write beyond this number are joined: the kernel's UIO_MAXIOV.
const MAX_PARTS: usize = 1024;

// FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
const PUNCH_HOLE: i32 = 0x01 | 0x02;
// FALLOC_FL_KEEP_SIZE | FALLOC_FL_ZERO_RANGE
const ZERO_RANGE: i32 = 0x01 | 0x10;

/// Size in bytes of a file or block device, without keeping it open.
pub fn probe_size_bytes(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let (size_bytes, _) = size_of_file(&file)?.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(size_bytes)
}

/// Size in bytes, and whether it is a block device; `None` for what is neither that nor a file.
fn size_of_file(file: &File) -> io::Result<Option<(u64, bool)>> {
    let meta = file.metadata()?;
    if meta.file_type().is_block_device() {
        let mut position = file;
        return Ok(Some((position.seek(SeekFrom::End(0))?, true)));
    }
    Ok(meta.is_file().then_some((meta.len(), false)))
}

/// Whether the file system of `file` completes a queued O_DIRECT write with RWF_DSYNC only when the
/// write is durable. FUSE does not: the kernel synchronizes after writes that end at once, and
/// forgets to after writes that it has queued. On file systems that are not known to do it, each
/// such write gets a flush of its own.
fn syncs_queued_writes(file: &File) -> io::Result<bool> {
    let magic = sys::file_system_magic(file)?;
    // On tmpfs nothing is durable, and a flush would gain nothing.
    Ok([libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::TMPFS_MAGIC].contains(&magic))
}

impl Opened {
    fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let fail = |e: io::Error| DeviceError::os(&name, Operation::Open, 0, 0, &e);
        let mut flags = libc::O_DIRECT;
        let is_block = std::fs::metadata(path).map_err(fail)?.file_type().is_block_device();
        if is_block && options.exclusive {
            flags |= libc::O_EXCL; // the kernel refuses when a file system or another pool has it
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            .custom_flags(flags)
            .open(path)
            .map_err(fail)?;
        if options.exclusive && !sys::try_lock(&file).map_err(fail)? {
            return Err(DeviceError::new(&name, Operation::Open, 0, 0, ErrorKind::Busy));
        }
        let (size_bytes, is_block_device) = size_of_file(&file)
            .map_err(fail)?
            .ok_or_else(|| DeviceError::new(&name, Operation::Open, 0, 0, ErrorKind::NotADevice))?;
        let sector_bytes = if is_block_device { sys::logical_block_bytes(&file) } else { None };
        let geometry = Geometry {
            size_bytes,
            block_bytes: sector_bytes.unwrap_or(512),
            volatile_cache: true,
            discard_bytes: 4096,
            read_only: options.read_only,
        };
        let syncs_queued_writes = is_block_device || syncs_queued_writes(&file).map_err(fail)?;
        let may_block = may_block(&file).map_err(fail)?;
        Ok(Self { file, geometry, is_block_device, syncs_queued_writes, may_block })
    }
}

impl FileDevice {
    /// Opens `path`. Fails when it is neither a file nor a block device, cannot be opened with
    /// O_DIRECT, or (with `exclusive`) is locked by another process. A file system that hangs
    /// keeps only this future waiting: the system calls run on a thread of their own.
    pub async fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let path: PathBuf = path.to_owned();
        let opened = forebay_rt::aside(move || Opened::open(&path, options)).await?;
        let Opened { file, geometry, is_block_device, syncs_queued_writes, may_block } = opened;
        let aside = may_block.then(|| Semaphore::new(ASIDE_MAX));
        Ok(Self { file: Some(file), name, geometry, is_block_device, syncs_queued_writes, aside })
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.file.as_ref().expect("open until it is dropped").as_raw_fd())
    }

    /// Submits `entry` so that this thread never blocks.
    ///
    /// # Safety
    /// As for [`uring::submit`].
    async unsafe fn submit<T: Unpin + 'static>(
        &self,
        entry: squeue::Entry,
        kept: T,
    ) -> (io::Result<u32>, T) {
        let Some(places) = &self.aside else {
            // SAFETY: the caller's.
            return unsafe { uring::submit(entry, kept) }.await;
        };
        // The place is kept like the buffers: until the kernel is done.
        let place = places.acquire(1).await.expect("never closed");
        // SAFETY: the caller's; the pair owns `kept`, and a pointer into its memory stays valid.
        let (outcome, (kept, _place)) = unsafe { uring::submit_aside(entry, (kept, place)) }.await;
        (outcome, kept)
    }

    /// Writes parts from where they are, which must be aligned. Returns how many bytes of them.
    async fn write_parts(
        &self,
        offset_bytes: u64,
        parts: Vec<IoBytes>,
        flags: i32,
    ) -> (io::Result<u32>, Vec<IoBytes>) {
        let vector = |part: &IoBytes| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        let vectors: Vec<libc::iovec> = parts.iter().map(vector).collect();
        let entry = opcode::Writev::new(self.fd(), vectors.as_ptr(), vectors.len() as u32)
            .offset(offset_bytes)
            .rw_flags(flags)
            .build();
        // SAFETY: the entry points to `vectors`, and these point into `parts`: both are kept, and
        // their memory is on the heap.
        let (outcome, (parts, _)) = unsafe { self.submit(entry, (parts, vectors)) }.await;
        (outcome, parts)
    }

    fn error(&self, op: Operation, offset: u64, len: u64, e: &io::Error) -> DeviceError {
        DeviceError::os(&self.name, op, offset, len, e)
    }

    async fn fallocate(&self, offset: u64, len: u64, mode: i32) -> io::Result<()> {
        let entry = opcode::Fallocate::new(self.fd(), len).offset(offset).mode(mode).build();
        // SAFETY: the entry has no pointers.
        let (outcome, ()) = unsafe { self.submit(entry, ()) }.await;
        outcome.map(|_| ())
    }

    /// Runs a request on the device's reservations, which blocks, on a thread of its own.
    async fn on_reservations<T: Send + 'static>(
        &self,
        request: impl FnOnce(&File) -> Result<T, ErrorKind> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let fail = |kind| DeviceError::new(&self.name, Operation::Reservation, 0, 0, kind);
        if !self.is_block_device {
            return Err(fail(ErrorKind::Unsupported));
        }
        let file = self.file.as_ref().expect("open until it is dropped").try_clone();
        let file = file.map_err(|e| self.error(Operation::Reservation, 0, 0, &e))?;
        forebay_rt::aside(move || request(&file)).await.map_err(fail)
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn allocates_on_write(&self) -> bool {
        !self.is_block_device
    }

    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if self.is_block_device {
                return Ok(());
            }
            let fail = |kind| DeviceError::new(&self.name, Operation::Check, 0, 0, kind);
            let mut found = Box::new(MaybeUninit::<libc::statx>::zeroed());
            let entry = opcode::Statx::new(self.fd(), c"".as_ptr(), found.as_mut_ptr().cast())
                .flags(libc::AT_EMPTY_PATH)
                .mask(libc::STATX_NLINK | libc::STATX_SIZE)
                .build();
            // SAFETY: the entry points into `found`, which is kept and stable, and to a constant.
            let (outcome, found) = unsafe { self.submit(entry, found) }.await;
            outcome.map_err(|e| self.error(Operation::Check, 0, 0, &e))?;
            // SAFETY: a statx is made of numbers, and zero is a number.
            let found = unsafe { found.assume_init() };
            if found.stx_nlink == 0 {
                return Err(fail(ErrorKind::Deleted));
            }
            let size_bytes = found.stx_size;
            if size_bytes < self.geometry.size_bytes {
                return Err(fail(ErrorKind::OutOfRange { size_bytes }));
            }
            Ok(())
        })
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let total = buf.len();
            check_range(&self.name, &self.geometry, Operation::Read, offset_bytes, total as u64)?;
            let mut done = 0;
            while done < total {
                let rest = &mut buf[done..];
                let len = rest.len().min(MAX_REQUEST_BYTES) as u32;
                let at = offset_bytes + done as u64;
                let entry = opcode::Read::new(self.fd(), rest.as_mut_ptr(), len).offset(at).build();
                // SAFETY: the entry points into `buf`, which is kept and stable.
                let (outcome, back) = unsafe { self.submit(entry, buf) }.await;
                buf = back;
                match outcome {
                    Ok(0) => {
                        let kind = ErrorKind::Short { got_bytes: done as u64 };
                        return Err(DeviceError::new(
                            &self.name,
                            Operation::Read,
                            offset_bytes,
                            total as u64,
                            kind,
                        ));
                    }
                    Ok(n) => done += n as usize,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(self.error(Operation::Read, at, u64::from(len), &e)),
                }
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, mut data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let total = data.len();
            check_range(&self.name, &self.geometry, Operation::Write, offset_bytes, total as u64)?;
            if !data.is_aligned_to(self.geometry.block_bytes as usize) {
                data = IoBuf::copy_of(&data).freeze();
            }
            let with_dsync = fua && self.syncs_queued_writes;
            let mut done = 0;
            while done < total {
                let rest = &data[done..];
                let len = rest.len().min(MAX_REQUEST_BYTES) as u32;
                let at = offset_bytes + done as u64;
                let entry = opcode::Write::new(self.fd(), rest.as_ptr(), len)
                    .offset(at)
                    .rw_flags(if with_dsync { libc::RWF_DSYNC } else { 0 })
                    .build();
                // SAFETY: the entry points into `data`, which is kept and stable.
                let (outcome, back) = unsafe { self.submit(entry, data) }.await;
                data = back;
                match outcome {
                    Ok(0) => {
                        let kind = ErrorKind::Short { got_bytes: done as u64 };
                        return Err(DeviceError::new(
                            &self.name,
                            Operation::Write,
                            offset_bytes,
                            total as u64,
                            kind,
                        ));
                    }
                    Ok(n) => done += n as usize,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(self.error(Operation::Write, at, u64::from(len), &e)),
                }
            }
            if fua && !with_dsync { self.flush().await } else { Ok(()) }
        })
    }

    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<IoBytes>,
        fua: bool,
    ) -> DeviceFuture<'_, ()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let block_bytes = self.geometry.block_bytes as usize;
        let fits =
            |part: &IoBytes| part.is_aligned_to(block_bytes) && part.len() % block_bytes == 0;
        let is_short = parts.len() <= MAX_PARTS && total <= MAX_REQUEST_BYTES;
        if parts.len() < 2 || !is_short || !parts.iter().all(fits) {
            return self.write(offset_bytes, IoBytes::joined(parts), fua);
        }
        Box::pin(async move {
            check_range(&self.name, &self.geometry, Operation::Write, offset_bytes, total as u64)?;
            let with_dsync = fua && self.syncs_queued_writes;
            let flags = if with_dsync { libc::RWF_DSYNC } else { 0 };
            let (outcome, parts) = self.write_parts(offset_bytes, parts, flags).await;
            match outcome {
                Ok(written) if written as usize == total => {}
                // The rest, or the error, of a write that stopped early.
                Ok(written) => {
                    let whole = IoBytes::joined(parts);
                    let written = written as usize;
                    let rest = whole.slice(written, total - written);
                    return self.write(offset_bytes + written as u64, rest, fua).await;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    return self.write(offset_bytes, IoBytes::joined(parts), fua).await;
                }
                Err(e) => {
                    return Err(self.error(Operation::Write, offset_bytes, total as u64, &e));
                }
            }
            if fua && !with_dsync { self.flush().await } else { Ok(()) }
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC).build();
            // SAFETY: the entry has no pointers.
            let (outcome, ()) = unsafe { self.submit(entry, ()) }.await;
            outcome.map(|_| ()).map_err(|e| self.error(Operation::Flush, 0, 0, &e))
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            check_range(&self.name, &self.geometry, Operation::Discard, offset_bytes, len_bytes)?;
            match self.fallocate(offset_bytes, len_bytes, PUNCH_HOLE).await {
                Ok(()) if fua => self.flush().await,
                Ok(()) => Ok(()),
                // A discard is advice: without it nothing is lost.
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                Err(e) => Err(self.error(Operation::Discard, offset_bytes, len_bytes, &e)),
            }
        })
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let op = Operation::WriteZeroes;
            check_range(&self.name, &self.geometry, op, offset_bytes, len_bytes)?;
            let mode =
                if self.is_block_device || options.no_hole { ZERO_RANGE } else { PUNCH_HOLE };
            match self.fallocate(offset_bytes, len_bytes, mode).await {
                Ok(()) if options.fua => self.flush().await,
                Ok(()) => Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) && !options.fast => {
                    write_zeroes_as_data(self, offset_bytes, len_bytes, options.fua).await
                }
                Err(e) => Err(self.error(op, offset_bytes, len_bytes, &e)),
            }
        })
    }

    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        Box::pin(self.on_reservations(kernel::read))
    }

    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(self.on_reservations(move |file| kernel::change(file, change)))
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.aside.is_some() {
            // The last close of such a file asks its file system, which may hang.
            forebay_rt::close_aside(file);
        }
    }
}
