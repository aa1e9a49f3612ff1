//! Repacking: what is in use of packed blocks with gaps goes to other packed blocks.
//!
//! The cleaner repacks what it would move, and each group some other blocks when gaps take too much
//! of the pool. References follow when the next root's changes are applied to the map, where some
//! version still has the old one. See `docs/rfcs/0015-compression.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_compress::{Compression, compress, decompress};
use forebay_device::IoBuf;
use forebay_format::map_record::Delta;
use forebay_format::packed::{
    PACKED_ROOM_BYTES, PackedRef, PackedTable, Unit, UnitEntry, room_of, unit_in,
};
use forebay_map::{Located, PACKED_VOLUME};
use forebay_rt as rt;
use forebay_segment::{Classes, Wanted};
use forebay_units::{BLOCK_LEN, BlockAddr, CommitId, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::commit::error::CommitError;
use crate::commit::work;
use crate::state::Writers;

/// A packed block is repacked only when what is in use of it takes at most so much of its room.
const MAX_ROOM_IN_USE: usize = PACKED_ROOM_BYTES * 7 / 8;
/// A group may take so much more for some blocks as it has gained with others: a unit that lies in
/// two packed blocks is repacked with the first, and the room comes back with the second.
const MOST_CREDIT: usize = PACKED_ROOM_BYTES;
/// Packed blocks that a group repacks, and that it looks at, beside a part of its own blocks.
const LEAST_REPACKED: u64 = 32;
const LEAST_LOOKED_AT: u64 = 16;
/// Space is short when less than one in so many usable blocks is free.
const SHORT_SHARE: u64 = 16;
/// Packed blocks that are read at once.
const READ_AT_ONCE: usize = 32;
/// What compressing a part of a unit again takes, for the simulation.
const RECOMPRESS_COST: Nanos = Nanos::from_micros(10);
/// Upper bound for a run of references in the map journal, in bytes.
const REFERENCES_BYTES: u64 = 20;
/// Repacking takes one in so many parts of a segment of the map journal, with each root.
const JOURNAL_SHARE: u64 = 8;

/// Blocks of a unit, a bit for each.
type Mask = u8;

/// What has been repacked since the last root. The next root applies it.
#[derive(Default)]
pub(crate) struct Repacked {
    /// New packed blocks, their places and checksums.
    placed: Vec<(Lba, BlockAddr, u64)>,
    moved: Vec<MovedRefs>,
    /// Units that were repacked: packed block and slot.
    units: BTreeSet<(u64, u8)>,
}

/// Consecutive references, and what follows them.
struct MovedRefs {
    /// The volume that wrote the blocks, and the first of them there.
    bound: (VolumeId, Lba),
    old: BlockAddr,
    new: BlockAddr,
    blocks: u32,
}

/// Where repacked blocks are written.
#[derive(Clone, Copy)]
pub(super) struct RepackTo {
    pub stream: u8,
    /// Whether last rows of other streams are filled first.
    pub fills_rows: bool,
    pub clock: u64,
    pub commit: CommitId,
    /// Segments that are left to the journal.
    pub keep: u32,
}

/// A unit with at least one block in use.
struct LiveUnit {
    /// The packed block that it begins in.
    number: u64,
    entry: UnitEntry,
    /// Its blocks that are in use after the group that is being written.
    live: Mask,
}

impl LiveUnit {
    fn is_whole(&self) -> bool {
        self.live.count_ones() == u32::from(self.entry.blocks)
    }

    /// About what the blocks in use take when they are repacked.
    fn room_bytes(&self) -> usize {
        self.entry.room_bytes() * self.live.count_ones() as usize / usize::from(self.entry.blocks)
    }

    /// The unit as it is, or its blocks in use as units of their own where these take less.
    fn repacked(&self, bytes: Vec<u8>) -> Vec<NewUnit> {
        let parts = if self.is_whole() { None } else { self.recompressed(&bytes) };
        let room = |parts: &[NewUnit]| -> usize { parts.iter().map(NewUnit::room_bytes).sum() };
        if let Some(parts) = parts.filter(|parts| room(parts) < self.entry.room_bytes()) {
            return parts;
        }
        let UnitEntry { volume, lba, blocks, codec, .. } = self.entry;
        vec![self.new_unit(Unit { volume, lba, blocks, codec, bytes }, 0, self.live)]
    }

    /// Each run of blocks in use as a unit of its own; `None` when one does not become smaller.
    fn recompressed(&self, bytes: &[u8]) -> Option<Vec<NewUnit>> {
        let UnitEntry { volume, lba, blocks, codec, .. } = self.entry;
        let data = decompress(codec, bytes, usize::from(blocks)).ok()?;
        let parts = runs_of(self.live).into_iter().map(|(first, blocks)| {
            let range = usize::from(first) * BLOCK_LEN..usize::from(first + blocks) * BLOCK_LEN;
            let (codec, bytes) = compress(Compression::like(codec), &data[range])?;
            let lba = Lba(lba.0 + u64::from(first));
            let unit = Unit { volume, lba, blocks, codec, bytes };
            Some(self.new_unit(unit, first, (1 << blocks) - 1))
        });
        parts.collect()
    }

    fn new_unit(&self, unit: Unit, first: u8, live: Mask) -> NewUnit {
        let old = self.entry.reference(Lba(self.number), first).addr();
        NewUnit { unit, from: (self.number, self.entry.slot), old, live }
    }
}

/// A unit that is packed again: some or all blocks of one that is there.
struct NewUnit {
    unit: Unit,
    /// Packed block and slot of the unit that its blocks come from.
    from: (u64, u8),
    /// The reference to its first block.
    old: BlockAddr,
    /// Its blocks that are in use.
    live: Mask,
}

impl NewUnit {
    fn room_bytes(&self) -> usize {
        room_of(self.unit.bytes.len())
    }
}

/// The runs of bits that are set: first bit, and how many.
fn runs_of(mask: Mask) -> Vec<(u8, u8)> {
    let mut runs: Vec<(u8, u8)> = Vec::new();
    for at in (0..Mask::BITS as u8).filter(|at| mask >> at & 1 == 1) {
        match runs.last_mut() {
            Some((first, blocks)) if *first + *blocks == at => *blocks += 1,
            _ => runs.push((at, 1)),
        }
    }
    runs
}

/// Packed blocks that are in memory.
pub(super) type Near<'a> = BTreeMap<u64, &'a [u8]>;

/// Packed blocks that are in memory, and those that were read beside them.
struct Blocks<'a> {
    near: &'a Near<'a>,
    read: BTreeMap<u64, IoBuf>,
}

