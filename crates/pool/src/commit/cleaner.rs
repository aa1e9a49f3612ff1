//! The cleaner: moves live blocks out of mostly dead segments, so that segments become free.
//!
//! It usually works along with a group, fills the group's last rows with the blocks that it moves,
//! and one root commits all of it. Blocks that the group overwrites count as dead. When a group
//! needs more room than is free, the cleaner works before it, with roots of its own.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_format::map_record::Delta;
use forebay_map::PACKED_VOLUME;
use forebay_rt as rt;
use forebay_segment::{Choice, Classes, STREAMS, SegmentInfo, Victim, Victims, Wanted};
use forebay_txg::DirtySet;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use super::checkpoint::checkpoint_budget;
use super::error::CommitError;
use super::repacking::{Near, RepackTo};
use crate::Pool;
use crate::layout::journal_copies;
use crate::state::{Relocation, Writers};

/// Blocks read at once from a victim.
const CHUNK_BLOCKS: u32 = 256;

/// Rounds without a block gained after which the group uses the room that there is.
const FRUITLESS_ROUNDS: u32 = 16;

/// Free segments for moved blocks from which on these are separated by age.
const ROOM_TO_SEPARATE: u32 = 4;

/// The cleaner keeps at most one in so many segments free, so that it seldom needs its own root.
const WORKING_SHARE: u32 = 100;

/// Upper bound for one block's change in the map journal, in bytes.
const CHANGE_BYTES: u64 = 20;

/// Upper bound for blocks written per block of a group in a full pool, moved blocks included.
const MOVED_AND_WRITTEN: u64 = 4;

/// A live block of a victim.
struct Live {
    block: u32,
    volume: VolumeId,
    lba: Lba,
    sum: Option<u64>,
}

/// Blocks of data that were written since the import.
fn written_blocks(writers: &Writers) -> u64 {
    writers.data.iter().map(|writer| writer.counts().data).sum()
}

/// Consecutive blocks of a victim, with a part of its live ones.
struct Chunk {
    first: u32,
    /// `None` if they cannot be read at once.
    bytes: Option<IoBuf>,
}

impl Chunk {
    async fn read(pool: &Pool, segment: SegmentId, live: &[Live]) -> Self {
        let (first, last) = (live[0].block, live[live.len() - 1].block);
        let addr = BlockAddr::new(segment, first);
        Self { first, bytes: pool.store.array.read(addr, last - first + 1).await.ok() }
    }

    fn block(&self, entry: &Live) -> Option<&[u8]> {
        let start = (entry.block - self.first) as usize * BLOCK_LEN;
        self.bytes.as_ref().map(|bytes| &bytes[start..start + BLOCK_LEN])
    }

    /// The packed blocks that are right.
    fn packed_blocks(&self, pool: &Pool, live: &[Live]) -> Near<'_> {
        let packed = live.iter().filter(|entry| entry.volume == PACKED_VOLUME);
        let right = packed.filter_map(|entry| {
            let block = self.block(entry).filter(|block| pool.is_right(entry, block))?;
            Some((entry.lba.0, block))
        });
        right.collect()
    }
}

impl Pool {
    /// Blocks of data in a segment.
    pub(super) fn per_segment(&self) -> u64 {
        u64::from(self.store.table.data_blocks(SegmentId(0))).max(1)
    }

    /// Least number of bytes that a segment of the map journal holds: half where the journal has
    /// copies.
    pub(crate) fn journal_segment_bytes(&self) -> u64 {
        self.per_segment() * BLOCK_BYTES / self.journal_copies()
    }

    /// Number of copies of the map journal.
    pub(crate) fn journal_copies(&self) -> u64 {
        journal_copies(&self.store.array.groups())
    }

    /// Blocks that a group writes; where there are snapshots, with what its holes are charged.
    pub(crate) fn blocks_in(&self, group: &DirtySet) -> u64 {
        let blocks = group.data_blocks();
        match self.snapshots.is_empty() {
            true => blocks,
            false => blocks.max(group.held.bytes().div_ceil(BLOCK_BYTES)),
        }
    }

