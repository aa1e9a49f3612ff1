//! One request of a guest: descriptors to a command, and the command on the device.

use std::cell::Cell;

use forebay_device::{Device, DeviceError, IoBuf, ZeroOptions};
use virtio_queue::DescriptorChain;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::config::SECTOR_BYTES;
use crate::limits::{BASE_CHARGE_BYTES, RANGE_MAX_SECTORS, RANGES_MAX};
use crate::memory::{Memory, Piece};

const HEADER_BYTES: u32 = 16;
const RANGE_BYTES: usize = 16;
/// A guest gets its disk's name in a field of this length.
const ID_BYTES: usize = 20;
/// A flag of a range of zeros: the space may be given back.
const UNMAP: u32 = 1;

const STATUS_OK: u8 = 0;
const STATUS_ERROR: u8 = 1;
const STATUS_UNSUPPORTED: u8 = 2;

/// Types of requests.
mod kind {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// Why a guest loses its connection.
pub(crate) type Broken = &'static str;

/// The device, and what its guest has agreed on.
pub(crate) struct Target {
    pub(crate) device: Device,
    /// What the guest is told as the disk's serial number.
    pub(crate) id: String,
    pub(crate) read_only: bool,
    /// Whether the guest knows how to flush.
    pub(crate) flushes: Cell<bool>,
    /// Whether the guest wants a write cache.
    pub(crate) is_writeback: Cell<bool>,
    pub(crate) request_max_bytes: u32,
    /// An earlier run of the server has lost writes that the guest may take for written.
    pub(crate) must_fail_flush: Cell<bool>,
    /// Writes to the cache that have completed.
    pub(crate) cached_writes: Cell<u64>,
    /// Those of them that a flush has covered.
    pub(crate) flushed_writes: Cell<u64>,
}

impl Target {
    /// Whether writes may complete before they are durable.
    fn has_write_cache(&self) -> bool {
        self.flushes.get() && self.is_writeback.get()
    }

    /// Whether writes have completed that no flush has covered.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.cached_writes.get() > self.flushed_writes.get()
    }

    /// Makes the writes that have completed durable.
    pub(crate) async fn flush(&self) -> Result<(), DeviceError> {
        let covered = self.cached_writes.get();
        self.device.flush().await?;
        self.flushed_writes.set(covered.max(self.flushed_writes.get()));
        Ok(())
    }

    fn note_write(&self, fua: bool) {
        if !fua {
            self.cached_writes.set(self.cached_writes.get() + 1);
        }
    }
}

/// A request as it was found in the ring. Nothing of it is read from the guest's memory again but
/// the data.
pub(crate) struct Request {
    kind: u32,
    sector: u64,
    /// Data that the guest sends.
    outgoing: Vec<Piece>,
    outgoing_bytes: u64,
    /// Where the guest wants data.
    incoming: Vec<Piece>,
    incoming_bytes: u64,
    status: GuestAddress,
}

/// What the guest gets to know.
pub(crate) struct Answer {
    status: u8,
    data: Option<IoBuf>,
}

impl Answer {
    /// Whether the device has failed the request.
    pub(crate) fn is_failure(&self) -> bool {
        self.status == STATUS_ERROR
    }
}

