//! An extent map: the dirty blocks of one volume, newest content only.

use std::collections::BTreeMap;

use forebay_device::IoBytes;
use forebay_units::{BLOCK_LEN, Lba};

/// The content of a dirty extent.
#[derive(Clone, Debug)]
pub enum Content {
    /// New data, as long as the extent.
    Data(IoBytes),
    /// Zeros: the range was trimmed or zeroed.
    Zero,
}

impl Content {
    /// The part of `blocks` blocks after the first `skip`.
    #[must_use]
    pub fn part(&self, skip: u64, blocks: u64) -> Self {
        match self {
            Content::Zero => Content::Zero,
            Content::Data(bytes) => {
                Content::Data(bytes.slice(skip as usize * BLOCK_LEN, blocks as usize * BLOCK_LEN))
            }
        }
    }
}

struct Extent {
    blocks: u64,
    content: Content,
}

/// A part of a range that was looked up.
#[derive(Clone, Debug)]
pub struct OverlayExtent {
    /// First block.
    pub lba: Lba,
    /// Blocks.
    pub blocks: u64,
    /// Its dirty content; `None` when it is not dirty.
    pub content: Option<Content>,
}

/// Non-overlapping extents by address; a newer extent replaces the range that it covers.
#[derive(Default)]
pub struct ExtentMap {
    extents: BTreeMap<u64, Extent>,
    data_blocks: u64,
}

impl ExtentMap {
    /// Blocks of dirty data, without zeros.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Whether nothing is dirty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Inserts an extent over the old content of its range. Data must be as long as the extent.
    pub fn insert(&mut self, lba: Lba, blocks: u64, content: Content) {
        if let Content::Data(bytes) = &content {
            assert_eq!(
                bytes.len() as u64,
                blocks * BLOCK_LEN as u64,
                "data and extent differ in length"
            );
            self.data_blocks += blocks;
        }
        self.remove(lba, blocks);
        self.extents.insert(lba.0, Extent { blocks, content });
    }

    /// Removes a range.
    pub fn remove(&mut self, lba: Lba, blocks: u64) {
        let (start, end) = (lba.0, lba.0 + blocks);
        let before = self.extents.range(..start).next_back().map(|(at, e)| (*at, e.blocks));
        if let Some((at, len)) = before {
            if at + len > start {
                let extent = self.extents.get_mut(&at).expect("just found");
                let whole = std::mem::replace(&mut extent.content, Content::Zero);
                extent.blocks = start - at;
                extent.content = whole.part(0, start - at);
                let cut = (at + len).min(end) - start;
                let was_data = matches!(whole, Content::Data(_));
                if at + len > end {
                    let rest = Extent {
                        blocks: at + len - end,
                        content: whole.part(end - at, at + len - end),
                    };
                    self.extents.insert(end, rest);
                }
                if was_data {
                    self.data_blocks -= cut;
                }
            }
        }
        while let Some((at, extent)) = self.extents.range(start..end).next() {
            let (at, len) = (*at, extent.blocks);
            let extent = self.extents.remove(&at).expect("just found");
            if matches!(extent.content, Content::Data(_)) {
                self.data_blocks -= len.min(end - at);
            }
            if at + len > end {
                let rest = Extent {
                    blocks: at + len - end,
                    content: extent.content.part(end - at, at + len - end),
                };
                self.extents.insert(end, rest);
            }
        }
    }

    /// Removes the first `extents` extents, or all there are. Returns how many it removed.
    pub(crate) fn remove_first(&mut self, extents: usize) -> usize {
        let mut removed = 0;
        while removed < extents {
            let Some((_, extent)) = self.extents.pop_first() else { break };
            removed += 1;
            if matches!(extent.content, Content::Data(_)) {
                self.data_blocks -= extent.blocks;
            }
        }
        removed
    }

    /// Splits a range into dirty extents and gaps, in order.
    #[must_use]
    pub fn lookup(&self, lba: Lba, blocks: u64) -> Vec<OverlayExtent> {
        let (start, end) = (lba.0, lba.0 + blocks);
        let mut found = Vec::new();
        let mut at = start;
        let first = self.extents.range(..=start).next_back().map_or(start, |(from, _)| *from);
        for (from, extent) in self.extents.range(first..end) {
            let (from, to) = (*from, *from + extent.blocks);
            if to <= at {
                continue;
            }
            if from > at {
                found.push(OverlayExtent { lba: Lba(at), blocks: from - at, content: None });
                at = from;
            }
            let upto = to.min(end);
            let content = Some(extent.content.part(at - from, upto - at));
            found.push(OverlayExtent { lba: Lba(at), blocks: upto - at, content });
            at = upto;
        }
        if at < end {
            found.push(OverlayExtent { lba: Lba(at), blocks: end - at, content: None });
        }
        found
    }

    /// Whether block `lba` is dirty.
    #[must_use]
    pub fn covers(&self, lba: Lba) -> bool {
        let before = self.extents.range(..=lba.0).next_back();
        before.is_some_and(|(at, extent)| at + extent.blocks > lba.0)
    }

    /// The extents that begin at `first` or later, in order.
    pub fn iter_from(&self, first: Lba) -> impl Iterator<Item = (Lba, u64, &Content)> {
        self.extents.range(first.0..).map(|(at, e)| (Lba(*at), e.blocks, &e.content))
    }

    /// Every extent in order.
    pub fn iter(&self) -> impl Iterator<Item = (Lba, u64, &Content)> {
        self.extents.iter().map(|(at, e)| (Lba(*at), e.blocks, &e.content))
    }
}