    /// Segments that a group of `blocks` may need, beside the open ones.
    fn segments_for(&self, blocks: u64, writers: &Writers) -> u32 {
        let user = writers.data.iter().enumerate().filter(|(at, _)| Classes::is_user(*at as u8));
        let left: u64 = user.map(|(_, writer)| u64::from(writer.blocks_left())).sum();
        blocks.saturating_sub(left).div_ceil(self.per_segment()) as u32 + 1
    }

    /// Segments reserved for the map journal while a group of `blocks`, and the blocks moved with
    /// it, are written.
    pub(crate) fn journal_keep(&self, blocks: u64) -> u32 {
        // With snapshots each overwrite may also give one of them an entry; with de-duplication it
        // may bring a reference and a fingerprint, and free a content.
        let mut entries = if self.snapshots.is_empty() { 1 } else { 2 };
        entries += if self.dedup.is_used() || self.has_dedup() { 3 } else { 0 };
        // With compression it may bring a reference and a packed block, and free one.
        entries += if self.packed.is_used() || self.has_compression() { 2 } else { 0 };
        let bytes = blocks * MOVED_AND_WRITTEN * CHANGE_BYTES * entries + self.let_go_bytes();
        let segments = bytes / self.journal_segment_bytes();
        self.limits.get().map_reserve_segments + segments as u32
    }

    /// Segments that must be free before a group of `blocks` is written, so that the cleaner and
    /// the journal can continue after it in any case.
    pub(super) fn segments_before(&self, blocks: u64, writers: &Writers) -> u32 {
        self.segments_for(blocks, writers)
            + self.journal_keep(blocks)
            + self.limits.get().reserve_segments
            + self.segments_of_a_checkpoint(blocks, writers)
    }

    /// Free segments below which emptied segments are freed at once.
    pub(crate) fn is_tight(&self, writers: &Writers) -> bool {
        let blocks = self.blocks_in(self.dirty.groups.borrow().open());
        let blocks = blocks.max(self.stats.last_group_blocks());
        self.store.table.free_count() < 2 * self.segments_before(blocks, writers)
    }

    /// Cleans until the open group fits and the reserve is whole. Each round has its own root,
    /// because a segment is free only when no root needs it.
    pub(crate) async fn make_room(
        self: &Rc<Self>,
        writers: &mut Writers,
    ) -> Result<(), CommitError> {
        // A root of moved blocks alone adds little to the journal: one segment is enough.
        const LEAST_KEEP: u32 = 1;
        let (mut fruitless, mut best) = (0, 0);
        loop {
            let blocks = self.blocks_in(self.dirty.groups.borrow().open());
            let target = self.segments_before(blocks, writers);
            let free = self.store.table.free_count();
            if free >= target || fruitless >= FRUITLESS_ROUNDS {
                return Ok(());
            }
            let keep = self.limits.get().map_reserve_segments;
            // Cost-benefit chooses the victim; after a round without progress, the emptiest
            // segment.
            let choice = match self.store.classes.is_skewed() && fruitless == 0 {
                true => Choice::Worthiest { now: self.stats.clock() },
                false => Choice::Emptiest,
            };
            let mut moved = self.clean(writers, target - free, keep, choice).await?;
            if !moved {
                moved = self.clean(writers, 1, LEAST_KEEP, Choice::Emptiest).await?;
            }
            let commit = self.sync.commit.get().next();
            self.finish_data(writers, commit).await?;
            let mut delta = Delta::new();
            self.apply_moves(writers, &mut delta).await?;
            self.journal(writers, &delta, commit).await?;
            let txg = self.sync.committed.get();
            self.write_root(writers, txg, false).await?;
            let now = self.room_blocks(writers);
            fruitless = if now > best { 0 } else { fruitless + 1 };
            best = best.max(now);
            if !moved
                && self.store.table.emptied_count() == 0
                && self.store.table.free_count() <= free
            {
                return Ok(());
            }
        }
    }

