//! Filling a cache device: blocks are gathered to regions, which are written one after the other,
//! around and around.

use std::collections::VecDeque;

use forebay_cache::Indexed;
use forebay_device::{DeviceError, IoBuf};
use forebay_format::cache_device::{CacheEntry, RegionFooter, SnapshotHeader};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos};

use super::device::{CacheDevice, CacheState};
use crate::opener::OpenDevice;

/// Regions that wait to be written at most. A device that is slower than its clients get none
/// beyond them.
const MOST_WAITING: usize = 4;
const DAY_SECS: u64 = 86_400;
/// What a device may write at once after it was idle: the writes of this long.
const BURST_SECS: u64 = 600;

/// Blocks that are to be written together.
pub(super) struct Region {
    buf: IoBuf,
    blocks: Vec<Indexed>,
}

/// What is to be written, and where.
#[derive(Default)]
pub(super) struct Filling {
    open: Option<Region>,
    full: VecDeque<Region>,
    /// Regions written since the device was added. The next goes to the place of the oldest: its
    /// number modulo the number of places.
    next_sequence: u64,
    /// There is a snapshot of the index, which the next write makes wrong.
    has_snapshot: bool,
    budget: Budget,
}

impl Filling {
    /// Goes on with the region of number `next_sequence`.
    pub fn from(next_sequence: u64, has_snapshot: bool) -> Self {
        Self { next_sequence, has_snapshot, ..Self::default() }
    }

    /// Regions written since the device was added.
    pub fn regions_written(&self) -> u64 {
        self.next_sequence
    }
}

/// Writes that a device is allowed: a bucket that fills with time.
#[derive(Default)]
struct Budget {
    /// Drive writes a day, in thousandths; `None`: as many as there are.
    milli_dwpd: Option<u64>,
    allowed_bytes: u64,
    counted_at: Nanos,
}

impl Budget {
    /// Takes `bytes` from the budget of a device of `size_bytes`, if it has them.
    fn take(&mut self, bytes: u64, size_bytes: u64) -> bool {
        let Some(milli_dwpd) = self.milli_dwpd else { return true };
        let a_day = u128::from(size_bytes) * u128::from(milli_dwpd) / 1000;
        let day_ns = u128::from(DAY_SECS * 1_000_000_000);
        let of = |span: Nanos| (a_day * u128::from(span.0) / day_ns) as u64;
        let now = rt::now();
        let new_bytes = of(now.since(self.counted_at));
        if new_bytes > 0 {
            let most = of(Nanos::from_secs(BURST_SECS)).max(bytes);
            self.allowed_bytes = (self.allowed_bytes + new_bytes).min(most);
            self.counted_at = now;
        }
        if self.allowed_bytes < bytes {
            return false;
        }
        self.allowed_bytes -= bytes;
        true
    }
}

/// Whether a device takes a block.
pub(super) enum Admitted {
    Yes,
    /// With it, a region is full.
    LastOfRegion,
    No,
}

impl CacheDevice {
    /// How much may be written, in thousandths of the device a day.
    pub fn set_budget(&self, milli_dwpd: Option<u64>) {
        self.filling.borrow_mut().budget.milli_dwpd = milli_dwpd;
    }

    /// Takes a verified block.
    pub(super) fn admit(&self, block: Indexed, data: &[u8]) -> Admitted {
        if self.state.get() != CacheState::Online {
            return Admitted::No;
        }
        let shape = self.shape.get();
        let mut filling = self.filling.borrow_mut();
        let filling = &mut *filling;
        if filling.open.is_none() {
            if filling.full.len() >= MOST_WAITING {
                self.count(|counts| counts.refused_busy += 1);
                return Admitted::No;
            }
            let size_bytes = u64::from(shape.regions) * shape.region_bytes();
            // The first time around is free: a new device is there to be filled.
            let is_first_lap = filling.next_sequence < u64::from(shape.regions);
            if !is_first_lap && !filling.budget.take(shape.region_bytes(), size_bytes) {
                self.count(|counts| counts.refused_budget += 1);
                return Admitted::No;
            }
            let buf = IoBuf::recycled(shape.region_bytes() as usize);
            filling.open = Some(Region { buf, blocks: Vec::new() });
        }
        let region = filling.open.as_mut().expect("just made");
        let at = region.blocks.len() * BLOCK_LEN;
        region.buf[at..at + BLOCK_LEN].copy_from_slice(data);
        region.blocks.push(block);
        self.count(|counts| counts.admitted += 1);
        if region.blocks.len() < shape.data_blocks() as usize {
            return Admitted::Yes;
        }
        filling.full.extend(filling.open.take());
        self.wake.notify_all();
        Admitted::LastOfRegion
    }

