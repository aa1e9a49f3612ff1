//! A change of a leaf: the run that a range becomes, and the addresses that the change frees.

use forebay_units::BlockAddr;

/// Reports freed addresses, with consecutive addresses joined.
pub(crate) struct Freed<'f> {
    pending: Option<(BlockAddr, u32)>,
    report: &'f mut dyn FnMut(BlockAddr, u32),
}

impl<'f> Freed<'f> {
    pub(crate) fn new(report: &'f mut dyn FnMut(BlockAddr, u32)) -> Self {
        Self { pending: None, report }
    }

    pub(crate) fn add(&mut self, addr: BlockAddr, blocks: u32) {
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
    pub(crate) addr: BlockAddr,
    /// One per block.
    pub(crate) sums: &'a [u64],
}
