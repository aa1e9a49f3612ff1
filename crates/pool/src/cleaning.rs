//! The cleaner: empties segments that are mostly dead, so that there is always room.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::footer::Run;
use forebay_format::map_record::Delta;
use forebay_rt as rt;
use forebay_segment::{Classes, STREAMS, SegmentInfo, Victim, Wanted, choose_victim};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, Lba, SegmentId, VolumeId};

use crate::{Pool, PoolError, Relocation, Writers};

/// Blocks read at once from a victim.
const CHUNK_BLOCKS: u32 = 256;

/// Rounds of cleaning without a block gained after which the group goes on with what there is.
const FRUITLESS_ROUNDS: u32 = 16;

/// A live block of a victim.
struct Live {
    block: u32,
    volume: VolumeId,
    lba: Lba,
    sum: Option<u64>,
}

impl Pool {
    /// Segments that the open group, and the streams that take it, may need.
    pub(crate) fn segments_needed(&self) -> u32 {
        let blocks = self.groups.borrow().open().data_blocks();
        let per_segment = u64::from(self.table.data_blocks(SegmentId(0))).max(1);
        blocks.div_ceil(per_segment) as u32 + 2
    }

    /// Cleans until the open group fits and the reserve is whole, with roots of its own between:
    /// a segment is free only when a root no longer needs it.
    pub(crate) async fn make_room(self: &Rc<Self>, writers: &mut Writers) -> Result<(), PoolError> {
        let (mut fruitless, mut best) = (0, 0);
        loop {
            let reserve = self.limits.get().reserve_segments + self.segments_of_a_checkpoint();
            let target = self.segments_needed() + reserve;
            let free = self.table.free_count();
            if free >= target || fruitless >= FRUITLESS_ROUNDS {
                return Ok(());
            }
            let moved = self.clean(writers, target - free).await?;
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

    /// Segments that the map takes when it is written anew, which may begin with any root.
    fn segments_of_a_checkpoint(&self) -> u32 {
        let blocks = self.checkpoint_bytes().div_ceil(BLOCK_BYTES);
        let per_segment = u64::from(self.table.data_blocks(SegmentId(0))).max(1);
        blocks.div_ceil(per_segment) as u32 + 1
    }

    /// Blocks that can be written without cleaning. Where every segment is almost full of live
    /// blocks, whole segments are gained too seldom to tell progress by them.
    fn room_blocks(&self, writers: &Writers) -> u64 {
        let segments = u64::from(self.table.free_count() + self.table.emptied_count());
        let open: u64 = writers.data.iter().map(|w| u64::from(w.blocks_left())).sum();
        segments * u64::from(self.table.data_blocks(SegmentId(0))) + open
    }

    /// Moves live blocks out of victims until about `wanted` segments will be free. Says whether
    /// there was a victim.
    async fn clean(self: &Rc<Self>, writers: &mut Writers, wanted: u32) -> Result<bool, PoolError> {
        let limits = self.limits.get();
        // What the moved blocks may take: the rest is the map journal's.
        let spare = self.table.free_count().saturating_sub(limits.map_reserve_segments + 1);
        let per_segment = u64::from(self.table.data_blocks(SegmentId(0)));
        // The last segment of each stream may take a single block. When there is no room for
        // that, one stream takes everything, into what is left of its own segment first.
        let only = (spare < 2 * u32::from(STREAMS)).then(Classes::of_all_moved);
        let mut room = match only {
            Some(stream) => {
                let left = writers.data[usize::from(stream)].blocks_left();
                u64::from(spare) * per_segment + u64::from(left)
            }
            None => u64::from(spare - u32::from(STREAMS)) * per_segment,
        };
        let mut gain = 0.0;
        let mut any = false;
        while gain < f64::from(wanted) {
            let Some(victim) = choose_victim(&self.table, self.sync.commit.get()) else { break };
            if u64::from(victim.live) > room {
                break;
            }
            room -= u64::from(victim.live);
            gain += 1.0 - victim.utilisation;
            any = true;
            self.table.set_cleaning(victim.segment, true);
            self.empty(writers, &victim, only).await?;
        }
        Ok(any)
    }

    async fn empty(
        self: &Rc<Self>,
        writers: &mut Writers,
        victim: &Victim,
        only: Option<u8>,
    ) -> Result<(), PoolError> {
        let info = self.table.get(victim.segment);
        self.classes.reclaimed(self.stats.clock(), info.stream, info.clock);
        if info.live == 0 {
            return Ok(());
        }
        let live = self.live_blocks(victim.segment, &info).await;
        let commit = self.sync.commit.get().next();
        let inferred = self.classes.moved_stream(self.stats.clock(), info.stream, info.clock);
        let stream = only.unwrap_or(inferred);
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
                let writer = &mut writers.data[usize::from(stream)];
                let keep = self.limits.get().map_reserve_segments;
                let (new, sum) =
                    writer.append(entry.volume, entry.lba, block, commit, info.clock, keep).await?;
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

    /// What lives in a segment, in order: from its footer, or (when it was left half filled at a
    /// crash) from the whole map.
    async fn live_blocks(&self, segment: SegmentId, info: &SegmentInfo) -> Vec<Live> {
        let footer = match info.footer {
            true => self.reader.footer(segment).await.ok(),
            false => None,
        };
        let mut found: BTreeMap<u32, (VolumeId, Lba)> = BTreeMap::new();
        match &footer {
            Some(footer) => {
                let mut block = 0;
                for run in &footer.runs {
                    if run.volume != Run::PADDING {
                        for index in 0..run.blocks {
                            let lba = Lba(run.lba.0 + u64::from(index));
                            found.insert(block + index, (run.volume, lba));
                        }
                    }
                    block += run.blocks;
                }
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
        let mut live = Vec::with_capacity(info.live as usize);
        for (block, (volume, lba)) in found {
            let here = BlockAddr::new(segment, block);
            if let Some(mapped) = map.lookup(volume, lba)
                && mapped.addr == here
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
