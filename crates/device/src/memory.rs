//! A device in memory: for examples, ceilings and tests of what lies above.

use std::cell::RefCell;

use crate::{
    BlockDevice, DeviceError, DeviceFuture, Geometry, IoBuf, IoBytes, Operation, check_range,
};

/// A device that lives and dies with the process. It is durable in no sense.
pub struct MemoryDevice {
    name: String,
    geometry: Geometry,
    bytes: RefCell<Vec<u8>>,
}

impl MemoryDevice {
    /// `size_bytes` of zeros.
    #[must_use]
    pub fn new(name: &str, size_bytes: u64) -> Self {
        let geometry = Geometry {
            size_bytes,
            block_bytes: 512,
            volatile_cache: true,
            discard_bytes: 4096,
            read_only: false,
        };
        let bytes = RefCell::new(vec![0; usize::try_from(size_bytes).expect("fits in memory")]);
        Self { name: name.to_owned(), geometry, bytes }
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, &self.geometry, op, offset, len)
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.check(Operation::Read, offset_bytes, buf.len() as u64)?;
            let start = offset_bytes as usize;
            let len = buf.len();
            buf.copy_from_slice(&self.bytes.borrow()[start..start + len]);
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Write, offset_bytes, data.len() as u64)?;
            let start = offset_bytes as usize;
            self.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(&data);
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Discard, offset_bytes, len_bytes)?;
            let start = offset_bytes as usize;
            self.bytes.borrow_mut()[start..start + len_bytes as usize].fill(0);
            Ok(())
        })
    }
}