    /// Whether a region waits to be written.
    pub(super) fn has_full_region(&self) -> bool {
        !self.filling.borrow().full.is_empty()
    }

    /// Writes a full region, if there is one; with `partial`, also the one that is being filled.
    pub(super) async fn write_region(
        &self,
        open: &OpenDevice,
        partial: bool,
    ) -> Result<bool, DeviceError> {
        let shape = self.shape.get();
        let region = {
            let mut filling = self.filling.borrow_mut();
            let full = filling.full.pop_front();
            if partial { full.or_else(|| filling.open.take()) } else { full }
        };
        let Some(Region { mut buf, blocks }) = region else { return Ok(false) };
        if self.filling.borrow().has_snapshot {
            let nothing = IoBuf::zeroed(BLOCK_LEN).freeze();
            open.device().write(self.snapshot_at_bytes, nothing, true).await?;
            self.filling.borrow_mut().has_snapshot = false;
        }
        let sequence = self.filling.borrow().next_sequence;
        let number = (sequence % u64::from(shape.regions)) as u32;
        let first = number * shape.data_blocks();
        // From here on nothing is read there.
        (first..first + shape.data_blocks()).for_each(|at| self.index.borrow_mut().forget(at));
        let footer = RegionFooter {
            nonce: self.nonce,
            sequence,
            entries: blocks.iter().map(|block| Some(entry_of(*block))).collect(),
        };
        let at = u64::from(shape.data_blocks()) * BLOCK_BYTES;
        // The buffer may have what other blocks left there.
        buf[footer.entries.len() * BLOCK_LEN..at as usize].fill(0);
        buf[at as usize..].copy_from_slice(&footer.encode(shape));
        open.device().write(shape.region_offset_bytes(number), buf.freeze(), false).await?;
        if self.state.get() != CacheState::Online {
            // Given up or taken offline meanwhile, and with it the index.
            return Ok(false);
        }
        self.filling.borrow_mut().next_sequence = sequence + 1;
        let mut index = self.index.borrow_mut();
        for (position, block) in (first..).zip(blocks) {
            index.put(position, block);
        }
        Ok(true)
    }

    /// Writes the index as it is now, so that the next import need not read all footers. A device
    /// that is not in use has no whole index and gets none, also if a reader gives it up meanwhile.
    pub(super) async fn write_snapshot(&self, open: &OpenDevice) -> Result<(), DeviceError> {
        const CHUNK_REGIONS: u32 = 64;
        let shape = self.shape.get();
        let device = open.device();
        let at = self.snapshot_at_bytes;
        let is_in_use = || self.state.get() == CacheState::Online;
        let mut region = 0;
        while region < shape.regions && is_in_use() {
            let until = (region + CHUNK_REGIONS).min(shape.regions);
            let mut bytes = Vec::new();
            for number in region..until {
                bytes.extend(self.footer_now(number).encode(shape));
            }
            let offset = at + BLOCK_BYTES + u64::from(region) * shape.footer_bytes();
            device.write(offset, IoBuf::copy_of(&bytes).freeze(), false).await?;
            region = until;
            rt::yield_now().await;
        }
        device.flush().await?;
        if !is_in_use() {
            return Ok(());
        }
        let next_sequence = self.filling.borrow().next_sequence;
        let header = SnapshotHeader { nonce: self.nonce, next_sequence };
        device.write(at, IoBuf::copy_of(&header.encode()).freeze(), true).await
    }

    /// The footer that the region would have if it were written now.
    fn footer_now(&self, region: u32) -> RegionFooter {
        let blocks = self.shape.get().data_blocks();
        let index = self.index.borrow();
        let first = region * blocks;
        let entries = (first..first + blocks).map(|at| index.at(at).map(entry_of)).collect();
        RegionFooter { nonce: self.nonce, sequence: 0, entries }
    }
}

fn entry_of(block: Indexed) -> CacheEntry {
    CacheEntry { addr: block.key.addr, birth: block.key.birth, sum: block.sum }
}

#[cfg(test)]
mod tests;
