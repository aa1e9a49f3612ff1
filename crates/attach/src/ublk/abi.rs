//! Commands of the kernel's ublk driver, as `<linux/ublk_cmd.h>` has them.

use crate::error::MessageError;

/// Bytes of a sector, in which the driver counts.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Bytes of the description of one request, in the memory that the driver shares.
pub(crate) const DESCRIPTOR_BYTES: usize = 24;

const fn ioctl(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const CONTROL_BYTES: u32 = 32;
const IO_BYTES: u32 = 16;

/// Commands to `/dev/ublk-control`.
pub(crate) mod control {
    use super::{CONTROL_BYTES, READ, READ_WRITE, ioctl};

    pub(crate) const GET_INFO: u32 = ioctl(READ, 0x02, CONTROL_BYTES);
    pub(crate) const ADD: u32 = ioctl(READ_WRITE, 0x04, CONTROL_BYTES);
    pub(crate) const START: u32 = ioctl(READ_WRITE, 0x06, CONTROL_BYTES);
    pub(crate) const STOP: u32 = ioctl(READ_WRITE, 0x07, CONTROL_BYTES);
    pub(crate) const SET_PARAMETERS: u32 = ioctl(READ_WRITE, 0x08, CONTROL_BYTES);
    pub(crate) const START_RECOVERY: u32 = ioctl(READ_WRITE, 0x10, CONTROL_BYTES);
    pub(crate) const END_RECOVERY: u32 = ioctl(READ_WRITE, 0x11, CONTROL_BYTES);
    pub(crate) const DELETE_LATER: u32 = ioctl(READ, 0x14, CONTROL_BYTES);
    /// Since Linux 6.16.
    pub(crate) const UPDATE_SIZE: u32 = ioctl(READ_WRITE, 0x15, CONTROL_BYTES);
}

/// Commands to the character device of one block device.
pub(crate) mod io {
    use super::{IO_BYTES, READ_WRITE, ioctl};

    pub(crate) const FETCH: u32 = ioctl(READ_WRITE, 0x20, IO_BYTES);
    pub(crate) const COMMIT_AND_FETCH: u32 = ioctl(READ_WRITE, 0x21, IO_BYTES);
}

mod flag {
    pub(super) const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that a dead server had are given to the next one.
    pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(super) const IOCTL_ENCODING: u64 = 1 << 6;
}

/// No queue: the command is for the whole device.
const NO_QUEUE: u16 = u16::MAX;

/// A command to `/dev/ublk-control`, in the last 80 bytes of a submission.
pub(crate) fn control_command(index: u32, memory: (u64, u16), data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    let (address, len) = memory;
    bytes[..4].copy_from_slice(&index.to_ne_bytes());
    bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// A command to a character device: the answer to the request that `tag` of `queue` had, and the
/// memory at `address` for the next one.
pub(crate) fn io_command(queue: u16, tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes[8..].copy_from_slice(&address.to_ne_bytes());
    bytes
}

/// What the driver does with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It is not started, or is being taken away.
    Dead,
    /// A server has it.
    Live,
    /// Its server has ended; requests wait for the next one.
    Quiesced,
    /// A state that this program does not know.
    Other(u16),
}

/// The queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    pub(crate) count: u16,
    /// Requests under way at once, in each of them.
    pub(crate) requests: u16,
}

impl Queues {
    /// Where the descriptions of a queue's requests are in the character device.
    pub(crate) fn offset_bytes(queue: u16) -> u64 {
        const REQUESTS_MAX: u64 = 4096;
        u64::from(queue) * REQUESTS_MAX * DESCRIPTOR_BYTES as u64
    }
}

/// What the driver knows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) index: u32,
    pub(crate) queues: Queues,
    pub(crate) state: DeviceState,
    /// The process that serves it.
    pub(crate) server: u32,
    /// A number that the driver keeps for its user.
    pub(crate) mark: u64,
}

/// A new device: its number is the driver's choice.
pub(crate) fn new_device(queues: Queues, request_max_bytes: u32, mark: u64) -> [u8; Info::BYTES] {
    let mut bytes = [0; Info::BYTES];
    bytes[..2].copy_from_slice(&queues.count.to_ne_bytes());
    bytes[2..4].copy_from_slice(&queues.requests.to_ne_bytes());
    bytes[8..12].copy_from_slice(&request_max_bytes.to_ne_bytes());
    bytes[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
    let flags = flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | flag::IOCTL_ENCODING;
    bytes[24..32].copy_from_slice(&flags.to_ne_bytes());
    bytes[32..40].copy_from_slice(&mark.to_ne_bytes());
    bytes
}

impl Info {
    pub(crate) const BYTES: usize = 64;

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let state = short(4);
        Self {
            index: word(12),
            queues: Queues { count: short(0), requests: short(2) },
            state: match state {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                other => DeviceState::Other(other),
            },
            server: word(16),
            mark: u64::from_ne_bytes(bytes[32..40].try_into().expect("8 bytes")),
        }
    }
}

