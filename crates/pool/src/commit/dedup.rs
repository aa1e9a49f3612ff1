//! De-duplication of a group: blocks whose content is in the main store refer to it, others get a
//! number in the hidden volume, and numbers without references are freed.

use std::rc::Rc;

use forebay_dedup::Fingerprint;
use forebay_format::fingerprints::Fingerprints;
use forebay_format::journal::{FrameKind, MAX_PAYLOAD_BYTES};
use forebay_format::map_record::Delta;
use forebay_map::{DEDUP_VOLUME, ExtentKind, PackedRef, dedup_block};
use forebay_rt as rt;
use forebay_segment::Wanted;
use forebay_units::{BLOCK_LEN, BlockAddr, CommitId, Lba, VolumeId};

use crate::Pool;
use crate::commit::error::CommitError;
use crate::commit::work;
use crate::dedup::DedupMode;
use crate::packed::PackedPart;
use crate::state::Writers;

/// Blocks around one that was found whose contents are looked at, when the index has a sample only.
const NEIGHBOR_BLOCKS: u64 = 64;

impl Pool {
    /// Whether and how a volume's blocks are de-duplicated.
    pub(crate) fn dedup_mode(&self, volume: VolumeId) -> DedupMode {
        let volumes = self.volumes.borrow();
        volumes.get(&volume).map_or(DedupMode::Off, |volume| volume.dedup.get())
    }

    /// Whether some volume is de-duplicated.
    pub(crate) fn has_dedup(&self) -> bool {
        let volumes = self.volumes.borrow();
        volumes.values().any(|volume| volume.dedup.get() != DedupMode::Off)
    }

    /// The number under which the content of a block is stored already.
    pub(crate) async fn known_content(
        self: &Rc<Self>,
        fingerprint: &Fingerprint,
        block: &[u8],
        mode: DedupMode,
    ) -> Option<u64> {
        let (number, fresh) = self.dedup.find(fingerprint)?;
        if mode == DedupMode::Verify {
            let same = match fresh {
                Some(data) => data[..] == *block,
                None => self.content_of(number).await.is_some_and(|data| data[..] == *block),
            };
            if !same {
                return None;
            }
        }
        self.dedup.count_found();
        Some(number)
    }

    /// The content of a virtual block; `None` if it cannot be read.
    async fn content_of(&self, number: u64) -> Option<Vec<u8>> {
        let (_, data) = self.contents(Lba(number), 1).await.pop()?;
        Some(data)
    }

    /// The contents of virtual blocks from `first` on, with their numbers. What cannot be read is
    /// left out.
    async fn contents(&self, first: Lba, blocks: u64) -> Vec<(u64, Vec<u8>)> {
        let (mut plain, mut packed): (Vec<(u64, Wanted)>, Vec<PackedPart>) = Default::default();
        self.store.map.borrow().lookup_range(DEDUP_VOLUME, first, blocks, |part| match part.kind {
            ExtentKind::Mapped { home, bound, addr, sums } => {
                let (volume, blocks, sums) = (home, part.blocks as u32, sums.iter().collect());
                plain.push((part.lba.0, Wanted { addr, volume, lba: bound, blocks, sums }));
            }
            ExtentKind::Packed { home, bound, addr } => {
                let at_bytes = (part.lba.0 - first.0) as usize * BLOCK_LEN;
                let (lba, blocks) = (part.lba, part.blocks);
                packed.push(PackedPart { at_bytes, lba, home, bound, addr, blocks });
            }
            ExtentKind::Hole => {}
        });
        let mut found = Vec::new();
        for part in &packed {
            for (at_bytes, data) in self.read_packed(&[*part]).await.unwrap_or_default() {
                found.push((first.0 + (at_bytes / BLOCK_LEN) as u64, data));
            }
        }
        for (number, part) in plain {
            let Ok(data) = self.store.reader.read(&part).await else { continue };
            found.extend((number..).zip(data.chunks(BLOCK_LEN).map(<[u8]>::to_vec)));
        }
        found
    }

