//! Calls of the kernel's ublk driver. Each blocks until the kernel has answered.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

use super::abi::{
    DeviceState, Info, Parameters, Queues, SECTOR_BYTES, control, control_command, new_device,
};
use super::front::{REQUEST_MAX_BYTES, requests_of_each};
use crate::devices::System;
use crate::error::AttachError;
use crate::files;
use crate::identity::Identity;

/// A volume to be attached by ublk.
#[derive(Debug)]
pub struct NewDevice {
    /// What is kept with the device. It has a queue for each of its connections.
    pub identity: Identity,
    /// Its size.
    pub size_bytes: u64,
    /// The unit of its reads and writes.
    pub block_bytes: u32,
    /// The kernel refuses writes.
    pub read_only: bool,
}

/// The kernel's ublk driver.
pub struct Control {
    file: File,
    ring: RefCell<IoUring<squeue::Entry128>>,
}

impl Control {
    /// Opens it. Fails with [`AttachError::NoUblk`] when the module is not loaded.
    pub fn open(system: &System) -> Result<Self, AttachError> {
        let file = files::open(&system.dev.join("ublk-control"));
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AttachError::NoUblk,
            io::ErrorKind::PermissionDenied => AttachError::NotPermitted,
            _ => AttachError::Refused { what: "open /dev/ublk-control", error },
        })?;
        let ring = IoUring::builder().build(2).map_err(AttachError::NoRing)?;
        Ok(Self { file, ring: RefCell::new(ring) })
    }

    /// Makes a device, which has no server yet; returns its number.
    pub fn add(&self, device: &NewDevice) -> Result<u32, AttachError> {
        let mark = device.identity.mark();
        let count = u16::try_from(device.identity.connections).unwrap_or(1).max(1);
        let queues = Queues { count, requests: requests_of_each(count) };
        let mut info = new_device(queues, REQUEST_MAX_BYTES, mark);
        self.call("make a device", control::ADD, u32::MAX, &mut info, 0)?;
        let index = Info::decode(&info).index;
        let parameters = Parameters {
            size_bytes: device.size_bytes,
            block_bytes: device.block_bytes,
            request_max_bytes: REQUEST_MAX_BYTES,
            read_only: device.read_only,
        };
        let mut bytes = parameters.encode();
        let set =
            self.call("take the size of a device", control::SET_PARAMETERS, index, &mut bytes, 0);
        if let Err(error) = set {
            let _ = self.remove(index);
            return Err(error);
        }
        Ok(index)
    }

    /// Shows the device, once the process `server` has fetched requests of it. Reads of the
    /// partition table go to that process meanwhile.
    pub fn start(&self, index: u32, server: u32) -> Result<(), AttachError> {
        self.call("start a device", control::START, index, &mut [], u64::from(server))
    }

    /// Begins to give a device another server. Its last one has ended.
    pub fn start_recovery(&self, index: u32) -> Result<(), AttachError> {
        self.call("give a device to another server", control::START_RECOVERY, index, &mut [], 0)
    }

    /// Goes on with the requests of a device, once the process `server` has fetched.
    pub fn end_recovery(&self, index: u32, server: u32) -> Result<(), AttachError> {
        let server = u64::from(server);
        self.call("go on with a device", control::END_RECOVERY, index, &mut [], server)
    }

    /// Gives a device another size. Fails with [`AttachError::Refused`] on kernels before 6.16.
    pub fn resize(&self, index: u32, size_bytes: u64) -> Result<(), AttachError> {
        let sectors = size_bytes / SECTOR_BYTES;
        self.call("change the size of a device", control::UPDATE_SIZE, index, &mut [], sectors)
    }

    /// Takes a device away. Requests that no server has fail.
    pub fn remove(&self, index: u32) -> Result<(), AttachError> {
        self.call("stop a device", control::STOP, index, &mut [], 0)?;
        self.call("take a device away", control::DELETE_LATER, index, &mut [], 0)
    }

    /// The state of a device and the process that serves it, if it is the one that `identity` was
    /// given to.
    #[must_use]
    pub fn look(&self, index: u32, identity: &Identity) -> Option<(DeviceState, u32)> {
        let info = self.describe(index).ok()?;
        (info.mark == identity.mark()).then_some((info.state, info.server))
    }

    /// The queues of a device.
    pub(super) fn queues(&self, index: u32) -> Result<Queues, AttachError> {
        self.describe(index).map(|info| info.queues)
    }

    fn describe(&self, index: u32) -> Result<Info, AttachError> {
        let mut bytes = [0; Info::BYTES];
        self.call("describe a device", control::GET_INFO, index, &mut bytes, 0)?;
        Ok(Info::decode(&bytes))
    }

    fn call(
        &self,
        what: &'static str,
        command: u32,
        index: u32,
        memory: &mut [u8],
        data: u64,
    ) -> Result<(), AttachError> {
        let place = match memory.is_empty() {
            true => (0, 0),
            false => (memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u16),
        };
        let bytes = control_command(index, place, data);
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command).cmd(bytes).build();
        let mut ring = self.ring.borrow_mut();
        // SAFETY: `memory` lives until this call returns, which is after the completion.
        unsafe { ring.submission().push(&entry) }.expect("an empty ring has room");
        let result = loop {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("a ring that was made takes its entries: {error}"),
                Ok(_) => {}
            }
            if let Some(completion) = ring.completion().next() {
                break completion.result();
            }
        };
        match -result {
            ..=0 => Ok(()),
            libc::EPERM | libc::EACCES => Err(AttachError::NotPermitted),
            number => {
                let error = io::Error::from_raw_os_error(number);
                Err(AttachError::Refused { what, error })
            }
        }
    }
}
