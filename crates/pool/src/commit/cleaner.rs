//! The cleaner: empties segments that are mostly dead, so that there is always room.
//!
//! It works twice for a group. Mostly with it: once the group's blocks are in their rows, it moves
//! what is left of the emptiest segments, fills up the group's last rows with that, and all of it
//! counts with one root. What the group overwrites is as good as dead then. When a group is larger
//! than what was made free for it, the cleaner works before it, with roots of its own.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::map_record::Delta;
use forebay_rt as rt;
use forebay_segment::{Choice, Classes, STREAMS, SegmentInfo, Victim, Victims, Wanted};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use super::checkpoint::checkpoint_budget;
use crate::layout::journal_copies;
use crate::{Pool, PoolError, Relocation, Writers};

/// Blocks read at once from a victim.
const CHUNK_BLOCKS: u32 = 256;

/// Rounds of cleaning without a block gained after which the group goes on with what there is.
const FRUITLESS_ROUNDS: u32 = 16;

/// Free segments for blocks that are moved, from which on they are separated by age.
const ROOM_TO_SEPARATE: u32 = 4;

/// The cleaner may keep this part of all segments free so that it seldom needs a root of its own.
const WORKING_SHARE: u32 = 100;

/// Bytes that a change of one block takes in the map journal, at most.
const CHANGE_BYTES: u64 = 20;

/// Blocks that are written for each of a group, itself and those that are moved, in a full pool.
const MOVED_AND_WRITTEN: u64 = 4;

/// A live block of a victim.
struct Live {
    block: u32,
    volume: VolumeId,
    lba: Lba,
    sum: Option<u64>,
}

impl Pool {
    /// Blocks of data in a segment.
    fn per_segment(&self) -> u64 {
        u64::from(self.table.data_blocks(SegmentId(0))).max(1)
    }

    /// Bytes that a segment of the map journal holds, at least: half where there are copies of them.
    pub(crate) fn journal_segment_bytes(&self) -> u64 {
        self.per_segment() * BLOCK_BYTES / self.journal_copies()
    }

    /// How often the map journal is written.
    pub(crate) fn journal_copies(&self) -> u64 {
        journal_copies(&self.array.groups())
    }

    /// Segments that a group of `blocks` may need, beside those that are being filled.
    fn segments_for(&self, blocks: u64, writers: &Writers) -> u32 {
        let user = writers.data.iter().enumerate().filter(|(at, _)| Classes::is_user(*at as u8));
        let left: u64 = user.map(|(_, writer)| u64::from(writer.blocks_left())).sum();
        blocks.saturating_sub(left).div_ceil(self.per_segment()) as u32 + 1
    }

    /// Segments that only the map journal may take while a group of `blocks` is written, and what
    /// is moved with it.
    pub(crate) fn journal_keep(&self, blocks: u64) -> u32 {
        let bytes = blocks * MOVED_AND_WRITTEN * CHANGE_BYTES;
        let segments = bytes / self.journal_segment_bytes();
        self.limits.get().map_reserve_segments + segments as u32
    }

    /// Segments that must be free before a group of `blocks` is written, so that the cleaner and
    /// the journal can go on after it whatever becomes of it.
    fn segments_before(&self, blocks: u64, writers: &Writers) -> u32 {
        self.segments_for(blocks, writers)
            + self.journal_keep(blocks)
            + self.limits.get().reserve_segments
            + self.segments_of_a_checkpoint(blocks, writers)
    }

    /// Free segments below which emptied ones are freed at once.
    pub(crate) fn is_tight(&self, writers: &Writers) -> bool {
        let blocks = self.groups.borrow().open().data_blocks().max(self.stats.last_group_blocks());
        self.table.free_count() < 2 * self.segments_before(blocks, writers)
    }

