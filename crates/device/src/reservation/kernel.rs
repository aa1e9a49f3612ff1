//! Reservations of disks through the kernel: its ioctls change them, SCSI and NVMe commands read
//! them. (The kernel's own ioctls for reading are newer than the kernels in use.)

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::{ReservationChange, ReservationKey, Reservations, nvme, scsi};
use crate::ErrorKind;

/// `PR_WRITE_EXCLUSIVE_REG_ONLY`: initiators that are not registered may read only.
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u32 = 3;
/// `PR_FL_IGNORE_KEY`
const IGNORE_KEY: u32 = 1;

/// `struct pr_reservation`
#[repr(C)]
struct Reserve {
    key: u64,
    kind: u32,
    flags: u32,
}

/// `struct pr_registration`
#[repr(C)]
struct Register {
    old_key: u64,
    new_key: u64,
    flags: u32,
    pad: u32,
}

/// `struct pr_preempt`. The kernel's page has the keys the other way round; SCSI and NVMe drivers
/// pass them on as here.
#[repr(C)]
struct Preempt {
    /// The key of this initiator.
    old_key: u64,
    /// The key that is preempted.
    new_key: u64,
    kind: u32,
    flags: u32,
}

/// `struct pr_clear`
#[repr(C)]
struct Clear {
    key: u64,
    flags: u32,
    pad: u32,
}

/// The number of an ioctl that takes a `T`, as the kernel's `_IOW` makes it.
const fn takes<T>(group: u8, number: u8) -> libc::Ioctl {
    number_of(1, group, number, size_of::<T>())
}

/// The number of an ioctl that takes a `T` and changes it, as the kernel's `_IOWR` makes it.
pub(super) const fn exchanges<T>(group: u8, number: u8) -> libc::Ioctl {
    number_of(3, group, number, size_of::<T>())
}

const fn number_of(direction: u32, group: u8, number: u8, len_bytes: usize) -> libc::Ioctl {
    (direction << 30 | (len_bytes as u32) << 16 | (group as u32) << 8 | number as u32)
        as libc::Ioctl
}

const IOC_PR_REGISTER: libc::Ioctl = takes::<Register>(b'p', 200);
const IOC_PR_RESERVE: libc::Ioctl = takes::<Reserve>(b'p', 201);
const IOC_PR_PREEMPT: libc::Ioctl = takes::<Preempt>(b'p', 203);
const IOC_PR_PREEMPT_ABORT: libc::Ioctl = takes::<Preempt>(b'p', 204);
const IOC_PR_CLEAR: libc::Ioctl = takes::<Clear>(b'p', 205);

/// What the kernel returns for a conflict, of SCSI and (since Linux 6.3) of NVMe. Older kernels set
/// bits above as well.
const CONFLICT: i32 = 0x18;
/// `SAM_STAT_CHECK_CONDITION`. The first command after a change by another initiator fails so.
const CHECK_CONDITION: i32 = 0x02;
/// How often a command is given again that failed so.
const ATTEMPTS: u32 = 8;

/// Passes an ioctl to `file`; returns what the device said, 0 for success.
///
/// # Safety
/// `request` takes a pointer to a `T`, and reads or writes nothing beyond it except what the `T`
/// itself points to.
pub(super) unsafe fn ioctl<T>(
    file: &File,
    request: libc::Ioctl,
    argument: &mut T,
) -> io::Result<i32> {
    // SAFETY: the descriptor is open; the caller's for the pointer.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// Whether an error of an ioctl says that the device does not know it.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    let unknown = [libc::ENOTTY, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS];
    error.raw_os_error().is_some_and(|errno| unknown.contains(&errno))
}

/// The reason of a failed ioctl.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    match error.raw_os_error() {
        _ if is_unknown(error) => ErrorKind::Unsupported,
        Some(libc::EBADE) => ErrorKind::ReservationConflict,
        Some(libc::ENODEV | libc::ENXIO) => ErrorKind::Gone,
        Some(errno) => ErrorKind::Os { errno },
        None => ErrorKind::Io(error.kind()),
    }
}

