//! Requests of one ublk device, performed on a volume: a task for each request that the kernel may
//! have under way.
//!
//! What always holds: a request is answered once, after it was performed. What a server that ends
//! has not begun stays unanswered, for the next server.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf, ZeroOptions};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use io_uring::{opcode, types};

use super::abi::{DESCRIPTOR_BYTES, Kind, Queues, Request, io as command, io_command};
use super::control::Control;
use crate::devices::System;
use crate::error::AttachError;
use crate::files;

/// Requests under way at once in all queues of a device, unless that leaves too few for each.
const REQUESTS: u16 = 128;
/// Fewest requests of a queue.
const QUEUE_REQUESTS_MIN: u16 = 32;
/// Longest read or write; the kernel splits longer ones.
pub(crate) const REQUEST_MAX_BYTES: u32 = 128 << 10;
const PAGE_BYTES: usize = 4096;

/// Requests of each of `count` queues.
pub(super) fn requests_of_each(count: u16) -> u16 {
    (REQUESTS / count).max(QUEUE_REQUESTS_MIN)
}

/// The character device of a ublk device.
pub struct CharacterDevice {
    file: File,
    queues: Queues,
}

impl CharacterDevice {
    /// Opens that of device `index`. Blocks.
    pub fn open(system: &System, index: u32) -> Result<Self, AttachError> {
        let queues = Control::open(system)?.queues(index)?;
        let file = files::open(&system.dev.join(format!("ublkc{index}")));
        let what = "open the character device of ublk";
        let file = file.map_err(|error| AttachError::Refused { what, error })?;
        Ok(Self { file, queues })
    }
}

/// One ublk device that this process serves.
pub struct Front {
    file: File,
    /// Of each queue.
    descriptors: Vec<Descriptors>,
    /// The volume, until its owner takes it away. Requests fail without it.
    volume: RefCell<Option<Device>>,
    /// What is held as long as the volume is.
    hold: RefCell<Option<Box<dyn Any>>>,
    under_way: Cell<usize>,
    /// Tasks that have not ended: none are left when the device is gone.
    tasks: Cell<u32>,
    is_ending: Cell<bool>,
    changed: Rc<Notify>,
}

impl Front {
    /// Fetches requests of `device`, and performs them on `volume`. Drops `hold` when it lets go of
    /// the volume.
    pub fn serve(
        device: CharacterDevice,
        volume: Device,
        hold: Box<dyn Any>,
    ) -> io::Result<Rc<Self>> {
        let CharacterDevice { file, queues: Queues { count, requests } } = device;
        let map = |queue| Descriptors::map(&file, queue, requests);
        let descriptors = (0..count).map(map).collect::<io::Result<_>>()?;
        let front = Rc::new(Self {
            file,
            descriptors,
            volume: RefCell::new(Some(volume)),
            hold: RefCell::new(Some(hold)),
            under_way: Cell::new(0),
            tasks: Cell::new(u32::from(count) * u32::from(requests)),
            is_ending: Cell::new(false),
            changed: Notify::new(),
        });
        for queue in 0..count {
            for tag in 0..requests {
                rt::spawn(front.clone().serve_tag(queue, tag));
            }
        }
        Ok(front)
    }