    /// Looks at the neighbors of the contents that are found, when the index has only a sample:
    /// beside a block in a copy are likely to be those that were beside it in the original.
    pub(crate) async fn look_for_neighbors(&self, hashes: &[Fingerprint]) {
        if !self.dedup.is_sampled() {
            return;
        }
        for fingerprint in hashes {
            if !self.dedup.is_near(fingerprint) {
                if let Some((number, None)) = self.dedup.find(fingerprint) {
                    self.look_at_neighbors(number).await;
                }
            }
        }
    }

    /// Keeps the fingerprints of contents that were stored beside one that was found.
    async fn look_at_neighbors(&self, number: u64) {
        let first = number - number % NEIGHBOR_BLOCKS;
        let key = self.dedup.key();
        // What cannot be read is not found, which costs space alone.
        for (number, block) in self.contents(Lba(first), NEIGHBOR_BLOCKS).await {
            self.dedup.note_neighbor(key.fingerprint(&block), number);
        }
    }

    /// Gives back a run that no version needs any more: a place in the main store, or references.
    pub(crate) fn free_run(&self, addr: BlockAddr, blocks: u32) {
        if dedup_block(addr).is_none() && PackedRef::of(addr).is_none() {
            self.cache.drop_run(addr, blocks);
            rt::model_work(work::uncache(blocks));
        }
        self.cut_run(addr, blocks);
    }

    /// As [`Pool::free_run`], for runs that may be long: their blocks leave the cache as others
    /// come.
    pub(crate) fn cut_run(&self, addr: BlockAddr, blocks: u32) {
        rt::model_work(work::PIECE);
        match dedup_block(addr) {
            Some(first) => self.dedup.release(first, blocks),
            None if PackedRef::of(addr).is_some() => self.packed.release(addr, blocks),
            None => self.store.table.sub_live(addr, blocks),
        }
    }

    /// Frees the contents that lost their last reference.
    pub(crate) async fn free_unused_contents(&self, delta: &mut Delta) -> Result<(), CommitError> {
        self.dedup.group_is_applied();
        let mut slices = rt::Slices::new();
        let unused = self.dedup.take_unused();
        for run in unused.chunk_by(|a, b| a + 1 == *b) {
            let (first, blocks) = (Lba(run[0]), run.len() as u64);
            let mut freed = |addr, blocks| self.free_run(addr, blocks);
            self.store.map.borrow_mut().clear(DEDUP_VOLUME, first, blocks, &mut freed)?;
            delta.clear(DEDUP_VOLUME, first, blocks);
            slices.step().await;
        }
        Ok(())
    }

    /// Appends the fingerprints of new contents to the journal.
    pub(crate) async fn append_fingerprints(
        &self,
        writers: &mut Writers,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        match self.dedup.take_unwritten() {
            Some(new) => self.append_fingerprints_of(writers, &new, commit).await,
            None => Ok(()),
        }
    }

    /// Appends the next parts of the index, of about `budget_bytes`, to a checkpoint. Returns the
    /// part to go on with; `None` after the last.
    pub(crate) async fn append_index(
        &self,
        writers: &mut Writers,
        first: usize,
        budget_bytes: u64,
        commit: CommitId,
    ) -> Result<Option<usize>, CommitError> {
        let (mut part, mut bytes) = (first, 0);
        let mut all = Fingerprints::default();
        while bytes < budget_bytes {
            let Some(next) = self.dedup.part(part) else { break };
            part += 1;
            bytes += (next.records.len() * forebay_format::fingerprints::RECORD_BYTES) as u64;
            all.next = next.next;
            all.records.extend(next.records);
        }
        if all.next > 0 {
            self.append_fingerprints_of(writers, &all, commit).await?;
        }
        Ok((bytes >= budget_bytes).then_some(part))
    }

    async fn append_fingerprints_of(
        &self,
        writers: &mut Writers,
        all: &Fingerprints,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        const MOST: usize = Fingerprints::fit(MAX_PAYLOAD_BYTES);
        let mut chunks = all.records.chunks(MOST);
        let mut next = Some(chunks.next().unwrap_or_default());
        while let Some(records) = next {
            let payload = Fingerprints { next: all.next, records: records.to_vec() }.encode();
            writers.journal.append(FrameKind::Fingerprints, &payload, commit).await?;
            next = chunks.next();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
