//! A layer that a test programs: it sees every command before and after the device, and decides.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer, Operation,
    ZeroOptions,
};

/// What a script answers, after as long as it likes.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A command as a script sees it.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The name of the device.
    pub device: &'a str,
    /// What is to be done.
    pub operation: Operation,
    /// The first byte.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
    /// Whether it must be durable when it is answered.
    pub fua: bool,
}

impl Command<'_> {
    /// Whether the command is not a read, a flush or a question.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        use Operation::{Discard, Write, WriteZeroes};
        matches!(self.operation, Write | Discard | WriteZeroes)
    }

    /// One past the last byte.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The device gets it.
    Run,
    /// It is acknowledged, and the device never gets it. Not for reads.
    Drop,
    /// It fails, and the device never gets it.
    Fail(ErrorKind),
}

/// What a [`Probe`] does with commands.
pub trait Script {
    /// Called when a command arrives. The command waits for the answer.
    fn before<'a>(&'a self, _command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(std::future::ready(Decision::Run))
    }

    /// Called when the device has completed a command without an error. The completion waits.
    fn after<'a>(&'a self, _command: Command<'a>) -> Answer<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A device whose commands go through a [`Script`]. Questions about allocation do not.
pub struct Probe<S> {
    inner: Device,
    script: Rc<S>,
}

impl<S: Script> Probe<S> {
    /// Puts `inner` below `script`, which other devices may share.
    #[must_use]
    pub fn new(inner: Device, script: Rc<S>) -> Rc<Self> {
        Rc::new(Self { inner, script })
    }

    async fn run<'a>(
        &'a self,
        operation: Operation,
        (offset_bytes, len_bytes, fua): (u64, u64, bool),
        call: impl FnOnce() -> DeviceFuture<'a, ()>,
    ) -> Result<(), DeviceError> {
        let device = self.inner.name();
        let command = Command { device, operation, offset_bytes, len_bytes, fua };
        match self.script.before(command).await {
            Decision::Run => {
                call().await?;
                self.script.after(command).await;
                Ok(())
            }
            Decision::Drop => Ok(()),
            Decision::Fail(kind) => {
                Err(DeviceError::new(device, operation, offset_bytes, len_bytes, kind))
            }
        }
    }
}

impl<S: Script> Layer for Probe<S> {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.run(Operation::Check, (0, 0, false), || self.inner.check_presence()))
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let (device, operation, len_bytes) =
                (self.inner.name(), Operation::Read, buf.len() as u64);
            let command = Command { device, operation, offset_bytes, len_bytes, fua: false };
            match self.script.before(command).await {
                Decision::Run => {}
                Decision::Drop => unreachable!("a read needs an answer"),
                Decision::Fail(kind) => {
                    let error = DeviceError::new(device, operation, offset_bytes, len_bytes, kind);
                    return Err(error);
                }
            }
            let buf = self.inner.read(offset_bytes, buf).await?;
            self.script.after(command).await;
            Ok(buf)
        })
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let range = (offset_bytes, data.len() as u64, fua);
        let call = move || self.inner.write(offset_bytes, data, fua);
        Box::pin(self.run(Operation::Write, range, call))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.run(Operation::Flush, (0, 0, false), || self.inner.flush()))
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = move || self.inner.discard(offset_bytes, len_bytes, fua);
        Box::pin(self.run(Operation::Discard, (offset_bytes, len_bytes, fua), call))
    }
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let range = (offset_bytes, len_bytes, options.fua);
        let call = move || self.inner.write_zeroes(offset_bytes, len_bytes, options);
        Box::pin(self.run(Operation::WriteZeroes, range, call))
    }
}