/// Limits and sizes of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) request_max_bytes: u32,
    pub(crate) read_only: bool,
}

impl Parameters {
    pub(crate) const BYTES: usize = 60;

    /// Without a volatile cache: the kernel counts on each write that was answered.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        const BASIC_AND_DISCARD: u32 = 3;
        const READ_ONLY: u32 = 1;
        /// A GiB: longer ranges come in parts.
        const ERASE_MAX_SECTORS: u32 = 1 << 21;
        const PAGE_SHIFT: u8 = 12;
        let block_shift = self.block_bytes.trailing_zeros() as u8;
        let sectors = |bytes: u64| bytes / SECTOR_BYTES;
        let mut bytes = [0; Self::BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(Self::BYTES as u32).to_ne_bytes());
        put(4, &BASIC_AND_DISCARD.to_ne_bytes());
        put(8, &if self.read_only { READ_ONLY } else { 0 }.to_ne_bytes());
        put(12, &[block_shift, PAGE_SHIFT, PAGE_SHIFT, block_shift]);
        put(16, &(sectors(u64::from(self.request_max_bytes)) as u32).to_ne_bytes());
        put(24, &sectors(self.size_bytes).to_ne_bytes());
        put(44, &self.block_bytes.to_ne_bytes());
        put(48, &ERASE_MAX_SECTORS.to_ne_bytes());
        put(52, &ERASE_MAX_SECTORS.to_ne_bytes());
        put(56, &1_u16.to_ne_bytes());
        bytes
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes { no_hole: bool },
}

/// One request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

impl Request {
    /// Reads the description of a request.
    pub(crate) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<Self, MessageError> {
        const NO_UNMAP: u32 = 1 << 15;
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let (operation, sectors) = (word(0), word(4));
        let start = u64::from_ne_bytes(bytes[8..16].try_into().expect("8 bytes"));
        let kind = match operation & 0xff {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Flush,
            3 => Kind::Discard,
            5 => Kind::WriteZeroes { no_hole: operation & NO_UNMAP != 0 },
            _ => return Err(MessageError::Missing { what: "known operation" }),
        };
        let offset_bytes = start.checked_mul(SECTOR_BYTES);
        let offset_bytes = offset_bytes.ok_or(MessageError::Missing { what: "valid offset" })?;
        Ok(Self { kind, offset_bytes, len_bytes: u64::from(sectors) * SECTOR_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that a C program prints for the macros of the header.
    #[test]
    fn commands_have_the_numbers_of_the_header() {
        assert_eq!(control::GET_INFO, 0x8020_7502);
        assert_eq!(control::ADD, 0xc020_7504);
        assert_eq!(control::DELETE_LATER, 0x8020_7514);
        assert_eq!(control::UPDATE_SIZE, 0xc020_7515);
        assert_eq!(io::FETCH, 0xc010_7520);
        assert_eq!(io::COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn a_new_device_reads_back_as_its_information() {
        let queues = Queues { count: 4, requests: 32 };
        let mut bytes = new_device(queues, 128 << 10, 0x1234_5678_9abc);
        bytes[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[16..20].copy_from_slice(&77_u32.to_ne_bytes());
        let info = Info::decode(&bytes);
        let state = DeviceState::Quiesced;
        let (index, mark) = (u32::MAX, 0x1234_5678_9abc);
        assert_eq!(info, Info { index, queues, state, server: 77, mark });
    }

    #[test]
    fn requests_are_read_and_unknown_ones_refused() {
        let described = |operation: u32, sectors: u32, start: u64| {
            let mut bytes = [0; DESCRIPTOR_BYTES];
            bytes[..4].copy_from_slice(&operation.to_ne_bytes());
            bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
            bytes[8..16].copy_from_slice(&start.to_ne_bytes());
            Request::decode(&bytes)
        };
        let write = Request { kind: Kind::Write, offset_bytes: 4096, len_bytes: 1024 };
        assert_eq!(described(1 | 1 << 13, 2, 8), Ok(write));
        let zeroes = described(5 | 1 << 15, 1, 0).unwrap();
        assert_eq!(zeroes.kind, Kind::WriteZeroes { no_hole: true });
        assert!(described(4, 1, 0).is_err(), "write same");
        assert!(described(0, 1, u64::MAX / 256).is_err(), "past all bytes");
    }
}
