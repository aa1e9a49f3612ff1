//! Calls of the kernel's NBD client. Each blocks until the kernel has answered.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use forebay_rt::sys;

use crate::devices::Attached;
use crate::error::{AttachError, MessageError};
use crate::identity::Identity;
use crate::nbd;
use crate::netlink::{Body, answers};

/// Longer than any answer.
const ANSWER_MAX_BYTES: usize = 32 << 10;

/// A volume to be attached.
#[derive(Debug)]
pub struct Connect {
    /// What the kernel keeps with the device.
    pub identity: Identity,
    /// Its size.
    pub size_bytes: u64,
    /// The unit of its reads and writes.
    pub block_bytes: u32,
    /// Flags of the export, as the NBD handshake gave them.
    pub server_flags: u16,
    /// Seconds after which a connection that does not answer a request is given up.
    pub timeout_secs: u64,
    /// Seconds for which requests wait when there is no connection; then they fail.
    pub dead_timeout_secs: u64,
    /// Connections on which the handshake has ended.
    pub sockets: Vec<OwnedFd>,
}

/// The kernel's NBD client.
pub struct Kernel {
    socket: File,
    family: u16,
    sequence: Cell<u32>,
}

impl Kernel {
    /// Opens a channel to it. Fails with [`AttachError::NoClient`] when the module is not loaded.
    pub fn open() -> Result<Self, AttachError> {
        let socket = sys::generic_netlink_socket().map_err(AttachError::NoNetlink)?;
        let mut kernel = Self { socket: socket.into(), family: 0, sequence: Cell::new(0) };
        let request = nbd::get_family(kernel.next());
        let family = kernel.ask("name its NBD client", &request, |data| {
            data.u16(nbd::FAMILY_ID, "number of a family")
        });
        kernel.family = match family {
            Ok(family) => family.ok_or(MessageError::Missing { what: "number of a family" })?,
            Err(AttachError::Refused { error, .. })
                if error.raw_os_error() == Some(libc::ENOENT) =>
            {
                return Err(AttachError::NoClient);
            }
            Err(e) => return Err(e),
        };
        Ok(kernel)
    }

    /// Makes a device; returns its number.
    pub fn connect(&self, device: &Connect) -> Result<u32, AttachError> {
        let new = nbd::NewDevice {
            size_bytes: device.size_bytes,
            block_bytes: device.block_bytes,
            timeout_secs: device.timeout_secs,
            dead_timeout_secs: device.dead_timeout_secs,
            server_flags: u64::from(device.server_flags),
            sockets: &device.sockets,
            identifier: &device.identity.encode(),
        };
        let request = nbd::connect(self.family, self.next(), &new);
        let index = self
            .ask("make a device", &request, |data| data.u32(nbd::INDEX, "number of the device"))?;
        Ok(index.ok_or(MessageError::Missing { what: "number of the device" })?)
    }

    /// Gives a device `sockets` in the place of dead ones. Those that it does not need are closed.
    pub fn reconnect(&self, device: &Attached, sockets: &[OwnedFd]) -> Result<(), AttachError> {
        let identifier = device.identity.encode();
        let request = nbd::reconnect(self.family, self.next(), device.index, &identifier, sockets);
        self.tell("connect a device again", &request)
    }

    /// Changes the size of a device. The kernel waits for its requests in flight: some connection
    /// must be alive.
    pub fn resize(&self, device: &Attached, size_bytes: u64) -> Result<(), AttachError> {
        let identifier = device.identity.encode();
        let request = nbd::resize(self.family, self.next(), device.index, &identifier, size_bytes);
        self.tell("change the size of a device", &request)
    }

    /// Takes a device away. Requests in flight fail.
    pub fn disconnect(&self, index: u32) -> Result<(), AttachError> {
        let request = nbd::disconnect(self.family, self.next(), index);
        self.tell("take a device away", &request)
    }

    fn next(&self) -> u32 {
        let next = self.sequence.get().wrapping_add(1);
        self.sequence.set(next);
        next
    }

    fn tell(&self, what: &'static str, request: &[u8]) -> Result<(), AttachError> {
        self.ask(what, request, |_| Ok(())).map(|_| ())
    }

    /// Sends `request` and reads up to its acknowledgment. `take` reads the data that comes before.
    fn ask<T>(
        &self,
        what: &'static str,
        request: &[u8],
        take: impl Fn(crate::netlink::Attributes<'_>) -> Result<T, MessageError>,
    ) -> Result<Option<T>, AttachError> {
        (&self.socket).write_all(request).map_err(AttachError::NoNetlink)?;
        let mut buf = vec![0; ANSWER_MAX_BYTES];
        let mut taken = None;
        loop {
            let len = (&self.socket).read(&mut buf).map_err(AttachError::NoNetlink)?;
            if len == 0 {
                return Err(AttachError::NoNetlink(io::ErrorKind::UnexpectedEof.into()));
            }
            for answer in answers(&buf[..len])? {
                if answer.sequence != self.sequence.get() {
                    continue;
                }
                match answer.body {
                    Body::Data(data) => taken = Some(take(data)?),
                    Body::Acknowledged => return Ok(taken),
                    Body::Failed(libc::EPERM) => return Err(AttachError::NotPermitted),
                    Body::Failed(number) => {
                        let error = io::Error::from_raw_os_error(number);
                        return Err(AttachError::Refused { what, error });
                    }
                }
            }
        }
    }
}
