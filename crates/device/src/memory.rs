//! A device in memory: for examples, ceilings and tests of what lies above.

use std::cell::RefCell;

use crate::{
    BlockDevice, DeviceError, DeviceFuture, Geometry, IoBuf, IoBytes, Operation, check_range,
};

/// Reading memory that was never written to costs a page fault for each page, and tests make many
/// devices. So it is known in chunks what was written; the rest is zeros.
const CHUNK_BYTES: usize = 64 << 10;

struct Bytes {
    bytes: Vec<u8>,
    is_written: Vec<bool>,
}

impl Bytes {
    fn read(&self, offset: usize, into: &mut [u8]) {
        let mut at = offset;
        for piece in pieces(offset, into) {
            let end = at + piece.len();
            if self.is_written[at / CHUNK_BYTES] {
                piece.copy_from_slice(&self.bytes[at..end]);
            } else {
                piece.fill(0);
            }
            at = end;
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.bytes[offset..offset + data.len()].copy_from_slice(data);
        if let Some(last) = data.len().checked_sub(1) {
            self.is_written[offset / CHUNK_BYTES..=(offset + last) / CHUNK_BYTES].fill(true);
        }
    }

    fn clear(&mut self, offset: usize, len: usize) {
        for chunk in offset / CHUNK_BYTES..(offset + len).div_ceil(CHUNK_BYTES) {
            if self.is_written[chunk] {
                let start = offset.max(chunk * CHUNK_BYTES);
                let end = (offset + len).min((chunk + 1) * CHUNK_BYTES);
                self.bytes[start..end].fill(0);
            }
        }
    }
}

/// The parts of `into`, which is read from `offset`, that lie in one chunk each.
fn pieces(offset: usize, into: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = (CHUNK_BYTES - offset % CHUNK_BYTES).min(into.len());
    let (head, tail) = into.split_at_mut(first);
    std::iter::once(head).chain(tail.chunks_mut(CHUNK_BYTES)).filter(|piece| !piece.is_empty())
}

/// A device that lives and dies with the process. It is durable in no sense.
pub struct MemoryDevice {
    name: String,
    geometry: Geometry,
    bytes: RefCell<Bytes>,
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
        let size = usize::try_from(size_bytes).expect("fits in memory");
        let is_written = vec![false; size.div_ceil(CHUNK_BYTES)];
        let bytes = RefCell::new(Bytes { bytes: vec![0; size], is_written });
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
            self.bytes.borrow().read(offset_bytes as usize, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Write, offset_bytes, data.len() as u64)?;
            self.bytes.borrow_mut().write(offset_bytes as usize, &data);
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Discard, offset_bytes, len_bytes)?;
            self.bytes.borrow_mut().clear(offset_bytes as usize, len_bytes as usize);
            Ok(())
        })
    }
}
