//! A change of a leaf: the run that a range becomes, and the addresses that the change frees.

use forebay_format::map_record::{DEDUP_REF_END, DEDUP_REF_SEGMENT, HOLE_SEGMENT, ORIGIN_SEGMENT};
use forebay_format::packed::PACKED_REF_END;
use forebay_units::BlockAddr;

/// Whether an address is no block's, but says where else to look.
#[inline]
pub(crate) fn is_marker(addr: BlockAddr) -> bool {
    addr.segment() >= ORIGIN_SEGMENT && addr.segment() <= HOLE_SEGMENT
}

/// Whether an address refers to a block of the dedup volume, or into a packed block. These
/// addresses lie one after the other.
#[inline]
pub(crate) fn is_ref(addr: BlockAddr) -> bool {
    addr.segment() >= DEDUP_REF_SEGMENT && addr.segment() < PACKED_REF_END
}

/// Whether an address refers to a block of the dedup volume.
#[inline]
pub(crate) fn is_shared(addr: BlockAddr) -> bool {
    addr.segment() >= DEDUP_REF_SEGMENT && addr.segment() < DEDUP_REF_END
}

/// Whether an address is a place in the main store.
#[inline]
pub(crate) fn is_place(addr: BlockAddr) -> bool {
    addr.segment() < DEDUP_REF_SEGMENT || !(is_ref(addr) || is_marker(addr))
}

/// Reports freed addresses, with consecutive addresses joined.
pub(crate) struct Freed<'f> {
    pending: Option<(BlockAddr, u32)>,
    /// Markers that went; they are not reported.
    pub(crate) markers: u64,
    /// References that went; they are reported.
    pub(crate) refs: u64,
    report: &'f mut dyn FnMut(BlockAddr, u32),
}

impl<'f> Freed<'f> {
    pub(crate) fn new(report: &'f mut dyn FnMut(BlockAddr, u32)) -> Self {
        Self { pending: None, markers: 0, refs: 0, report }
    }

    pub(crate) fn add(&mut self, addr: BlockAddr, blocks: u32) {
        if is_marker(addr) {
            self.markers += u64::from(blocks);
            return;
        }
        if is_ref(addr) {
            self.refs += u64::from(blocks);
        }
        match &mut self.pending {
            Some((first, count)) if continues(*first, *count, addr) => *count += blocks,
            pending => {
                if let Some((first, count)) = pending.replace((addr, blocks)) {
                    (self.report)(first, count);
                }
            }
        }
    }

    pub(crate) fn finish(mut self) {
        if let Some((first, count)) = self.pending.take() {
            (self.report)(first, count);
        }
    }
}

/// Whether `next` is the address after `blocks` from `first` on, in the same segment.
#[inline]
pub(crate) fn continues(first: BlockAddr, blocks: u32, next: BlockAddr) -> bool {
    first.raw() + u64::from(blocks) == next.raw() && first.segment() == next.segment()
}

/// The new content of a range of a leaf.
#[derive(Clone, Copy)]
pub(crate) struct NewRun<'a> {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    pub(crate) addr: BlockAddr,
    /// One per block, or none: then they are in the footer.
    pub(crate) sums: &'a [u64],
}

#[cfg(test)]
mod tests;