/// Whether a reservation of `file` covers just what the file covers: a whole disk, or a multipath
/// map of one. A reservation of a partition or of another map would take the whole disk beneath.
fn is_whole_disk(file: &File) -> io::Result<bool> {
    let number = file.metadata()?.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if node.join("partition").exists() {
        return Ok(false);
    }
    match std::fs::read_to_string(node.join("dm/uuid")) {
        Ok(uuid) => Ok(uuid.starts_with("mpath-")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads the reservations of a block device. Blocks.
pub(crate) fn read(file: &File) -> Result<Reservations, ErrorKind> {
    if !is_whole_disk(file).map_err(|error| kind_of(&error))? {
        return Err(ErrorKind::Unsupported);
    }
    match scsi::read(file) {
        Err(ErrorKind::Unsupported) => nvme::read(file),
        other => other,
    }
}

/// Changes the reservations of a block device. Blocks.
pub(crate) fn change(file: &File, change: ReservationChange) -> Result<(), ErrorKind> {
    if !is_whole_disk(file).map_err(|error| kind_of(&error))? {
        return Err(ErrorKind::Unsupported);
    }
    let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
    match change {
        ReservationChange::Register { key } => register(file, key),
        ReservationChange::Unregister { key } => unregister(file, key),
        ReservationChange::Reserve { key } => {
            let mut reserve = Reserve { key: key.0, kind, flags: 0 };
            // SAFETY: the request takes a `Reserve`, which has no pointers.
            unsafe { give(file, IOC_PR_RESERVE, &mut reserve) }
        }
        ReservationChange::Preempt { key, victim, abort } => {
            let mut preempt = Preempt { old_key: key.0, new_key: victim.0, kind, flags: 0 };
            let request = if abort { IOC_PR_PREEMPT_ABORT } else { IOC_PR_PREEMPT };
            // SAFETY: both requests take a `Preempt`, which has no pointers.
            unsafe { give(file, request, &mut preempt) }
        }
        ReservationChange::Clear { key } => {
            let mut clear = Clear { key: key.0, flags: 0, pad: 0 };
            // SAFETY: the request takes a `Clear`, which has no pointers.
            unsafe { give(file, IOC_PR_CLEAR, &mut clear) }
        }
    }
}

fn register(file: &File, key: ReservationKey) -> Result<(), ErrorKind> {
    let with = |old_key| {
        let mut new = Register { old_key, new_key: key.0, flags: IGNORE_KEY, pad: 0 };
        // SAFETY: the request takes a `Register`, which has no pointers.
        unsafe { give(file, IOC_PR_REGISTER, &mut new) }
    };
    match with(0) {
        // NVMe only: the host is registered with another key. An old key that is not zero makes the
        // kernel ask for its replacement; which key it is does not matter.
        Err(ErrorKind::ReservationConflict) => with(key.0),
        other => other,
    }
}

fn unregister(file: &File, key: ReservationKey) -> Result<(), ErrorKind> {
    // Of an NVMe namespace, the ioctl would replace the key by zero and keep the registration.
    match nvme::unregister(file, key) {
        Err(ErrorKind::Unsupported) => {}
        other => return other,
    }
    let mut none = Register { old_key: key.0, new_key: 0, flags: 0, pad: 0 };
    // SAFETY: the request takes a `Register`, which has no pointers.
    unsafe { give(file, IOC_PR_REGISTER, &mut none) }
}

/// Gives a request to the device until it answers.
///
/// # Safety
/// As for [`ioctl`].
unsafe fn give<T>(file: &File, request: libc::Ioctl, argument: &mut T) -> Result<(), ErrorKind> {
    let mut status = CHECK_CONDITION;
    for _ in 0..ATTEMPTS {
        // SAFETY: the caller's.
        status = unsafe { ioctl(file, request, argument) }.map_err(|error| kind_of(&error))?;
        if status & 0xff != CHECK_CONDITION {
            break;
        }
    }
    match status {
        0 => Ok(()),
        _ if status & 0xff == CONFLICT || nvme::is_conflict(status) => {
            Err(ErrorKind::ReservationConflict)
        }
        _ if nvme::is_unsupported(status) => Err(ErrorKind::Unsupported),
        _ => Err(ErrorKind::Os { errno: libc::EIO }),
    }
}