    /// Whether the kernel still has the device.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.tasks.get() > 0
    }

    /// Whether it has a volume.
    #[must_use]
    pub fn has_volume(&self) -> bool {
        self.volume.borrow().is_some()
    }

    /// Performs requests on `volume` from now on.
    pub fn adopt(&self, volume: Device, hold: Box<dyn Any>) {
        *self.volume.borrow_mut() = Some(volume);
        *self.hold.borrow_mut() = Some(hold);
    }

    /// Lets go of the volume, once the requests under way are performed. Requests fail from now on.
    pub async fn let_go(&self) {
        self.volume.take();
        self.changed.until(|| self.under_way.get() == 0).await;
        self.hold.take();
    }

    /// Begins no request any more, so that the next server gets it, and lets go of the volume.
    pub async fn end(&self) {
        self.is_ending.set(true);
        self.let_go().await;
    }

    async fn serve_tag(self: Rc<Self>, queue: u16, tag: u16) {
        let mut memory = IoBuf::zeroed(REQUEST_MAX_BYTES as usize);
        let mut answer = None;
        loop {
            let number = match answer {
                None => command::FETCH,
                Some(_) => command::COMMIT_AND_FETCH,
            };
            let address = memory.as_mut_ptr().expose_provenance() as u64;
            let bytes = io_command(queue, tag, answer.unwrap_or(0), address);
            let fd = types::Fd(self.file.as_raw_fd());
            let entry = opcode::UringCmd16::new(fd, number).cmd(bytes).build();
            // SAFETY: the entry points into `memory`, whose bytes stay where they are.
            let fetched = unsafe { rt::uring::submit_standing(entry, memory) }.await;
            memory = fetched.1;
            // Otherwise the device is gone.
            if !matches!(fetched.0, Ok(0)) || self.is_ending.get() {
                break;
            }
            self.under_way.set(self.under_way.get() + 1);
            let performed = self.perform(queue, tag, &mut memory).await;
            self.under_way.set(self.under_way.get() - 1);
            self.changed.notify_all();
            if performed < 0 && self.is_ending.get() {
                // The kernel keeps the request for the next server.
                break;
            }
            answer = Some(performed);
        }
        self.tasks.set(self.tasks.get() - 1);
        if self.tasks.get() == 0 {
            self.volume.take();
            self.hold.take();
        }
    }

    /// The answer to the request of `tag` in `queue`: bytes, or a negative errno.
    async fn perform(&self, queue: u16, tag: u16, memory: &mut IoBuf) -> i32 {
        let Ok(request) = Request::decode(&self.descriptors[usize::from(queue)].of(tag)) else {
            return -libc::EOPNOTSUPP;
        };
        let Some(volume) = self.volume.borrow().clone() else { return -libc::EIO };
        match perform(request, &volume, memory).await {
            Ok(bytes) => bytes,
            Err(error) => -errno_of(&error),
        }
    }
}

async fn perform(
    request: Request,
    volume: &Device,
    memory: &mut IoBuf,
) -> Result<i32, DeviceError> {
    let Request { kind, offset_bytes: at, len_bytes: len } = request;
    let bytes = usize::try_from(len).unwrap_or(usize::MAX).min(memory.len());
    match kind {
        Kind::Read => {
            let data = volume.read(at, IoBuf::recycled(bytes)).await?;
            memory[..bytes].copy_from_slice(&data);
            return Ok(bytes as i32);
        }
        Kind::Write => {
            let mut data = IoBuf::recycled(bytes);
            data.copy_from_slice(&memory[..bytes]);
            volume.write(at, data.freeze(), true).await?;
            return Ok(bytes as i32);
        }
        Kind::Flush => volume.flush().await?,
        Kind::Discard => volume.discard(at, len, true).await?,
        Kind::WriteZeroes { no_hole } => {
            let options = ZeroOptions { fua: true, no_hole, fast: false };
            volume.write_zeroes(at, len, options).await?;
        }
    }
    Ok(0)
}

fn errno_of(error: &DeviceError) -> i32 {
    match error.kind {
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

/// The descriptions of one queue's requests, which the kernel writes.
struct Descriptors {
    start: NonNull<u8>,
    requests: u16,
}

impl Descriptors {
    fn map(file: &File, queue: u16, requests: u16) -> io::Result<Self> {
        let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE);
        let (len, at) = (Self::len_bytes(requests), Queues::offset_bytes(queue));
        let (protection, at) = (libc::PROT_READ, at as libc::off_t);
        // SAFETY: the kernel chooses the place; nothing else is mapped there.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, at) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, requests })
    }

    fn len_bytes(requests: u16) -> usize {
        (usize::from(requests) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// What the request of `tag` is, after its command has completed.
    fn of(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(tag < self.requests, "a tag of this queue");
        // SAFETY: the description of the tag is inside the mapping.
        let place = unsafe { self.start.as_ptr().add(usize::from(tag) * DESCRIPTOR_BYTES) };
        // SAFETY: the place is readable, and the kernel does not change it before the answer.
        unsafe { place.cast::<[u8; DESCRIPTOR_BYTES]>().read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let len = Self::len_bytes(self.requests);
        // SAFETY: the mapping is this one's, and nothing refers to it.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), len) };
    }
}