    /// Cleans along with the group of `blocks` that is being written, so that the next group fits
    /// without a cleaning root. The group's blocks are in their rows; rows that are not full are
    /// filled with moved blocks. The group overwrites `overwritten` blocks, `young` of them young.
    pub(crate) async fn clean_along(
        self: &Rc<Self>,
        writers: &mut Writers,
        blocks: u64,
        (overwritten, young): (u64, u64),
        keep: u32,
    ) -> Result<(), CommitError> {
        let now = self.stats.clock();
        let (age, share) = self.store.table.live_ages(now, self.store.classes.young());
        let skewed = self.store.classes.judge_skew(overwritten, young, age, share);
        if self.lifecycle.closing.get() {
            return Ok(());
        }
        let choice = if skewed { Choice::Worthiest { now } } else { Choice::Emptiest };
        let next = self.blocks_in(self.dirty.groups.borrow().open()).max(blocks);
        let mut target = self.segments_before(next, writers);
        // Blocks moved beside the next group take room too, until the root that frees their
        // victims.
        if let Some(victim) = Victims::of(&self.store.table, self.sync.commit.get(), choice).first()
        {
            let live = u64::from(victim.live);
            let dead = u64::from(self.store.table.capacity(victim.segment)).max(live + 1) - live;
            let moved = (next * live / dead).div_ceil(self.per_segment()) as u32;
            target += moved.min(self.store.table.count() / WORKING_SHARE);
        }
        let soon = self.store.table.free_soon();
        if soon < target {
            self.clean(writers, target - soon, keep, choice).await?;
        }
        Ok(())
    }

    /// Segments for the part of a checkpoint that is written with a group of `blocks`, if a
    /// checkpoint is in progress or due.
    fn segments_of_a_checkpoint(&self, blocks: u64, writers: &Writers) -> u32 {
        let urgent = writers.checkpoint.is_some_and(|checkpoint| checkpoint.urgent);
        if !urgent && (writers.journal.segments() as u64) < self.checkpoint_worth() {
            return 0;
        }
        let part = checkpoint_budget(blocks * MOVED_AND_WRITTEN * CHANGE_BYTES);
        part.min(self.checkpoint_bytes()).div_ceil(self.journal_segment_bytes()) as u32
    }

    /// Blocks that can be written without cleaning. Where every segment is almost full of live
    /// blocks, whole segments are gained too seldom to measure progress by them.
    fn room_blocks(&self, writers: &Writers) -> u64 {
        let segments = u64::from(self.store.table.free_count() + self.store.table.emptied_count());
        let open: u64 = writers.data.iter().map(|w| u64::from(w.blocks_left())).sum();
        segments * self.per_segment() + open
    }

    /// Moves live blocks out of victims until about `wanted` segments will be free, and then until
    /// the open rows are full. Leaves `keep` segments to the journal. Returns whether there was a
    /// victim.
    async fn clean(
        self: &Rc<Self>,
        writers: &mut Writers,
        wanted: u32,
        keep: u32,
        choice: Choice,
    ) -> Result<bool, CommitError> {
        let mut victims = Victims::of(&self.store.table, self.sync.commit.get(), choice);
        let mut gained = 0.0;
        let mut any = false;
        while gained < f64::from(wanted) {
            let Some(victim) = victims.first() else { break };
            let Some(stream) = self.stream_for(writers, &victim, keep) else { break };
            victims.next();
            let blocks = f64::from(self.store.table.capacity(victim.segment));
            any = true;
            self.store.table.set_cleaning(victim.segment, true);
            let info = self.store.table.get(victim.segment);
            self.store.classes.reclaimed(self.stats.clock(), info.stream, info.clock);
            let before = written_blocks(writers);
            self.empty(writers, &victim, Some(stream), keep).await?;
            // Less than what is live where packed blocks had gaps.
            gained += 1.0 - (written_blocks(writers) - before) as f64 / blocks;
        }
        // Padding would be dead from the start; blocks moved now need not be moved next time.
        while any && writers.data.iter().any(|writer| writer.blocks_to_row_end() > 0) {
            let Some(victim) = victims.next() else { break };
            self.empty(writers, &victim, None, keep).await?;
        }
        Ok(any)
    }

