//! The map journal: deltas of each group, and checkpoints of the map in parts.

use forebay_format::Encoder;
use forebay_format::journal::{FrameKind, MAX_PAYLOAD_BYTES, SegmentRecord};
use forebay_format::map_record::{Delta, LeafImage, encode_leaves};
use forebay_map::LeafId;
use forebay_rt as rt;
use forebay_segment::{frame_bytes, frame_room};
use forebay_units::CommitId;

use crate::Pool;
use crate::commit::error::CommitError;
use crate::state::{Checkpoint, Writers};

/// Bytes of a checkpoint that are written beside `delta_bytes` of changes.
pub(crate) fn checkpoint_budget(delta_bytes: u64) -> u64 {
    (4 * delta_bytes).max(256 << 10)
}

impl Pool {
    /// Appends the changes to the map journal, and a part of a checkpoint when one is due.
    pub(crate) async fn journal(
        &self,
        writers: &mut Writers,
        delta: &Delta,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let begins_anew = writers.journal.is_left();
        if begins_anew || writers.journal_start.is_none() {
            writers.journal_start = Some(writers.journal.open(commit)?);
        }
        let mut bytes = 0;
        if !delta.is_empty() {
            for payload in delta.encode(MAX_PAYLOAD_BYTES) {
                bytes += frame_bytes(payload.len());
                writers.journal.append(FrameKind::Delta, &payload, commit).await?;
            }
        }
        match begins_anew {
            true => self.whole_checkpoint(writers, commit).await?,
            false => self.checkpoint(writers, bytes, commit).await?,
        }
        let emptied = self.store.table.collect_empty(commit);
        self.stats.cleaned(emptied.len() as u64);
        // Segments that died by overwrites tell as much about lifetimes as cleaned ones.
        for info in emptied.iter().filter(|info| !info.cleaning) {
            self.store.classes.reclaimed(self.stats.clock(), info.stream, info.clock);
        }
        self.append_segments(writers, false, commit).await?;
        self.append_snapshots(writers, false, commit).await?;
        self.append_fingerprints(writers, commit).await?;
        self.fill_row_with_leaves(writers, commit).await?;
        writers.journal.finish_rows(commit).await?;
        self.store.in_flight.drain().await?;
        Ok(())
    }

    async fn append_segments(
        &self,
        writers: &mut Writers,
        all: bool,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let records = self.store.table.take_records(all);
        for chunk in records.chunks(MAX_PAYLOAD_BYTES / SegmentRecord::BYTES) {
            let mut out = Encoder::new();
            chunk.iter().for_each(|record| record.encode(&mut out));
            writers.journal.append(FrameKind::Segments, &out.finish(), commit).await?;
        }
        Ok(())
    }

    async fn append_snapshots(
        &self,
        writers: &mut Writers,
        all: bool,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let mut out = Encoder::new();
        for record in self.snapshots.take_records(all) {
            if out.len() + record.encoded_len() > MAX_PAYLOAD_BYTES {
                let payload = std::mem::take(&mut out).finish();
                writers.journal.append(FrameKind::Snapshots, &payload, commit).await?;
            }
            record.encode(&mut out);
        }
        if !out.is_empty() {
            writers.journal.append(FrameKind::Snapshots, &out.finish(), commit).await?;
        }
        Ok(())
    }

