//! Requests of the kernel's NBD client, as `<linux/nbd-netlink.h>` has them.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::netlink::Request;

/// The controller of generic netlink, which knows the numbers of families.
const CONTROLLER: u16 = 0x10;
const CONTROLLER_VERSION: u8 = 2;
const GET_FAMILY: u8 = 3;
pub(crate) const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The name and version of the NBD client's family.
const NBD: &str = "nbd";
const VERSION: u8 = 1;

mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
}

mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_BYTES: u16 = 3;
    pub(super) const TIMEOUT_SECS: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const CLIENT_FLAGS: u16 = 6;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_TIMEOUT_SECS: u16 = 8;
    pub(super) const IDENTIFIER: u16 = 10;
}

/// Attribute of the answer to a new device: its number.
pub(crate) const INDEX: u16 = attribute::INDEX;

const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// Asks for the number of the NBD client's family.
pub(crate) fn get_family(sequence: u32) -> Vec<u8> {
    let request = Request::new(CONTROLLER, GET_FAMILY, CONTROLLER_VERSION, sequence);
    request.text(FAMILY_NAME, NBD).finish()
}

/// A device to be made.
pub(crate) struct NewDevice<'a> {
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) timeout_secs: u64,
    pub(crate) dead_timeout_secs: u64,
    pub(crate) server_flags: u64,
    pub(crate) sockets: &'a [OwnedFd],
    pub(crate) identifier: &'a str,
}

/// Makes a device on a number that the kernel chooses.
pub(crate) fn connect(family: u16, sequence: u32, device: &NewDevice<'_>) -> Vec<u8> {
    let request = Request::new(family, command::CONNECT, VERSION, sequence)
        .u64(attribute::SIZE_BYTES, device.size_bytes)
        .u64(attribute::BLOCK_BYTES, u64::from(device.block_bytes))
        .u64(attribute::TIMEOUT_SECS, device.timeout_secs)
        .u64(attribute::DEAD_TIMEOUT_SECS, device.dead_timeout_secs)
        .u64(attribute::SERVER_FLAGS, device.server_flags)
        .u64(attribute::CLIENT_FLAGS, 0)
        .text(attribute::IDENTIFIER, device.identifier);
    with_sockets(request, device.sockets).finish()
}

/// Gives a device sockets in the place of those that are dead.
pub(crate) fn reconnect(
    family: u16,
    sequence: u32,
    index: u32,
    identifier: &str,
    sockets: &[OwnedFd],
) -> Vec<u8> {
    with_sockets(reconfigure(family, sequence, index, identifier), sockets).finish()
}

/// Changes the size of a device.
pub(crate) fn resize(
    family: u16,
    sequence: u32,
    index: u32,
    identifier: &str,
    size_bytes: u64,
) -> Vec<u8> {
    let request = reconfigure(family, sequence, index, identifier);
    request.u64(attribute::SIZE_BYTES, size_bytes).finish()
}

/// Takes a device away.
pub(crate) fn disconnect(family: u16, sequence: u32, index: u32) -> Vec<u8> {
    let request = Request::new(family, command::DISCONNECT, VERSION, sequence);
    request.u32(attribute::INDEX, index).finish()
}

fn reconfigure(family: u16, sequence: u32, index: u32, identifier: &str) -> Request {
    Request::new(family, command::RECONFIGURE, VERSION, sequence)
        .u32(attribute::INDEX, index)
        .text(attribute::IDENTIFIER, identifier)
}

fn with_sockets(request: Request, sockets: &[OwnedFd]) -> Request {
    request.nested(attribute::SOCKETS, |list| {
        sockets.iter().fold(list, |list, socket| {
            list.nested(SOCKET_ITEM, |item| item.u32(SOCKET_FD, socket.as_raw_fd() as u32))
        })
    })
}