impl Request {
    /// Reads the descriptors of a request.
    pub(crate) fn parse(
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &Memory,
    ) -> Result<Self, Broken> {
        let (mut outgoing, mut incoming): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        let mut has_next = true;
        for descriptor in chain {
            has_next = descriptor.has_next();
            let pieces = match (descriptor.is_write_only(), incoming.is_empty()) {
                (true, _) => &mut incoming,
                (false, true) => &mut outgoing,
                (false, false) => return Err("data to read behind data to write"),
            };
            if descriptor.len() > 0 {
                pieces.push((descriptor.addr(), descriptor.len()));
            }
        }
        if has_next {
            return Err("a chain of descriptors that has no end");
        }
        if !memory.has(&outgoing) || !memory.has(&incoming) {
            return Err("a descriptor outside of the memory");
        }
        let mut header = [0; HEADER_BYTES as usize];
        let head = take_front(&mut outgoing, HEADER_BYTES).ok_or("a request without a header")?;
        memory.gather(&head, &mut header).map_err(|_| "a header outside of the memory")?;
        let status =
            take_last_byte(&mut incoming).ok_or("a request without room for its status")?;
        let sum = |pieces: &[Piece]| pieces.iter().map(|(_, len)| u64::from(*len)).sum();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        Ok(Self {
            kind: word(0),
            sector: u64::from(word(8)) | u64::from(word(12)) << 32,
            outgoing_bytes: sum(&outgoing),
            incoming_bytes: sum(&incoming),
            outgoing,
            incoming,
            status,
        })
    }

    /// Memory that the request takes while it runs. One that is too long is refused before that.
    pub(crate) fn charge_bytes(&self, target: &Target) -> u64 {
        let data = self.outgoing_bytes.max(self.incoming_bytes);
        let is_refused = data > u64::from(target.request_max_bytes);
        BASE_CHARGE_BYTES + if is_refused { 0 } else { data }
    }

    /// Performs the request.
    pub(crate) async fn perform(&self, target: &Target, memory: &Memory) -> Answer {
        let done = match self.kind {
            kind::READ => return self.read(target).await,
            kind::WRITE => self.write(target, memory).await,
            kind::FLUSH => flush(target).await,
            kind::DISCARD | kind::WRITE_ZEROES => self.erase(target, memory).await,
            kind::GET_ID => return self.id(target),
            _ => Err(STATUS_UNSUPPORTED),
        };
        Answer { status: done.err().unwrap_or(STATUS_OK), data: None }
    }

    /// Puts `answer` into the guest's memory. Returns the bytes that were written there.
    pub(crate) fn answer(&self, answer: &Answer, memory: &Memory) -> Result<u32, Broken> {
        let data = answer.data.as_deref().unwrap_or_default();
        let gone = |_| "memory that is not there any more";
        memory.scatter(data, &self.incoming).map_err(gone)?;
        memory.scatter(&[answer.status], &[(self.status, 1)]).map_err(gone)?;
        Ok(data.len() as u32 + 1)
    }

    /// Where a transfer of `len` bytes starts, when it is one that the device may be asked for.
    fn offset(&self, target: &Target, len: u64) -> Result<u64, u8> {
        let fits = len > 0 && len % SECTOR_BYTES == 0 && len <= u64::from(target.request_max_bytes);
        if !fits {
            return Err(STATUS_ERROR);
        }
        place(target, self.sector, len)
    }

    async fn read(&self, target: &Target) -> Answer {
        let failed = |status| Answer { status, data: None };
        let offset = match self.offset(target, self.incoming_bytes) {
            Ok(offset) => offset,
            Err(status) => return failed(status),
        };
        match target.device.read(offset, IoBuf::recycled(self.incoming_bytes as usize)).await {
            Ok(data) => Answer { status: STATUS_OK, data: Some(data) },
            Err(e) => failed(status_of(&e)),
        }
    }

    async fn write(&self, target: &Target, memory: &Memory) -> Result<(), u8> {
        let offset = self.offset(target, self.outgoing_bytes)?;
        refuse_if_read_only(target)?;
        let mut data = IoBuf::recycled(self.outgoing_bytes as usize);
        memory.gather(&self.outgoing, &mut data).map_err(|_| STATUS_ERROR)?;
        let fua = !target.has_write_cache();
        target.device.write(offset, data.freeze(), fua).await.map_err(|e| status_of(&e))?;
        target.note_write(fua);
        Ok(())
    }