    /// Upper bound for a checkpoint of the whole map, in bytes.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        const ENTRY_BYTES: u64 = 10;
        let map = self.store.map.borrow();
        let entries = map.volumes().map(|version| map.entries(version)).sum::<u64>();
        entries * ENTRY_BYTES + self.snapshots.record_bytes() + self.dedup.journal_bytes()
    }

    /// Journal length, in segments, from which a checkpoint is due: twice its size, plus a margin
    /// so that small pools write groups as well.
    pub(crate) fn checkpoint_worth(&self) -> u64 {
        2 * self.journal_copies() + 2 * self.checkpoint_bytes() / self.journal_segment_bytes()
    }

    /// Journal length, in segments, from which padding in the journal's rows becomes part of a
    /// checkpoint: the size of one, plus the open segment.
    fn checkpoint_welcome(&self) -> u64 {
        self.journal_copies() + self.checkpoint_worth() / 2
    }

    /// Continues a checkpoint, or begins one when the deltas have outgrown it.
    ///
    /// A checkpoint is the whole map written again, in parts between deltas. When it is complete,
    /// the journal begins where the checkpoint did. Leaves and deltas read in order give the map,
    /// because each says what is and not what changed. While the journal is short enough, a
    /// checkpoint uses only room that rows would otherwise pad, and costs nothing.
    async fn checkpoint(
        &self,
        writers: &mut Writers,
        delta_bytes: u64,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let forced = self.scan.checkpoint_wanted.get();
        let segments = writers.journal.segments() as u64;
        if writers.checkpoint.is_none() {
            if segments <= self.checkpoint_welcome() && !forced {
                return Ok(());
            }
            self.scan.checkpoint_wanted.set(false);
            if forced {
                // The open segment may be the damaged one, so it is closed too.
                writers.journal.finish_rows(commit).await?;
                writers.journal.begin_segment(commit).await?;
            }
            self.begin_checkpoint(writers, forced, commit).await?;
        }
        let now = writers.checkpoint.as_mut().expect("set above");
        now.urgent |= forced || segments > self.checkpoint_worth();
        let Checkpoint { index_part, urgent, .. } = *now;
        if !urgent && index_part.is_none() {
            return Ok(());
        }
        // A checkpoint may wait until the cleaner has gained room for it.
        const LEFT_FREE: u64 = 2;
        let room = u64::from(self.store.table.free_count()).saturating_sub(LEFT_FREE);
        let budget = checkpoint_budget(delta_bytes).min(room * self.journal_segment_bytes());
        self.append_part(writers, budget, commit).await
    }

    /// Writes a checkpoint at once: nothing before it leads to it.
    async fn whole_checkpoint(
        &self,
        writers: &mut Writers,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        self.begin_checkpoint(writers, true, commit).await?;
        while writers.checkpoint.is_some() {
            self.append_part(writers, u64::MAX, commit).await?;
        }
        Ok(())
    }

    async fn begin_checkpoint(
        &self,
        writers: &mut Writers,
        urgent: bool,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        // The place of a checkpoint's first frame is known only after it is written, so a frame of
        // segment records comes first.
        writers.journal.finish_rows(commit).await?;
        let start = writers.journal.position().expect("a journal segment is open");
        let cursor = LeafId::default();
        writers.checkpoint = Some(Checkpoint { start, cursor, index_part: None, urgent });
        self.append_segments(writers, true, commit).await?;
        self.append_snapshots(writers, true, commit).await
    }

    /// Appends the next part of a checkpoint, some `budget` bytes of it.
    async fn append_part(
        &self,
        writers: &mut Writers,
        budget: u64,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let Some(Checkpoint { cursor, index_part, .. }) = writers.checkpoint else { return Ok(()) };
        if let Some(part) = index_part {
            let next = self.append_index(writers, part, budget, commit).await?;
            match (&mut writers.checkpoint, next) {
                (Some(now), Some(_)) => now.index_part = next,
                _ => Self::end_checkpoint(writers, commit),
            }
            return Ok(());
        }
        let next = self.append_leaves(writers, cursor, budget, commit).await?;
        self.checkpoint_is_at(writers, next, commit);
        Ok(())
    }

    fn checkpoint_is_at(&self, writers: &mut Writers, next: Option<LeafId>, commit: CommitId) {
        let Some(now) = &mut writers.checkpoint else { return };
        match next {
            Some(next) => now.cursor = next,
            None if self.dedup.is_used() => now.index_part = Some(0),
            None => Self::end_checkpoint(writers, commit),
        }
    }

    /// The checkpoint is whole: the journal begins where it did.
    fn end_checkpoint(writers: &mut Writers, commit: CommitId) {
        let Some(Checkpoint { start, .. }) = writers.checkpoint.take() else { return };
        writers.journal_start = Some(start);
        writers.journal.trim(start.seq, commit);
    }

    /// Writes leaves where the last row of the journal would be padded.
    async fn fill_row_with_leaves(
        &self,
        writers: &mut Writers,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        while let Some(Checkpoint { cursor, index_part: None, .. }) = writers.checkpoint {
            let room = writers.journal.bytes_to_row_end().min(frame_room(MAX_PAYLOAD_BYTES));
            // A version byte, and leaves that fit into the room.
            let (most, least) =
                (room.saturating_sub(frame_room(0) + 1), LeafImage::ENCODED_LEN_MAX);
            let Some(budget) = most.checked_sub(least).filter(|budget| *budget > 0) else { break };
            let next = self.append_leaves(writers, cursor, budget as u64, commit).await?;
            self.checkpoint_is_at(writers, next, commit);
        }
        Ok(())
    }

    /// Appends leaves from `cursor` on until they take `budget_bytes`. Returns the leaf after them.
    async fn append_leaves(
        &self,
        writers: &mut Writers,
        cursor: LeafId,
        budget_bytes: u64,
        commit: CommitId,
    ) -> Result<Option<LeafId>, CommitError> {
        let mut slices = rt::Slices::new();
        let mut cursor = Some(cursor);
        let (mut left_bytes, mut images, mut frame_bytes) = (budget_bytes, Vec::new(), 0);
        loop {
            // The map changes only where commits change it.
            let next = cursor.filter(|_| left_bytes > 0).and_then(|at| self.leaf_at(at));
            let fits = |image: &LeafImage| frame_bytes + image.encoded_len() < MAX_PAYLOAD_BYTES;
            if !next.as_ref().is_some_and(|(_, image)| fits(image)) {
                for payload in encode_leaves(&images, MAX_PAYLOAD_BYTES) {
                    writers.journal.append(FrameKind::Leaves, &payload, commit).await?;
                }
                (images, frame_bytes) = (Vec::new(), 0);
            }
            let Some((id, image)) = next else { break };
            left_bytes = left_bytes.saturating_sub(image.encoded_len() as u64);
            frame_bytes += image.encoded_len();
            images.push(image);
            cursor = id.next();
            slices.step().await;
        }
        Ok(cursor.and_then(|from| self.store.map.borrow().leaves_from(from).next()))
    }

    /// The first leaf from `cursor` on.
    fn leaf_at(&self, cursor: LeafId) -> Option<(LeafId, LeafImage)> {
        let map = self.store.map.borrow();
        let id = map.leaves_from(cursor).next()?;
        Some((id, map.leaf_image(id)))
    }
}
