//! The read path: dirty data first, then the map, then the segments.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use forebay_cache::{BlockKey, Kept};
use forebay_device::{Allocation, Cause, DeviceError, ErrorKind, IoBuf, Operation};
use forebay_map::{ExtentKind, Located, PackedRef, Sums};
use forebay_rt as rt;
use forebay_segment::{Pin, Together, Unread, Wanted};
use forebay_txg::{Content, OverlayExtent};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba, VolumeId};

use crate::Pool;
use crate::packed::{PackedPart, PackedPlan};
use crate::runs::runs_of;
use crate::status::volume_times::Measured;
use crate::volume::VolumeState;

/// A part of a read that must come from the devices.
pub(crate) struct Fetch {
    /// Where it belongs in the reader's buffer.
    pub at_bytes: usize,
    /// Its first block in the volume that is read; its checksum may bind another.
    pub lba: Lba,
    /// What its first block is called in the cache.
    pub key: BlockKey,
    pub wanted: Wanted,
}

impl Fetch {
    /// One of its blocks.
    pub fn block(&self, index: u32) -> Fetch {
        let key = BlockKey { addr: self.key.addr.plus(index), ..self.key };
        let wanted = Wanted {
            addr: key.addr,
            volume: self.wanted.volume,
            lba: Lba(self.wanted.lba.0 + u64::from(index)),
            blocks: 1,
            sums: vec![self.wanted.sums[index as usize]],
        };
        let at_bytes = self.at_bytes + index as usize * BLOCK_LEN;
        Fetch { at_bytes, lba: Lba(self.lba.0 + u64::from(index)), key, wanted }
    }

    /// Whether `next` goes on where this part ends, in the volume and in the main store.
    pub fn is_followed_by(&self, next: &Fetch) -> bool {
        let blocks = self.wanted.blocks;
        self.at_bytes + blocks as usize * BLOCK_LEN == next.at_bytes
            && self.lba.0 + u64::from(blocks) == next.lba.0
            && self.key.birth == next.key.birth
            && self.wanted.volume == next.wanted.volume
            && self.wanted.lba.0 + u64::from(blocks) == next.wanted.lba.0
            && self.wanted.addr.segment() == next.wanted.addr.segment()
            && self.wanted.addr.block() + blocks == next.wanted.addr.block()
    }

    /// Adds the part that follows.
    pub fn push(&mut self, next: Fetch) {
        self.wanted.blocks += next.wanted.blocks;
        self.wanted.sums.extend(next.wanted.sums);
    }
}

/// Consecutive blocks of a volume at consecutive addresses.
struct Run<'a> {
    lba: Lba,
    blocks: u64,
    /// The volume that their checksums bind, and the block of it that the first one's binds.
    bound: (VolumeId, Lba),
    /// What its first block is called in the cache.
    key: BlockKey,
    sums: Sums<'a>,
}

impl Run<'_> {
    /// Adds the parts that must be read to `fetches`: all but the blocks for which `is_here` is
    /// true. It is called with the key of each block in order. The run begins at `at_bytes` of the
    /// reader's buffer.
    fn split(
        &self,
        fetches: &mut Vec<Fetch>,
        at_bytes: usize,
        mut is_here: impl FnMut(BlockKey) -> bool,
    ) {
        let blocks = self.blocks as u32;
        let key_of =
            |block: u32| BlockKey { addr: self.key.addr.plus(block), birth: self.key.birth };
        let place_of = |block: u32| at_bytes + block as usize * BLOCK_LEN;
        let mut from = 0;
        while from < blocks {
            let next = (from..blocks).find(|block| is_here(key_of(*block)));
            let end = next.unwrap_or(blocks);
            if end > from {
                let key = key_of(from);
                let sums = (from..end).map(|block| self.sums.get(block as usize)).collect();
                let wanted = Wanted {
                    addr: key.addr,
                    volume: self.bound.0,
                    lba: Lba(self.bound.1.0 + u64::from(from)),
                    blocks: end - from,
                    sums,
                };
                let lba = Lba(self.lba.0 + u64::from(from));
                fetches.push(Fetch { at_bytes: place_of(from), lba, key, wanted });
            }
            from = end + 1;
        }
    }
}