    async fn erase(&self, target: &Target, memory: &Memory) -> Result<(), u8> {
        refuse_if_read_only(target)?;
        let count = self.outgoing_bytes / RANGE_BYTES as u64;
        let is_whole = self.outgoing_bytes % RANGE_BYTES as u64 == 0;
        if !is_whole || count == 0 || count > u64::from(RANGES_MAX) {
            return Err(STATUS_ERROR);
        }
        let mut ranges = vec![0; self.outgoing_bytes as usize];
        memory.gather(&self.outgoing, &mut ranges).map_err(|_| STATUS_ERROR)?;
        let mut parsed = Vec::with_capacity(count as usize);
        // All are checked before the first is carried out.
        for range in ranges.chunks_exact(RANGE_BYTES) {
            parsed.push(self.range(target, range)?);
        }
        let fua = !target.has_write_cache();
        for (offset, len, may_unmap) in parsed {
            let done = if self.kind == kind::DISCARD {
                target.device.discard(offset, len, fua).await
            } else {
                let options = ZeroOptions { fua, no_hole: !may_unmap, fast: false };
                target.device.write_zeroes(offset, len, options).await
            };
            done.map_err(|e| status_of(&e))?;
            target.note_write(fua);
        }
        Ok(())
    }

    /// Offset, length, and whether the space may be given back.
    fn range(&self, target: &Target, bytes: &[u8]) -> Result<(u64, u64, bool), u8> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let (sectors, flags) = (word(8), word(12));
        let known = if self.kind == kind::DISCARD { 0 } else { UNMAP };
        if flags & !known != 0 {
            return Err(STATUS_UNSUPPORTED);
        }
        if sectors > RANGE_MAX_SECTORS {
            return Err(STATUS_ERROR);
        }
        let len = u64::from(sectors) * SECTOR_BYTES;
        let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
        Ok((place(target, sector, len)?, len, flags & UNMAP != 0))
    }

    fn id(&self, target: &Target) -> Answer {
        let mut id = [0; ID_BYTES];
        let len = target.id.len().min(ID_BYTES);
        id[..len].copy_from_slice(&target.id.as_bytes()[..len]);
        let len = self.incoming_bytes.min(ID_BYTES as u64) as usize;
        Answer { status: STATUS_OK, data: Some(IoBuf::copy_of(&id[..len])) }
    }
}

async fn flush(target: &Target) -> Result<(), u8> {
    if target.must_fail_flush.replace(false) {
        return Err(STATUS_ERROR);
    }
    target.flush().await.map_err(|e| status_of(&e))
}

fn refuse_if_read_only(target: &Target) -> Result<(), u8> {
    let is_read_only = target.read_only || target.device.geometry().read_only;
    if is_read_only { Err(STATUS_ERROR) } else { Ok(()) }
}

/// The offset of `len` bytes from `sector` on, when they are within the device.
fn place(target: &Target, sector: u64, len: u64) -> Result<u64, u8> {
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(STATUS_ERROR)?;
    let end = offset.checked_add(len).ok_or(STATUS_ERROR)?;
    if end <= target.device.geometry().size_bytes { Ok(offset) } else { Err(STATUS_ERROR) }
}

fn status_of(error: &DeviceError) -> u8 {
    match error.kind {
        forebay_device::ErrorKind::Unsupported => STATUS_UNSUPPORTED,
        _ => STATUS_ERROR,
    }
}

/// Splits the first `len` bytes off `pieces`.
fn take_front(pieces: &mut Vec<Piece>, len: u32) -> Option<Vec<Piece>> {
    let (mut front, mut missing) = (Vec::new(), len);
    while missing > 0 {
        let (at, here) = *pieces.first()?;
        let take = here.min(missing);
        front.push((at, take));
        missing -= take;
        if take == here {
            pieces.remove(0);
        } else {
            pieces[0] = (GuestAddress(at.0 + u64::from(take)), here - take);
        }
    }
    Some(front)
}

/// Splits the last byte off `pieces`.
fn take_last_byte(pieces: &mut Vec<Piece>) -> Option<GuestAddress> {
    let (at, len) = pieces.pop()?;
    if len > 1 {
        pieces.push((at, len - 1));
    }
    Some(GuestAddress(at.0 + u64::from(len - 1)))
}
