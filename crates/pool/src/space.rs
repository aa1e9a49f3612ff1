//! Space accounts: what volumes may take, own, and are about to take.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_map::Map;
use forebay_rt as rt;
use forebay_txg::{Content, Groups, OverlayExtent};
use forebay_units::{Lba, Nanos, VolumeId};

use crate::Pool;
use crate::commit::error::CommitError;
use crate::status::PoolEvent;
use crate::volume::VolumeState;

/// With less free memory, no block is written that would make the map longer. Several groups fit
/// into it, so the map cannot outgrow it between two looks.
const NEW_BLOCKS_FREE_BYTES: u64 = 64 << 20;
/// With less free memory, nothing is written: an overwrite may split a run of the map.
const WRITES_FREE_BYTES: u64 = 32 << 20;
/// Between two looks at the free memory while writes are refused.
const LOOK_AGAIN: Nanos = Nanos::from_secs(1);

/// What the memory of the machine permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryLeft {
    /// Anything.
    #[default]
    Enough,
    /// Overwrites and trims.
    NoNewBlocks,
    /// Trims.
    NoWrites,
}

impl MemoryLeft {
    fn of(free_bytes: Option<u64>) -> Self {
        match free_bytes {
            Some(free) if free < WRITES_FREE_BYTES => Self::NoWrites,
            Some(free) if free < NEW_BLOCKS_FREE_BYTES => Self::NoNewBlocks,
            _ => Self::Enough,
        }
    }
}

/// Space accounts of sparse volumes. Other volumes own what they reserved.
#[derive(Default)]
pub(crate) struct Space {
    /// Blocks that volumes may take in all.
    pub usable_blocks: Cell<u64>,
    /// Blocks reserved for volumes that are not sparse.
    pub reserved_blocks: Cell<u64>,
    /// Mapped blocks of sparse volumes, as of the last root.
    pub sparse_blocks: Cell<u64>,
    /// Blocks that sparse volumes may take when all absorbed changes are under a root. After a
    /// power cut only some are there, so what others give back does not count before.
    pub promised_blocks: Cell<i64>,
    /// Blocks that may become free when all absorbed changes are under a root: what is trimmed,
    /// what is promised to blocks that may take less, and what snapshots hold that are destroyed.
    returning_blocks: Cell<u64>,
    /// The parts of both that groups bring which are closed and not under a root, oldest first.
    closed_blocks: RefCell<VecDeque<(i64, u64)>>,
    /// What the memory of the machine permits, and when it was looked at.
    memory: Cell<(MemoryLeft, Nanos)>,
}

impl Space {
    /// The open group is closed: the next root but for those of groups before it brings it.
    pub fn close_group(&self) {
        let mut closed = self.closed_blocks.borrow_mut();
        let promised: i64 = closed.iter().map(|group| group.0).sum();
        let returning: u64 = closed.iter().map(|group| group.1).sum();
        let (all_promised, all_returning) =
            (self.promised_blocks.get(), self.returning_blocks.get());
        closed.push_back((all_promised - promised, all_returning - returning));
    }

    /// The oldest closed group, if there is one, is under a root: the map counts its blocks.
    pub fn group_is_rooted(&self) {
        let (promised, returned) = self.closed_blocks.borrow_mut().pop_front().unwrap_or_default();
        self.promised_blocks.set(self.promised_blocks.get().saturating_sub(promised));
        self.returning_blocks.set(self.returning_blocks.get() - returned);
    }
}

impl Pool {
    /// Reserves the space that a change of a sparse volume needs, and notes what it may give back;
    /// of another volume, reserves what a snapshot that is about to be taken will hold because of
    /// the change. Returns whether there is enough for the change.
    pub(crate) fn reserve_space(
        &self,
        volume: &VolumeState,
        lba: Lba,
        blocks: u64,
        content: &Content,
    ) -> bool {
        let is_sparse = volume.sparse.get();
        if !is_sparse && !self.snapshots.is_wanted_of(volume.id) {
            return true;
        }
        let held = self.unshared_blocks(volume, lba, blocks);
        let (more, returning) = match content {
            Content::Data(_) if volume.may_take_less.get() => (blocks - held, blocks),
            Content::Data(_) => (blocks - held, 0),
            Content::Zero => (0, held),
        };
        if !is_sparse {
            // The snapshot will hold this beside the reservation. The volume's writes have their
            // room, so it is the snapshot that is refused if there is too little.
            self.snapshots.wanted.borrow_mut().grown_blocks += more as i64;
        } else if more > self.free_blocks() {
            return false;
        }
        self.promise_blocks(more as i64);
        self.expect_blocks(returning);
        true
    }

    /// Notes blocks that may become free with the open group.
    pub(crate) fn expect_blocks(&self, returning: u64) {
        let all = &self.dirty.space.returning_blocks;
        all.set(all.get() + returning);
    }

    /// Whether a write finds no room now, and may find some once what was absorbed is under a root.
    pub(crate) fn may_find_room(&self, volume: &VolumeState, lba: Lba, blocks: u64) -> bool {
        let may_be_short = volume.sparse.get() && self.may_get_free(blocks);
        may_be_short && self.may_get_free(blocks - self.unshared_blocks(volume, lba, blocks))
    }

    /// Whether fewer blocks are free, and more may be once what was absorbed is under a root.
    fn may_get_free(&self, blocks: u64) -> bool {
        blocks > self.free_blocks() && self.dirty.space.returning_blocks.get() > 0
    }

    /// Has what was absorbed committed, if only then so many blocks may be free.
    pub(crate) async fn wait_for_room(&self, blocks: u64) -> Result<(), CommitError> {
        match self.may_get_free(blocks) {
            true => self.commit_all().await,
            false => Ok(()),
        }
    }

