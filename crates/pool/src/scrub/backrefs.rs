//! Back references: what each block of a segment belongs to and should hold. Scrubs and resilvers
//! judge by them.

use std::collections::BTreeMap;

use forebay_array::BlockVerdict;
use forebay_format::footer::{Footer, footer_blocks};
use forebay_segment::{SegmentInfo, SegmentKind};
use forebay_units::{BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use crate::Pool;
use crate::state::Writers;

/// What a block belongs to, and what it should hold.
pub(crate) enum Owner {
    /// The pool's own block, of a footer or of a journal frame, with its right content.
    Pool(Vec<u8>),
    Data(VolumeId, Lba, u64),
    /// A live block (with its place, if known) whose checksum was lost with the footer. It cannot
    /// be judged and must not be taken for dead.
    Unknown(Option<(VolumeId, Lba)>),
}

impl Pool {
    /// The back references of a segment's live blocks.
    pub(crate) async fn owners(
        &self,
        writers: &Writers,
        segment: SegmentId,
        info: &SegmentInfo,
    ) -> BTreeMap<u32, Owner> {
        if info.kind == SegmentKind::Map {
            return self.journal_owners(writers, segment).await.unwrap_or_default();
        }
        let mut owners = BTreeMap::new();
        let footer = match info.footer {
            true => self.store.reader.footer(segment).await.ok(),
            false => None,
        };
        let map = self.store.map.borrow();
        let mut add = |block: u32, volume: VolumeId, lba: Lba, footer: Option<&Footer>| {
            if let Some((_, mapped)) = map.owner(volume, lba, BlockAddr::new(segment, block)) {
                let known = footer.and_then(|f| f.sums.get(block as usize).copied());
                let owner = match mapped.sum.or(known) {
                    Some(sum) => Owner::Data(volume, lba, sum),
                    None => Owner::Unknown(Some((volume, lba))),
                };
                owners.insert(block, owner);
            }
        };
        match &footer {
            Some(footer) => {
                for (block, volume, lba) in footer.blocks() {
                    add(block, volume, lba, Some(footer));
                }
                // The blocks of the footer itself.
                if let Ok(geometry) = self.store.array.geometry_of(segment) {
                    let total = geometry.blocks_per_segment();
                    let bytes = footer.encode();
                    let first = total - (bytes.len() / BLOCK_LEN) as u32;
                    for (index, block) in bytes.chunks(BLOCK_LEN).enumerate() {
                        owners.insert(first + index as u32, Owner::Pool(block.to_vec()));
                    }
                }
            }
            None => map.for_each(|volume, lba, addr, blocks| {
                if addr.segment() == segment {
                    for index in 0..blocks {
                        add(addr.block() + index, volume, Lba(lba.0 + u64::from(index)), None);
                    }
                }
            }),
        }
        if let (true, None, Ok(geometry)) =
            (info.footer, &footer, self.store.array.geometry_of(segment))
        {
            // The remains of a lost footer, and parity over it, may be the only way to recover it.
            // Its length is lost with it.
            let total = geometry.blocks_per_segment();
            for block in total - footer_blocks(total)..total {
                owners.entry(block).or_insert(Owner::Unknown(None));
            }
        }
        owners
    }

    pub(crate) fn judge(
        &self,
        owners: &BTreeMap<u32, Owner>,
        addr: BlockAddr,
        block: &[u8],
    ) -> BlockVerdict {
        match owners.get(&addr.block()) {
            None => BlockVerdict::Dead,
            Some(Owner::Pool(right)) if right == block => BlockVerdict::Good,
            Some(Owner::Pool(_)) => BlockVerdict::Bad,
            Some(Owner::Unknown(None)) => BlockVerdict::Bad,
            Some(Owner::Unknown(Some((volume, lba)))) => {
                let still = self.store.map.borrow().owner(*volume, *lba, addr).is_some();
                if still { BlockVerdict::Bad } else { BlockVerdict::Dead }
            }
            Some(Owner::Data(volume, lba, sum)) => {
                // The block may have been overwritten since the back references were made.
                let still = self.store.map.borrow().owner(*volume, *lba, addr).is_some();
                match self.store.reader.fits((*volume, *lba), block, *sum) {
                    true => BlockVerdict::Good,
                    false if still => BlockVerdict::Bad,
                    false => BlockVerdict::Dead,
                }
            }
        }
    }
    /// Puts the damaged blocks of a segment into the error log, where their place is known.
    pub(crate) fn note_damaged(&self, owners: &BTreeMap<u32, Owner>, damaged: Vec<BlockAddr>) {
        for addr in damaged {
            let owner = owners.get(&addr.block());
            if let Some(Owner::Data(volume, lba, _) | Owner::Unknown(Some((volume, lba)))) = owner {
                self.note_lost_at(*volume, *lba, addr);
            }
        }
    }
}

#[cfg(test)]
mod tests;