/// Largest gap between two wanted blocks that one command reads over: on most devices that takes
/// less time than a second command.
const READ_ALONG_BLOCKS: u32 = 2;
/// Longest gathered read, in blocks: long enough for any device, and short enough that several
/// reads are in flight.
const MAX_GATHERED_BLOCKS: u32 = 256;

/// Groups the parts of a read that lie near each other. Random writes scatter a range over
/// segments, but each transaction group writes its blocks in volume order, so its part of a range
/// lies together.
fn gather(mut fetches: Vec<Fetch>) -> Vec<Vec<Fetch>> {
    fetches.sort_by_key(|fetch| fetch.wanted.addr.raw());
    let mut reads: Vec<Vec<Fetch>> = Vec::new();
    for fetch in fetches {
        let Wanted { addr, blocks, .. } = fetch.wanted;
        let near = reads.last().is_some_and(|read| {
            let (first, last) = (&read[0].wanted, &read[read.len() - 1].wanted);
            last.addr.segment() == addr.segment()
                && addr.block() <= last.addr.block() + last.blocks + READ_ALONG_BLOCKS
                && addr.block() + blocks - first.addr.block() <= MAX_GATHERED_BLOCKS
        });
        match reads.last_mut() {
            Some(read) if near => read.push(fetch),
            _ => reads.push(vec![fetch]),
        }
    }
    reads
}

