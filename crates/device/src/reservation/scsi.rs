//! Reading the reservations of a SCSI disk: PERSISTENT RESERVE IN (SPC-4, 6.15) through SG_IO.

use std::fs::File;

use super::{ReservationKey, Reservations, kernel};
use crate::ErrorKind;

const SG_IO: libc::Ioctl = 0x2285;
const SG_DXFER_FROM_DEV: i32 = -3;

const PERSISTENT_RESERVE_IN: u8 = 0x5e;
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;

const CHECK_CONDITION: u8 = 0x02;
const RESERVATION_CONFLICT: u8 = 0x18;
const ILLEGAL_REQUEST: u8 = 5;
const UNIT_ATTENTION: u8 = 6;

/// A disk reports each change by another initiator once, as a failure of the next command.
const ATTEMPTS: u32 = 8;
const TIMEOUT_MS: u32 = 30_000;
/// Room for 511 keys.
const ANSWER_BYTES: usize = 4096;

/// `struct sg_io_hdr`
#[repr(C)]
struct SgIo {
    interface: i32,
    direction: i32,
    command_len: u8,
    sense_room: u8,
    vectors: u16,
    data_len: u32,
    data: *mut u8,
    command: *mut u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    id: i32,
    user: *mut u8,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_len: u8,
    host_status: u16,
    driver_status: u16,
    residue: i32,
    duration_ms: u32,
    info: u32,
}

/// Keys and holder; [`ErrorKind::Unsupported`] for a disk without reservations, and for what is no
/// SCSI disk.
pub(super) fn read(file: &File) -> Result<Reservations, ErrorKind> {
    let keys = parse_keys(&ask(file, READ_KEYS)?);
    let holder = parse_holder(&ask(file, READ_RESERVATION)?);
    Ok(Reservations { keys, holder })
}

/// The answer to PERSISTENT RESERVE IN with this service action.
fn ask(file: &File, action: u8) -> Result<Vec<u8>, ErrorKind> {
    let mut data = vec![0u8; ANSWER_BYTES];
    let mut sense = [0u8; 64];
    let [high, low] = (ANSWER_BYTES as u16).to_be_bytes();
    let mut command = [PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, high, low, 0];
    for _ in 0..ATTEMPTS {
        let mut request = SgIo {
            interface: i32::from(b'S'),
            direction: SG_DXFER_FROM_DEV,
            command_len: command.len() as u8,
            sense_room: sense.len() as u8,
            vectors: 0,
            data_len: ANSWER_BYTES as u32,
            data: data.as_mut_ptr(),
            command: command.as_mut_ptr(),
            sense: sense.as_mut_ptr(),
            timeout_ms: TIMEOUT_MS,
            flags: 0,
            id: 0,
            user: std::ptr::null_mut(),
            status: 0,
            masked_status: 0,
            message_status: 0,
            sense_len: 0,
            host_status: 0,
            driver_status: 0,
            residue: 0,
            duration_ms: 0,
            info: 0,
        };
        // SAFETY: the request takes an `SgIo`. Its pointers lead to `data`, `command` and `sense`,
        // which live longer than the call and have the lengths that it names.
        let asked = unsafe { kernel::ioctl(file, SG_IO, &mut request) };
        asked.map_err(|error| kernel::kind_of(&error))?;
        match (request.status, sense_key(&sense[..usize::from(request.sense_len).min(64)])) {
            (0, _) if request.host_status == 0 => {
                let got = ANSWER_BYTES.saturating_sub(request.residue.max(0) as usize);
                data.truncate(got);
                return Ok(data);
            }
            (RESERVATION_CONFLICT, _) => return Err(ErrorKind::ReservationConflict),
            (CHECK_CONDITION, Some(ILLEGAL_REQUEST)) => return Err(ErrorKind::Unsupported),
            (CHECK_CONDITION, Some(UNIT_ATTENTION)) => {}
            _ => return Err(ErrorKind::Os { errno: libc::EIO }),
        }
    }
    Err(ErrorKind::Os { errno: libc::EIO })
}

/// The sense key of sense data, in either format.
fn sense_key(sense: &[u8]) -> Option<u8> {
    let at = match sense.first()? & 0x7f {
        0x70 | 0x71 => 2,
        0x72 | 0x73 => 1,
        _ => return None,
    };
    sense.get(at).map(|byte| byte & 0x0f)
}

/// The bytes behind the header of an answer: as many as the header says, and as there are.
fn body(answer: &[u8]) -> &[u8] {
    let Some((header, rest)) = answer.split_at_checked(8) else { return &[] };
    let len = header[4..].iter().fold(0usize, |len, byte| len << 8 | usize::from(*byte));
    &rest[..len.min(rest.len())]
}

fn key_at(bytes: &[u8]) -> Option<ReservationKey> {
    let bytes = bytes.first_chunk::<8>()?;
    Some(ReservationKey(u64::from_be_bytes(*bytes)))
}

fn parse_keys(answer: &[u8]) -> Vec<ReservationKey> {
    body(answer).chunks_exact(8).filter_map(key_at).collect()
}

fn parse_holder(answer: &[u8]) -> Option<ReservationKey> {
    key_at(body(answer))
}

#[cfg(test)]
mod tests;
