//! What the kernel's ioctls do not do for an NVMe namespace, as passed-through I/O commands of the
//! NVMe base specification 2.0: Reservation Report, and the end of a registration.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::{ReservationKey, Reservations, kernel};
use crate::ErrorKind;

/// `_IO('N', 0x40)`
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
const NVME_IOCTL_IO_CMD: libc::Ioctl = kernel::exchanges::<Passthrough>(b'N', 0x43);

const RESERVATION_REGISTER: u8 = 0x0d;
const RESERVATION_REPORT: u8 = 0x0e;
/// The action of Reservation Register that ends a registration.
const UNREGISTER: u32 = 1;
/// Room for 63 controllers with 128-bit host identifiers.
const REPORT_BYTES: usize = 4096;
const TIMEOUT_MS: u32 = 30_000;

/// The status code and its type, without the bits behind them.
const STATUS_MASK: i32 = 0x7ff;
const INVALID_OPCODE: i32 = 0x001;
const INVALID_FIELD: i32 = 0x002;
const HOST_IDENTIFIER_FORMAT: i32 = 0x018;
const RESERVATION_CONFLICT: i32 = 0x083;

/// `struct nvme_passthru_cmd`
#[repr(C)]
#[derive(Default)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_and_3: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_len: u32,
    data_len: u32,
    words_10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// How a report describes a controller.
#[derive(Clone, Copy)]
struct Format {
    /// Length of the report's header.
    header_bytes: usize,
    /// Length of one controller's entry.
    entry_bytes: usize,
    /// Where the key lies in the entry.
    key_at: usize,
}

/// With host identifiers of 64 bits.
const SHORT: Format = Format { header_bytes: 24, entry_bytes: 24, key_at: 16 };
/// With host identifiers of 128 bits, as over fabrics.
const EXTENDED: Format = Format { header_bytes: 64, entry_bytes: 64, key_at: 8 };

/// The number of the namespace; [`ErrorKind::Unsupported`] for what is none.
fn namespace_of(file: &File) -> Result<u32, ErrorKind> {
    // SAFETY: the descriptor is open, and the request takes no pointer.
    let namespace = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) };
    match u32::try_from(namespace) {
        Ok(namespace) if namespace > 0 => Ok(namespace),
        _ => Err(ErrorKind::Unsupported),
    }
}

/// Gives a command with these words 10 and 11 to a namespace, with `data` to read or to fill.
/// Returns its status.
fn command(file: &File, opcode: u8, words: [u32; 2], data: &mut [u8]) -> Result<i32, ErrorKind> {
    let mut command = Passthrough {
        opcode,
        namespace: namespace_of(file)?,
        data: data.as_mut_ptr() as u64,
        data_len: data.len() as u32,
        words_10_to_15: [words[0], words[1], 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..Passthrough::default()
    };
    // SAFETY: the request takes a `Passthrough`. It points to `data`, which lives longer than the
    // call and is as long as it says.
    let given = unsafe { kernel::ioctl(file, NVME_IOCTL_IO_CMD, &mut command) };
    given.map_err(|error| kernel::kind_of(&error))
}

/// Ends the registration of this host; [`ErrorKind::Unsupported`] for what is no NVMe namespace.
pub(super) fn unregister(file: &File, key: ReservationKey) -> Result<(), ErrorKind> {
    let mut keys = [0; 16];
    keys[..8].copy_from_slice(&key.0.to_le_bytes());
    match command(file, RESERVATION_REGISTER, [UNREGISTER, 0], &mut keys)? {
        0 => Ok(()),
        status if is_conflict(status) => Err(ErrorKind::ReservationConflict),
        _ => Err(ErrorKind::Os { errno: libc::EIO }),
    }
}

pub(super) fn is_conflict(status: i32) -> bool {
    status & STATUS_MASK == RESERVATION_CONFLICT
}

pub(super) fn is_unsupported(status: i32) -> bool {
    [INVALID_OPCODE, INVALID_FIELD].contains(&(status & STATUS_MASK))
}

/// Keys and holder; [`ErrorKind::Unsupported`] for a namespace without reservations, and for what
/// is no NVMe namespace.
pub(super) fn read(file: &File) -> Result<Reservations, ErrorKind> {
    let mut report = vec![0u8; REPORT_BYTES];
    let words = (REPORT_BYTES / 4 - 1) as u32;
    for (format, extended) in [(EXTENDED, 1), (SHORT, 0)] {
        match command(file, RESERVATION_REPORT, [words, extended], &mut report)? {
            0 => return Ok(parse(&report, format)),
            status if status & STATUS_MASK == HOST_IDENTIFIER_FORMAT => {}
            status if is_unsupported(status) => return Err(ErrorKind::Unsupported),
            _ => return Err(ErrorKind::Os { errno: libc::EIO }),
        }
    }
    Err(ErrorKind::Os { errno: libc::EIO })
}

fn parse(report: &[u8], format: Format) -> Reservations {
    let mut found = Reservations::default();
    let Some((header, entries)) = report.split_at_checked(format.header_bytes) else {
        return found;
    };
    let registered = usize::from(u16::from_le_bytes([header[5], header[6]]));
    for entry in entries.chunks_exact(format.entry_bytes).take(registered) {
        let Some(key) = entry[format.key_at..].first_chunk::<8>() else { continue };
        let key = ReservationKey(u64::from_le_bytes(*key));
        found.keys.push(key);
        if entry[2] & 1 != 0 {
            found.holder = Some(key);
        }
    }
    found
}

#[cfg(test)]
mod tests;
