//! A sequential read of one side of a ring, once round, in large chunks ahead of its reader.

use std::collections::VecDeque;

use forebay_device::{DeviceError, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN};

use crate::config::Side;

/// Bytes of one read. Devices gain little from longer reads.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// Reads in flight at a time.
const CHUNKS_AHEAD: usize = 4;

enum Content {
    Reading(rt::JoinHandle<Result<IoBuf, DeviceError>>),
    Ready(IoBytes),
    Failed(DeviceError),
}

struct Chunk {
    start: u64,
    len: u64,
    content: Content,
}

/// Positions count from where the stream began: position 0 is `origin_bytes` of the ring. The part
/// of the ring before the origin comes last.
pub(crate) struct Stream {
    side: Side,
    origin_bytes: u64,
    ring_len_bytes: u64,
    chunks: VecDeque<Chunk>,
    next: u64,
}

impl Stream {
    /// Reads `side` from position `at` on.
    pub(crate) fn new(side: Side, origin_bytes: u64, ring_len_bytes: u64, at: u64) -> Self {
        Self { side, origin_bytes, ring_len_bytes, chunks: VecDeque::new(), next: at }
    }

    fn read_ahead(&mut self) {
        while self.chunks.len() < CHUNKS_AHEAD && self.next < self.ring_len_bytes {
            let physical = (self.origin_bytes + self.next) % self.ring_len_bytes;
            let to_end = self.ring_len_bytes - physical;
            let len = CHUNK_BYTES.min(self.ring_len_bytes - self.next).min(to_end);
            let (device, offset) = (self.side.device.clone(), self.side.start_bytes + physical);
            let handle =
                rt::spawn(async move { device.read(offset, IoBuf::recycled(len as usize)).await });
            self.chunks.push_back(Chunk {
                start: self.next,
                len,
                content: Content::Reading(handle),
            });
            self.next += len;
        }
    }

    async fn chunk(&mut self, at: usize) -> Result<(u64, IoBytes), DeviceError> {
        let chunk = &mut self.chunks[at];
        if let Content::Reading(handle) = &mut chunk.content {
            chunk.content = match handle.await {
                Ok(buf) => Content::Ready(buf.freeze()),
                Err(error) => Content::Failed(error),
            };
        }
        match &chunk.content {
            Content::Ready(bytes) => Ok((chunk.start, bytes.clone())),
            Content::Failed(error) => Err(error.clone()),
            Content::Reading(_) => unreachable!("waited for above"),
        }
    }

    /// Reads ahead from `at` on. Positions of later calls must not decrease.
    fn go_to(&mut self, at: u64) {
        while self.chunks.front().is_some_and(|chunk| chunk.start + chunk.len <= at) {
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            self.next = at;
        }
        self.read_ahead();
    }

    /// Position of the first block from `at` on that begins with `magic`; the end of the chunk in
    /// memory when that chunk has no such block.
    pub(crate) async fn seek(&mut self, at: u64, magic: [u8; 4]) -> Result<u64, DeviceError> {
        self.go_to(at);
        let (start, bytes) = self.chunk(0).await?;
        let blocks = bytes[(at - start) as usize..].chunks_exact(BLOCK_LEN);
        let passed = blocks.take_while(|block| block[..magic.len()] != magic).count();
        Ok(at + passed as u64 * BLOCK_BYTES)
    }

    /// Returns `len` bytes from `at` on. `at` must not be before the last call's. The range must
    /// not cross the end of the ring, nor be longer than [`CHUNK_BYTES`].
    pub(crate) async fn get(&mut self, at: u64, len: usize) -> Result<IoBytes, DeviceError> {
        self.go_to(at);
        let (start, first) = self.chunk(0).await?;
        let skip = (at - start) as usize;
        if skip + len <= first.len() {
            return Ok(first.slice(skip, len));
        }
        // The chunk behind the first ends in or behind the range.
        let (_, second) = self.chunk(1).await?;
        let filled = first.len() - skip;
        let mut whole = IoBuf::recycled(len);
        whole[..filled].copy_from_slice(&first[skip..]);
        whole[filled..].copy_from_slice(&second[..len - filled]);
        Ok(whole.freeze())
    }
}
