//! Restores: the image goes to a new memory, while the device is used.

use std::rc::Rc;

use forebay_device::{
    Cause, DeviceError, DramReason, DramState, ErrorKind, IoBuf, IoBytes, Operation,
};
use forebay_format::dram::{IMAGE_START_BYTES, content_start_bytes};

use crate::device::Shared;
use crate::host::Host;

/// Bytes of a command.
const COMMAND_BYTES: u64 = 1 << 20;

/// How far a restore is.
#[derive(Default)]
pub(crate) struct Restoring {
    /// Bytes before this place are in the memory.
    done_bytes: u64,
    /// The end of what is being read.
    window_end_bytes: u64,
    /// What was written meanwhile to what is being read: place and content, in order.
    overlay: Vec<(u64, IoBytes)>,
}

impl Restoring {
    /// Whether the memory has the range.
    pub fn has(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes + len_bytes <= self.done_bytes
    }
}

impl Shared {
    /// A write to the image has ended: the memory gets what it has of the range, or is about to
    /// have. The rest is read from the image when the restore comes to it.
    pub fn follow(&self, offset_bytes: u64, data: &IoBytes) {
        let memory = self.memory.borrow();
        let Some(memory) = &*memory else { return };
        let mut restoring = self.restoring.borrow_mut();
        let Some(restoring) = &mut *restoring else {
            memory.write(self.content_start() + offset_bytes, data);
            return;
        };
        let in_memory = restoring.done_bytes.saturating_sub(offset_bytes).min(data.len() as u64);
        memory.write(self.content_start() + offset_bytes, &data[..in_memory as usize]);
        let end_bytes = offset_bytes + data.len() as u64;
        if end_bytes > restoring.done_bytes && offset_bytes < restoring.window_end_bytes {
            restoring.overlay.push((offset_bytes, data.clone()));
        }
    }

    /// Makes the memory and fills it. If that fails, the device goes on without, and the next round
    /// tries again.
    pub async fn restore(self: Rc<Self>, host: &dyn Host) {
        let _turn = self.turn.lock().await;
        if self.is_closed.get() {
            return;
        }
        let path = self.header.borrow().memory.clone();
        let len_bytes = content_start_bytes(self.size_bytes()) + self.size_bytes();
        let made = host.create_memory(&path, len_bytes).await;
        match made {
            Ok(memory) => {
                *self.restoring.borrow_mut() = Some(Restoring::default());
                *self.memory.borrow_mut() = Some(memory);
            }
            Err(error) => {
                let error = DeviceError::os(&path, Operation::Open, 0, len_bytes, &error);
                let cause = Cause::new(error);
                *self.reason.borrow_mut() = Some(DramReason::NoMemory { cause });
                return;
            }
        }
        self.set_state(DramState::Restoring, None);
        let filled = self.fill().await;
        *self.restoring.borrow_mut() = None;
        match filled {
            Ok(()) => self.set_state(DramState::Restored, None),
            Err(error) => {
                *self.memory.borrow_mut() = None;
                let cause = Cause::new(error);
                self.set_state(DramState::Saved, Some(DramReason::BackupFailed { cause }));
            }
        }
    }

    async fn fill(&self) -> Result<(), DeviceError> {
        let backup = self.backup.clone().expect("it has the image");
        let mut start = 0;
        while start < self.size_bytes() {
            let end = (start + COMMAND_BYTES).min(self.size_bytes());
            if let Some(restoring) = &mut *self.restoring.borrow_mut() {
                restoring.window_end_bytes = end;
            }
            let buf = IoBuf::zeroed((end - start) as usize);
            let mut read = backup.read(IMAGE_START_BYTES + start, buf).await?;
            let gone = || self.error(Operation::Read, start, end - start, ErrorKind::Gone);
            if self.is_closed.get() {
                return Err(gone());
            }
            let mut restoring = self.restoring.borrow_mut();
            let restoring = restoring.as_mut().ok_or_else(gone)?;
            for (offset, data) in restoring.overlay.drain(..) {
                let (from, to) = (offset.max(start), (offset + data.len() as u64).min(end));
                let part = &data[(from - offset) as usize..(to - offset) as usize];
                read[(from - start) as usize..][..part.len()].copy_from_slice(part);
            }
            let memory = self.memory.borrow();
            memory.as_ref().ok_or_else(gone)?.write(self.content_start() + start, &read);
            restoring.done_bytes = end;
            start = end;
        }
        Ok(())
    }
}