impl Blocks<'_> {
    /// A packed block; `None` if it cannot be read.
    async fn get(&mut self, pool: &Pool, number: u64) -> Option<&[u8]> {
        if !self.near.contains_key(&number) && !self.read.contains_key(&number) {
            let read = pool.read_packed_blocks(&[number]).await.pop()??;
            self.read.insert(number, read);
        }
        self.here(number)
    }

    fn here(&self, number: u64) -> Option<&[u8]> {
        let near = self.near.get(&number).copied();
        near.or_else(|| self.read.get(&number).map(|block| &block[..]))
    }

    /// The compressed bytes of a unit.
    async fn unit(&mut self, pool: &Pool, number: u64, entry: &UnitEntry) -> Option<Vec<u8>> {
        let from = entry.reference(Lba(number), 0);
        let numbers = number..number + from.span();
        for number in numbers.clone() {
            self.get(pool, number).await?;
        }
        let span: Vec<&[u8]> = numbers.filter_map(|number| self.here(number)).collect();
        unit_in(&span, from.slot).ok().map(|(_, bytes)| bytes)
    }
}

impl Pool {
    /// Reads packed blocks; `None` for each that cannot be read.
    async fn read_packed_blocks(&self, numbers: &[u64]) -> Vec<Option<IoBuf>> {
        let wanted: Vec<Option<Wanted>> = {
            let map = self.store.map.borrow();
            let found = numbers.iter().map(|number| map.lookup(PACKED_VOLUME, Lba(*number)));
            let wanted = |Located { home, bound, addr, sum }| Wanted {
                addr,
                volume: home,
                lba: bound,
                blocks: 1,
                sums: vec![sum],
            };
            found.map(|found| found.map(wanted)).collect()
        };
        let reads = wanted
            .iter()
            .map(|wanted| async move { self.store.reader.read(wanted.as_ref()?).await.ok() });
        rt::join_all(reads).await
    }