    /// Counts blocks that may be taken, or no longer, with the groups that are not under a root.
    pub(crate) fn promise_blocks(&self, more: i64) {
        let promised = &self.dirty.space.promised_blocks;
        promised.set(promised.get() + more);
    }

    /// Looks at the free memory. A server whose map outgrew it would be killed, and no import would
    /// have room for that map.
    fn look_at_memory(&self) {
        self.note_free_memory(self.opener.free_memory_bytes());
    }

    /// As [`Pool::look_at_memory`], with what was counted beside other work.
    pub(crate) fn note_free_memory(&self, free_bytes: Option<u64>) {
        let now = MemoryLeft::of(free_bytes);
        let (before, _) = self.dirty.space.memory.replace((now, rt::now()));
        if let (MemoryLeft::Enough, Some(free_bytes), true) = (before, free_bytes, now != before) {
            self.health.events.push(PoolEvent::MemoryShort { free_bytes });
        }
    }

    /// Whether there is memory for what a change may add to the map.
    pub(crate) fn has_memory(
        &self,
        volume: &VolumeState,
        lba: Lba,
        blocks: u64,
        content: &Content,
    ) -> bool {
        let (left, looked_at) = self.dirty.space.memory.get();
        if left == MemoryLeft::Enough || matches!(content, Content::Zero) {
            return true;
        }
        if rt::now().since(looked_at) >= LOOK_AGAIN {
            self.look_at_memory();
        }
        match self.dirty.space.memory.get().0 {
            MemoryLeft::Enough => true,
            MemoryLeft::NoNewBlocks => self.held_blocks(volume.id, lba, blocks) == blocks,
            MemoryLeft::NoWrites => false,
        }
    }

    /// As [`Pool::held_blocks`], without those that a snapshot has as well, which stay when they
    /// are overwritten. What the group under way brings does not count where it may take less: an
    /// overwrite takes the rest.
    fn unshared_blocks(&self, volume: &VolumeState, lba: Lba, blocks: u64) -> u64 {
        if volume.is_being_shared.get() {
            return 0;
        }
        let counts = |groups: &Groups, piece: &OverlayExtent| {
            let open = groups.open().volumes.get(&volume.id);
            !volume.may_take_less.get() || open.is_some_and(|map| map.covers(piece.lba))
        };
        self.blocks_by(volume.id, (lba, blocks), counts, Map::unshared_within)
    }

    /// Blocks of data of a volume of `blocks` that no snapshot has, once all that was absorbed is
    /// under a root.
    pub(crate) fn blocks_no_snapshot_has(&self, volume: VolumeId, blocks: u64) -> u64 {
        let unshared = {
            let map = self.store.map.borrow();
            map.mapped_blocks(volume) as i64 - map.shared_blocks(volume) as i64
        };
        (unshared + self.absorbed_blocks(volume, blocks, Map::unshared_within)).max(0) as u64
    }

    /// By how many blocks of data what was absorbed makes a volume of `blocks` larger than
    /// `in_map` says. Looks at no other range: the map of a large volume would take long.
    pub(crate) fn absorbed_blocks(
        &self,
        volume: VolumeId,
        blocks: u64,
        in_map: impl Fn(&Map, VolumeId, Lba, u64) -> u64,
    ) -> i64 {
        let map = self.store.map.borrow();
        let mut more = 0;
        for piece in self.dirty.groups.borrow().lookup(volume, Lba(0), blocks) {
            let then = match piece.content {
                Some(Content::Data(_)) => piece.blocks,
                Some(Content::Zero) => 0,
                None => continue,
            };
            more += then as i64 - in_map(&map, volume, piece.lba, piece.blocks) as i64;
        }
        more
    }

    /// Blocks in this range that hold data, once all that was absorbed is under a root.
    pub(crate) fn held_blocks(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        self.blocks_by(volume, (lba, blocks), |_, _| true, Map::mapped_within)
    }

    /// Blocks of data in this range: of what was absorbed what counts, of the rest as the map says.
    fn blocks_by(
        &self,
        volume: VolumeId,
        (lba, blocks): (Lba, u64),
        counts: impl Fn(&Groups, &OverlayExtent) -> bool,
        in_map: impl Fn(&Map, VolumeId, Lba, u64) -> u64,
    ) -> u64 {
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let held = |piece: &OverlayExtent| match piece.content {
            Some(Content::Data(_)) if counts(&groups, piece) => piece.blocks,
            Some(_) => 0,
            None => in_map(&map, volume, piece.lba, piece.blocks),
        };
        groups.lookup(volume, lba, blocks).iter().map(held).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Where roots take long, a group may be closed while the root of the one before is on its way.
    #[test]
    fn a_root_ends_what_its_own_group_was_promised_and_brings_back() {
        let space = Space::default();
        let change = |promised: i64, returning: u64| {
            space.promised_blocks.set(space.promised_blocks.get() + promised);
            space.returning_blocks.set(space.returning_blocks.get() + returning);
        };
        let open = || (space.promised_blocks.get(), space.returning_blocks.get());
        change(5, 3);
        space.close_group();
        change(7, 2);
        space.close_group();
        change(-1, 4);
        assert_eq!(open(), (11, 9));
        space.group_is_rooted();
        assert_eq!(open(), (6, 6));
        space.group_is_rooted();
        assert_eq!(open(), (-1, 4));
        // No group is closed: such a root brings none.
        space.group_is_rooted();
        assert_eq!(open(), (-1, 4));
    }
}