    /// The stream for the live blocks of `victim`: by their age while there is room to separate,
    /// else the best fit. `None` when no stream has room.
    fn stream_for(&self, writers: &Writers, victim: &Victim, keep: u32) -> Option<u8> {
        let info = self.store.table.get(victim.segment);
        let left = |stream: u8| writers.data[usize::from(stream)].blocks_left();
        let spare = self.store.table.free_count().saturating_sub(keep + 1);
        let inferred = self.store.classes.moved_stream(self.stats.clock(), info.stream, info.clock);
        if left(inferred) >= victim.live || spare >= ROOM_TO_SEPARATE {
            return Some(inferred);
        }
        let moved = (0..STREAMS).filter(|stream| !Classes::is_user(*stream));
        let roomiest = moved.max_by_key(|stream| (left(*stream), *stream == inferred))?;
        (left(roomiest) >= victim.live || spare > 0).then_some(roomiest)
    }

    /// A stream whose last row is not full; streams of host writes come first.
    pub(super) fn with_open_row(writers: &Writers, user_only: bool) -> Option<u8> {
        let open = |stream: &u8| writers.data[usize::from(*stream)].blocks_to_row_end() > 0;
        (0..STREAMS).filter(|stream| !user_only || Classes::is_user(*stream)).find(open)
    }

    /// Moves the live blocks of `victim` to `stream`, filling the last rows of the host's streams
    /// first; repacks packed blocks with gaps. Without a stream, moves only as many as fill the
    /// rows of all streams.
    async fn empty(
        self: &Rc<Self>,
        writers: &mut Writers,
        victim: &Victim,
        stream: Option<u8>,
        keep: u32,
    ) -> Result<(), CommitError> {
        let info = self.store.table.get(victim.segment);
        let mut live = self.live_blocks(victim.segment, &info).await;
        let commit = self.sync.commit.get().next();
        if stream.is_none() {
            let fill: u32 = writers.data.iter().map(|writer| writer.blocks_to_row_end()).sum();
            live.truncate(fill as usize);
        }
        let repack_to = stream.map(|stream| {
            let (fills_rows, clock) = (true, info.clock);
            RepackTo { stream, fills_rows, clock, commit, keep }
        });
        let mut slices = rt::Slices::new();
        let mut at = 0;
        while at < live.len() {
            let first = live[at].block;
            let upto = live.partition_point(|l| l.block < first + CHUNK_BLOCKS);
            let chunk = Chunk::read(self, victim.segment, &live[at..upto]).await;
            let near = chunk.packed_blocks(self, &live[at..upto]);
            for entry in &live[at..upto] {
                let old = BlockAddr::new(victim.segment, entry.block);
                let repaired;
                let block = match chunk.block(entry).filter(|block| self.is_right(entry, block)) {
                    Some(block) => block,
                    None => match self.repaired(entry, old).await {
                        Some(buf) => {
                            repaired = buf;
                            &repaired
                        }
                        None => continue,
                    },
                };
                if let (PACKED_VOLUME, Some(to)) = (entry.volume, &repack_to) {
                    if self.repack(writers, entry.lba.0, &near, to).await? {
                        continue;
                    }
                }
                let row = Self::with_open_row(writers, stream.is_some());
                let Some(to) = row.or(stream) else { return Ok(()) };
                let writer = &mut writers.data[usize::from(to)];
                // A copy: the few blocks that live must not keep a whole chunk in memory.
                let block = IoBuf::copy_of(block).freeze();
                let (volume, lba) = (entry.volume, entry.lba);
                let (new, sum) =
                    writer.append(volume, lba, block, commit, info.clock, keep).await?;
                if Classes::is_user(to) {
                    writer.count_filler();
                }
                writers.relocations.push(Relocation { volume, lba, old, new, sum });
                slices.step().await;
            }
            at = upto;
        }
        match &repack_to {
            Some(to) => self.finish_repacked(writers, to).await,
            None => Ok(()),
        }
    }