    /// Repacks some packed blocks along with a group of `blocks`, if gaps take more than they may.
    pub(super) async fn repack_along(
        self: &Rc<Self>,
        writers: &mut Writers,
        blocks: u64,
        (commit, keep): (CommitId, u32),
    ) -> Result<(), CommitError> {
        if blocks == 0 || !self.packed.is_used() || self.lifecycle.closing.get() {
            return Ok(());
        }
        let is_short = self.free_blocks() < self.dirty.space.usable_blocks.get() / SHORT_SHARE;
        let most = LEAST_REPACKED + blocks / 2;
        let most_unknown = LEAST_LOOKED_AT + blocks / 8;
        let sparse = self.packed.next_sparse(most as usize, most_unknown as usize, is_short);
        for numbers in sparse.unknown.chunks(READ_AT_ONCE) {
            let read = self.read_packed_blocks(numbers).await;
            for (number, block) in numbers.iter().zip(read) {
                self.note_density(*number, block.as_deref());
            }
        }
        let Some(to) = self.room_for_repacked(writers, &sparse.repacked, commit, keep) else {
            return Ok(());
        };
        let mut credit = MOST_CREDIT;
        for numbers in sparse.repacked.chunks(READ_AT_ONCE) {
            let read = self.read_packed_blocks(numbers).await;
            let read = numbers.iter().zip(&read);
            let near: Near<'_> =
                read.filter_map(|(number, block)| Some((*number, &block.as_ref()?[..]))).collect();
            for number in numbers {
                if !near.contains_key(number) {
                    self.packed.note_dense(*number);
                    continue;
                }
                let most = MAX_ROOM_IN_USE + credit;
                match self.repack_within(writers, *number, &near, &to, most).await? {
                    Some(room) => credit = (most - room).min(MOST_CREDIT),
                    None if credit == MOST_CREDIT => self.packed.note_dense(*number),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Notes how full a packed block is. One that cannot be read is left alone.
    pub(super) fn note_density(&self, number: u64, block: Option<&[u8]>) {
        match block.and_then(|block| PackedTable::read(block).ok()) {
            Some(table) => self.packed.note_table(number, &table),
            None => self.packed.note_dense(number),
        }
    }

    /// Where these packed blocks go when they are repacked; `None` when there is no room.
    fn room_for_repacked(
        &self,
        writers: &Writers,
        numbers: &[u64],
        commit: CommitId,
        keep: u32,
    ) -> Option<RepackTo> {
        let found = self.store.map.borrow().lookup(PACKED_VOLUME, Lba(*numbers.first()?))?;
        let info = self.store.table.get(found.addr.segment());
        let stream = self.store.classes.moved_stream(self.stats.clock(), info.stream, info.clock);
        let left = u64::from(writers.data[usize::from(stream)].blocks_left());
        // One more for the credit.
        let new = (numbers.len() as u64 + 1).saturating_sub(left).div_ceil(self.per_segment());
        let spare = keep + self.limits.get().reserve_segments;
        let has_room =
            new == 0 || u64::from(self.store.table.free_count()) > u64::from(spare) + new;
        has_room.then_some(RepackTo { stream, fills_rows: false, clock: info.clock, commit, keep })
    }

    /// Repacks what is in use of a packed block, and the unit that begins before it, if that gains
    /// room. Returns whether nothing in it will be in use when the next root's changes are applied.
    pub(super) async fn repack(
        self: &Rc<Self>,
        writers: &mut Writers,
        number: u64,
        near: &Near<'_>,
        to: &RepackTo,
    ) -> Result<bool, CommitError> {
        Ok(self.repack_within(writers, number, near, to, MAX_ROOM_IN_USE).await?.is_some())
    }

    /// As [`Pool::repack`], if that takes at most `most` bytes of room. Returns how many it takes.
    async fn repack_within(
        self: &Rc<Self>,
        writers: &mut Writers,
        number: u64,
        near: &Near<'_>,
        to: &RepackTo,
        most: usize,
    ) -> Result<Option<usize>, CommitError> {
        let most_moved = self.journal_segment_bytes() / JOURNAL_SHARE / REFERENCES_BYTES;
        if writers.repacked.moved.len() as u64 >= most_moved {
            return Ok(None);
        }
        let mut blocks = Blocks { near, read: BTreeMap::new() };
        let units = self.repacked_units(&writers.repacked, number, &mut blocks, most).await;
        let room: usize = units.iter().flatten().map(NewUnit::room_bytes).sum();
        let Some(units) = units.filter(|_| room <= most) else { return Ok(None) };
        for new in units {
            if !self.pack_again(writers, &new) {
                return Ok(None);
            }
            self.store_repacked(writers, to).await?;
        }
        self.packed.count_repacked();
        Ok(Some(room))
    }

    /// The units that lie in a packed block and were not repacked yet, as they are packed again.
    /// `None` if they take more than `most` bytes of room, or cannot all be found.
    async fn repacked_units(
        &self,
        repacked: &Repacked,
        number: u64,
        blocks: &mut Blocks<'_>,
        most: usize,
    ) -> Option<Vec<NewUnit>> {
        let mut units = self.live_units(number, blocks).await?;
        units.retain(|unit| !repacked.units.contains(&(unit.number, unit.entry.slot)));
        if units.iter().map(LiveUnit::room_bytes).sum::<usize>() > most {
            return None;
        }
        let mut all = Vec::with_capacity(units.len());
        for unit in units {
            let bytes = blocks.unit(self, unit.number, &unit.entry).await?;
            all.push((unit, bytes));
        }
        let parts = all.iter().filter(|(unit, _)| !unit.is_whole()).count() as u64;
        let repacked = move || -> Vec<NewUnit> {
            all.into_iter().flat_map(|(unit, bytes)| unit.repacked(bytes)).collect()
        };
        match parts {
            0 => Some(repacked()),
            parts => Some(rt::compute(Nanos(RECOMPRESS_COST.0 * parts), repacked).await),
        }
    }

    /// The units of which something in use lies in a packed block; `None` if they are not those
    /// that its references are to.
    async fn live_units(&self, number: u64, blocks: &mut Blocks<'_>) -> Option<Vec<LiveUnit>> {
        let table = PackedTable::read(blocks.get(self, number).await?).ok()?;
        let mut found = 0;
        let mut units: Vec<LiveUnit> = Vec::new();
        for entry in &table.units {
            let (referenced, live) = self.live_of(number, entry);
            found += referenced;
            units.push(LiveUnit { number, entry: *entry, live });
        }
        let count = self.packed.count(number);
        // Where the unit that goes on here is not in use, the blocks before may be gone.
        if found < count && table.is_continued() {
            let (before, entry) = self.unit_before(number, blocks).await?;
            let (referenced, live) = self.live_of(before, &entry);
            found += referenced;
            units.push(LiveUnit { number: before, entry, live });
        }
        units.retain(|unit| unit.live > 0);
        (found == count).then_some(units)
    }

    /// The unit that begins before a packed block and goes on in it, and where it begins: in the
    /// last block before that has a table of units.
    async fn unit_before(&self, number: u64, blocks: &mut Blocks<'_>) -> Option<(u64, UnitEntry)> {
        for before in (number.saturating_sub(PackedRef::MAX_FURTHER)..number).rev() {
            let table = PackedTable::read(blocks.get(self, before).await?).ok()?;
            if let Some(entry) = table.units.last() {
                let end = before + entry.reference(Lba(before), 0).span();
                return (end > number).then_some((before, *entry));
            }
        }
        None
    }

    /// Blocks of a unit that some version refers to, and those of them that are in use after the
    /// group that is being written.
    fn live_of(&self, number: u64, entry: &UnitEntry) -> (u64, Mask) {
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let (mut referenced, mut live) = (0, 0);
        for index in 0..entry.blocks {
            let lba = Lba(entry.lba.0 + u64::from(index));
            let addr = entry.reference(Lba(number), index).addr();
            rt::model_work(work::PIECE);
            let Some((owner, _)) = map.owner(entry.volume, lba, addr) else { continue };
            referenced += 1;
            let syncing = groups.syncing().and_then(|set| set.volumes.get(&owner));
            let is_overwritten = syncing.is_some_and(|extents| extents.covers(lba));
            // What a group overwrites goes to a snapshot, if there is one.
            if !is_overwritten || self.has_versions(owner) {
                live |= 1 << index;
            }
        }
        (referenced, live)
    }

    /// Packs a unit again. Returns whether there was a number for its packed block.
    fn pack_again(&self, writers: &mut Writers, new: &NewUnit) -> bool {
        let at = {
            let map = self.store.map.borrow();
            let is_free = |number| self.packed.is_unused(number) && !map.has_packed(number);
            writers.packer.push(&new.unit, is_free, &mut writers.full)
        };
        let Some(at) = at else { return false };
        writers.repacked.units.insert(new.from);
        for (first, blocks) in runs_of(new.live) {
            let Unit { volume, lba, .. } = new.unit;
            writers.repacked.moved.push(MovedRefs {
                bound: (volume, Lba(lba.0 + u64::from(first))),
                old: new.old.plus(first.into()),
                new: at.addr().plus(first.into()),
                blocks: blocks.into(),
            });
        }
        true
    }

    /// Writes the packed block that repacked units fill.
    pub(super) async fn finish_repacked(
        self: &Rc<Self>,
        writers: &mut Writers,
        to: &RepackTo,
    ) -> Result<(), CommitError> {
        writers.full.extend(writers.packer.flush());
        self.store_repacked(writers, to).await
    }

    /// Writes the packed blocks that are complete into segments.
    async fn store_repacked(
        self: &Rc<Self>,
        writers: &mut Writers,
        to: &RepackTo,
    ) -> Result<(), CommitError> {
        let RepackTo { stream, fills_rows, clock, commit, keep } = *to;
        for block in std::mem::take(&mut writers.full) {
            self.note_density(block.number.0, Some(&block.bytes));
            let row = if fills_rows { Self::with_open_row(writers, true) } else { None };
            let stream = row.unwrap_or(stream);
            let writer = &mut writers.data[usize::from(stream)];
            let (volume, number) = (PACKED_VOLUME, block.number);
            let block = IoBuf::copy_of(&block.bytes).freeze();
            let place = writer.append(volume, number, block, commit, clock, keep).await?;
            if Classes::is_user(stream) {
                writer.count_filler();
            }
            rt::model_work(work::BLOCK);
            writers.repacked.placed.push((number, place.0, place.1));
        }
        Ok(())
    }

    /// Applies to the map what was repacked.
    pub(super) async fn apply_repacked(
        &self,
        writers: &mut Writers,
        delta: &mut Delta,
    ) -> Result<(), CommitError> {
        let mut slices = rt::Slices::new();
        let Repacked { placed, moved, .. } = std::mem::take(&mut writers.repacked);
        for (number, addr, sum) in placed {
            let mut freed = |addr, blocks| self.free_run(addr, blocks);
            self.store.table.add_live(addr, 1);
            let map = &self.store.map;
            map.borrow_mut().set_run(PACKED_VOLUME, number, addr, &[sum], false, &mut freed)?;
            delta.assign(PACKED_VOLUME, number, addr, &[sum]);
            rt::model_work(work::run(1));
            slices.step().await;
        }
        for refs in moved {
            self.apply_moved_refs(&refs, delta);
            slices.step().await;
        }
        Ok(())
    }

    /// Gives the new references to the versions that still have the old ones.
    fn apply_moved_refs(&self, moved: &MovedRefs, delta: &mut Delta) {
        let MovedRefs { bound, old, new, blocks } = *moved;
        // What no version has any more has references for a moment, and is freed.
        self.packed.refer(new, blocks);
        let mut map = self.store.map.borrow_mut();
        map.replace_refs(bound, old, new, blocks, |owner, lba, now, blocks| match owner {
            Some(owner) => {
                let before = BlockAddr::from_raw(old.raw() + now.raw() - new.raw());
                self.packed.release(before, blocks);
                delta.assign_sealed(owner, lba, now, blocks);
            }
            None => self.packed.release(now, blocks),
        });
        rt::model_work(work::run(blocks as usize));
    }
}

#[cfg(test)]
mod tests;