    /// Cleans until the open group fits and the reserve is whole, with roots of its own between:
    /// a segment is free only when a root no longer needs it.
    pub(crate) async fn make_room(self: &Rc<Self>, writers: &mut Writers) -> Result<(), PoolError> {
        // A root of moved blocks alone says little: one segment is enough for what the journal says.
        const LEAST_KEEP: u32 = 1;
        let (mut fruitless, mut best) = (0, 0);
        loop {
            let blocks = self.groups.borrow().open().data_blocks();
            let target = self.segments_before(blocks, writers);
            let free = self.table.free_count();
            if free >= target || fruitless >= FRUITLESS_ROUNDS {
                return Ok(());
            }
            let keep = self.limits.get().map_reserve_segments;
            // Whatever is worthiest in the long run: without progress it is the emptiest.
            let choice = match self.classes.is_skewed() && fruitless == 0 {
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
            self.settle_moves(writers, &mut delta)?;
            self.journal(writers, &delta, commit).await?;
            let txg = self.sync.committed.get();
            self.write_root(writers, txg, false).await?;
            let now = self.room_blocks(writers);
            fruitless = if now > best { 0 } else { fruitless + 1 };
            best = best.max(now);
            if !moved && self.table.emptied_count() == 0 && self.table.free_count() <= free {
                return Ok(());
            }
        }
    }

    /// Cleans with the group that is being written, of `blocks`, so that the next one fits without a
    /// root for itself. Everything of the group is in its rows; those that are not full are filled
    /// with what is moved. The group overwrites `overwritten` blocks, `young` of them young.
    pub(crate) async fn clean_along(
        self: &Rc<Self>,
        writers: &mut Writers,
        blocks: u64,
        (overwritten, young): (u64, u64),
        keep: u32,
    ) -> Result<(), PoolError> {
        let now = self.stats.clock();
        let (age, share) = self.table.live_ages(now, self.classes.young());
        let skewed = self.classes.judge_skew(overwritten, young, age, share);
        if self.closing.get() {
            return Ok(());
        }
        let choice = if skewed { Choice::Worthiest { now } } else { Choice::Emptiest };
        let next = self.groups.borrow().open().data_blocks().max(blocks);
        let mut target = self.segments_before(next, writers);
        // What is moved beside the next group takes room too, until the root that frees victims.
        if let Some(victim) = Victims::of(&self.table, self.sync.commit.get(), choice).first() {
            let live = u64::from(victim.live);
            let dead = u64::from(self.table.capacity(victim.segment)).max(live + 1) - live;
            let moved = (next * live / dead).div_ceil(self.per_segment()) as u32;
            target += moved.min(self.table.len() / WORKING_SHARE);
        }
        let soon = self.table.free_soon();
        if soon < target {
            self.clean(writers, target - soon, keep, choice).await?;
        }
        Ok(())
    }

    /// Segments that the part of a checkpoint takes which goes with a group of `blocks`, if one has
    /// to get on or is about to.
    fn segments_of_a_checkpoint(&self, blocks: u64, writers: &Writers) -> u32 {
        let urgent = writers.checkpoint.is_some_and(|checkpoint| checkpoint.urgent);
        if !urgent && (writers.journal.segments() as u64) < self.checkpoint_worth() {
            return 0;
        }
        let part = checkpoint_budget(blocks * MOVED_AND_WRITTEN * CHANGE_BYTES);
        part.min(self.checkpoint_bytes()).div_ceil(self.journal_segment_bytes()) as u32
    }

    /// Blocks that can be written without cleaning. Where every segment is almost full of live
    /// blocks, whole segments are gained too seldom to tell progress by them.
    fn room_blocks(&self, writers: &Writers) -> u64 {
        let segments = u64::from(self.table.free_count() + self.table.emptied_count());
        let open: u64 = writers.data.iter().map(|w| u64::from(w.blocks_left())).sum();
        segments * self.per_segment() + open
    }

    /// Moves live blocks out of victims until about `wanted` segments will be free, and then until
    /// the rows that are being filled are full. Leaves `keep` segments to the journal. Says
    /// whether there was a victim.
    async fn clean(
        self: &Rc<Self>,
        writers: &mut Writers,
        wanted: u32,
        keep: u32,
        choice: Choice,
    ) -> Result<bool, PoolError> {
        let mut victims = Victims::of(&self.table, self.sync.commit.get(), choice);
        let mut gained = 0.0;
        let mut any = false;
        while gained < f64::from(wanted) {
            let Some(victim) = victims.first() else { break };
            let Some(stream) = self.stream_for(writers, &victim, keep) else { break };
            victims.next();
            let blocks = self.table.capacity(victim.segment);
            gained += 1.0 - f64::from(victim.live) / f64::from(blocks);
            any = true;
            self.table.set_cleaning(victim.segment, true);
            let info = self.table.get(victim.segment);
            self.classes.reclaimed(self.stats.clock(), info.stream, info.clock);
            self.empty(writers, &victim, Some(stream), keep).await?;
        }
        // Zeros would be dead from the start; what is moved now need not be moved next time.
        while any && writers.data.iter().any(|writer| writer.blocks_to_row_end() > 0) {
            let Some(victim) = victims.next() else { break };
            self.empty(writers, &victim, None, keep).await?;
        }
        Ok(any)
    }

    /// The stream that takes what lives in `victim`: by its age while there is room to separate,
    /// else where it fits best. `None` when it fits nowhere.
    fn stream_for(&self, writers: &Writers, victim: &Victim, keep: u32) -> Option<u8> {
        let info = self.table.get(victim.segment);
        let left = |stream: u8| writers.data[usize::from(stream)].blocks_left();
        let spare = self.table.free_count().saturating_sub(keep + 1);
        let inferred = self.classes.moved_stream(self.stats.clock(), info.stream, info.clock);
        if left(inferred) >= victim.live || spare >= ROOM_TO_SEPARATE {
            return Some(inferred);
        }
        let moved = (0..STREAMS).filter(|stream| !Classes::is_user(*stream));
        let roomiest = moved.max_by_key(|stream| (left(*stream), *stream == inferred))?;
        (left(roomiest) >= victim.live || spare > 0).then_some(roomiest)
    }

    /// A stream whose last row is not full, of the host's first.
    fn with_open_row(writers: &Writers, user_only: bool) -> Option<u8> {
        let open = |stream: &u8| writers.data[usize::from(*stream)].blocks_to_row_end() > 0;
        (0..STREAMS).filter(|stream| !user_only || Classes::is_user(*stream)).find(open)
    }

    /// Moves what lives in `victim` to `stream`, the last rows of the host's streams first; or,
    /// without a stream, as much of it as fills the rows of all streams.
    async fn empty(
        self: &Rc<Self>,
        writers: &mut Writers,
        victim: &Victim,
        stream: Option<u8>,
        keep: u32,
    ) -> Result<(), PoolError> {
        let info = self.table.get(victim.segment);
        let mut live = self.live_blocks(victim.segment, &info).await;
        let commit = self.sync.commit.get().next();
        if stream.is_none() {
            let fill: u32 = writers.data.iter().map(|writer| writer.blocks_to_row_end()).sum();
            live.truncate(fill as usize);
        }
        let mut at = 0;
        while at < live.len() {
            let first = live[at].block;
            let upto = live.partition_point(|l| l.block < first + CHUNK_BLOCKS);
            let span = live[upto - 1].block - first + 1;
            let addr = BlockAddr::new(victim.segment, first);
            let chunk = self.array.read(addr, span).await.ok();
            for entry in &live[at..upto] {
                let old = BlockAddr::new(victim.segment, entry.block);
                let start = (entry.block - first) as usize * BLOCK_LEN;
                let held = chunk.as_ref().map(|c| &c[start..start + BLOCK_LEN]);
                let repaired;
                let block = match held {
                    Some(block) if self.is_right(entry, block) => block,
                    _ => {
                        let wanted = Wanted {
                            addr: old,
                            volume: entry.volume,
                            lba: entry.lba,
                            blocks: 1,
                            sums: vec![entry.sum],
                        };
                        match self.reader.read(&wanted).await {
                            Ok(buf) => repaired = buf,
                            Err(_) => {
                                // It stays where it is, and so does the segment: moving it would
                                // turn a detected loss into data that looks right.
                                self.note_lost_block(entry.volume, entry.lba);
                                continue;
                            }
                        }
                        &repaired
                    }
                };
                let row = Self::with_open_row(writers, stream.is_some());
                let Some(to) = row.or(stream) else { return Ok(()) };
                let writer = &mut writers.data[usize::from(to)];
                let (new, sum) =
                    writer.append(entry.volume, entry.lba, block, commit, info.clock, keep).await?;
                if Classes::is_user(to) {
                    writer.count_filler();
                }
                let (volume, lba) = (entry.volume, entry.lba);
                writers.relocations.push(Relocation { volume, lba, old, new, sum });
            }
            at = upto;
            rt::yield_now().await;
        }
        Ok(())
    }

    fn is_right(&self, entry: &Live, block: &[u8]) -> bool {
        let sum = forebay_format::checksum::block_sum(self.guid, entry.volume, entry.lba, block);
        entry.sum == Some(sum)
    }

    /// What lives in a segment and is not overwritten by the group being written, in order: from its footer, or (when it was left half filled at a
    /// crash) from the whole map.
    async fn live_blocks(&self, segment: SegmentId, info: &SegmentInfo) -> Vec<Live> {
        let footer = match info.footer {
            true => self.reader.footer(segment).await.ok(),
            false => None,
        };
        let mut found: BTreeMap<u32, (VolumeId, Lba)> = BTreeMap::new();
        match &footer {
            Some(footer) => {
                found.extend(footer.blocks().map(|(block, volume, lba)| (block, (volume, lba))));
            }
            None => self.map.borrow().for_each(|volume, lba, addr, blocks| {
                if addr.segment() == segment {
                    for index in 0..blocks {
                        let lba = Lba(lba.0 + u64::from(index));
                        found.insert(addr.block() + index, (volume, lba));
                    }
                }
            }),
        }
        let map = self.map.borrow();
        let groups = self.groups.borrow();
        let overwritten = |volume: &VolumeId, lba: Lba| {
            let syncing = groups.syncing().and_then(|set| set.volumes.get(volume));
            syncing.is_some_and(|extents| extents.covers(lba))
        };
        let mut live = Vec::with_capacity(info.live as usize);
        for (block, (volume, lba)) in found {
            let here = BlockAddr::new(segment, block);
            if let Some(mapped) = map.lookup(volume, lba)
                && mapped.addr == here
                && !overwritten(&volume, lba)
            {
                let in_footer = || footer.as_ref()?.sums.get(block as usize).copied();
                let sum = mapped.sum.or_else(in_footer);
                live.push(Live { block, volume, lba, sum });
            }
        }
        live
    }

    /// Lets the map follow moved blocks only.
    fn settle_moves(&self, writers: &mut Writers, delta: &mut Delta) -> Result<(), PoolError> {
        let map = &mut *self.map.borrow_mut();
        for moved in writers.relocations.drain(..) {
            let entry = forebay_map::Entry { addr: moved.new, sum: moved.sum };
            if map.replace_if(moved.volume, moved.lba, moved.old, entry) {
                self.table.add_live(moved.new, 1);
                self.table.sub_live(moved.old, 1);
                delta.assign(moved.volume, moved.lba, moved.new, &[moved.sum]);
            }
        }
        Ok(())
    }
}
