//! What a volume has changed since one of its snapshots.

use forebay_units::{BLOCK_BYTES, Lba, VolumeId};

use crate::Pool;
use crate::admin::error::VolumeError;

/// Consecutive bytes that were all changed, or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    /// Length in bytes.
    pub len_bytes: u64,
    /// They may differ.
    pub changed: bool,
}

impl Pool {
    /// The id of volume `VOL` or of snapshot `VOL@SNAP`, and of the volume.
    fn version_named(&self, name: &str) -> Result<(VolumeId, VolumeId), VolumeError> {
        if name.contains('@') {
            let (volume, snapshot) = self.snapshot_named(name)?;
            return Ok((snapshot.id, volume.id));
        }
        let volume = self.volume_named(name)?;
        Ok((volume.id, volume.id))
    }

    /// Names (without the volume's) of the snapshots that are older than a version `VOL` or
    /// `VOL@SNAP`, oldest first.
    pub fn snapshots_before(&self, name: &str) -> Result<Vec<String>, VolumeError> {
        let (version, volume) = self.version_named(name)?;
        let is_older = |id: VolumeId| version == volume || id < version;
        let all = self.snapshots.of(volume).into_iter();
        let older = all.filter(|snapshot| !snapshot.is_dying && is_older(snapshot.id));
        Ok(older.map(|snapshot| snapshot.name).collect())
    }

    /// Which parts of a range a version `VOL` or `VOL@SNAP` has changed since the older snapshot
    /// `since` (its name without the volume's): at least one run, from the start of the range on;
    /// the runs may end before the range does. What was written with what it held counts as
    /// changed.
    pub fn changes_since(
        &self,
        name: &str,
        since: &str,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Vec<ChangedRun>, VolumeError> {
        /// Most runs in one answer; a client asks again for the rest.
        const MAX_RUNS: usize = 4096;
        /// Blocks looked at in one step: each may be a run of its own.
        const STEP_BLOCKS: u64 = 1 << 14;
        let (until, volume) = self.version_named(name)?;
        let older = self.snapshots.named(volume, since).filter(|s| until == volume || s.id < until);
        let older = older.ok_or_else(|| VolumeError::NoSnapshot {
            pool: self.name(),
            name: format!("{}@{since}", name.split('@').next().unwrap_or(name)),
        })?;
        let first = offset_bytes / BLOCK_BYTES;
        let end = (offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
        let map = self.store.map.borrow();
        let groups = self.dirty.groups.borrow();
        let mut runs: Vec<(u64, bool)> = Vec::new();
        let mut from = first;
        while from < end && runs.len() <= MAX_RUNS {
            let blocks = STEP_BLOCKS.min(end - from);
            let mut push = |blocks: u64, changed: bool| match runs.last_mut() {
                Some((length, last)) if *last == changed => *length += blocks,
                _ => runs.push((blocks, changed)),
            };
            // A snapshot has nothing that is still on its way.
            for piece in groups.lookup(until, Lba(from), blocks) {
                match piece.content {
                    Some(_) => push(piece.blocks, true),
                    None => map.changes((older.id, until), piece.lba, piece.blocks, &mut push),
                }
            }
            from += blocks;
        }
        let mut at = first;
        let mut out = Vec::new();
        for (blocks, changed) in runs.into_iter().take(MAX_RUNS) {
            let from = (at * BLOCK_BYTES).max(offset_bytes);
            at += blocks;
            let to = (at * BLOCK_BYTES).min(offset_bytes + len_bytes);
            out.push(ChangedRun { len_bytes: to - from, changed });
        }
        Ok(out)
    }
}