impl Pool {
    pub(crate) async fn read(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> Result<IoBuf, DeviceError> {
        let begun = rt::now();
        let len = buf.len();
        if len == 0 {
            return Ok(buf);
        }
        let first = offset_bytes / BLOCK_BYTES;
        let end = (offset_bytes + len as u64).div_ceil(BLOCK_BYTES);
        if self.caches(volume) {
            self.note_read(volume, first..end).await;
        }
        let skip = (offset_bytes - first * BLOCK_BYTES) as usize;
        if skip == 0 && len % BLOCK_LEN == 0 {
            buf = self.read_blocks(volume, name, Lba(first), buf).await?;
        } else {
            let whole = IoBuf::recycled((end - first) as usize * BLOCK_LEN);
            let whole = self.read_blocks(volume, name, Lba(first), whole).await?;
            buf.copy_from_slice(&whole[skip..skip + len]);
        }
        let took = rt::now().since(begun);
        self.stats.count_read(len as u64, took);
        volume.times.note(Measured::Read, took);
        Ok(buf)
    }

    /// Fills `buf` (whole blocks) from `lba` on.
    pub(crate) async fn read_blocks(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        lba: Lba,
        mut buf: IoBuf,
    ) -> Result<IoBuf, DeviceError> {
        let blocks = (buf.len() / BLOCK_LEN) as u64;
        if blocks == 1 && !self.dirty.groups.borrow().covers(volume.id, lba) {
            // The common case, without the lists that longer reads need.
            let found = self.store.map.borrow().lookup(volume.id, lba);
            let Some(Located { home, bound, addr, sum }) = found else {
                buf.fill(0);
                return Ok(buf);
            };
            if PackedRef::of(addr).is_some() {
                let at = PackedPart { at_bytes: 0, lba, home, bound, addr, blocks };
                return self.read_with_packed(volume, name, (Vec::new(), vec![at]), buf).await;
            }
            let key = self.block_key(addr);
            if self.caches(volume) && self.cache.get(key, &mut buf) {
                return Ok(buf);
            }
            let wanted = Wanted { addr, volume: home, lba: bound, blocks: 1, sums: vec![sum] };
            let fetch = Fetch { at_bytes: 0, lba, key, wanted };
            let (fetches, _pins) = self.take_cached(volume, vec![fetch], &mut buf).await;
            return match fetches.first() {
                None => Ok(buf),
                Some(fetch) => self.fetch(volume, name, fetch).await,
            };
        }
        let (fetches, packed) = self.plan(volume, lba, blocks, &mut buf);
        match packed.is_empty() {
            true => self.fetch_into(volume, name, fetches, buf).await,
            false => self.read_with_packed(volume, name, (fetches, packed), buf).await,
        }
    }

    /// Reads parts, compressed ones among them, into `buf`.
    async fn read_with_packed(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        (mut fetches, parts): (Vec<Fetch>, Vec<PackedPart>),
        mut buf: IoBuf,
    ) -> Result<IoBuf, DeviceError> {
        // Packed blocks are read behind the blocks that the reader gets.
        let len = buf.len();
        let plan = PackedPlan::of(&parts, len, self.store.reader.bindings());
        let mut all = IoBuf::zeroed(plan.end_bytes());
        all[..len].copy_from_slice(&buf);
        let is_cached = self.caches(volume);
        fetches.extend(self.packed_fetches(&plan, |key, at_bytes| {
            is_cached && self.cache.get(key, &mut all[at_bytes..at_bytes + BLOCK_LEN])
        }));
        let all = self.fetch_into(volume, name, fetches, all).await?.freeze();
        buf.copy_from_slice(&all[..len]);
        let unpacked = plan.unpack_from(all).await;
        let unpacked = unpacked.map_err(|(at_bytes, fault)| {
            let at = parts.iter().rfind(|part| part.at_bytes <= at_bytes).unwrap_or(&parts[0]);
            let lba = Lba(at.lba.0 + ((at_bytes - at.at_bytes) / BLOCK_LEN) as u64);
            self.note_lost_block(volume.id, lba);
            let kind = ErrorKind::Corrupt { cause: Cause::new(fault) };
            DeviceError::new(name, Operation::Read, lba.0 * BLOCK_BYTES, BLOCK_BYTES, kind)
        })?;
        for (at_bytes, block) in unpacked {
            buf[at_bytes..at_bytes + BLOCK_LEN].copy_from_slice(&block);
        }
        Ok(buf)
    }

    /// Reads parts into `buf`.
    async fn fetch_into(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        fetches: Vec<Fetch>,
        mut buf: IoBuf,
    ) -> Result<IoBuf, DeviceError> {
        let (fetches, _pins) = self.take_cached(volume, fetches, &mut buf).await;
        match fetches.len() {
            0 => {}
            1 if fetches[0].wanted.blocks as usize * BLOCK_LEN == buf.len() => {
                return self.fetch(volume, name, &fetches[0]).await;
            }
            _ => {
                let reads = gather(fetches);
                let calls = reads.iter().map(|read| self.fetch_all(volume, name, read));
                for (outcome, read) in rt::join_all(calls).await.into_iter().zip(&reads) {
                    for (got, fetch) in outcome?.pieces().zip(read) {
                        let got = got.expect("fetch_all fails when a piece has");
                        self.keep(volume, fetch, got);
                        buf[fetch.at_bytes..fetch.at_bytes + got.len()].copy_from_slice(got);
                    }
                }
            }
        }
        Ok(buf)
    }

    /// Reads what cache devices have of `fetches` into `buf`. Returns what must be read from the
    /// main store, and what keeps its segments from being used again until then.
    async fn take_cached(
        &self,
        volume: &VolumeState,
        fetches: Vec<Fetch>,
        buf: &mut [u8],
    ) -> (Vec<Fetch>, Vec<Pin>) {
        let (parts, mut fetches) = self.cached_parts(volume, fetches);
        if parts.is_empty() {
            // What reads the main store pins its segment before anything else runs.
            return (fetches, Vec::new());
        }
        let all = parts.iter().map(|part| &part.fetch).chain(&fetches);
        let segments: BTreeSet<_> = all.map(|fetch| fetch.wanted.addr.segment()).collect();
        let pins = segments.into_iter().map(|segment| self.store.table.pin(segment)).collect();
        fetches.extend(self.read_cached(parts, buf).await);
        (fetches, pins)
    }

    /// Fills in dirty data, holes and what the cache has, and returns what must be read from
    /// devices, and compressed blocks.
    fn plan(
        &self,
        volume: &VolumeState,
        lba: Lba,
        blocks: u64,
        buf: &mut IoBuf,
    ) -> (Vec<Fetch>, Vec<PackedPart>) {
        let is_cached = self.caches(volume);
        let pieces = self.dirty.groups.borrow().lookup(volume.id, lba, blocks);
        let mut keys = Vec::new();
        for piece in &pieces {
            let start = (piece.lba.0 - lba.0) as usize * BLOCK_LEN;
            let len = piece.blocks as usize * BLOCK_LEN;
            match &piece.content {
                Some(Content::Data(data)) => buf[start..start + len].copy_from_slice(data),
                Some(Content::Zero) => buf[start..start + len].fill(0),
                None if is_cached => self.note_keys(volume.id, (lba, piece), &mut keys),
                None => {}
            }
        }
        let found = self.cache.get_all(&keys, buf);
        let mut found = found.into_iter();
        let is_here = |_| is_cached && found.next().expect("a key for each block");
        let hole = |at: Range<usize>| buf[at].fill(0);
        self.unread(volume.id, lba, &pieces, is_here, hole)
    }

    /// Adds what the mapped blocks of a piece are called in the cache, and their places in a buffer
    /// that begins at `lba`.
    fn note_keys(
        &self,
        volume: VolumeId,
        (lba, piece): (Lba, &OverlayExtent),
        keys: &mut Vec<(BlockKey, usize)>,
    ) {
        self.store.map.borrow().lookup_range(volume, piece.lba, piece.blocks, |part| {
            if let ExtentKind::Mapped { addr, .. } = part.kind {
                let (at, first) = ((part.lba.0 - lba.0) as usize, self.block_key(addr));
                keys.extend((0..part.blocks as u32).map(|block| {
                    let key = BlockKey { addr: first.addr.plus(block), ..first };
                    (key, (at + block as usize) * BLOCK_LEN)
                }));
            }
        });
    }

    /// The parts of `pieces` that are neither dirty nor `is_here`, which is called with the key of
    /// each block of the main store in order, and the compressed ones. `hole` is called with the
    /// places of holes in a buffer that begins at `lba`.
    fn unread(
        &self,
        volume: VolumeId,
        lba: Lba,
        pieces: &[OverlayExtent],
        mut is_here: impl FnMut(BlockKey) -> bool,
        mut hole: impl FnMut(Range<usize>),
    ) -> (Vec<Fetch>, Vec<PackedPart>) {
        let (mut fetches, mut packed) = (Vec::new(), Vec::new());
        let map = self.store.map.borrow();
        for piece in pieces.iter().filter(|piece| piece.content.is_none()) {
            map.lookup_range(volume, piece.lba, piece.blocks, |part| {
                let at_bytes = (part.lba.0 - lba.0) as usize * BLOCK_LEN;
                let (lba, blocks) = (part.lba, part.blocks);
                match part.kind {
                    ExtentKind::Hole => hole(at_bytes..at_bytes + blocks as usize * BLOCK_LEN),
                    ExtentKind::Mapped { home, bound, addr, sums } => {
                        let (bound, key) = ((home, bound), self.block_key(addr));
                        let run = Run { lba, blocks, bound, key, sums };
                        run.split(&mut fetches, at_bytes, &mut is_here);
                    }
                    ExtentKind::Packed { home, bound, addr } => {
                        packed.push(PackedPart { at_bytes, lba, home, bound, addr, blocks });
                    }
                }
            });
        }
        (fetches, packed)
    }

    /// The reads of those blocks that are neither dirty nor in the cache.
    pub(crate) fn uncached_reads(&self, volume: VolumeId, blocks: Range<u64>) -> Vec<Vec<Fetch>> {
        let (lba, blocks) = (Lba(blocks.start), blocks.end - blocks.start);
        let is_here = |key: BlockKey| self.cache.contains(key) || self.cache_devices.contains(key);
        let pieces = self.dirty.groups.borrow().lookup(volume, lba, blocks);
        let (mut fetches, packed) = self.unread(volume, lba, &pieces, is_here, |_| {});
        let plan = PackedPlan::of(&packed, 0, self.store.reader.bindings());
        fetches.extend(self.packed_fetches(&plan, |key, _| is_here(key)));
        gather(fetches)
    }

    /// Keeps what a client has read from the main store.
    fn keep(&self, volume: &VolumeState, fetch: &Fetch, data: &[u8]) {
        if self.caches(volume) {
            self.keep_in_memory(fetch.key, data, Kept::Read);
            self.consider_for_devices(fetch, data);
        }
    }

    /// Keeps verified blocks from `key` on in memory.
    pub(crate) fn keep_in_memory(&self, key: BlockKey, data: &[u8], why: Kept) {
        self.cache.keep(key, data, why);
        self.cache.take_evicted(|key| self.cache_devices.remember(key));
    }

    /// Reads parts that lie near each other.
    pub(crate) async fn read_gathered(&self, fetches: &[Fetch]) -> Together {
        let wanted: Vec<&Wanted> = fetches.iter().map(|fetch| &fetch.wanted).collect();
        self.store.reader.read_together(&wanted).await
    }

    /// Reads parts that lie near each other. Fails if one of them fails.
    async fn fetch_all(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        fetches: &[Fetch],
    ) -> Result<Together, DeviceError> {
        let got = self.read_gathered(fetches).await;
        let mut outcome = Ok(());
        for (piece, fetch) in got.pieces().zip(fetches) {
            if let Err(unread) = piece {
                outcome = outcome.and(Err(self.note_unread(volume, name, fetch, unread)));
            }
        }
        outcome.map(|()| got)
    }

    async fn fetch(
        self: &Rc<Self>,
        volume: &Rc<VolumeState>,
        name: &str,
        fetch: &Fetch,
    ) -> Result<IoBuf, DeviceError> {
        let outcome = self.store.reader.read_each(&fetch.wanted).await;
        let got = outcome.map_err(|unread| self.note_unread(volume, name, fetch, &unread))?;
        self.keep(volume, fetch, &got);
        Ok(got)
    }

    fn note_unread(
        &self,
        volume: &Rc<VolumeState>,
        name: &str,
        fetch: &Fetch,
        unread: &Unread,
    ) -> DeviceError {
        for index in &unread.blocks {
            self.note_lost_block(volume.id, Lba(fetch.lba.0 + u64::from(*index)));
        }
        let len = u64::from(fetch.wanted.blocks) * BLOCK_BYTES;
        let offset = fetch.lba.0 * BLOCK_BYTES;
        DeviceError::new(name, Operation::Read, offset, len, (&unread.error).into())
    }

    /// Which parts of a range hold data, dirty data included.
    pub(crate) fn allocation(
        &self,
        volume: &Rc<VolumeState>,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Vec<Allocation> {
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let runs = runs_of(offset_bytes, len_bytes, |from, blocks, push| {
            for piece in groups.lookup(volume.id, Lba(from), blocks) {
                match piece.content {
                    Some(content) => push(piece.blocks, matches!(content, Content::Zero)),
                    None => map.lookup_range(volume.id, piece.lba, piece.blocks, |part| {
                        push(part.blocks, matches!(part.kind, ExtentKind::Hole));
                    }),
                }
            }
        });
        runs.into_iter().map(|(len_bytes, hole)| Allocation { len_bytes, hole }).collect()
    }
}

#[cfg(test)]
mod tests;