    /// A live block that is not what it should be where it is, from redundancy. `None` if that
    /// fails: the block and its segment stay where they are, because moving the block would turn a
    /// detected loss into data that looks right.
    async fn repaired(&self, entry: &Live, addr: BlockAddr) -> Option<IoBuf> {
        let Live { volume, lba, sum, .. } = *entry;
        let wanted = Wanted { addr, volume, lba, blocks: 1, sums: vec![sum] };
        let read = self.store.reader.read(&wanted).await.ok();
        if read.is_none() {
            self.note_lost_at(volume, lba, addr);
        }
        read
    }

    fn is_right(&self, entry: &Live, block: &[u8]) -> bool {
        let fits = |sum| self.store.reader.fits((entry.volume, entry.lba), block, sum);
        entry.sum.is_some_and(fits)
    }

    /// Live blocks of a segment that the group being written does not overwrite, in order. They
    /// come from its footer, or from the whole map if a crash left the segment half filled.
    async fn live_blocks(&self, segment: SegmentId, info: &SegmentInfo) -> Vec<Live> {
        let footer = match info.footer {
            true => self.store.reader.footer(segment).await.ok(),
            false => None,
        };
        let mut found: BTreeMap<u32, (VolumeId, Lba)> = BTreeMap::new();
        match &footer {
            Some(footer) => {
                found.extend(footer.blocks().map(|(block, volume, lba)| (block, (volume, lba))));
            }
            None => self.store.map.borrow().for_each(|volume, lba, addr, blocks| {
                if addr.segment() == segment {
                    for index in 0..blocks {
                        let lba = Lba(lba.0 + u64::from(index));
                        found.insert(addr.block() + index, (volume, lba));
                    }
                }
            }),
        }
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let overwritten = |volume: &VolumeId, lba: Lba| {
            let syncing = groups.syncing().and_then(|set| set.volumes.get(volume));
            syncing.is_some_and(|extents| extents.covers(lba))
        };
        let mut live = Vec::with_capacity(info.live as usize);
        for (block, (volume, lba)) in found {
            let here = BlockAddr::new(segment, block);
            let Some((owner, mapped)) = map.owner(volume, lba, here) else { continue };
            if !overwritten(&owner, lba) || self.has_versions(owner) {
                let in_footer = || footer.as_ref()?.sums.get(block as usize).copied();
                let sum = mapped.sum.or_else(in_footer);
                live.push(Live { block, volume, lba, sum });
            }
        }
        live
    }

    /// Applies to the map only what the cleaner did.
    async fn apply_moves(
        &self,
        writers: &mut Writers,
        delta: &mut Delta,
    ) -> Result<(), CommitError> {
        self.apply_repacked(writers, delta).await?;
        writers.relocations.drain(..).for_each(|moved| self.apply_move(&moved, delta));
        self.free_unused_packed(delta).await
    }

    /// Applies a moved block to the map, if some version of its volume still has it.
    pub(crate) fn apply_move(&self, moved: &Relocation, delta: &mut Delta) {
        let entry = forebay_map::Entry { addr: moved.new, sum: moved.sum };
        let mut map = self.store.map.borrow_mut();
        if let Some(owner) = map.replace_if(moved.volume, moved.lba, moved.old, entry) {
            self.store.table.add_live(moved.new, 1);
            self.store.table.sub_live(moved.old, 1);
            self.rename_cached(moved.old, moved.new);
            delta.assign(owner, moved.lba, moved.new, &[moved.sum]);
        }
    }
}

#[cfg(test)]
mod tests;
